"""One way to launch the lab's kernels: the same call, with the same checks, on a GPU through CuPy or on this CPU.

    place, why = choose_place()        # a Gpu where there is one, else a Cpu, and a sentence on why
    stats = launch_all(place, [(Launch("flash_forward.cu", "flash_forward", defines, grid, block), arguments)])

CUDA's int and float are 4 bytes: scalars reach a kernel as np.int32 and np.float32 only, for a Python float would be
copied as 8 bytes and read as 4. Arrays are read from their start: they have to be C-contiguous.
"""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from language import _
from machines import KIB, MACHINES

FOLDER = Path(__file__).resolve().parent
DEFAULT_SHARED = 48 * KIB  # what a block gets without asking
# Shared memory per block at most, with opt-in; RTX: Ada tuning guide. The CPU runner gives what the largest gives.
SHARED_PER_BLOCK = {
    "V100": MACHINES["V100"].shared_per_block,
    "RTX 30, RTX 40": 99 * KIB,
    "A100": MACHINES["A100"].shared_per_block,
    "H100, B200": MACHINES["H100"].shared_per_block,
}


class LaunchError(ValueError):
    """What cannot be launched, in one sentence: what was given, what is allowed, what to try."""


class Launch(NamedTuple):
    """One kernel's launch: its file and name, compile-time options, grid and block (x, y, z), dynamic shared bytes."""

    file: str
    name: str
    defines: dict
    grid: tuple
    block: tuple
    shared_bytes: int = 0


class Cpu:
    """The kernels' unchanged text, executed on this CPU: proves its logic, says nothing about speed."""

    name = "CPU"
    shared_limit = max(SHARED_PER_BLOCK.values())

    def __init__(self, schedule="forward"):
        self.schedule = schedule

    def array(self, x):
        return x

    def fetch(self, x):
        return x

    def run(self, launch, arguments):
        from cpu import compile_kernel, run

        module = compile_kernel(FOLDER / launch.file, launch.defines)
        return run(module, launch.name, launch.grid, launch.block, arguments, launch.shared_bytes, self.schedule)


class Gpu:
    """The first CUDA device, through CuPy."""

    def __init__(self):
        self.cupy, device = gpu_or_reason()
        if self.cupy is None:
            raise LaunchError(device)
        properties = self.cupy.cuda.runtime.getDeviceProperties(0)
        self.name = properties["name"].decode()
        self.shared_limit = int(properties["sharedMemPerBlockOptin"])

    def array(self, x):
        return self.cupy.asarray(x)

    def fetch(self, x):
        return self.cupy.asnumpy(x)

    def run(self, launch, arguments):
        self.function(launch)(launch.grid, launch.block, tuple(arguments), shared_mem=launch.shared_bytes)

    def function(self, launch):
        """The compiled kernel, allowed as much shared memory as the launch needs; CuPy keeps what it has compiled."""
        text = (FOLDER / launch.file).read_text(encoding="utf-8")
        options = tuple(f"-D{name}={value}" for name, value in launch.defines.items())
        function = self.cupy.RawModule(code=text, options=options).get_function(launch.name)
        if needs_opt_in(function.attributes["shared_size_bytes"], launch.shared_bytes):
            function.max_dynamic_shared_size_bytes = launch.shared_bytes
        return function


def gpu_or_reason():
    """(cupy, None) where a device answers, else (None, one sentence that says what is missing)."""
    try:
        import cupy
    except ImportError as error:
        if getattr(error, "name", None) == "cupy":
            return None, _("CuPy is not installed: with an NVIDIA GPU, pip install cupy-cuda12x or cupy-cuda13x.")
        text = _("CuPy cannot be loaded ({error}): its wheel has to match the driver's CUDA, 12 or 13.")
        return None, text.format(error=error)
    try:
        count = cupy.cuda.runtime.getDeviceCount()
        cupy.zeros(1)  # the first array finds out whether the libraries match
    except Exception as error:  # CuPy raises different types for a missing driver, device or library
        return None, _("CuPy is installed, but no GPU answers ({error}).").format(error=str(error).split("\n")[0])
    return (cupy, None) if count else (None, _("CuPy is installed, but there is no GPU."))


def choose_place():
    """(place, sentence): the GPU where there is one, else this CPU; the sentence says which and why."""
    cupy, reason = gpu_or_reason()
    if cupy is None:
        return Cpu(), _("They ran on this CPU, which shows their logic and nothing about speed. {why}").format(
            why=reason
        )
    place = Gpu()
    return place, _("They ran on {name}.").format(name=place.name)


def needs_opt_in(static_bytes, dynamic_bytes):
    """Whether a block needs more shared memory than CUDA gives unasked: static and dynamic count together."""
    return static_bytes + dynamic_bytes > DEFAULT_SHARED


def check_launch(launch, shared_limit, hint):
    """Raise LaunchError for a launch that no device takes, or that needs more shared memory than this one has.

    hint: what to try instead of that much shared memory.
    """
    threads = math.prod(launch.block)
    if not 1 <= threads <= 1024:
        text = _("{kernel} asks for {threads} threads per block; 1 to 1024 are allowed: try fewer rows.")
        raise LaunchError(text.format(kernel=launch.name, threads=threads))
    x, y, z = (*launch.grid, 1, 1)[:3]
    if not (1 <= x < 2**31 and 1 <= y < 2**16 and 1 <= z < 2**16):
        text = _(
            "{kernel} asks for a grid of ({x}, {y}, {z}); 1 to 2147483647 in x and 1 to 65535 in y and z are allowed: "
            "launch fewer heads at a time."
        )
        raise LaunchError(text.format(kernel=launch.name, x=x, y=y, z=z))
    if launch.shared_bytes > shared_limit:
        text = _("{kernel} needs {need:,} bytes of shared memory per block; {limit:,} are there: {hint}.")
        hint = hint or _("try smaller blocks")
        raise LaunchError(text.format(kernel=launch.name, need=launch.shared_bytes, limit=shared_limit, hint=hint))


def check_arguments(launch, arguments):
    """Raise LaunchError for an argument that a kernel would misread."""
    for i, x in enumerate(arguments):
        if isinstance(x, np.ndarray) and not x.flags.c_contiguous:
            text = _(
                "argument {i} of {kernel} is a view with gaps; a kernel reads on from its start: try "
                "np.ascontiguousarray."
            )
            raise LaunchError(text.format(i=i, kernel=launch.name))
        if not isinstance(x, np.ndarray | np.float32 | np.int32):
            text = _("argument {i} of {kernel} is a {kind}; a kernel reads 4 bytes: np.int32 or np.float32 is needed.")
            raise LaunchError(text.format(i=i, kernel=launch.name, kind=type(x).__name__))


def launch_all(place, calls, hint=""):
    """Check every launch, then make them one after another; arrays that a kernel writes are written back.

    calls: (Launch, arguments) each. Returns what the place counted for each launch (None on a GPU).
    Raises LaunchError before anything runs.
    """
    for launch, arguments in calls:
        check_launch(launch, place.shared_limit, hint)
        check_arguments(launch, arguments)
    held = {}  # one copy per array on the device, so that a kernel finds what the one before it wrote
    for _launch, arguments in calls:
        held.update({id(x): (x, place.array(x)) for x in arguments if isinstance(x, np.ndarray) and id(x) not in held})
    stats = [
        place.run(launch, [held[id(x)][1] if id(x) in held else x for x in arguments]) for launch, arguments in calls
    ]
    for x, on_device in held.values():
        if x.flags.writeable and on_device is not x:
            x[...] = place.fetch(on_device)
    return stats
