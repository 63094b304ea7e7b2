"""What a chip has on board, as data: peaks that vendors state, of the SXM boards, dense and without sparsity.

matmul: V100 and A100 whitepapers (125, 312 TFLOPS), H100 datasheet (989), HGX B200 and B300 datasheets (2,250).
exp: results per clock and SM times SMs times boost clock, 16 x 80 x 1.53 GHz and 16 x 108 x 1.41 GHz (CUDA C++
Programming Guide, arithmetic throughput); H100: FlashAttention-3 paper, section 3; B200, B300: NVIDIA's developer blog
on Blackwell Ultra. bandwidth: datasheets, the A100's of 80 GB. shared_per_block: each tuning guide.
"""

from typing import NamedTuple

KIB = 1024


class Machine(NamedTuple):
    """sms: its streaming multiprocessors; shared_per_block: bytes of shared memory that a thread block may have.

    matmul: FLOP/s with 16-bit inputs and FP32 sums; exp: results of exp2 per second; bandwidth: of HBM, bytes/s.
    """

    sms: int
    shared_per_block: int
    matmul: float
    exp: float
    bandwidth: float


MACHINES = {
    "V100": Machine(80, 96 * KIB, 125e12, 16 * 80 * 1.53e9, 0.9e12),
    "A100": Machine(108, 163 * KIB, 312e12, 16 * 108 * 1.41e9, 2.039e12),
    "H100": Machine(132, 227 * KIB, 989e12, 3.9e12, 3.35e12),
    "B200": Machine(148, 227 * KIB, 2250e12, 5e12, 8e12),
    "B300": Machine(160, 227 * KIB, 2250e12, 10.7e12, 8e12),
}
REGISTER_BYTES = 256 * KIB  # of an SM, the most a thread block may have: on all of these 65,536 of 4 bytes
