"""Which keys a query may see. One rule, used by the dense reference and by every tile."""

import numpy as np


def causal(queries, keys, n_q, n_k):
    """Visibility of a tile, bool of shape (len(queries), len(keys)), aligned bottom-right.

    queries, keys: ranges of indices into all n_q queries and n_k keys.
    Query i sees key j when j <= i + n_k - n_q (FlashAttention 2.1 and later).
    """
    last_visible = np.arange(queries.start, queries.stop) + (n_k - n_q)
    return np.arange(keys.start, keys.stop) <= last_visible[:, None]


def visible_keys(queries, n_q, n_k):
    """How many leading keys any of these queries sees under `causal`: what lies past them need not be read."""
    return min(max(queries.stop + n_k - n_q, 0), n_k)
