"""Every kernel, run on the CPU from its unchanged text, against flash_lab; and kernels with a bug, which are noticed.

A result may be SLACK times as far from float64 as flash_lab's own bound for NumPy: exp2f and expf may be off by 2 units
in the last place on a GPU and by 1 here, products and sums may be fused or not, and a kernel sums a row of Q @ K.T one
by one where BLAS sums in lanes. (On x86-64, 360 runs like those below kept within 0.75 of the bound.) For half there
is the rounding of O on top.
"""

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import flash_lab

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
sys.path.insert(0, str(KERNELS))

import attention  # noqa: E402
import cpu  # noqa: E402
import launcher  # noqa: E402

SLACK = 2
SCHEDULES = ("forward", "reverse", "odd_first", "random:7")
SHAPES = ((1, 7), (7, 1), (33, 33), (65, 130), (130, 65))
# Each pair of a block pair, head size, mask and dtype occurs: (block_q, block_k, d, causal, half)
FORWARD = (
    (16, 16, 32, False, False), (16, 16, 64, True, True), (16, 16, 80, True, False), (16, 16, 128, False, True),
    (32, 64, 32, True, True), (32, 64, 64, False, False), (32, 64, 80, False, True), (32, 64, 128, True, False),
    (64, 32, 32, False, True), (64, 32, 64, True, False), (64, 32, 80, False, False), (64, 32, 128, True, True),
)  # fmt: skip


class Place(launcher.Cpu):
    """The CPU with the kernels of some folder, keeping the last launch's arguments."""

    def __init__(self, schedule="forward", folder=KERNELS):
        super().__init__(schedule)
        self.folder = folder

    def run(self, launch, arguments):
        self.arguments = arguments
        module = cpu.compile_kernel(self.folder / launch.file, launch.defines)
        return cpu.run(
            module, launch.name, launch.grid, launch.block, arguments, launch.shared_bytes, schedule=self.schedule
        )


def inputs(n_q, n_k, d, half=False, batch=2, heads=2, kv_heads=1, seed=0):
    """Q, K, V of shapes (batch, heads or kv_heads, n, d)."""
    rng = np.random.default_rng([seed, n_q, n_k, d])
    shapes = [(batch, heads, n_q, d), (batch, kv_heads, n_k, d), (batch, kv_heads, n_k, d)]
    return [rng.standard_normal(shape, np.float32).astype(np.float16 if half else np.float32) for shape in shapes]


