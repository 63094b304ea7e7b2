"""Problem cases from public reports: masks, NaN and log-sum-exp, through every way of computing attention."""

import math
from functools import reduce

import numpy as np
import pytest
from cases.ways import (
    DTYPES,
    VARIANTS,
    case,
    cut,
    disagreeing,
    every_way,
    every_way_of_scores,
    full_and_tiled,
    last,
    numbers,
    row,
    rtol,
    unguarded_step,
)

from flash_lab import (
    EMPTY,
    FA2,
    State,
    empty_state,
    from_output_lse,
    merge_states,
    merge_tree,
    output,
    partial_state,
    to_output_lse,
)

# an unforeseen (-inf) - (-inf) or log 0 is an error here; matmuls warn without cause on some machines
pytestmark = pytest.mark.filterwarnings("error", "ignore:.*encountered in matmul")


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def states_of_a1(dtype):
    """The case's x, and the empty state in every form the library has."""
    S, V = row("A1", "_empty", dtype)
    masked = partial_state(S, V)
    empties = [masked, partial_state(S[:0], V[:0]), EMPTY, empty_state(S[:1], 1), last([(S, V)], FA2.step)]
    return partial_state(*row("A1", "_x", dtype)), [*empties, from_output_lse(*to_output_lse(masked))]


@DTYPES
def test_merging_two_empty_states_gives_the_empty_state(dtype):
    _given, expected = case("A1")
    _x, empties = states_of_a1(dtype)
    alone = [*every_way_of_scores(*row("A1", "_empty", dtype)), *(("state", *to_output_lse(e)) for e in empties)]
    both = [("merged", *to_output_lse(merge_states(a, b))) for a in empties for b in empties]
    assert not disagreeing(alone, **expected["empty_state"])
    assert not disagreeing(both, **expected["merge_empty_empty"])


@DTYPES
def test_merging_a_state_with_an_empty_one_on_either_side_gives_it_back_bit_for_bit(dtype):
    _given, expected = case("A1")
    x, empties = states_of_a1(dtype)
    assert not disagreeing([("x", *to_output_lse(x))], **expected["merge_x_empty"], rtol=rtol(expected, dtype))
    for e in empties:
        assert same(merge_states(x, e), x) and same(merge_states(e, x), x)
        assert same(merge_states(merge_states(e, e), x), x) and same(merge_tree([e, e, x, e]), x)


@DTYPES
def test_a_tile_without_visible_keys_changes_no_running_state(dtype):
    _given, expected = case("A1")
    empty, x = row("A1", "_empty", dtype), row("A1", "_x", dtype)
    orders = [[x], [empty, empty, x], [x, empty], [empty, x, empty]]
    ways = [(v.name, *v.finish(last(order, v.step))) for v in VARIANTS for order in orders]
    assert not disagreeing(ways, **expected["merge_empty_x"], rtol=rtol(expected, dtype))


def test_dividing_only_where_l_is_positive_hides_the_nan_of_two_empty_states_until_the_next_merge():
    _given, expected = case("A1")

    def unguarded_merge(a, b):
        m = np.maximum(a.m, b.m)
        with np.errstate(invalid="ignore"):
            x, y = np.exp(a.m - m), np.exp(b.m - m)
        return State(m, x * a.l + y * b.l, x[..., None] * a.o + y[..., None] * b.o)

    x, (e, *_others) = states_of_a1(np.float64)
    nothing = unguarded_merge(e, e)
    chain = unguarded_merge(nothing, x)
    hidden, seen = (np.where(s.l > 0, s.o / s.l, 0.0) for s in (nothing, chain))
    assert np.isnan(nothing.l) and np.array_equal(hidden, expected["merge_empty_empty"]["out"])
    assert np.isnan(chain.l) and not np.allclose(seen, expected["merge(merge(empty,empty),x)"]["out"])


@DTYPES
@pytest.mark.parametrize("where", ["first", "last", "mixed"])
def test_masked_keys_first_last_or_between_change_nothing_at_any_block_size(where, dtype):
    given, expected = case("A2")
    ways = every_way_of_scores(*row("A2", "_" + where, dtype), given["block"])
    assert not disagreeing(ways, **expected["all_variants_and_blocks"], rtol=rtol(expected, dtype))


def test_a_step_without_the_rule_for_empty_rows_fails_only_where_a_masked_block_comes_first():
    _given, expected = case("A2")
    o = {where: output(last(cut(*row("A2", "_" + where), 2), unguarded_step)) for where in ("first", "last", "mixed")}
    assert np.isnan(o["first"]).all()
    assert np.allclose([o["last"], o["mixed"]], expected["all_variants_and_blocks"]["out"], expected["rtol"], 0)


