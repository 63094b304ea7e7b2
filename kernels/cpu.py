"""Runs the unchanged text of a .cu file on the CPU, under CUDA's execution model.

    module = compile_kernel("flash_forward.cu", {"BLOCK_Q": 64, "BLOCK_K": 64, "HEAD_DIM": 64, "CAUSAL": 0})
    stats = run(module, "flash_forward", grid=(8, 1), block=(32, 4), args=[Q, K, ..., np.int32(512)], shared_bytes=N)

A C++ compiler (g++ or clang++) turns the text into a library; cuda_on_cpu.h says what it finds in place of CUDA. A run
shows the kernel's logic: results, barriers, shuffles, what is read too early or written out of bounds. It says nothing
about speed, and its float32 differs from a GPU's in the last bits (no FMA that is not written, another exp2f).
Arrays are NumPy's, C-contiguous, of the declared types; they are copied in between guard zones, and copied back.
"""

import ctypes
import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
HEADERS = ("cuda_thread.h", "cuda_on_cpu.h", "cuda_on_cpu.cpp", "include/cuda_fp16.h")
COMPILERS = ("g++", "clang++", "c++")
# -O2 keeps float32 as written; no contraction, or the same kernel would round differently on x86-64 and arm64
OPTIONS = "-std=c++17 -O2 -fPIC -fvisibility=hidden -ffp-contract=off -fstack-clash-protection -w -pthread".split()
SCHEDULES = ("forward", "reverse", "odd_first", "random")
GUARD = 64 << 10  # bytes before and after each array
NAN_WORD = 0x7FFF  # a NaN as half; twice, a NaN as float
MOST_SHARED = 227 << 10
# In preprocessed text, free of comments. A name that is not extern "C" could not be found on a GPU either.
BRACKETS = r"\s*\((?:[^()]|\([^()]*\))*\)\s*"
A_KERNEL = re.compile(
    r'extern\s*"C"\s*(?:\{\s*)?__global__\s+'
    rf"(?:void\s|__launch_bounds__{BRACKETS})+\s*(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)\s*\{{"
)
EXTERN_SHARED = re.compile(rf"extern\s(?:\s*__shared__|\s*__align__{BRACKETS})+\s*([\w\s]+?)\s*\b(\w+)\s*\[\s*\]")
LIMITS = {"grid": (2**31 - 1, 65535, 65535), "block": (1024, 1024, 64)}


class KernelProblem(Exception):
    """What the runner refuses or reports, in one sentence."""


class NoCompiler(KernelProblem):
    """There is no C++ compiler."""


class CompileError(KernelProblem):
    """The compiler's first error, with the line of the .cu file."""


class KernelError(KernelProblem):
    """What a kernel did wrong while it ran: what, in which line where that is known, which threads, which block."""


@dataclass(frozen=True)
class Module:
    """A compiled .cu file: its path, the library, and {kernel: [(parameter, type), ...]}; see `code` in the header."""

    path: Path
    library: ctypes.CDLL
    kernels: dict


@dataclass(frozen=True)
class Stats:
    """What a run counted: per thread block (int64 arrays, x first) warp shuffles and barriers; and the blocks."""

    shuffles: np.ndarray
    barriers: np.ndarray
    blocks: int


class _Launch(ctypes.Structure):  # as in cuda_on_cpu.h
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("call", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("shared_bytes", ctypes.c_size_t),
        ("schedule", ctypes.c_int),
        ("workers", ctypes.c_int),
        ("seed", ctypes.c_uint64),
        ("shuffles", ctypes.c_void_p),
        ("barriers", ctypes.c_void_p),
        ("stop", ctypes.c_int),
        ("line", ctypes.c_int),
        ("failed_block", ctypes.c_int64),
        ("text", ctypes.c_char * 600),
    ]


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


