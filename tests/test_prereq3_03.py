"""prereq3/03_online_softmax.py: its figures, its claims at the defaults and elsewhere, and each claim made false."""

import math

import numpy as np
import pytest

import flash_lab
from claims import broken_identities, claims, every_position, holds_with, table
from command_line import knobs_of
from conftest import ROOT, demos_of, load

SCRIPT = load(ROOT / "prereq3" / "03_online_softmax.py")
DEMOS = list(demos_of(SCRIPT).values())
WAYS = [SCRIPT.naive_softmax, SCRIPT.safe_softmax, SCRIPT.online_softmax]


@pytest.mark.parametrize("softmax", WAYS)
@pytest.mark.parametrize("block", [1, 3, 8, 100])
def test_every_softmax_is_that_of_the_package(softmax, block):
    x = np.random.default_rng(block).standard_normal(100)
    y, _accesses, _reads = SCRIPT.run(softmax, x, SCRIPT.blocks(100, block))
    np.testing.assert_allclose(y, flash_lab.softmax_2pass(x)[0], rtol=1e-14)


@pytest.mark.parametrize("softmax", WAYS)
def test_one_score_has_probability_1_and_equal_ones_share_it(softmax):
    for n in (1, 2, 8):
        y, _accesses, _reads = SCRIPT.run(softmax, np.full(n, 3.0), SCRIPT.blocks(n, 3))
        np.testing.assert_array_equal(y, 1 / n)


def test_passes_and_accesses_are_those_of_the_paper(record):
    rows = table(record(SCRIPT.demo1_three_softmaxes), "softmaxes")
    assert {key: tuple(row.values[1:3]) for key, row in rows.items()} == {
        "naive": (2, 3),
        "safe": (3, 4),
        "online": (2, 3),
    }


def test_the_formats_edges_are_the_known_ones(record):
    rows = table(record(SCRIPT.demo2_reference, more=True), "windows")
    assert rows["FP16"].texts[1:] == ["11.09", "-9.70", "-17.33"] and rows["BF16"].texts[3] == "-92.88"
    assert rows["FP64"].texts[1] == "709.78" and rows["FP32"].texts[1] == "88.72"


def test_top_k_finds_the_places_in_order():
    x = np.array([0.0, 5.0, -1.0, 7.0, 5.5])
    assert [place for _p, place in SCRIPT.online_top_k(x, SCRIPT.blocks(5, 2), 3)] == [3, 4, 1]
    total = np.exp(x - 7).sum()
    assert SCRIPT.online_top_k(x, SCRIPT.blocks(5, 2), 1)[0][0] == pytest.approx(1 / total, rel=1e-15)


SWEEP = [
    *({"seq_len": n} for n in (1, 2, 3, 1000)),
    *({"seq_len": n, "block": block} for n, block in ((1, 1), (100, 7), (300, 1), (300, 1_000_000))),
    *({"seq_len": n, "top_k": k} for n, k in ((1, 1), (50, 50), (5000, 1000))),
]
POINTS = [(demo, knobs) for demo in DEMOS for knobs in SWEEP if set(knobs) <= set(knobs_of(demo))]
POINTS = [(demo, knobs) for demo, knobs in POINTS if "top_k" not in knobs_of(demo) or knobs["seq_len"] >= 3]


@pytest.mark.parametrize("demo, knobs", POINTS, ids=str)
def test_identities_hold_over_the_sweep(demo, knobs, record):
    assert broken_identities(record, demo, **knobs) == []


def test_everything_holds_at_the_defaults(record):
    assert [claim.text for demo in DEMOS for claim in claims(record(demo)) if not claim.holds] == []


def test_identities_hold_for_200_seeds(record):
    for seed in range(200):
        for demo in DEMOS:
            assert broken_identities(record, demo, seed=seed, seq_len=96) == [], seed


def test_more_keys_than_scores_cannot_be_kept(record, capsys):
    with pytest.raises(SystemExit) as stopped:
        record(SCRIPT.demo4_top_k, seq_len=2, top_k=3)
    assert stopped.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def never_rescaled(m, l, x):
    new = np.maximum(m, x.max())
    return new, l + np.exp(x - new).sum()


def shrinking(m, l, x):
    new = np.maximum(m, x.max())
    return new, l * np.exp(min(m - new, -1.0)) + np.exp(x - new).sum()


def scaled(x, reference):
    y, largest, l = SOFTMAX_FROM(x, reference)
    return y * math.exp(1e-9 * abs(reference - x.max())), largest, l


def guarded(x, reference):
    return SOFTMAX_FROM(x, max(min(reference, x.max() + 100), x.max() - 100))


def loose(x, parts, k):
    return [(p * 1.001, place) for p, place in ONLINE_TOP_K(x, parts, k)]


SOFTMAX_FROM, ONLINE_TOP_K = SCRIPT.softmax_from, SCRIPT.online_top_k

FALSIFIED = [  # demo, position of the claim, names replaced in the script, knobs
    (0, 0, {"online_softmax": SCRIPT.safe_softmax}, {}),
    (0, 1, {"online_step": never_rescaled}, {}),
    (0, 2, {"naive_softmax": SCRIPT.safe_softmax}, {}),
    (1, 0, {"softmax_from": scaled}, {}),
    (1, 1, {"softmax_from": guarded}, {}),
    (1, 2, {"softmax_from": guarded}, {}),
    (1, 3, {"math.log1p": lambda _x: 1.0}, {"more": True}),
    (2, 0, {"math.sqrt": lambda _x: 1e-9}, {}),
    (2, 1, {"np.sort": lambda x: x}, {}),
    (2, 2, {"online_step": shrinking}, {}),
    (3, 0, {"safe_softmax": SCRIPT.online_softmax}, {}),
    (3, 1, {"online_top_k": loose}, {}),
]


@pytest.mark.parametrize("number, position, slips, knobs", FALSIFIED)
def test_each_claim_turns_false_when_its_subject_is_broken(number, position, slips, knobs, record, monkeypatch):
    assert not holds_with(SCRIPT, DEMOS[number], position, slips, knobs, record, monkeypatch)


def test_no_claim_was_forgotten_above(record):
    assert {(number, position) for number, position, _slips, _knobs in FALSIFIED} == every_position(record, DEMOS)