def flat(x):
    """batch and heads as the one dimension that a kernel sees."""
    return np.ascontiguousarray(x).reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def wrong(result, Q, K, V, blocks, causal=False):
    """What is wrong with a result, in words; empty if it is right: O and lse within their bounds, none left unwritten.

    blocks: of keys, as in `bound_in_u`.
    """
    half = Q.dtype == np.float16
    Q, K, V = (x.astype(np.float64) for x in (Q, K, V))
    exact, unit = flash_lab.exact_and_unit(Q, K, V, np.float32, causal=causal)
    lse = flash_lab.attention(Q, K, V[..., :1], causal=causal)[1]
    S = Q.shape[-1] ** -0.5 * (Q @ np.repeat(K, Q.shape[1] // K.shape[1], axis=1).swapaxes(-1, -2))
    n_q, n_k = S.shape[-2:]
    if causal:
        S = np.where(np.tri(n_q, n_k, n_k - n_q, dtype=bool), S, -np.inf)
    bound = SLACK * flash_lab.bound_in_u(S, blocks)
    rounding = np.finfo(np.float16).eps / 2 * np.abs(exact) + 2.0**-24 if half else 0
    largest = np.max(np.abs(S), initial=1, where=np.isfinite(S))
    O, got = result.O.reshape(exact.shape).astype(np.float64), result.lse.reshape(lse.shape)
    faults = [f"{name} has NaN" for name, x in (("O", O), ("lse", got)) if np.isnan(x).any()]
    if not (np.abs(O - exact) <= bound * unit + rounding).all():
        faults.append(f"O is off by {np.max(np.abs(O - exact) / np.maximum(unit, 1e-30)):.0f} u of {bound:.0f}")
    finite = np.isfinite(lse)
    if not (finite == np.isfinite(got)).all() or not (got[~finite] == -np.inf).all():
        faults.append("lse is -inf elsewhere than in the rows that see nothing")
    if not (np.abs(got[finite] - lse[finite]) <= bound * np.finfo(np.float32).eps * largest).all():
        faults.append("lse is off")
    return ", ".join(faults)


def forward(Q, K, V, block_q, block_k, causal=False, place=None):
    arrays = [flat(x) for x in (Q, K, V)]
    return attention.flash_forward(*arrays, block_q=block_q, block_k=block_k, causal=causal, place=place or Place())


def naive(Q, K, V, block_q=8, causal=False, place=None):
    return attention.naive_attention(*map(flat, (Q, K, V)), block_q=block_q, causal=causal, place=place or Place())


def decode(Q, K, V, splits, block_k=8, place=None):
    return attention.flash_decode(*map(flat, (Q, K, V)), splits=splits, block_k=block_k, place=place or Place())


@pytest.mark.parametrize("block_q, block_k, d, causal, half", FORWARD)
def test_flash_forward_is_flash_lab_within_rounding_at_every_ragged_shape(block_q, block_k, d, causal, half):
    for n_q, n_k in SHAPES:
        Q, K, V = inputs(n_q, n_k, d, half)
        result = forward(Q, K, V, block_q, block_k, causal)
        assert result.O.dtype == Q.dtype and not wrong(result, Q, K, V, -(-n_k // block_k), causal), (n_q, n_k)


@pytest.mark.parametrize("d, half", list(product((32, 64, 80, 128), (False, True))))
def test_naive_attention_is_flash_lab_within_rounding_at_every_ragged_shape(d, half):
    for (n_q, n_k), causal in zip(SHAPES, (True, half, True, half, True), strict=True):
        Q, K, V = inputs(n_q, n_k, d, half)
        result = naive(Q, K, V, causal=causal)
        assert result.O.dtype == Q.dtype and not wrong(result, Q, K, V, 1, causal), (n_q, n_k, causal)


@pytest.mark.parametrize("d, half", list(product((32, 64, 80, 128), (False, True))))
def test_flash_decode_is_flash_lab_however_the_keys_are_split(d, half):
    for n_k, splits in product((1, 7, 33, 130), (1, 2, 5, 40)):
        Q, K, V = inputs(1, n_k, d, half)
        result = decode(Q, K, V, splits)
        assert result.O.dtype == Q.dtype and not wrong(result, Q, K, V, splits + 4, causal=True), (n_k, splits)


@pytest.mark.parametrize("block_q, block_k", [(4, 2), (4, 4), (8, 2), (32, 3)])
def test_b8_tiny_blocks_agree_too_and_every_run_is_bit_identical(block_q, block_k):
    Q, K, V = inputs(7, 7, 32)
    first, *others = [forward(Q, K, V, block_q, block_k, place=Place(f"random:{seed}")) for seed in range(10)]
    assert not wrong(first, Q, K, V, -(-7 // block_k))
    assert all(first.O.tobytes() == o.O.tobytes() and first.lse.tobytes() == o.lse.tobytes() for o in others)


ALL = {
    "naive_attention": lambda Q, K, V, place, causal=True: naive(Q, K, V, causal=causal, place=place),
    "flash_forward": lambda Q, K, V, place, causal=True: forward(Q, K, V, 16, 16, causal=causal, place=place),
    "flash_decode": lambda Q, K, V, place, causal=True: decode(Q[:, :, -1:], K, V, 3, place=place),
}


@pytest.mark.parametrize("name", ALL)
def test_every_schedule_of_the_threads_gives_the_same_bits(name):
    Q, K, V = inputs(35, 41, 64)
    first, *others = [ALL[name](Q, K, V, Place(schedule)) for schedule in SCHEDULES]
    assert all(first.O.tobytes() == o.O.tobytes() and first.lse.tobytes() == o.lse.tobytes() for o in others)


@pytest.mark.parametrize("batch, heads, kv_heads", [(1, 1, 1), (2, 3, 1), (2, 3, 3), (1, 6, 2)])
@pytest.mark.parametrize("name", ALL)
def test_groups_of_query_heads_share_their_own_head_of_keys(name, batch, heads, kv_heads):
    Q, K, V = inputs(9, 20, 32, batch=batch, heads=heads, kv_heads=kv_heads)
    result = ALL[name](Q, K, V, Place())
    assert not wrong(result, Q[:, :, -1:] if name == "flash_decode" else Q, K, V, 8, causal=True)


@pytest.mark.parametrize("name", ALL)
def test_without_any_key_the_output_is_0_and_lse_minus_infinity(name):
    result = ALL[name](*inputs(9, 0, 32), Place())
    assert (result.O == 0).all() and (result.lse == -np.inf).all()


def test_a_row_that_sees_nothing_is_0_and_minus_infinity_beside_rows_that_see_something():
    Q, K, V = inputs(20, 3, 32)
    for result in (forward(Q, K, V, 16, 16, causal=True), naive(Q, K, V, causal=True)):
        assert (result.O[:, :17] == 0).all() and (result.lse[:, :17] == -np.inf).all()
        assert (result.O[:, 17:] != 0).all() and np.isfinite(result.lse[:, 17:]).all()


def test_a_split_without_keys_writes_0_and_minus_infinity():
    place = Place()
    Q, K, V = inputs(1, 3, 32)
    decode(Q, K, V, splits=5, place=place)
    o_part, lse_part = place.arguments[:2]
    empty = np.isneginf(lse_part)
    assert (empty.sum(axis=1) == 2).all() and (o_part[empty] == 0).all() and np.isfinite(lse_part[~empty]).all()


@pytest.mark.parametrize("name", ALL)
def test_scores_of_thousands_neither_overflow_nor_turn_into_nan(name):
    Q, K, V = (40 * x for x in inputs(9, 20, 32))
    result = ALL[name](Q, K, V, Place())
    assert np.isfinite(result.O).all() and (np.abs(result.lse) > 100).any()
    assert not wrong(result, Q[:, :, -1:] if name == "flash_decode" else Q, K, V, 8, causal=True)


# file, the text to replace, its replacement
BUGS = {
    "no barrier after the loads": ("flash_forward", "__syncthreads();  // the tiles are complete", ""),
    "no barrier before the next loads": ("flash_forward", "__syncthreads();  // no warp still reads", "// "),
    "no barrier before the merge": ("flash_decode", "__syncthreads();  // all four states", "// "),
    "no __syncwarp after P": ("flash_forward", "__syncwarp();", ""),
    "early return before a barrier": (
        "flash_forward", "    // Rows past n_q", "    if (q_start + first >= n_q) return;\n    // Rows past n_q",
    ),
    "early return of a lane before a shuffle": (
        "naive_attention", "\n    float m = MINUS_INF;", "    if (lane >= n_k) return;\n    float m = MINUS_INF;",
    ),
    "barrier in a branch": (
        "flash_forward", "__syncthreads();  // no warp", "if (q_start + first < n_q) __syncthreads();  // no warp",
    ),
    "short mask": ("flash_forward", "fmaxf(x, __shfl_xor_sync(0xffffffff,", "fmaxf(x, __shfl_xor_sync(0x0000ffff,"),
    "max of half a warp": ("naive_attention", "16; other > 0; other /= 2) x = f", "8; other > 0; other /= 2) x = f"),
    "loads past the last row": ("flash_forward", "row < rows_left ? to_float(source[i]) : 0", "to_float(source[i])"),
    "stores past the last row": ("flash_forward", "if (q_start + first + r >= n_q) continue;", ""),
    "naive stores past the last row": ("naive_attention", "if (row >= n_q) return;  // no barrier", "// "),
    "tail not masked": ("flash_forward", "&& key < n_k ", ""),
    "tail of a split not masked": ("flash_decode", "k_start + j < k_end ? s : MINUS_INF", "s"),
    "tail of keys dropped": ("flash_forward", "k_start < k_end;", "k_start + BLOCK_K <= k_end;"),
    "o without alpha": ("flash_forward", "o[r][c] = alpha * o[r][c]", "o[r][c] = o[r][c]"),
    "l without alpha": ("flash_forward", "l[r] = alpha * l[r];", ""),
    "max of this tile only": ("flash_forward", "fmaxf(m[r], warp_max(m_tile))", "warp_max(m_tile)"),
    "no guard for minus infinity": ("flash_forward", "m_new == MINUS_INF ? 0 : m_new", "m_new"),
    "no guard for an empty row": ("naive_attention", "m == MINUS_INF ? 0 : m;", "m;"),
    "mask aligned top-left": ("flash_forward", "key <= q_start + first + r + n_k - n_q", "key <= q_start + first + r"),
    "division of every lane by its own sum": ("flash_forward", "= warp_sum(l[r]);", "= l[r];"),
    "combination with equal weights": ("flash_decode", "expf(lse_part[s] - subtracted) *", "1.0f / splits *"),
}  # fmt: skip


def noticed(name, folder):
    """How a kernel in this folder shows that it is wrong: an error of the runner, or a result; "" if it does not."""
    Q, K, V = inputs(38, 21, 32)
    results = set()
    for schedule, causal in [*product(SCHEDULES, (True,)), ("forward", False)]:
        try:
            result = ALL[name](Q, K, V, Place(schedule, folder), causal)
        except cpu.KernelError as error:
            return str(error)
        results.add((causal, result.O.tobytes(), result.lse.tobytes()))
        if fault := wrong(result, Q[:, :, -1:] if name == "flash_decode" else Q, K, V, 8, causal):
            return fault
    return "" if len(results) == 2 else "the result depends on the schedule"


@pytest.mark.parametrize("bug", BUGS)
def test_a_kernel_with_this_bug_is_noticed(bug, tmp_path):
    name, old, new = BUGS[bug]
    text = (KERNELS / f"{name}.cu").read_text(encoding="utf-8")
    assert text.count(old) == 1
    (tmp_path / f"{name}.cu").write_text(text.replace(old, new), encoding="utf-8")
    assert noticed(name, tmp_path)


@pytest.mark.parametrize("name", ALL)
def test_in_the_kernel_without_a_bug_nothing_is_noticed(name):
    assert not noticed(name, KERNELS)
