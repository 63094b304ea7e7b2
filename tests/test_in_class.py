"""The scripts themselves on every kind of screen, in both languages; and the check the night before."""

import re
import subprocess
import sys

import pytest
from rich.cells import cell_len

from conftest import ROOT, SCRIPTS, run_script

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
    wide, narrow = (run_script(script, "--lang", lang, LAB_WIDTH=str(w)).stdout for w in (200, width))
    assert max(cell_len(line) for line in narrow.split("\n")) <= width
    assert numbers(narrow) == numbers(wide) and "…" not in narrow


@each_script
@pytest.mark.parametrize("encoding", ["gbk", "cp1252", "ascii", "latin-1"])
@both_languages
def test_no_encoding_stops_a_script(script, encoding, lang):
    environment = {"PYTHONIOENCODING": encoding, "LAB_LANG": lang, "LAB_WIDTH": "80"}
    process = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, env={"PATH": "", "LANG": "C", **environment}
    )
    text = process.stdout.decode(encoding)
    assert process.returncode == 0 and process.stderr == b""
    if encoding == "gbk" and lang == "zh":
        assert "在线更新" in text and "[ok]" in text


@each_script
@both_languages
def test_verdicts_are_words_or_signs_and_never_colours(script, lang):
    plain = run_script(script, "--lang", lang, NO_COLOR="1").stdout
    coloured = run_script(script, "--lang", lang, FORCE_COLOR="1").stdout
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
