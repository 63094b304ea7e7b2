"""Can softmax be computed in one pass, and what does attention gain from it?

  demo 0  by hand: two blocks of two scores, and what goes wrong without each piece
  demo 1  one query, three algorithms: three, two and one pass over the keys
  demo 2  merge order: any order of the parts gives the same result, averages do not
  demo 3  delayed normalisation: the work of FlashAttention-1 and -2
  demo 4  precision: what FP16 and BF16 do to the scores, to P and to the sum l

Run it with python3 01_online_softmax.py; edit a demo's defaults, or give --demo 1 --block 64. --help lists all.
Conventions: q (d,), K (n, d), V (n, d_v); m running max of the scaled scores, l running sum, o running output;
scale 1/sqrt(d); lse natural log. u is one rounding error of the result, eps * sum of p * |v|; results are held to
(8 + blocks + max |s - m|) u. The algorithms in three and two passes stand in flash_lab/rows.py. _( ) is gettext's.
"""

import _lab  # noqa: F401

from functools import reduce

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


def split(scores, V, block):
    return [(scores[a : a + block], V[a : a + block]) for a in range(0, len(scores), block)]


def result_of(step, scores, V, block):
    """The output (d_v,) of a row of ready scores, `block` at a time."""
    *_before, last = accumulate(split(scores, V, block), step, 1.0)
    return output(last)


def demo0_by_hand():
    """By hand: two blocks of two scores, and the classic slips."""
    plain = np.array([1.0, 3.0, 2.0, 5.0]), np.array([[10.0], [20.0], [30.0], [40.0]])
    masked = np.array([-np.inf, -np.inf, 0.0, np.log(3)]), np.array([[10.0], [20.0], [1.0], [2.0]])
    states, trace = list(accumulate(split(*plain, 2), one_pass_step, 1.0)), {}
    for name, before, after in zip(("1, 3", "2, 5"), states[:-1], states[1:], strict=True):
        trace[name] = (name, after.m, np.exp(before.m - after.m), after.l, after.o[0], output(after)[0])
    ways = {
        "online": (_("online step"), one_pass_step),
        "never": (_("never rescaled"), step_without("alpha on l", "alpha on o")),
        "only_l": (_("only l rescaled"), step_without("alpha on o")),
        "only_o": (_("only o rescaled"), step_without("alpha on l")),
        "no_guard": (_("no guard for -inf"), step_without("guard")),
    }
    with np.errstate(invalid="ignore"):
        first = {key: result_of(step, *plain, 2).item() for key, (_name, step) in ways.items()}
        second = {key: result_of(step, *masked, 2).item() for key, (_name, step) in ways.items()}
    averages = [np.mean([output(partial_state(*tile)) for tile in split(*row, 2)]) for row in (plain, masked)]
    rows = {key: (name, first[key], second[key]) for key, (name, _step) in ways.items()}
    rows["averages"] = (_("average of the blocks' outputs"), *averages)
    print_header(_("Demo 0. By hand: scores [1, 3 | 2, 5], V = [10, 20 | 30, 40]"))
    print_table([_("block"), Column("m", ".0f"), Column("α", ".3f"), Column("l", ".3f"), Column("o", ".2f"),
                 Column("o / l", ".2f")], trace, key="by_hand")
    print_table([_("how"), Column("1, 3 | 2, 5", ".2f"), Column("-inf, -inf | 0, ln 3", ".2f")], rows, key="slips")
    exact = attention(plain[0][None], np.eye(4), plain[1], scale=1.0)[0].item()
    print_observations([
        claim(np.isclose(first["online"], exact, rtol=1e-12) and 10 < first["never"] < 40 < first["only_l"],
              _("Two blocks give {online:.2f}, as one softmax does. Never rescaled, {never:.2f} looks plausible; "
                "only l rescaled, {only_l:.2f} is above the largest V."), **first),
        claim(np.isclose(second["online"], 1.75) and np.isnan(second["no_guard"]),
              _("With a masked first block, {online:.2f}; unguarded, (-inf)-(-inf) gives {no_guard}."), **second),
        claim(np.isinf(FP16.round(np.exp(12.0))) and np.isinf(FP32.round(np.exp(89.0)))
              and all(state.l <= 2 * i for i, state in enumerate(states)),
              _("exp(12) overflows in FP16, exp(89) in FP32; less the max, no term is above 1: 4 terms, l = {l:.3f}."),
              l=states[-1].l),
    ])


