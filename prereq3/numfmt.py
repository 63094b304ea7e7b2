"""Number formats: what a value becomes when it is stored in FP16, BF16, FP8 and others.

Conventions
- A `Format` is pure data; its methods are the one rounding rule of every format here:
  to nearest, ties to even, rounded once, whatever the input's dtype.
- Arrays go in as float32 or float64 and come out in the same dtype, holding only values of the format.
- p is the width of the significand with its hidden bit; u = 2**-p is the unit roundoff.
- NaN stays NaN (also where the format has none, so that it stays visible), -0 stays -0, subnormals are kept.
- What rounds past `max` becomes the format's `beyond`: infinity, NaN, or `max` itself for a saturating format.

Sources: IEEE 754-2019, sections 3.3 and 4.3.1 (roundTiesToEven); OCP 8-bit Floating Point Specification (FP8);
OCP Microscaling Formats Specification (FP6, FP4).
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

CHUNK = 1 << 18  # elements rounded at a time: the passes over a chunk stay in the cache


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: p significand bits, exponents from emin to emax, bytes per value.

    name: for tables; p: width of the significand with its hidden bit; emin, emax: exponents of the smallest and the
    largest normal values, as in 2**emin; bytes: size of a value, with fractions below 8 bits.
    largest: the largest finite value where the top code is not a number, None where all p bits may be ones.
    beyond: what rounds past it, with its sign.
    """

    name: str
    p: int
    emin: int
    emax: int
    bytes: float
    largest: float | None = None
    beyond: float = math.inf

    @cached_property
    def max(self):
        """The largest finite value."""
        return self.largest or math.ldexp(2.0 - 2.0 ** (1 - self.p), self.emax)

    @cached_property
    def saturating(self):
        """The same format with `max` for whatever rounds past it, infinity included: what GPU conversions to FP8 do."""
        return replace(self, name=self.name + " saturating", beyond=self.max)

    @cached_property
    def min_normal(self):
        """The smallest positive value with all p bits."""
        return math.ldexp(1.0, self.emin)

    @cached_property
    def min_subnormal(self):
        """The smallest positive value, and the spacing everywhere below `min_normal`."""
        return math.ldexp(1.0, self.emin - self.p + 1)

    @cached_property
    def u(self):
        """The unit roundoff: a normal value moves by at most u times itself."""
        return 2.0**-self.p

    def ulp(self, x):
        """The distance between the neighbouring values of this format at |x|.

        x: float32 or float64, any shape (other numbers are taken as float64). Returns float64 of the same shape;
        at infinity and NaN, and past `max`, the spacing just below `max`. Errors as in `round`.
        """
        x = _as_float(x)
        return _spacing(np.ascontiguousarray(x).reshape(-1), self)[0].astype(np.float64).reshape(x.shape)[()]

    def round(self, x):
        """The value of this format nearest to each x, ties to even, rounded once.

        x: float32 or float64, any shape and strides (float16, bfloat16 and whole numbers are taken as
        float64, which holds them). Returns a new array of x's shape, float32 for float32 and
        float64 otherwise. Raises ValueError for anything that is not a real number.
        """
        x = _as_float(x)
        if x.dtype == np.float32 and (self.p > 24 or self.emin < -126):
            return x.copy()[()]  # every float32 is a value of this format
        flat = np.ascontiguousarray(x).reshape(-1)
        out = np.empty_like(flat)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for start in range(0, flat.size, CHUNK):
                part = slice(start, start + CHUNK)
                _round_to_multiple(flat[part], self, out[part])
        return out.reshape(x.shape)[()]

    def round_stochastic(self, x, rng):
        """One of the two values around each x, the upper with the probability of x's place between them.

        x, result and errors as in `round`; rng: a numpy.random.Generator.
        Values of the format are kept; the mean over many draws is x.
        Source: Croci et al. 2022, Stochastic rounding: implementation, error analysis and applications, section 2.
        """
        x = _as_float(x)
        flat = x.astype(np.float64).reshape(-1)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            spacing, _may_overflow = _spacing(flat, self)
            steps = flat / spacing
            below = np.floor(steps)
            out = np.copysign((below + (rng.random(flat.size) < steps - below)) * spacing, flat)
            _replace_beyond(out, self)
        return out.astype(x.dtype).reshape(x.shape)[()]


