"""What changed since the last run: in the header, in the cells, and in a few lines at the end of a demo.

The last plain run of each demo is kept in .last/, or in the folder LAB_LAST names ("off" keeps none). Demos match by
the name of their function, tables and rows by their keys, columns and sentences by their places. Cells are compared as
they are displayed: rounding noise is no change. A run with the same knobs and the same code is compared with nothing.
"""

import hashlib
import json
import math
import os
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import console
from console import Claim
from language import _, language

ROOT = Path(__file__).resolve().parent.parent
VERSION = 1
ARROW = " \u2192 "


class LastRun:
    """The demos of a script as they were last shown, and where that is kept."""

    def __init__(self, script, forget=False):
        folder = os.environ.get("LAB_LAST") or ROOT / ".last"
        name = "-".join(Path(script).resolve().with_suffix(".json").parts[-2:])
        self.path = None if folder == "off" else Path(folder) / name
        self.code = code_in_use()
        self.demos = {} if forget or not self.path else self.read()

    def read(self):
        """{demo: what was recorded}; nothing, and a sentence, where the file is none of this version's."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if kept["version"] == VERSION and all(set(demo) == KEPT for demo in kept["demos"].values()):
                return kept["demos"]
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        say(_("What was kept of the last run cannot be used; this run is compared with nothing."))
        return {}

    @contextmanager
    def compared(self, name):
        """While this lasts, what the demo of this name shows is compared with its last run, and then kept."""
        before, shown = self.demos.get(name), console.renderer
        demos = len(console.record.demos)
        if before and (before["knobs"] != console.record.knobs or before["code"] != self.code):
            console.renderer = Comparison(shown, before)
        try:
            yield
            if isinstance(console.renderer, Comparison):
                console.renderer.conclude()
        finally:
            console.renderer = shown
        if len(console.record.demos) > demos:
            self.demos[name] = as_kept(console.record.demos[-1], self.code)

    def keep(self):
        """Write the file: all of it at once, whoever else writes it now."""
        if not self.path:
            return
        text, name = json.dumps({"version": VERSION, "demos": self.demos}), None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False, encoding="utf-8") as file:
                name = file.name
                file.write(text)
            os.replace(name, self.path)
        except OSError as error:
            if name:
                with suppress(OSError):
                    os.unlink(name)
            reason = error.strerror or str(error)
            say(_("This run cannot be kept for comparison with the next ({reason}).").format(reason=reason))


class Comparison:
    """A renderer that shows a demo through another one, with what it was `before` beside what it is."""

    def __init__(self, shown, before):
        self.shown, self.before = shown, before
        self.causes, self.changed, self.same, self.lines_ = [], [], [], []
        self.sentences = list(before["claims"])

    def __getattr__(self, name):
        return getattr(self.shown, name)

    def header(self, demo):
        knobs = self.before["knobs"]
        self.causes = [f"{name} {knobs[name]}{ARROW}{value}" for name, value in demo.knobs.items()
                       if name in knobs and knobs[name] != value]  # fmt: skip
        self.shown.header(demo, before=knobs)

    def table(self, table):
        old = self.before["tables"].get(table.key)
        if not old or old["columns"] != len(table.headers):
            self.shown.table(table)
            return
        same_language = self.before["lang"] == language
        marked, counts, common = [], [0] * len(table.headers), 0
        for row in table.rows:
            texts, was = list(row.texts), old["rows"].get(row.key)
            for i, (value, text) in enumerate(zip(row.values, row.texts, strict=True)):
                if was and was[i] != text and (same_language or not isinstance(value, str)):
                    texts[i] = f"{was[i]}{ARROW}{text}"
                    counts[i] += 1
            common += was is not None
            marked.append(replace(row, texts=texts))
        first = table.first and [row.key for row in table.rows if row.key in {*table.first, *old["first"]}]
        self.shown.table(replace(table, rows=marked, first=first))
        for title, count in zip(table.headers[1:], counts[1:], strict=True):
            if common and count:
                share = "" if count == common else _(" ({count} of {common} rows)").format(count=count, common=common)
                self.changed.append(title + share)
            elif common:
                self.same.append(title)
        self.lines_ += products(table, old)

    def observations(self, items):
        for item in items:
            if isinstance(item, Claim) and self.sentences:
                held = self.sentences.pop(0)
                if held != item.holds:
                    text = _("no longer holds: {sentence}") if held else _("holds now: {sentence}")
                    self.lines_.append(text.format(sentence=item.text))
        self.shown.observations(items)

    def conclude(self):
        """What changed, what stayed, which sentences turned."""
        causes = ", ".join(self.causes) or _("the code")
        lines = []
        if self.changed:
            lines.append(_("changed: {titles}").format(titles=", ".join(dict.fromkeys(self.changed))))
        if self.same:
            lines.append(_("unchanged: {titles}").format(titles=", ".join(dict.fromkeys(self.same))))
        if not lines:
            lines.append(_("no row is in both"))
        self.shown.lines(["", _("Since the last run ({causes}):").format(causes=causes)])
        self.shown.pairs([("  ", line) for line in [*lines, *self.lines_]])


def products(table, old):
    """For a column of factors, one line that shows the small steps of one run multiply to a big one of the other."""
    lines = []
    for i in table.factors:
        now = {int(row.key): (row.values[i], row.texts[i]) for row in table.rows}
        was = {int(key): tuple(pair) for key, pair in old["factors"].get(str(i), {}).items()}
        fine, coarse = (now, was) if len(now) > len(was) else (was, now)
        lines += next(multiplied(table.headers[i], fine, coarse), [])
    return lines


def multiplied(title, fine, coarse):
    """Yield [line] for each step of `coarse` that several steps of `fine`, two of them not 1, make up."""
    ends = sorted(coarse)
    for start, end in zip(ends[:-1], ends[1:], strict=True):
        steps = [fine[key] for key in sorted(fine) if start < key <= end]
        factors = [text for value, text in steps if float(text) != 1]
        exact = math.prod(float(value) for value, _text in steps)
        if end in fine and 1 < len(factors) < 7 and 0 < coarse[end][0] < 1:
            equal = "=" if math.isclose(exact, coarse[end][0], rel_tol=1e-4) else "!="
            text = _("{title} from {start:,} to {end:,}: {factors} {equal} {product}")
            yield [text.format(title=title, start=start, end=end, factors=" \u00d7 ".join(factors), equal=equal,
                               product=coarse[end][1])]  # fmt: skip


KEPT = {"code", "lang", "knobs", "tables", "claims"}


def as_kept(demo, code):
    """What of a recorded demo the next run is compared with."""
    tables = {
        table.key: {
            "columns": len(table.headers),
            "first": table.first or [],
            "rows": {row.key: row.texts for row in table.rows},
            "factors": {str(i): {row.key: (float(row.values[i]), row.texts[i]) for row in table.rows}
                        for i in table.factors},
        }
        for table in demo.tables
    }  # fmt: skip
    claims = [item.holds for item in demo.observations if isinstance(item, Claim)]
    return {"code": code, "lang": language, "knobs": demo.knobs, "tables": tables, "claims": claims}


def code_in_use():
    """A digest of the lab's own files that this run has imported, the script among them."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())} - {None}
    own = {file for file in files if file.startswith(f"{ROOT}{os.sep}") and f"{os.sep}.venv{os.sep}" not in file}
    digest = hashlib.sha256()
    for file in sorted({*own, os.path.abspath(sys.argv[0])}):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()


def say(sentence):
    sys.stderr.write(sentence + "\n")
