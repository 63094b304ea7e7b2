"""The scripts themselves on every kind of screen, in both languages; and the check the night before."""

import re
import subprocess
import sys

import pytest
from rich.cells import cell_len

from conftest import ROOT, SCRIPTS, shown

pytestmark = pytest.mark.filterwarnings("error")
each_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
both_languages = pytest.mark.parametrize("lang", ["en", "zh"])


def numbers(text):
    """What looks like a number, whole, in order of value: cards show them in another order than tables."""
    return sorted(re.findall(r"(?<![\w.])[-+]?\d[\d,.]*(?:e[-+]\d+)?%?(?!\w)", text))


@each_script
@both_languages
@pytest.mark.parametrize("width", [60, 80, 100])
def test_every_number_is_whole_and_no_line_too_long_at_any_width(script, lang, width):
    screens, _record = shown(script, lang)
    wide, narrow = screens["200"], screens[str(width)]
    assert max(cell_len(line) for line in narrow.split("\n")) <= width
    assert numbers(narrow) == numbers(wide) and "…" not in narrow


@each_script
@pytest.mark.parametrize("encoding", ["gbk", "cp1252", "ascii", "latin-1"])
@both_languages
def test_no_encoding_stops_a_script(script, encoding, lang):
    screens, _record = shown(script, lang)
    assert numbers(screens[encoding].replace("inf", "∞")) == numbers(screens["80"].replace("inf", "∞"))
    assert "[ok]" in screens[encoding] and "✓" not in screens[encoding]


@pytest.mark.parametrize("encoding", ["gbk", "ascii"])
@both_languages
def test_no_encoding_stops_a_whole_process(encoding, lang):
    environment = {"PYTHONIOENCODING": encoding, "LAB_LANG": lang, "LAB_WIDTH": "80"}
    process = subprocess.run(
        [sys.executable, SCRIPTS[0], "--check"], capture_output=True, env={"PATH": "", "LANG": "C", **environment}
    )
    assert process.returncode == 0 and process.stderr == b"" and "[ok]" in process.stdout.decode(encoding)
    assert (encoding == "gbk" and lang == "zh") == any("一" <= c <= "鿿" for c in process.stdout.decode(encoding))


@each_script
@both_languages
def test_verdicts_are_words_or_signs_and_never_colours(script, lang):
    screens, _record = shown(script, lang)
    plain, coloured = screens["NO_COLOR"], screens["FORCE_COLOR"]
    assert "\x1b" not in plain and "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[\d*m", "", coloured) == plain


def doctor(*python, **environment):
    command = [*python, ROOT / "lecture01" / "doctor.py"]
    clean = {"PATH": "", "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.run(command, capture_output=True, encoding="utf-8", env=clean)


@both_languages
def test_the_doctor_says_in_a_few_lines_what_is_there(lang):
    process = doctor(sys.executable, LAB_LANG=lang, COLUMNS="80")
    assert process.returncode == 0 and process.stderr == ""
    assert len(process.stdout.splitlines()) == 5
    assert "g++, clang++, c++" in process.stdout


def test_the_doctor_says_no_where_the_lectures_would_not_run(tmp_path, monkeypatch):
    import doctor as doctor_module

    monkeypatch.setattr(doctor_module.start, "missing", lambda: "numpy cannot be found")
    monkeypatch.setattr(doctor_module.start, "venv_python", lambda: str(tmp_path / "python"))
    assert doctor_module.python() == (False, "numpy cannot be found")


def test_the_doctor_sees_a_narrow_terminal():
    assert "no  terminal: 60 columns" in doctor(sys.executable, COLUMNS="60").stdout
