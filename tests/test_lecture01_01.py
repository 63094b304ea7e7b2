"""lecture01/01_machine_balance.py: its figures, its claims at the defaults and elsewhere, and each claim made false."""

import pytest

from claims import broken_identities, claims, every_position, holds_with, table
from command_line import knobs_of
from conftest import ROOT, demos_of, load
from machines import MACHINES

SCRIPT = load(ROOT / "lecture01" / "01_machine_balance.py")
DEMOS = list(demos_of(SCRIPT).values())


def test_the_rates_are_per_clock_and_sm_what_the_tensor_cores_do():
    clocks = {"V100": 1.53e9, "A100": 1.41e9, "H100": 1.83e9}
    per_clock = {"V100": 1024, "A100": 2048, "H100": 4096}
    for name, clock in clocks.items():
        machine = MACHINES[name]
        assert machine.matmul == pytest.approx(per_clock[name] * machine.sms * clock, rel=0.01), name
        assert machine.exp == pytest.approx(16 * machine.sms * clock, rel=0.01), name
    assert MACHINES["B300"].exp / MACHINES["B200"].exp == pytest.approx(2, rel=0.1)


def test_the_roofline_bends_where_memory_and_matmul_take_the_same_time():
    machine = MACHINES["H100"]
    ridge = machine.matmul / machine.bandwidth
    assert SCRIPT.reachable(machine, ridge / 2) == pytest.approx(0.5) and SCRIPT.reachable(machine, 2 * ridge) == 1


def test_the_full_matrix_has_half_of_d_flops_per_byte(record):
    for d in (32, 64, 128):
        rows = table(record(SCRIPT.demo2_roofline, head_dim=d, seq_len=65536), "roofline")
        assert int(rows["per_byte"].values[1]) == d // 2


def test_time_grows_with_the_square_of_n_and_only_matmuls_with_d():
    machine = MACHINES["A100"]
    matmul, exp = SCRIPT.times(machine, 1000, 64)
    assert SCRIPT.times(machine, 2000, 64) == (4 * matmul, 4 * exp)
    assert SCRIPT.times(machine, 1000, 128) == (2 * matmul, exp)


SWEEP = [
    {"seq_len": 1},
    {"seq_len": 65536},
    *({"head_dim": d} for d in (1, 80, 512)),
    *({"block_q": q} for q in (1, 100, 1_000_000)),
]
POINTS = [(demo, knobs) for demo in DEMOS for knobs in SWEEP if set(knobs) <= set(knobs_of(demo))]


@pytest.mark.parametrize("demo, knobs", POINTS, ids=str)
def test_identities_hold_over_the_sweep(demo, knobs, record):
    assert broken_identities(record, demo, **knobs) == []


def test_everything_holds_at_the_defaults(record):
    assert [claim.text for demo in DEMOS for claim in claims(record(demo)) if not claim.holds] == []


def slowed(**changes):
    return {name: machine._replace(**changes) for name, machine in MACHINES.items()}


def counted_twice(d, block_q, n=192):
    moved, work = SMALL_RUN(d, block_q, n)
    return moved | {"K": 2 * moved["K"]}, {**work, "exp": 2 * work["exp"]}


SMALL_RUN = SCRIPT.small_run

FALSIFIED = [  # demo, position of the claim, names replaced in the script, knobs
    (0, 0, {"MACHINES": slowed(matmul=1e12)}, {}),
    (0, 1, {"MACHINES": slowed(bandwidth=1e13)}, {}),
    (1, 0, {"small_run": counted_twice}, {}),
    (1, 1, {"MACHINES": slowed(bandwidth=1e14)}, {}),
    (1, 2, {}, {"seq_len": 64}),
    (2, 0, {"small_run": counted_twice}, {}),
    (2, 1, {}, {"head_dim": 128}),
    (2, 2, {"MACHINES": slowed(exp=4e12)}, {}),
]


@pytest.mark.parametrize("number, position, slips, knobs", FALSIFIED)
def test_each_claim_turns_false_when_its_subject_is_broken(number, position, slips, knobs, record, monkeypatch):
    assert not holds_with(SCRIPT, DEMOS[number], position, slips, knobs, record, monkeypatch)


def test_no_claim_was_forgotten_above(record):
    assert {(number, position) for number, position, _slips, _knobs in FALSIFIED} == every_position(record, DEMOS)
