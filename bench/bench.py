"""The lab's speed, as ratios of interleaved runs on this machine: make bench (ARGS="--quick" for smaller sizes).

Every pair is timed in turn in one process, A B A B ..., with one BLAS thread; the ratio is that of the medians.
Nothing is written. Ends with status 1 when a bound is missed.
"""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ[name] = "1"  # read once, when NumPy is imported

import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "lecture01"), str(ROOT / "prereq3")]

import ml_dtypes
import numpy as np

from console import Column, claim, print_header, print_observations, print_table
from flash_lab import attention, flash_forward
from numfmt import BF16, sequential_sum

QUICK = "--quick" in sys.argv
BLOCK_PAIRS = [(512, 512)] if QUICK else [(256, 512), (512, 256), (512, 512), (1024, 512)]


def seconds(runs, repeats=7):
    """Median seconds of each function in `runs`, timed in turn after one warm-up of each."""
    times = {name: [] for name in runs}
    for round_number in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if round_number:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def start_up():
    """The first script as a whole process, against importing its packages."""
    script = [sys.executable, str(ROOT / "lecture11" / "01_online_softmax.py")]
    imports = [sys.executable, "-c", "import numpy, ml_dtypes, rich.table"]
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_THREADS")}

    def process(command):
        return lambda: subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=True)

    t = seconds({"script": process(script), "imports": process(imports)}, repeats=5 if QUICK else 11)
    return t["script"] / t["imports"]


def forward(n, d=64):
    """The tiled forward at its best block pair: against its two matmuls and its exp alone, and the full matrix.

    Returns ratios by name: plain, masked and causal to the parts, full to full-matrix attention.
    """
    Q, K, V = random_qkv(n, d)
    Q_scaled, S, P = Q / np.float32(np.sqrt(d)), np.empty((n, n), np.float32), np.empty((n, n), np.float32)

    masks = {"plain": {}, "masked": {"mask": np.random.default_rng(1).random((n, n)) < 0.5}, "causal": {"causal": True}}

    def tiled(pair, mask):
        return lambda: flash_forward(Q, K, V, block_q=pair[0], block_k=pair[1], **masks[mask])

    runs = {
        "scores": lambda: np.matmul(Q_scaled, K.T, out=S),
        "exp": lambda: np.exp(S, out=P),
        "output": lambda: np.matmul(P, V),
        "full": lambda: attention(Q, K, V),
        **{(pair, mask): tiled(pair, mask) for pair in BLOCK_PAIRS for mask in masks},
    }
    t = seconds(runs, repeats=3 if QUICK else 5)
    parts = t["scores"] + t["exp"] + t["output"]
    best = {mask: min(t[pair, mask] for pair in BLOCK_PAIRS) for mask in masks}
    return {mask: time / parts for mask, time in best.items()} | {"full": best["plain"] / t["full"]}


def extra_memory(n, d=64):
    """MiB that the tiled forward allocates at its peak, its result included."""
    Q, K, V = random_qkv(n, d)
    tracemalloc.start()
    flash_forward(Q, K, V, block_q=512, block_k=512)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def rounding(n=10**7):
    """Rounding float32 to BF16, against ml_dtypes' cast there and back."""
    x = np.random.default_rng(0).standard_normal(n, dtype=np.float32)
    t = seconds({"ours": lambda: BF16.round(x), "cast": lambda: x.astype(ml_dtypes.bfloat16).astype(np.float32)})
    return t["ours"] / t["cast"]


def random_qkv(n, d):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, d), dtype=np.float32) for _name in "QKV"]


def main():
    n, long = (2048, 8192) if QUICK else (8192, 65_536)
    ratio = forward(n)
    values = np.random.default_rng(0).random(10**5)
    one_by_one = seconds({"sum": lambda: sequential_sum(values, BF16)})["sum"]
    rows = {
        "start_up": ("whole first script / importing its packages", start_up(), 4.0),
        "forward": (f"tiled forward, N = {n:,} / its matmuls and exp", ratio["plain"], 1.15),
        "masked": ("the same with a random mask / the same", ratio["masked"], 1.45),
        "causal": ("the same, causal / the same", ratio["causal"], 1.45),
        "full": (f"tiled forward, N = {n:,} / full-matrix attention", ratio["full"], 1.0),
        "memory": (f"MiB allocated by the tiled forward at N = {long:,}", extra_memory(long), 64.0),
        "rounding": ("rounding 10,000,000 float32 to BF16 / a cast there and back", rounding(), 1.3),
        "stagnation": ("seconds of 100,000 rounded additions", one_by_one, 0.2),
    }
    print_header("Speed and memory, as ratios of runs in turn")
    print_table(["what", Column("measured", ".2f"), Column("bound", ".2f")], rows, key="bench")
    met = [claim(row[1] <= row[2], "{what} keeps its bound.", what=row[0]) for row in rows.values()]
    print_observations([item for item in met if not item.holds] or ["Every bound is kept."])
    return 0 if all(item.holds for item in met) else 1


if __name__ == "__main__":
    sys.exit(main())
