"""What changed since the last run: kept, compared by key and as displayed, and never in the way."""

import json
import os
import re
import subprocess
import sys

import pytest

from conftest import ROOT, run_script

SCRIPT = ROOT / "lecture11" / "01_online_softmax.py"
KEPT = "lecture11-01_online_softmax.json"
ENDING = "Since the last run"


@pytest.fixture
def run(tmp_path):
    """Run demo 1 with what earlier runs of this test have left."""

    def run(*arguments, **environment):
        process = run_script(SCRIPT, "--demo", "1", *arguments, LAB_LAST=str(tmp_path), **environment)
        assert process.returncode == 0, process.stderr
        return process

    return run


def rows(text, first_cell):
    """The cells of the rows that begin with this, cut where two spaces are."""
    return [
        re.split(r"\s{2,}", line.strip()) for line in text.split("\n") if line.strip().startswith(first_cell + "  ")
    ]


def test_the_same_run_again_is_shown_as_if_it_were_the_first(run):
    assert run().stdout == run().stdout == run("--fresh").stdout


def test_another_block_changes_alpha_but_not_m_or_l_at_the_keys_that_both_have_seen(run):
    run()
    text = run("--block", "64").stdout
    assert "block 256 → 64" in text and "head_dim=64" in text
    assert rows(text, "512") == [["512", "2.827", "2.827", "0.4087 → 0.6886", "41.286"]]
    assert rows(text, "one pass")[0][4] == "322 → 130"
    ending = text[text.index(ENDING) :]
    assert "changed: numbers held, block max (8 of 16 rows), α (3 of 16 rows)" in ending
    assert "unchanged: K read, scores moved, numbers moved, largest error, m, l" in ending
    assert "α from 256 to 512: 0.5935 × 0.6886 = 0.4087" in ending


def test_the_way_back_shows_the_same_product(run):
    run("--block", "64")
    text = run("--block", "256").stdout
    assert "block 64 → 256" in text and "0.5935 × 0.6886 = 0.4087" in text


def test_sentences_that_turn_are_listed_with_what_they_say(tmp_path):
    for sharpness, ending in ((1, None), (1000, "no longer holds: "), (1, "holds now: ")):
        arguments = ("--demo", "4", "--sharpness", sharpness)
        text = run_script(SCRIPT, *arguments, LAB_LAST=str(tmp_path), LAB_WIDTH="200").stdout
        assert (ENDING in text) == (ending is not None)
        if ending:
            assert ending + "Rounding P costs" in text[text.index(ENDING) :]


def test_an_edit_of_the_code_is_a_change_and_what_it_does_not_touch_is_not(tmp_path):
    script = tmp_path / "lecture11" / "a.py"
    script.parent.mkdir()
    text = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'lecture01')!r}]\nimport start; start.prepare()\n"
        "from console import Column, print_header, print_table\nfrom lesson import lesson\n"
        "def demo1_a(seed=0):\n    'A.'\n    print_header('A')\n"
        "    print_table(['x', Column('noise', '.3f'), Column('y', '.1f')], {'r': ['r', NOISE, Y]}, key='t')\n"
        "lesson(demo1_a)\n"
    )

    def after(noise, y):
        script.write_text(text.replace("NOISE", str(noise)).replace("Y", str(y)))
        command = [sys.executable, script]
        environment = {**os.environ, "LAB_LAST": str(tmp_path / "last"), "PYTHONIOENCODING": "utf-8", "LAB_WIDTH": "80"}
        return subprocess.run(command, capture_output=True, encoding="utf-8", env=environment).stdout

    assert ENDING not in after(0.1, 1.5)
    text_now = after(0.1000001, 2.5)
    assert "1.5 → 2.5" in text_now and "changed: y" in text_now and "unchanged: noise" in text_now
    assert "Since the last run (the code)" in text_now


def test_numbers_are_compared_across_languages_and_texts_only_within_one(run):
    run()
    text = run("--lang", "zh", "--block", "64").stdout
    assert "322 → 130" in text and "one pass →" not in text


def test_other_demos_are_kept_while_one_is_rerun(tmp_path):
    run_script(SCRIPT, LAB_LAST=str(tmp_path))
    run_script(SCRIPT, "--demo", "1", LAB_LAST=str(tmp_path))
    assert len(json.loads((tmp_path / KEPT).read_text(encoding="utf-8"))["demos"]) == 5


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"version": 0, "demos": {}}', '{"version": 1, "demos": {"a": {}}}']
)
def test_a_record_that_cannot_be_used_is_said_once_and_replaced(text, run, tmp_path):
    (tmp_path / KEPT).write_text(text)
    process = run("--block", "64")
    assert ENDING not in process.stdout and process.stderr.count("\n") == 1
    assert run("--block", "64").stderr == ""


def test_where_nothing_can_be_kept_one_line_says_so_and_the_run_is_whole(tmp_path):
    (tmp_path / "file").write_text("")
    process = run_script(SCRIPT, "--demo", "1", LAB_LAST=str(tmp_path / "file"))
    assert process.returncode == 0 and "One pass holds 322" in process.stdout and process.stderr.count("\n") == 1


def test_two_runs_at_once_leave_a_whole_record(tmp_path, run):
    environment = {**os.environ, "LAB_LAST": str(tmp_path), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, SCRIPT, "--demo", "1"]
    both = [
        subprocess.Popen([*command, "--block", b], env=environment, stdout=subprocess.DEVNULL) for b in ("64", "128")
    ]
    assert [process.wait() for process in both] == [0, 0]
    assert sorted(os.listdir(tmp_path)) == [KEPT]
    assert ENDING in run().stdout


@pytest.mark.parametrize("flags", [["--json"], ["--check"], ["--sweep", "block=1000,2000"]])
def test_runs_for_other_programs_compare_nothing_and_keep_nothing(flags, run, tmp_path):
    run()
    kept = (tmp_path / KEPT).read_bytes()
    assert ENDING not in run(*flags, "--seed", "1").stdout and (tmp_path / KEPT).read_bytes() == kept
