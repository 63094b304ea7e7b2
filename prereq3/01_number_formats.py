"""What becomes of a number that is stored in 16 or 8 bits?

  demo 1  the formats side by side: bits, range, spacing, and what lies past the largest
  demo 2  rounding, step by step: whole spacings, the rest, and ties
  demo 3  in NumPy: rounding twice, and the format a result has

Run it with python3 01_number_formats.py; edit a demo's defaults, or give --demo 2 --value 2049. --more adds the small
end of the formats, a value in all of them, and why ties go to the even neighbour.
Conventions: p counts the bits of a significand with its hidden bit; u = 2^-p is the largest relative error of rounding
to nearest; the spacing at x is the distance between the neighbouring values there. E4M3FN and E5M2 are FP8. The module
that all scripts round with is prereq3/numfmt.py.
"""

import _lab  # noqa: F401

import math
import warnings

import ml_dtypes
import numpy as np

from console import Column, claim, finding, print_header, print_observations, print_table
from language import _
from lesson import lesson
from numfmt import BF16, E2M1FN, E2M3FN, E3M2FN, E4M3FN, E5M2, FP16, FP32, FP64, TF32, round_scalar

FIRST_LOOK = (FP32, TF32, FP16, BF16, E4M3FN, E5M2)
ALL = (FP64, *FIRST_LOOK, E3M2FN, E2M3FN, E2M1FN)
CASTS = {FP16: np.float16, BF16: ml_dtypes.bfloat16, E4M3FN: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}


def place(x, fmt):
    """x in whole spacings of the format: (spacing, whole steps below |x|, what is left of a step)."""
    exponent = max(math.frexp(x)[1] - 1, fmt.emin)  # |x| >= 2^exponent, or x is subnormal
    spacing = math.ldexp(1.0, exponent - fmt.p + 1)
    steps = abs(x) / spacing  # exact: the spacing is a power of two
    return spacing, math.floor(steps), steps - math.floor(steps)


def round_to_even(x, fmt):
    """The heart of the script: the nearest value of the format, of two equally near ones that with the last bit 0."""
    spacing, below, rest = place(x, fmt)
    up = rest > 0.5 or (rest == 0.5 and below % 2 == 1)
    rounded = (below + up) * spacing
    return math.copysign(fmt.beyond if rounded > fmt.max else rounded, x)


def readable(x):
    """2^-24 and 1.75 * 2^-24 for what is easier to read so, else up to seven digits."""
    factor, exponent = math.frexp(x)
    factor, exponent = 2 * factor, exponent - 1
    if (factor == 1 and not -5 < exponent < 12) or (0 < abs(x) < 2**-13 and len(f"{factor:g}") < 5):
        return f"2^{exponent}" if factor == 1 else f"{factor:g} * 2^{exponent}"
    return f"{x:,.7g}"


def demo1_side_by_side(more=False):
    """The formats side by side: bits, range, spacing, and what lies past the largest."""
    rows, neighbours, edges = {}, [], {}
    for fmt in ALL if more else FIRST_LOOK:
        gap, top = fmt.ulp(1.0), fmt.ulp(fmt.max)
        neighbours.append(fmt.round(1 + gap) == 1 + gap and fmt.round(1 + gap / 2) == 1 == fmt.round(1 - gap / 4))
        edge = edges[fmt.name] = fmt.max + float(top) / 2  # half a spacing past the largest value
        limit = _("{beyond:g} above {edge:,.6g}") if fmt.round(edge) == fmt.max else _("{beyond:g} from {edge:,.6g}")
        limit = limit.format(beyond=fmt.beyond, edge=edge) if fmt is not FP64 else f"{fmt.beyond:g}"
        rows[fmt.name] = (fmt.name, fmt.p, readable(gap), f"{fmt.max:,.6g}", readable(top), limit)
    fp16, e4m3 = edges[FP16.name], edges[E4M3FN.name]
    print_header(_("Demo 1. The formats side by side"))
    print_table([_("format"), Column("p", ",d"), _("spacing at one"), _("largest"), _("spacing there"),
                 _("past it")], rows, key="formats")
    print_observations([
        claim(all(neighbours), _("One and the next value are 2^(1-p) apart: p bits are all the precision there is.")),
        claim(BF16.emax == FP32.emax > FP16.emax and FP16.p - BF16.p == 3 and FP16.ulp(1.0) * 8 == BF16.ulp(1.0),
              _("BF16 has the exponents of FP32, and {bits} bits fewer than FP16: its values are {times:g} times "
                "as far apart. FP16 ends at {largest:,g}."),
              bits=FP16.p - BF16.p, times=BF16.ulp(1.0) / FP16.ulp(1.0), largest=FP16.max),
        claim(math.isinf(FP16.round(fp16)) and E4M3FN.round(e4m3) == E4M3FN.max
              and math.isnan(E4M3FN.round(np.nextafter(e4m3, np.inf))),
              _("Half a spacing past the largest is a tie: FP16's {fp16:,g} goes to inf, E4M3FN's {e4m3:g} back to "
                "{largest:g}, for that is even. E4M3FN has no inf: what is past it becomes NaN."),
              fp16=fp16, e4m3=e4m3, largest=E4M3FN.max),
    ])
    if more:
        small_end()


