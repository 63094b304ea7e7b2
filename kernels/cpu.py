"""Runs the unchanged text of a .cu file on the CPU, under CUDA's execution model.

    module = compile_kernel("flash_forward.cu", {"BLOCK_Q": 64, "BLOCK_K": 64, "HEAD_DIM": 64, "CAUSAL": 0})
    stats = run(module, "flash_forward", grid=(8, 1), block=(32, 4), args=[Q, K, ..., np.int32(512)], shared_bytes=N)

A C++ compiler (g++ or clang++) turns the text into a library; cuda_on_cpu.h says what it finds in place of CUDA. A run
shows the kernel's logic: results, barriers, shuffles, what is read too early or written out of bounds. It says nothing
about speed, and its float32 differs from a GPU's in the last bits (no FMA that is not written, another exp2f).
Arrays are NumPy's, C-contiguous, of the declared types; they are copied in between guard zones, and copied back.
"""

import ctypes
import math
import os
import re
import threading
from dataclasses import dataclass

import numpy as np
from cpu_build import MOST_SHARED, KernelProblem, compile_kernel

__all__ = ["KernelError", "KernelProblem", "Stats", "compile_kernel", "run"]
SCHEDULES = ("forward", "reverse", "odd_first", "random")
GUARD = 64 << 10  # bytes before and after each array
NAN_WORD = 0x7FFF  # a NaN as half; twice, a NaN as float
LIMITS = {"grid": (2**31 - 1, 65535, 65535), "block": (1024, 1024, 64)}


class KernelError(KernelProblem):
    """What a kernel did wrong while it ran: what, in which line where that is known, which threads, which block."""


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
