"""Compile the kernels with NVIDIA's compiler, on any machine, and read what they need from its log.

NVRTC comes in the wheel nvidia-cuda-nvrtc-cu12, cuda_fp16.h in nvidia-cuda-runtime-cu12 (requirements-ci.lock). It is
called through ctypes: CuPy's compile calls need a driver, NVRTC itself needs neither driver nor GPU. That it compiles
proves that NVIDIA's compiler takes the source and that a machine can hold it; it says nothing about results or speed.

`report()` gives a `Row` for each kernel, option set and machine. Blocks per SM follow the rules of NVIDIA's occupancy
calculator with the limits of the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".

Run as a script it prints the rows as a table: python3 kernels/nvrtc.py
"""

import ctypes
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from importlib import metadata
from itertools import product
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
NVRTC_WHEEL, HEADERS_WHEEL = "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12"


class Machine(NamedTuple):
    """What a streaming multiprocessor (SM) of an architecture has; shared memory in bytes.

    shared_block: the most a block may have, with opt-in; reserved: taken by the system for each block.
    """

    threads: int
    blocks: int
    shared: int
    shared_block: int
    reserved: int


MACHINES = {
    "sm_75": Machine(1024, 16, 64 << 10, 64 << 10, 0),  # T4
    "sm_80": Machine(2048, 32, 164 << 10, 163 << 10, 1 << 10),  # A100
    "sm_90": Machine(2048, 32, 228 << 10, 227 << 10, 1 << 10),  # H100, H200
    "sm_100": Machine(2048, 32, 228 << 10, 227 << 10, 1 << 10),  # B200
}
REGISTERS, SCHEDULERS, WARP = 65536, 4, 32  # of every SM above
WITHOUT_OPT_IN = 48 << 10  # static and dynamic shared memory together


class Options(NamedTuple):
    """The options of one compilation; those that a kernel does not know are passed all the same and do nothing."""

    BLOCK_Q: int = 64
    BLOCK_K: int = 32
    HEAD_DIM: int = 64
    CAUSAL: int = 0
    HALF: int = 0


class Source(NamedTuple):
    """A file of kernels: which options it reads, and the block pairs it is proved with."""

    name: str
    reads: tuple[str, ...]
    blocks: tuple[tuple[int, int], ...]


SOURCES = (
    Source("naive_attention", ("BLOCK_Q", "HEAD_DIM", "CAUSAL", "HALF"), ((8, 1),)),
    Source("flash_forward", Options._fields, ((64, 32), (32, 32), (64, 64))),
    Source("flash_decode", ("BLOCK_K", "HEAD_DIM", "HALF"), ((1, 8),)),
)


def threads(kernel: str, options: Options) -> int:
    """The threads of a block, as the kernel's header states them."""
    if kernel.startswith("naive"):
        return WARP * options.BLOCK_Q
    return WARP if kernel == "flash_decode_combine" else WARP * 4


def dynamic_shared(kernel: str, options: Options) -> int:
    """The bytes of dynamic shared memory that a launch has to ask for, as the kernel's header states them."""
    block_q, block_k, d, *_rest = options
    return 4 * (block_q * d + block_k * (2 * d + 1) + block_q * block_k) if kernel == "flash_forward" else 0


def registers_at_most(kernel: str, options: Options) -> int:
    """The bound that the proof holds a kernel to; 255 is the most that a thread can have.

    flash_forward keeps BLOCK_Q / 4 rows in registers, each with BLOCK_K / 32 scores, HEAD_DIM / 32 of o, m and l; 128
    more are for addresses and for numbers under way from shared memory. The other kernels keep next to nothing.
    """
    if kernel == "flash_forward":
        rows, keys, dims = options.BLOCK_Q // 4, -(-options.BLOCK_K // WARP), -(-options.HEAD_DIM // WARP)
        return min(255, 128 + rows * (keys + dims + 2))
    return 128 if kernel == "flash_decode_split" else 64


