"""Rounding to a format: against exact rational arithmetic, and bit for bit against casts that round once."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import numfmt
from numfmt import BF16, E4M3FN, E5M2, FP16, FP32, FP64, TF32, Format, round_scalar, sequential_sum

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # signalling NaN patterns

CASTS = {
    numfmt.FP32: np.float32,
    numfmt.FP16: np.float16,
    numfmt.BF16: ml_dtypes.bfloat16,
    numfmt.E5M2: ml_dtypes.float8_e5m2,
    numfmt.E4M3FN: ml_dtypes.float8_e4m3fn,
    numfmt.E3M2FN: ml_dtypes.float6_e3m2fn,
    numfmt.E2M3FN: ml_dtypes.float6_e2m3fn,
    numfmt.E2M1FN: ml_dtypes.float4_e2m1fn,
}
SMALL = [fmt for fmt in CASTS if fmt.bytes <= 1]
FORMATS = [FP64, TF32, *CASTS, *(fmt.saturating for fmt in SMALL)]
LARGEST = {"E4M3FN": 448, "E4M3FN saturating": 448}  # elsewhere all significand bits may be ones
by_name = {"ids": lambda fmt: fmt.name}
any_float = st.floats(allow_nan=False, allow_infinity=False, width=64)


def same_bits(a, b):
    """Equal values with equal signs, NaN equal to NaN."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return bool(np.all((np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))))


def nearest_exactly(x, fmt):
    """The nearest value of fmt, ties to even, in rational arithmetic: shares nothing with the code under test."""
    if x == 0:
        return x
    magnitude = abs(Fraction(x))
    exponent = fmt.emin
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    spacing = Fraction(2) ** (exponent - fmt.p + 1)
    below = magnitude // spacing
    rest = magnitude - below * spacing
    up = rest > spacing / 2 or (rest == spacing / 2 and below % 2 == 1)
    value = (below + up) * spacing
    largest = LARGEST.get(fmt.name, (2 - Fraction(2) ** (1 - fmt.p)) * Fraction(2) ** fmt.emax)
    return math.copysign(fmt.beyond if value > largest else float(value), x)


@given(st.one_of(any_float, st.floats(-1000, 1000)), st.sampled_from(FORMATS))
def test_any_float64_becomes_the_nearest_value_of_the_format(x, fmt):
    assert same_bits(fmt.round(x), nearest_exactly(x, fmt))


@given(
    st.one_of(any_float, st.floats(-1000, 1000), st.sampled_from([math.inf, -math.inf, math.nan])),
    st.sampled_from(FORMATS),
)
def test_the_scalar_rule_and_the_vectorised_one_agree_bit_for_bit(x, fmt):
    assert same_bits(round_scalar(x, fmt), fmt.round(x))


def boundaries(values):
    """The midpoints between neighbours among finite values, and above the largest, both signs, with their float64
    neighbours."""
    values = np.unique(np.abs(values[np.isfinite(values)]))
    midpoints = np.append((values[1:] + values[:-1]) / 2, values[-1] + (values[-1] - values[-2]) / 2)
    midpoints = np.concatenate([midpoints, -midpoints])
    return np.concatenate([midpoints, np.nextafter(midpoints, np.inf), np.nextafter(midpoints, -np.inf)])


def all_values(fmt):
    """Every value of a format of at most 16 bits, as float64, by decoding every pattern."""
    bits = np.arange(2 ** round(8 * fmt.bytes), dtype=np.uint16 if fmt.bytes == 2 else np.uint8)
    return bits.view(CASTS[fmt]).astype(np.float64)


@pytest.mark.parametrize("fmt", SMALL, **by_name)
def test_every_rounding_boundary_of_the_8_bit_formats_and_its_float64_neighbours_round_right(fmt):
    x = boundaries(all_values(fmt))
    for format_ in (fmt, fmt.saturating):
        expected = [nearest_exactly(float(v), format_) for v in x]
        assert same_bits(format_.round(x), expected)
        assert same_bits([round_scalar(float(v), format_) for v in x], expected)


@pytest.mark.parametrize("fmt", [FP16, BF16], **by_name)
def test_a_sample_of_the_16_bit_boundaries_and_their_float64_neighbours_round_right(fmt):
    x = np.random.default_rng(0).choice(boundaries(all_values(fmt)), 3000)
    assert same_bits(fmt.round(x), [nearest_exactly(float(v), fmt) for v in x])


@pytest.mark.parametrize("fmt", [fmt for fmt in CASTS if fmt.bytes <= 2], **by_name)
def test_every_bit_pattern_is_kept(fmt):
    values = all_values(fmt)
    if fmt.beyond is not math.inf:
        values = values[~np.isinf(values)]
    assert same_bits(fmt.round(values), values)
    assert same_bits(fmt.round(values.astype(np.float32)), values)
    assert same_bits(fmt.round_stochastic(values, np.random.default_rng(0)), values)


