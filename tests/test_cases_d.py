"""Problem cases from public reports: what rounding to a format gives, alone and inside attention."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest
from cases.ways import DTYPES, ORDERS, case, numbers

from flash_lab import attention, attention_1pass, flash_forward, partial_state, rounded, worst_in_u
from numfmt import BF16, E4M3FN, E5M2, FP16, FP32, round_scalar

# an unforeseen overflow or NaN is an error here; matmuls warn without cause on some machines
pytestmark = pytest.mark.filterwarnings("error", "ignore:.*encountered in matmul")
FORMATS = {fmt.name: fmt for fmt in (BF16, FP16, E4M3FN, E4M3FN.saturating, E5M2)}


def formats_of(*names):
    """Parametrise over (name, fmt): each case with each format that it expects something of."""
    pairs = [(name, fmt) for name in names for fmt in FORMATS.values() if fmt.name in case(name)[1]]
    return pytest.mark.parametrize("name, fmt", pairs, ids=[f"{name}-{fmt.name}" for name, fmt in pairs])


def values(name, fmt):
    """(x, expected) of one format; a saturating one is given what the plain one is given."""
    given, expected = case(name)
    return numbers(given[fmt.name.split()[0]]), numbers(expected[fmt.name])


def alone(x, fmt):
    """Yield (way, x rounded to fmt)."""
    yield "array", fmt.round(x)
    yield "column of another array", fmt.round(np.stack([x, -x], axis=1))[:, 0]
    yield "one by one", np.array([fmt.round(v) for v in x])
    yield "scalar rule", np.array([round_scalar(float(v), fmt) for v in x])


def in_attention(x, fmt):
    """Yield (way, x rounded to fmt): as the values of the only key, and as the score of the only key."""
    one = np.ones((1, 1), x.dtype)
    for place in "output", "o":
        variant = rounded(**{place: fmt.round})
        yield f"{place}, 1 pass", attention_1pass(one[0], one, x[None], 1, 1.0, variant)[0]
        for order in ORDERS:
            O, _lse = flash_forward(one, one, x[None], block_q=1, block_k=1, variant=variant, order=order)
            yield f"{place}, {order.__name__}", O[0]
    options = {"block_q": 2, "block_k": 1, "scale": 1.0, "variant": rounded(scores=fmt.round)}
    for order in ORDERS if np.all(np.isfinite(fmt.round(x))) else []:
        yield f"scores, {order.__name__}", flash_forward(x[:, None], one, one, order=order, **options)[1]


def differing(ways, expected, signs=False):
    """The names of the ways that give other values, or other signs of zero; at least one way is needed."""
    ways = list(ways)
    assert ways

    def same(x):
        zeros = np.signbit(x[x == 0]), np.signbit(expected[expected == 0])
        return np.array_equal(x, expected, equal_nan=True) and (not signs or np.array_equal(*zeros))

    return [name for name, x in ways if not same(x)]


def half_up(x, fmt):
    """The slip: ties go up."""
    return np.floor(x / fmt.ulp(x) + 0.5) * fmt.ulp(x)


@DTYPES
@formats_of("D2", "D4", "D6")
def test_a_value_becomes_the_nearest_one_of_the_format_alone_and_inside_attention(name, fmt, dtype):
    x, expected = values(name, fmt)
    x = x.astype(dtype)
    assert not differing(alone(x, fmt), expected, signs=True)
    assert not differing(in_attention(x, fmt), expected)  # without signs: attention adds to 0, and 0 + -0 is 0


@formats_of("D1")
def test_float64_is_rounded_once_and_by_way_of_float32_twice_to_the_known_wrong_values(name, fmt):
    x, expected = values(name, fmt)
    wrong = numbers(case(name)[1]["wrong_through_float32"][fmt.name])
    assert not differing([*alone(x, fmt), *in_attention(x, fmt)], expected)
    for through in x.astype(np.float32), FP32.round(x):
        assert not differing([*alone(through, fmt), *in_attention(through, fmt)], wrong)
    assert np.array_equal(wrong != expected, x != through)


@formats_of("D2")
def test_taking_all_above_the_maximum_for_overflow_loses_the_values_within_half_a_step_of_it(name, fmt):
    x, expected = values(name, fmt)
    early = np.where(np.abs(x) > fmt.max, np.copysign(fmt.beyond, x), fmt.round(x))
    lost = x[~np.isclose(early, expected, 0, 0, equal_nan=True)]
    assert np.array_equal(lost, case(name)[1]["lost_if_overflow_starts_at_max"][fmt.name])
    assert np.all((lost > fmt.max) & (lost <= fmt.max + fmt.ulp(fmt.max) / 2))


def test_a_format_that_saturates_where_another_of_its_width_does_not_says_so_in_its_name():
    for fmt in FORMATS.values():
        assert ("saturating" in fmt.name) == (fmt.round(np.inf) == fmt.max)


def test_flushing_subnormals_and_sending_ties_up_are_seen():
    x, expected = values("D4", FP16)
    flushed = np.where(np.abs(x) < FP16.min_normal, 0.0, FP16.round(x))
    assert np.array_equal(flushed != expected, expected != 0)
    assert np.array_equal(x[half_up(x, FP16) != expected], [FP16.min_subnormal / 2])


@DTYPES
def test_small_probabilities_stored_in_fp16_are_kept_down_to_half_the_smallest_subnormal(dtype):
    given, expected = case("D4")
    for n, stored in zip(given["exp_minus"], expected["exp_minus"], strict=True):
        K, V = np.array([[0], [-n]], dtype), np.array([[0], [1]], dtype)
        for order in ORDERS:
            options = {"block_q": 1, "block_k": 2, "scale": 1.0, "variant": rounded(P=FP16.round), "order": order}
            O, _lse = flash_forward(np.ones((1, 1), dtype), K, V, **options)
            assert np.isclose(O[0, 0] * (1 + np.exp(-n)), stored, rtol=1e-12 if dtype == np.float64 else 1e-6, atol=0)
        assert FP16.round(np.exp(-n)) == round_scalar(float(np.exp(-n)), FP16) == stored
    assert np.isclose(FP16.round(np.exp(-17)) / np.exp(-17) - 1, expected["exp_minus_17_is_too_big_by"], atol=5e-3)


@formats_of("D6")
def test_sending_ties_up_gives_other_values_in_one_direction_only(name, fmt):
    x, expected = values(name, fmt)
    wrong = half_up(x, fmt)
    assert np.array_equal(wrong, case(name)[1]["wrong_if_half_goes_up"][fmt.name])
    assert np.array_equal(wrong != expected, [True] + [False] * (len(x) - 1))


def test_a_nan_in_a_bf16_array_reaches_every_check_as_one_nan():
    given, expected = case("D6")
    x = np.array(numbers(given["bf16_array"]), ml_dtypes.bfloat16)
    for check in BF16.round(x), FP16.round(x):
        assert check.dtype == np.float64 and np.array_equal(np.isnan(check), expected["as_float64_isnan"])
    exact, right = np.nan_to_num(numbers(given["bf16_array"])), x[~np.isnan(x.astype(np.float64))]
    assert not worst_in_u(x, exact, 1.0) < np.inf and not worst_in_u(x[:1], exact[:1], 1.0) < np.inf
    assert worst_in_u(right, right.astype(np.float64), 1.0) == 0


def test_a_check_that_asks_numpy_for_floating_types_passes_over_the_nan_of_a_bf16_array():
    given, _expected = case("D6")
    x = numbers(given["bf16_array"])
    naive = [np.issubdtype(x.dtype, np.floating) and np.isnan(x).any() for x in (x, x.astype(ml_dtypes.bfloat16))]
    assert naive == [True, False]


def test_attention_refuses_bf16_arrays_and_names_the_conversion():
    x = np.ones((2, 2), ml_dtypes.bfloat16)
    tiled, one_row = partial(flash_forward, x, block_q=1, block_k=1), partial(attention_1pass, x[0], block=1)
    for call in partial(attention, x), tiled, one_row, partial_state:
        with pytest.raises(ValueError, match=r"bfloat16.*astype\(np.float32\)"):
            call(x, x)