class Row(NamedTuple):
    """What one kernel needs with one option set on one machine; sizes in bytes, of a block, local ones of a thread."""

    kernel: str
    options: Options
    arch: str
    registers: int
    local: int
    spilled: int
    static_shared: int
    dynamic_shared: int
    blocks_per_sm: int
    occupancy: float


def blocks_per_sm(machine: Machine, threads: int, registers: int, shared: int) -> int:
    """How many blocks an SM runs at once; 0 where one does not fit. shared: static and dynamic bytes together.

    Registers are given to warps in pieces of 256, by each scheduler from its own quarter; shared memory in pieces of
    128 bytes (256 on sm_75, where it makes no difference to a figure of the report).
    """
    if shared > machine.shared_block or threads > 1024:
        return 0
    warps = -(-threads // WARP)
    by_registers = REGISTERS // SCHEDULERS // (-(-registers * WARP // 256) * 256) * SCHEDULERS // warps
    by_shared = machine.shared // max(1, -(-(shared + machine.reserved) // 128) * 128)
    return min(machine.blocks, machine.threads // (warps * WARP), by_registers, by_shared)


def wheel_file(wheel: str, name: str) -> Path | None:
    """A file of an installed wheel, by the pattern of its name; None where the wheel is not installed."""
    try:
        files = metadata.files(wheel) or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(f.locate())) for f in files if re.fullmatch(name, f.name)), None)


@lru_cache
def library() -> ctypes.CDLL | None:
    """NVRTC, or None where its wheel is not installed or has nothing for this system."""
    path = wheel_file(NVRTC_WHEEL, r"libnvrtc\.so\.12|nvrtc64_120_0\.dll")
    return None if path is None else ctypes.CDLL(str(path))


def missing() -> str | None:
    """One line that says what `compile_source` lacks here, with half; None where nothing is missing."""
    lacking = [NVRTC_WHEEL] if library() is None else []
    lacking += [] if wheel_file(HEADERS_WHEEL, r"cuda_fp16\.h") else [HEADERS_WHEEL]
    return f"not installed: {', '.join(lacking)} (requirements-ci.lock)" if lacking else None


def architectures() -> list[str]:
    """Those of `MACHINES` that this NVRTC compiles for."""
    nvrtc, count = loaded(), ctypes.c_int()
    check(nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)), "nvrtcGetNumSupportedArchs")
    known = (ctypes.c_int * count.value)()
    check(nvrtc.nvrtcGetSupportedArchs(known), "nvrtcGetSupportedArchs")
    return [arch for arch in MACHINES if int(arch[3:]) in known]


class CompileError(Exception):
    """NVRTC refused the source; the text is its log."""


def compile_source(
    text: str, arch: str = "sm_80", defines: Mapping[str, int] | None = None, headers: bool = False, name: str = "x.cu"
) -> tuple[bytes, str]:
    """The CUBIN of a source and the log of its compilation, which has the lines of ptxas -v.

    headers: whether the folder of cuda_fp16.h is on the include path; name: as which errors cite the source.
    Raises CompileError with the log if NVRTC refuses the source, RuntimeError if NVRTC is not installed.
    """
    nvrtc, program = loaded(), ctypes.c_void_p()
    options = [f"--gpu-architecture={arch}", "--ptxas-options=-v", *(f"-D{k}={v}" for k, v in (defines or {}).items())]
    if headers:
        header = wheel_file(HEADERS_WHEEL, r"cuda_fp16\.h")
        if header is None:
            raise RuntimeError(missing())
        options.append(f"--include-path={header.parent}")
    argv = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    check(created, "nvrtcCreateProgram")
    try:
        refused = nvrtc.nvrtcCompileProgram(program, len(options), argv)
        log = got(nvrtc, "ProgramLog", program).rstrip(b"\0").decode(errors="replace")
        if refused:
            raise CompileError(log)
        return got(nvrtc, "CUBIN", program), log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def loaded() -> ctypes.CDLL:
    """NVRTC; raises RuntimeError where it is not installed."""
    nvrtc = library()
    if nvrtc is None:
        raise RuntimeError(missing())
    return nvrtc