@DTYPES
@pytest.mark.parametrize("causal", [True, "bottom-right", "top-left"])
def test_causal_queries_that_see_no_key_give_zero_and_minus_infinity_and_the_others_their_keys(causal, dtype):
    given, expected = case("A3")
    Q, K, V = (numbers(given[name], dtype) for name in "QKV")
    aligned = expected["top_left" if causal == "top-left" else "bottom_right"]
    pairs = [(i, j) for i in given["block_q"] for j in given["block_k"]]
    ways = full_and_tiled(Q, K, V, pairs, causal=causal, scale=given["scale"])
    assert not disagreeing(ways, **aligned, rtol=rtol(expected, dtype))
    for i, (out, lse) in enumerate(zip(*aligned.values(), strict=True)):
        seen = min(max(i + 1 + (0 if causal == "top-left" else len(K) - len(Q)), 0), len(K))
        assert not disagreeing(every_way(Q[i], K[:seen], V[:seen], given["scale"]), out, lse, rtol(expected, dtype))


def test_without_the_rule_for_empty_rows_exactly_the_causal_rows_that_see_no_key_are_nan():
    given, expected = case("A3")
    Q, K, V = (numbers(given[name]) for name in "QKV")
    S = np.where(np.tri(len(Q), len(K), len(K) - len(Q), dtype=bool), Q @ K.T, -np.inf)
    o = output(last([(S, V)], unguarded_step, given["scale"], empty_state(Q, V.shape[1])))
    assert np.array_equal(np.isnan(o).all(axis=1), np.isneginf(numbers(expected["bottom_right"]["lse"])))


def parts_of_a5(pair, dtype=np.float64):
    given, _expected = case("A5")
    return [tuple(numbers(given[f"part_{name}"][x], dtype) for x in "SV") for name in pair]


def merged(pairs):
    return to_output_lse(reduce(merge_states, (from_output_lse(*pair) for pair in pairs)))


@DTYPES
@pytest.mark.parametrize("pair", ["ab", "cd"])
def test_parts_merge_by_natural_logarithms_to_the_whole(pair, dtype):
    _given, expected = case("A5")
    tiles = parts_of_a5(pair, dtype)
    S, V = (np.concatenate(arrays) for arrays in zip(*tiles, strict=True))
    pairs = [to_output_lse(partial_state(*tile)) for tile in tiles]
    in_log2 = [(o, lse / math.log(2)) for o, lse in pairs]
    ways = [*every_way_of_scores(S, V), *((v.name, *v.finish(last(tiles, v.step))) for v in VARIANTS)]
    ways += [("natural", *merged(pairs)), ("converted back", *merged((o, b * math.log(2)) for o, b in in_log2))]
    assert not disagreeing(ways, **expected["merge_" + "_".join(pair)], rtol=rtol(expected, dtype))
    if pair == "cd":
        (S, V), _d = tiles
        assert not disagreeing(every_way_of_scores(S, V), V[0], expected["lse_c"], rtol(expected, dtype))


@pytest.mark.parametrize("pair", ["ab", "cd"])
def test_an_lse_in_log2_units_merged_as_a_natural_one_gives_the_known_wrong_output(pair):
    _given, expected = case("A5")
    pairs = [to_output_lse(partial_state(*tile)) for tile in parts_of_a5(pair)]
    o, _lse = merged((o, lse / math.log(2)) for o, lse in pairs)
    assert np.allclose(o, expected["wrong_if_log2_used_as_ln"]["merge_" + "_".join(pair)], expected["rtol"], 0)


@DTYPES
@pytest.mark.parametrize("which", ["1", "2"])
def test_scores_far_below_zero_weigh_by_their_differences_alone(which, dtype):
    given, expected = case("A7")
    S, V = row("A7", which, dtype)
    moved = np.spacing(np.abs(S[0]))  # storing scores of this size moves them, and with them o and lse
    ways = every_way_of_scores(S, V, [*given["block"], len(S)])
    assert not disagreeing(ways, **expected[f"row{which}"], rtol=rtol(expected, dtype), moved=moved)


def test_the_float32_lse_of_scores_far_below_zero_is_rounded_once():
    _given, expected = case("A7")
    ways = every_way_of_scores(*row("A7", "1", np.float32))
    assert not disagreeing(ways, expected["row1"]["out"], expected["float32_lse_row1"])


@pytest.mark.parametrize("which", ["1", "2"])
def test_a_running_max_that_starts_at_zero_loses_every_key_far_below_it(which):
    given, _expected = case("A7")
    for block in given["block"]:
        tiles = cut(*row("A7", which), block)
        ways = [(v.name, *v.finish(last(tiles, v.step, start=State(0.0, 0.0, 0.0)))) for v in VARIANTS]
        assert not disagreeing(ways, 0.0, "-Infinity")
