"""Tiled attention: the online step over tiles, in whatever order the tiles come."""

from collections import Counter, deque
from functools import lru_cache

import numpy as np

from . import masks
from ._checks import check_accumulator, check_block, check_causal, check_mask, check_qkv, check_scale
from .counting import new_array, part_of
from .state import EMPTY, State, empty_state
from .tiles import blocks, queries_outside, without_hidden
from .variants import FA2, accumulate


def flash_forward(
    Q, K, V, *, block_q, block_k, causal=False, mask=None, scale=None, variant=FA2, order=queries_outside,
    accumulator=None,
):  # fmt: skip
    """softmax(scale * Q @ K.T) @ V without ever holding more than one tile of scores.

    Q (..., n_q, d), K (..., n_k, d), V (..., n_k, d_v): float32 or float64, plain or counted; n_q and n_k may be 0.
    block_q, block_k: queries and keys in a tile, whole numbers of at least 1, also above n_q and n_k.
    Leading dimensions are batch and heads; K and V may have fewer heads, as many times fewer as groups of query heads
    share one.
    causal: False, True or "bottom-right", or "top-left". mask: bool, True where visible, of any shape that broadcasts
    to (..., n_q, n_k); a key has to be visible under both; the value of a hidden key still has to be finite, for
    0 * NaN is NaN. scale: 1/sqrt(d) by default. variant: FA1, FA2, FA2_EXP2 or
    your own (step, finish). order: one of `tiles`; tiles that causal hides are skipped.
    accumulator: the dtype of scores after the matmul, of m, l and o, and of the result; the inputs' by default.
    Returns (O, lse), shapes (..., n_q, d_v) and (..., n_q), lse in natural log; counted where Q is.
    Extra memory: one tile of scores and one state; O(n_q) more where states wait between visits.
    Raises ValueError for shapes, dtypes, blocks, masks or a scale that do not fit.
    Source: Dao 2023 (arXiv 2307.08691), Algorithm 1; keys_outside: Dao et al. 2022 (arXiv 2205.14135), Algorithm 1.
    """
    check_qkv(Q, K, V)
    query_blocks = blocks(Q.shape[-2], check_block(block_q, "block_q"))
    key_blocks = blocks(K.shape[-2], check_block(block_k, "block_k"))
    scale, causal = check_scale(scale, Q.shape[-1]), check_causal(causal)
    mask = check_mask(mask, (*Q.shape[:-1], K.shape[-2]))
    dtype = check_accumulator(accumulator, Q.dtype)
    offset = masks.shift(causal, Q.shape[-2], K.shape[-2])
    O = new_array(Q, "O", (*Q.shape[:-1], V.shape[-1]), dtype)
    lse = new_array(Q, "lse", Q.shape[:-1], dtype)
    group = Q.shape[-3] // max(K.shape[-3], 1) if len(Q.shape) > 2 else 1
    for head in np.ndindex(Q.shape[:-2]):
        kv_head = (*head[:-1], head[-1] // group) if head else head
        part = [part_of(x, at) for x, at in ((Q, head), (K, kv_head), (V, kv_head), (O, head), (lse, head))]
        part_mask = None if mask is None else part_of(mask, head)
        visits = without_hidden(order(query_blocks, key_blocks), offset)
        one_head(part, part_mask, visits, query_blocks, causal, scale, variant)
    return O, lse


def one_head(arrays, mask, visits, query_blocks, causal, scale, variant):
    """Run the visits of one head; arrays: its Q, K, V, and O and lse to be written.

    A state that has keys left to see when its visit ends waits in memory: as m, l and, in O, its o.
    """
    Q, K, V, O, lse = arrays
    n_q, n_k, dtype = Q.shape[0], K.shape[0], lse.dtype
    visits = list(visits)
    left = Counter(queries for visit in visits for queries, _keys in visit)
    started = set()
    m, l = new_array(lse, "m", lse.shape), new_array(lse, "l", lse.shape)

    def tile(q, queries, keys, read):
        k, v = read(keys)
        S = (q @ k.T).astype(dtype, copy=False)
        masks.hide(S, masks.visible(queries, keys, n_q, n_k, causal, mask))
        return S, v

    for visit in visits:
        read = lru_cache(maxsize=1)(lambda keys: (K[keys.start : keys.stop], V[keys.start : keys.stop]))
        for queries, key_blocks in visit:
            rows = slice(queries.start, queries.stop)
            q = Q[rows]
            state = State(m[rows], l[rows], O[rows]) if queries in started else empty_state(q, V.shape[1], dtype)
            tiles = (tile(q, queries, keys, read) for keys in key_blocks)
            state = deque(accumulate(tiles, variant.step, scale, state), maxlen=1).pop()
            started.add(queries)
            left[queries] -= 1
            if left[queries]:
                m[rows], l[rows], O[rows] = state
            else:
                O[rows], lse[rows] = variant.finish(state)
    for queries in query_blocks:
        if queries not in started:
            rows = slice(queries.start, queries.stop)
            O[rows], lse[rows] = variant.finish(EMPTY)
