"""Runs a script once and prints, as JSON, what each kind of screen shows of it, and its record.

python every_screen.py SCRIPT [flags]
"""

import contextlib
import io
import json
import os
import runpy
import sys
from pathlib import Path
from unittest.mock import patch

script, sys.argv = sys.argv[1], sys.argv[1:]
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lecture01"))

import console  # noqa: E402
from export import as_json  # noqa: E402
from language import language  # noqa: E402
from terminal import Terminal  # noqa: E402

SCREENS = {
    **{str(width): {"LAB_WIDTH": str(width)} for width in (60, 80, 100, 200)},
    **{encoding: {"encoding": encoding} for encoding in ("gbk", "cp1252", "ascii", "latin-1")},
    "NO_COLOR": {"NO_COLOR": "1"},
    "FORCE_COLOR": {"FORCE_COLOR": "1"},
}


def screen(encoding="utf-8", **environment):
    """A Terminal as it would be made there, writing to memory."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding, newline="\n")
    with patch.object(sys, "stdout", stream), patch.dict(os.environ, {"LAB_WIDTH": "80", **environment}):
        return Terminal()


class Every:
    """A renderer that shows the same on every screen."""

    def __init__(self):
        self.screens = {name: screen(**settings) for name, settings in SCREENS.items()}

    def __getattr__(self, method):
        return lambda *shown: [getattr(one, method)(*shown) for one in self.screens.values()]


def text_of(terminal):
    return terminal.stream.buffer.getvalue().decode(terminal.stream.encoding)


console.renderer = every = Every()
with contextlib.suppress(SystemExit):
    runpy.run_path(script, run_name="__main__")
shown = {name: text_of(terminal) for name, terminal in every.screens.items()}
record = json.loads(as_json(console.record, Path(script).name, language))
print(json.dumps({"screens": shown, "record": record}))
