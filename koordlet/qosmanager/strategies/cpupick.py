"""Which CPUs best-effort pods get: whole cores, spread over NUMA nodes and sockets (spec 03 §3.2, step 5). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from koordlet.system.cpu.cputopology import Cpu, CpuTopology


def pick(count: int, candidates: Iterable[int], topology: CpuTopology) -> list[int]:
    """`count` of the candidates in the order taken, or none when there are too few.

    Buckets by (NUMA node, socket), biggest first, are visited round robin: two hardware threads of one core while two
    are still needed, then single CPUs.
    """
    wanted = set(candidates)
    if count <= 0 or len(wanted) < count:
        return []
    buckets: dict[tuple[int, int], list[Cpu]] = {}
    for cpu in topology.cpus:
        if cpu.id in wanted:
            buckets.setdefault((cpu.node, cpu.socket), []).append(cpu)
    for bucket in buckets.values():
        bucket.sort(key=lambda cpu: (cpu.core, cpu.id))
    order = sorted(buckets.values(), key=lambda bucket: (-len(bucket), min(cpu.id for cpu in bucket)))
    taken: list[int] = []
    at = idle = 0
    while count - len(taken) >= 2 and idle < len(order):
        pair = _free_core(order[at])
        for cpu in pair:
            order[at].remove(cpu)
            taken.append(cpu.id)
        idle = 0 if pair else idle + 1
        at = (at + 1) % len(order)
    while len(taken) < count and any(order):
        if order[at]:
            taken.append(order[at].pop(0).id)
        at = (at + 1) % len(order)
    return taken if len(taken) == count else []


def _free_core(bucket: list[Cpu]) -> tuple[Cpu, ...]:
    return next(((one, two) for one, two in pairwise(bucket) if one.core == two.core), ())
