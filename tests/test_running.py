"""Running a script as a student does: flags, bad input, checks, any folder, any Python, the README's excerpt."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from catalogue import read_catalogue
from command_line import knobs_of
from conftest import ROOT, SCRIPTS, demos_of, load, run_script, shown
from knobs import KNOBS
from language import CATALOGUES

FIRST = ROOT / "lecture11" / "01_online_softmax.py"
each_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")


def one_sentence(process):
    """What a refused input prints: one line on stderr, ending with a full stop, status 2."""
    assert process.returncode == 2, process.stderr
    assert process.stderr.count("\n") == 1 and process.stderr.rstrip().endswith(".")
    return process.stderr


@each_script
def test_a_plain_run_succeeds_and_check_finds_every_sentence_true(script):
    process = run_script(script, "--check")
    assert process.returncode == 0 and process.stderr == ""
    held, total = re.search(r"(\d+) of (\d+) sentences hold", process.stdout).groups()
    assert held == total and "✗" not in process.stdout


@each_script
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_first_look_takes_at_most_22_lines_and_six_columns(script, lang):
    screens, record = shown(script, lang)
    text, titles = screens["80"], [demo["title"] for demo in record["demos"]]
    looks = [text[text.index(a) : text.index(b) if b else None] for a, b in zip(titles, [*titles[1:], ""], strict=True)]
    assert [look for look in looks if len(look.rstrip().split("\n")) > 22] == []
    assert max(cell_len(line) for line in text.split("\n")) <= 80
    assert all(len(table["headers"]) <= 6 for demo in record["demos"] for table in demo["tables"])
    assert all(2 <= len(demo["claims"] + demo["notes"]) <= 3 for demo in record["demos"])


@each_script
def test_every_knob_is_in_the_table_and_every_default_allowed(script):
    for demo in demos_of(load(script)).values():
        for name, default in knobs_of(demo).items():
            assert KNOBS[name].problem(default) is None, (demo.__name__, name)


@each_script
def test_python_3_8_can_read_every_script_far_enough_to_say_what_is_needed(script):
    for path in (script, script.parent / "_lab.py", ROOT / "lecture01" / "start.py"):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


@each_script
def test_help_names_every_demo_and_knob(script):
    process = run_script(script, "--help")
    assert process.returncode == 0
    for name, demo in demos_of(load(script)).items():
        assert f"  {name[4]}  {demo.__doc__.splitlines()[0][:60]}" in process.stdout
        assert all("--" + name.replace("_", "-") in process.stdout for name in knobs_of(demo))


@pytest.mark.parametrize("block", [1, 7, 5000])
def test_any_allowed_block_is_an_answer(block):
    process = run_script(FIRST, "--demo", 1, "--block", block)
    assert process.returncode == 0 and f"block={block}" in process.stdout and process.stdout.count("✓") == 3


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--block", "0"], "--block is 0; it has to be a whole number from 1 to"),
        (["--block", "x"], "--block is 'x'"),
        (["--block", "-3"], "--block is -3"),
        (["--block=2.5"], "--block is '2.5'"),
        (["--block", ""], "--block is ''"),
        (["--block"], "--block needs a value, such as --block 256"),
        (["--sharpness", "nan"], "--sharpness is nan"),
        (["--sharpness", "inf"], "--sharpness is inf"),
        (["--seq-len", "1e3"], "--seq-len is '1e3'"),
        (["--blok", "3"], "Did you mean --block?"),
        (["--bloc", "3"], "--bloc is not a flag"),
        (["--more=1"], "--more=1 is not a flag"),
        (["17"], "17 is not a flag"),
        (["--demo", "9"], "--demo is '9'; it has to be one or more of 0, 1, 2, 3, 4"),
        (["--demo", ""], "--demo is ''"),
        (["--demo", "0", "--block", "64"], "--block changes nothing"),
        (["--demo", "2", "--segments", "9", "--seq-len", "8"], "segments is 9 and seq_len is 8"),
        (["--sweep", "block"], "--sweep is 'block'"),
        (["--demo", "0", "--sweep", "block=1"], "--block changes nothing"),
        (["--sweep", "more=False"], "--sweep is 'more=False'"),
        (["--sweep", "blok=3"], "Did you mean --block?"),
        (["--sweep", "block=0,64"], "--block is 0"),
        (["--sweep", "block=1", "--sweep", "seed=1", "--sweep", "head-dim=1"], "given for 3 knobs"),
        (["--sweep", "block=1", "--sweep", "segments=1"], "No demo has both block and segments"),
    ],
)
def test_bad_input_gets_one_sentence_and_nothing_is_shown(arguments, words):
    process = run_script(FIRST, *arguments)
    assert words in one_sentence(process) and process.stdout == ""


def test_demos_are_chosen_by_number_or_name_and_shown_in_order():
    process = run_script(FIRST, "--demo", "merge_order,0")
    assert re.findall(r"Demo \d", process.stdout) == ["Demo 0", "Demo 2"]
    again = run_script(FIRST, "--demo", 2, "--demo", 0, "--more")
    assert again.stdout == process.stdout


def test_a_sweep_shows_a_row_per_value_and_two_of_them_a_grid():
    process = run_script(FIRST, "--demo", 1, "--sweep", "block=64,256")
    assert re.findall(r"^ *(64|256) +(\d+) +(\d)", process.stdout, re.M) == [("64", "64", "4"), ("256", "16", "2")]
    assert "3/3" in process.stdout and "block=" not in process.stdout
    grid = run_script(FIRST, "--demo", 4, "--sweep", "l-block=1,64", "--sweep", "seed=2,3")
    assert grid.returncode == 0 and re.search(r"^ *1 +-70.28%", grid.stdout, re.M)
    plain = run_script(FIRST, "--demo", 1, "--sweep", "block=64,256", "--sweep", "head-dim=32,64")
    assert plain.returncode == 0 and re.search(r"^ *256 +16 +16", plain.stdout, re.M)


def test_a_sweep_says_at_which_value_a_sentence_fails():
    process = run_script(FIRST, "--demo", 4, "--sweep", "l-block=1,64", "--check")
    assert "l_block=1: By blocks of 1 " in process.stdout.replace("\n  ", " ") and process.returncode == 0


def test_a_swept_value_comes_before_a_given_one_and_each_value_once():
    data = json.loads(run_script(FIRST, "--demo", 1, "--block", 7, "--sweep", "block=64,64,256", "--json").stdout)
    (table,) = data["demos"][0]["tables"]
    assert table["row_keys"] == ["64", "256"] and [row[1] for row in table["rows"]] == [64, 16]


def test_json_has_infinite_numbers_as_strings():
    from export import plain

    values = (float("inf"), -np.inf, np.float32("nan"), np.int64(3), None)
    assert [plain(x) for x in values] == ["inf", "-inf", "nan", 3, None]


def test_json_holds_raw_values_and_claims():
    data = json.loads(run_script(FIRST, "--json").stdout)
    assert data["script"] == FIRST.name and data["lang"] == "en" and len(data["demos"]) == 5
    slips = data["demos"][0]["tables"][1]
    assert slips["key"] == "slips" and dict(zip(slips["row_keys"], slips["rows"], strict=True))["no_guard"][2] == "nan"
    assert data["demos"][1]["knobs"]["block"] == 256 and data["demos"][1]["tables"][0]["rows"][2][3] == 524_288
    kinds = {claim["kind"] for demo in data["demos"] for claim in demo["claims"]}
    assert kinds == {"identity", "finding"}
    assert all(set(claim) == {"text", "holds", "kind"} for demo in data["demos"] for claim in demo["claims"])


@pytest.mark.parametrize(
    "name, value", [("LAB_BOX", "round"), ("LAB_WIDTH", "wide"), ("LAB_WIDTH", "5"), ("LAB_LANG", "xx")]
)
def test_an_environment_variable_of_ours_is_checked_like_a_flag(name, value):
    assert f"{name} is '{value}'" in one_sentence(run_script(FIRST, **{name: value}))


def copy_of_the_lab(folder):
    """The lab without its .venv, in another folder."""
    for name in ("lecture01", "lecture11", "prereq3", "flash_lab"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "lecture11" / FIRST.name


@pytest.mark.parametrize("edit, words", [("block=0,", "block in demo1_three_ways is 0"), ('block="64",', "is '64'"),
                                         ("block=64.0,", "is 64.0"),
                                         ("blok=256,", "a knob blok that is not in")])  # fmt: skip
def test_an_edited_default_is_checked_like_a_flag(tmp_path, edit, words):
    script = copy_of_the_lab(tmp_path)
    script.write_text(script.read_text(encoding="utf-8").replace("block=256,", edit), encoding="utf-8")
    assert words in one_sentence(run_script(script))


def test_an_edited_block_changes_the_run(tmp_path):
    script = copy_of_the_lab(tmp_path)
    script.write_text(script.read_text(encoding="utf-8").replace("block=256,", "block=64,"), encoding="utf-8")
    assert "block=64" in run_script(script, "--demo", 1).stdout


def test_check_fails_on_a_false_identity_and_on_a_false_finding_at_the_defaults_only(tmp_path):
    script = copy_of_the_lab(tmp_path)
    original = script.read_text(encoding="utf-8")
    assert run_script(script, "--check", "--demo", 4, "--l-block", 1).returncode == 0
    script.write_text(original.replace("l_block=64,", "l_block=1,"), encoding="utf-8")
    finding = run_script(script, "--check", "--demo", 4)
    assert finding.returncode == 1 and "FAIL: By blocks of 1 " in finding.stdout
    assert "✗ No longer holds with these settings: By blocks of 1 " in finding.stdout
    assert run_script(script, "--check", "--demo", 4, "--more").returncode == 1
    script.write_text(original.replace("alpha * state.o + P @ V", "state.o + P @ V"), encoding="utf-8")
    assert run_script(script, "--check", "--demo", 1, "--block", 64).returncode == 1


def test_a_script_runs_from_any_folder(tmp_path):
    assert run_script(FIRST, "--demo", 0, cwd=tmp_path).returncode == 0
    assert run_script(FIRST.name, "--demo", 0, cwd=FIRST.parent).returncode == 0


def python_without_packages():
    """This Python with its site-packages hidden, as on a machine where nothing was installed."""
    return (sys.executable, "-S")


def test_without_packages_and_without_a_venv_the_command_to_type_is_named(tmp_path):
    process = run_script(copy_of_the_lab(tmp_path), python=python_without_packages(), cwd=tmp_path)
    sentence = process.stderr
    assert process.returncode == 2 and process.stdout == "" and sentence.count("\n") == 1
    assert "numpy, ml_dtypes, rich cannot be found" in sentence
    assert sentence.rstrip().endswith("python3 " + os.path.join("lecture01", "setup_venv.py"))


def test_without_packages_the_script_starts_again_with_the_venv(tmp_path):
    script = copy_of_the_lab(tmp_path)
    place = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
    python = tmp_path.joinpath(".venv", *place)
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    process = run_script(script, "--demo", 1, "--block", 64, python=python_without_packages())
    assert process.returncode == 0 and "block=64" in process.stdout


def test_an_old_python_is_told_which_one_is_needed(monkeypatch):
    import start

    monkeypatch.setattr(sys, "version_info", (3, 8, 18, "final", 0))
    assert start.missing() == "Python 3.11 or newer is needed, and this is 3.8"
    assert "3.11" in start.interpreter()


def test_an_old_numpy_is_no_numpy(monkeypatch):
    import start

    monkeypatch.setattr(np, "__version__", "1.26.4")
    assert start.missing().startswith("NumPy 2 is needed, and ") and start.missing().endswith(" has 1.26.4")


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10"])
def test_an_old_python_itself_says_so(version, tmp_path):
    python = shutil.which("python" + version)
    if not python or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"no Python {version} here")
    process = run_script(copy_of_the_lab(tmp_path), python=(python,))
    assert process.returncode == 2 and f"this is {version}." in process.stderr


def test_a_script_that_knows_only_the_old_paths_and_print_functions_runs():
    if not (Path(sysconfig.get_path("purelib")) / "lab.pth").exists():
        pytest.skip("lab.pth is written by the setup, and this Python was set up otherwise")
    process = run_script(Path(__file__).parent / "old_style_script.py")
    assert process.returncode == 0, process.stderr
    assert "acc[m, l, o]" in process.stdout and "1.0078125" in process.stdout and process.stderr == ""


def test_nothing_ours_is_imported_under_two_names(tmp_path):
    runner = tmp_path / "runner.py"
    runner.write_text(f"import runpy, sys; sys.path.insert(0, {str(FIRST.parent)!r}); runpy.run_path({str(FIRST)!r})\n"
                      "print(*sys.modules)")  # fmt: skip
    modules = run_script(runner).stdout.splitlines()[-1].split()
    ours = {"console", "terminal", "lesson", "knobs", "language", "units", "numfmt", "flash_lab", "start"}
    assert ours <= set(modules)
    assert not [name for name in modules if name.startswith(("lecture", "prereq"))]


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_readme_shows_what_the_run_prints(name):
    readme = (ROOT / name).read_text(encoding="utf-8")
    command, excerpt = re.search(r"```console\n\$ (python3 [^\n]+)\n(.*?)```", readme, re.S).groups()
    script, *arguments = command.split()[1:]
    printed = run_script(ROOT / "lecture11" / script, *arguments).stdout
    assert excerpt.strip() == printed.strip()


@each_script
@pytest.mark.parametrize("name, catalogue", [("README.md", {}), ("README.zh.md", read_catalogue(CATALOGUES / "zh.po"))])
def test_the_readme_lists_every_script_with_its_question(script, name, catalogue):
    question = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))).split("\n\n")[0]
    row = f"| `{script.relative_to(ROOT).as_posix()}` | {catalogue.get(question, question)} |"
    assert row in (ROOT / name).read_text(encoding="utf-8").splitlines()


def test_both_readmes_name_the_same_commands_and_folders():
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")]
    code = [set(re.findall(r"`(make [a-z]+|--[a-z-]+|[a-z0-9]+/)`", text)) for text in texts]
    assert code[0] == code[1] and len(code[0]) > 8


def test_the_lock_files_hash_every_package_and_name_no_address():
    for name in ("requirements.lock", "requirements-dev.lock"):
        text = (ROOT / name).read_text(encoding="utf-8")
        packages = re.findall(r"^[A-Za-z0-9][\w.-]*==\S+", text, re.M)
        blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.M)[1:]
        assert packages and len(packages) == len(blocks) and all("--hash=sha256:" in block for block in blocks)
        assert "://" not in text and "-url" not in text and "find-links" not in text
