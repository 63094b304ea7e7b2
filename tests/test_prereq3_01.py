"""prereq3/01_number_formats.py: its figures, its claims at the defaults and elsewhere, and each claim made false."""

import math

import numpy as np
import pytest

import numfmt
from claims import broken_identities, claims, every_position, holds_with, table
from conftest import ROOT, demos_of, load
from numfmt import BF16, E4M3FN, FP16, FP32

SCRIPT = load(ROOT / "prereq3" / "01_number_formats.py")
DEMOS = list(demos_of(SCRIPT).values())


def test_overflow_begins_where_the_formats_say(record):
    rows = table(record(SCRIPT.demo1_side_by_side), "formats")
    assert {key: row.texts[-1] for key, row in rows.items() if key in ("FP16", "E4M3FN", "E5M2")} == {
        "FP16": "inf from 65,520",
        "E4M3FN": "nan above 464",
        "E5M2": "inf from 61,440",
    }


def test_the_small_end_is_that_of_the_standards(record):
    rows = table(record(SCRIPT.demo1_side_by_side, more=True), "small_end")
    assert rows["FP16"].texts[3:5] == ["2^-14", "2^-24"]
    assert rows["BF16"].texts[3:5] == ["2^-126", "2^-133"]
    assert rows["E4M3FN"].texts[3:5] == ["2^-6", "2^-9"]


def test_a_tenth_is_kept_in_eleven_bits(record):
    rows = table(record(SCRIPT.demo2_step_by_step), "steps")
    kept = int(rows["value"].texts[2], 2)
    assert (kept, kept.bit_length()) == (round(0.1 * 2**14), 11) and kept * 2.0**-14 == float(np.float16(0.1))


@pytest.mark.parametrize("value, becomes", [(2049, 2048), (2051, 2052), (65519.99, 65504), (65520, math.inf)])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_lines_in_the_script_round_as_numpy_does(value, becomes, sign):
    assert SCRIPT.round_to_even(sign * value, FP16) == sign * becomes
    with np.errstate(over="ignore"):
        assert float(np.float64(sign * value).astype(np.float16)) == sign * becomes


def test_the_values_with_a_known_double_rounding_are_shown(record):
    rows = table(record(SCRIPT.demo3_in_numpy), "twice")
    assert rows["BF16"].values[2:] == [1.0078125, 1.0, 1.0]
    assert rows["E4M3FN"].values[2:] == [1.125, 1.0, 1.0]


SWEEP = [{"value": value} for value in (0, -0.1, 1, 2.0**-25, 1e-300, 5e-324, 65519.99, 65520, -1e30, 1e30, 1 / 3)]


@pytest.mark.parametrize("knobs", SWEEP, ids=str)
def test_identities_hold_over_the_sweep(knobs, record):
    assert broken_identities(record, SCRIPT.demo2_step_by_step, **knobs) == []


@pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.__name__)
def test_everything_holds_at_the_defaults(demo, record):
    assert [claim.text for claim in claims(record(demo)) if not claim.holds] == []


def test_identities_hold_for_200_seeds(record):
    for seed in range(200):
        assert all(claim.holds for claim in claims(record(SCRIPT.demo2_step_by_step, seed=seed))), seed


def ties_up(x, fmt):
    """Rounding with every tie sent up."""
    spacing, below, rest = SCRIPT.place(x, fmt)
    rounded = (below + (rest >= 0.5)) * spacing
    return math.copysign(fmt.beyond if rounded > fmt.max else rounded, x)


class Wrong(numfmt.Format):
    """A format that flushes what is below its normal values to 0."""

    def round(self, x):
        rounded = super().round(x)
        return np.where(np.abs(rounded) < self.min_normal, 0.0, rounded)


class Up(numfmt.Format):
    """A format whose ties all go up."""

    def round(self, x):
        return np.floor(np.asarray(x) / self.ulp(x) + 0.5) * self.ulp(x)


class Coarse(numfmt.Format):
    """A format that loses a bit more than it says."""

    def round(self, x):
        return numfmt.Format(self.name, self.p - 2, self.emin, self.emax, self.bytes).round(x)


def as_kind(kind, fmt):
    return kind(**{name: getattr(fmt, name) for name in numfmt.Format.__dataclass_fields__})


COARSE, FLUSHED, TIES_UP = as_kind(Coarse, FP16), as_kind(Wrong, FP16), as_kind(Up, BF16)
NUMPYS = {FP16: np.float64, BF16: np.float64, E4M3FN: np.float64}

FALSIFIED = [  # demo, position of the claim, names replaced in the script, knobs
    (0, 0, {"FIRST_LOOK": (COARSE, E4M3FN)}, {}),
    (0, 1, {"BF16": FP16}, {}),
    (0, 2, {"E4M3FN": E4M3FN.saturating, "FIRST_LOOK": (FP16, E4M3FN.saturating)}, {}),
    (0, 3, {"ALL": (FP32, FLUSHED, *SCRIPT.FIRST_LOOK)}, {"more": True}),
    (0, 4, {"E4M3FN": E4M3FN.saturating, "ALL": (FP16, E4M3FN.saturating)}, {"more": True}),
    (1, 0, {"round_to_even": ties_up}, {}),
    (1, 1, {"round_to_even": ties_up}, {}),
    (1, 2, {}, {"value": 0.5}),
    (1, 3, {"ALL": (FP32, COARSE)}, {"more": True}),
    (1, 4, {"BF16": TIES_UP}, {"more": True}),
    (2, 0, {"CASTS": NUMPYS}, {}),
    (2, 1, {"watched": lambda _operation: ("float16", 1.0, True)}, {}),
    (2, 2, {"watched": lambda _operation: ("float16", 1.0, True)}, {}),
]


@pytest.mark.parametrize("number, position, slips, knobs", FALSIFIED)
def test_each_claim_turns_false_when_its_subject_is_broken(number, position, slips, knobs, record, monkeypatch):
    assert not holds_with(SCRIPT, DEMOS[number], position, slips, knobs, record, monkeypatch)


def test_no_claim_was_forgotten_above(record):
    assert {(number, position) for number, position, _slips, _knobs in FALSIFIED} == every_position(record, DEMOS)
