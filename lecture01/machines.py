"""What a chip has on board, as data: see each machine's tuning guide in NVIDIA's CUDA documentation."""

from typing import NamedTuple

KIB = 1024


class Machine(NamedTuple):
    """sms: its streaming multiprocessors; shared_per_block: bytes of shared memory that a thread block may have."""

    sms: int
    shared_per_block: int


MACHINES = {
    "V100": Machine(80, 96 * KIB),
    "A100": Machine(108, 163 * KIB),
    "H100": Machine(132, 227 * KIB),
    "B200": Machine(148, 227 * KIB),
}
REGISTER_BYTES = 256 * KIB  # of an SM, the most a thread block may have: on all of these 65,536 of 4 bytes