def run(module, kernel, grid, block, args, shared_bytes=0, schedule="forward", workers=None):
    """Run a kernel of the module on arrays and NumPy scalars; arrays that it does not declare const are changed.

    grid, block: up to three sizes each. shared_bytes: of dynamic shared memory. schedule: the order of the threads,
    "forward", "reverse", "odd_first" or "random:SEED". workers: threads of the CPU, all there are by default.
    Returns `Stats`. Raises KernelProblem for a launch that CUDA would refuse, KernelError for what went wrong in it.
    """
    if kernel not in module.kernels:
        raise KernelProblem(f'{module.path.name} has no extern "C" kernel {kernel}; it has {", ".join(module.kernels)}')
    grid, block = _sizes("grid", grid), _sizes("block", block)
    if math.prod(block) > 1024:
        raise KernelProblem(f"a block of {block} has {math.prod(block)} threads; at most 1024 are possible")
    if not 0 <= shared_bytes <= MOST_SHARED:
        raise KernelProblem(f"{shared_bytes:,} bytes of shared memory are needed; at most {MOST_SHARED:,} are possible")
    buffers = _buffers(module, kernel, args)
    counts = _launch(module, kernel, grid, block, buffers, shared_bytes, _schedule(schedule), workers or _processors())
    arrays = [(i, buffer) for i, buffer in enumerate(buffers) if isinstance(buffer, _Buffer)]
    for i, buffer in arrays:
        buffer.check(f"{module.path.name}: {kernel} wrote outside argument {i} ({module.kernels[kernel][i][0]})")
    for _i, buffer in arrays:
        buffer.copy_back()
    return Stats(*counts, math.prod(grid))


# ---- compiling


@cache
def _compiler(search):
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
    found, version = _compiler(os.environ.get("PATH", os.defpath))
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
    key.update(_compiler(os.environ.get("PATH", os.defpath))[1].encode())
    stem, suffix = os.path.splitext(name)
    path = _cache_folder() / f"{stem}-{key.hexdigest()[:24]}{suffix}"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            build(Path(folder) / name, *details)
            os.replace(Path(folder) / name, path)  # at once: whoever builds the same now finds all of it or nothing
    return path


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


# ---- running


def _sizes(name, sizes):
    sizes = tuple(int(n) for n in np.atleast_1d(sizes))
    sizes += (1,) * (3 - len(sizes))
    if len(sizes) != 3 or any(not 1 <= n <= most for n, most in zip(sizes, LIMITS[name], strict=True)):
        raise KernelProblem(f"{name} is {sizes}; from 1 to {LIMITS[name]} is possible")
    return sizes


def _schedule(schedule):
    name, _colon, seed = schedule.partition(":")
    if name not in SCHEDULES or (seed and not seed.isdecimal()):
        raise KernelProblem(f'schedule is {schedule!r}; "forward", "reverse", "odd_first" or "random:SEED" is needed')
    return {"schedule": SCHEDULES.index(name), "seed": int(seed or 0)}


