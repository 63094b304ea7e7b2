"""How does attention get by without the score matrix, and what do the two block sizes decide?

  demo 1  block sizes: what each pair moves; block_q decides, block_k does not
  demo 2  loop order: keys outside (FlashAttention-1) against queries outside (FlashAttention-2)
  demo 3  what fits: the pairs of blocks that the memory on a chip can hold

Run it with python3 02_tiling.py; edit a demo's defaults, or give --demo 1 --block-q 32. --more adds the growth with N
beside the full matrix, the bound of theorem 2, the tiles that a causal mask skips, and how many SMs have work.
Conventions: Q (n, d), K (n, d), V (n, d), one head; a tile is block_q queries by block_k keys. What moves are numbers
between memory and the chip, with no cache in between, counted by arrays that log x[a:b]; MiB: 2 bytes each (FP16).
"""

import _lab  # noqa: F401

import numpy as np

import flash_lab
from console import Column, claim, finding, print_header, print_observations, print_table
from flash_lab import EMPTY, FA1, FA2, State, Tally
from language import _
from lesson import lesson
from machines import MACHINES, REGISTER_BYTES
from numfmt import FP16, FP32
from units import in_u


def queries_outside(Q, K, V, O, lse, block_q, block_k, scale):
    """FlashAttention-2: a block of queries meets all keys, and its state never leaves the chip."""
    for rows in parts(len(Q), block_q):
        q, state = Q[rows], EMPTY
        for keys in parts(len(K), block_k):
            state = FA2.step(state, q @ K[keys].T, V[keys], scale)
        O[rows], lse[rows] = FA2.finish(state)


def keys_outside(Q, K, V, O, lse, m, l, block_q, block_k, scale):
    """FlashAttention-1: a block of keys meets all queries, whose states wait in memory meanwhile."""
    for keys in parts(len(K), block_k):
        k, v = K[keys], V[keys]
        for rows in parts(len(Q), block_q):
            state = State(m[rows], l[rows], O[rows]) if keys.start else EMPTY
            state = FA1.step(state, Q[rows] @ k.T, v, scale)
            if keys.stop < len(K):
                m[rows], l[rows], O[rows] = state
            else:
                O[rows], lse[rows] = FA1.finish(state)


def parts(n, block):
    return [slice(start, min(start + block, n)) for start in range(0, n, block)]


def on_chip(block_q, block_k, d):
    """Bytes of a tile, as FlashAttention-2 holds it: (Q, K and V in FP16, shared; S and O in FP32, registers)."""
    return FP16.bytes * (block_q + 2 * block_k) * d, FP32.bytes * block_q * (block_k + d)


