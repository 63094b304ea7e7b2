"""Running scripts two ways: demo by demo in this process, and whole, as a student does."""

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import settings

import console
import lesson as lesson_module

settings.register_profile("class", derandomize=True, deadline=None, database=None)
settings.register_profile("hunt", max_examples=3000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "class"))

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted(ROOT.glob("lecture*/[0-9]*.py")) + sorted(ROOT.glob("prereq*/[0-9]*.py"))
QUIET = SimpleNamespace(**dict.fromkeys(("header", "table", "observations", "lines"), lambda *_shown: None))


def load(path):
    """A script as a module, its `lesson(...)` line not run."""
    sys.path.insert(0, str(path.parent))
    run, lesson_module.lesson = lesson_module.lesson, lambda *_demos: None
    try:
        spec = importlib.util.spec_from_file_location("script_" + path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        lesson_module.lesson = run
        sys.path.remove(str(path.parent))
        sys.modules.pop("_lab", None)
    return module


def demos_of(module):
    return {name: demo for name, demo in vars(module).items() if name.startswith("demo") and callable(demo)}


@pytest.fixture
def record(monkeypatch):
    """Run a demo without showing it; returns what it recorded: `record(demo, block=64)`."""
    monkeypatch.setattr(console, "renderer", QUIET)

    def run(demo, **knobs):
        console.record = console.Record()
        demo(**knobs)
        (recorded,) = console.record.demos
        return recorded

    monkeypatch.setattr(console, "record", console.record)
    return run


def run_script(path, *arguments, python=(sys.executable,), cwd=None, **environment):
    """The finished process of a script, its output piped; 80 columns unless LAB_WIDTH is given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAB_")}
    clean.update({"PYTHONIOENCODING": "utf-8", "LAB_WIDTH": "80", "LAB_LAST": "off", **environment})
    command = [*python, str(path), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, cwd=cwd, env=clean, encoding="utf-8", timeout=60)


@cache
def shown(script, lang, *flags):
    """({kind of screen: what a script shows on it}, its record as --json gives it) of one run; see every_screen.py."""
    process = run_script(ROOT / "tests" / "every_screen.py", script, "--lang", lang, *flags)
    assert process.returncode == 0 and process.stderr == "", process.stderr
    both = json.loads(process.stdout)
    return both["screens"], both["record"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder for compiled kernels of a test file's own, so that nothing is found there that an earlier run left."""
    import cpu_build

    try:
        cpu_build.compiler()
    except cpu_build.NoCompiler as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Path(os.environ["LAB_CACHE"])


@pytest.fixture
def launch(tmp_path, cache):
    """Write a kernel named k to student.cu and run it: launch("float *x", "x[threadIdx.x] = 1;", [x], block=32)."""
    from cpu import compile_kernel, run

    def go(parameters, body, args, grid=1, block=32, shared_bytes=0, schedule="forward", before="", **options):
        path = tmp_path / "student.cu"
        path.write_text(f'{before}extern "C" __global__ void k({parameters}) {{\n{body}\n}}\n', encoding="utf-8")
        return run(compile_kernel(path), "k", grid, block, args, shared_bytes, schedule, **options)

    return go


def nans(*shape, dtype=np.float32):
    return np.full(shape, np.nan, dtype)