@pytest.mark.parametrize("fmt", [fmt for fmt in CASTS if fmt.bytes <= 2], **by_name)
def test_float32_input_rounds_like_the_cast_which_rounds_once(fmt):
    bits = np.random.default_rng(1).integers(0, 2**32, 200_000, dtype=np.uint32)
    x = np.concatenate([bits.view(np.float32), np.random.default_rng(2).standard_normal(100_000, dtype=np.float32)])
    if fmt.bytes < 1:
        x = x[~np.isnan(x)]  # these formats have no NaN: the cast makes a zero of it, the lab keeps it visible
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(CASTS[fmt]).astype(np.float32)
    result = fmt.round(x)
    assert result.dtype == np.float32 and same_bits(result, expected)


@pytest.mark.parametrize("fmt", [FP16, FP32], **by_name)
def test_float64_input_rounds_like_numpys_cast_which_rounds_once(fmt):
    x = np.random.default_rng(2).integers(0, 2**64, 200_000, dtype=np.uint64).view(np.float64)
    x = np.concatenate([x, np.random.default_rng(3).standard_normal(100_000) * 2.0 ** np.arange(-40, 60).repeat(1000)])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        expected = x.astype(CASTS[fmt]).astype(np.float64)
    assert same_bits(fmt.round(x), expected)


@pytest.mark.parametrize(
    "fmt, x, once, twice",
    [
        (BF16, 1 + 2**-8, 1, 1),
        (BF16, 1 + 2**-8 + 2**-30, 1.0078125, 1),
        (BF16, 1 + 2**-8 + 2**-40, 1.0078125, 1),
        (BF16, 1 + 3 * 2**-8 - 2**-40, 1.0078125, 1.015625),
        (BF16, -(1 + 2**-8 + 2**-40), -1.0078125, -1),
        (BF16, 257 + 2**-30, 258, 256),
        (FP16, 1 + 2**-11 + 2**-40, 1.0009765625, 1),
        (FP16, 1 + 3 * 2**-11 - 2**-40, 1.0009765625, 1.001953125),
        (FP16, 2049 + 2**-30, 2050, 2048),
        (E4M3FN, 432 - 2**-40, 416, 448),
        (E4M3FN, 1 + 2**-4 + 2**-30, 1.125, 1),
    ],
)
def test_float64_is_rounded_once_where_going_through_float32_rounds_twice(fmt, x, once, twice):
    assert fmt.round(x) == round_scalar(x, fmt) == once
    assert fmt.round(np.float32(x)) == fmt.round(FP32.round(x)) == twice


@pytest.mark.parametrize(
    "fmt, x, expected",
    [
        (FP16, 65504, 65504),
        (FP16, 65519.99, 65504),
        (FP16, 65520, math.inf),
        (FP16, -65520, -math.inf),
        (numfmt.E2M3FN, 1.7e308, 7.5),
        (FP64, 1.7e308, 1.7e308),
        (FP64, math.inf, math.inf),
        (FP16, 1e300, math.inf),
        (BF16, 3.396e38, BF16.max),
        (BF16, 3.39617752923046e38, math.inf),
        (BF16, float(np.finfo(np.float32).max), math.inf),
        (FP32, 3.4028235677973366e38, math.inf),
        (FP16, 2**-24, 2**-24),
        (FP16, 2**-25, 0.0),
        (FP16, 2**-25 * (1 + 2**-20), 2**-24),
        (FP16, 3 * 2**-25, 2**-23),
        (FP16, -(2**-26), -0.0),
        (FP16, 2**-14 - 2**-25, 2**-14),
        (FP16, -0.0, -0.0),
        (BF16, math.inf, math.inf),
        (BF16, math.nan, math.nan),
        (FP16, 2049, 2048),
        (FP16, 2051, 2052),
        (BF16, 257, 256),
        (BF16, 259, 260),
        (FP16, 2050.5, 2050),
        (E4M3FN, 464, 448),
        (E4M3FN, 465, math.nan),
        (E4M3FN, -1000, math.nan),
        (E4M3FN, math.inf, math.nan),
        (E4M3FN.saturating, 465, 448),
        (E4M3FN.saturating, -1000, -448),
        (E4M3FN.saturating, math.inf, 448),
        (E4M3FN.saturating, math.nan, math.nan),
        (E5M2, 61439, 57344),
        (E5M2, 61440, math.inf),
        (E5M2, math.inf, math.inf),
        (E5M2.saturating, math.inf, 57344),
        (numfmt.E3M2FN, 1e9, 28),
        (numfmt.E2M3FN, -7.75, -7.5),
        (numfmt.E2M1FN, math.inf, 6),
        (TF32, 1 + 2**-11, 1),
    ],
)
def test_overflow_subnormals_zero_and_ties(fmt, x, expected):
    assert same_bits(fmt.round(x), expected)
    assert same_bits(round_scalar(float(x), fmt), expected)


