"""Problem cases from public reports: what number formats do to attention, through every way of computing it."""

import numpy as np
import pytest
from cases.ways import (
    DTYPES,
    case,
    cut,
    disagreeing,
    every_way,
    every_way_of_scores,
    full_and_tiled,
    last,
    numbers,
    qkv_of_c1,
    qkv_of_c7,
    row,
    row_of_c2,
    rtol,
    unguarded_step,
)

from flash_lab import (
    FA2,
    attention_1pass,
    from_output_lse,
    merge_tree,
    output,
    partial_state,
    rounded,
    to_output_lse,
    worst_in_u,
)
from numfmt import BF16, FP16, FP32, Format, sequential_sum

# an unforeseen (-inf) - (-inf) or log 0 is an error here; matmuls warn without cause on some machines
pytestmark = pytest.mark.filterwarnings("error", "ignore:.*encountered in matmul")
TF32 = Format("TF32", p=case("C9")[0]["fraction_bits"] + 1, emin=-126, emax=127, bytes=4)
FORMATS = {"FP16": FP16, "BF16": BF16, "FP32": FP32}
LOW = pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda fmt: fmt.name)


@DTYPES
def test_scores_past_the_range_of_fp16_are_no_trouble_in_float32_and_float64(dtype):
    given, expected = case("C1")
    ways = every_way(*qkv_of_c1(dtype), given["scale"])
    assert not disagreeing(ways, expected["out"], expected["lse"], rtol(expected, dtype))


def test_raw_scores_stored_in_fp16_overflow_and_turn_every_way_into_nan():
    given, expected = case("C1")
    q, K, V = qkv_of_c1()
    raw = FP16.round(K @ q)
    assert np.array_equal(K @ q, given["raw_scores"]) and np.array_equal(raw, numbers(expected["fp16_raw_scores"]))
    assert np.array_equal(FP16.round(given["raw_points"]), numbers(expected["fp16_points"]))
    with np.errstate(invalid="ignore"):
        assert not disagreeing(every_way_of_scores(given["scale"] * raw, V), expected["naive_fp16_result"])


def test_scaling_the_query_first_keeps_fp16_scores_finite_and_the_result_right():
    given, expected = case("C1")
    q, K, V = qkv_of_c1()
    S = FP16.round(K @ FP16.round(given["scale"] * q))
    assert np.array_equal(S, expected["scaled_scores"])
    in_tiles = attention_1pass(q, K, V, 1, given["scale"], rounded(scores=FP16.round))
    ways = [*every_way_of_scores(S, V), ("scores scaled, then stored in FP16", *in_tiles)]
    assert not disagreeing(ways, expected["out"], expected["lse"], expected["rtol"])


def test_a_long_flat_row_keeps_its_sum_with_float32_accumulators():
    given, expected = case("C2")
    S, V = row_of_c2(np.float32)
    one, *more = given["blocks"]
    ways = [*every_way_of_scores(S, V, [*more, len(S)]), ("1 pass", *FA2.finish(last(cut(S, V, one), FA2.step)))]
    ways.append(("tree of single keys", *to_output_lse(merge_tree(partial_state(*tile) for tile in cut(S, V, one)))))
    assert not disagreeing(ways, expected["out"], expected["lse"], rtol(expected, np.float32))
    assert last(cut(S, V, one), FA2.step).l == expected["l"]


@LOW
def test_a_sum_stored_in_a_narrow_format_stops_and_blocks_hide_it(fmt):
    given, expected = case("C2")
    weights, short = np.ones(given["n"]), np.ones(given["n_short"])
    one, many = (sequential_sum(weights, fmt, block) for block in given["blocks"])
    assert (one, many) == (expected[f"l_sequential_{fmt.name.lower()}"], expected["l_blocks_of_64_fp16_and_bf16"])
    assert np.isclose(np.log(one), expected[f"wrong_lse_{fmt.name.lower()}"], expected["rtol"], 0)
    assert sequential_sum(short, fmt) == expected[f"n300_{fmt.name.lower()}_l"]


