"""Whole scripts on every kind of output: terminals, pipes and files, other encodings, codes or none, early ends."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
from unicodedata import east_asian_width

import pytest
from rich.cells import cell_len
from test_console import columns, is_rule

from conftest import ROOT

CASES = {case["id"]: case for case in json.loads((ROOT / "tests/cases/family_e.json").read_text(encoding="utf-8"))}
E1, E3, E6 = (CASES[name]["inputs"] | CASES[name]["expected"] for name in ("E1", "E3", "E6"))
SENTENCE = "acc[m, l, o] and [/b] are {kept}, 100% of [bold] and :smile: %s"
CHINESE = (
    3 * "在线算法的核心在于,当最大值改变时,旧的和与输出都乘以同一个因子。这样“结果”就与一次算完相同(见表);否则有误差!"
)
SCRIPTS = {
    "old": f"""
print_header({SENTENCE!r})
print_table({E3["headers"]!r}, {E3["rows"]!r})
print_table({E1["headers"]!r}, {E1["rows"]!r})
print_table(["array", "what is typed"], [["acc[m,l,o]", "[/b]"], ["[bold]x", ":smile:"]])
print_observations([{SENTENCE!r}, {CHINESE!r}, "PASS", "FAIL"])
print("✓ 通过: by the script itself")
""",
    "new": f"""
import numpy as np
from console import Column, claim, finding
print_header({SENTENCE!r})
print_table(["way", Column("largest error", ".6e"), Column("elements moved", ",d"), "difference", "share"], {{
    "one": ["one pass over all the keys, rescaling as it goes", np.float32(1.5e-7), 1234567, None, 12.25],
    "three": ["[/b] :smile: [bold]x acc[m,l,o]", float("inf"), np.int64(548864), -0.0, float("nan")]}})
print_observations([claim(True, "PASS: {{n:,}}", n=1234567), finding(False, "FAIL: {{x:.1f}}", x=-2),
                    {SENTENCE!r}, {CHINESE!r}])
""",
    "reading": """
print_header("first")
sys.stdin.read()
for _again in range(2000):
    print_table(["n"], [["1"]])
""",
    "waiting": """
import signal, time
from lesson import lesson
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell runs in the background starts without it
def demo0_wait():
    print_header("waiting")
    time.sleep(30)
lesson(demo0_wait)
""",
}
NUMBERS = {
    "old": [*E3["whole"], "64x128", "1.19e-07", "12.5", "inf"],
    "new": ["1.500000e-07", "1,234,567", "548,864", "12.25", "inf", "nan"],
}
both_scripts = pytest.mark.parametrize("name", NUMBERS)
posix_only = pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals and no such signals")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    paths = f"import sys\nfor path in {[str(ROOT / 'lecture01'), str(ROOT / 'prereq3')]!r}: sys.path.insert(0, path)\n"
    functions = "from console import print_header, print_observations, print_table\n"
    for name, text in SCRIPTS.items():
        (folder / f"{name}.py").write_text(paths + functions + text, encoding="utf-8")
    return lambda name: [sys.executable, str(folder / f"{name}.py")]


def started(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, **environment):
    """The command's process, with only these of the variables that matter here."""
    read = re.compile(r"(LAB_|PYTHON|LC_).*|LANG|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|TTY_\w+")
    kept = {name: value for name, value in os.environ.items() if not read.fullmatch(name)}
    environment = {**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=environment)


def ended_well(process):
    with process:
        assert (process.stderr.read(), process.wait()) == (b"", 0)


def in_pipe(command, encoding="utf-8", **environment):
    process = started(command, **environment)
    text = process.stdout.read().decode(encoding).replace(os.linesep, "\n")
    ended_well(process)
    return text


def in_file(command, path, **environment):
    with open(path, "wb") as file:
        ended_well(started(command, file, **environment))
    return path.read_text(encoding="utf-8")


def on_terminal(command, size, **environment):
    """What the command writes to a terminal of this many columns."""
    import fcntl
    import pty
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, size, 0, 0))
    process, written = started(command, theirs, theirs, **environment), b""
    os.close(theirs)
    try:
        while chunk := os.read(ours, 65536):
            written += chunk
    except OSError:  # how Linux says that the other side has closed
        pass
    os.close(ours)
    ended_well(process)
    return written.decode().replace("\r\n", "\n")


def without_codes(text):
    return re.sub(r"\x1b\[[01]m", "", text)


def assert_readable(text, name, size, chinese=True):
    """The width is used and kept to, numbers are whole, what was typed stands as typed, tables are in columns."""
    lines = text.split("\n")
    assert size - 6 <= max(map(cell_len, lines)) <= size or not chinese
    assert max(map(cell_len, lines)) <= size and "…" not in text and "\x1b" not in text
    assert all(number in text for number in NUMBERS[name])
    assert re.sub(r"\s+", " ", text).count(SENTENCE) == 2
    assert all(typed in text for typed in ("acc[m,l,o]", "[/b]", "[bold]x", ":smile:", "PASS", "FAIL"))
    assert name == "new" or ": by the script itself\n" in text
    assert not any(line.strip()[0] in ",。;!)”" for line in lines if line)
    assert re.sub(r"\s", "", CHINESE) in re.sub(r"\s", "", text) or not chinese
    tables = [block for block in text.split("\n\n") if any(map(is_rule, block.split("\n")))]
    for value, count in (
        {"64x128": 4, "acc[m,l,o]": 2, "114688": 8}.items() if name == "old" else {"548,864": 5}.items()
    ):
        assert all(len(columns(table)) == count for table in tables if value in table)


