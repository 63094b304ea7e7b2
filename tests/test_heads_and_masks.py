"""Batch and heads, masks, tile orders and variants, against a reference that computes one row at a time."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash_lab import (
    FA1,
    FA2,
    FA2_EXP2,
    Tally,
    attention,
    bound_in_u,
    flash_forward,
    keys_outside,
    queries_outside,
    queries_outside_reversed,
    rounded,
    traffic_keys_outside,
    worst_in_u,
)
from numfmt import BF16, FP16

VARIANTS = [FA1, FA2, FA2_EXP2, rounded()]
ORDERS = [queries_outside, queries_outside_reversed, keys_outside]
CAUSAL = [False, True, "bottom-right", "top-left"]


def row_by_row(Q, K, V, causal, mask, scale):
    """(O, lse, u, scores) in float64, with plain loops over heads and rows; empty rows give 0 and -inf."""
    eps = np.finfo(Q.dtype).eps
    Q, K, V = (x.astype(np.float64) for x in (Q, K, V))
    n_q, n_k = Q.shape[-2], K.shape[-2]
    O, lse = np.zeros((*Q.shape[:-1], V.shape[-1])), np.full(Q.shape[:-1], -np.inf)
    u, scores = np.zeros_like(O), np.full((*Q.shape[:-1], n_k), -np.inf)
    mask = np.broadcast_to(True if mask is None else mask, scores.shape)
    group = Q.shape[-3] // K.shape[-3] if Q.ndim > 2 else 1
    for index in itertools.product(*(range(n) for n in Q.shape[:-1])):
        *head, i = index
        kv = (*head[:-1], head[-1] // group) if head else ()
        last = {False: n_k, "top-left": i}.get(causal, i + n_k - n_q)
        seen = [j for j in range(n_k) if mask[(*index, j)] and (causal is False or j <= last)]
        if not seen:
            continue
        s = scale * (K[kv][seen] @ Q[index])
        p = np.exp(s - s.max())
        O[index], lse[index] = p @ V[kv][seen] / p.sum(), s.max() + np.log(p.sum())
        u[index], scores[index][seen] = eps * (p @ np.abs(V[kv][seen]) / p.sum()), s
    return O, lse, u, scores


@st.composite
def problems(draw):
    """Q, K, V and the options of any problem: leading dimensions, shared key heads, strides, masks, huge scores."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_q, n_k, d, d_v = (draw(st.integers(low, 9)) for low in (0, 0, 1, 1))
    batch = draw(st.sampled_from([(), (2,), (2, 1), (1, 2)]))
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    lead_q, lead_k = ((), ()) if draw(st.booleans()) else ((*batch, kv_heads * group), (*batch, kv_heads))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    size = draw(st.sampled_from([0.0, 1e-30, 1.0, 1.0, 20.0, 1e4]))
    Q, K, V = (rng.standard_normal(shape) for shape in ((*lead_q, n_q, d), (*lead_k, n_k, d), (*lead_k, n_k, d_v)))
    Q, K, V = (x.astype(dtype) for x in (size * Q, K, V))
    if draw(st.booleans()):  # any strides
        Q, K, V = (np.asfortranarray(x)[..., ::-1] for x in (Q, K, V))
    mask_shape = draw(st.sampled_from([None, (n_q, n_k), (1, n_k), (n_q, 1), (*lead_q, n_q, n_k)]))
    mask = None if mask_shape is None else rng.random(mask_shape) < draw(st.sampled_from([0.0, 0.5, 0.9]))
    return Q, K, V, draw(st.sampled_from(CAUSAL)), mask, draw(st.sampled_from([1.0, 0.3]))


