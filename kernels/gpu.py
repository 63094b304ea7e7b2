"""All kernels on an NVIDIA GPU: right, repeatable, and how fast. python3 gpu.py (make gpu)

Every kernel against float64 on fresh random inputs, 50 reruns bit for bit, NVIDIA's compute-sanitizer where it is
installed, then times by events: warm-up, median and spread of 20 runs, as TFLOPS, GB/s and shares of what this device
reaches in a matmul and in a copy. Takes under 4 minutes. Ends with status 2 and one sentence where there is no GPU.
"""

import _lab  # noqa: F401

import shutil
import subprocess
import sys

import numpy as np

import attention
import flash_lab
from console import Column, claim, finding, print_header, print_observations, print_table
from launcher import Gpu, LaunchError
from units import in_u

RERUNS, TIMED = 50, 20
SANITIZE = "--only-run"  # what compute-sanitizer starts this script with: the kernels once, without reruns and times


def problem(rng, heads, kv_heads, n_q, n_k, d, dtype):
    shapes = ((heads, n_q, d), (kv_heads, n_k, d), (kv_heads, n_k, d))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def cases(rng):
    """(name, maker of the calls, Q, K, V, options, mask) over ragged shapes, both dtypes, all head sizes."""
    for dtype in (np.float32, np.float16):
        for d in attention.HEAD_DIMS:
            Q, K, V = problem(rng, 4, 2, 130, 257, d, dtype)
            name = f"{np.dtype(dtype).name}, d = {d}"
            for mask in ({}, {"causal": True}):
                blocks = {"block_q": 32, "block_k": 32}
                yield f"forward, {name}", attention.forward_calls, Q, K, V, blocks, mask
                yield f"naive, {name}", attention.naive_calls, Q, K, V, {"block_q": 16}, mask
            Q = np.ascontiguousarray(Q[:, :1])
            yield f"decode, {name}", attention.decode_calls, Q, K, V, {"splits": 5, "block_k": 32}, {}


def check_all(place, reruns):
    """{kernel and dtype: (name, cases, worst error in u of the dtype, whether all reruns were bit-identical)}."""
    found = {}
    for name, make_calls, Q, K, V, options, mask in cases(np.random.default_rng()):
        results = [attention.run_calls(make_calls, Q, K, V, place, **options, **mask) for _again in range(reruns)]
        exact, u = flash_lab.exact_and_unit(*(x.astype(np.float32) for x in (Q, K, V)), Q.dtype, **mask)
        error = flash_lab.worst_in_u(results[0].O, exact, u)
        same = all(np.array_equal(r.O, results[0].O) and np.array_equal(r.lse, results[0].lse) for r in results)
        kind = ", ".join(name.split(", ")[:2])
        _kind, count, worst, all_same = found.get(kind, (kind, 0, 0.0, True))
        found[kind] = (kind, count + 1, max(worst, error), all_same and same)
    return found


def sanitize():
    """{tool: whether it found nothing} of compute-sanitizer; empty where it is not installed."""
    if not shutil.which("compute-sanitizer"):
        return {}
    command = ["compute-sanitizer", "--error-exitcode", "9", "--tool"]
    script = [sys.executable, __file__, SANITIZE]
    tools = ("memcheck", "racecheck", "synccheck")
    return {tool: subprocess.run([*command, tool, *script], capture_output=True).returncode == 0 for tool in tools}


def milliseconds(cupy, run):
    """Median and spread (largest less smallest) of TIMED runs by events, after one warm-up that compiles."""
    run()
    times = []
    for _again in range(TIMED):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end))
    return float(np.median(times)), max(times) - min(times)


