"""How far a float result may be from the exact one, in units of its own rounding error.

u = eps * sum of p * |v| is one rounding error of an output element. A tiled result is expected within
(8 + blocks + max |s - m|) * u: a constant for the scores and the last roundings, one error per block merged,
and |s - m| because exp turns an absolute error of its argument into a relative one.

Source: Higham, Accuracy and Stability of Numerical Algorithms, section 3.3 (running error bounds); the constant 8 is
the lab's own.
"""

import numpy as np

from .dense import attention


def exact_and_unit(Q, K, V, dtype=None, **options):
    """The output in float64, and u for results in `dtype` (that of Q by default); both (..., n_q, d_v).

    Q, K, V, options and errors as in `attention`; options: its keyword arguments.
    """
    eps = np.finfo(Q.dtype if dtype is None else dtype).eps
    Q, K, V = (x.astype(np.float64) for x in (Q, K, V))
    return attention(Q, K, V, **options)[0], eps * attention(Q, K, np.abs(V), **options)[0]


def bound_in_u(scores, blocks):
    """The bound in units of u, a float: 8 + blocks + max |s - m|.

    scores: scaled, (..., n), the masked ones -inf; blocks: how many blocks of keys are merged.
    """
    distance = np.max(scores, axis=-1, keepdims=True, initial=-np.inf) - np.where(np.isneginf(scores), np.inf, scores)
    return 8 + blocks + max(0.0, float(np.max(distance, initial=0.0, where=np.isfinite(distance))))


def worst_in_u(result, exact, unit):
    """The largest |result - exact| / unit of any element, of the arrays' common shape; 0.0 where there is none.

    result: any float dtype; exact, unit: float64, as `exact_and_unit` gives them.
    Infinite where the result is NaN and should not be, and where the unit is 0 and the two differ. Returns a float.
    """
    result = np.asarray(result, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(result == exact, 0.0, np.abs(result - exact) / unit)
    return float(np.max(np.where(np.isnan(error), np.inf, error), initial=0.0))
