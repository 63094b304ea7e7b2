"""Can softmax be computed in one pass, and what does attention gain from it?

  demo 0  by hand: two blocks of two scores, and what goes wrong without each piece
  demo 1  one query, three algorithms: three, two and one pass over the keys
  demo 2  merge order: any order of the parts gives the same result, averages do not
  demo 3  delayed normalisation: the work of FlashAttention-1 and -2
  demo 4  precision: what FP16 and BF16 do to the scores, to P and to the sum l

Run it with python3 01_online_softmax.py; edit a demo's defaults, or give --demo 1 --block 64. --help lists all.
Conventions: q (d,), K (n, d), V (n, d_v); m running max of the scaled scores, l running sum, o running output;
scale 1/sqrt(d); lse natural log. u is one rounding error of the result: eps * sum of p * |v|.
The three- and two-pass algorithms stand in flash_lab/rows.py, the tiled ones in flash_lab/forward.py.
"""

import _lab  # noqa: F401

from functools import reduce
from itertools import pairwise

import numpy as np

import flash_lab
from console import Column, claim, finding, print_header, print_observations, print_table
from flash_lab import EMPTY, State, Tally, accumulate, attention, merge_states, output, partial_state
from language import _
from lesson import lesson, require
from numfmt import BF16, FP16, FP32, sequential_sum
from units import giga, in_u, magnitude, roughly


def one_pass_step(state, S, V, scale):
    """The heart of the lecture: scores S (n,) and values V (n, d_v) join the state (m, l, o)."""
    m = np.maximum(state.m, np.max(scale * S))
    reference = 0.0 if m == -np.inf else m  # no key seen yet: (-inf) - (-inf) would be NaN
    P = np.exp(scale * S - reference)
    alpha = np.exp(state.m - reference)  # brings the old l and o to the new max
    return State(m, alpha * state.l + P.sum(), alpha * state.o + P @ V)


def step_without(*forgotten):
    """The same step with "alpha on l", "alpha on o" or "guard" left out: the classic slips."""

    def step(state, S, V, scale):
        m = np.maximum(state.m, np.max(scale * S))
        reference = 0.0 if m == -np.inf and "guard" not in forgotten else m
        P, alpha = np.exp(scale * S - reference), np.exp(state.m - reference)
        alpha_l, alpha_o = (1.0 if name in forgotten else alpha for name in ("alpha on l", "alpha on o"))
        return State(m, alpha_l * state.l + P.sum(), alpha_o * state.o + P @ V)

    return step


def one_pass(q, K, V, block):
    """Attention of one query with `one_pass_step`. Returns (o, lse)."""
    variant = flash_lab.Variant("one pass", one_pass_step, finish=flash_lab.to_output_lse)
    return flash_lab.attention_1pass(q, K, V, block, variant=variant)


def blocks_of(scores, V, block):
    return [(scores[a : a + block], V[a : a + block]) for a in range(0, len(scores), block)]


# ------------------------------------------------------------------------------------------------ demo 0

