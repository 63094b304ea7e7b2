"""Compiling a .cu file for the CPU: errors at the student's line, what is kept, and how long."""

import os
import subprocess
import sys
import time

import cpu_build
import pytest
from cpu_build import CompileError, NoCompiler

from conftest import ROOT, nans
from cpu import KernelProblem, compile_kernel, run

KERNELS = ROOT / "kernels"

pytestmark = pytest.mark.usefixtures("cache")


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


def test_a_kernel_is_compiled_once_and_an_edit_is_picked_up(launch, cache, monkeypatch):
    built, build = [], cpu_build._build
    monkeypatch.setattr(cpu_build, "_build", lambda *details: built.append(1) or build(*details))
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


def test_what_was_not_used_for_a_month_is_deleted_and_so_are_the_oldest_beyond_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_build, "KEPT", 3)
    now = time.time()
    for name, age in {"a.so": 0, "b.so": 10, "c.o": 20, "d.so": 30, "e.txt": 40, "f.so": 40 * 24 * 3600}.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now - age, now - age))
    cpu_build.tidy(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.so", "b.so", "c.o", "e.txt"]


def test_a_kernel_that_is_used_stays_and_a_new_one_makes_room(launch, cache):
    old, used = cache / "old-0.so", cache / "used-0.so"
    for path in (old, used):
        path.touch()
        os.utime(path, (0, 0))
    os.utime(used)
    launch("float *x", f"x[0] = {time.time()};", [nans(1)], block=1)
    assert not old.exists() and used.exists()
    used.unlink()
