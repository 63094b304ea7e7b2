"""lecture11/02_tiling.py: its figures, its claims at the defaults and elsewhere, and each claim made false."""

import pytest

from claims import broken_identities, claims, every_position, holds_with, table
from conftest import ROOT, demos_of, load
from flash_lab import EMPTY, FA2

SCRIPT = load(ROOT / "lecture11" / "02_tiling.py")
DEMOS = list(demos_of(SCRIPT).values())


def test_halving_block_k_leaves_33_mib_and_halving_block_q_makes_it_65(record):
    rows = table(record(SCRIPT.demo1_block_sizes), "pairs")
    assert {key: row.texts[2] for key, row in rows.items()} == {
        "given": "33.0",
        "half_k": "33.0",
        "half_q": "65.0",
        "one": "4,097.0",
    }


def test_keys_outside_moves_about_50_mib_and_queries_outside_33(record):
    rows = table(record(SCRIPT.demo2_loop_order), "orders")
    assert [rows[key].texts[-1] for key in ("FA1", "FA2")] == ["49.48", "33.01"]


def test_the_full_matrix_moves_130_mib_fused_and_194_by_row(record):
    growth = table(record(SCRIPT.demo1_block_sizes, more=True), "growth")
    assert growth["4096"].texts == ["4,096", "33.0", "130.0", "194.0", "32.0"]


def test_a_pair_that_only_an_h100_holds_is_named(record):
    rows = table(record(SCRIPT.demo3_what_fits), "fits")
    assert {key: row.texts[-1] for key, row in rows.items()} == {
        "given": "V100, A100, H100",
        "twice_q": "V100, A100, H100",
        "four_q": "none",
        "half_q": "V100, A100, H100",
        "wide": "A100, H100",
        "wider": "H100",
    }


def test_the_last_byte_fits_and_one_more_does_not(record):
    limit = SCRIPT.MACHINES["V100"].shared_per_block
    exactly = (limit // SCRIPT.FP16.bytes // 64 - 64) // 2  # block_k with block_q = d = 64
    assert SCRIPT.on_chip(64, exactly, 64)[0] == limit
    fits = [
        table(record(SCRIPT.demo3_what_fits, block_q=64, block_k=k), "fits")["given"].texts[-1]
        for k in (exactly, exactly + 1)
    ]
    assert "V100" in fits[0] and "V100" not in fits[1]


def test_the_map_of_causal_tiles_shows_the_diagonal(record):
    demo = record(SCRIPT.demo2_loop_order, more=True, seq_len=1000, block_q=256, block_k=128)
    assert [row.texts[1] for row in table(demo, "causal").values()] == ["//......", "##//....", "####//..", "######//"]


def test_sms_have_work_as_waves_of_blocks_give_it(record):
    rows = table(record(SCRIPT.demo3_what_fits, more=True), "busy")
    sms = SCRIPT.MACHINES["A100"].sms
    assert rows["16"].values[1:3] == [16 / sms, 512 / (-(-512 // sms) * sms)]


SWEEP = [
    {},
    *({"block_q": q, "block_k": k} for q, k in ((1, 1), (1, 1_000_000), (7, 3), (1_000_000, 1), (127, 129))),
    *({"seq_len": n} for n in (1, 2, 127, 129, 65_536)),
    *({"head_dim": d} for d in (1, 3, 512)),
]


@pytest.mark.parametrize("knobs", SWEEP, ids=str)
@pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.__name__)
def test_identities_hold_over_the_sweep(demo, knobs, record):
    assert broken_identities(record, demo, **knobs) == []


def test_identities_and_findings_hold_for_200_seeds(record):
    for seed in range(200):
        for demo in (SCRIPT.demo1_block_sizes, SCRIPT.demo2_loop_order):
            found = claims(record(demo, seed=seed, seq_len=96, head_dim=16, block_q=32, block_k=32))
            assert [claim.text for claim in found if not claim.holds] == [], seed


def q_read_again(Q, K, V, O, lse, block_q, block_k, scale):
    """The query block is read again for every block of keys."""
    for rows in SCRIPT.parts(len(Q), block_q):
        state = EMPTY
        for keys in SCRIPT.parts(len(K), block_k):
            state = FA2.step(state, Q[rows] @ K[keys].T, V[keys], scale)
        O[rows], lse[rows] = FA2.finish(state)


def states_not_stored(Q, K, V, O, lse, m, l, block_q, block_k, scale):
    """Keys outside, but each block of keys starts from nothing: the last one wins."""
    for keys in SCRIPT.parts(len(K), block_k):
        k, v = K[keys], V[keys]
        for rows in SCRIPT.parts(len(Q), block_q):
            O[rows], lse[rows] = FA2.finish(FA2.step(EMPTY, Q[rows] @ k.T, v, scale))


def not_causal(*arrays, causal, **blocks):
    return SCRIPT.flash_lab.forward.flash_forward(*arrays, **blocks)


FALSIFIED = [  # demo, position of the claim, names replaced in the script, knobs
    (0, 0, {"queries_outside": q_read_again}, {}),
    (0, 1, {"queries_outside": q_read_again}, {}),
    (0, 2, {}, {"block_q": 1}),
    (0, 3, {}, {"seq_len": 1, "more": True}),
    (0, 4, {}, {"block_q": 16, "more": True}),
    (1, 0, {"keys_outside": states_not_stored}, {}),
    (1, 1, {"flash_lab.traffic_keys_outside": SCRIPT.flash_lab.traffic_tiled}, {}),
    (1, 2, {}, {"block_k": 4096}),
    (1, 3, {}, {"seq_len": 1, "more": True}),
    (1, 4, {"flash_lab.flash_forward": not_causal}, {"more": True}),
    (1, 5, {}, {"block_q": 5000, "more": True}),
    (2, 0, {"on_chip": lambda block_q, block_k, d: (2 * block_q * d, 4 * block_q * d)}, {}),
    (2, 1, {}, {"block_q": 512}),
    (2, 2, {}, {"seq_len": 64, "more": True}),
]


@pytest.mark.parametrize("number, position, slips, knobs", FALSIFIED)
def test_each_claim_turns_false_when_its_subject_is_broken(number, position, slips, knobs, record, monkeypatch):
    assert not holds_with(SCRIPT, DEMOS[number], position, slips, knobs, record, monkeypatch)


def test_no_claim_was_forgotten_above(record):
    assert {(number, position) for number, position, _slips, _knobs in FALSIFIED} == every_position(record, DEMOS)
