"""What is a GPU short of in attention: bytes, matmuls or exponentials?

  demo 1  machines: matmul, exp, memory and what a block of threads may hold, from V100 to Blackwell Ultra (B300)
  demo 2  roofline: how much of the matmul peak standard and tiled attention can reach
  demo 3  exp against matmul: from which machine on softmax sets the time, and what twice the exp rate does

Run it with python3 01_machine_balance.py; edit a demo's defaults, or give --demo 2 --block-q 256. --more shows all
machines. The figures stand in machines.py, each with its source.
Conventions: N queries and N keys of one head of size d; FLOPs: 4 N^2 d, a multiply-add is two; bytes: FP16, no cache
between memory and chip. Times are a model: each unit at its vendor's peak, and all units busy at once.
"""

import _lab  # noqa: F401

import numpy as np

import flash_lab
from console import Column, claim, finding, print_header, print_observations, print_table
from flash_lab import Tally, Work
from language import _
from lesson import lesson
from machines import KIB, MACHINES
from numfmt import FP16

FIRST_LOOK = ("H100", "B200", "B300")


def flops(n, d):
    """Two matmuls of n x n x d, a multiply-add counting 2."""
    return 4 * n * n * d


def reachable(machine, flops_per_byte):
    """The share of its matmul peak that a machine can reach: the roofline (Williams et al. 2009)."""
    return min(1.0, flops_per_byte * machine.bandwidth / machine.matmul)


def times(machine, n, d):
    """(seconds of the matmuls, seconds of the exps) for n queries and n keys."""
    return flops(n, d) / machine.matmul, n * n / machine.exp


def small_run(d, block_q, n=192):
    """Tiled attention counted: (elements moved by array, operations by kind) with n queries and n keys."""
    Q, K, V = np.random.default_rng(0).standard_normal((3, n, d)).astype(np.float32)
    tally, work = Tally(), Work()
    O, lse = flash_lab.flash_forward(*tally.count(Q=Q, K=K, V=V), block_q=block_q, block_k=64)
    flash_lab.flash_forward(*map(work.array, (Q, K, V)), block_q=block_q, block_k=64)
    return {array.name: tally.elements(array.name) for array in (*tally.count(Q=Q, K=K, V=V), O, lse)}, work


def shown(more):
    """The machines whose rows are shown."""
    return list(MACHINES) if more else list(FIRST_LOOK)


def demo1_machines(more=False):
    """Machines: matmul, exp, memory and what a block of threads may hold."""
    rows = {name: (name, m.matmul / 1e12, m.exp / 1e12, m.bandwidth / 1e12, m.shared_per_block / KIB,
                   m.matmul / m.bandwidth) for name, m in MACHINES.items()}
    print_header(_("Demo 1. Machines: what their vendors state"))
    print_table([_("machine"), Column(_("matmul TFLOPS"), ",.0f"), Column(_("T exp/s"), ".1f"),
                 Column(_("HBM TB/s"), ".2f"), Column(_("KiB per block"), ",.0f"), Column(_("FLOPs per byte"), ",.0f")],
                rows, key="machines", first=shown(more))
    old, new = MACHINES["V100"], MACHINES["B200"]
    grown = {kind: getattr(new, kind) / getattr(old, kind) for kind in ("matmul", "bandwidth", "exp")}
    needed = [row[-1] for row in rows.values()]
    print_observations([
        claim(grown["matmul"] > grown["bandwidth"] > grown["exp"],
              _("From V100 to B200 matmuls became {matmul:.0f} times as fast, memory {bandwidth:.1f} times, exp only "
                "{exp:.1f} times."), **grown),
        claim(min(needed) > 100,
              _("In the time of a byte from memory a machine does {low:.0f} to {high:.0f} FLOPs: what is read has to "
                "be used hundreds of times, or the matmul units wait."), low=min(needed), high=max(needed)),
    ])
    return {Column(_("FLOPs per byte"), ",.0f"): rows["H100"][-1]}


