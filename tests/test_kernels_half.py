"""half on the CPU: conversions as NumPy has them, all of them."""

import numpy as np
import pytest

from conftest import nans
from cpu import compile_kernel, run

pytestmark = pytest.mark.usefixtures("cache")


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
