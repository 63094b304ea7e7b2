"""Do the CUDA kernels compute what the NumPy reference does, and what does each need?

  demo 1  every kernel beside the reference: errors, shuffles, barriers, shared memory
  demo 2  shared memory: which pairs of blocks fit which machine

Run it with python3 compare.py; edit a kernel, such as flash_forward.cu, and run it again. Without an NVIDIA GPU the
kernels' unchanged text runs on this CPU, thread by thread: that shows whether the source is right under CUDA's
execution model, and nothing about speed.
Conventions: Q (heads, n_q, d), K, V (kv_heads, n_k, d); lse natural log; u is one FP32 rounding of the output.
"""

import _lab  # noqa: F401

import numpy as np

import attention
import flash_lab
from console import Column, claim, finding, print_header, print_observations, print_table
from cpu import KernelProblem
from language import _
from launcher import SHARED_PER_BLOCK, LaunchError, choose_place
from lesson import lesson, refuse, require
from units import in_u


def launched(call, *data, **options):
    """The result of a kernel; what cannot be compiled, launched or run ends the script with its one sentence."""
    try:
        return call(*data, **options)
    except (LaunchError, KernelProblem) as problem:
        refuse(str(problem))


def total(stats, kind):
    """All the shuffles or barriers of a kernel's launches; None where they are not counted, on a GPU."""
    return None if None in stats else int(sum(np.sum(getattr(one, kind)) for one in stats))


def expected(key, seq_len, block_q, block_k, splits):
    """What the formulas say of 4 heads: (shuffles, barriers)."""
    if key == "naive":
        return attention.naive_counts(4, seq_len)
    if key == "decode":
        return attention.decode_counts(4, seq_len, splits, block_k)
    return attention.forward_counts(4, seq_len, seq_len, block_q, block_k, causal=key == "causal")


def demo1_every_kernel(seq_len=130, head_dim=64, block_q=32, block_k=32, splits=4, seed=0):
    """Every kernel beside the reference: errors, shuffles, barriers, shared memory."""
    sizes = ", ".join(map(str, attention.HEAD_DIMS))
    require(head_dim in attention.HEAD_DIMS,
            _("head_dim is {d}; the kernels are built for {sizes}: try --head-dim 64."), d=head_dim, sizes=sizes)
    place, where = choose_place()
    rng = np.random.default_rng(seed)
    Q, K, V = (rng.standard_normal(shape, dtype=np.float32)
               for shape in ((4, seq_len, head_dim), (2, seq_len, head_dim), (2, seq_len, head_dim)))
    last = np.ascontiguousarray(Q[:, -1:])
    blocks = {"block_q": block_q, "block_k": block_k}
    runs = {
        "naive": (_("naive"), Q, {}, attention.naive_attention, {"block_q": min(block_q, 32)}),
        "forward": (_("flash forward"), Q, {}, attention.flash_forward, blocks),
        "causal": (_("flash forward, causal"), Q, {"causal": True}, attention.flash_forward, blocks),
        "decode": (_("flash decode"), last, {}, attention.flash_decode, {"splits": splits, "block_k": block_k}),
    }
    rows, errors, written, as_expected = {}, {}, [], []
    for key, (name, queries, mask, call, options) in runs.items():
        result = launched(call, queries, K, V, place=place, **mask, **options)
        exact, u = flash_lab.exact_and_unit(queries, K, V, **mask)
        errors[key] = flash_lab.worst_in_u(result.O, exact, u)
        written.append(not np.isnan(result.O).any() and not np.isnan(result.lse).any())
        counts = total(result.stats, "shuffles"), total(result.stats, "barriers")
        as_expected.append(None in counts or counts == expected(key, seq_len, block_q, block_k, splits))
        rows[key] = (name, len(result.launches), errors[key], *counts,
                     max(launch.shared_bytes for launch in result.launches))
    print_header(_("Demo 1. Every kernel beside the reference"))
    print_table([_("kernel"), Column(_("launches"), ",d"), Column(_("largest error"), in_u),
                 Column(_("shuffles"), ",d"), Column(_("barriers"), ",d"), Column(_("shared bytes"), ",d")],
                rows, key="kernels")
    scores = head_dim**-0.5 * (Q.astype(np.float64) @ np.repeat(K, 2, axis=0).transpose(0, 2, 1))
    bound = 2 * flash_lab.bound_in_u(scores, -(-seq_len // block_k))
    print_observations([
        where,
        claim(max(errors.values()) < bound,
              _("Every kernel agrees with float64 within {bound:.0f} u, twice the bound: their exp2 is another."),
              bound=bound),
        claim(all(written), _("Every element of O and lse, NaN before the launch, was written.")),
        claim(all(as_expected),
              _("Shuffles and barriers are those of the formulas: flash forward needs {shuffles} per row and tile, for "
                "its maximum, and {barriers} per tile."), shuffles=attention.REDUCTION, barriers=2),
    ])


def demo2_shared_memory(head_dim=64):
    """Shared memory: which pairs of blocks fit which machine."""
    pairs = [(32, 32), (32, 64), (64, 32), (64, 64), (64, 128), (128, 64), (128, 128)]
    need = {pair: attention.forward_shared_bytes(*pair, head_dim) for pair in pairs}
    rows = {}
    for (q, k), size in need.items():
        fits = [_("fits") if size <= limit else _("no") for limit in SHARED_PER_BLOCK.values()]
        rows[f"{q}x{k}"] = (f"{q} x {k}", size, *fits)
    print_header(_("Demo 2. Shared memory of flash_forward.cu"))
    print_table([_("block_q x block_k"), Column(_("bytes"), ",d"), *SHARED_PER_BLOCK], rows, key="shared")
    more_queries, more_keys = need[128, 64] - need[64, 64], need[64, 128] - need[64, 64]
    least, most = min(SHARED_PER_BLOCK.values()), max(SHARED_PER_BLOCK.values())
    print_observations([
        claim(more_keys > more_queries,
              _("64 more keys cost {keys:,} bytes, 64 more queries {queries:,}: a key comes with its value."),
              keys=more_keys, queries=more_queries),
        finding(need[32, 32] <= least < need[128, 128] <= most,
                _("The smallest pair fits everywhere; the largest asks for {asked:,} of {most:,} bytes on an H100, and "
                  "a V100 has {least:,}."), asked=need[128, 128], most=most, least=least),
    ])


lesson(demo1_every_kernel, demo2_shared_memory)
