"""The algebra of states: laws of the merge, the empty state, both forms of a state, and the online step."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash_lab import (
    EMPTY,
    FA1,
    FA2,
    FA2_EXP2,
    State,
    accumulate,
    bound_in_u,
    empty_state,
    from_output_lse,
    lse,
    merge_states,
    merge_tree,
    output,
    partial_state,
    rounded,
    softmax_2pass,
    softmax_3pass,
    to_output_lse,
    worst_in_u,
)

VARIANTS = pytest.mark.parametrize("variant", [FA1, FA2], ids=["FA1", "FA2"])


@st.composite
def rows(draw, dtype=np.float64):
    """Scores (rows, n) of any size up to 300, some masked, some rows wholly; V (n, d_v)."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, count, d_v = draw(st.integers(0, 12)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    S = rng.standard_normal((count, n)) * draw(st.sampled_from([0.0, 1.0, 30.0, 300.0]))
    S = np.where(rng.random((count, n)) < draw(st.sampled_from([0.0, 0.3, 1.0])), -np.inf, S)
    return (S + draw(st.sampled_from([0.0, -1e4, 1e4]))).astype(dtype), rng.standard_normal((n, d_v)).astype(dtype)


def cut(S, V, cuts):
    return list(zip(np.split(S, cuts, axis=-1), np.split(V, cuts), strict=True))


def exact(S, V):
    """(o, lse) by plain sums in float64, row by row, with empty rows left out of the division."""
    S, V = S.astype(np.float64), V.astype(np.float64)
    o, logs = np.zeros((len(S), V.shape[1])), np.full(len(S), -np.inf)
    for i, s in enumerate(S):
        if np.any(s > -np.inf):
            p = np.exp(s - s.max())
            o[i], logs[i] = p @ V / p.sum(), s.max() + np.log(p.sum())
    return o, logs


def close(state, S, V, blocks=1):
    """Whether a state's output and lse are within the bound of the exact ones."""
    o, logs = exact(S, V)
    eps = np.finfo(S.dtype).eps
    bound = bound_in_u(S, blocks)
    error = worst_in_u(output(state), o, eps * exact(S, np.abs(V))[0])
    finite = np.isfinite(logs)
    return (
        error <= bound
        and np.array_equal(lse(state)[~finite], logs[~finite])
        and np.all(np.abs(lse(state)[finite] - logs[finite]) <= bound * eps * np.maximum(1, np.abs(logs[finite])))
    )


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@given(rows(), st.data())
def test_any_cut_in_any_grouping_gives_the_whole_rows_result(row, data):
    S, V = row
    cuts = sorted(data.draw(st.lists(st.integers(0, S.shape[1]), max_size=5)))
    order = data.draw(st.permutations(range(len(cuts) + 1)))
    parts = [partial_state(*part) for part in cut(S, V, cuts)]
    for state in (reduce(merge_states, parts), merge_tree(parts), reduce(merge_states, [parts[i] for i in order])):
        assert close(state, S, V, len(parts))


@given(rows(), st.integers(0, 12))
def test_merging_is_commutative_bit_for_bit(row, where):
    a, b = (partial_state(*part) for part in cut(*row, [where]))
    assert same(merge_states(a, b), merge_states(b, a))


@given(rows())
def test_the_empty_state_is_neutral_bit_for_bit(row):
    a = partial_state(*row)
    for empty in (
        EMPTY,
        partial_state(np.full_like(row[0], -np.inf), row[1]),
        partial_state(row[0][:, :0], row[1][:0]),
    ):
        assert same(merge_states(a, empty), a) and same(merge_states(empty, a), a)
        assert same(merge_states(merge_states(empty, empty), a), a)


@given(rows(), st.integers(0, 12))
def test_the_normalised_form_merges_like_the_state(row, where):
    a, b = (from_output_lse(*to_output_lse(partial_state(*part))) for part in cut(*row, [where]))
    S, V = row
    finite = np.abs(S[np.isfinite(S)])
    state = merge_states(a, b)
    slack = 2 + 4 * max(finite, default=0.0)  # an lse of this size is itself rounded
    assert close(State(state.m, state.l, state.o), S, V, slack)


@pytest.mark.parametrize("step", [FA1, FA2])
@given(row=rows(), block=st.integers(1, 14), scale=st.sampled_from([1.0, 0.125, 3.0]))
def test_the_online_step_gives_the_whole_rows_result_at_any_block_size(step, row, block, scale):
    S, V = row
    tiles = cut(S, V, range(block, S.shape[1], block)) if S.shape[1] else []
    start = empty_state(S, V.shape[1])
    *_before, state = accumulate(tiles, step.step, scale, start)
    o, logs = step.finish(state)
    assert close(
        from_output_lse(o, logs), scale * S, V, len(tiles) + 4 + np.max(np.abs(logs[np.isfinite(logs)]), initial=0)
    )


