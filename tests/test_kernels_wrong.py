"""The CPU runner on small kernels that are wrong: each is stopped with one sentence that says what, where and who."""

import os
import sys

import numpy as np
import pytest

from conftest import nans
from cpu import KernelError

pytestmark = pytest.mark.usefixtures("cache")


SCHEDULES = "forward reverse odd_first random:1 random:2".split()
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


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
