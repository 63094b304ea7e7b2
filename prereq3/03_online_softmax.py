"""How many passes over a row does softmax need, and must its maximum be the true one?

  demo 1  three softmaxes: naive, safe and online; their passes and memory accesses, counted
  demo 2  the reference: what may be subtracted instead of the maximum, and where it overflows
  demo 3  new maxima: how often the online pass has to rescale its sum
  demo 4  top-k: the largest probabilities in the same pass, without ever storing a softmax

Run it with python3 03_online_softmax.py; edit a demo's defaults, or give --demo 4 --top-k 5. --more adds how far off
the maximum may be in each format.
Conventions: x (n,) a row of scores, y (n,) its softmax, m running max, l running sum of exp(x - m). An access is one
element read or written in memory; m and l are not counted, they stay on chip. From Milakov & Gimelshein 2018.
"""

import _lab  # noqa: F401

import math

import numpy as np

import flash_lab
from console import Column, claim, finding, print_header, print_observations, print_table
from flash_lab import Tally
from language import _
from lesson import lesson, require
from numfmt import BF16, FP16, FP32, FP64
from units import in_u


def naive_softmax(x, y, parts):
    """exp(x) / sum of exp(x): two passes, and exp overflows."""
    l = 0.0
    for part in parts:
        l = l + np.exp(x[part]).sum()
    for part in parts:
        y[part] = np.exp(x[part]) / l


def safe_softmax(x, y, parts):
    """The maximum first: three passes."""
    m, l = -np.inf, 0.0
    for part in parts:
        m = np.maximum(m, x[part].max())
    for part in parts:
        l = l + np.exp(x[part] - m).sum()
    for part in parts:
        y[part] = np.exp(x[part] - m) / l


def online_step(m, l, x):
    """The maximum so far, and the sum brought to it: both from one look at each element."""
    new = np.maximum(m, x.max())
    return new, l * np.exp(m - new) + np.exp(x - new).sum()


def online_softmax(x, y, parts):
    """Maximum and sum in one pass: two passes."""
    m, l = -np.inf, 0.0
    for part in parts:
        m, l = online_step(m, l, x[part])
    for part in parts:
        y[part] = np.exp(x[part] - m) / l


def online_top_k(x, parts, k):
    """The k largest probabilities and their places in one pass; no softmax is stored."""
    m, l, best = -np.inf, 0.0, []
    for part in parts:
        block = x[part]
        m, l = online_step(m, l, block)
        best = the_better(best, block, part, k)
    return [(np.exp(score - m) / l, place) for score, place in best]


def largest(values, parts, k):
    """The k largest values and their places."""
    best = []
    for part in parts:
        best = the_better(best, values[part], part, k)
    return best


def the_better(best, values, part, k):
    """The k largest of the best so far and of a new part, largest first."""
    return sorted([*best, *zip(values.tolist(), range(part.start, part.stop), strict=True)], reverse=True)[:k]


def blocks(n, block):
    return [slice(start, min(start + block, n)) for start in range(0, n, block)]


def run(softmax, x, parts):
    """(y, accesses, reads of x) of one softmax of x, counted."""
    tally, y = Tally(), np.empty_like(x)
    softmax(*tally.count(x=x, y=y), parts)
    return y, tally.elements(), tally.elements("x", "read")


def exact_softmax(x):
    """(softmax in float64, one rounding of it in x's dtype)."""
    y = np.exp(x.astype(np.float64) - x.max())
    return y / y.sum(), np.finfo(x.dtype).eps * y / y.sum()


def error(ratio):
    """An error in u; NaN where the result is."""
    return in_u(ratio) if math.isfinite(ratio) else "NaN"


def demo1_three_softmaxes(seq_len=4096, block=256, seed=0):
    """Three softmaxes: their passes and memory accesses, counted."""
    x, parts = np.random.default_rng(seed).standard_normal(seq_len).astype(np.float32), blocks(seq_len, block)
    ways = {"naive": (_("naive"), naive_softmax), "safe": (_("safe"), safe_softmax),
            "online": (_("online"), online_softmax)}
    shifts = (0, 100, -120)
    rows, passes, accesses, errors = {}, {}, {}, {}
    for key, (name, softmax) in ways.items():
        _y, moved, reads = run(softmax, x, parts)
        passes[key], accesses[key] = reads / seq_len, moved / seq_len
        for shift in shifts:
            with np.errstate(all="ignore"):
                there = x + np.float32(shift)
                errors[key, shift] = flash_lab.worst_in_u(run(softmax, there, parts)[0], *exact_softmax(there))
        rows[key] = (name, passes[key], accesses[key], *(errors[key, shift] for shift in shifts))
    print_header(_("Demo 1. Three softmaxes of a row of {n:,}").format(n=seq_len))
    print_table([_("softmax"), Column(_("passes"), "g"), Column(_("accesses per element"), "g"),
                 *(Column(_("error, x{shift:+d}").format(shift=shift) if shift else _("error"), error)
                   for shift in shifts)], rows, key="softmaxes")
    bound = flash_lab.bound_in_u(x, len(parts))
    print_observations([
        claim(passes == {"naive": 2, "safe": 3, "online": 2} and accesses == {"naive": 3, "safe": 4, "online": 3},
              _("Counted: the safe softmax reads x {safe:g} times, the online one {online:g}, for it takes maximum and "
                "sum in one pass; each writes y once."), **passes),
        claim(max(errors[key, shift] for key in ("safe", "online") for shift in shifts) < bound,
              _("Safe and online agree with FP64 within {bound:.0f} u, wherever x lies (u: one FP32 rounding of y)."),
              bound=bound),
        claim(not any(math.isfinite(errors["naive", shift]) for shift in (100, -120)),
              _("The naive one does not survive a shift: exp(100) is inf in FP32 and exp(-120) is 0, and inf / inf and "
                "0 / 0 are NaN.")),
    ])
    return {Column(_("passes, online"), "g"): passes["online"], Column(_("error, online"), in_u): errors["online", 0]}