@LOW
def test_accumulators_stored_in_a_narrow_format_double_the_output_at_block_1_only(fmt):
    given, expected = case("C2")
    name, (one, many), (S, V) = fmt.name.lower(), given["blocks"], row_of_c2()

    def result(block, variant):
        return [("", *variant.finish(last(cut(S, V, block), variant.step)))]

    slow, hidden = (result(block, rounded(l=fmt.round, o=fmt.round)) for block in (one, many))
    assert not disagreeing(slow, expected[f"wrong_out_both_{name}"], expected[f"wrong_lse_{name}"], expected["rtol"])
    assert not disagreeing(hidden, expected["out"], expected["lse"], expected["rtol"])
    if fmt is FP16:
        assert not disagreeing(result(one, rounded(l=fmt.round)), expected["wrong_out_l_fp16_O_wide"])


@DTYPES
def test_a_masked_key_has_no_weight_however_low_the_other_scores_are(dtype):
    _given, expected = case("C3")
    ways = every_way_of_scores(*row("C3", "", dtype))
    assert not disagreeing(ways, expected["out"], expected["lse"], rtol(expected, dtype))
    assert not disagreeing(every_way_of_scores(*row("C3", "_all_masked", dtype)), **expected["all_masked"])


@pytest.mark.parametrize(
    "which, wrong", [("", "wrong_with_minus_10000"), ("_all_masked", "wrong_all_masked_with_constant")]
)
def test_a_finite_mask_constant_lets_masked_keys_win(which, wrong):
    given, expected = case("C3")
    S, V = row("C3", which)
    S = np.where(np.isneginf(S), given["mask_constant"], S)
    assert not disagreeing(every_way_of_scores(S, V), expected[wrong], rtol=expected["rtol"])


def test_mask_constants_become_minus_infinity_in_fp16_and_another_number_in_bf16():
    given, expected = case("C3")
    assert np.array_equal(FP16.round(given["fp16_round"]), numbers(expected["fp16_round"]))
    assert np.array_equal(BF16.round(given["bf16_round"]), numbers(expected["bf16_round"]))


def test_the_lowest_value_of_a_format_plus_another_one_is_minus_infinity():
    given, expected = case("C6")
    sums = FP16.round(-FP16.max + numbers(given["fp16_min_plus"]))
    assert np.array_equal(sums, numbers(expected["fp16_min_plus"]))
    for name in given["formats"]:
        assert FORMATS[name].round(-2 * FORMATS[name].max) == float(expected["min_plus_min"])


@DTYPES
def test_a_row_whose_keys_are_hidden_by_either_of_two_masks_is_empty(dtype):
    given, expected = case("C6")
    S, V = row("C6", "", dtype)
    causal, padding = numbers(given["causal_sees"], bool), numbers(given["padding_sees"], bool)
    assert not disagreeing(every_way_of_scores(np.where(causal & padding, S, dtype(-np.inf)), V), **expected["row"])
    last_visible = np.count_nonzero(causal) - 1  # the row of a causal mask that sees just these keys
    Q, pairs = np.zeros((len(S), 1), dtype), [(i, i) for i in range(1, len(S) + 2)]
    ways = [*full_and_tiled(Q, S[:, None], V, pairs, causal=True, mask=padding)]
    rows = [(name, O[last_visible], lse[last_visible]) for name, O, lse in ways]
    assert not disagreeing(rows, **expected["row"])
    assert all(np.isfinite(O).all() and np.isfinite(lse[last_visible + 1 :]).all() for _name, O, lse in ways)


def test_masks_added_as_lowest_values_give_the_mean_of_hidden_keys_or_nan():
    given, expected = case("C6")
    S, V = row("C6", "")
    hidden = [~numbers(given[name], bool) for name in ("causal_sees", "padding_sees")]
    once = S + sum(hidden) * -FP16.max
    assert not disagreeing(every_way_of_scores(once, V), expected["wrong_row_mean"], rtol=expected["rtol"])
    twice = FP16.round(once - FP16.max)
    assert np.isneginf(twice).all() and np.isnan(output(last([(twice, V)], unguarded_step))).all()


def split(dtype, count):
    """The states of `count` splits of the keys."""
    q, K, V = qkv_of_c7(dtype)
    S = case("C7")[0]["scale"] * (K @ q)
    return [partial_state(*part) for part in zip(np.array_split(S, count), np.array_split(V, count), strict=True)]