def check(status: int, call: str) -> None:
    """Raise RuntimeError for a call that failed."""
    if status:
        raise RuntimeError(f"{call} returned {status}")


def got(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    """What nvrtcGet... gives, after asking for its size."""
    size = ctypes.c_size_t()
    check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), f"nvrtcGet{what}Size")
    buffer = ctypes.create_string_buffer(size.value)
    check(getattr(nvrtc, f"nvrtcGet{what}")(program, buffer), f"nvrtcGet{what}")
    return buffer.raw


USES = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)'.*?(?P<local>\d+) bytes stack frame, (?P<stores>\d+) bytes spill "
    r"stores, (?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


def rows_of(source: Source, options: Options, arch: str) -> list[Row]:
    """A row for each kernel of a source, compiled with these options for this architecture."""
    text = (HERE / f"{source.name}.cu").read_text(encoding="utf-8")
    _cubin, log = compile_source(text, arch, options._asdict(), bool(options.HALF), f"{source.name}.cu")
    rows, machine = [], MACHINES[arch]
    for found in USES.finditer(log):
        kernel, registers = found["kernel"], int(found["registers"])
        static = re.search(r"(\d+) bytes smem", found["rest"])
        static_bytes, dynamic = int(static[1]) if static else 0, dynamic_shared(kernel, options)
        block = threads(kernel, options)
        fitting = blocks_per_sm(machine, block, registers, static_bytes + dynamic)
        spilled = int(found["stores"]) + int(found["loads"])
        sizes = (registers, int(found["local"]), spilled, static_bytes, dynamic)
        rows.append(Row(kernel, options, arch, *sizes, fitting, fitting * block / machine.threads))
    if {row.kernel for row in rows} != set(re.findall(r"__global__ void (\w+)", text)):
        raise RuntimeError(f"the log of {source.name}.cu does not name each kernel:\n{log}")
    return sorted(rows)


def option_sets(source: Source) -> Iterable[Options]:
    """Every option set that a source is proved with.

    All of them with its first block pair; with a further one those that have the mask and the conversions in them.
    CAUSAL stays 0 where the source does not read it.
    """
    for pair, d, causal, half in product(source.blocks, (32, 64, 80, 128), (0, 1), (0, 1)):
        if (pair == source.blocks[0] or (causal and half)) and causal <= ("CAUSAL" in source.reads):
            yield Options(*pair, d, causal, half)


def report(arches: Iterable[str] | None = None, sources: Iterable[Source] = SOURCES) -> list[Row]:
    """Each kernel, option set and architecture as a `Row`; in processes side by side, for NVRTC compiles one at a time.

    arches: those of `architectures()` by default.
    """
    jobs = [(s, o, a) for s in sources for o in option_sets(s) for a in (architectures() if arches is None else arches)]
    method = "fork" if "fork" in get_all_start_methods() else "spawn"  # spawn would run a caller's script again
    with ProcessPoolExecutor(os.cpu_count(), get_context(method)) as pool:
        return [row for rows in pool.map(rows_of, *zip(*jobs, strict=True), chunksize=4) for row in rows]


if __name__ == "__main__":
    print(
        missing() or "kernel                 block_q block_k   d causal half machine registers static dynamic blocks/SM"
    )
    for row in [] if missing() else report():
        q, k, d, causal, half = row.options
        options = f"{q:7} {k:7} {d:3} {causal:6} {half:4}"
        sizes = f"{row.registers:9} {row.static_shared:6} {row.dynamic_shared:7} {row.blocks_per_sm:9}"
        print(f"{row.kernel:22} {options} {row.arch:7} {sizes}")
