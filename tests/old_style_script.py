"""A script as they were before the lab had flags and claims: two paths, three print functions, ready strings."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lecture01"))
sys.path.insert(0, os.path.join(HERE, "..", "prereq3"))

import numpy as np

from console import print_header, print_observations, print_table
from flash_lab import merge_states, partial_state, softmax_3pass
from numfmt import BF16, FP16


def main():
    rng = np.random.default_rng(1)
    s, V = rng.standard_normal((3, 40)), rng.standard_normal((40, 4))
    p, _ = softmax_3pass(s)
    m, l, o = merge_states(partial_state(s[:, :15], V[:15]), partial_state(s[:, 15:], V[15:]))
    error = np.abs(o / l[:, None] - p @ V).max()
    print_header("Demo: merging acc[m, l, o]")
    print_table(
        ["format", "1 + 3 * 2^-8", "row of ones"],
        [
            ["BF16", f"{BF16.round(1 + 3 * 2**-8 - 2**-40)}", f"{BF16.round(np.ones(3)).sum():.1f}"],
            ["FP16", f"{float(FP16.round(np.float32(1 + 3 * 2**-8)))}", f"{FP16.round(np.ones(3)).sum():.1f}"],
        ],
    )
    print_observations([f"largest difference below 1e-12: {error < 1e-12}", "acc[m, l, o] prints as typed"])
    assert m.shape == l.shape == (3,) and error < 1e-12


if __name__ == "__main__":
    main()
