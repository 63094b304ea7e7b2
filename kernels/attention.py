"""Attention by each of the lab's kernels: shapes in, the right launches, shapes out.

Q is (heads, n_q, d), K and V (kv_heads, n_k, d), all float32 or all float16, heads counting batch * heads; kv_heads
divides heads. O comes back in that dtype, lse in float32 (natural log). place: where to run, from `choose_place`.
Every function returns a Result and raises LaunchError, in one sentence, for what cannot be launched.
"""

from typing import Any, NamedTuple

import numpy as np

from language import _
from launcher import Launch, LaunchError, launch_all

HEAD_DIMS = (32, 64, 80, 128)
REDUCTION = 5  # shuffles that bring 32 lanes to one value: log2 of 32


class Result(NamedTuple):
    """O and lse as NumPy arrays, the launches made, and what the place counted for each (None on a GPU)."""

    O: Any
    lse: Any
    launches: list
    stats: list


def forward_shared_bytes(block_q, block_k, d):
    """Dynamic shared memory of flash_forward.cu: tiles of Q, K (one padding column), V and P, in float32."""
    return 4 * (block_q * d + block_k * (2 * d + 1) + block_q * block_k)


def pair_that_fits(block_q, block_k, d, limit):
    """The block pair nearest below the given one, halving the larger block, whose tiles fit; None if none does."""
    while forward_shared_bytes(block_q, block_k, d) > limit:
        if max(block_q, block_k) <= 4:
            return None
        block_q, block_k = (block_q // 2, block_k) if block_q >= block_k else (block_q, block_k // 2)
    return block_q, block_k


def forward_counts(heads, n_q, n_k, block_q, block_k, causal=False):
    """(warp shuffles, barriers) of flash_forward: per tile a max for each row and 2 barriers, per row a sum at the end.

    A row past n_q counts like any other: its warp computes on zeros, for all have to meet the barriers.
    """
    blocks, tiles = -(-n_q // block_q), 0
    for start in range(0, n_q, block_q):
        k_end = min(start + block_q, n_q) + n_k - n_q if causal else n_k
        tiles += max(0, -(-k_end // block_k))
    return heads * REDUCTION * block_q * (tiles + blocks), heads * 2 * tiles


def naive_counts(heads, n_q):
    """(warp shuffles, barriers) of the three kernels: a max and a sum for each row."""
    return heads * n_q * 2 * REDUCTION, 0


def decode_counts(heads, n_k, splits, block_k):
    """(warp shuffles, barriers) of both kernels: a sum per key, padded to block_k keys; a barrier per split."""
    visits = 0
    for split in range(splits):
        keys = n_k * (split + 1) // splits - n_k * split // splits
        visits += -(-keys // block_k)  # the 4 warps of a block take block_k keys in turn
    return heads * REDUCTION * block_k * visits, heads * splits


def check_arrays(Q, K, V):
    """Whether Q, K, V are half. Raises LaunchError for shapes and dtypes that the kernels do not take."""
    for name, x in (("Q", Q), ("K", K), ("V", V)):
        if not isinstance(x, np.ndarray) or x.dtype not in (np.float32, np.float16):
            kind = getattr(x, "dtype", type(x).__name__)
            text = _("{name} is of {kind}; a float32 or float16 array is needed: try {name}.astype(np.float32).")
            raise LaunchError(text.format(name=name, kind=kind))
        if x.ndim != 3:
            text = _("{name} has shape {shape}; (heads, length, head size) is needed.")
            raise LaunchError(text.format(name=name, shape=x.shape))
    if not Q.dtype == K.dtype == V.dtype:
        text = _("Q, K, V have dtypes {Q}, {K}, {V}; they must be the same.")
        raise LaunchError(text.format(Q=Q.dtype, K=K.dtype, V=V.dtype))
    if K.shape != V.shape or Q.shape[2] != K.shape[2]:
        text = _("Q, K, V have shapes {Q}, {K}, {V}; K and V must be alike.")
        raise LaunchError(text.format(Q=Q.shape, K=K.shape, V=V.shape))
    if Q.shape[2] not in HEAD_DIMS:
        text = _("the head size is {d}; the kernels are built for 32, 64, 80 and 128.")
        raise LaunchError(text.format(d=Q.shape[2]))
    if K.shape[0] == 0 or Q.shape[0] % K.shape[0]:
        text = _("there are {heads} query heads and {kv_heads} of keys; the latter must divide the former.")
        raise LaunchError(text.format(heads=Q.shape[0], kv_heads=K.shape[0]))
    return Q.dtype == np.float16


def forward_calls(Q, K, V, place, *, block_q, block_k, causal=False):
    """The launch of FlashAttention-2 in one kernel: (calls, O, lse, hint)."""
    half = check_arrays(Q, K, V)
    (heads, n_q, d), (kv_heads, n_k, _d) = Q.shape, K.shape
    if block_q < 4 or block_q % 4 or block_k < 1:
        text = _("the blocks are {block_q} and {block_k}; block_q must be a multiple of 4, block_k at least 1.")
        raise LaunchError(text.format(block_q=block_q, block_k=block_k))
    defines = {"BLOCK_Q": block_q, "BLOCK_K": block_k, "HEAD_DIM": d, "CAUSAL": int(causal), "HALF": int(half)}
    shared = forward_shared_bytes(block_q, block_k, d)
    launch = Launch("flash_forward.cu", "flash_forward", defines, (-(-n_q // block_q), heads), (32, 4), shared)
    fits = pair_that_fits(block_q, block_k, d, place.shared_limit)
    hint = _("try block_q={block_q}, block_k={block_k}").format(block_q=fits[0], block_k=fits[1]) if fits else ""
    O, lse = new_outputs(Q)
    sizes = [np.int32(n) for n in (n_q, n_k, heads, kv_heads)]
    return [(launch, [Q, K, V, O, lse, *sizes, np.float32(d**-0.5)])], O, lse, hint


def naive_calls(Q, K, V, place, *, block_q, causal=False):
    """The launches of three kernels through a full score matrix in memory: (calls, O, lse, hint)."""
    half = check_arrays(Q, K, V)
    (heads, n_q, d), (kv_heads, n_k, _d) = Q.shape, K.shape
    defines = {"BLOCK_Q": block_q, "HEAD_DIM": d, "CAUSAL": int(causal), "HALF": int(half)}
    grid, block = (-(-n_q // block_q), heads), (32, block_q)
    O, lse = new_outputs(Q)
    S = np.full((heads, n_q, n_k), np.nan, np.float32)
    lengths, all_heads = [np.int32(n_q), np.int32(n_k)], [np.int32(heads), np.int32(kv_heads)]
    steps = {
        "naive_scores": [Q, K, S, *lengths, *all_heads, np.float32(d**-0.5)],
        "naive_softmax": [S, lse, *lengths],
        "naive_output": [S, V, O, *lengths, *all_heads],
    }
    calls = [(Launch("naive_attention.cu", name, defines, grid, block), arguments) for name, arguments in steps.items()]
    return calls, O, lse, ""


def decode_calls(Q, K, V, place, *, splits, block_k):
    """The launches of one query per head over split keys, and of their combination: (calls, O, lse, hint)."""
    half = check_arrays(Q, K, V)
    (heads, n_q, d), (kv_heads, n_k, _d) = Q.shape, K.shape
    if n_q != 1 or splits < 1:
        text = _("there are {n_q} queries per head and {splits} splits; decoding takes 1 query and 1 split or more.")
        raise LaunchError(text.format(n_q=n_q, splits=splits))
    defines = {"BLOCK_K": block_k, "HEAD_DIM": d, "HALF": int(half)}
    O, lse = new_outputs(Q)
    o_part = np.full((heads, splits, d), np.nan, np.float32)
    lse_part = np.full((heads, splits), np.nan, np.float32)
    sizes = [np.int32(n) for n in (n_k, heads, kv_heads)]
    split = Launch("flash_decode.cu", "flash_decode_split", defines, (splits, heads), (32, 4))
    combine = Launch("flash_decode.cu", "flash_decode_combine", defines, (1, heads), (32, 1))
    calls = [
        (split, [Q, K, V, o_part, lse_part, *sizes, np.float32(d**-0.5)]),
        (combine, [o_part, lse_part, O, lse, np.int32(splits)]),
    ]
    return calls, O, lse, ""


def new_outputs(Q):
    """O and lse full of NaN, so that what a kernel leaves unwritten shows."""
    return np.full(Q.shape, np.nan, Q.dtype), np.full(Q.shape[:2], np.nan, np.float32)


def run_calls(make_calls, Q, K, V, place, **options):
    """Make the calls and launch them; without queries nothing is launched, for a grid of 0 is illegal."""
    calls, O, lse, hint = make_calls(Q, K, V, place, **options)
    stats = launch_all(place, calls, hint) if 0 not in O.shape[:2] else []
    return Result(O, lse, [launch for launch, _arguments in calls], stats)


def flash_forward(Q, K, V, *, place, **options):
    """FlashAttention-2 in one kernel; options as in `forward_calls`. Returns a Result."""
    return run_calls(forward_calls, Q, K, V, place, **options)


def naive_attention(Q, K, V, *, place, **options):
    """Three kernels through a full score matrix; options as in `naive_calls`. Returns a Result."""
    return run_calls(naive_calls, Q, K, V, place, **options)


def flash_decode(Q, K, V, *, place, **options):
    """One query per head over split keys; options as in `decode_calls`. Returns a Result."""
    return run_calls(decode_calls, Q, K, V, place, **options)