def demo0_by_hand():
    """By hand: two blocks of two scores, and the classic slips."""
    plain = np.array([1.0, 3.0, 2.0, 5.0]), np.array([[10.0], [20.0], [30.0], [40.0]])
    masked = np.array([-np.inf, -np.inf, 0.0, np.log(3)]), np.array([[10.0], [20.0], [1.0], [2.0]])
    tiles, trace = blocks_of(*plain, 2), {}
    for (S, _V), (old, new) in zip(tiles, pairwise(accumulate(tiles, one_pass_step, 1.0)), strict=True):
        name = f"{S[0]:g}, {S[1]:g}"
        trace[name] = (name, new.m, np.exp(old.m - new.m), new.l, new.o[0], output(new)[0])

    def results(step):
        with np.errstate(invalid="ignore"):
            return [output([*accumulate(blocks_of(*row, 2), step, 1.0)][-1])[0] for row in (plain, masked)]

    averages = [np.mean([output(partial_state(*tile)) for tile in blocks_of(*row, 2)]) for row in (plain, masked)]
    ways = {
        "online": (_("online step"), *results(one_pass_step)),
        "never": (_("never rescaled"), *results(step_without("alpha on l", "alpha on o"))),
        "only_l": (_("only l rescaled"), *results(step_without("alpha on o"))),
        "only_o": (_("only o rescaled"), *results(step_without("alpha on l"))),
        "averages": (_("average of the block averages"), *averages),
        "no_guard": (_("no guard for -inf"), *results(step_without("guard"))),
    }
    print_header(_("Demo 0. By hand: scores [1, 3 | 2, 5], V = [10, 20 | 30, 40]"))
    print_table([_("block"), Column("m", ".0f"), Column("α", ".3f"), Column("l", ".3f"), Column("o", ".2f"),
                 Column("o / l", ".2f")], trace, key="by_hand")
    print_table([_("how"), Column("1, 3 | 2, 5", ".2f"), Column("-inf, -inf | 0, ln 3", ".2f")], ways, key="slips")

    online, never, only_l = (ways[key][1] for key in ("online", "never", "only_l"))
    exact = attention(plain[0][None], np.eye(4), plain[1], scale=1.0)[0].item()
    print_observations([
        claim(np.isclose(online, exact, rtol=1e-12) and 10 < never < 40 < only_l,
              _("Two blocks give {online:.2f}, as one softmax does. Never rescaled, {never:.2f} looks plausible; "
                "only l rescaled, {only_l:.2f} is above the largest V."), online=online, never=never, only_l=only_l),
        claim(np.isclose(ways["online"][2], 1.75) and np.isnan(ways["no_guard"][2]),
              _("With a masked first block, {right:.2f}; without the guard (-inf) - (-inf) gives {wrong}."),
              right=ways["online"][2], wrong=ways["no_guard"][2]),
        claim(np.isinf(FP16.round(np.exp(12.0))) and np.isinf(FP32.round(np.exp(89.0))) and online < 40,
              _("Why the max goes first: exp(12) overflows in FP16, exp(89) in FP32; exp(score - m) is at most 1.")),
    ])


# ------------------------------------------------------------------------------------------------ demo 1