def demo2_roofline(seq_len=4096, head_dim=64, block_q=128, more=False):
    """Roofline: how much of the matmul peak standard and tiled attention can reach."""
    n, d = seq_len, head_dim
    moved = {"full": flash_lab.traffic_full_matrix(n, n, d, d), "tiled": flash_lab.traffic_tiled(n, n, d, d, block_q),
             "twice": flash_lab.traffic_tiled(n, n, d, d, 2 * block_q),
             "once": flash_lab.traffic_tiled(n, n, d, d, n)}
    per_byte = {way: flops(n, d) / (FP16.bytes * sum(arrays.values())) for way, arrays in moved.items()}
    share = {way: {name: reachable(m, x) for name, m in MACHINES.items()} for way, x in per_byte.items()}
    rows = {"per_byte": (_("FLOPs per byte"), *(f"{x:,.0f}" for x in per_byte.values())),
            **{name: (name, *(f"{share[way][name]:.0%}" for way in moved)) for name in MACHINES}}
    print_header(_("Demo 2. Roofline: share of the matmul peak, {n:,} keys").format(n=n))
    print_table([_("machine"), _("full matrix"), _("tiles of block_q"), _("twice block_q"), _("each array once")], rows,
                key="roofline", first=["per_byte", *shown(more)])
    small, _work = small_run(d, min(block_q, 192))
    print_observations([
        claim(small == flash_lab.traffic_tiled(192, 192, d, d, min(block_q, 192)),
              _("Counted in a run of {n} queries and keys, tiles move what the formula behind the table says."), n=192),
        finding(share["full"]["H100"] < share["tiled"]["H100"] < share["twice"]["H100"] <= 1,
                _("An H100 that stores the matrix can reach {full:.0%} of its matmul peak, in tiles {tiled:.0%}, with "
                  "twice the block_q {twice:.0%}: its cache (L2) has to do the rest."),
                **{way: share[way]["H100"] for way in ("full", "tiled", "twice")}),
        finding(set(share["once"].values()) == {1},
                _("With each array moved once, {once:,.0f} FLOPs per byte, about N / 2, memory limits no machine."),
                once=per_byte["once"]),
    ])
    return {Column(_("full matrix"), ".0%"): share["full"]["H100"], Column(_("tiled"), ".0%"): share["tiled"]["H100"]}


def demo3_exp_against_matmul(seq_len=4096, head_dim=64, more=False):
    """Exp against matmul: from which machine on softmax sets the time."""
    n, d = seq_len, head_dim
    rows, longer, doubled = {}, {}, {}
    for name, machine in MACHINES.items():
        matmul, exp = times(machine, n, d)
        longer[name], doubled[name] = exp / matmul, max(matmul, exp / 2) / max(matmul, exp)
        rows[name] = (name, machine.matmul / machine.exp, 1e6 * matmul, 1e6 * exp,
                      _("exp") if exp > matmul else _("matmul"), doubled[name])
    print_header(_("Demo 3. Exp against matmul: one head, {n:,} queries and keys").format(n=n))
    print_table([_("machine"), Column(_("FLOPs per exp"), ",.0f"), Column(_("µs of matmul"), ",.2f"),
                 Column(_("µs of exp"), ",.2f"), _("sets the time"), Column(_("with twice the exp"), ".0%")], rows,
                key="balance", first=shown(more))
    _moved, work = small_run(d, 64)
    slower = [name for name in MACHINES if longer[name] > 1]
    print_observations([
        claim(work["matmul"] == 4 * d * work["exp"],
              _("Counted: attention does 4d = {per_exp:,} matmul FLOPs for every exp. A machine that does more in the "
                "time of an exp waits for softmax."), per_exp=4 * d),
        finding(slower == ["B200"] and abs(longer["H100"] - 1) < 0.05,
                _("With d = {d}, exp takes {h100:.0%} of the matmul's time on an H100, {b200:.0%} on a B200. Machines "
                  "where exp sets the time: {slower}."),
                d=d, h100=longer["H100"], b200=longer["B200"], slower=", ".join(slower) or _("none")),
        finding(longer["B200"] > 1 > longer["B300"] and doubled["B200"] < 0.7 and doubled["B300"] == 1,
                _("Twice the exp rate brings a B200's time to {doubled:.0%}. A B300 has it, {exp:.1f} T exp/s instead "
                  "of {was:.0f}, and its matmul is the limit again."), doubled=doubled["B200"],
                exp=MACHINES["B300"].exp / 1e12, was=MACHINES["B200"].exp / 1e12),
    ])
    return {Column(_("exp / matmul, {machine}").format(machine=name), ".2f"): longer[name] for name in FIRST_LOOK}


lesson(demo1_machines, demo2_roofline, demo3_exp_against_matmul)