def softmax_from(x, reference):
    """(y, largest term, sum l) with the reference subtracted in place of the maximum."""
    with np.errstate(all="ignore"):
        e = np.exp(x - reference)
        return e / e.sum(), e.max(), e.sum()


def demo2_reference(seq_len=1000, seed=0, more=False):
    """The reference: what may be subtracted instead of the maximum."""
    x = np.random.default_rng(seed).standard_normal(seq_len)
    exact, u = exact_softmax(x)
    rows, errors = {}, {}
    for off in (0, 5, -5, 740, 746, -745):
        y, largest, l = softmax_from(x, x.max() + off)
        errors[off] = flash_lab.worst_in_u(y, exact, u)
        rows[off] = (f"m {'+' if off > 0 else '-'} {abs(off)}" if off else "m", largest, l, errors[off])
    print_header(_("Demo 2. The reference: exp(x - r) with another r than the maximum m, in FP64"))
    print_table([_("r"), Column(_("largest term"), ".3g"), Column("l", ".3g"), Column(_("largest error"), error)],
                rows, key="references")
    bound, slope = flash_lab.bound_in_u(x, 1) + 5, errors[740]
    print_observations([
        claim(max(errors[off] for off in (0, 5, -5)) < bound,
              _("m + 5 and m - 5 give the softmax that m gives, within {bound:.0f} u: every term and l have the same "
                "factor. The reference need not be the maximum, only near it."), bound=bound),
        claim(not math.isfinite(errors[-745]) and not math.isfinite(errors[746]),
              _("m - 745 gives NaN, for exp(745) is inf, and so does m + 746, from which every term is 0.")),
        finding(errors[-5] < 0.01 * slope < slope < math.inf,
                _("Before NaN comes a slope: from m + 740 the terms are subnormal or 0, and some of y are {off:.0%} "
                  "off."), off=slope * np.finfo(float).eps),
    ])
    if more:
        windows()
    return {Column("m + 5", error): errors[5], Column("m + 740", error): errors[740]}


def windows():
    """How far from the reference a score may lie, by format."""
    rows, right = {}, True
    for fmt in (FP64, FP32, BF16, FP16):
        top = math.log(fmt.max) + math.log1p(fmt.ulp(fmt.max) / fmt.max / 2)
        subnormal, zero = math.log(fmt.min_normal), math.log(fmt.min_subnormal) - math.log(2)
        rows[fmt.name] = (fmt.name, top, subnormal, zero)
        with np.errstate(all="ignore"):
            at = [float(fmt.round(np.exp(edge + side * 0.02))) for edge in (top, subnormal, zero) for side in (-1, 1)]
        right &= at[0] < at[1] == math.inf and at[2] < fmt.min_normal <= at[3] and at[4] == 0 < at[5]
    print_table([_("format"), Column(_("exp is inf above"), ".2f"), Column(_("subnormal below"), ".2f"),
                 Column(_("0 below"), ".2f")], rows, key="windows")
    print_observations([
        claim(right, _("Tried on both sides of every edge. FP16 allows a reference {fp16:.1f} too low, FP32 "
                       "{fp32:.1f}."), fp16=rows["FP16"][1], fp32=rows["FP32"][1]),
        _("FlashAttention-4 lives on it: while the maximum has grown by no more than a factor 2^8 in exp, it keeps the "
          "stale one, and rescales nothing."),
    ])


