"""Problem cases from public reports: block sizes and shapes, through every way of computing attention."""

import math
from itertools import cycle, product

import numpy as np
import pytest
from cases.ways import CASES, DTYPES, ORDERS, VARIANTS, disagreeing, every_way, full_and_tiled, in_blocks, numbers, rtol

from flash_lab import FA2, Tally, attention, attention_1pass, attention_2pass, attention_3pass, flash_forward, rounded
from numfmt import FP16, FP32

# an unforeseen (-inf) - (-inf) or log 0 is an error here; matmuls warn without cause on some machines
pytestmark = pytest.mark.filterwarnings("error", "ignore:.*encountered in matmul")
CAUSAL = {"full": [False], "causal": [True, "bottom-right", "top-left"]}  # one answer where lengths are equal
HEAD_SIZES = pytest.mark.parametrize("d", CASES["B6"]["inputs"]["d"])


def case(name, dtype=np.float64):
    """(inputs, expected, (Q, K, V) where the case has them); pairs of blocks are all of its two lists if not given."""
    given, expected = CASES[name]["inputs"], CASES[name]["expected"]
    given = {"blocks": [*product(given.get("block_q", []), given.get("block_k", []))], **given}
    return given, expected, [numbers(given[x], dtype) for x in "QKV" if x in given]


def ways(Q, K, V, pairs, **options):
    """The dense one, and every variant, the one with roundings handed in too, in every order, for pairs of blocks."""
    yield from full_and_tiled(Q, K, V, pairs, **options)
    for order, (i, j) in product(ORDERS, pairs):
        tiled = flash_forward(Q, K, V, block_q=i, block_k=j, variant=rounded(), order=order, **options)
        yield f"rounded {order.__name__}, blocks {i}, {j}, {options}", *tiled


@DTYPES
@pytest.mark.parametrize("name, mask", [*product(["B1", "B2"], CAUSAL), ("B3", "full")])
def test_every_pair_of_blocks_equal_or_not_ragged_or_larger_than_the_problem_gives_the_answer(name, mask, dtype):
    given, expected, (Q, K, V) = case(name, dtype)
    answer, tolerance, scale = expected[mask], rtol(expected, dtype), 1 / math.sqrt(Q.shape[1])
    for causal in CAUSAL[mask]:
        assert not disagreeing(ways(Q, K, V, given["blocks"], causal=causal), **answer, rtol=tolerance)
    for i, (out, lse) in enumerate(zip(*answer.values(), strict=True)):
        k, v = (x if mask == "full" else x[: i + 1] for x in (K, V))
        for block in {j for _i, j in given["blocks"]}:
            passes = [*in_blocks(Q[i], k, v, scale * (k @ Q[i]), scale, block)]
            passes.append(("1 pass rounded", *attention_1pass(Q[i], k, v, block, scale, rounded())))
            assert not disagreeing(passes, out, lse, tolerance)


def test_zero_keys_left_unmasked_in_the_tail_give_the_known_wrong_first_row_and_masked_ones_the_right_one():
    given, expected, (Q, K, V) = case("B1")
    right, tolerance = expected["full"], expected["rtol"]
    for count, wrong in expected["wrong_row0_by_zero_keys_unmasked"].items():
        padded = Q, *(np.pad(x, ((0, int(count)), (0, 0))) for x in (K, V))
        first = [(name, O[0], lse[0]) for name, O, lse in ways(*padded, given["blocks"])]
        assert not disagreeing(first, wrong, rtol=tolerance)
        assert np.allclose(wrong, right["out"][0], 2e-3) and not np.allclose(wrong, right["out"][0], 1e-4)
        hidden = ways(*padded, given["blocks"], mask=np.arange(len(padded[1])) < len(K))
        assert not disagreeing(hidden, **right, rtol=tolerance)
        hidden = ways(*padded, given["blocks"], causal="top-left")
        assert not disagreeing(hidden, **expected["causal"], rtol=tolerance)


@pytest.mark.parametrize("name", ["B1", "B2", "B3"])
def test_a_loop_that_drops_the_tail_or_runs_on_to_the_end_of_its_block_is_seen_at_every_ragged_block(name):
    given, expected, (Q, K, V) = case(name)
    for block in {j for _i, j in given["blocks"] if len(K) % j}:
        past, whole = ((0, -len(K) % block), (0, 0)), len(K) // block * block
        for k, v in (np.pad(K, past), np.pad(V, past)), (K[:whole], V[:whole]):
            assert not np.allclose(attention(Q, k, v)[0], expected["full"]["out"], 1e-4)


@pytest.mark.parametrize("name", ["B1", "B2", "B3"])
def test_no_read_or_write_reaches_past_the_end_of_its_array_and_each_row_is_stored_once(name):
    given, _expected, (Q, K, V) = case(name)
    for order, (i, j) in product(ORDERS, given["blocks"]):
        tally = Tally()
        flash_forward(*tally.count(Q=Q, K=K, V=V), block_q=i, block_k=j, order=order)
        assert all(access.index.stop <= len(K if access.array in "KV" else Q) for access in tally.log)
        assert tally.elements("lse", "write") == len(Q)
        assert tally.elements("O", "write") - tally.elements("O", "read") == len(Q) * V.shape[1]


@DTYPES
def test_a_single_key_gives_its_value_exactly_and_its_score_as_lse(dtype):
    given, expected, _qkv = case("B2")
    Q, K, V = (numbers(given["single"][x], dtype) for x in "QKV")
    computed = [*ways(Q, K, V, given["blocks"]), *every_way(Q[0], K, V, 1 / math.sqrt(2))]
    assert not disagreeing(computed, expected["single"]["out"][0])
    assert not disagreeing(computed, **expected["single"], rtol=rtol(expected, dtype))