@posix_only
@both_scripts
@pytest.mark.parametrize("size", [60, 80, 200])
def test_a_terminal_is_filled_and_no_style_but_bold_is_used(script, name, size):
    text = on_terminal(script(name), size)
    assert set(re.findall(r"\x1b[^m]*m?", text)) == {"\x1b[1m", "\x1b[0m"}
    assert_readable(without_codes(text), name, size)


@both_scripts
def test_a_pipe_and_a_file_get_the_same_plain_text_of_120_columns(script, name, tmp_path):
    text = in_pipe(script(name))
    assert_readable(text, name, 120)
    assert in_file(script(name), tmp_path / "out.txt") == text


@pytest.mark.parametrize("size", E3["columns"])
def test_eight_columns_keep_every_number_whole_and_become_cards_where_they_do_not_fit(script, size):
    text = in_pipe(script("old"), COLUMNS=str(size))
    assert_readable(text, "old", size)
    assert ("\nLSE: 1.3862943611\n" in text) == (size < 100)


def test_a_chinese_table_is_as_wide_as_its_widest_cells_and_two_columns_between_them(script):
    (table,) = (block for block in in_pipe(script("old")).split("\n\n") if "64x128" in block)
    assert [max(map(cell_len, column)) for column in columns(table)] == E1["column_widths"]
    assert cell_len(table.split("\n")[1]) == sum(E1["column_widths"]) + 2 * 3


@both_scripts
def test_lab_width_goes_before_columns(script, name):
    assert_readable(in_pipe(script(name), COLUMNS="200", LAB_WIDTH="72"), name, 72)


@posix_only
def test_columns_goes_before_the_terminals_own_width(script):
    assert_readable(without_codes(on_terminal(script("old"), 200, COLUMNS="66")), "old", 66)


@pytest.mark.parametrize("asked", ["0", "wide", "-80", "80.0"])
def test_a_lab_width_that_is_none_is_refused_in_one_sentence(script, asked):
    with started(script("old"), LAB_WIDTH=asked) as process:
        assert (process.stdout.read(), process.wait()) == (b"", 2)
        assert re.fullmatch(rf"LAB_WIDTH is '{asked}'; .* such as LAB_WIDTH=80\.\s", process.stderr.read().decode())


@pytest.mark.parametrize("environment", E6["environments"], ids=str)
def test_a_file_has_codes_only_when_they_are_forced_and_says_the_same_without_them(script, tmp_path, environment):
    text = in_file(script("new"), tmp_path / "out.txt", **environment)
    assert ("\x1b" in text) == (environment in E6["styled_in_a_file"]) and all(word in text for word in E6["words"])
    assert without_codes(text) == in_pipe(script("new"))


@posix_only
@pytest.mark.parametrize(
    "refusal", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}], ids=str
)
def test_a_terminal_that_wants_no_codes_gets_the_same_text_without_them(script, refusal):
    plain, styled = on_terminal(script("new"), 90, **refusal), on_terminal(script("new"), 90, NO_COLOR="")
    assert "\x1b" not in plain and "\x1b" in styled and plain == without_codes(styled)


LOCALE = {"PYTHONIOENCODING": "", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}


@both_scripts
@pytest.mark.parametrize("encoding", ["gbk", "cp1252", "latin-1", "ascii", "that of the locale"])
def test_no_encoding_stops_a_script_or_moves_its_columns(script, name, encoding):
    environment = LOCALE if " " in encoding else {"PYTHONIOENCODING": encoding}
    text = in_pipe(script(name), "ascii" if " " in encoding else encoding, **environment, LAB_WIDTH="80")
    assert_readable(text, name, 80, chinese=encoding == "gbk")


def test_lab_box_leaves_only_ascii_and_chinese(script):
    plain, ascii_only = in_pipe(script("new")), in_pipe(script("new"), LAB_BOX="ascii")
    assert "─" in plain
    assert not [c for c in ascii_only if not c.isascii() and east_asian_width(c) not in "WF"]
    numbers = [re.findall(r"\d[\d.,e]*", text) for text in (plain, ascii_only)]
    assert numbers[0] == numbers[1]


@posix_only
@both_scripts
def test_a_closed_output_is_no_error(script, name):
    assert in_pipe(["sh", "-c", 'exec "$@" >&-', "sh", *script(name)]) == ""


@posix_only
def test_a_reader_that_leaves_ends_the_script_quietly(script):
    assert in_pipe(["sh", "-c", '"$@" | head -1', "sh", *script("old")]) == "\n"
    process = started(script("reading"), stdin=subprocess.PIPE)
    assert [process.stdout.readline(), process.stdout.readline()] == [b"\n", b"first\n"]
    process.stdout.close()
    process.stdin.close()
    ended_well(process)


@posix_only
def test_ctrl_c_ends_a_lesson_in_one_line(script):
    with started(script("waiting")) as process:
        assert [process.stdout.readline(), process.stdout.readline()] == [b"\n", b"waiting\n"]
        process.send_signal(signal.SIGINT)
        assert (process.stderr.read().strip(), process.wait()) == (b"Stopped.", 130)
