"""Why does a sum stop growing in 16 bits, and what helps?

  demo 1  stagnation (prerequisite 3, section 4.3): ones added one by one, and why np.sum hides it
  demo 2  remedies: the sum l of a softmax by blocks, pairwise, with Kahan's correction, rounded at random
  demo 3  error growth: how the error grows with the number of terms

Run it with python3 02_summation.py; edit a demo's defaults, or give --demo 2 --l-block 16. --more adds other blocks.
Conventions: u = 2^-p is the largest relative error of one rounding to nearest; what an addition rounds to is a function
handed in, so that the same lines add in any format. The formats stand in numfmt.py.
"""

import _lab  # noqa: F401

import math
from itertools import zip_longest

import ml_dtypes
import numpy as np

from console import Column, claim, finding, print_header, print_observations, print_table
from language import _
from lesson import lesson
from numfmt import BF16, E4M3FN, E5M2, FP16, FP32, round_scalar
from units import in_u


def one_by_one(values, rnd):
    """The plain loop: the total is rounded after every addition."""
    total = 0.0
    for value in values:
        total = rnd(total + value)
    return total


def by_blocks(values, rnd, block):
    """Blocks are added elsewhere, in more bits; one by one go only their sums into the total."""
    return one_by_one([rnd(math.fsum(values[a : a + block])) for a in range(0, len(values), block)], rnd)


def pairwise(values, rnd):
    """Neighbours, then neighbours of those: a tree, and only its depth in roundings for each term."""
    while len(values) > 1:
        values = [rnd(a + b) for a, b in zip_longest(values[::2], values[1::2], fillvalue=0.0)]
    return values[0]


def kahan(values, rnd):
    """What an addition loses is worked out, and taken from the next term (Kahan 1965)."""
    total = lost = 0.0
    for value in values:
        y = rnd(value - lost)
        new = rnd(total + y)
        lost = rnd(rnd(new - total) - y)  # exact arithmetic would give 0
        total = new
    return total


def to(fmt):
    """Rounding to this format, one number at a time."""
    return lambda x: round_scalar(x, fmt)


def demo1_stagnation(terms=4096):
    """Stagnation: ones added one by one, and why np.sum hides it."""
    formats = {FP32: np.float32, FP16: np.float16, BF16: ml_dtypes.bfloat16, E4M3FN: ml_dtypes.float8_e4m3fn,
               E5M2: ml_dtypes.float8_e5m2}
    ones, sums, numpys, rows = [1.0] * terms, {}, {}, {}
    for fmt, dtype in formats.items():
        sums[fmt], numpys[fmt] = one_by_one(ones, to(fmt)), float(np.sum(np.ones(terms, dtype)))
        rows[fmt.name] = (fmt.name, fmt.p, sums[fmt], fmt.ulp(sums[fmt]), numpys[fmt])
    print_header(_("Demo 1. {n:,} ones, added one by one").format(n=terms))
    print_table([_("format"), Column("p", ",d"), Column(_("sum"), ",g"), Column(_("spacing there"), "g"),
                 Column("np.sum", ",g")], rows, key="ones")
    print_observations([
        claim(all(total == min(terms, 2**fmt.p) for fmt, total in sums.items()),
              _("A sum of ones stops at 2^p, {fp16:,} in FP16 and {bf16} in BF16: there values are 2 apart, one more "
                "is a tie, and goes back to the even sum."), fp16=2**FP16.p, bf16=2**BF16.p),
        finding(numpys[FP16] == terms > sums[FP16] and numpys[BF16] == sums[BF16] < terms,
                _("np.sum hides it in float16, which it adds pairwise, and shows it in bfloat16: {fp16:,g} and "
                  "{bf16:,g} of {n:,}. A kernel's loop adds one by one."),
                fp16=numpys[FP16], bf16=numpys[BF16], n=terms),
    ])
    return {Column(name, ",g"): row[2] for name, row in rows.items()}


def terms_of_l(seq_len, d, seed):
    """exp(s - max s) for one query and seq_len keys of size d, as in lecture 11, script 01, demo 4."""
    rng = np.random.default_rng(seed)
    q, K = rng.standard_normal(d), rng.standard_normal((seq_len, d))
    s = K @ q / math.sqrt(d)
    return np.exp(s - s.max())


