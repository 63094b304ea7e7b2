"""The CPU runner: CUDA's execution model on small kernels, right ones and wrong ones."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
sys.path.insert(0, str(KERNELS))

import cpu  # noqa: E402
from cpu import CompileError, KernelError, KernelProblem, NoCompiler, compile_kernel, run  # noqa: E402

try:
    cpu._command()
except NoCompiler as error:
    pytest.skip(str(error), allow_module_level=True)

SCHEDULES = "forward reverse odd_first random:1 random:2".split()
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """A cache of this file's own, so that nothing is found there that an earlier run left."""
    before = os.environ.get("LAB_CACHE")
    os.environ["LAB_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield Path(os.environ["LAB_CACHE"])
    os.environ.pop("LAB_CACHE") if before is None else os.environ.update(LAB_CACHE=before)


@pytest.fixture
def launch(tmp_path):
    """Write a kernel named k to student.cu and run it: launch("float *x", "x[threadIdx.x] = 1;", [x], block=32)."""

    def go(parameters, body, args, grid=1, block=32, shared_bytes=0, schedule="forward", before="", **options):
        path = tmp_path / "student.cu"
        path.write_text(f'{before}extern "C" __global__ void k({parameters}) {{\n{body}\n}}\n', encoding="utf-8")
        return run(compile_kernel(path), "k", grid, block, args, shared_bytes, schedule, **options)

    return go


def nans(*shape, dtype=np.float32):
    return np.full(shape, np.nan, dtype)


# ---- right kernels

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


# ---- wrong kernels

WRONG = {
    "early return before a barrier": (
        "if (threadIdx.x >= 40) return;\n__syncthreads();",
        "student.cu, line 3: barrier divergence: thread (0) waits at __syncthreads() in line 3 (as do 40 of the "
        "block's 64 threads), but thread (40) has returned (line 2), in block (0, 0, 0) of k",
    ),
    "barrier in a branch": (
        "if (threadIdx.x % 2) __syncthreads();",
        "student.cu, line 2: barrier divergence: thread (1) waits at __syncthreads() in line 2 (as do 32 of the "
        "block's 64 threads), but thread (0) has returned, in block (0, 0, 0) of k",
    ),
    "two barriers in two branches": (
        "if (threadIdx.x < 32) {\n__syncthreads();\n} else {\n__syncthreads(); }",
        "student.cu, line 3: barrier divergence: thread (0) waits at __syncthreads() in line 3 (as do 32 of the "
        "block's 64 threads), but thread (32) waits at __syncthreads() in line 5, in block (0, 0, 0) of k",
    ),
    "short mask, called from outside": (
        "x[threadIdx.x] = __shfl_xor_sync(0xffff, x[threadIdx.x], 1);",
        "student.cu, line 2: mask 0x0000ffff does not name the lane that calls, lane 16, in thread (16), "
        "in block (0, 0, 0) of k",
    ),
    "short mask, reading outside": (
        "if (threadIdx.x % 32 < 16)\nx[threadIdx.x] = __shfl_xor_sync(0xffff, x[threadIdx.x], 16);",
        "student.cu, line 3: a shuffle reads lane 16, which its mask 0x0000ffff does not name, in thread (15), "
        "in block (0, 0, 0) of k",
    ),
    "lane that has returned": (
        "if (threadIdx.x == 7) return;\nx[threadIdx.x] = __shfl_sync(0xffffffff, x[threadIdx.x], 0);",
        "student.cu, line 3: thread (0) waits at a shuffle in line 3 and its mask 0xffffffff names lane 7 of warp 0, "
        "which has returned (line 2), in block (0, 0, 0) of k",
    ),
    "lane that waits at a barrier": (
        "if (threadIdx.x == 7)\n__syncthreads();\nelse __syncwarp();",
        "student.cu, line 4: thread (0) waits at __syncwarp() in line 4 and its mask 0xffffffff names lane 7 of "
        "warp 0, which waits at __syncthreads() in line 3, in block (0, 0, 0) of k",
    ),
    "lanes with different masks": (
        "__ballot_sync(threadIdx.x ? 0xffffffff : 1, 1);\n__ballot_sync(threadIdx.x ? 0xffffffff : 3, 1);",
        "student.cu, line 3: thread (0) waits at a vote in line 3 and its mask 0x00000003 names lane 1 of warp 0, "
        "which waits at a vote in line 2 with another mask, in block (0, 0, 0) of k",
    ),
    "false assertion": (
        "assert(threadIdx.x < 3);",
        "student.cu, line 2: assert(threadIdx.x < 3) is false in thread (3), in block (0, 0, 0) of k",
    ),
    "wild index": (
        "__syncthreads();\nif (threadIdx.x == 5) x[1ll << 40] = 1;",
        "student.cu: thread (5) read or wrote memory far outside every array, somewhere after line 2, "
        "in block (0, 0, 0) of k",
    ),
    "division by zero": (
        "x[0] = 7 / (int)threadIdx.y;",
        "student.cu: thread (0) divided an integer by zero, in block (0, 0, 0) of k",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_stopped_with_one_sentence_that_says_where(launch, name):
    if name == "division by zero" and os.uname().machine != "x86_64":
        pytest.skip("only x86-64 notices a division by zero")
    body, sentence = WRONG[name]
    with pytest.raises(KernelError) as error:
        launch("float *x", body, [np.ones(64, np.float32)], block=64)
    assert str(error.value) == sentence


@every_schedule
@pytest.mark.parametrize("name", [name for name in WRONG if name != "division by zero"])
def test_a_wrong_kernel_is_stopped_under_every_schedule_and_the_process_goes_on(launch, name, schedule):
    body, sentence = WRONG[name]
    with pytest.raises(KernelError, match=sentence.split(":")[0]):
        launch("float *x", body, [np.ones(64, np.float32)], block=64, grid=5, schedule=schedule)


def test_a_block_that_ends_within_a_warp_has_no_lanes_there_for_a_full_mask(launch):
    with pytest.raises(KernelError, match=r"names lane 16 of warp 1, which does not exist"):
        launch("float *x", "x[0] = __shfl_sync(0xffffffff, 1.f, 0);", [nans(1)], block=48)


def test_the_first_block_that_goes_wrong_is_named_whatever_the_number_of_cpu_threads(launch):
    for _ in range(5):
        with pytest.raises(KernelError, match=r"in block \(3, 2, 0\)"):
            launch("int n", "assert(blockIdx.x + 4 * blockIdx.y < n);", [np.int32(11)], grid=(4, 9), workers=4)


def test_a_thread_with_large_local_arrays_is_told_so(launch):
    body = "float big[60000]; for (int i = 0; i < 60000; i++) big[i] = x[i % 3]; x[0] = big[(int)x[1]];"
    with pytest.raises(KernelError, match="more than 120 KiB for its local variables"):
        launch("float *x", body, [np.ones(3, np.float32)], block=1)


def test_a_write_outside_an_array_is_reported_with_argument_and_byte(launch):
    arrays = [np.ones(10, np.float32), np.ones(6, np.float32)]
    for index, where in ((6, "at byte offset 24, and it has 24 bytes"), (-2, "8 bytes before its start")):
        with pytest.raises(KernelError) as error:
            launch("const float *x, float *y, int i", "y[i] = x[0];", [*arrays, np.int32(index)], block=1)
        assert str(error.value) == f"student.cu: k wrote outside argument 1 (y): {where}"


def test_a_read_outside_an_array_gives_nan_as_float_and_as_half(launch):
    before = "#include <cuda_fp16.h>\n"
    out = np.ones(4, np.float32)
    body = "y[0] = x[-1]; y[1] = x[3]; y[2] = __half2float(h[-1]); y[3] = __half2float(h[3]);"
    args = [np.ones(3, np.float32), np.ones(3, np.float16), out]
    launch("const float *x, const half *h, float *y", body, args, block=1, before=before)
    assert np.isnan(out).all()


def test_shared_memory_is_nan_before_each_block_dynamic_and_on_linux_static(launch):
    out = np.ones((20, 2), np.float32)
    body = """
    extern __shared__ float dynamic[];
    __shared__ float fixed[4];
    out[2 * blockIdx.x] = dynamic[3];
    out[2 * blockIdx.x + 1] = fixed[3];
    dynamic[3] = fixed[3] = 5;"""
    launch("float *out", body, [out], grid=20, block=1, shared_bytes=16)
    assert np.isnan(out[:, 0]).all()
    assert np.isnan(out[:, 1]).all() or sys.platform != "linux"


def test_a_write_past_the_dynamic_shared_memory_of_the_launch_is_reported(launch):
    body = "extern __shared__ float tile[];\ntile[threadIdx.x] = 0;"
    with pytest.raises(KernelError, match="byte 124 of dynamic shared memory was written, but .* asked for 124 bytes"):
        launch("", body, [], shared_bytes=124)


MISSING = {
    "between writing and reading": "tile[i] = x[i]; /*1*/ y[i] = tile[(i + 37) % 64];",
    "before the next tile": """for (int t = 0; t < 2; t++) {
        tile[i] = x[i] + t;
        __syncthreads();
        y[i] += tile[(i + 37) % 64]; /*1*/
    }""",
    "within a warp": "tile[i] = x[i]; /*w*/ y[i] = tile[i ^ 1];",
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_barrier_shows_as_nan_or_as_results_that_hang_on_the_schedule(launch, name):
    results = {}
    for fixed in (True, False):
        body = MISSING[name]
        if fixed:
            body = body.replace("/*1*/", "__syncthreads();").replace("/*w*/", "__syncwarp();")
        for schedule in SCHEDULES:
            x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
            body_ = f"__shared__ float tile[64]; const int i = threadIdx.x;\n{body}"
            launch("const float *x, float *y", body_, [x, y], block=64, schedule=schedule)
            results.setdefault(fixed, set()).add(tuple(y.tolist()))
    assert len(results[True]) == 1
    assert not np.isnan([*results[True]]).any()
    assert results[False] - results[True]


# ---- what is refused


def test_a_compile_error_names_the_line_of_the_students_file(launch):
    with pytest.raises(CompileError) as error:
        launch("float *x", "int i = 0;\nx[i] = tiel[i];", [nans(1)])
    assert str(error.value).startswith("student.cu, line 3: ")
    assert "tiel" in str(error.value)
    with pytest.raises(CompileError, match=r"student.cu, line 3: "):  # the file's last
        launch("float *x", "if (x) {", [nans(1)])
    with pytest.raises(CompileError, match=r"student.cu, line 3: .*8 bytes"):  # noticed in the header
        launch("float4 *x", "\nx[0] = __shfl_sync(0xffffffff, x[1], 0);", [nans(8)])
    with pytest.raises(CompileError, match=r"student.cu, line 2: .*BLOCK"):
        launch("", "", [], before='#if 1\n#error "BLOCK"\n#endif\n')


def test_a_file_without_a_kernel_or_without_the_one_asked_for_is_refused(tmp_path):
    path = tmp_path / "some.cu"
    path.write_text('extern "C" __global__ void one() {}\nextern "C" __global__ void two() {}\n')
    with pytest.raises(KernelProblem, match='some.cu has no extern "C" kernel three; it has one, two'):
        run(compile_kernel(path), "three", 1, 1, [])
    path.write_text("// __global__ void k() {}\n")
    with pytest.raises(KernelProblem, match="some.cu holds no kernel"):
        compile_kernel(path)
    with pytest.raises(KernelProblem, match="cannot be read"):
        compile_kernel(tmp_path / "none.cu")


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


# ---- half


def converted(tmp_path, text, x, out):
    path = tmp_path / "convert.cu"
    path.write_text(
        '#include <cuda_fp16.h>\nextern "C" __global__ void to_float(const half *x, float *y, int n) {\n'
        "    for (int i = threadIdx.x; i < n; i += 32) y[i] = __half2float(x[i]);\n}\n"
        'extern "C" __global__ void to_half(const float *x, half *y, int n) {\n'
        "    for (int i = threadIdx.x; i < n; i += 32) y[i] = __float2half(x[i]);\n}\n"
        'extern "C" __global__ void pairs(const half2 *x, half2 *y, int n) {\n'
        "    float2 a = __half22float2(x[threadIdx.x]);\n    y[threadIdx.x] = __floats2half2_rn(a.y, a.x);\n}\n"
    )
    run(compile_kernel(path), text, 1, 32, [x, out, np.int32(x.size)])
    return out


def test_every_half_becomes_the_float_that_numpy_has(tmp_path):
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    floats, wanted = converted(tmp_path, "to_float", halves, nans(65536)), halves.astype(np.float32)
    number = ~np.isnan(wanted)
    assert (floats.view(np.uint32) == wanted.view(np.uint32))[number].all()
    assert np.isnan(floats[~number]).all()
    back = converted(tmp_path, "to_half", floats, nans(65536, dtype=np.float16))
    assert (back.view(np.uint16) == halves.view(np.uint16))[number].all()


@pytest.mark.filterwarnings("ignore:overflow")
def test_floats_are_rounded_to_half_as_numpy_does_ties_subnormals_and_overflow_included(tmp_path):
    rng = np.random.default_rng(0)
    anything = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    near = np.ldexp(rng.standard_normal(200_000), rng.integers(-26, 17, 200_000)).astype(np.float32)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[1:] + halves[:-1]) / 2
    edges = np.float32([65519.996, 65520, 65504, 2**-25, 2**-24, 1e-45, 0, np.inf])
    x = np.concatenate([anything, near, ties, np.nextafter(ties, 0), np.nextafter(ties, np.float32(1e9)), edges])
    x = np.concatenate([x, -x])
    halves, wanted = converted(tmp_path, "to_half", x, nans(x.size, dtype=np.float16)), x.astype(np.float16)
    number = ~np.isnan(wanted)
    assert (halves.view(np.uint16) == wanted.view(np.uint16))[number].all()
    assert np.isnan(halves[~number]).all()


def test_pairs_of_halves_go_to_float2_and_back(tmp_path):
    x = np.arange(64, dtype=np.float16)
    swapped = converted(tmp_path, "pairs", x, np.zeros_like(x)).reshape(32, 2)
    assert (swapped[:, ::-1].ravel() == x).all()


# ---- the cache


def test_a_kernel_is_compiled_once_and_an_edit_is_picked_up(launch, cache, monkeypatch):
    built, build = [], cpu._build
    monkeypatch.setattr(cpu, "_build", lambda *details: built.append(1) or build(*details))
    out = nans(1)
    for value in (11, 11, 12, 11):
        launch("float *x", f"x[0] = {value};", [out], block=1)
        assert out[0] == value
    assert len(built) == 2
    assert not [path for path in cache.iterdir() if path.suffix not in (".so", ".o")]
    assert str(KERNELS.parent) not in str(cache)


def test_two_processes_that_build_the_same_kernel_at_once_both_get_it(tmp_path):
    path = tmp_path / "same.cu"
    path.write_text('extern "C" __global__ void k(float *x) { x[0] = 3; }\n')
    code = (
        f"import sys; sys.path.insert(0, {str(KERNELS)!r})\nimport numpy as np\nfrom cpu import compile_kernel, run\n"
        f"x = np.zeros(1, np.float32)\nrun(compile_kernel({str(path)!r}), 'k', 1, 1, [x])\nprint(x[0])"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in both] == ["3.0", "3.0"]


def test_no_compiler_is_one_sentence_that_says_how_to_get_one(launch, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoCompiler) as error:
        launch("float *x", "x[0] = 1;", [nans(1)])
    assert str(error.value).startswith("No C++ compiler was found (g++, clang++, c++)")
    assert "install" in str(error.value)
