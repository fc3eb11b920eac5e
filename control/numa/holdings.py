"""What the pods of a node hold: CPUs and amounts of NUMA zones (spec 06 §2.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from control.numa.accumulator import HeldCPUs
from control.numa.layout import CoreLayout
from control.numa.masks import numbers_of, union
from koordlet.api.annotations.scheduling import EXCLUSIVE_NUMA_NODE_LEVEL, EXCLUSIVE_PCPU_LEVEL

IDLE: Final = "idle"
SINGLE: Final = "single"
SHARED: Final = "shared"


@dataclass(frozen=True)
class Holding:
    """What one pod holds. `exclusive`: its exclusive policy."""

    cpus: int = 0
    zones: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Zone id -> amount by resource, cpu in milli-cores."""
    exclusive: str = ""


class NodeHoldings:
    """The holdings on one node, by uid. They do not depend on the node's topology, which may arrive later."""

    def __init__(self) -> None:
        self.pods: dict[str, Holding] = {}
        self.refs: dict[int, int] = {}
        """CPU -> number of pods that hold it."""
        self.cpus = 0
        """Mask of the CPUs that any pod holds."""
        self.undivided = 0
        """Mask of the CPUs of pods that hold no amounts of zones."""
        self.zones: dict[int, dict[str, int]] = {}
        """Zone id -> amounts held."""

    def add(self, uid: str, holding: Holding) -> None:
        self.remove(uid)
        self.pods[uid] = holding
        self._count(holding, 1)

    def remove(self, uid: str) -> None:
        holding = self.pods.pop(uid, None)
        if holding is not None:
            self._count(holding, -1)

    def _count(self, holding: Holding, sign: int) -> None:
        for cpu in numbers_of(holding.cpus):
            refs = self.refs.get(cpu, 0) + sign
            if refs:
                self.refs[cpu] = refs
                self.cpus |= 1 << cpu
            else:
                del self.refs[cpu]
                self.cpus &= ~(1 << cpu)
        if not holding.zones:
            self.undivided = union(pod.cpus for pod in self.pods.values() if not pod.zones)
        for zone, amounts in holding.zones.items():
            held = self.zones.setdefault(zone, {})
            for name, amount in amounts.items():
                held[name] = held.get(name, 0) + sign * amount

    def full(self, max_refs: int) -> int:
        """Mask of the CPUs that no other pod can get."""
        return self.cpus if max_refs == 1 else union(1 << cpu for cpu, refs in self.refs.items() if refs >= max_refs)

    def held(self) -> HeldCPUs:
        def of(policy: str) -> int:
            return union(pod.cpus for pod in self.pods.values() if pod.exclusive == policy)

        return HeldCPUs(of(EXCLUSIVE_PCPU_LEVEL), of(EXCLUSIVE_NUMA_NODE_LEVEL), self.refs)

    def status(self, layout: CoreLayout) -> dict[int, str]:
        """NUMA node -> IDLE; SINGLE if all pods with CPUs there have CPUs of this node only; else SHARED."""
        status = dict.fromkeys(layout.nodes, IDLE)
        for pod in self.pods.values():
            touched = layout.touched_nodes(pod.cpus) if pod.cpus else []
            for node in touched:
                if len(touched) > 1:
                    status[node] = SHARED
                elif status[node] == IDLE:
                    status[node] = SINGLE
        return status