@DTYPES
def test_every_number_of_splits_gives_the_result_to_rounding(dtype):
    given, expected = case("C7")
    blocks = [-(-given["n"] // count) for count in given["splits"]]
    ways = [*every_way(*qkv_of_c7(dtype), given["scale"], blocks)]
    ways += [(f"{count} splits", *to_output_lse(merge_tree(split(dtype, count)))) for count in given["splits"]]
    assert not disagreeing(ways, expected["out"], expected["lse"], 1e-4 if dtype == np.float32 else expected["rtol"])
    errors = [np.max(np.abs(o - expected["out"])) for _name, o, _lse in ways]
    assert max(errors) <= expected["float32_max_abs_error_every_split"]


def test_the_same_number_of_splits_gives_the_same_bits_and_another_number_need_not():
    outputs = {count: output(merge_tree(split(np.float32, count))) for count in case("C7")[0]["splits"]}
    for count, o in outputs.items():
        assert np.array_equal(o, output(merge_tree(split(np.float32, count))))
    assert any(not np.array_equal(o, outputs[1]) for o in outputs.values())


def test_partial_outputs_stored_in_fp16_before_the_merge_cost_far_more_than_float32_ones():
    given, expected = case("C7")
    errors = []
    for count in given["splits"]:
        pairs = [(FP16.round(o), lse) for o, lse in map(to_output_lse, split(np.float64, count))]
        o = output(merge_tree(from_output_lse(*pair) for pair in pairs))
        errors.append(np.max(np.abs(o - expected["out"])))
    assert np.isclose(errors[0], expected["wrong_error_partials_in_fp16"], rtol=0.2)
    assert min(errors) > 20 * expected["float32_max_abs_error_every_split"]


@pytest.mark.parametrize("fmt", [FP16, BF16, FP32], ids=lambda fmt: fmt.name)
def test_one_rounding_passes_the_formats_relative_bound_and_two_ulps_do_not(fmt):
    given, expected = case("C8")
    name, exact = fmt.name.lower(), expected["must_fail"]["exact"]
    assert fmt.u == expected["unit_roundoff"][name]
    for x in given.get(f"{name}_values", []), np.geomspace(fmt.min_normal, fmt.max, 1000):
        assert worst_in_u(fmt.round(x), x, fmt.u * np.abs(x)) <= 1
    assert np.array_equal(fmt.round(given.get(f"{name}_values", [])), expected.get(f"{name}_rounded", []))
    assert worst_in_u(exact + 2 * fmt.ulp(exact), exact, fmt.u * exact) > 1
    assert fmt is not BF16 or exact + 2 * fmt.ulp(exact) == expected["must_fail"]["bf16"]


def test_an_absolute_bound_calls_right_bf16_values_wrong_and_misses_wrong_small_ones():
    given, expected = case("C8")
    x = numbers(given["bf16_values"])
    errors = np.abs(BF16.round(x) - x)
    assert np.array_equal(errors, expected["bf16_abs_error"]) and np.all(errors > given["absolute_bound"])
    small = x / 1024
    wrong = BF16.round(small) + 2 * BF16.ulp(small)
    assert np.all(np.abs(wrong - small) < given["absolute_bound"])
    assert worst_in_u(wrong, small, BF16.u * small) > 1


def test_inputs_rounded_to_tf32_lose_what_float32_keeps_of_a_product():
    given, expected = case("C9")
    x, grid = given["x"], 2.0 ** (TF32.p - 1)
    assert TF32.round(x) == expected["tf32_nearest_even"] == expected["tf32_truncate"] == np.floor(x * grid) / grid
    assert np.floor(x * grid + 0.5) / grid == expected["tf32_nearest_ties_away"]
    product = TF32.round(x) ** 2
    assert x * x == expected["exact_product"] and product == expected["tf32_product_nearest_even"]
    assert x * x - product == expected["abs_error"]
    assert worst_in_u(product, x * x, TF32.u * x * x) <= 2 and worst_in_u(product, x * x, FP32.u * x * x) > 1000
    assert FP32.round(x) == x and worst_in_u(FP32.round(x * x), x * x, FP32.u * x * x) <= 1


@DTYPES
def test_scores_of_tf32_inputs_show_in_the_lse_of_every_way(dtype):
    given, expected = case("C9")
    x, V = np.full(1, given["x"], dtype), np.ones((1, 1), dtype)
    for inputs, lse in (x, expected["exact_product"]), (TF32.round(x), expected["tf32_product_nearest_even"]):
        assert not disagreeing(every_way(inputs, inputs[None], V), V[0], lse, np.finfo(dtype).eps)