def small_end():
    """Where each format ends downwards: with all its bits, and at all."""
    rows, gradual = {}, []
    for fmt in ALL:
        tiny = fmt.min_subnormal
        gradual.append(fmt.round(tiny / 2) == 0 < fmt.round(tiny * 0.75) == tiny and fmt.ulp(0.0) == tiny)
        rows[fmt.name] = (fmt.name, f"{fmt.bytes:g}", f"{fmt.p * math.log10(2):.1f}", readable(fmt.min_normal),
                          readable(tiny), _("yes") if fmt.beyond == fmt.max else _("no"))
    print_table([_("format"), _("bytes"), _("decimal digits"), _("all bits down to"), _("smallest"),
                 _("ends at its largest")], rows, key="small_end")
    print_observations([
        claim(all(gradual), _("Below the smallest value with all its bits a format goes on in steps of its smallest "
                              "one (subnormal numbers); half of that one is a tie, and becomes 0.")),
        claim(E4M3FN.saturating.round(1e6) == E4M3FN.max and math.isnan(E4M3FN.round(1e6)),
              _("FP8 has two modes past its end: ml_dtypes gives {beyond:g}, GPUs saturate and give {largest:g}."),
              beyond=E4M3FN.round(1e6), largest=E4M3FN.max),
    ])


def kept_bits(below, fmt):
    """The whole spacings below a value, in the format's p bits; a dash where they do not fit."""
    return f"{below:b}" if below < 2**fmt.p <= 2**24 else "-"


def way(x, below, rest):
    """Which way a value goes in FP16."""
    if abs(x) > FP16.max:
        return _("past the largest")
    if rest == 0.5:
        return _("tie, up") if below % 2 else _("tie, down")
    return _("exact") if rest == 0 else _("up") if rest > 0.5 else _("down")


def demo2_step_by_step(value=0.1, seed=0, more=False):
    """Rounding, step by step: whole spacings, the rest, and ties."""
    values = {"value": value, "down": 2049.0, "up": 2051.0, "subnormal": 1.75 * 2.0**-24, "vanishes": 2.0**-25}
    rows = {}
    for key, x in values.items():
        spacing, below, rest = place(x, FP16)
        rows[key] = (readable(x), readable(spacing), kept_bits(below, FP16), rest, way(x, below, rest),
                     readable(round_to_even(x, FP16)))
    tried, same = 0, 0
    for fmt in ALL[1:]:
        for x in probes(fmt, np.random.default_rng(seed)):
            results = round_to_even(x, fmt), float(fmt.round(x)), round_scalar(x, fmt)
            same += all(one == results[0] or (one != one and results[0] != results[0]) for one in results)
            tried += 1
    print_header(_("Demo 2. Rounding to FP16, step by step"))
    print_table([_("value"), _("spacing"), _("whole spacings"), Column(_("rest"), ".4f"), _("goes"),
                 _("becomes")], rows, key="steps")
    becomes = {key: round_to_even(x, FP16) for key, x in values.items()}
    error, most = abs(becomes["value"] - value), FP16.u * abs(value)
    print_observations([
        claim(same == tried,
              _("The few lines above agree with the module all scripts round with: {tried:,} values, {formats} "
                "formats, bit for bit."), tried=tried, formats=len(ALL) - 1),
        claim(becomes["down"] == 2048 and becomes["up"] == 2052 and becomes["vanishes"] == 0,
              _("A tie goes to the neighbour whose last bit is 0: 2,049 down to {down:,g}, 2,051 up to {up:,g}, "
                "2^-25 to {vanishes:g}."), **{key: becomes[key] for key in ("down", "up", "vanishes")}),
        finding(0 < error <= most,
                _("{value:g} moves by {error:.1e}, {share:.2f} of the most that rounding may do, u = 2^-{p} of it."),
                value=value, error=error, share=error / most if most else 0.0, p=FP16.p),
    ])
    if more:
        in_every_format(value)
        ties_up_or_even()
    return {_("becomes"): readable(becomes["value"]), Column(_("moves by"), ".1e"): error}


def probes(fmt, rng):
    """Values where rounding can go wrong: of every size, halfway between neighbours, past the largest, tiny."""
    low, high = max(math.log2(fmt.min_subnormal) - 2, -1000), min(fmt.emax + 2, 1000)
    scattered = np.exp2(rng.uniform(low, high, 200)) * rng.choice([-1.0, 1.0], 200)
    kept = fmt.round(scattered[np.abs(scattered) < fmt.max / 2])
    halfway = kept + np.copysign(fmt.ulp(kept) / 2, kept)
    ends = [fmt.max, fmt.max + fmt.ulp(fmt.max) / 2, fmt.min_normal, fmt.min_subnormal / 2, 0.0]
    return [*scattered.tolist(), *halfway.tolist(), *ends]


