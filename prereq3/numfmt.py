"""Number formats: what a value becomes when it is stored in FP16, BF16, FP32 or FP64.

Conventions
- A `Format` is pure data; its methods are the one rounding rule of every format here:
  to nearest, ties to even, rounded once, whatever the input's dtype.
- Arrays go in as float32 or float64 and come out in the same dtype, holding only values of the format.
- p is the width of the significand with its hidden bit; u = 2**-p is the unit roundoff.
- NaN stays NaN, -0 stays -0, subnormals are kept, and what rounds past `max` becomes infinity.

Source: IEEE 754-2019, section 4.3.1 (roundTiesToEven) and section 3.3 (formats).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

CHUNK = 1 << 18  # elements rounded at a time: the passes over a chunk stay in the cache


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: p significand bits, exponents from emin to emax."""

    name: str
    p: int
    emin: int
    emax: int
    bytes: int

    @cached_property
    def max(self):
        """The largest finite value."""
        return math.ldexp(2.0 - 2.0 ** (1 - self.p), self.emax)

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

        x: float32 or float64, any shape (other numbers are taken as float64). Returns the same shape;
        at infinity and NaN, and past `max`, the spacing just below `max`.
        """
        x = _as_float(x)
        return _spacing(np.ascontiguousarray(x).reshape(-1), self)[0].astype(np.float64).reshape(x.shape)[()]

    def round(self, x):
        """The value of this format nearest to each x, ties to even, rounded once.

        x: float32 or float64, any shape and strides (float16, bfloat16 and whole numbers are taken as
        float64, which holds them). Returns a new array of x's shape, float32 for float32 and
        float64 otherwise. Past the midpoint above `max` it is infinite; NaN and -0 are kept.
        Raises ValueError for anything that is not a real number.
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


FP64 = Format("FP64", p=53, emin=-1022, emax=1023, bytes=8)
FP32 = Format("FP32", p=24, emin=-126, emax=127, bytes=4)
FP16 = Format("FP16", p=11, emin=-14, emax=15, bytes=2)
BF16 = Format("BF16", p=8, emin=-126, emax=127, bytes=2)


def round_scalar(x, fmt):
    """The rounding rule for one Python float, to be read beside `Format.round`; equal to it bit for bit.

    Returns a Python float.
    """
    if x == 0 or math.isinf(x) or math.isnan(x):
        return x
    exponent = math.frexp(x)[1] - 1  # |x| lies in [2**exponent, 2**(exponent + 1))
    exponent = min(max(exponent, fmt.emin), fmt.emax)
    spacing = exponent - fmt.p + 1
    rounded = math.ldexp(round(math.ldexp(x, -spacing)), spacing)
    return math.copysign(math.inf if abs(rounded) > fmt.max else rounded, x)


def sequential_sum(values, fmt, block=1):
    """Add `values` one by one (or one block sum after another) into a total that is stored in `fmt`.

    values: one-dimensional. The sum of a block is taken in float64 and stored in `fmt`, then added:
    the total is rounded after every addition, which is where it can stagnate. Returns a Python float.
    Source: Higham, Accuracy and Stability of Numerical Algorithms, section 4.2.
    """
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
        past = np.abs(out) > fmt.max
        out[past] = np.copysign(np.inf, out[past])