def counted_run(loop, n, d, block_q, block_k, seed):
    """({array: elements moved}, largest error in u, bound in u) of a run with n queries and n keys."""
    Q, K, V = np.random.default_rng(seed).standard_normal((3, n, d)).astype(np.float32)
    results = {"O": np.empty((n, d), np.float32), "lse": np.empty(n, np.float32)}
    if loop is keys_outside:
        results |= {"m": np.empty(n, np.float32), "l": np.empty(n, np.float32)}
    tally = Tally()
    loop(*tally.count(Q=Q, K=K, V=V, **results), block_q, block_k, d**-0.5)
    exact, u = flash_lab.exact_and_unit(Q, K, V)
    bound = flash_lab.bound_in_u(d**-0.5 * Q @ K.T, -(-n // block_k))
    moved = {name: tally.elements(name) for name in ("Q", "K", "V", *results)}
    return moved, flash_lab.worst_in_u(results["O"], exact, u), bound


def counted_size(seq_len, *blocks):
    """As many queries and keys as can be run while someone waits: at most 1,000, and 32 blocks a side."""
    return min(seq_len, 1000, 32 * min(blocks))


def mib(moved, *names):
    """MiB of what moved, of all arrays or of those named."""
    return FP16.bytes * sum(moved[name] for name in names or moved) / 2**20


def demo1_block_sizes(seq_len=4096, head_dim=64, block_q=128, block_k=128, seed=0, more=False):
    """Block sizes: what each pair moves."""
    pairs = {
        "given": (block_q, block_k),
        "half_k": (block_q, max(block_k // 2, 1)),
        "half_q": (max(block_q // 2, 1), block_k),
        "one": (1, block_k),
    }
    n = counted_size(seq_len, block_k // 2 or 1, block_q // 2 or 1)
    rows, right, counted, total, visits = {}, [], {}, {}, {}
    for key, (q, k) in pairs.items():
        moved, error, bound = counted_run(queries_outside, n, head_dim, q, k, seed)
        formula = flash_lab.traffic_tiled(n, n, head_dim, head_dim, q)
        right.append(moved == formula and error < bound)
        counted[key] = sum(moved.values())
        at_n = flash_lab.traffic_tiled(seq_len, seq_len, head_dim, head_dim, q)
        total[key], visits[key] = mib(at_n), at_n["K"] // (seq_len * head_dim)
        rows[key] = (f"{q} x {k}", visits[key], total[key], counted[key], sum(formula.values()), error)
    print_header(_("Demo 1. Block sizes: what {n:,} queries move").format(n=seq_len))
    print_table([_("block_q x block_k"), Column(_("K, V read"), "{:,}x"), Column(_("MiB moved"), ",.1f"),
                 Column(_("in a short run"), ",d"), Column(_("its formula"), ",d"),
                 Column(_("largest error"), in_u)], rows, key="pairs")
    print_observations([
        claim(all(right), _("Counted in runs of {n:,} queries and keys, what moves equals the formula, and the result "
                            "agrees with the full matrix to rounding."), n=n),
        claim(counted["half_k"] == counted["given"] and total["half_k"] == total["given"],
              _("Half of block_k: still {mib:,.1f} MiB. A smaller block of keys comes more often, but holds less."),
              mib=total["half_k"]),
        finding(1.5 < total["half_q"] / total["given"] < 2.5 and visits["half_q"] > visits["given"],
                _("Half of block_q: {half:,.1f} MiB of {given:,.1f}. Every block of queries reads all of K and V: "
                  "{more:,} times instead of {less:,}."),
                half=total["half_q"], given=total["given"], more=visits["half_q"], less=visits["given"]),
    ])
    if more:
        growth(seq_len, head_dim, block_q)
    return {Column(_("MiB moved"), ",.1f"): total["given"], Column(_("K, V read"), "{:,}x"): visits["given"]}


def growth(seq_len, d, block_q):
    """Traffic and extra memory by N, beside the full matrix with 4 and with 6 accesses to each score."""
    sizes = sorted({max(seq_len // 4, 1), max(seq_len // 2, 1), seq_len, 2 * seq_len, 4 * seq_len})
    tiled = {n: mib(flash_lab.traffic_tiled(n, n, d, d, block_q)) for n in sizes}
    fused, by_row = ({n: mib(flash_lab.traffic_full_matrix(n, n, d, d, times)) for n in sizes} for times in (4, 6))
    rows = {n: (n, tiled[n], fused[n], by_row[n], FP16.bytes * n * n / 2**20) for n in sizes}
    print_table([Column("N", ",d"), *(Column(title, ",.1f") for title in (
        _("tiles, MiB"), _("full, fused"), _("full, by row"), _("MiB of one S")))], rows, key="growth")
    last, before = sizes[-1], sizes[-2]
    per_score = 2 * d / block_q
    print_observations([
        finding(3 < tiled[last] / tiled[before] < 5 and 3 < fused[last] / fused[before] < 5,
                _("Twice the N moves {tiled:.1f} times as much in tiles, {full:.1f} with the full matrix: both grow "
                  "with N². What tiles save is a factor, and the memory for S."),
                tiled=tiled[last] / tiled[before], full=fused[last] / fused[before]),
        finding(per_score < 4 and tiled[last] < fused[last],
                _("K and V in tiles cost 2d / block_q = {per_score:.3g} numbers per score, the full matrix 4 with a "
                  "fused softmax, 6 by row: tiles win once block_q is above d / 2 = {even:g}."),
                per_score=per_score, even=d / 2),
    ])


def demo2_loop_order(seq_len=4096, head_dim=64, block_q=128, block_k=128, seed=0, more=False):
    """Loop order: keys outside (FlashAttention-1) against queries outside (FlashAttention-2)."""
    n = counted_size(seq_len, block_q, block_k)
    orders = {"FA1": (_("keys outside (FA1)"), keys_outside, flash_lab.traffic_keys_outside, block_k),
              "FA2": (_("queries outside (FA2)"), queries_outside, flash_lab.traffic_tiled, block_q)}
    rows, right, counted, at_n = {}, [], {}, {}
    for key, (name, loop, formula, block) in orders.items():
        counted[key], error, bound = counted_run(loop, n, head_dim, block_q, block_k, seed)
        right.append(counted[key] == formula(n, n, head_dim, head_dim, block) and error < bound)
        at_n[key] = formula(seq_len, seq_len, head_dim, head_dim, block)
        sums = [name for name in at_n[key] if name in ("m", "l", "lse")]
        rows[key] = (name, *(mib(at_n[key], *names) for names in (("Q",), ("K", "V"), ("O",), sums)), mib(at_n[key]))
    print_header(_("Demo 2. Loop order: MiB moved for {n:,} queries").format(n=seq_len))
    print_table([_("loop"), *(Column(title, ",.2f") for title in ("Q", "K, V", "O", "m, l, lse", _("total")))], rows,
                key="orders")
    fa1, fa2 = mib(at_n["FA1"]), mib(at_n["FA2"])
    once = all(moved["FA1"]["K"] == moved["FA1"]["V"] == moved["FA2"]["Q"] == moved["FA2"]["O"] == size * head_dim
               for moved, size in ((counted, n), (at_n, seq_len)))
    print_observations([
        claim(all(right), _("Counted in a run of {n:,} queries and keys, both loops move what their formulas say, and "
                            "agree with the full matrix to rounding."), n=n),
        claim(once, _("Keys outside, K and V come once; queries outside, Q comes and O goes once.")),
        finding(fa2 < fa1,
                _("{fa1:,.1f} MiB against {fa2:,.1f}: with the keys outside, o, m and l of every query are stored and "
                  "loaded again for each of {blocks:,} blocks of keys."),
                fa1=fa1, fa2=fa2, blocks=-(-seq_len // block_k)),
    ])
    if more:
        theorem_2(seq_len, head_dim)
        causal_tiles(seq_len, head_dim, block_q, block_k, seed)
    return {Column("FA1, MiB", ",.1f"): fa1, Column("FA2, MiB", ",.1f"): fa2}


def theorem_2(n, d):
    """FlashAttention-1's blocks for a chip of M numbers, and what they move against N^2 d^2 / M."""
    rows, ratios = {}, []
    for kib in (48, 96, 192):
        M = kib * 1024 // FP16.bytes
        block_k = -(-M // (4 * d))
        moved = sum(flash_lab.traffic_keys_outside(n, n, d, d, block_k).values())
        ratios.append(moved / (n**2 * d**2 / M))
        rows[kib] = (kib, block_k, min(block_k, d), FP16.bytes * moved / 2**20, ratios[-1])
    print_table([Column(_("KiB on chip"), ",d"), Column("block_k = M / 4d", ",d"), Column("block_q", ",d"),
                 Column(_("MiB moved"), ",.1f"), Column("/ (N² d² / M)", ".1f")], rows, key="theorem_2")
    print_observations([
        finding(min(ratios) >= 12 and max(ratios) < 14,
                _("With FlashAttention-1's own block sizes, what moves is {low:.1f} to {high:.1f} times N² d² / M, M "
                  "numbers on chip (theorem 2): each of 4Nd / M blocks of keys moves Q once and O twice, 12 in all."),
                low=min(ratios), high=max(ratios)),
    ])


def causal_tiles(seq_len, d, block_q, block_k, seed):
    """Which tiles a causal mask leaves: a map, and the count of a run."""
    n = min(seq_len, 8 * block_q, 32 * block_k)
    rows, needed, total = {}, 0, 0
    for queries in parts(n, block_q):
        kinds = ["." if keys.start > queries.stop - 1 else "#" if keys.stop - 1 <= queries.start else "/"
                 for keys in parts(n, block_k)]
        computed = len(kinds) - kinds.count(".")
        needed, total = needed + computed, total + len(kinds)
        rows[queries.start] = (f"{queries.start:,}-{queries.stop - 1:,}", "".join(kinds), computed, kinds.count("/"))
    print_table([_("queries"), _("tiles of keys"), Column(_("computed"), ",d"), Column(_("with a mask"), ",d")], rows,
                key="causal")
    size, tally = min(n, counted_size(seq_len, block_q, block_k)), Tally()
    Q, K, V = np.random.default_rng(seed).standard_normal((3, size, d)).astype(np.float32)
    flash_lab.flash_forward(*tally.count(Q=Q, K=K, V=V), block_q=block_q, block_k=block_k, causal=True)
    reads = [access.elements for access in tally.log if access.array == "K"]
    visible = [keys for queries in parts(size, block_q) for keys in parts(size, block_k) if keys.start < queries.stop]
    print_observations([
        claim(len(reads) == len(visible) and sum(reads) == d * sum(keys.stop - keys.start for keys in visible),
              _("Counted in a causal run of {size:,}, K is read for exactly the tiles that are not skipped."),
              size=size),
        finding(needed < 0.75 * total,
                _("# all visible, / partly, . skipped: {needed:,} of {total:,} tiles are computed, half and the "
                  "diagonal. Only tiles marked / need the mask."), needed=needed, total=total),
    ])


def demo3_what_fits(seq_len=4096, head_dim=64, block_q=128, block_k=128, more=False):
    """What fits: the pairs of blocks that the memory on a chip can hold."""
    machines = MACHINES if more else {name: MACHINES[name] for name in ("V100", "A100", "H100")}
    half_q = max(block_q // 2, 1)
    pairs = {"given": (block_q, block_k), "twice_q": (2 * block_q, block_k), "four_q": (4 * block_q, block_k),
             "half_q": (half_q, block_k), "wide": (half_q, 4 * block_k), "wider": (half_q, 6 * block_k)}
    rows, moved, need, fits = {}, {}, {}, {}
    for key, (q, k) in pairs.items():
        moved[key] = mib(flash_lab.traffic_tiled(seq_len, seq_len, head_dim, head_dim, q))
        need[key] = shared, registers = on_chip(q, k, head_dim)
        fits[key] = [name for name, machine in machines.items() if shared <= machine.shared_per_block]
        if registers > REGISTER_BYTES:
            fits[key] = []
        rows[key] = (f"{q:,} x {k:,}", moved[key], shared, registers, ", ".join(fits[key]) or _("none"))
    print_header(_("Demo 3. What fits: bytes of a tile, and the machines that hold it"))
    print_table([_("block_q x block_k"), Column(_("MiB moved"), ",.1f"), Column(_("shared"), ",d"),
                 Column(_("registers"), ",d"), _("fits")], rows, key="fits")
    limits = {name: f"{machine.shared_per_block:,}" for name, machine in machines.items()}
    print_observations([
        _("A block of threads has at most {registers:,} bytes in registers, and shared: {limits}.").format(
            registers=REGISTER_BYTES, limits=", ".join(f"{name} {limit}" for name, limit in limits.items())),
        claim(moved["wide"] == moved["half_q"] and need["wide"] > need["half_q"],
              _("block_k costs memory and saves no traffic: {wide} needs {much:,} bytes shared where {half} needs "
                "{little:,}, and both move {mib:,.1f} MiB."),
              wide=rows["wide"][0], half=rows["half_q"][0], much=need["wide"][0], little=need["half_q"][0],
              mib=moved["wide"]),
        finding(moved["twice_q"] < moved["given"] and fits["twice_q"] and not fits["four_q"],
                _("block_q saves traffic until the registers are full: {twice} moves {mib:,.1f} MiB of {given:,.1f}, "
                  "but {four} would need {much:,} bytes there for S and O alone, in FP32."),
                twice=rows["twice_q"][0], four=rows["four_q"][0], mib=moved["twice_q"], given=moved["given"],
                much=need["four_q"][1]),
    ])
    if more:
        busy_processors(seq_len, block_q)
    return {Column(_("shared"), ",d"): need["given"][0], Column(_("registers"), ",d"): need["given"][1],
            Column(_("MiB moved"), ",.1f"): moved["given"]}


def busy_processors(n, block_q):
    """How many of an A100's and an H100's SMs have work: one thread block per head, or per block of queries."""
    def busy(blocks, sms):
        return blocks / (-(-blocks // sms) * sms)

    sms, rows, shares = {name: MACHINES[name].sms for name in ("A100", "H100")}, {}, {}
    for heads in (1, 8, 16, 32, 128):
        blocks = heads * -(-n // block_q)
        shares[heads] = {name: (busy(heads, count), busy(blocks, count)) for name, count in sms.items()}
        rows[heads] = (heads, *(share for pair in shares[heads].values() for share in pair), blocks)
    titles = [Column(title.format(name=name, n=count), ".0%") for name, count in sms.items()
              for title in (_("{name} ({n} SMs), by head"), _("{name}, by block"))]
    print_table([Column(_("heads x batch"), ",d"), *titles, Column(_("blocks"), ",d")], rows, key="busy")
    print_observations([
        finding(all(by_block > by_head for by_head, by_block in shares[16].values()),
                _("With 16 heads, an A100 that gives each head one thread block uses {head:.0%} of its SMs, one that "
                  "gives each block of queries its own {block:.0%}. Blocks of keys cannot be spread so: all add to the "
                  "same states."),
                head=shares[16]["A100"][0], block=shares[16]["A100"][1]),
    ])


lesson(demo1_block_sizes, demo2_loop_order, demo3_what_fits)
