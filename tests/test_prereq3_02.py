"""prereq3/02_summation.py: its figures, its claims at the defaults and elsewhere, and each claim made false."""

import numpy as np
import pytest

from claims import broken_identities, claims, every_position, holds_with, table
from command_line import knobs_of
from conftest import ROOT, demos_of, load
from numfmt import BF16, FP16, sequential_sum

SCRIPT = load(ROOT / "prereq3" / "02_summation.py")
DEMOS = list(demos_of(SCRIPT).values())


def test_ones_stop_at_2048_in_fp16_and_256_in_bf16_and_numpy_shows_4096_and_256(record):
    rows = table(record(SCRIPT.demo1_stagnation), "ones")
    assert {key: row.values[2::2] for key, row in rows.items() if key in ("FP16", "BF16")} == {
        "FP16": [2048, 4096],
        "BF16": [256, 256],
    }


def test_the_sum_l_is_that_of_the_lecture(record):
    rows = table(record(SCRIPT.demo2_remedies, more=True), "remedies")
    assert rows["one"].texts[2:] == ["314.0", "-27.67%", "129.0", "-70.28%"]
    assert rows["4"].texts[3] == "+0.78%" and [rows[key].texts[5] for key in ("64", "128")] == ["+2.74%", "-0.03%"]


def test_the_loop_and_the_blocks_are_those_of_the_module():
    values = FP16.round(np.random.default_rng(0).random(1000))
    for block in (1, 7, 64, 1000):
        ours = SCRIPT.by_blocks(values.tolist(), SCRIPT.to(FP16), block)
        assert ours == sequential_sum(values, FP16, block)


@pytest.mark.parametrize("add", [SCRIPT.one_by_one, SCRIPT.pairwise, SCRIPT.kahan])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 65])
def test_without_rounding_every_way_gives_the_sum(add, n):
    values = [float(k * k) for k in range(1, n + 1)]
    assert add(values, lambda x: x) == sum(values)


def test_kahan_is_exact_where_the_loop_is_stuck():
    ones = [1.0] * 2000
    assert SCRIPT.kahan(ones, SCRIPT.to(BF16)) == 2000 > SCRIPT.one_by_one(ones, SCRIPT.to(BF16)) == 256


def test_pairwise_rounds_each_term_no_oftener_than_the_tree_is_deep(record):
    rows = table(record(SCRIPT.demo2_remedies, seq_len=1024), "remedies")
    assert rows["pairwise"].values[1] == 1023 / 1024 and rows["kahan"].values[1] == 4


SWEEP = [
    *({"terms": n} for n in (1, 2, 3, 255, 257, 5000)),
    *({"seq_len": n, "l_block": block} for n, block in ((1, 1), (1, 1_000_000), (100, 7), (1000, 1000))),
    *({"head_dim": d, "seq_len": 300} for d in (1, 512)),
]


POINTS = [(demo, knobs) for demo in DEMOS for knobs in SWEEP if set(knobs) <= set(knobs_of(demo))]


@pytest.mark.parametrize("demo, knobs", POINTS, ids=str)
def test_identities_hold_over_the_sweep(demo, knobs, record):
    assert broken_identities(record, demo, **knobs) == []


def test_everything_holds_at_the_defaults(record):
    assert [claim.text for demo in DEMOS for claim in claims(record(demo)) if not claim.holds] == []


def test_identities_hold_for_200_seeds(record):
    for seed in range(200):
        assert broken_identities(record, SCRIPT.demo3_error_growth, seed=seed, terms=64) == [], seed


def drifting(values, rnd):
    """Every sum a little too large."""
    return SCRIPT.one_by_one(values, rnd) * np.float32(1.01)


def ties_up(fmt):
    """Rounding that never lets a sum stand still."""
    return lambda x: x


FALSIFIED = [  # demo, position of the claim, names replaced in the script, knobs
    (0, 0, {"to": ties_up}, {}),
    (0, 1, {}, {"terms": 100}),
    (1, 0, {}, {"l_block": 1}),
    (1, 1, {"kahan": SCRIPT.one_by_one}, {}),
    (1, 2, {"BF16": SCRIPT.E5M2}, {}),
    (2, 0, {"pairwise": drifting}, {}),
    (2, 1, {"kahan": SCRIPT.one_by_one}, {}),
]


@pytest.mark.parametrize("number, position, slips, knobs", FALSIFIED)
def test_each_claim_turns_false_when_its_subject_is_broken(number, position, slips, knobs, record, monkeypatch):
    assert not holds_with(SCRIPT, DEMOS[number], position, slips, knobs, record, monkeypatch)


def test_no_claim_was_forgotten_above(record):
    assert {(number, position) for number, position, _slips, _knobs in FALSIFIED} == every_position(record, DEMOS)