def in_every_format(value):
    """One value in every format, with its error."""
    rows, within = {}, []
    for fmt in ALL:
        spacing, below, rest = place(value, fmt)
        rounded = float(fmt.round(value))
        normal = fmt.min_normal <= abs(value) <= fmt.max
        relative = abs(rounded - value) / abs(value) if value and math.isfinite(rounded) else None
        within.append(not normal or relative <= fmt.u)
        rows[fmt.name] = (fmt.name, kept_bits(below, fmt), rest, f"{rounded:.7g}", relative, fmt.u)
    print_table([_("format"), _("whole spacings"), Column(_("rest"), ".4f"), _("becomes"),
                 Column(_("relative error"), ".1e"), Column("u", ".1e")], rows, key="every_format")
    print_observations([
        claim(all(within), _("No format moves a value within its range by more than its u, relative to the value.")),
    ])


def ties_up_or_even():
    """Every tie of BF16 between 1 and 2, sent up or to even: what it does to their mean."""
    spacing = BF16.ulp(1.0)
    ties = np.arange(1, 2, spacing) + spacing / 2
    even, up = np.mean(BF16.round(ties) - ties), np.mean(np.floor(ties / spacing + 0.5) * spacing - ties)
    print_table([_("all ties of BF16 from 1 to 2"), Column(_("mean error in spacings"), ".3f")],
                {"even": (_("to even"), even / spacing), "up": (_("up"), up / spacing)}, key="ties")
    print_observations([
        claim(even == 0 and up == spacing / 2,
              _("To even, {n} ties cancel out; always up, sums would drift by half a spacing per tie."), n=len(ties)),
    ])


def demo3_in_numpy(more=False):
    """In NumPy: rounding twice, and the format a result has."""
    cases = {"FP16": (FP16, "1 + 2^-11 + 2^-40", 1 + 2.0**-11 + 2.0**-40),
             "BF16": (BF16, "1 + 2^-8 + 2^-30", 1 + 2.0**-8 + 2.0**-30),
             "E4M3FN": (E4M3FN, "1 + 2^-4 + 2^-30", 1 + 2.0**-4 + 2.0**-30)}
    once, twice, cast, rows = {}, {}, {}, {}
    for key, (fmt, text, x) in cases.items():
        once[key], twice[key] = fmt.round(x), fmt.round(FP32.round(x))
        cast[key] = float(np.float64(x).astype(CASTS[fmt]))
        rows[key] = (key, text, once[key], twice[key], cast[key])
    print_header(_("Demo 3. In NumPy: rounding twice, and the format a result has"))
    print_table([_("format"), _("value, in FP64"), *(Column(title, ".10g") for title in (
        _("rounded once"), _("FP32 first"), _("NumPy's cast")))], rows, key="twice")
    h, b, e = (np.ones(2, dtype) for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn))
    operations = {
        "fp16": ("float16 * 2.5", lambda: h * 2.5),
        "bf16": ("bfloat16 * 2.5", lambda: b * 2.5),
        "matmul": ("bfloat16 @ bfloat16", lambda: b @ b),
        "fp16_past": (_("70,000 as float16"), lambda: np.full(2, 7e4).astype(np.float16)),
        "fp8_past": (_("500 as float8_e4m3fn"), lambda: (500 * e.astype(np.float32)).astype(e.dtype)),
    }
    if more:
        operations |= {
            "fp16_matmul": ("float16 @ float16", lambda: h @ h),
            "mixed": ("float16 * bfloat16", lambda: h * b),
            "whole": ("bfloat16 * 2", lambda: b * 2),
            "exp": ("exp(bfloat16)", lambda: np.exp(b)),
            "sum": ("sum(bfloat16)", lambda: b.sum()),
        }
    results = {key: watched(operation) for key, (_text, operation) in operations.items()}
    print_table([_("operation"), _("result is"), Column(_("value"), ".6g"), _("warns")],
                {key: (operations[key][0], dtype, value, _("yes") if warned else _("no"))
                 for key, (dtype, value, warned) in results.items()}, key="operations")
    print_observations([
        finding(cast == {**twice, "FP16": once["FP16"]} and all(once[key] != twice[key] for key in cases),
                _("Rounded to FP32 first, each becomes a tie and loses its last bit. float16 is rounded once, "
                  "ml_dtypes' types twice: round with numfmt, then cast.")),
        finding([results[key][0] for key in ("fp16", "bf16", "matmul")] == ["float16", "float32", "float32"],
                _("float16 times a Python float stays {fp16}; bfloat16 becomes {bf16}, as in a matmul: a test of BF16 "
                  "may be one of FP32."),
                fp16=results["fp16"][0], bf16=results["bf16"][0]),
        finding(results["fp16_past"][2] and not results["fp8_past"][2] and math.isnan(results["fp8_past"][1]),
                _("Past the largest, float16 warns and gives {fp16:g}; FP8 gives {fp8:g} without a word."),
                fp16=results["fp16_past"][1], fp8=results["fp8_past"][1]),
    ])


def watched(operation):
    """(dtype, first value, whether NumPy warned) of an operation's result."""
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="warn"):
        warnings.simplefilter("always")
        result = operation()
    return str(result.dtype), float(np.ravel(result)[0]), bool(caught)


lesson(demo1_side_by_side, demo2_step_by_step, demo3_in_numpy)
