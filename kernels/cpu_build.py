"""Compiles the unchanged text of a .cu file for the CPU: g++ or clang++, once, kept until the text changes.

What is built is kept by content in a folder of the user's, never in the repository; `tidy` deletes what has not been
used for long.
"""

import ctypes
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADERS = ("cuda_thread.h", "cuda_on_cpu.h", "cuda_on_cpu.cpp", "switch.h", "include/cuda_fp16.h")
COMPILERS = ("g++", "clang++", "c++")
# -O2 keeps float32 as written; no contraction, or the same kernel would round differently on x86-64 and arm64
OPTIONS = "-std=c++17 -O2 -fPIC -fvisibility=hidden -ffp-contract=off -fstack-clash-protection -w -pthread".split()
MOST_SHARED = 227 << 10
KEPT = 100  # libraries; the oldest beyond are deleted, and whatever has not been used for a month
MONTH = 30 * 24 * 3600
# In preprocessed text, free of comments. A name that is not extern "C" could not be found on a GPU either.
BRACKETS = r"\s*\((?:[^()]|\([^()]*\))*\)\s*"
A_KERNEL = re.compile(
    r'extern\s*"C"\s*(?:\{\s*)?__global__\s+'
    rf"(?:void\s|__launch_bounds__{BRACKETS})+\s*(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)\s*\{{"
)
EXTERN_SHARED = re.compile(rf"extern\s(?:\s*__shared__|\s*__align__{BRACKETS})+\s*([\w\s]+?)\s*\b(\w+)\s*\[\s*\]")


class KernelProblem(Exception):
    """What the runner refuses or reports, in one sentence."""


class NoCompiler(KernelProblem):
    """There is no C++ compiler."""


class CompileError(KernelProblem):
    """The compiler's first error, with the line of the .cu file."""


@dataclass(frozen=True)
class Module:
    """A compiled .cu file: its path, the library, and {kernel: [(parameter, type), ...]}; see `code` in the header."""

    path: Path
    library: ctypes.CDLL
    kernels: dict


def compile_kernel(path, defines=None):
    """The .cu file compiled with `defines`, a `Module`; from the cache where nothing has changed.

    Raises NoCompiler, CompileError, or KernelProblem where the file cannot be read or holds no kernel.
    """
    path = Path(path)
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KernelProblem(f"{path} cannot be read: {error}") from None
    defines = tuple(f"-D{name}={value}" for name, value in (defines or {}).items())
    headers = [(HERE / name).read_text(encoding="utf-8") for name in HEADERS]
    runtime = _cached("runtime.o", headers, _build_runtime)
    built = _cached(f"{path.stem}.so", [source, path.name, *headers, *defines], _build, path, source, defines, runtime)
    library = _load(built)
    names = library.lab_kernels().decode().split()
    return Module(path, library, {name: _parameters(library, name) for name in names})


def compiler():
    """(path, version) of the first C++ compiler on the PATH. Raises NoCompiler."""
    return _find_compiler(os.environ.get("PATH", os.defpath))


@cache
def _find_compiler(search):
    """The first compiler on the PATH, and what it says of its version."""
    for name in COMPILERS:
        if found := shutil.which(name, path=search):
            version = subprocess.run([found, "--version"], capture_output=True, text=True)
            if version.returncode == 0:  # macOS has a g++ that only offers to install one
                return found, version.stdout
    install = {"Darwin": "xcode-select --install", "Windows": "use WSL, and there sudo apt install g++"}
    how = install.get(platform.system(), "sudo apt install g++ (or dnf install gcc-c++)")
    raise NoCompiler(f"No C++ compiler was found ({', '.join(COMPILERS)}), and kernels need one on the CPU: {how}")


def _command(*arguments):
    found, version = compiler()
    gnu = [] if "clang" in version else ["-fno-gnu-unique"]  # unique symbols would be shared by two libraries
    return [found, *OPTIONS, *gnu, f"-I{HERE}", f"-I{HERE / 'include'}", *map(str, arguments)]


def _compile(arguments, path=None, source=""):
    """The compiler's output. Raises CompileError with its first error, the line held within the file."""
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        _command(*arguments), capture_output=True, encoding="utf-8", errors="replace", env=environment
    )
    if done.returncode == 0:
        return done.stdout
    error = re.search(r"^(.*?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)$", done.stderr, re.MULTILINE)
    name = path.name if path else "cuda_on_cpu.h"
    if not error:
        raise CompileError(f"{name} cannot be compiled: {done.stderr.strip()[-500:]}")
    file, line, text = error.groups()
    if file != name and (own := re.search(rf"^{re.escape(name)}:(\d+):", done.stderr, re.MULTILINE)):
        file, line = name, own[1]  # an error in a header, about a line of the student's
    # what is missing at the end, such as a }, is noticed in the lines added after it
    line = min(int(line), source.rstrip("\n").count("\n") + 1) if file == name and path else line
    raise CompileError(f"{file}, line {line}: {text}")