def demo2_remedies(seq_len=8192, head_dim=64, l_block=64, seed=2, more=False):
    """Remedies: the sum l by blocks, pairwise, with Kahan's correction, rounded at random."""
    p = terms_of_l(seq_len, head_dim, seed)
    true, rows, counts, l, off = math.fsum(p), {}, {}, {}, {}
    ways = {"one": (_("one by one"), one_by_one), **{
        block: (_("blocks of {n:,}").format(n=block), lambda v, rnd, n=block: by_blocks(v, rnd, n))
        for block in sorted({l_block, *((4, 16, 64, 128, 256) if more else ())})},
        "pairwise": (_("pairwise"), pairwise), "kahan": (_("Kahan's correction"), kahan)}
    for key, (name, add) in ways.items():
        for fmt in (FP16, BF16):
            calls = []
            l[key, fmt] = add(fmt.round(p).tolist(), lambda x, fmt=fmt, calls=calls: calls.append(x) or to(fmt)(x))
            off[key, fmt], counts[key] = l[key, fmt] / true - 1, len(calls)
        rows[key] = (name, counts[key] / seq_len, l[key, FP16], off[key, FP16], l[key, BF16], off[key, BF16])
    spread = {}
    for fmt in (FP16, BF16):
        rng, tenfold = np.random.default_rng(seed), np.repeat(fmt.round(p)[:, None], 10, axis=1)
        runs = one_by_one(tenfold, lambda x, fmt=fmt, rng=rng: fmt.round_stochastic(x, rng))
        l["random", fmt], spread[fmt] = np.mean(runs), np.std(runs, ddof=1) / true
        off["random", fmt] = l["random", fmt] / true - 1
    rows["random"] = (_("at random, ten runs"), 1.0, l["random", FP16], off["random", FP16], l["random", BF16],
                      off["random", BF16])
    fp32 = one_by_one(FP32.round(p).tolist(), to(FP32))
    rows["fp32"] = (_("one by one in FP32"), 1.0, fp32, fp32 / true - 1, fp32, fp32 / true - 1)
    print_header(_("Demo 2. Remedies: the sum l of {n:,} terms, {true:.1f}").format(n=seq_len, true=true))
    titles = [Column(title.format(fmt=fmt.name), how) for fmt in (FP16, BF16)
              for title, how in ((_("l in {fmt}"), ".1f"), (_("error"), signed_percent))]
    print_table([_("added"), Column(_("roundings a term"), ".2f"), *titles], rows, key="remedies")
    within = max(abs(off[key, BF16]) for key in ("pairwise", "kahan"))
    print_observations([
        finding(off["one", BF16] < off["one", FP16] < -0.1 and all(
                    abs(off[l_block, fmt]) < abs(off["one", fmt]) / 4 for fmt in (FP16, BF16)),
                _("One by one, l stagnates at {fp16:.0f} in FP16 and {bf16:.0f} in BF16. The sums of blocks are large "
                  "enough to count."), fp16=l["one", FP16], bf16=l["one", BF16]),
        finding(within < 0.02 and counts["kahan"] == 4 * seq_len,
                _("Pairwise and Kahan's correction stay within {within:.2%} in BF16: {kahan:.0f} roundings per term "
                  "buy what a better order gives for one."), within=within, kahan=counts["kahan"] / seq_len),
        finding(abs(off["random", BF16]) < 2 * spread[BF16] < 0.2,
                _("Rounded up or down at random, in proportion, BF16's l is right on average: {off:+.1%} with a spread "
                  "of {spread:.1%} per run. Kernels keep l in FP32."), off=off["random", BF16], spread=spread[BF16]),
    ])
    shown = {_("one by one"): "one", _("blocks"): l_block, _("pairwise"): "pairwise", "Kahan": "kahan"}
    return {Column(title, signed_percent): off[key, BF16] for title, key in shown.items()}


def demo3_error_growth(terms=65536, seed=0):
    """Error growth: how the error grows with the number of terms."""
    values = np.random.default_rng(seed).random((terms, 32), np.float32)  # 32 sums at once, of terms from 0 to 1
    adders = {"one": one_by_one, "pairwise": pairwise, "kahan": kahan}
    sizes = sorted({max(terms // 4**i, 1) for i in range(5)})
    rows, typical, within = {}, {key: {} for key in adders}, dict.fromkeys(adders, True)
    for n in sizes:
        exact = values[:n].sum(axis=0, dtype=np.float64)
        worst = {"one": n - 1, "pairwise": math.ceil(math.log2(n)), "kahan": 2 + 2 * n * FP32.u}
        for key, add in adders.items():
            error = np.abs(add(list(values[:n]), lambda x: x) / exact - 1) / FP32.u  # float32 adds in FP32 by itself
            within[key] &= bool(np.max(error) <= worst[key] * (1 + 2 * n * FP32.u) + 1e-6)
            typical[key][n] = float(np.sqrt(np.mean(error**2)))
        rows[n] = (n, *(typical[key][n] for key in ("kahan", "pairwise", "one")), "#" * doublings(typical["one"][n]))
    print_header(_("Demo 3. Error growth in FP32: typical error of {runs} sums").format(runs=values.shape[1]))
    print_table([Column(_("terms"), ",d"), Column("Kahan", in_u), Column(_("pairwise"), in_u),
                 Column(_("one by one"), in_u), _("one by one: # for each doubling")], rows, key="growth")
    first, last = sizes[0], sizes[-1]
    grows = {key: typical[key][last] / typical[key][first] if typical[key][first] else math.inf for key in adders}
    print_observations([
        claim(all(within.values()),
              _("No sum is further off than the bounds allow: n - 1 roundings one by one, log2 n pairwise, two with "
                "Kahan's correction (Higham, section 4.2).")),
        finding(4 < grows["one"] < last / first and typical["pairwise"][last] < 4 and typical["kahan"][last] < 1,
                _("One by one, {times:,.0f} times the terms have {grows:,.0f} times the error. Pairwise it is "
                  "{pairwise:.1f} u, with Kahan's correction {kahan:.1f} u: hardly more than the last rounding."),
                times=last / first, grows=grows["one"], pairwise=typical["pairwise"][last],
                kahan=typical["kahan"][last]),
    ])
    return {Column(_("one by one"), in_u): typical["one"][last], Column(_("pairwise"), in_u): typical["pairwise"][last]}


def signed_percent(x):
    """+0.78%, and 0.00% without a sign."""
    return f"{x:+.2%}" if abs(x) >= 5e-5 else "0.00%"


def doublings(error):
    """How often 1 u has doubled to make this error."""
    return max(0, round(math.log2(error))) if error > 0 else 0


lesson(demo1_stagnation, demo2_remedies, demo3_error_growth)