def test_limits_are_those_of_ieee_and_ml_dtypes():
    for fmt, dtype in ((FP64, np.float64), *CASTS.items()):
        info = ml_dtypes.finfo(dtype)
        assert fmt.max == float(info.max)
        assert fmt.min_normal == float(info.smallest_normal)
        assert fmt.min_subnormal == float(info.smallest_subnormal)
        assert fmt.u == float(info.eps) / 2
        assert fmt.bytes * 8 == info.bits


@pytest.mark.parametrize("fmt", FORMATS, **by_name)
def test_ulp_is_the_distance_to_the_next_value(fmt):
    for x in (1.0, -1.0, 1.5, fmt.max, fmt.min_normal, fmt.min_subnormal, 0.0):
        assert fmt.ulp(x) == fmt.ulp(np.float64(x))
    assert fmt.ulp(1.0) == 2 * fmt.u
    assert fmt.ulp(0.0) == fmt.ulp(fmt.min_normal) == fmt.min_subnormal
    assert fmt.round(fmt.max - fmt.ulp(fmt.max)) == fmt.max - fmt.ulp(fmt.max) < fmt.max


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shape_and_dtype_are_kept_and_the_input_is_not_touched(dtype):
    x = np.random.default_rng(4).standard_normal((4, 6, 10)).astype(dtype)
    before = x.copy()
    for view in (x, x.T, x[:, ::2], x[::-1], x[:0], x[1, 2, 3:4]):
        result = BF16.round(view)
        assert result.shape == view.shape and result.dtype == dtype
        assert result.ravel().tolist() == [float(BF16.round(v)) for v in view.ravel()]
    assert np.array_equal(x, before)
    result = BF16.round(x)
    result[...] = 0
    assert np.array_equal(x, before)


def test_stochastic_rounding_gives_a_neighbour_and_on_average_the_value_itself():
    rng = np.random.default_rng(6)
    for fmt in (BF16, E4M3FN, FP16):
        for x in (1.3, -0.0123, 100.4, fmt.min_subnormal * 0.3):
            draws = fmt.round_stochastic(np.full(40_000, x), rng)
            step = fmt.ulp(x)
            assert set(np.unique(draws)) <= {np.floor(x / step) * step, np.ceil(x / step) * step}
            assert abs(draws.mean() - x) < 5 * step / 2 / np.sqrt(draws.size)


def test_stochastic_rounding_repeats_with_its_generator_and_treats_the_top_like_the_nearest():
    x = np.random.default_rng(7).standard_normal(50).astype(np.float32)
    a, b = (BF16.round_stochastic(x, np.random.default_rng(8)) for _again in range(2))
    assert np.array_equal(a, b) and a.dtype == np.float32 and np.any(a != BF16.round(x))
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 1e6])
    assert same_bits(FP16.round_stochastic(special, np.random.default_rng(0)), FP16.round(special))


def test_a_format_that_holds_the_input_returns_a_copy():
    x = np.ones(3, np.float32)
    result = FP64.round(x)
    result[0] = 2
    assert x[0] == 1


def test_whole_numbers_and_16_bit_arrays_are_taken_as_float64():
    assert FP16.round(2049) == 2048
    assert FP16.round(np.array([2049, 2051])).tolist() == [2048, 2052]
    assert FP16.round(np.array([1.0], ml_dtypes.bfloat16)).dtype == np.float64


@pytest.mark.parametrize("bad", ["1", 1j, None, [1, "x"]])
def test_what_is_not_a_real_number_is_refused_in_one_sentence(bad):
    with pytest.raises(ValueError, match="real number"):
        FP16.round(bad)


def test_adding_ones_one_by_one_stops_where_the_spacing_reaches_two():
    assert sequential_sum(np.ones(5000), FP16) == 2048
    assert sequential_sum(np.ones(5000), BF16) == 256
    assert sequential_sum(np.ones(4096), FP16, block=64) == 4096


@pytest.mark.parametrize("block", [0, -1])
def test_a_block_below_one_is_refused(block):
    with pytest.raises(ValueError, match=f"block is {block}"):
        sequential_sum([1.0], FP16, block)


@given(st.lists(st.floats(-1e4, 1e4), max_size=40), st.sampled_from([FP16, BF16, FP32]))
def test_the_sequential_sum_rounds_after_every_addition(values, fmt):
    total = 0.0
    for value in values:
        total = float(nearest_exactly(total + nearest_exactly(value, fmt), fmt))
    assert sequential_sum(values, fmt) == total


def test_the_sequential_sum_in_fp32_is_numpys_accumulate():
    values = np.random.default_rng(5).random(1000).astype(np.float32)
    assert sequential_sum(values, FP32) == np.add.accumulate(values)[-1]


def test_a_format_is_only_data():
    tiny = Format("E2M1 with infinity", p=2, emin=0, emax=2, bytes=0.5)
    assert tiny.max == 6 and tiny.min_subnormal == 0.5
    assert [float(tiny.round(x)) for x in (0.2, 0.25, 0.3, 2.5, 3.5, 5.0, 7.0)] == [0, 0, 0.5, 2, 4, 4, math.inf]
