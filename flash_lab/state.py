"""State(m, l, o): what a set of keys contributes to a softmax-weighted average.

For scores s and values v of the set: m = max s, l = sum of exp(s - m), o = sum of exp(s - m) * v.
States form a commutative monoid under `merge_states` with `EMPTY` as its neutral element:
in real numbers any order and any grouping gives the same state, in floats the same up to rounding.
The pair (o / l, m + ln l) is the same state in normalised form.

Source: Milakov & Gimelshein 2018 (arXiv 1805.02867), section 3.1, for (m, l);
Dao et al. 2022 (arXiv 2205.14135), section 3.1, for o.
"""

from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from ._checks import as_float


class State(NamedTuple):
    """What a set of keys contributes, for each row: all of one float dtype.

    m (...rows): the max of the scores; l (...rows): the sum of exp(s - m); o (...rows, d_v): that of exp(s - m) * v.
    """

    m: Any
    l: Any
    o: Any


EMPTY = State(m=-np.inf, l=0.0, o=0.0)  # Python floats: they broadcast to any shape and keep any dtype


def empty_state(q, d_v, dtype=None):
    """The `EMPTY` state as arrays, for queries q (..., d).

    d_v: the size of a value; dtype: that of q by default. Returns State with m, l of shape (...) and o (..., d_v).
    """
    rows = q.shape[:-1]
    m = np.full_like(q, -np.inf, dtype=dtype, shape=rows)
    return State(m, np.zeros_like(m), np.zeros_like(m, shape=(*rows, d_v)))


def finite_reference(m):
    """m, with 0 where no key was seen: what is subtracted inside exp, for (-inf) - (-inf) is NaN."""
    return np.where(np.isneginf(m), 0, m)


def safe_divisor(l):
    """l, with 1 where it is 0: an empty row is then 0 / 1 = 0, while a NaN stays NaN."""
    return np.where(np.equal(l, 0), 1, l)


def partial_state(S, V):
    """The state of one set of keys.

    S: scores (..., n), already scaled, -inf where masked; V: values (n, d_v), or one such array for each matrix of
    scores; n may be 0. Returns State with m, l of shape (...) and o (..., d_v).
    Raises ValueError if the shapes do not fit.
    """
    S, V = as_float(S, "S"), as_float(V, "V")
    if V.ndim < 2 or S.ndim == 0 or S.shape[-1] != V.shape[-2] or (V.ndim > 2 and V.shape[:-2] != S.shape[:-2]):
        raise ValueError(f"S of shape (..., n) goes with V of shape (n, d_v), not {S.shape} with {V.shape}")
    m = np.max(S, axis=-1, initial=-np.inf)
    P = np.exp(S - finite_reference(m)[..., None])
    return State(m, P.sum(axis=-1), P @ V)


def merge_states(a, b):
    """The state of two disjoint sets of keys together; exactly commutative.

    a, b: State or any (m, l, o). Returns State of the broadcast shape. An empty part leaves the other unchanged.
    """
    a, b = State(*a), State(*b)
    m = np.maximum(a.m, b.m)
    reference = finite_reference(m)
    weight_a, weight_b = np.exp(a.m - reference), np.exp(b.m - reference)
    l = weight_a * a.l + weight_b * b.l
    return State(m, l, weight_a[..., None] * a.o + weight_b[..., None] * b.o)


def merge_tree(parts):
    """Merge neighbours, then neighbours of those, until one state is left.

    parts: any iterable of states. Returns State, as `merge_states` does; `EMPTY` for no parts.
    """
    parts = list(parts) or [EMPTY]
    while len(parts) > 1:
        parts = [reduce(merge_states, parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


def output(state):
    """o / l, of shape (..., d_v): the softmax-weighted average of the values; 0 where no key was seen.

    state: State or any (m, l, o).
    """
    m, l, o = state
    return o / safe_divisor(l)[..., None]


def lse(state):
    """m + ln l, of shape (...): the natural log of the sum of exp of the scores; -inf where no key was seen.

    state: State or any (m, l, o).
    """
    m, l, _o = state
    with np.errstate(divide="ignore"):
        return finite_reference(m) + np.log(l)


def to_output_lse(state):
    """The normalised form (o, lse): o (..., d_v) and lse (...) as `output` and `lse` give them.

    state: State or any (m, l, o).
    """
    return output(state), lse(state)


def from_output_lse(o, lse):
    """The state with output o (..., d_v) and log-sum-exp lse (...); -inf gives an empty state.

    Inverse of `to_output_lse` up to rounding: m becomes lse and l becomes 1.
    """
    o, lse = np.asarray(o), np.asarray(lse)
    return State(lse, np.where(np.isneginf(lse), lse.dtype.type(0), lse.dtype.type(1)), o)
