"""Problem cases as data, every way the library has of turning one query's scores into (o, lse), and one slip."""

import json
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

import flash_lab
from flash_lab import (
    EMPTY,
    State,
    Variant,
    accumulate,
    attention,
    attention_1pass,
    attention_2pass,
    attention_3pass,
    empty_state,
    flash_forward,
    from_output_lse,
    keys_outside,
    merge_states,
    merge_tree,
    partial_state,
    queries_outside,
    queries_outside_reversed,
    row_tiles,
    softmax_2pass,
    softmax_3pass,
    to_output_lse,
)

FILES = sorted(Path(__file__).parent.glob("famil*.json"))
CASES = {case["id"]: case for file in FILES for case in json.loads(file.read_text(encoding="utf-8"))}
DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])
VARIANTS = [variant for variant in vars(flash_lab).values() if isinstance(variant, Variant)]
ORDERS = [queries_outside, queries_outside_reversed, keys_outside]


def case(name):
    """(inputs, expected) of one case."""
    return CASES[name]["inputs"], CASES[name]["expected"]


def numbers(values, dtype=np.float64):
    """Data as an array; NumPy reads the words "Infinity" and "NaN" too."""
    return np.array(values, dtype)


def row(name, which, dtype=np.float64):
    """(S, V) of one of the rows of a case: of S_x and V_x for "_x"."""
    given, _expected = case(name)
    return numbers(given[f"S{which}"], dtype), numbers(given[f"V{which}"], dtype)


def qkv_of_c1(dtype=np.float64):
    given, _expected = case("C1")
    q, K = np.full(given["d"], given["every_q"], dtype), np.outer(given["every_k"], np.ones(given["d"])).astype(dtype)
    return q, K, numbers(given["V"], dtype)


def row_of_c2(dtype=np.float64):
    given, _expected = case("C2")
    V = np.repeat(numbers(given["V_halves"], dtype), given["n"] // 2, axis=0)
    return np.full(given["n"], given["every_score"], dtype), V


def qkv_of_c7(dtype):
    given, _expected = case("C7")
    rng = np.random.default_rng(given["seed"])
    shapes = given["d"], (given["n"], given["d"]), (given["n"], given["d_v"])
    return [rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes]


def rtol(expected, dtype):
    """The case's own tolerance in float64, some roundings in float32."""
    return expected["rtol"] if dtype == np.float64 else 1e-6


def every_way(q, K, V, scale=1.0, blocks=None):
    """Yield (name, o, lse) for one query q (d,) over keys K (n, d) and values V (n, d_v), whole and in blocks."""
    S, Q, blocks = scale * (K @ q), np.stack([q] * 3), blocks or [*range(1, len(K) + 1), len(K) + 3]
    yield "partial_state", *to_output_lse(partial_state(S, V))
    yield from full_and_tiled(Q, K, V, [(i, j) for i in (1, 2) for j in blocks], scale=scale)
    for block in blocks:
        for name, o, lse in in_blocks(q, K, V, S, scale, block):
            yield f"{name}, block {block}", o, lse


def every_way_of_scores(S, V, blocks=None):
    """`every_way` for scores S (n,), as keys of one dimension: times an identity, -inf would become NaN.

    Masked ones are hidden by a mask too, from behind which a large score would be seen.
    """
    ones, hidden = np.ones((3, 1), S.dtype), np.isneginf(S)
    yield from every_way(ones[0], S[:, None], V, blocks=blocks)
    K = np.where(hidden, S.dtype.type(1e4), S)[:, None]
    pairs = [(i, j) for i in (1, 2) for j in blocks or [*range(1, len(S) + 1)]]
    yield from full_and_tiled(ones, K, V, pairs, scale=1.0, mask=~hidden)


def full_and_tiled(Q, K, V, pairs, **options):
    """The ways for all queries at once: `attention`, and `flash_forward` for pairs of blocks (of queries, of keys)."""
    yield f"attention {options}", *attention(Q, K, V, **options)
    for variant in VARIANTS:
        for order in ORDERS:
            for i, j in pairs:
                tiled = flash_forward(Q, K, V, block_q=i, block_k=j, variant=variant, order=order, **options)
                yield f"{variant.name} {order.__name__}, blocks {i}, {j}, {options}", *tiled


def in_blocks(q, K, V, S, scale, block):
    """The ways for one query: softmax, passes, and states merged or accumulated in several orders and in both forms."""
    for softmax in softmax_2pass, softmax_3pass:
        p, lse = softmax(S, block)
        yield softmax.__name__, p @ V, lse
    yield "2 passes", *attention_2pass(q, K, V, block, scale)
    yield "3 passes", *attention_3pass(q, K, V, block, scale)
    parts = [partial_state(*tile) for tile in cut(S, V, block)] or [empty_state(q, V.shape[1])]
    normalised = [from_output_lse(*to_output_lse(part)) for part in parts]
    for form, states in ("states", parts), ("(o, lse) pairs", normalised):
        yield f"{form} merged in order", *to_output_lse(reduce(merge_states, states))
        yield f"{form} merged in reverse", *to_output_lse(reduce(merge_states, states[::-1]))
        yield f"{form} merged as a tree", *to_output_lse(merge_tree(states))
    tiles = list(row_tiles(q, K, V, block))
    for variant in VARIANTS:
        yield f"1 pass {variant.name}", *attention_1pass(q, K, V, block, scale, variant)
        for order, sequence in ("in order", tiles), ("in reverse", tiles[::-1]):
            for start in EMPTY, empty_state(q, V.shape[1]):
                yield f"{variant.name} steps {order}", *variant.finish(last(sequence, variant.step, scale, start))


def cut(S, V, block):
    """The (S, V) tiles of a row, `block` keys each."""
    return [(S[i : i + block], V[i : i + block]) for i in range(0, len(S), block)]


def last(tiles, step, scale=1.0, start=EMPTY):
    """The state after the last tile."""
    *_before, state = accumulate(tiles, step, scale, start)
    return state


def unguarded_step(state, S, V, scale):
    """The slip: the FA2 step without the rule for rows that have seen no key."""
    m = np.maximum(state.m, scale * S.max(axis=-1))
    with np.errstate(invalid="ignore"):
        P, alpha = np.exp(scale * S - m[..., None]), np.exp(state.m - m)
        return State(m, alpha * state.l + P.sum(axis=-1), alpha[..., None] * state.o + P @ V)


def disagreeing(ways, out, lse=None, rtol=0.0, moved=0.0):
    """The names of the ways whose o or lse is not the expected one; at least one way is needed.

    moved: how far storing the scores moved them, which moves o (relatively) and lse by as much.
    """
    ways = list(ways)
    assert ways

    def off(got, expected):
        return not np.allclose(got, numbers(expected), rtol=rtol + moved, atol=moved, equal_nan=True)

    return [name for name, o, l in ways if off(o, out) or (lse is not None and off(l, lse))]