def demo1_three_ways(seq_len=4096, head_dim=64, block=256, seed=0, more=False):
    """One query, three algorithms: what each reads, holds, and gets right."""
    rng = np.random.default_rng(seed)
    shapes = (head_dim, (seq_len, head_dim), (seq_len, head_dim))
    q, K, V = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    exact, unit = flash_lab.exact_and_unit(q[None], K, V)
    rows = {}
    for key, name, algorithm in (("three", _("three passes"), flash_lab.attention_3pass),
                                 ("two", _("two passes"), flash_lab.attention_2pass),
                                 ("one", _("one pass"), one_pass)):
        tally = Tally()
        o, _lse = algorithm(q, *tally.count(K=K, V=V), block)
        stored = tally.elements("s", "write") + tally.elements("p", "write")
        in_flight = max(access.elements // head_dim for access in tally.log if access.array == "K")
        rows[key] = (name, tally.elements("K") / K.size, tally.elements("s") + tally.elements("p"),
                     tally.elements(), stored + in_flight + o.size + 2, flash_lab.worst_in_u(o, exact, unit))
    print_header(_("Demo 1. One query, three algorithms"))
    print_table([_("algorithm"), Column(_("K read"), "{:.0f}x"), Column(_("s and p moved"), ",d"),
                 Column(_("all moved"), ",d"), Column(_("held at once"), ",d"), Column(_("largest error"), in_u)],
                rows, key="three_ways")

    scale, trace = head_dim**-0.5, {}
    tiles = list(flash_lab.row_tiles(q, K, V, block))
    for (S, _V), (old, new) in zip(tiles, pairwise(accumulate(tiles, one_pass_step, scale)), strict=True):
        seen = min((len(trace) + 1) * block, seq_len)
        trace[seen] = (seen, scale * np.max(S), new.m, np.exp(float(old.m) - float(new.m)), new.l)
    first_look = [*trace][:3] + [*trace][3:][-1:]
    print_table([Column(_("keys seen"), ",d"), Column(_("block max"), ".3f"), Column("m", ".3f"), Column("α", ".4f"),
                 Column("l", ".3f")], trace if more else {seen: trace[seen] for seen in first_look}, key="trace")

    bound = flash_lab.bound_in_u(scale * (K @ q), len(tiles))
    rescaled = sum(row[3] < 1 for row in trace.values()) - 1
    new_maxima = np.unique(np.maximum.accumulate([row[1] for row in trace.values()])).size - 1
    print_observations([
        claim(max(row[5] for row in rows.values()) < bound,
              _("All three agree with float64 within {bound:.0f} u, the bound for float32."), bound=bound),
        claim(rows["two"][1] == 2 and rows["one"][3] < min(rows["two"][3], rows["three"][3]),
              _("One pass moves least, but only {saved:.1%} less than three: one query has to read all K and V."),
              saved=1 - rows["one"][3] / rows["three"][3]),
        claim(rescaled == new_maxima and rows["one"][4] == min(block, seq_len) + head_dim + 2,
              _("l and o were rescaled (α < 1) at {rescaled} of {blocks} blocks; held: block + d + 2 numbers."),
              rescaled=rescaled, blocks=len(trace)),
    ])
    if more:
        share_keys(seq_len, head_dim, block, rng)
    return {_("blocks"): len(trace), _("rescaled"): rescaled, Column(_("one pass holds"), ",d"): rows["one"][4],
            Column(_("largest error"), in_u): rows["one"][5], Column("l", ".3f"): trace[seq_len][4]}


def share_keys(n, d, block, rng):
    """What one query cannot show: K and V read once for many queries (FP16 bytes, by formula and counted)."""
    rows = {block_q: (_("{n} at a time").format(n=block_q), flash_lab.traffic_tiled(n, n, d, d, block_q))
            for block_q in (1, 32, 128)}
    rows["full"] = (_("full matrix, fused softmax"), flash_lab.traffic_full_matrix(n, n, d, d))
    rows["three_pass"] = (_("full matrix, three-pass rows"), flash_lab.traffic_full_matrix(n, n, d, d, 6))
    mib = {key: (name, FP16.bytes * sum(moved.values()) / 2**20) for key, (name, moved) in rows.items()}
    print_table([_("{n:,} queries").format(n=n), Column(_("MiB moved in FP16"), ",.1f")], mib, key="share_keys")

    small, equal = min(n, 160), True
    Q, K, V = rng.standard_normal((3, small, d)).astype(np.float32)
    for block_q in (1, 32, 128):
        tally = Tally()
        flash_lab.flash_forward(*tally.count(Q=Q, K=K, V=V), block_q=block_q, block_k=block)
        moved = flash_lab.traffic_tiled(small, small, d, d, block_q)
        equal &= moved == {name: tally.elements(name) for name in moved}
    print_observations([
        claim(equal, _("Counted in a run with {small} queries, what moves equals the formula exactly."), small=small),
        finding(mib[128][1] < mib["full"][1] < mib[1][1],
                _("Online softmax makes tiles possible; sharing K and V among a tile's queries is what saves: "
                  "{one:,.0f} MiB one at a time, {full:,.0f} with the full matrix, {shared:,.0f} with 128."),
                one=mib[1][1], full=mib["full"][1], shared=mib[128][1]),
    ])


# ------------------------------------------------------------------------------------------------ demo 2

def demo2_merge_order(seq_len=3000, head_dim=32, segments=12, seed=1):
    """Merge order: fold, tree, shuffle and (o, lse) agree; averaging the parts does not."""
    require(segments <= seq_len, _("segments is {segments} and seq_len is {seq_len}; a segment needs at least one key: "
                                   "try --segments {seq_len}."), segments=segments, seq_len=seq_len)
    rng = np.random.default_rng(seed)
    scores, V = rng.standard_normal(seq_len), rng.standard_normal((seq_len, head_dim))
    cuts = np.sort(rng.choice(seq_len - 1, segments - 1, replace=False) + 1) if segments > 1 else []
    lengths = np.diff([0, *cuts, seq_len])
    parts = [partial_state(S, v) for S, v in zip(np.split(scores, cuts), np.split(V, cuts), strict=True)]
    outputs = np.array([output(part) for part in parts])
    as_pairs = [flash_lab.from_output_lse(*flash_lab.to_output_lse(part)) for part in parts]
    results = {
        "fold": (_("left to right"), output(reduce(merge_states, parts))),
        "tree": (_("as a tree"), output(flash_lab.merge_tree(parts))),
        "shuffled": (_("shuffled"), output(reduce(merge_states, [parts[i] for i in rng.permutation(segments)]))),
        "output_lse": (_("from (o, lse) of each part"), output(reduce(merge_states, as_pairs))),
        "mean": (_("outputs averaged"), outputs.mean(axis=0)),
        "weighted": (_("outputs averaged by length"), lengths @ outputs / seq_len),
    }
    whole = output(partial_state(scores, V))
    unit = np.finfo(np.float64).eps * output(partial_state(scores, np.abs(V)))
    rows = {key: (name, flash_lab.worst_in_u(o, whole, unit), float(np.max(np.abs(o - whole))))
            for key, (name, o) in results.items()}
    print_header(_("Demo 2. Merge order: {n} segments of {low} to {high:,} keys").format(
        n=segments, low=lengths.min(), high=lengths.max()))
    print_table([_("how the parts are combined"), Column(_("largest error"), in_u), Column(_("absolute"), magnitude)],
                rows, key="orders")

    a, b, c = (partial_state(rng.standard_normal((1000, 8)), rng.standard_normal((8, 4))) for _part in "abc")
    laws = {
        "commutative": ("merge(a, b) = merge(b, a)", merge_states(a, b), merge_states(b, a)),
        "neutral": ("merge(a, empty) = a", merge_states(a, EMPTY), a),
        "associative": ("merge(merge(a, b), c) = merge(a, merge(b, c))",
                        merge_states(merge_states(a, b), c), merge_states(a, merge_states(b, c))),
    }
    differ = {key: (law, int(np.sum(np.any(left.o != right.o, axis=-1) | (left.l != right.l) | (left.m != right.m))))
              for key, (law, left, right) in laws.items()}
    print_table([_("law, tried 1,000 times"), Column(_("differs in a bit"), roughly)], differ, key="laws")

    bound = 2 * flash_lab.bound_in_u(scores, segments)  # both sides of the comparison are rounded
    agree = max(rows[key][1] for key in ("fold", "tree", "shuffled", "output_lse"))
    print_observations([
        claim(agree < bound, _("Every order of merging gives the row's result within {bound:.0f} u."), bound=bound),
        finding(min(rows["mean"][1], rows["weighted"][1]) > 1000 * bound,
                _("Averaging outputs is wrong, by length too: a part's weight is its l at the common max.")),
        claim(differ["commutative"][1] == differ["neutral"][1] == 0 < differ["associative"][1],
              _("In floats merging is exactly commutative, but associative only up to rounding.")),
    ])
    return {Column(_("merged"), in_u): agree, Column(_("averaged"), in_u): rows["mean"][1],
            Column(_("averaged by length"), in_u): rows["weighted"][1]}


# ------------------------------------------------------------------------------------------------ demo 3

# What one lone operation and one exp cost in matmul FLOPs. FlashAttention-2, section 3.1: 312 / 19.5 TFLOPS on an A100
# is 16. But the 19.5 counts an FMA as two operations, and exp has 16 results per clock and SM where FP32 has 64
# (CUDA C++ Programming Guide, throughput of native arithmetic instructions).
COSTS = {"16x": (16, 16), "32x": (32, 128)}


def demo3_delayed_normalisation(seq_len=4096, head_dim=128, block=128, seed=3):
    """Delayed normalisation: the work of FlashAttention-1 and -2."""
    work = {name: flash_lab.work_formula(name, seq_len, seq_len, head_dim, head_dim, block) for name in ("FA1", "FA2")}
    rows = {name: (name, w["matmul"], w["max"] + w["subtract"] + w["sum"], w["exp"], w["rescale"], w.non_matmul())
            for name, w in work.items()}
    print_header(_("Demo 3. Delayed normalisation: divide once, at the end"))
    print_table(["GFLOP", *(Column(title, giga) for title in (_("matmul"), _("max, subtract, sum"), "exp",
                                                             _("rescale"), _("non-matmul")))], rows, key="work")

    ratios = {name: [model_time(w, *COSTS[model]) for model in COSTS] for name, w in work.items()}
    shares = {name: (name, w.non_matmul() / w["matmul"], *(x for r in ratios[name] for x in (r, r / (1 + r))))
              for name, w in work.items()}
    of_matmul, of_total = _("{cost}: of the matmul's time"), _("{cost}: of the total time")
    titles = [text.format(cost=cost) for cost in ("16x", "32x/128x") for text in (of_matmul, of_total)]
    print_table([_("non-matmul"), *(Column(title, ".1%") for title in (_("of the matmul FLOPs"), *titles))], shares,
                key="shares")

    counted, agree = run_small(head_dim, block, seed)
    gain = [(1 + one) / (1 + two) for one, two in zip(ratios["FA1"], ratios["FA2"], strict=True)]
    print_observations([
        claim(counted and agree, _("Run on a small problem, both do exactly the work of the formula, and agree.")),
        finding(gain[0] > 1.05,
                _("Dividing once buys {paper:.2f}x if non-matmul work costs 16x; {gpu:.2f}x if a lone operation costs "
                  "32x (half an FMA) and an exp 128x."), paper=gain[0], gpu=gain[1]),
        _("The rest of FlashAttention-2's gain: query blocks in parallel, warps split by query, causal tiles skipped."),
    ])
    return {Column(_("gain at 16x"), "{:.2f}x"): gain[0], Column(_("gain at 32x/128x"), "{:.2f}x"): gain[1],
            **{Column(_("{name}: non-matmul").format(name=name), ".1%"): row[1] for name, row in shares.items()}}


def model_time(work, lone, exp):
    """Time of the non-matmul work as a multiple of the matmul's."""
    return (lone * (work.non_matmul() - work["exp"]) + exp * work["exp"]) / work["matmul"]


def run_small(head_dim, block, seed):
    """Whether FA1 and FA2, run on a small problem, did the work of the formula; whether their results agree."""
    n_q, n_k, d, block_k = 48, 112, min(head_dim, 16), min(block, 32)
    rng = np.random.default_rng(seed)
    QKV = [rng.standard_normal((n, d)).astype(np.float32) for n in (n_q, n_k, n_k)]
    exact, unit = flash_lab.exact_and_unit(*QKV)
    counted, errors = [], []
    for variant in (flash_lab.FA1, flash_lab.FA2):
        work = flash_lab.Work()
        O, _lse = flash_lab.flash_forward(*map(work.array, QKV), block_q=20, block_k=block_k, variant=variant)
        formula = flash_lab.work_formula(variant.name, n_q, n_k, d, d, block_k)
        counted.append(formula == {kind: work[kind] for kind in formula})
        errors.append(flash_lab.worst_in_u(O, exact, unit))
    return all(counted), max(errors) < flash_lab.bound_in_u(QKV[0] @ QKV[1].T / np.sqrt(d), -(-n_k // block_k))


# ------------------------------------------------------------------------------------------------ demo 4

def rounded_attention(s, V, scores=FP32, P=FP32, l_from=None, out=FP32):
    """One row, every key added in FP32 one after another, with more rounding where a format is given.

    s (n,) scaled scores, V (n, d_v), both float32; l_from: the format of the terms of l, that of P by default.
    """
    s = scores.round(s)
    p = np.exp(s - s.max())
    l = np.add.accumulate((l_from or P).round(p))[-1]
    o = np.add.accumulate(P.round(p)[:, None] * V, axis=0)[-1]
    return out.round(o / l)


def demo4_precision(seq_len=8192, head_dim=64, l_block=64, v_mean=0.0, sharpness=1.0, seed=2, more=False):
    """Precision: one rounding at a time, and the sum l in 16 bits."""
    rng = np.random.default_rng(seed)
    q, K, V = rng.standard_normal(head_dim), *rng.standard_normal((2, seq_len, head_dim))
    s, V = sharpness * (K @ q) / np.sqrt(head_dim), V + v_mean

    def errors(places, values=V, **fixed):
        """The largest error over the largest |output|, with FP16 and with BF16 in these places."""
        exact = output(partial_state(s, values))
        row = s.astype(np.float32), values.astype(np.float32)
        results = (rounded_attention(*row, **dict.fromkeys(places, fmt), **fixed) for fmt in (FP16, BF16))
        return [float(np.max(np.abs(o - exact)) / np.max(np.abs(exact))) for o in results]

    rows = {
        "none": (_("nothing: all in FP32"), *errors([])),
        "scores": (_("scores"), *errors(["scores"])),
        "p": (_("P, and l from the rounded P"), *errors(["P"])),
        "p_only": (_("P, but l from the unrounded P"), *errors(["P"], l_from=FP32)),
        "output": (_("output"), *errors(["out"])),
    }
    if more:
        rows["p_shifted"] = (_("P, and l from it, with 10 added to V"), *errors(["P"], values=V + 10))
    print_header(_("Demo 4. Precision: one rounding at a time"))
    print_table([_("rounded (largest error / largest |output|)"), Column("FP16", magnitude),
                 Column("BF16", magnitude)], rows, key="roundings")

    p = np.exp(s - s.max())
    true, sums = float(p.sum()), {}
    for block in sorted({1, l_block, *((4, 16, 64, 128, 256) if more else ())}):
        totals = [sequential_sum(p, fmt, block) for fmt in (FP16, BF16)]
        sums[block] = (block, *(x for total in totals for x in (total, total / true - 1)))
    titles = [Column(title.format(fmt=fmt.name), how) for fmt in (FP16, BF16)
              for title, how in ((_("l in {fmt}"), ".1f"), (_("relative error"), "+.2%"))]
    print_table([Column(_("terms per addition"), ",d"), *titles], sums, key="sum_of_l")

    fp16, bf16 = rows["p"][1:]
    stuck, ulp = sums[1][3], BF16.ulp(sums[1][3])
    print_observations([
        finding(bf16 > 2 * fp16,
                _("Rounding P to BF16 costs {ratio:.0f} times as much as to FP16: 8 significand bits, not 11."),
                ratio=bf16 / fp16 if fp16 else np.inf),
        finding(sums[1][4] < sums[1][2] < -0.1 and BF16.round(stuck + 0.49 * ulp) == stuck,
                _("One by one l stops growing, at {stuck:.0f} of {true:.1f} in BF16: the spacing there is {ulp:g}, and "
                  "a term below half of it changes nothing."), stuck=stuck, true=true, ulp=ulp),
        finding(abs(sums[l_block][4]) < abs(sums[1][4]) / 4,
                _("Added by blocks of {block}, it is off by {off:.1%}."), block=l_block, off=abs(sums[l_block][4])),
    ])
    return {Column(_("l in BF16"), "+.2%"): sums[l_block][4], Column(_("l in FP16"), "+.2%"): sums[l_block][2],
            Column(_("P in BF16"), magnitude): bf16, Column(_("P in FP16"), magnitude): fp16}


lesson(demo0_by_hand, demo1_three_ways, demo2_merge_order, demo3_delayed_normalisation, demo4_precision)
