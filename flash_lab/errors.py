"""How far a float result may be from the exact one, in units of its own rounding error.

u = eps * sum of p * |v| is one rounding error of an output element. A tiled result is expected within
(8 + blocks + max |s - m|) * u: a constant for the scores and the last roundings, one error per block merged,
and |s - m| because exp turns an absolute error of its argument into a relative one.
"""

import numpy as np

from .dense import attention


def exact_and_unit(Q, K, V, dtype=None, **options):
    """The output in float64, and u for results in `dtype` (that of Q by default); both (n_q, d_v).

    Q, K, V and options as in `attention`. Source: Higham, Accuracy and Stability, section 3.3 (running errors).
    """
    eps = np.finfo(Q.dtype if dtype is None else dtype).eps
    Q, K, V = (x.astype(np.float64) for x in (Q, K, V))
    return attention(Q, K, V, **options)[0], eps * attention(Q, K, np.abs(V), **options)[0]


def bound_in_u(scores, blocks):
    """8 + blocks + max |s - m|, for scaled scores (..., n) whose masked entries are -inf."""
    distance = np.max(scores, axis=-1, keepdims=True, initial=-np.inf) - np.where(np.isneginf(scores), np.inf, scores)
    return 8 + blocks + max(0.0, float(np.max(distance, initial=0.0, where=np.isfinite(distance))))


def worst_in_u(result, exact, unit):
    """The largest |result - exact| / unit of any element; where the unit is 0, only equality counts as 0."""
    error = np.abs(np.asarray(result, np.float64) - exact)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(error == 0, 0.0, error / unit), initial=0.0))