def demo1_three_ways(seq_len=4096, head_dim=64, block=256, seed=0, more=False):
    """One query, three algorithms: what each reads, holds, and gets right."""
    rng = np.random.default_rng(seed)
    shapes = (head_dim, (seq_len, head_dim), (seq_len, head_dim))
    q, K, V = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    exact, u = flash_lab.exact_and_unit(q[None], K, V)
    variant = flash_lab.Variant("one pass", one_pass_step, finish=flash_lab.to_output_lse)
    algorithms = {
        "three": (_("three passes"), flash_lab.attention_3pass),
        "two": (_("two passes"), flash_lab.attention_2pass),
        "one": (_("one pass"), lambda *data: flash_lab.attention_1pass(*data, variant=variant)),
    }
    K_reads, scores_moved, moved, held, error = {}, {}, {}, {}, {}
    for key, (_name, algorithm) in algorithms.items():
        tally = Tally()
        o, _lse = algorithm(q, *tally.count(K=K, V=V), block)
        K_reads[key] = tally.elements("K") / K.size
        scores_moved[key] = tally.elements("s") + tally.elements("p")
        moved[key] = tally.elements()
        on_chip = max(access.elements // head_dim for access in tally.log if access.array == "K")  # scores of a block
        held[key] = tally.elements("s", "write") + tally.elements("p", "write") + on_chip + o.size + 2
        error[key] = flash_lab.worst_in_u(o, exact, u)
    rows = {key: (name, *(column[key] for column in (K_reads, scores_moved, moved, held, error)))
            for key, (name, _algorithm) in algorithms.items()}
    print_header(_("Demo 1. One query, three algorithms"))
    print_table([_("algorithm"), Column(_("K read"), "{:.0f}x"), Column(_("scores moved"), ",d"),
                 Column(_("numbers moved"), ",d"), Column(_("numbers held"), ",d"), Column(_("largest error"), in_u)],
                rows, key="three_ways")

    scale, trace = head_dim**-0.5, {}
    tiles = list(flash_lab.row_tiles(q, K, V, block))
    states = list(accumulate(tiles, one_pass_step, scale))
    for i, (S, _V) in enumerate(tiles):
        seen = min((i + 1) * block, seq_len)
        alpha = np.exp(float(states[i].m) - float(states[i + 1].m))
        trace[seen] = (seen, scale * np.max(S), states[i + 1].m, alpha, states[i + 1].l)
    rescaled = [seen for seen, row in trace.items() if 0 < row[3] < 1]
    first_look = sorted({*list(trace)[:3], *rescaled[-1:], seq_len})
    print_table([Column(_("keys seen"), ",d"), Column(_("block max"), ".3f"), Column("m", ".3f"),
                 Column("α", ".4f", True), Column("l", ".3f")], trace, key="trace", first=None if more else first_look)
    new_maxima = len(set(np.maximum.accumulate([row[1] for row in trace.values()]))) - 1
    bound = flash_lab.bound_in_u(scale * (K @ q), len(tiles))
    print_observations([
        claim(max(error.values()) < bound,
              _("All agree with float64 within {bound:,.0f} u (u: one FP32 rounding of the output)."), bound=bound),
        claim(K_reads["two"] == 2 and scores_moved["two"] == 0 and moved["one"] < min(moved["two"], moved["three"]),
              _("Two passes store no scores, but read K twice; one pass moves least, {saved:.1%} less than three: one "
                "query has to read all of K and V."), saved=1 - moved["one"] / moved["three"]),
        claim(len(rescaled) == new_maxima and held["one"] == min(block, seq_len) + head_dim + 2,
              _("l and o were rescaled at {rescaled} of {blocks:,} blocks (0 < α < 1). One pass holds {held:,} "
                "numbers: a block of scores, o, m and l."),
              rescaled=len(rescaled), blocks=len(trace), held=held["one"]),
    ])
    if more:
        share_keys(seq_len, head_dim, block, rng)
    return {_("blocks"): len(trace), _("rescaled"): len(rescaled), Column(_("one pass holds"), ",d"): held["one"],
            Column(_("largest error"), in_u): error["one"], Column("l", ".3f"): states[-1].l}


def share_keys(n, d, block, rng):
    """What one query cannot show: K and V read once for many queries (FP16 bytes, by formula and counted)."""
    moved = {block_q: flash_lab.traffic_tiled(n, n, d, d, block_q) for block_q in (1, 32, 128)}
    moved |= {"full": flash_lab.traffic_full_matrix(n, n, d, d), "rows": flash_lab.traffic_full_matrix(n, n, d, d, 6)}
    names = {1: _("one at a time"), 32: _("tiles of 32"), 128: _("tiles of 128"),
             "full": _("full matrix, fused softmax"), "rows": _("full matrix, three-pass rows")}
    mib = {key: FP16.bytes * sum(elements.values()) / 2**20 for key, elements in moved.items()}
    print_table([_("{n:,} queries").format(n=n), Column(_("MiB moved in FP16"), ",.1f")],
                {key: (names[key], mib[key]) for key in mib}, key="share_keys")
    small, tally = min(n, 160), Tally()
    Q, K, V = rng.standard_normal((3, small, d)).astype(np.float32)
    flash_lab.flash_forward(*tally.count(Q=Q, K=K, V=V), block_q=32, block_k=block)
    formula = flash_lab.traffic_tiled(small, small, d, d, 32)
    print_observations([
        claim(formula == {name: tally.elements(name) for name in formula},
              _("Counted in a run of {small} queries in tiles of 32, what moves equals the formula."), small=small),
        finding(mib[128] < mib["full"] < mib[1],
                _("Online softmax makes tiles possible; sharing K and V among a tile's queries is what saves: "
                  "{one:,.4g} MiB one at a time, {full:,.4g} with the full matrix, {shared:,.4g} with 128."),
                one=mib[1], full=mib["full"], shared=mib[128]),
    ])


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
    print_header(_("Demo 2. Merge order (segments: {n}, of {low:,} to {high:,} keys)").format(
        n=segments, low=lengths.min(), high=lengths.max()))
    print_table([_("how the parts are combined"), Column(_("largest error"), in_u), Column(_("absolute"), magnitude)],
                rows, key="orders")
    a, b, c = (partial_state(rng.standard_normal((1000, 8)), rng.standard_normal((8, 4))) for _part in "abc")
    merge = merge_states
    laws = {
        "commutative": ("merge(a, b) = merge(b, a)", merge(a, b), merge(b, a)),
        "neutral": ("merge(a, empty) = a", merge(a, EMPTY), a),
        "associative": ("merge(merge(a, b), c) = merge(a, merge(b, c))", merge(merge(a, b), c), merge(a, merge(b, c))),
    }
    differ = {key: (law, int(np.sum(np.any(left.o != right.o, axis=-1) | (left.l != right.l) | (left.m != right.m))))
              for key, (law, left, right) in laws.items()}
    print_table([_("law, tried 1,000 times"), Column(_("not bit-identical"), roughly)], differ, key="laws")
    bound = 2 * flash_lab.bound_in_u(scores, segments)  # both sides of the comparison are rounded
    agree = max(rows[key][1] for key in ("fold", "tree", "shuffled", "output_lse"))
    print_observations([
        claim(agree < bound, _("Every order of merging gives the row's result within {bound:,.0f} u (FP64)."),
              bound=bound),
        finding(min(rows["mean"][1], rows["weighted"][1]) > 1000 * bound,
                _("Averaging outputs is wrong, by length too: what weighs a part is its share of the sum l.")),
        claim(differ["commutative"][1] == differ["neutral"][1] == 0 < differ["associative"][1],
              _("In floats merging is exactly commutative, but associative only up to rounding.")),
    ])
    return {Column(_("merged"), in_u): agree, Column(_("averaged"), in_u): rows["mean"][1],
            Column(_("averaged by length"), in_u): rows["weighted"][1]}


# What an operation outside the matmuls costs in matmul FLOPs, and what an exp does. FlashAttention-2, section 3.1:
# 312 / 19.5 TFLOPS on an A100 is 16. But the 19.5 counts a multiply-add as two operations, and exp has 16 results per
# clock and SM where FP32 has 64 (CUDA C++ Programming Guide, throughput of native arithmetic instructions).
COSTS = {"paper": (16, 16), "alone": (32, 128)}


def demo3_delayed_normalisation(seq_len=4096, head_dim=128, block=128):
    """Delayed normalisation: the work of FlashAttention-1 and -2."""
    names = {"FA1": "FlashAttention-1", "FA2": "FlashAttention-2"}
    work = {key: flash_lab.work_formula(key, seq_len, seq_len, head_dim, head_dim, block) for key in names}
    rows = {key: (names[key], w["matmul"], w["max"] + w["subtract"] + w["sum"], w["exp"], w["rescale"], w.non_matmul())
            for key, w in work.items()}
    print_header(_("Demo 3. Delayed normalisation: divide by l once, at the end"))
    print_table(["GFLOP", *(Column(title, giga) for title in (_("matmul"), _("max, -, sum"), "exp",
                                                             _("rescale, divide"), _("non-matmul")))], rows, key="work")
    share = {key: w.non_matmul() / w["matmul"] for key, w in work.items()}
    ratio = {cost: {key: w.non_matmul(*COSTS[cost]) / w["matmul"] for key, w in work.items()} for cost in COSTS}
    of_total = {cost: {key: x / (1 + x) for key, x in ratio[cost].items()} for cost in COSTS}
    models = {
        "flops": (_("FLOPs, to the matmul's"), share),
        "paper_ratio": (_("time at 16 each, to the matmul's"), ratio["paper"]),
        "paper_share": (_("time at 16 each, of the total"), of_total["paper"]),
        "alone_ratio": (_("time at 32 each, exp 128, to the matmul's"), ratio["alone"]),
        "alone_share": (_("time at 32 each, exp 128, of the total"), of_total["alone"]),
    }
    print_table([_("non-matmul, by model"), *(Column(name, ".1%") for name in names.values())],
                {key: (name, x["FA1"], x["FA2"]) for key, (name, x) in models.items()}, key="shares")
    gain = {cost: (1 + x["FA1"]) / (1 + x["FA2"]) for cost, x in ratio.items()}
    print_observations([
        claim(all(run_small(min(head_dim, 16), min(block, 32))),
              _("Counted in runs with 48 queries and 112 keys, both do exactly the formula's work, and agree.")),
        finding(1.05 < gain["paper"] < gain["alone"],
                _("Dividing once buys {paper:.2f}x if an operation costs 16 matmul FLOPs (A100), {alone:.2f}x if a "
                  "lone one costs 32 (half an FMA) and an exp 128."), **gain),
        _("The rest of FlashAttention-2's gain: query blocks in parallel, warps split by query, hidden tiles skipped."),
    ])
    return {Column(_("gain at 16"), "{:.2f}x"): gain["paper"], Column(_("gain at 32/128"), "{:.2f}x"): gain["alone"],
            **{Column(_("{name}, non-matmul").format(name=key), ".1%"): share[key] for key in names}}


def run_small(d, block_k, seed=3):
    """For FA1 and FA2, run on 48 queries and 112 keys: was the work the formula's, and the result right?"""
    rng = np.random.default_rng(seed)
    Q, K, V = (rng.standard_normal((n, d)).astype(np.float32) for n in (48, 112, 112))
    exact, u = flash_lab.exact_and_unit(Q, K, V)
    bound = flash_lab.bound_in_u(Q @ K.T / np.sqrt(d), -(-112 // block_k))
    for variant in (flash_lab.FA1, flash_lab.FA2):
        work = flash_lab.Work()
        O, _lse = flash_lab.flash_forward(*map(work.array, (Q, K, V)), block_q=20, block_k=block_k, variant=variant)
        formula = flash_lab.work_formula(variant.name, 48, 112, d, d, block_k)
        yield formula == {kind: work[kind] for kind in formula} and flash_lab.worst_in_u(O, exact, u) < bound


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

    def errors(place=None, values=V, **fixed):
        """[FP16's, BF16's] largest error over the largest |output|, with that format's rounding in this place."""
        exact, row = output(partial_state(s, values)), (s.astype(np.float32), values.astype(np.float32))
        results = [rounded_attention(*row, **({place: fmt} if place else {}), **fixed) for fmt in (FP16, BF16)]
        return [float(np.max(np.abs(o - exact)) / np.max(np.abs(exact))) for o in results]

    P_fp16, P_bf16 = errors("P")
    rows = {
        "none": (_("nothing: all in FP32"), *errors()),
        "scores": (_("scores"), *errors("scores")),
        "p": (_("P, and l from the rounded P"), P_fp16, P_bf16),
        "p_only": (_("P, but l from the unrounded P"), *errors("P", l_from=FP32)),
        "output": (_("output"), *errors("out")),
    }
    if more:
        rows["p_shifted"] = (_("P, and l from it, with 10 added to V"), *errors("P", values=V + 10))
    print_header(_("Demo 4. Precision: one rounding at a time"))
    print_table([_("rounded (largest error / largest |output|)"), Column("FP16", magnitude),
                 Column("BF16", magnitude)], rows, key="roundings")

    p = np.exp(s - s.max())
    true, blocks = float(p.sum()), sorted({1, l_block, *((4, 16, 64, 128, 256) if more else ())})
    l_fp16, l_bf16 = ({block: sequential_sum(p, fmt, block) for block in blocks} for fmt in (FP16, BF16))
    off_fp16, off_bf16 = ({block: l / true - 1 for block, l in sums.items()} for sums in (l_fp16, l_bf16))
    sums = {block: (block, l_fp16[block], off_fp16[block], l_bf16[block], off_bf16[block]) for block in blocks}
    sums["all"] = (_("all, in FP64"), true, 0.0, true, 0.0)
    titles = [Column(title.format(fmt=fmt), how) for fmt in ("FP16", "BF16")
              for title, how in ((_("l in {fmt}"), ".1f"), (_("relative error"), "+.2%"))]
    print_table([Column(_("terms per addition"), ",d"), *titles], sums, key="sum_of_l")

    ratio, stuck, ulp = P_bf16 / P_fp16 if P_fp16 else np.inf, l_bf16[1], BF16.ulp(l_bf16[1])
    print_observations([
        finding(3 < ratio < 24, _("Rounding P costs {ratio:.1f} times as much in BF16, with 3 bits fewer, as in FP16."),
                ratio=ratio),
        finding(off_bf16[1] < off_fp16[1] < -0.1 and BF16.round(stuck + 0.49 * ulp) == stuck,
                _("Added one by one, l stays at {stuck:.4g} in BF16 and {fp16:.4g} in FP16, of {true:.1f}: where BF16 "
                  "is {ulp:g} apart, a term below {half:g} adds nothing."),
                stuck=stuck, fp16=l_fp16[1], true=true, ulp=ulp, half=ulp / 2),
        finding(abs(off_bf16[l_block]) < abs(off_bf16[1]) / 4,
                _("By blocks of {block:,} BF16's l is {off:.1%} off, less than a quarter of the {one:.1%} one by one."),
                block=l_block, off=abs(off_bf16[l_block]), one=abs(off_bf16[1])),
    ])
    return {Column(_("l in BF16"), "+.2%"): off_bf16[l_block], Column(_("l in FP16"), "+.2%"): off_fp16[l_block],
            Column(_("P in BF16"), magnitude): P_bf16, Column(_("P in FP16"), magnitude): P_fp16}


lesson(demo0_by_hand, demo1_three_ways, demo2_merge_order, demo3_delayed_normalisation, demo4_precision)
