"""The launcher's checks: what a kernel would misread or a device refuse, said in one sentence before anything runs."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import attention
import launcher
from conftest import ROOT, run_script
from launcher import Launch, LaunchError, check_launch, launch_all, needs_opt_in

CASES = {case["id"]: case for case in json.loads((Path(__file__).parent / "cases" / "family_f.json").read_text())}


class Recorder:
    """A place that runs nothing and keeps what it was given."""

    shared_limit = 227 * 1024

    def __init__(self):
        self.ran = []

    def array(self, x):
        return x

    def fetch(self, x):
        return x

    def run(self, launch, arguments):
        self.ran.append((launch, arguments))


def qkv(n_q=6, n_k=6, heads=2, kv_heads=1, d=64, dtype=np.float32):
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal(shape).astype(dtype) for shape in ((heads, n_q, d), (kv_heads, n_k, d), (kv_heads, n_k, d))
    ]


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text and text.endswith((".", "}")) or "try" in text
    return text


@pytest.mark.parametrize("value", [0.125, 2, 2**32 + 5, True, np.float64(0.125), np.int64(3)])
def test_a_scalar_that_a_kernel_would_misread_is_refused(value):
    place = Recorder()
    with pytest.raises(LaunchError, match="4 bytes"):
        launch_all(place, [(Launch("x.cu", "x", {}, (1,), (32,)), [value])])
    assert place.ran == []


def test_the_scale_reaches_the_kernel_as_float32_and_the_sizes_as_int32():
    for case in CASES["F1"]["inputs"]["d"]:
        place = Recorder()
        Q, K, V = qkv(d=case) if case in attention.HEAD_DIMS else (None, None, None)
        if Q is None:
            continue
        attention.flash_forward(Q, K, V, block_q=4, block_k=8, place=place)
        ((_launch, arguments),) = place.ran
        assert isinstance(arguments[-1], np.float32) and arguments[-1] == np.float32(case**-0.5)
        assert all(isinstance(x, np.int32) for x in arguments[5:9])


@pytest.mark.parametrize("view", [lambda K: K.transpose(0, 2, 1), lambda K: K[:, :, ::2], lambda K: K[:, ::-1]])
def test_a_view_with_gaps_is_refused(view):
    K = np.zeros((1, 64, 128), np.float32)
    with pytest.raises(LaunchError, match="ascontiguousarray"):
        launch_all(Recorder(), [(Launch("x.cu", "x", {}, (1,), (32,)), [view(K)])])


@pytest.mark.parametrize("static, dynamic, opt_in", CASES["F5"]["expected"]["opt_in"])
def test_static_and_dynamic_shared_memory_count_together(static, dynamic, opt_in):
    assert needs_opt_in(static, dynamic) is opt_in


@pytest.mark.parametrize("limit, asked, allowed", CASES["F5"]["expected"]["limits"])
def test_what_a_device_has_is_allowed_to_the_byte(limit, asked, allowed):
    launch = Launch("x.cu", "x", {}, (1,), (32,), asked)
    if allowed:
        check_launch(launch, limit, "")
    else:
        with pytest.raises(LaunchError, match=f"{asked:,} bytes .* {limit:,} are there"):
            check_launch(launch, limit, "")


@pytest.mark.parametrize("n_q, heads, grid", CASES["F8"]["expected"]["grids"])
def test_the_grid_is_query_blocks_in_x_and_heads_in_y(n_q, heads, grid):
    place = Recorder()
    attention.flash_forward(*qkv(n_q=n_q, heads=heads), block_q=64, block_k=8, place=place)
    assert [list(launch.grid) for launch, _arguments in place.ran] == ([grid] if grid else [])


def test_more_heads_than_a_grid_has_are_refused_and_as_many_are_not():
    check_launch(Launch("x.cu", "x", {}, (1, 65535), (32,)), 0, "")
    with pytest.raises(LaunchError, match="65535"):
        check_launch(Launch("x.cu", "x", {}, (1, 65536), (32,)), 0, "")
    with pytest.raises(LaunchError, match="1056 threads"):
        check_launch(Launch("x.cu", "x", {}, (1,), (32, 33)), 0, "")


def test_blocks_that_are_too_large_are_told_the_need_the_limit_and_a_pair_that_fits():
    with pytest.raises(LaunchError) as error:
        attention.flash_forward(*qkv(d=128), block_q=128, block_k=256, place=Recorder())
    text = one_sentence(error)
    need = attention.forward_shared_bytes(128, 256, 128)
    assert f"{need:,} bytes" in text and "232,448 are there" in text
    block_q, block_k = (int(word.strip(",.")) for word in text.replace("=", " ").split() if word.strip(",.").isdigit())
    assert attention.forward_shared_bytes(block_q, block_k, 128) <= 232_448


@pytest.mark.parametrize(
    "change, words",
    [
        ({"dtype": np.float64}, "float64"),
        ({"d": 65}, "head size is 65"),
        ({"heads": 3, "kv_heads": 2}, "3 query heads and 2"),
    ],
)
def test_what_the_kernels_do_not_take_is_refused(change, words):
    with pytest.raises(LaunchError, match=words):
        attention.flash_forward(*qkv(**change), block_q=4, block_k=4, place=Recorder())


def test_without_queries_nothing_is_launched():
    place = Recorder()
    result = attention.flash_forward(*qkv(n_q=0), block_q=4, block_k=4, place=place)
    assert place.ran == [] and result.O.shape == (2, 0, 64) and result.lse.shape == (2, 0)


def missing_driver(*_arguments):
    raise RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")


@pytest.mark.parametrize(
    "cupy, words",
    [
        (None, "CuPy is not installed"),
        (
            SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=missing_driver))),
            "no GPU answers",
        ),
        (
            SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=lambda: 0)), zeros=lambda n: n),
            "no GPU",
        ),
    ],
)
def test_without_a_gpu_the_cpu_is_used_and_one_sentence_says_why(cupy, words, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    place, why = launcher.choose_place()
    assert isinstance(place, launcher.Cpu) and words in why and "\n" not in why


def test_the_gpu_script_says_in_one_sentence_that_there_is_no_gpu():
    if launcher.gpu_or_reason()[0] is not None:
        pytest.skip("there is a GPU here")
    process = run_script(ROOT / "kernels" / "gpu.py")
    assert process.returncode == 2 and process.stdout == "" and process.stderr.count("\n") == 1


def test_nothing_of_the_kernels_imports_cupy_until_a_gpu_is_asked_for(tmp_path):
    script = tmp_path / "imports.py"
    script.write_text(
        f"import sys; sys.path[:0] = [{str(ROOT / 'kernels')!r}, {str(ROOT / 'lecture01')!r}]\n"
        "import attention, launcher; print('cupy' in sys.modules)"
    )
    assert run_script(script).stdout.strip() == "False"
