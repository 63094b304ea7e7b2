"""The CPU runner: CUDA's execution model on small kernels that are right, and launches that it refuses."""

import numpy as np
import pytest

from conftest import nans
from cpu import KernelProblem, compile_kernel

pytestmark = pytest.mark.usefixtures("cache")


SCHEDULES = "forward reverse odd_first random:1 random:2".split()
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


REDUCTION = """
    float x = i < n ? in[i] : 0;
    for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(0xffffffff, x, other);
    __shared__ float sums[32];
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int w = 0; w < (int)blockDim.x / 32; w++) sum += sums[w];
        out[blockIdx.x] = sum;
    }"""


@every_schedule
def test_a_sum_by_shuffles_and_shared_memory_is_right_over_a_ragged_grid(launch, schedule):
    x = np.arange(1000, dtype=np.float32)
    out = nans(8)
    body = "int i = blockIdx.x * blockDim.x + threadIdx.x;" + REDUCTION
    args = [x, out, np.int32(1000)]
    stats = launch("const float *in, float *out, int n", body, args, grid=8, block=128, schedule=schedule)
    assert out.tolist() == [x[i : i + 128].sum() for i in range(0, 1000, 128)]
    assert stats.blocks == 8
    assert stats.shuffles.tolist() == [4 * 5] * 8  # 4 warps, 5 shuffles each
    assert stats.barriers.tolist() == [1] * 8


@every_schedule
def test_a_ping_pong_between_two_halves_of_dynamic_shared_memory_is_right(launch, schedule):
    out = nans(96)
    body = """
    extern __shared__ float tile[];
    int i = threadIdx.x + 8 * threadIdx.y;
    tile[i] = i;
    for (int step = 0; step < 10; step++) {
        __syncthreads();
        tile[(step + 1) % 2 * 96 + i] = tile[step % 2 * 96 + (i + 1) % 96] + 1;
    }
    __syncthreads();
    out[95 - i] = tile[95 - i];"""
    stats = launch("float *out", body, [out], block=(8, 12), shared_bytes=4 * 192, schedule=schedule)
    assert out.tolist() == [(i + 10) % 96 + 10 for i in range(96)]
    assert stats.barriers.tolist() == [11]


@every_schedule
def test_indices_of_threads_and_blocks_in_three_dimensions_are_cudas(launch, schedule):
    out = np.zeros((2, 3, 4, 3, 5, 7), np.int32)
    body = """
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = 1000 * block + thread;"""
    launch("int *out", body, [out], grid=(4, 3, 2), block=(7, 5, 3), schedule=schedule)
    assert out.reshape(24, 105).tolist() == [[1000 * b + t for t in range(105)] for b in range(24)]