@pytest.mark.parametrize("variant", [FA1, FA2, FA2_EXP2, rounded()], ids=lambda variant: variant.name)
def test_a_tile_without_keys_leaves_the_state_as_it_is(variant):
    tiles = [(np.zeros(0), np.zeros((0, 1))), (np.array([2.0]), np.ones((1, 1))), (np.zeros(0), np.zeros((0, 1)))]
    _start, empty, one, still_one = accumulate(tiles, variant.step, 1.0)
    assert np.all(np.equal(empty.l, 0)) and same(one, still_one)


@VARIANTS
def test_the_trace_starts_with_the_given_state_and_has_one_state_per_tile(variant):
    tiles = [(np.array([1.0, 3.0]), np.eye(2)), (np.array([2.0]), np.ones((1, 2)))]
    trace = list(accumulate(tiles, variant.step, 1.0))
    assert trace[0] is EMPTY and [float(state.m) for state in trace] == [-np.inf, 3, 3]


@settings(max_examples=30)
@given(rows(), st.sampled_from([-1000.0, 0.5, 700.0]))
def test_adding_a_constant_to_every_score_moves_only_the_lse(row, shift):
    S, V = row
    S = np.where(np.isfinite(S), np.round(S * 8) / 8, S)  # so that the shift itself is exact
    plain, shifted = partial_state(S, V), partial_state(S + shift, V)
    assert np.array_equal(output(plain), output(shifted))
    assert np.allclose(lse(plain) + shift, lse(shifted), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("softmax", [softmax_2pass, softmax_3pass])
@pytest.mark.parametrize("block", [None, 1, 2, 5, 100])
@given(row=rows())
@settings(max_examples=20)
def test_softmax_of_a_row_sums_to_one_and_orders_as_its_scores(softmax, block, row):
    S, _V = row
    p, logs = softmax(S, block)
    _o, expected = exact(S, np.ones((S.shape[1], 1)))
    seen = np.isfinite(expected)
    assert p.shape == S.shape
    assert np.allclose(p.sum(axis=-1), seen) and np.all(p >= 0)
    assert np.allclose(logs, expected, rtol=1e-13, atol=1e-12)
    with np.errstate(invalid="ignore"):
        assert np.allclose(p[seen], np.exp(S[seen] - expected[seen, None]), rtol=1e-10, atol=1e-300)


@pytest.mark.parametrize("softmax", [softmax_2pass, softmax_3pass])
@pytest.mark.parametrize("block", [None, 3, 8])
def test_the_largest_score_may_stand_anywhere_in_a_row(softmax, block):
    for place in range(8):
        s = np.zeros(8)
        s[place] = 2000.0
        p, logs = softmax(s, block)
        assert np.array_equal(p, np.arange(8) == place) and logs == 2000


def test_softmax_of_one_row_works_without_a_rows_dimension():
    p, _lse = softmax_3pass([1, 3, 2, 5])
    assert p.shape == (4,) and abs(p.sum() - 1) < 1e-15 and np.argmax(p) == 3


def test_one_key_returns_its_value_exactly():
    state = partial_state(np.array([[-1234.5], [7.0]]), np.array([[0.1, -3.0]]))
    assert np.array_equal(output(state), [[0.1, -3.0], [0.1, -3.0]])
    assert np.array_equal(lse(state), [-1234.5, 7.0])


def test_equal_scores_average_the_values():
    V = np.arange(12.0).reshape(4, 3)
    assert np.array_equal(output(partial_state(np.full((2, 4), -1e4), V)), np.tile(V.mean(axis=0), (2, 1)))


def test_a_nan_score_or_value_stays_visible():
    assert np.isnan(output(partial_state([0.0, np.nan], [[1.0], [2.0]]))).all()
    assert np.isnan(output(partial_state([0.0, 1.0], [[np.nan], [2.0]]))).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_dtype_is_kept(dtype):
    S, V = np.zeros((2, 3), dtype), np.ones((3, 2), dtype)
    a = partial_state(S, V)
    for state in (a, merge_states(a, a), merge_states(EMPTY, a), from_output_lse(*to_output_lse(a))):
        assert {x.dtype for x in state} == {np.dtype(dtype)}
        assert output(state).dtype == lse(state).dtype == dtype


def test_a_plain_triple_may_stand_for_a_state():
    m, l, o = partial_state(np.zeros((2, 3)), np.ones((3, 4)))
    assert m.shape == l.shape == (2,) and o.shape == (2, 4)
    assert same(merge_states((m, l, o), (m, l, o)), merge_states(State(m, l, o), State(m, l, o)))


@pytest.mark.parametrize(
    "S, V, words",
    [
        (np.zeros((2, 3)), np.zeros((4, 1)), "shape"),
        (np.float64(1.0), np.zeros((1, 1)), "shape"),
        (np.zeros(3), np.zeros(3), "shape"),
        (np.zeros(3, np.float16), np.zeros((3, 1)), "float16"),
        (np.zeros(3), np.zeros((3, 1), complex), "complex"),
    ],
)
def test_scores_and_values_that_do_not_fit_are_refused_in_one_sentence(S, V, words):
    with pytest.raises(ValueError, match=words) as error:
        partial_state(S, V)
    assert "\n" not in str(error.value)
