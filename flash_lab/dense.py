"""The plain reference: the whole score matrix at once. What everything else is held against."""

import numpy as np

from . import masks
from ._checks import check_qkv, check_scale
from .state import partial_state, to_output_lse


def attention(Q, K, V, *, causal=False, scale=None):
    """softmax(scale * Q @ K.T) @ V through the full (n_q, n_k) matrix.

    Shapes, dtypes, mask, scale and errors as in `flash_forward`. Returns (O, lse).
    """
    check_qkv(Q, K, V)
    S = check_scale(scale, Q.shape[1]) * (Q @ K.T)
    if causal:
        n_q, n_k = S.shape
        S = np.where(masks.causal(range(n_q), range(n_k), n_q, n_k), S, S.dtype.type(-np.inf))
    return to_output_lse(partial_state(S, V))
