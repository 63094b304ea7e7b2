"""Which keys a query may see. One rule, used by the dense reference and by every tile."""

import numpy as np

ALIGNMENTS = (False, True, "bottom-right", "top-left")


def shift(causal, n_q, n_k):
    """Query i sees key j when j <= i + shift; None without a causal mask.

    True and "bottom-right": the last query sees every key, as in FlashAttention since 2.1.
    "top-left": the first query sees the first key, as in PyTorch's is_causal. They differ where n_q != n_k.
    """
    if causal is False:
        return None
    return 0 if causal == "top-left" else n_k - n_q


def visible(queries, keys, n_q, n_k, causal, mask):
    """Visibility of a tile, bool of shape (len(queries), len(keys)); None where every key is visible.

    queries, keys: ranges of indices into all n_q queries and n_k keys. causal: see `shift`. mask: bool (n_q, n_k),
    True where visible, or None; a key has to be visible under both.
    """
    allowed = None if mask is None else mask[queries.start : queries.stop, keys.start : keys.stop]
    offset = shift(causal, n_q, n_k)
    if offset is None or keys.stop - 1 <= queries.start + offset:
        return allowed
    seen = np.arange(keys.start, keys.stop) <= np.arange(queries.start, queries.stop)[:, None] + offset
    return seen if allowed is None else seen & allowed


def hide(S, allowed):
    """Set S to -inf where `allowed` is False, in place; S is a fresh tile, allowed bool of its shape or None.

    Selected by bits: np.where branches at each element, and a random mask makes that as slow as the matmuls.
    """
    if allowed is None:
        return
    integer = np.int32 if S.dtype == np.float32 else np.int64
    bits, keep = np.asarray(S).view(integer), -allowed.astype(integer)  # keep: all ones where visible
    minus_infinity = S.dtype.type(-np.inf).view(integer)
    np.bitwise_and(bits, keep, out=bits)
    np.bitwise_or(bits, ~keep & minus_infinity, out=bits)
