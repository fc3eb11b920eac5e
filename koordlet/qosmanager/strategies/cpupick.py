"""Picks CPUs for best-effort pods: whole cores, spread over NUMA nodes and sockets (spec 03 §3.2, step 5). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from koordlet.system.cpu.cputopology import Cpu, CpuTopology


def pick(count: int, candidates: Iterable[int], topology: CpuTopology) -> list[int]:
    """`count` of the candidates in the order picked, or none when there are too few.

    Buckets by (NUMA node, socket), largest first, are visited round robin: two hardware threads of one core while at
    least two CPUs are needed, then single CPUs.
    """
    remaining = set(candidates)
    if count <= 0 or len(remaining) < count:
        return []
    buckets: dict[tuple[int, int], list[Cpu]] = {}
    for cpu in topology.cpus:
        if cpu.id in remaining:
            buckets.setdefault((cpu.node, cpu.socket), []).append(cpu)
    for bucket in buckets.values():
        bucket.sort(key=lambda cpu: (cpu.core, cpu.id))
    order = sorted(buckets.values(), key=lambda bucket: (-len(bucket), min(cpu.id for cpu in bucket)))
    picked: list[int] = []
    at = idle = 0
    while count - len(picked) >= 2 and idle < len(order):
        pair = _free_core(order[at])
        for cpu in pair:
            order[at].remove(cpu)
            picked.append(cpu.id)
        idle = 0 if pair else idle + 1
        at = (at + 1) % len(order)
    while len(picked) < count and any(order):
        if order[at]:
            picked.append(order[at].pop(0).id)
        at = (at + 1) % len(order)
    return picked if len(picked) == count else []


def _free_core(bucket: list[Cpu]) -> tuple[Cpu, ...]:
    return next(((first, second) for first, second in pairwise(bucket) if first.core == second.core), ())