@every_schedule
def test_every_collective_gives_what_cuda_documents(launch, schedule):
    out = np.zeros((12, 32), np.int32)
    body = """
    int i = threadIdx.x, r = 0;
    const unsigned full = 0xffffffff, mine = i < 8 ? 0xff : 0xffffff00;
    out[32 * r++ + i] = __shfl_sync(full, i, 5);
    out[32 * r++ + i] = __shfl_sync(full, i, 9, 8);
    out[32 * r++ + i] = __shfl_up_sync(full, i, 3);
    out[32 * r++ + i] = __shfl_down_sync(full, i, 3, 16);
    out[32 * r++ + i] = __shfl_xor_sync(full, i, 7);
    out[32 * r++ + i] = __shfl_xor_sync(full, i, 8, 8);
    out[32 * r++ + i] = __ballot_sync(full, i % 3 == 0);
    out[32 * r++ + i] = __any_sync(full, i == 40) + 2 * __any_sync(full, i == 4);
    out[32 * r++ + i] = __all_sync(mine, i < 8) + 2 * __all_sync(full, i < 31);
    if (i < 8) out[32 * r + i] = __shfl_sync(0xff, i, 7);
    else out[32 * r + i] = __shfl_sync(0xffffff00, i, 8);
    __syncwarp();
    out[32 * ++r + i] = (int)__shfl_xor_sync(full, 0.5 * i, 1);
    out[32 * ++r + i] = __popc(__ballot_sync(full, 1));"""
    launch("int *out", body, [out], schedule=schedule)
    i = np.arange(32)
    ballot = int(sum(1 << k for k in range(0, 32, 3))) - (1 << 32 if 30 % 3 == 5 else 0)
    wanted = [
        i * 0 + 5,
        i // 8 * 8 + 1,
        np.where(i < 3, i, i - 3),
        np.where(i % 16 + 3 < 16, i + 3, i),
        i ^ 7,
        np.where(i ^ 8 < i // 8 * 8 + 8, i ^ 8, i),
        np.uint32(ballot).astype(np.int32) + i * 0,
        i * 0 + 2,
        np.where(i < 8, 1, 0),
        np.where(i < 8, 7, 8),
        (0.5 * (i ^ 1)).astype(int),
        i * 0 + 32,
    ]
    assert out.tolist() == [np.broadcast_to(row, 32).tolist() for row in wanted]


def test_blocks_on_many_cpu_threads_give_what_one_gives(launch):
    args = [np.arange(4096, dtype=np.float32), nans(64), np.int32(4096)]
    body = "int i = blockIdx.x * blockDim.x + threadIdx.x;" + REDUCTION
    for workers in (1, 2, 5):
        args[1][:] = np.nan
        launch("const float *in, float *out, int n", body, args, grid=64, block=64, workers=workers)
        assert args[1].tolist() == args[0].reshape(64, 64).sum(1).tolist()


def test_additions_by_atomics_are_all_counted(launch):
    total, most = np.zeros(1, np.float32), np.zeros(1, np.int32)
    body = "atomicAdd(sum, 1); atomicMax(most, blockIdx.x);"
    launch("float *sum, int *most", body, [total, most], grid=50, block=100)
    assert (total[0], most[0]) == (5000, 49)


def test_min_and_max_take_numbers_of_two_types_and_fmaxf_passes_over_nan(launch):
    out = nans(5)
    body = """
    out[0] = min(3, 4ll); out[1] = max(2.5f, 1); out[2] = fmaxf(__int_as_float(0x7fc00000), 2);
    out[3] = max(1u, 7); out[4] = fmaf(__frcp_rn(4), 8, rsqrtf(16));"""
    launch("float *out", body, [out], block=1)
    assert out.tolist() == [3, 2.5, 2, 7, 2.25]


def test_typedefs_and_defines_decide_the_type_of_a_parameter(tmp_path):
    path = tmp_path / "typed.cu"
    path.write_text(
        "#include <cuda_fp16.h>\n"
        "#if HALF\ntypedef half element;\n#else\ntypedef float element;\n#endif\n"
        '#if HALF == 2\nextern "C" __global__ void none() {}\n#endif\n'
        "// __global__ void in_a_comment() {}\n"
        '#define WARPS (4)\nextern "C" __global__ void __launch_bounds__(32 * WARPS, 2)\n'
        "k(const element *__restrict__ x, unsigned n, half2 *y) {}\n"
    )
    for half, name in ((0, "f4"), (1, "f2")):
        module = compile_kernel(path, {"HALF": half})
        assert module.kernels == {"k": [("x", "*c" + name), ("n", "u4"), ("y", "*f2")]}


REFUSED = [
    ("float *x", [np.ones(3)], "argument 0 (x) of k is an array of float64; an array of float32 is needed"),
    ("float *x", [[1.0]], "argument 0 (x) of k is a Python list; an array of float32 is needed"),
    ("float *x", [np.ones((4, 4), np.float32).T[1:]], "argument 0 (x) of k is not C-contiguous"),
    ("int n", [3], "argument 0 (n) of k is a Python int; np.int32(...) is needed"),
    ("float s", [0.5], "argument 0 (s) of k is a Python float; np.float32(...) is needed"),
    ("float s", [np.float64(0.5)], "argument 0 (s) of k is np.float64; np.float32(...) is needed"),
    ("unsigned n", [np.int32(3)], "argument 0 (n) of k is np.int32; np.uint32(...) is needed"),
    ("int n, float s", [np.int32(3)], "k has 2 parameters (n, s), and 1 arguments were given"),
    ("float *x", [np.broadcast_to(np.float32(1), (1,))], "argument 0 (x) of k is read-only"),
]


@pytest.mark.parametrize("parameters, args, sentence", REFUSED)
def test_an_argument_of_another_type_than_declared_is_refused(launch, parameters, args, sentence):
    with pytest.raises(KernelProblem) as error:
        launch(parameters, "", args)
    assert str(error.value).startswith(sentence)


def test_a_launch_that_cuda_refuses_is_refused(launch):
    for options in ({"block": 1025}, {"block": (32, 33)}, {"grid": (1, 70000)}, {"grid": 0}, {"shared_bytes": 240_000}):
        with pytest.raises(KernelProblem, match="possible"):
            launch("", "", [], **options)
    with pytest.raises(KernelProblem, match="random:SEED"):
        launch("", "", [], schedule="backward")


def test_an_array_given_twice_is_one_array_and_overlapping_ones_are_refused(launch):
    x = np.arange(8, dtype=np.float32)
    launch("const float *x, float *y", "y[threadIdx.x] = 2 * x[threadIdx.x];", [x, x], block=8)
    assert x.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    with pytest.raises(KernelProblem, match="overlaps"):
        launch("const float *x, float *y", "", [x[:6], x[2:]])