def on_device(place, make_calls, *data, **options):
    """A function that launches the calls again and again on arrays that are already on the device."""
    calls, *_outputs = make_calls(*data, place, **options)
    held = {id(x): place.array(x) for _launch, arguments in calls for x in arguments if isinstance(x, np.ndarray)}
    ready = [(launch, place.function(launch), tuple(held.get(id(x), x) for x in a)) for launch, a in calls]

    def run():
        for launch, function, arguments in ready:
            function(launch.grid, launch.block, arguments, shared_mem=launch.shared_bytes)

    return run


def torch_attention(Q, K, V):
    """A function that runs PyTorch's attention on the GPU; None where PyTorch or its GPU is not there."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    q, k, v = (torch.from_numpy(x)[None].cuda() for x in (Q, K, V))
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)


def time_all(place, n=8192, d=64):
    """{what: (name, ms, spread, TFLOPS, GB/s)} in float32, one head; the matmul and the copy are the ceilings."""
    cupy = place.cupy
    Q, K, V = problem(np.random.default_rng(0), 1, 1, n, n, d, np.float32)
    a = cupy.ones((4096, 4096), cupy.float32)
    long, copy = cupy.ones(2**28, cupy.float32), cupy.empty(2**28, cupy.float32)
    runs = {
        "matmul": ("matmul of 4096 x 4096", lambda: a @ a, 2 * 4096**3, 3 * 4 * 4096**2),
        "copy": ("copy of 1 GiB", lambda: cupy.copyto(copy, long), 0, 2 * 2**30),
        "naive": ("naive", on_device(place, attention.naive_calls, Q, K, V, block_q=16), 4 * n * n * d, 0),
    }
    for pair in ((32, 32), (32, 64), (64, 32), (64, 64)):
        run = on_device(place, attention.forward_calls, Q, K, V, block_q=pair[0], block_k=pair[1])
        moved = 4 * sum(flash_lab.traffic_tiled(n, n, d, d, pair[0]).values())
        runs[pair] = (f"flash forward, {pair[0]} x {pair[1]}", run, 4 * n * n * d, moved)
    if theirs := torch_attention(Q, K, V):
        runs["torch"] = ("PyTorch's attention", theirs, 4 * n * n * d, 0)
    rows = {}
    for key, (name, run, flops, moved) in runs.items():
        ms, spread = milliseconds(cupy, run)
        rows[key] = (name, ms, spread, flops / ms / 1e9, moved / ms / 1e6)
    return rows


def main():
    try:
        place = Gpu()
    except LaunchError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
    found = check_all(place, 1 if SANITIZE in sys.argv else RERUNS)
    if SANITIZE in sys.argv:
        return
    print_header(f"All kernels on {place.name}")
    print_table(["kernel", "cases", Column("largest error", in_u), f"{RERUNS} runs identical"], found, key="right")
    tools = sanitize()
    rows = time_all(place)
    columns = [Column("ms", ".3f"), Column("spread", ".3f"), Column("TFLOPS", ".2f"), Column("GB/s", ".0f")]
    print_table(["what, float32, N = 8192, d = 64", *columns], rows, key="times")
    best = min((key for key in rows if isinstance(key, tuple)), key=lambda key: rows[key][1])
    gain = rows["naive"][1] / rows[best][1]
    print_observations(
        [
            claim(all(row[3] for row in found.values()), "Every rerun gives the same bits."),
            claim(
                max(row[2] for row in found.values()) < 60, "Every kernel agrees with float64 within 60 u of its dtype."
            ),
            finding(
                gain >= 5,
                "flash_forward.cu is {gain:.1f} times as fast as naive_attention.cu, at {share:.0%} "
                "of the matmul's rate.",
                gain=gain,
                share=rows[best][3] / rows["matmul"][3],
            ),
            *[claim(clean, "compute-sanitizer's {tool} finds nothing.", tool=tool) for tool, clean in tools.items()],
            *([] if tools else ["compute-sanitizer is not installed here."]),
            *([] if "torch" in rows else ["PyTorch: not compared, it cannot be imported here or sees no GPU."]),
        ]
    )


if __name__ == "__main__":
    main()
