"""Closed formulas for what `counting` counts: equal to it exactly, and usable at sizes nobody wants to run."""

from .counting import Work


def traffic_tiled(n_q, n_k, d, d_v, block_q):
    """Elements moved by `flash_forward` without a mask, by array name: K and V once per block of queries.

    block_k does not appear: it sets how much is on chip at once, not how often it comes.
    Source: FlashAttention-2, section 3.1, for the loop; counted by `Tally`.
    """
    visits = -(-n_q // block_q)
    return {"Q": n_q * d, "K": visits * n_k * d, "V": visits * n_k * d_v, "O": n_q * d_v, "lse": n_q}


def traffic_keys_outside(n_q, n_k, d, d_v, block_k):
    """Elements moved by `flash_forward` with `keys_outside` and without a mask: K and V once, all else per key block.

    A state is written after each key block (the last time as O and lse) and read back before all but the first.
    Source: FlashAttention-1, Algorithm 1, for the loop; counted by `Tally`.
    """
    visits = -(-n_k // block_k)
    waits = max(visits - 1, 0)
    moved = {"Q": visits * n_q * d, "K": n_k * d, "V": n_k * d_v, "O": (visits + waits) * n_q * d_v, "lse": n_q}
    return {**moved, "m": 2 * waits * n_q, "l": 2 * waits * n_q}


def traffic_full_matrix(n_q, n_k, d, d_v, score_accesses=4):
    """Elements moved when the scores are stored: every array once and each score `score_accesses` times.

    4 accesses: S written and read, P written and read, with a fused softmax. 6: the three-pass row.
    """
    return {"Q": n_q * d, "K": n_k * d, "V": n_k * d_v, "O": n_q * d_v, "scores": score_accesses * n_q * n_k}


def work_formula(variant, n_q, n_k, d, d_v, block_k):
    """Operations of `flash_forward` without a mask as a `Work`, terms of order rows * blocks left out.

    variant: "FA1" rescales o by alpha, by l, P @ V by beta, and divides by l at every tile; "FA2" rescales o by
    alpha at every tile and divides once at the end. Raises KeyError for another name.
    """
    tiles, scores = -(-n_k // block_k), n_q * n_k
    rescale = {"FA1": 4 * tiles, "FA2": tiles + 1}[variant] * n_q * d_v
    each = dict.fromkeys(("scale", "max", "subtract", "exp", "sum"), scores)
    return Work(matmul=2 * scores * (d + d_v), rescale=rescale, **each)