def demo3_new_maxima(seq_len=4096, seed=0):
    """New maxima: how often the online pass has to rescale."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((max(1, min(1000, 4_096_000 // seq_len)), seq_len))
    orders = {"random": x, "ascending": np.sort(x[:1]), "descending": np.sort(x[:1])[:, ::-1]}
    new = {key: np.cumsum(many[:, 1:] > np.maximum.accumulate(many, axis=1)[:, :-1], axis=1)
           for key, many in orders.items()}
    rows, expected = {}, {}
    for n in sorted({max(seq_len // 8**i, 2) for i in range(4)} if seq_len > 1 else ()):
        expected[n] = sum(1 / j for j in range(2, n + 1))
        rows[n] = (n, *(float(new[key][:, n - 2].mean()) for key in orders), expected[n])
    print_header(_("Demo 3. New maxima after the first key"))
    print_table([Column(_("keys"), ",d"), Column(_("random, mean of {rows:,}").format(rows=len(x)), ".2f"),
                 Column(_("ascending"), ",.0f"), Column(_("descending"), ",.0f"), Column("H_n - 1", ".2f")], rows,
                key="maxima")
    mean = rows[seq_len][1] if rows else 0.0
    spread = math.sqrt(sum(1 / j - 1 / j**2 for j in range(2, seq_len + 1)) / len(x))
    print_observations([
        finding(rows and abs(mean - expected[seq_len]) < 4 * spread,
                _("In random order the sum is rescaled {mean:.1f} times in {n:,} keys: the j-th is the largest so far "
                  "with probability 1/j, H_n - 1 = {expected:.1f} times in all."),
                mean=mean, n=seq_len, expected=expected.get(seq_len, 0.0)),
        claim(all(row[2] == n - 1 and row[3] == 0 for n, row in rows.items()),
              _("Keys that ascend rescale it at every step, keys that descend never.")),
        claim(all(1 <= l <= j * (1 + j * np.finfo(float).eps) for many in orders.values()
                  for j, l in running_sums(many[0])),
              _("After j keys l lies between 1 and j, in all three: it can neither vanish nor overflow.")),
    ])
    return {Column(_("random"), ".2f"): mean, Column("H_n - 1", ".2f"): expected.get(seq_len, 0.0)}


def running_sums(x):
    """Yield (j, l after j keys), for 2,000 keys at most."""
    m, l = -np.inf, 0.0
    for j in range(min(len(x), 2000)):
        m, l = online_step(m, l, x[j : j + 1])
        yield j + 1, l


def demo4_top_k(seq_len=4096, block=256, top_k=3, seed=0):
    """Top-k: the largest probabilities in the same pass, and no softmax stored."""
    require(top_k <= seq_len, _("top_k is {top_k} and seq_len is {seq_len}; there are not as many scores: try --top-k "
                                "{seq_len}."), top_k=top_k, seq_len=seq_len)
    x, parts = np.random.default_rng(seed).standard_normal(seq_len).astype(np.float32), blocks(seq_len, block)
    ways = {"safe": (_("safe softmax, then top-k"), safe_softmax),
            "online": (_("online softmax, then top-k"), online_softmax),
            "fused": (_("online softmax with top-k"), None)}
    exact, u = (np.sort(values)[::-1][:top_k] for values in exact_softmax(x))
    rows, found, accesses, errors = {}, {}, {}, {}
    for key, (name, softmax) in ways.items():
        tally, y = Tally(), np.empty_like(x)
        counted_x, counted_y = tally.count(x=x, y=y)
        if softmax:
            softmax(counted_x, counted_y, parts)
            found[key] = largest(counted_y, parts, top_k)
        else:
            found[key] = online_top_k(counted_x, parts, top_k)
        accesses[key] = tally.elements() / seq_len
        errors[key] = flash_lab.worst_in_u([p for p, _place in found[key]], exact, u)
        rows[key] = (name, accesses[key], tally.elements(kind="write"), float(found[key][0][0]), errors[key])
    print_header(_("Demo 4. The {k} largest of {n:,} probabilities").format(k=top_k, n=seq_len))
    print_table([_("way"), Column(_("accesses per element"), "g"), Column(_("numbers stored"), ",d"),
                 Column(_("largest p"), ".5f"), Column(_("largest error"), in_u)], rows, key="top_k")
    bound = flash_lab.bound_in_u(x, len(parts))
    places = [place for _score, place in largest(x, parts, top_k)]
    print_observations([
        claim(accesses == {"safe": 5, "online": 4, "fused": 1},
              _("Counted: {safe:g} accesses per element after a safe softmax, {online:g} after an online one, "
                "{fused:g} in one pass: of the softmax only m and l are needed."), **accesses),
        claim(max(errors.values()) < bound and [place for _p, place in found["fused"]] == places,
              _("The probabilities are those of FP64 within {bound:.0f} u, and the pass that stores none has the right "
                "keys."), bound=bound),
    ])
    return {Column(_("accesses, fused"), "g"): accesses["fused"], Column(_("largest p"), ".5f"): rows["fused"][3]}


lesson(demo1_three_softmaxes, demo2_reference, demo3_new_maxima, demo4_top_k)
