"""Closed formulas for what `counting` counts: equal to it exactly, and usable at sizes nobody wants to run.

Source: Dao et al. 2022 (arXiv 2205.14135), Algorithms 0 and 1, and Dao 2023 (arXiv 2307.08691), Algorithm 1: their
loops, counted line by line.
"""

from ._checks import check_block
from .counting import Work


def traffic_tiled(n_q, n_k, d, d_v, block_q):
    """The elements moved by `flash_forward` without a mask, by array name: K and V once per block of queries.

    n_q, n_k, d, d_v: sizes of Q (n_q, d), K (n_k, d) and V (n_k, d_v), of one head; block_q: queries in a block.
    block_k does not appear: it sets how much is on chip at once, not how often it comes.
    Returns a dict of ints. Raises ValueError for a block below 1. Source: Dao 2023, Algorithm 1; counted by `Tally`.
    """
    visits = -(-n_q // check_block(block_q, "block_q"))
    return {"Q": n_q * d, "K": visits * n_k * d, "V": visits * n_k * d_v, "O": n_q * d_v, "lse": n_q}


def traffic_keys_outside(n_q, n_k, d, d_v, block_k):
    """The elements moved with `keys_outside` and without a mask: K and V once, all else per block of keys.

    A state is written after each key block (the last time as O and lse) and read back before all but the first.
    block_k: keys in a block; the other arguments, the result and the errors as in `traffic_tiled`.
    Source: Dao et al. 2022, Algorithm 1, for the loop; counted by `Tally`.
    """
    visits = -(-n_k // check_block(block_k, "block_k"))
    waits = max(visits - 1, 0)
    moved = {"Q": visits * n_q * d, "K": n_k * d, "V": n_k * d_v, "O": (visits + waits) * n_q * d_v, "lse": n_q}
    return {**moved, "m": 2 * waits * n_q, "l": 2 * waits * n_q}


def traffic_full_matrix(n_q, n_k, d, d_v, score_accesses=4):
    """The elements moved when the scores are stored: every array once and each score `score_accesses` times.

    score_accesses: 4 where S is written and read, P written and read, with a fused softmax; 6 for the three-pass row.
    The other arguments and the result as in `traffic_tiled`. Source: Dao et al. 2022, Algorithm 0, for the 4.
    """
    return {"Q": n_q * d, "K": n_k * d, "V": n_k * d_v, "O": n_q * d_v, "scores": score_accesses * n_q * n_k}


def work_formula(variant, n_q, n_k, d, d_v, block_k):
    """The operations of `flash_forward` without a mask as a `Work`, terms of order rows * blocks left out.

    variant: "FA1" rescales o by alpha, by l, P @ V by beta, and divides by l at every tile; "FA2" rescales o by
    alpha at every tile and divides once at the end. block_k: keys in a block; the sizes as in `traffic_tiled`.
    Raises ValueError for a block below 1, KeyError for another variant.
    Source: Dao 2023, section 3.1, for what FA2 saves; counted by `Work`.
    """
    tiles, scores = -(-n_k // check_block(block_k, "block_k")), n_q * n_k
    rescale = {"FA1": 4 * tiles, "FA2": tiles + 1}[variant] * n_q * d_v
    each = dict.fromkeys(("scale", "max", "subtract", "exp", "sum"), scores)
    return Work(matmul=2 * scores * (d + d_v), rescale=rescale, **each)