@DTYPES
def test_without_keys_or_queries_no_step_is_run_and_the_result_is_zero_and_minus_infinity_or_empty(dtype):
    given, expected, (Q, K, V) = case("B2", dtype)
    no_keys, no_queries = (Q, K[:0], V[:0]), (Q[:0], K, V)
    for qkv, shapes in (no_keys, [[3, 2], [3]]), (no_queries, [*expected["empty_q"].values()]):
        stepless = flash_forward(*qkv, block_q=2, block_k=2, variant=FA2._replace(step=None))
        for _name, *arrays in [*ways(*qkv, given["blocks"]), ("no step", *stepless)]:
            assert [[*x.shape] for x in arrays] == shapes and all(x.dtype == dtype for x in arrays)
            assert len(qkv[0]) == 0 or not disagreeing([(_name, *arrays)], **expected["empty_k"])
    assert not disagreeing(every_way(Q[0], K[:0], V[:0]), **expected["empty_k"])


def test_query_blocks_counted_with_the_size_of_key_blocks_lose_rows_just_where_key_blocks_are_larger():
    given, expected, (Q, K, V) = case("B3")
    for i, j in given["blocks"]:
        grid = math.ceil(len(Q) / j)
        tiled = {"block_q": i, "block_k": j, "order": lambda queries, keys, n=grid: ORDERS[0](queries[:n], keys)}
        right = np.allclose(flash_forward(Q, K, V, **tiled)[0], expected["full"]["out"], expected["rtol"], 0)
        assert right == (grid >= math.ceil(len(Q) / i))


def heads_of_b6(d, dtype=np.float64):
    """(given, expected, (Q, K, V), out): all the information in the last column."""
    given, expected, _qkv = case("B6")
    Q, K, V = np.zeros((1, d), dtype), np.zeros((2, d), dtype), np.full((2, d), given["V_before"], dtype)
    Q[0, -1], K[:, -1], V[:, -1] = math.sqrt(d), given["K_last"], given["V_last"]
    return given, expected, (Q, K, V), [expected["out_before"]] * (d - 1) + [expected["out_last"]]


@DTYPES
@HEAD_SIZES
def test_every_column_of_a_head_takes_part_and_the_default_scale_is_that_of_its_own_size(d, dtype):
    _given, expected, (Q, K, V), out = heads_of_b6(d, dtype)
    computed = [*ways(Q, K, V, [(1, 1), (1, 2), (4, 4)]), *every_way(Q[0], K, V, 1 / math.sqrt(d))]
    computed += [(f.__name__, *f(Q[0], K, V, 1)) for f in (attention_1pass, attention_2pass, attention_3pass)]
    assert not disagreeing(computed, out, expected["lse"], rtol(expected, dtype))


@HEAD_SIZES
def test_a_head_cut_at_64_columns_or_scaled_as_if_padded_gives_a_wrong_last_column(d):
    given, expected, (Q, K, V), out = heads_of_b6(d)
    cut, padded = given["cut_at"], 2 ** math.ceil(math.log2(d))
    last, lse = expected["wrong_if_cut"].values() if d > cut else (out[-1], expected["lse"])
    computed = ways(Q[:, :cut], K[:, :cut], V, [(1, 1), (2, 2)], scale=1 / math.sqrt(d))
    assert not disagreeing(computed, [*out[:-1], last], lse, expected["rtol"])
    scaled = attention(Q, K, V, scale=1 / math.sqrt(padded))[0][0, -1]
    assert np.isclose(scaled, out[-1], expected["rtol"], 0) == (d == padded)
    assert d != 80 or np.isclose(scaled, expected["wrong_if_d_80_is_scaled_as_padded"], expected["rtol"], 0)


@pytest.mark.parametrize("order", ORDERS)
def test_the_largest_tiles_of_a_run_take_the_bytes_and_threads_of_the_budget(order):
    given, expected, _qkv = case("B7")
    for row, (i, j, d) in zip(expected["rows"], given["blocks_and_d"], strict=True):
        scores, tally = [], Tally()
        spy = FA2._replace(step=lambda state, S, *rest, seen=scores: seen.append(S.size) or FA2.step(state, S, *rest))
        Q, K, V = tally.count(**{x: np.zeros((n + 1, d), np.float32) for x, n in zip("QKV", (i, j, j), strict=True)})
        flash_forward(Q, K, V, block_q=i, block_k=j, variant=spy, order=order)
        tiles = sum(max(a.elements for a in tally.log if a.array == x) for x in "QKV")
        wide, narrow = (fmt.bytes * tiles + FP32.bytes * max(scores) for fmt in (FP32, FP16))
        fits = [wide <= limit for limit in given["limits"]], max(scores) <= given["threads_limit"]
        assert (wide, narrow, max(scores), *fits) == tuple(row.values())


def test_float32_runs_repeat_bit_for_bit_whatever_the_memory_held_before(monkeypatch):
    given, expected, _qkv = case("B8")
    _given, answer, (Q, K, V) = case(given["data_of"], np.float32)
    held = cycle([np.nan, np.inf, 1e30, -1.0, 0.0])  # five, for four new arrays a run: each run finds other ones
    monkeypatch.setattr(
        "flash_lab.forward.new_array",
        lambda like, _name, shape, dtype=None: np.full(shape, next(held), dtype or like.dtype),
    )
    for variant, order, (i, j) in product([*VARIANTS, rounded()], ORDERS, given["blocks"]):
        runs = set()
        for _run in range(given["runs"]):
            O, lse = flash_forward(Q, K, V, block_q=i, block_k=j, variant=variant, order=order)
            runs.add(O.tobytes() + lse.tobytes())
        assert len(runs) == 1
        assert not disagreeing([(variant.name, O, lse)], **answer["full"], rtol=expected["rtol_float32"])
