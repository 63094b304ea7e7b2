"""Tiled attention: queries outside, keys inside, one state per block of queries."""

from collections import deque

import numpy as np

from . import masks
from ._checks import check_block, check_qkv, check_scale
from .counting import new_array
from .state import empty_state
from .variants import FA2, accumulate


def blocks(n, block):
    """The ranges of at most `block` indices that cover range(n) in order."""
    return [range(start, min(start + block, n)) for start in range(0, n, block)]


def flash_forward(Q, K, V, *, block_q, block_k, causal=False, scale=None, variant=FA2):
    """softmax(scale * Q @ K.T) @ V without ever holding more than one tile of scores.

    Q (n_q, d), K (n_k, d), V (n_k, d_v): float32 or float64, plain or counted. n_q and n_k may be 0,
    and blocks may exceed them. causal: aligned bottom-right. scale: 1/sqrt(d) by default. variant: FA1 or FA2.
    Returns (O, lse), shapes (n_q, d_v) and (n_q,), lse in natural log; counted where Q is.
    Extra memory: one tile of scores and one state, O(block_q * (block_k + d_v)).
    Raises ValueError for shapes, dtypes, blocks or a scale that do not fit.
    Source: Dao 2023 (arXiv 2307.08691), Algorithm 1.
    """
    check_qkv(Q, K, V)
    block_q, block_k = check_block(block_q, "block_q"), check_block(block_k, "block_k")
    scale = check_scale(scale, Q.shape[1])
    O = new_array(Q, "O", (Q.shape[0], V.shape[1]))
    lse = new_array(Q, "lse", (Q.shape[0],))
    for queries in blocks(Q.shape[0], block_q):
        rows = slice(queries.start, queries.stop)
        q = Q[rows]
        tiles = score_tiles(q, K, V, queries, Q.shape[0], block_k, causal)
        trace = accumulate(tiles, variant.step, scale, empty_state(q, V.shape[1]))
        O[rows], lse[rows] = variant.finish(deque(trace, maxlen=1).pop())
    return O, lse


def score_tiles(q, K, V, queries, n_q, block_k, causal):
    """Yield (S, V tile) for one block of queries, key blocks in order; tiles that causal hides are skipped."""
    n_k = K.shape[0]
    for keys in blocks(masks.visible_keys(queries, n_q, n_k) if causal else n_k, block_k):
        S = q @ K[keys.start : keys.stop].T
        if causal and keys.stop - 1 > queries.start + n_k - n_q:
            S[~masks.causal(queries, keys, n_q, n_k)] = -np.inf
        yield S, V[keys.start : keys.stop]
