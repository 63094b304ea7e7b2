"""Tiled and row-wise attention against the dense reference in float64, and both counters against their formulas."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flash_lab
from flash_lab import (
    FA1,
    FA2,
    Counted,
    Tally,
    Work,
    attention,
    attention_1pass,
    attention_2pass,
    attention_3pass,
    bound_in_u,
    exact_and_unit,
    flash_forward,
    traffic_full_matrix,
    traffic_tiled,
    work_formula,
    worst_in_u,
)

ROW_WISE = [attention_1pass, attention_2pass, attention_3pass]
VARIANTS = pytest.mark.parametrize("variant", [FA1, FA2], ids=["FA1", "FA2"])


def random_qkv(n_q, n_k, d, d_v, seed, dtype=np.float32, size=1.0):
    rng = np.random.default_rng(seed)
    Q, K, V = (rng.standard_normal(shape) for shape in ((n_q, d), (n_k, d), (n_k, d_v)))
    return (size * Q).astype(dtype), K.astype(dtype), V.astype(dtype)


def largest_spread(Q, K, scale):
    scores = scale * (Q.astype(np.float64) @ K.T.astype(np.float64))
    return scores if scores.size else np.zeros((1, 1))


@VARIANTS
@settings(max_examples=60)
@given(
    n_q=st.integers(0, 20),
    n_k=st.integers(0, 20),
    d=st.integers(1, 9),
    d_v=st.integers(1, 5),
    block_q=st.integers(1, 24),
    block_k=st.integers(1, 24),
    causal=st.booleans(),
    size=st.sampled_from([0.0, 1.0, 50.0]),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 99),
)
def test_tiled_attention_is_the_dense_one_for_any_shape_and_block(
    variant, n_q, n_k, d, d_v, block_q, block_k, causal, size, dtype, seed
):
    Q, K, V = random_qkv(n_q, n_k, d, d_v, seed, dtype, size)
    O, lse = flash_forward(Q, K, V, block_q=block_q, block_k=block_k, causal=causal, variant=variant)
    wide = [x.astype(np.float64) for x in (Q, K, V)]
    exact, unit = exact_and_unit(Q, K, V, causal=causal)
    _O, exact_lse = attention(*wide, causal=causal)
    assert O.shape == (n_q, d_v) and lse.shape == (n_q,) and O.dtype == lse.dtype == dtype
    scores = largest_spread(Q, K, 1 / math.sqrt(d))
    # a score itself is off by about eps * |q| |k|: the 8 covers that of normal data, not of data 50 times as large
    assert worst_in_u(O, exact, unit) <= (2 if variant is FA2 else 4) * bound_in_u(scores, -(-n_k // block_k))
    assert np.array_equal(np.isneginf(lse), np.isneginf(exact_lse))
    seen = np.isfinite(exact_lse)
    assert np.allclose(lse[seen], exact_lse[seen], rtol=30 * np.finfo(dtype).eps, atol=30 * np.finfo(dtype).eps)


def test_the_printed_bound_holds_over_200_seeds():
    for seed in range(200):
        Q, K, V = random_qkv(3, 700, 64, 8, seed)
        exact, unit = exact_and_unit(Q, K, V)
        scores = largest_spread(Q, K, 64**-0.5)
        for variant in (FA1, FA2):
            for block in (64, 257):
                O, _lse = flash_forward(Q, K, V, block_q=2, block_k=block, variant=variant)
                assert worst_in_u(O, exact, unit) <= bound_in_u(scores, -(-700 // block)), (seed, variant.name, block)


@pytest.mark.parametrize("algorithm", ROW_WISE)
@settings(max_examples=30)
@given(n=st.integers(0, 40), d=st.integers(1, 9), block=st.integers(1, 50), seed=st.integers(0, 99))
def test_one_query_in_one_two_or_three_passes_is_the_dense_result(algorithm, n, d, block, seed):
    Q, K, V = random_qkv(1, n, d, 3, seed)
    o, lse = algorithm(Q[0], K, V, block)
    exact, unit = exact_and_unit(Q, K, V)
    assert o.shape == (3,) and o.dtype == np.float32
    assert worst_in_u(o, exact[0], unit[0]) <= bound_in_u(largest_spread(Q, K, d**-0.5), -(-n // block))
    assert np.isclose(lse, attention(Q, K, V)[1][0], rtol=1e-5, atol=1e-6) or n == 0 and lse == -np.inf


@VARIANTS
def test_causal_rows_that_see_no_key_are_zero_with_lse_minus_infinity(variant):
    Q, K, V = random_qkv(7, 3, 4, 2, seed=1)
    O, lse = flash_forward(Q, K, V, block_q=2, block_k=2, causal=True, variant=variant)
    assert np.array_equal(O[:4], np.zeros((4, 2))) and np.all(lse[:4] == -np.inf)
    assert np.array_equal(O[4], V[0]) and np.all(np.isfinite(lse[4:]))


def test_one_query_after_many_keys_sees_them_all_under_the_causal_mask():
    Q, K, V = random_qkv(1, 9, 4, 2, seed=2)
    args = {"block_q": 4, "block_k": 4}
    assert np.array_equal(flash_forward(Q, K, V, causal=True, **args)[0], flash_forward(Q, K, V, **args)[0])


def test_a_hidden_key_has_no_influence_whatever_its_size():
    Q, K, V = random_qkv(6, 6, 4, 2, seed=3)
    before = flash_forward(Q, K, V, block_q=4, block_k=4, causal=True)[0]
    K[5], V[5] = 1e30, -1e30
    assert np.array_equal(flash_forward(Q, K, V, block_q=4, block_k=4, causal=True)[0][:5], before[:5])


@VARIANTS
def test_identical_keys_average_the_values_and_one_key_returns_its_own(variant):
    Q, K, V = random_qkv(5, 8, 4, 3, seed=4, dtype=np.float64)
    O, _lse = flash_forward(Q, np.ones_like(K), V, block_q=2, block_k=3, variant=variant)
    assert np.allclose(O, V.mean(axis=0), rtol=1e-14)
    O, _lse = flash_forward(Q, K[:1], V[:1], block_q=2, block_k=3, variant=variant)
    assert np.array_equal(O, np.tile(V[0], (5, 1)))


def test_the_output_lies_within_the_values():
    Q, K, V = random_qkv(9, 30, 4, 3, seed=5, dtype=np.float64, size=5)
    O, _lse = flash_forward(Q, K, V, block_q=4, block_k=7)
    assert np.all(V.max(axis=0) + 1e-12 >= O) and np.all(V.min(axis=0) - 1e-12 <= O)


def test_the_order_of_the_keys_does_not_matter():
    Q, K, V = random_qkv(4, 50, 8, 3, seed=6, dtype=np.float64)
    order = np.random.default_rng(0).permutation(50)
    a, b = (flash_forward(Q, K[i], V[i], block_q=4, block_k=7)[0] for i in (slice(None), order))
    assert np.allclose(a, b, rtol=1e-13, atol=1e-14)


def test_scale_multiplies_the_scores():
    Q, K, V = random_qkv(3, 5, 4, 2, seed=7, dtype=np.float64)
    a = flash_forward(Q, K, V, block_q=2, block_k=2, scale=2.0)
    b = flash_forward(2 * Q, K, V, block_q=2, block_k=2, scale=1.0)
    assert np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1])


def test_the_inputs_are_not_changed_and_views_of_any_stride_work():
    Q, K, V = random_qkv(6, 6, 4, 4, seed=8, dtype=np.float64)
    before = [x.copy() for x in (Q, K, V)]
    flash_forward(Q, K, V, block_q=2, block_k=2, causal=True)
    assert all(np.array_equal(x, y) for x, y in zip((Q, K, V), before, strict=True))
    strided = [x.repeat(2, axis=0)[::2, ::-1] for x in (Q, K, V)]
    expected = attention(*[np.ascontiguousarray(x) for x in strided])[0]
    assert np.allclose(flash_forward(*strided, block_q=4, block_k=4)[0], expected, rtol=1e-13)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"Q": np.zeros((2, 3))}, "head size 3 and keys 4"),
        ({"V": np.zeros((5, 2))}, "6 keys and 5 values"),
        ({"K": np.zeros(4)}, "2 dimensions"),
        ({"Q": np.zeros((2, 4), np.float32)}, "the same"),
        ({"Q": np.zeros((2, 4), np.float16)}, "float16"),
        ({"Q": np.zeros((2, 4), int)}, "int64"),
        ({"Q": [[1.0] * 4]}, "list"),
        ({"block_q": 0}, "block_q is 0"),
        ({"block_k": -1}, "block_k is -1"),
        ({"block_k": 2.5}, "2.5"),
        ({"block_k": True}, "True"),
        ({"block_k": "64"}, "'64'"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"scale": math.nan}, "scale is nan"),
        ({"scale": "big"}, "scale is 'big'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_one_sentence(change, words):
    arguments = {"Q": np.zeros((2, 4)), "K": np.zeros((6, 4)), "V": np.zeros((6, 2)), "block_q": 2, "block_k": 2}
    arguments.update(change)
    with pytest.raises(ValueError, match=words) as error:
        flash_forward(arguments.pop("Q"), arguments.pop("K"), arguments.pop("V"), **arguments)
    assert "\n" not in str(error.value)


@settings(max_examples=40)
@given(n_q=st.integers(1, 40), n_k=st.integers(1, 40), block_q=st.integers(1, 50), block_k=st.integers(1, 50))
def test_counted_traffic_equals_the_formula_and_does_not_depend_on_block_k(n_q, n_k, block_q, block_k):
    Q, K, V = random_qkv(n_q, n_k, 4, 3, seed=0)
    tally = Tally()
    O, lse = flash_forward(*tally.count(Q=Q, K=K, V=V), block_q=block_q, block_k=block_k)
    formula = traffic_tiled(n_q, n_k, 4, 3, block_q)
    assert {name: tally.elements(name) for name in formula} == formula
    assert tally.elements() == sum(formula.values()) and tally.bytes(2) == 2 * tally.elements()
    plain = flash_forward(Q, K, V, block_q=block_q, block_k=block_k)
    assert np.array_equal(O.uncounted(), plain[0]) and np.array_equal(lse.uncounted(), plain[1])


def test_causal_skips_the_tiles_it_hides():
    Q, K, V = random_qkv(64, 64, 4, 4, seed=0)
    tally = Tally()
    flash_forward(*tally.count(Q=Q, K=K, V=V), block_q=16, block_k=16, causal=True)
    assert tally.elements("K") == (1 + 2 + 3 + 4) * 16 * 4


@VARIANTS
@settings(max_examples=30)
@given(
    n_q=st.integers(1, 30),
    n_k=st.integers(1, 30),
    d_v=st.integers(1, 4),
    block_q=st.integers(1, 40),
    block_k=st.integers(1, 40),
)
def test_counted_work_equals_the_formula(variant, n_q, n_k, d_v, block_q, block_k):
    Q, K, V = random_qkv(n_q, n_k, 5, d_v, seed=0)
    work = Work()
    flash_forward(*map(work.array, (Q, K, V)), block_q=block_q, block_k=block_k, variant=variant)
    tiles = -(-n_k // block_k)
    assert 0 < work.pop("per_row") <= 60 * n_q * tiles
    assert work == work_formula(variant.name, n_q, n_k, 5, d_v, block_k)


def test_the_lectures_figures_come_out_of_the_formulas():
    work = {name: work_formula(name, 4096, 4096, 128, 128, 128) for name in ("FA1", "FA2")}
    giga = {name: [round(x / 1e9, 3) for x in (w["matmul"], w.non_matmul(), w["rescale"])] for name, w in work.items()}
    assert giga == {"FA1": [8.590, 0.134, 0.067], "FA2": [8.590, 0.084, 0.017]}
    mib = [round(2 * sum(traffic_tiled(4096, 4096, 64, 64, block_q).values()) / 2**20) for block_q in (1, 32, 128)]
    assert mib == [4097, 129, 33]
    assert [round(2 * sum(traffic_full_matrix(4096, 4096, 64, 64, n).values()) / 2**20) for n in (4, 6)] == [130, 194]


@pytest.mark.parametrize("algorithm, expected", list(zip(ROW_WISE, (524_288, 786_432, 548_864), strict=True)))
def test_one_query_moves_what_its_passes_read(algorithm, expected):
    Q, K, V = random_qkv(1, 4096, 64, 64, seed=0)
    tally = Tally()
    algorithm(Q[0], *tally.count(K=K, V=V), 256)
    assert tally.elements() == expected


@pytest.mark.parametrize(
    "use",
    [
        lambda x: np.asarray(x),
        lambda x: x @ np.ones(3),
        lambda x: np.ones(2) @ x,
        lambda x: x * 2,
        lambda x: 2 * x,
        lambda x: np.exp(x),
        lambda x: np.max(x),
        lambda x: list(x),
        lambda x: [*zip(x, x, strict=True)],
        lambda x: np.concatenate([x, x]),
        lambda x: x[0:1].__setitem__((0, 0), 1.0),
    ],
)
def test_nothing_but_slices_escapes_a_counted_array(use):
    (counted,) = Tally().count(X=np.ones((2, 3)))
    with pytest.raises((TypeError, ValueError)):
        use(counted)


def test_reads_and_writes_of_a_counted_array_are_logged_with_their_elements():
    tally = Tally()
    (X,) = tally.count(X=np.zeros((4, 3)))
    X[1:3] = 7.0
    assert np.array_equal(X[2:4], [[7, 7, 7], [0, 0, 0]])
    assert [(a.array, a.kind, a.elements) for a in tally.log] == [("X", "write", 6), ("X", "read", 6)]
    assert tally.elements("X", "write") == 6 and tally.elements(kind="read") == 6
    assert isinstance(X, Counted) and X.shape == (4, 3) and len(X) == 4 and X.dtype == np.float64


def test_an_error_that_is_nan_is_the_worst_there_is():
    assert worst_in_u(np.array([np.nan, 1.0]), np.array([1.0, 1.0]), 1.0) == np.inf
    assert worst_in_u(np.array([2.0]), np.array([1.0]), 0.0) == np.inf
    assert worst_in_u(np.array([1.0, -np.inf]), np.array([1.0, -np.inf]), 0.0) == 0
    assert worst_in_u(np.array([[1.5, 3.0]]), np.array([[1.0, 1.0]]), np.array([[0.5, 0.5]])) == 4


def test_every_public_name_is_there_and_has_a_docstring():
    for name in flash_lab.__all__:
        thing = getattr(flash_lab, name)
        assert not callable(thing) or thing.__doc__, name
