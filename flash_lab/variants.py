"""One online step, and the few lines in which FlashAttention-1 and -2 differ.

A variant is a pair (step, finish). `step(state, S, V, scale)` takes the state so far, a tile's raw scores
S (..., n) and its values V (n, d_v), and returns the state that includes the tile.
`finish(state)` returns (o, lse) once, at the end. A state's m is the max of the scaled scores.
FA1 divides by l at every step, FA2 once at the end; FA2_EXP2 is FA2 with exp2 in place of exp.

Source: Dao et al. 2022 (arXiv 2205.14135), Algorithm 1, for FA1; Dao 2023 (arXiv 2307.08691), Algorithm 1, for FA2,
and its kernel's softmax.h for exp2.
"""

import math
from collections.abc import Callable
from itertools import accumulate as _accumulate
from typing import NamedTuple

import numpy as np

from .state import EMPTY, State, finite_reference, lse, safe_divisor, to_output_lse

LOG2_E = math.log2(math.e)


class Variant(NamedTuple):
    """A named pair of functions: what a tile does to the state, and what the last state gives.

    name: for tables; step: (state, S, V, scale) to State; finish: State to (o, lse).
    """

    name: str
    step: Callable
    finish: Callable


def accumulate(tiles, step, scale, initial=EMPTY):
    """Yield the state before the first tile and after each one: the trace of the online pass.

    tiles: an iterable of (S, V) with raw scores S (..., n) and values V (n, d_v); step: that of a variant;
    scale: a float that multiplies the scores; initial: the State to start from.
    """
    return _accumulate(tiles, lambda state, tile: step(state, *tile, scale), initial=initial)


def exp_scores(S, scale, reference):
    """exp(scale * S - reference), in one new buffer: a second one would fall out of the cache."""
    P = S * scale
    P -= reference[..., None]
    return np.exp(P, out=P)


def fa2_step(state, S, V, scale):
    """FlashAttention-2, Algorithm 1, lines 8 to 10: o stays unnormalised, alpha brings it to the new max."""
    m = np.maximum(state.m, scale * S.max(axis=-1, initial=-np.inf))
    reference = finite_reference(m)
    P = exp_scores(S, scale, reference)
    alpha = np.exp(state.m - reference)
    l = alpha * state.l + P.sum(axis=-1)
    return State(m, l, alpha[..., None] * state.o + P @ V)


def fa1_step(state, S, V, scale):
    """FlashAttention-1, Algorithm 1, lines 10 to 13: o is the output so far, divided by l at every step."""
    m_tile = scale * S.max(axis=-1, initial=-np.inf)
    P = exp_scores(S, scale, finite_reference(m_tile))
    m = np.maximum(state.m, m_tile)
    reference = finite_reference(m)
    alpha, beta = np.exp(state.m - reference), np.exp(m_tile - reference)
    l = alpha * state.l + beta * P.sum(axis=-1)
    kept = np.asarray(state.l)[..., None] * (alpha[..., None] * state.o)
    return State(m, l, (kept + beta[..., None] * (P @ V)) / safe_divisor(l)[..., None])


def fa2_exp2_step(state, S, V, scale):
    """`fa2_step` with exp2, the exponential that GPUs have: log2 e folded into the scale; m stays in natural units."""
    m = np.maximum(state.m, scale * S.max(axis=-1, initial=-np.inf))
    reference = finite_reference(m) * LOG2_E
    P = S * (scale * LOG2_E)
    P -= reference[..., None]
    np.exp2(P, out=P)
    alpha = np.exp2(state.m * LOG2_E - reference)
    l = alpha * state.l + P.sum(axis=-1)
    return State(m, l, alpha[..., None] * state.o + P @ V)


FA1 = Variant("FA1", fa1_step, finish=lambda state: (state.o, lse(state)))
FA2 = Variant("FA2", fa2_step, finish=to_output_lse)
FA2_EXP2 = Variant("FA2 exp2", fa2_exp2_step, finish=to_output_lse)


def keep(x):
    """No rounding."""
    return x


def rounded(scores=keep, P=keep, l=keep, o=keep, output=keep):
    """FA2 with a rounding at each of its places, handed in as functions from array to array, such as `FP16.round`.

    scores: the scaled scores; P: only where it meets V, for kernels add the unrounded P to l; l and o: the sums,
    after every tile; output: the quotient. Nothing is rounded by default. Returns a Variant.
    """

    def step(state, S, V, scale):
        S = scores(scale * S)
        m = np.maximum(state.m, S.max(axis=-1, initial=-np.inf))
        reference = finite_reference(m)
        P_exact, alpha = np.exp(S - reference[..., None]), np.exp(state.m - reference)
        new_o = alpha[..., None] * state.o + P(P_exact) @ V
        return State(m, l(alpha * state.l + P_exact.sum(axis=-1)), o(new_o))

    def finish(state):
        quotient, log = to_output_lse(state)
        return output(quotient), log

    return Variant("rounded", step, finish)