def _processors():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Buffer:
    """A copy of an array, 256-byte aligned as on a GPU, between two guard zones of NaN."""

    def __init__(self, array):
        self.array, self.changed = array, False
        self.raw = np.full((2 * GUARD + array.nbytes + 1) // 2 + 128, NAN_WORD, np.uint16).view(np.uint8)
        self.start = GUARD + -(self.raw.ctypes.data + GUARD) % 256
        self.end = self.start + array.nbytes
        self.data = self.raw[self.start : self.end]
        self.guards = self.raw[: self.start].copy(), self.raw[self.end :].copy()
        self.data[:] = array.reshape(-1).view(np.uint8)
        self.pointer = ctypes.c_void_p(self.raw.ctypes.data + self.start)

    def check(self, what):
        before, after = self.raw[: self.start] != self.guards[0], self.raw[self.end :] != self.guards[1]
        if before.any():
            raise KernelError(f"{what}: {self.start - int(before.argmax())} bytes before its start")
        if after.any():
            offset = self.data.size + int(after.argmax())
            raise KernelError(f"{what}: at byte offset {offset}, and it has {self.data.size} bytes")

    def copy_back(self):
        if not self.changed:
            return
        self.array.reshape(-1).view(np.uint8)[:] = self.data


def _buffers(module, kernel, args):
    """A `_Buffer` per array and None per scalar; an array given twice has one."""
    parameters = module.kernels[kernel]
    if len(args) != len(parameters):
        names = ", ".join(name for name, _code in parameters)
        raise KernelProblem(
            f"{kernel} has {len(parameters)} parameters ({names}), and {len(args)} arguments were given"
        )
    for i, (arg, (name, code)) in enumerate(zip(args, parameters, strict=True)):
        _check(f"argument {i} ({name}) of {kernel}", arg, code)
    buffers = []
    for i, (arg, (name, code)) in enumerate(zip(args, parameters, strict=True)):
        buffer = _Buffer(arg) if "*" in code else bytearray(arg.tobytes())
        for other in buffers if "*" in code else []:
            if isinstance(other, _Buffer) and np.may_share_memory(arg, other.array):
                if (arg.ctypes.data, arg.nbytes) != (other.array.ctypes.data, other.array.nbytes):
                    raise KernelProblem(f"argument {i} ({name}) of {kernel} overlaps another array")
                buffer = other
        if "*" in code and "c" not in code:
            buffer.changed = True
        buffers.append(buffer)
    return buffers


def _launch(module, kernel, grid, block, buffers, shared_bytes, schedule, workers):
    """Call the kernel; the shuffles and barriers of each block. Raises KernelError."""
    values = [b.pointer if isinstance(b, _Buffer) else ctypes.c_char.from_buffer(b) for b in buffers]
    pointers = (ctypes.c_void_p * (len(values) + 1))(*map(ctypes.addressof, values))
    counts = np.zeros((2, math.prod(grid)), np.int64)
    launch = _Launch(grid, block, shared_bytes=shared_bytes, failed_block=-1, **schedule)
    launch.call = ctypes.cast(getattr(module.library, f"lab_call_{kernel}"), ctypes.c_void_p)
    launch.values, launch.shuffles, launch.barriers = ctypes.addressof(pointers), *(row.ctypes.data for row in counts)
    launch.workers = max(1, min(workers, math.prod(grid)))
    _in_a_thread(module.library.lab_run, launch, keep=(buffers, values, pointers, counts))
    if launch.failed_block >= 0:
        raise KernelError(_sentence(module, kernel, launch))
    return counts


def _check(what, arg, code):
    """Raise KernelProblem unless the argument is what the parameter declares; nothing is converted silently."""
    if code.endswith("?"):
        raise KernelProblem(f"{what} is of a type that the CPU runner cannot pass")
    dtype = np.dtype(code[-2:])
    if "*" in code:
        if not isinstance(arg, np.ndarray) or arg.dtype != dtype:
            raise KernelProblem(f"{what} is {_kind(arg)}; an array of {dtype} is needed")
        if not arg.flags.c_contiguous:
            raise KernelProblem(f"{what} is not C-contiguous: try np.ascontiguousarray(...)")
        if "c" not in code and not arg.flags.writeable:
            raise KernelProblem(f"{what} is read-only, and the kernel does not declare it const")
    elif not isinstance(arg, np.generic) or arg.dtype != dtype:
        raise KernelProblem(f"{what} is {_kind(arg)}; np.{dtype}(...) is needed")


def _kind(arg):
    if isinstance(arg, np.ndarray):
        return f"an array of {arg.dtype}"
    return f"np.{arg.dtype}" if isinstance(arg, np.generic) else f"a Python {type(arg).__name__}"


def _in_a_thread(function, launch, keep):
    """Call into C from a thread: Ctrl-C interrupts the wait for a thread, and not a call into C."""
    thread = threading.Thread(target=lambda _keep: function(ctypes.byref(launch)), args=(keep,), daemon=True)
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        launch.stop = 1
        raise


def _sentence(module, kernel, launch):
    """The error with the file's name, and where the kernel returns, if one of its threads has."""
    text = launch.text.decode(errors="replace")
    if "has returned" in text and (lines := _returns(module.path, kernel)):
        text = text.replace("has returned", f"has returned ({lines})", 1)
    place = f"{module.path.name}, line {launch.line}" if launch.line else module.path.name
    return f"{place}: {text} of {kernel}"


def _returns(path, kernel):
    """The lines of a kernel that hold a return statement, in words."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"//[^\n]*|/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL)
    start = re.search(rf"__global__[^;{{}}]*?\b{kernel}\s*\([^)]*\)\s*\{{", text)
    if not start:
        return ""
    depth, end = 1, start.end()
    while depth and end < len(text):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    found = [match.start() for match in re.finditer(r"\breturn\b", text[:end]) if match.start() > start.end()]
    lines = ", ".join(str(text.count("\n", 0, place) + 1) for place in found)
    return lines and f"line{'s' if len(found) > 1 else ''} {lines}"
