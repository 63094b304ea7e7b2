"""The plain reference: the whole score matrix at once. What everything else is held against."""

import numpy as np

from . import masks
from ._checks import check_causal, check_mask, check_qkv, check_scale
from .state import partial_state, to_output_lse


def attention(Q, K, V, *, causal=False, mask=None, scale=None):
    """softmax(scale * Q @ K.T) @ V through the full (..., n_q, n_k) matrix.

    Shapes, dtypes, masks, scale, result and errors as in `flash_forward`; plain arrays only.
    """
    check_qkv(Q, K, V)
    n_q, n_k = Q.shape[-2], K.shape[-2]
    mask = check_mask(mask, (*Q.shape[:-1], n_k))
    if Q.ndim > 2:
        group = Q.shape[-3] // max(K.shape[-3], 1)
        K, V = (np.repeat(x, group, axis=-3) for x in (K, V))
    S = check_scale(scale, Q.shape[-1]) * (Q @ np.swapaxes(K, -1, -2))
    for allowed in (mask, masks.visible(range(n_q), range(n_k), n_q, n_k, check_causal(causal), None)):
        if allowed is not None:
            S = np.where(allowed, S, S.dtype.type(-np.inf))
    return to_output_lse(partial_state(S, V))