def _build_runtime(target):
    _compile(["-c", HERE / "cuda_on_cpu.cpp", "-o", target])


def _build(target, path, source, defines, runtime):
    """The library of a .cu file: its text after the header, and before what hands its kernels over."""
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder) / "unit.cpp"
        named = f"#line 1 {json.dumps(path.name)}\n{source}\n"
        unit.write_text(named, encoding="utf-8")
        text = re.sub(r"^#.*", "", _compile(["-E", *defines, unit], path, source), flags=re.MULTILINE)
        kernels = [found.group("name", "parameters") for found in A_KERNEL.finditer(text)]
        shared = {name: kind for kind, name in EXTERN_SHARED.findall(text)}
        if not kernels:
            raise KernelProblem(f'{path.name} holds no kernel: extern "C" __global__ void name(...) {{ ... }}')
        unit.write_text(f'#include "cuda_on_cpu.h"\n{named}{_handed_over(kernels, shared)}', encoding="utf-8")
        _compile([*defines, "-shared", unit, runtime, "-o", target], path, source)


def _handed_over(kernels, shared):
    """The lines after the student's text: storage for its extern shared arrays, and LAB_KERNEL for each kernel."""
    size = MOST_SHARED + 4096  # the end has to stay as it is: `check_overrun`
    lines = [f"alignas(128) thread_local {kind} {name}[{size} / sizeof({kind})];" for name, kind in shared.items()]
    where = f"{{(char *){next(iter(shared))}, {size}}}" if shared else "{nullptr, 0}"
    lines.append(f"lab::Span lab::dynamic_shared() {{ return {where}; }}")
    for name, parameters in kernels:
        names = " ".join(re.findall(r"(\w+)\s*(?:\[\s*\])?\s*(?:,|$)", parameters.strip()))
        lines.append(f'LAB_KERNEL({name}, "{names}")')
    lines.append(
        f'LAB_EXPORT const char *lab_kernels() {{ return "{" ".join(name for name, _parameters in kernels)}"; }}'
    )
    return "\n".join(lines) + "\n"


def _cached(name, contents, build, *details):
    """The path of a file that depends on nothing but `contents` and the compiler, built where it is not there yet."""
    key = hashlib.sha256("\0".join([*contents, *_command()]).encode())
    key.update(compiler()[1].encode())
    stem, suffix = os.path.splitext(name)
    path = _cache_folder() / f"{stem}-{key.hexdigest()[:24]}{suffix}"
    try:
        os.utime(path)  # used now: see `tidy`
    except FileNotFoundError:
        tidy(path.parent)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            build(Path(folder) / name, *details)
            os.replace(Path(folder) / name, path)  # at once: whoever builds the same now finds all of it or nothing
    return path


def tidy(folder):
    """Delete what was built and has not been used for a month, and of the rest the oldest beyond `KEPT`."""
    with suppress(OSError):  # another process may be tidying, too
        built = {path: path.stat().st_mtime for path in folder.iterdir() if path.suffix in (".so", ".o")}
        newest_first = sorted(built, key=lambda path: -built[path])
        for i, path in enumerate(newest_first):
            if i >= KEPT or built[path] < time.time() - MONTH:
                path.unlink(missing_ok=True)


def _cache_folder():
    """LAB_CACHE, else a folder of the user's; never in the repository."""
    own = os.environ.get("LAB_CACHE")
    usual = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    folder = Path(own) if own else Path(usual) / "flash_lab"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KernelProblem(f"{folder} cannot be made ({error.strerror}); set LAB_CACHE to a folder of yours") from None
    return folder.resolve()


@cache
def _load(path):
    """The library, loaded once: a second copy would have shared memory of its own."""
    library = ctypes.CDLL(str(path))
    library.lab_kernels.restype = ctypes.c_char_p
    library.lab_run.restype = None
    return library


def _parameters(library, kernel):
    """[(name, type), ...] as the compiler understood them."""
    types, names = getattr(library, f"lab_types_{kernel}"), getattr(library, f"lab_names_{kernel}")
    types.restype, names.restype = ctypes.POINTER(ctypes.c_char_p), ctypes.c_char_p
    codes, found = types(), []
    for name in names().decode().split():
        found.append((name, codes[len(found)].decode()))
    return found
