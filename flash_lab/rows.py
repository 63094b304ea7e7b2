"""One row at a time: softmax in three and two passes, attention of one query in three, two and one.

A pass is one sweep over the row (or over K) in blocks; between passes nothing but a few numbers is kept,
except where an array is named: s and p of the three-pass versions are written to memory and read back.

Source: Milakov & Gimelshein 2018 (arXiv 1805.02867), Algorithms 2 and 3, for softmax in three and two passes;
Dao 2023 (arXiv 2307.08691), Algorithm 1, with a single query, for attention in one.
"""

from collections import deque

import numpy as np

from ._checks import as_float, check_block, check_qkv, check_scale
from .counting import Counted, new_array
from .state import EMPTY, State, empty_state, finite_reference, lse, merge_states, safe_divisor
from .tiles import blocks
from .variants import FA2, accumulate


def softmax_3pass(s, block=None):
    """Safe softmax: max, then sum, then normalise. Reads s three times, writes p once.

    s: (..., n) scores, float, plain or counted; block: how many are read at a time (all by default).
    Returns (p, lse): p (..., n), all 0 where every score is -inf; lse (...), natural log.
    Raises ValueError for a single number, a dtype that is no float or whole number, or a block below 1.
    Source: Milakov & Gimelshein 2018, Algorithm 2.
    """
    s, parts = _row(s, block)
    m, l = -np.inf, 0.0
    for part in parts:
        m = np.maximum(m, s[part].max(axis=-1))
    reference = finite_reference(m)[..., None]
    for part in parts:
        l = l + np.exp(s[part] - reference).sum(axis=-1)
    return _normalise(s, parts, State(m, l, 0.0))


def softmax_2pass(s, block=None):
    """Online softmax: max and sum in one pass, then normalise. Reads s twice, writes p once.

    Arguments, result and errors as in `softmax_3pass`. Source: Milakov & Gimelshein 2018, Algorithm 3.
    """
    s, parts = _row(s, block)
    state = EMPTY
    for part in parts:
        state = merge_states(state, max_and_sum(s[part]))
    return _normalise(s, parts, state)


def row_tiles(q, K, V, block):
    """Yield (S, V tile) of one query: raw scores (n,) and values (n, d_v), `block` keys at a time.

    q (d,), K (n_k, d), V (n_k, d_v): one float dtype, K and V plain or counted; block: a whole number of at least 1.
    """
    for keys in blocks(K.shape[0], block):
        part = slice(keys.start, keys.stop)
        yield K[part] @ q, V[part]


def attention_3pass(q, K, V, block, scale=None):
    """Attention of one query as softmax in three passes over a stored row of scores.

    q (d,), K (n, d), V (n, d_v): float32 or float64, K and V plain or counted; block: keys read at a time.
    scale: 1/sqrt(d) by default.
    Returns (o, lse): o (d_v,), lse a scalar. Extra memory: the rows s and p, 2n numbers.
    Raises ValueError for shapes, dtypes, block or scale that do not fit.
    """
    scale, parts = _one_query(q, K, V, block, scale)
    s = new_array(K, "s", (K.shape[0],))
    for part in parts:
        s[part] = scale * (K[part] @ q)
    p, lse_row = softmax_3pass(s, block)
    o = np.zeros(V.shape[1], q.dtype)
    for part in parts:
        o += p[part] @ V[part]
    return o, lse_row


def attention_2pass(q, K, V, block, scale=None):
    """Attention of one query with the scores computed twice: once for max and sum, once for the output.

    Arguments, result and errors as in `attention_3pass`. Extra memory: one block of scores, d_v + 2 numbers.
    """
    scale, parts = _one_query(q, K, V, block, scale)
    state = EMPTY
    for part in parts:
        state = merge_states(state, max_and_sum(scale * (K[part] @ q)))
    reference, l = finite_reference(state.m), safe_divisor(state.l)
    o = np.zeros(V.shape[1], q.dtype)
    for part in parts:
        o += (np.exp(scale * (K[part] @ q) - reference) / l) @ V[part]
    return o, lse(state)


def attention_1pass(q, K, V, block, scale=None, variant=FA2):
    """Attention of one query in a single pass over K and V: the online step, then one division.

    variant: FA1, FA2, FA2_EXP2 or your own (step, finish); the other arguments, result and errors as in
    `attention_3pass`. Extra memory: one block of scores, d_v + 2 numbers.
    """
    scale, _parts = _one_query(q, K, V, block, scale)
    trace = accumulate(row_tiles(q, K, V, block), variant.step, scale, empty_state(q, V.shape[1]))
    return variant.finish(deque(trace, maxlen=1).pop())


def max_and_sum(s):
    """The state of a block of scores (..., n) without values: m and l alone, o = 0."""
    m = np.max(s, axis=-1, initial=-np.inf)
    return State(m, np.exp(s - finite_reference(m)[..., None]).sum(axis=-1), 0.0)


def _row(s, block):
    s = s if isinstance(s, Counted) else as_float(s, "s")
    if len(s.shape) == 0:
        raise ValueError("s is a single number; a row of scores is needed")
    n = s.shape[-1]
    keys = blocks(n, max(n, 1) if block is None else check_block(block, "block"))
    return s, [(..., slice(k.start, k.stop)) for k in keys]


def _normalise(s, parts, state):
    reference, divisor = finite_reference(state.m)[..., None], safe_divisor(state.l)[..., None]
    p = new_array(s, "p", s.shape)
    for part in parts:
        p[part] = np.exp(s[part] - reference) / divisor
    return p, lse(state)


def _one_query(q, K, V, block, scale):
    check_qkv(q, K, V, q_ndim=1)
    keys = blocks(K.shape[0], check_block(block, "block"))
    return check_scale(scale, q.shape[0]), [slice(k.start, k.stop) for k in keys]