FP64 = Format("FP64", p=53, emin=-1022, emax=1023, bytes=8)
FP32 = Format("FP32", p=24, emin=-126, emax=127, bytes=4)
TF32 = Format("TF32", p=11, emin=-126, emax=127, bytes=4)  # the GPU's own cvt.rna breaks ties away from zero
FP16 = Format("FP16", p=11, emin=-14, emax=15, bytes=2)
BF16 = Format("BF16", p=8, emin=-126, emax=127, bytes=2)
E5M2 = Format("E5M2", p=3, emin=-14, emax=15, bytes=1)
E4M3FN = Format("E4M3FN", p=4, emin=-6, emax=8, bytes=1, largest=448.0, beyond=math.nan)
E3M2FN = Format("E3M2FN", p=3, emin=-2, emax=4, bytes=0.75, beyond=28.0)
E2M3FN = Format("E2M3FN", p=4, emin=0, emax=2, bytes=0.75, beyond=7.5)
E2M1FN = Format("E2M1FN", p=2, emin=0, emax=2, bytes=0.5, beyond=6.0)


def round_scalar(x, fmt):
    """The rounding rule for one Python float, to be read beside `Format.round`; equal to it bit for bit.

    x: a Python float; fmt: the Format. Returns a Python float.
    """
    if x == 0 or math.isnan(x):
        return x
    if abs(x) >= 2 * fmt.max:  # infinity too; so large that scaling below could overflow
        return math.copysign(fmt.beyond, x)
    exponent = math.frexp(x)[1] - 1  # |x| lies in [2**exponent, 2**(exponent + 1))
    spacing = min(max(exponent, fmt.emin), fmt.emax) - fmt.p + 1
    rounded = math.ldexp(round(math.ldexp(x, -spacing)), spacing)  # Python's round breaks ties to even
    return math.copysign(fmt.beyond if abs(rounded) > fmt.max else rounded, x)


def sequential_sum(values, fmt, block=1):
    """Add `values` one by one (or one block sum after another) into a total that is stored in `fmt`.

    values: one-dimensional, taken as float64; fmt: the Format of the total; block: values per block sum.
    The sum of a block is taken in float64 and stored in `fmt`, then added: the total is rounded after every addition,
    which is where it can stagnate. Returns a Python float. Raises ValueError for a block below 1.
    Source: Higham, Accuracy and Stability of Numerical Algorithms, section 4.2.
    """
    if block < 1:
        raise ValueError(f"block is {block}; a whole number of at least 1 is needed")
    values = np.asarray(values, np.float64)
    block_sums = np.add.reduceat(values, np.arange(0, len(values), block)) if len(values) else values
    total = 0.0
    for value in fmt.round(block_sums).tolist():
        total = round_scalar(total + value, fmt)
    return total


def _as_float(x):
    x = np.asarray(x)
    if x.dtype in (np.float32, np.float64):
        return x
    try:
        if x.dtype.kind in "cOSU":
            raise TypeError
        return x.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"a real number or an array of them is rounded, not dtype {x.dtype}") from None


def _spacing(x, fmt):
    """(ulp(|x|), whether any |x| may round past max), in x's dtype.

    ulp is the power of two at or below |x|, held between 2**emin and 2**emax, times 2**(1 - p).
    """
    bits, exponent_mask = (np.int32, 0x7F800000) if x.dtype == np.float32 else (np.int64, 0x7FF << 52)
    spacing = np.empty_like(x, order="C")
    np.bitwise_and(x.view(bits), exponent_mask, out=spacing.view(bits))
    low, high = 2.0**fmt.emin, 2.0**fmt.emax
    top = spacing.max(initial=0)
    if spacing.min(initial=high) < low or top > high:
        np.clip(spacing, low, high, out=spacing)
    spacing *= 2.0 ** (1 - fmt.p)
    return spacing, top >= high


def _round_to_multiple(x, fmt, out):
    """out = x rounded to a whole number of spacings. Scaling by a power of two is exact, so rint rounds once."""
    spacing, may_overflow = _spacing(x, fmt)
    np.divide(x, spacing, out=out)
    np.rint(out, out=out)
    out *= spacing
    if may_overflow:
        _replace_beyond(out, fmt)


def _replace_beyond(out, fmt):
    past = np.abs(out) > fmt.max
    out[past] = np.copysign(fmt.beyond, out[past])