@settings(max_examples=250)
@given(problems(), st.integers(1, 10), st.integers(1, 10), st.sampled_from(VARIANTS), st.sampled_from(ORDERS))
def test_any_problem_in_any_tiling_is_what_one_row_at_a_time_gives(problem, block_q, block_k, variant, order):
    Q, K, V, causal, mask, scale = problem
    options = {"causal": causal, "mask": mask, "scale": scale}
    O, lse = flash_forward(Q, K, V, block_q=block_q, block_k=block_k, variant=variant, order=order, **options)
    exact, exact_lse, u, scores = row_by_row(Q, K, V, causal, mask, scale)
    eps = np.finfo(Q.dtype).eps
    # a score is off by about d roundings of its own size, and exp makes that a relative error of p
    score_error = Q.shape[-1] * np.max(np.abs(scores[np.isfinite(scores)]), initial=0.0)
    bound = 2 * bound_in_u(scores, -(-K.shape[-2] // block_k)) + 4 * score_error
    for result, result_lse in ((O, lse), attention(Q, K, V, **options)):
        assert result.shape == exact.shape and result.dtype == result_lse.dtype == Q.dtype
        assert worst_in_u(result, exact, u) <= bound
        assert np.array_equal(np.isneginf(result_lse), np.isneginf(exact_lse))
        seen = np.isfinite(exact_lse)
        assert np.all(np.abs(result_lse[seen] - exact_lse[seen]) <= (bound + np.abs(exact_lse[seen])) * eps)
    assert not np.isnan(O).any()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("order", ORDERS)
def test_every_key_head_serves_its_group_of_query_heads(variant, order):
    rng = np.random.default_rng(0)
    Q, K, V = rng.standard_normal((2, 6, 5, 4)), rng.standard_normal((2, 2, 7, 4)), rng.standard_normal((2, 2, 7, 3))
    O, _lse = flash_forward(Q, K, V, block_q=2, block_k=3, variant=variant, order=order)
    for b, h in np.ndindex(2, 6):
        assert np.allclose(O[b, h], attention(Q[b, h], K[b, h // 3], V[b, h // 3])[0], rtol=1e-13)


def test_the_two_alignments_differ_exactly_where_lengths_do():
    rng = np.random.default_rng(1)
    Q, K, V = (rng.standard_normal((n, 4)) for n in (3, 5, 5))
    left, right = (flash_forward(Q, K, V, block_q=2, block_k=2, causal=c)[0] for c in ("top-left", "bottom-right"))
    assert np.array_equal(left[0], V[0]) and not np.allclose(left, right)
    assert np.allclose(right[2], attention(Q[2:], K, V)[0][0])
    square = [flash_forward(Q, K[:3], V[:3], block_q=2, block_k=2, causal=c)[0] for c in ("top-left", True)]
    assert np.array_equal(*square)


def test_masks_are_combined_as_booleans():
    rng = np.random.default_rng(2)
    Q, K, V = (rng.standard_normal((6, 4)) for _name in "QKV")
    mask = rng.random((6, 6)) < 0.5
    both = flash_forward(Q, K, V, block_q=4, block_k=2, causal=True, mask=mask)[0]
    assert np.array_equal(both, flash_forward(Q, K, V, block_q=4, block_k=2, mask=mask & np.tri(6, dtype=bool))[0])


def test_a_nan_in_v_reaches_the_rows_that_see_it_and_the_score_of_a_hidden_key_does_not_matter():
    rng = np.random.default_rng(3)
    Q, K, V = (rng.standard_normal((4, 4)) for _name in "QKV")
    V_nan, K_nan = V.copy(), K.copy()
    V_nan[1, 0], K_nan[2] = np.nan, np.nan
    O = flash_forward(Q, K, V_nan, block_q=2, block_k=2)[0]
    assert np.isnan(O[:, 0]).all() and not np.isnan(O[:, 1:]).any()
    visible = np.array([True, True, False, True])
    hidden = flash_forward(Q, K_nan, V, block_q=2, block_k=2, mask=visible[None])[0]
    assert np.allclose(hidden, attention(Q, K[visible], V[visible])[0], rtol=1e-13)


def test_an_infinite_value_is_an_infinite_output():
    V = np.array([[1.0], [np.inf]])
    O, lse = flash_forward(np.zeros((1, 2)), np.zeros((2, 2)), V, block_q=1, block_k=1)
    assert O[0, 0] == np.inf and np.isclose(lse[0], np.log(2))


def test_the_output_is_a_weighted_mean_of_the_visible_values():
    rng = np.random.default_rng(4)
    Q, K, V = 3 * rng.standard_normal((9, 4)), rng.standard_normal((30, 4)), rng.standard_normal((30, 3))
    mask = rng.random((9, 30)) < 0.3
    for order, variant in itertools.product(ORDERS, VARIANTS):
        O = flash_forward(Q, K, V, block_q=4, block_k=7, mask=mask, order=order, variant=variant)[0]
        for i in range(9):
            low, high = V[mask[i]].min(axis=0), V[mask[i]].max(axis=0)
            assert np.all((low - 1e-12 <= O[i]) & (O[i] <= high + 1e-12))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_one_key_returns_its_value_and_equal_keys_average_in_every_order(variant):
    rng = np.random.default_rng(5)
    Q, V = 100 * rng.standard_normal((5, 4)), rng.standard_normal((8, 3))
    for order in ORDERS:
        equal = flash_forward(Q, np.ones((8, 4)), V, block_q=2, block_k=3, variant=variant, order=order)[0]
        assert np.allclose(equal, V.mean(axis=0), rtol=1e-13)
        one = flash_forward(Q, np.ones((1, 4)), V[:1], block_q=2, block_k=3, variant=variant, order=order)[0]
        assert np.allclose(one, V[0], rtol=1e-13)


@settings(max_examples=40)
@given(n_q=st.integers(1, 30), n_k=st.integers(1, 30), block_q=st.integers(1, 40), block_k=st.integers(1, 40))
def test_keys_outside_moves_what_its_formula_says(n_q, n_k, block_q, block_k):
    rng = np.random.default_rng(0)
    Q, K, V = rng.standard_normal((n_q, 4)), rng.standard_normal((n_k, 4)), rng.standard_normal((n_k, 3))
    tally = Tally()
    flash_forward(*tally.count(Q=Q, K=K, V=V), block_q=block_q, block_k=block_k, order=keys_outside, variant=FA1)
    formula = traffic_keys_outside(n_q, n_k, 4, 3, block_k)
    assert {name: tally.elements(name) for name in formula} == formula and tally.elements() == sum(formula.values())


def test_both_loop_orders_at_the_lectures_size_move_50_and_33_mib():
    from flash_lab import traffic_tiled

    mib = [2 * sum(t.values()) / 2**20 for t in (traffic_keys_outside(4096, 4096, 64, 64, 128),
                                               traffic_tiled(4096, 4096, 64, 64, 128))]  # fmt: skip
    assert 49 < mib[0] < 51 and 33 <= mib[1] < 33.1


def test_counting_goes_through_heads_masks_and_orders():
    rng = np.random.default_rng(6)
    Q, K, V = rng.standard_normal((2, 4, 6, 3)), rng.standard_normal((2, 2, 8, 3)), rng.standard_normal((2, 2, 8, 5))
    mask = rng.random((2, 4, 6, 8)) < 0.5
    plain = flash_forward(Q, K, V, block_q=4, block_k=3, mask=mask)
    for order, visits in ((queries_outside, 2), (keys_outside, 1)):
        tally = Tally()
        q, k, v, m = tally.count(Q=Q, K=K, V=V, mask=mask)
        O, lse = flash_forward(q, k, v, block_q=4, block_k=3, mask=m, order=order)
        assert tally.elements("K") == 8 * visits * 8 * 3 and tally.elements("mask") == mask.size
        assert np.allclose(O.uncounted(), plain[0], rtol=1e-13) and np.allclose(lse.uncounted(), plain[1], rtol=1e-13)


def test_hidden_tiles_are_skipped_in_every_order():
    Q, K, V = (np.random.default_rng(7).standard_normal((64, 4)) for _name in "QKV")
    for order, tiles in ((queries_outside, 10), (queries_outside_reversed, 10), (keys_outside, 4)):
        tally = Tally()
        flash_forward(*tally.count(Q=Q, K=K, V=V), block_q=16, block_k=16, causal=True, order=order)
        assert tally.elements("K") == tiles * 16 * 4


def test_a_wider_accumulator_keeps_what_float32_loses():
    rng = np.random.default_rng(8)
    Q, K, V = (rng.standard_normal((n, 8), dtype=np.float32) for n in (4, 3000, 3000))
    exact = attention(*(x.astype(np.float64) for x in (Q, K, V)))[0]
    errors = {}
    for accumulator in (None, np.float32, np.float64):
        O, lse = flash_forward(Q, K, V, block_q=4, block_k=1, accumulator=accumulator)
        assert O.dtype == lse.dtype == (accumulator or np.float32)
        errors[accumulator] = np.abs(O - exact).max()
    assert errors[None] == errors[np.float32] > 3 * errors[np.float64]


def test_from_the_scores_on_everything_is_in_the_accumulators_dtype():
    rng = np.random.default_rng(11)
    Q, K, V = (rng.integers(-2, 3, (n, 4)).astype(np.float32) for n in (3, 40, 40))  # their scores are exact
    wide = flash_forward(*(x.astype(np.float64) for x in (Q, K, V)), block_q=2, block_k=7, scale=0.3)
    for order in ORDERS:
        O, lse = flash_forward(Q, K, V, block_q=2, block_k=7, scale=0.3, accumulator=np.float64, order=order)
        assert np.allclose(O, wide[0], rtol=1e-13, atol=1e-15) and np.allclose(lse, wide[1], rtol=1e-14)


def test_each_rounding_takes_place_where_it_is_handed_in():
    rng = np.random.default_rng(9)
    Q, K, V = (rng.standard_normal((n, 8)) for n in (3, 40, 40))
    plain = flash_forward(Q, K, V, block_q=2, block_k=8)

    def run(**places):
        return flash_forward(Q, K, V, block_q=2, block_k=8, variant=rounded(**places))

    assert np.allclose(run()[0], plain[0], rtol=1e-13)
    for place in ("scores", "P", "l", "o", "output"):
        O, lse = run(**{place: BF16.round})
        error = np.abs(O - plain[0]).max() / np.abs(plain[0]).max()
        assert 1e-5 < error < 20 * BF16.u, place
        assert (np.array_equal(lse, plain[1]) or np.allclose(lse, plain[1], rtol=1e-14)) == (
            place in ("P", "o", "output")
        )
    O, _lse = run(output=FP16.round)
    assert np.array_equal(O, FP16.round(run()[0]))


def test_sixteen_bit_sums_stagnate_one_key_at_a_time_and_not_by_blocks():
    V = np.repeat([[1.0], [3.0]], 2048, axis=0)
    Q, K = np.zeros((1, 2)), np.zeros((4096, 2))
    for fmt, stuck in ((FP16, 2048), (BF16, 256)):
        variant = rounded(l=fmt.round, o=fmt.round)
        O, lse = flash_forward(Q, K, V, block_q=1, block_k=1, variant=variant)
        assert np.isclose(lse[0], np.log(stuck)) and O[0, 0] != 2
        O, lse = flash_forward(Q, K, V, block_q=1, block_k=64, variant=variant)
        assert np.isclose(lse[0], np.log(4096)) and O[0, 0] == 2


@pytest.mark.parametrize(
    "change, words",
    [
        ({"Q": np.zeros((3, 2, 4)), "K": np.zeros((2, 6, 4)), "V": np.zeros((2, 6, 2))}, "must divide"),
        ({"Q": np.zeros((2, 2, 4))}, "leading dimensions"),
        ({"K": np.zeros((2, 6, 4))}, "leading dimensions"),
        ({"causal": "bottom"}, "causal is 'bottom'"),
        ({"causal": 1.0}, "causal is 1.0"),
        ({"mask": np.zeros((2, 6))}, "mask is of float64"),
        ({"mask": [[True]]}, "mask is of list"),
        ({"mask": np.ones((3, 6), bool)}, "does not broadcast"),
        ({"accumulator": np.float16}, "accumulator"),
        ({"accumulator": "wide"}, "accumulator"),
    ],
)
def test_heads_masks_and_accumulators_that_do_not_fit_are_refused_in_one_sentence(change, words):
    arguments = {"Q": np.zeros((2, 4)), "K": np.zeros((6, 4)), "V": np.zeros((6, 2)), "block_q": 2, "block_k": 2}
    arguments.update(change)
    with pytest.raises(ValueError, match=words) as error:
        flash_forward(arguments.pop("Q"), arguments.pop("K"), arguments.pop("V"), **arguments)
    assert "\n" not in str(error.value)


def test_pytorch_agrees_where_it_can_be_imported():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(10)
    Q, K, V = (rng.standard_normal((2, 3, n, 8)) for n in (5, 9, 9))
    mask = rng.random((2, 3, 5, 9)) < 0.7
    for options, torch_options in (
        ({}, {}),
        ({"causal": "top-left"}, {"is_causal": True}),
        ({"mask": mask}, {"attn_mask": torch.from_numpy(mask)}),
        ({"scale": 0.5}, {"scale": 0.5}),
    ):
        theirs = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (Q, K, V)), **torch_options)
        assert np.allclose(flash_forward(Q, K, V, block_q=2, block_k=4, **options)[0], theirs.numpy(), rtol=1e-12)
