"""What the pods of a node hold: CPUs and amounts of NUMA zones (spec 06 §2.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from control.holdings import ReservedHoldings
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
    reservation: str = ""
    """uid of the reservation that the pod uses."""

    def __bool__(self) -> bool:
        return bool(self.cpus or self.zones)


def left_by(reserved: Holding, owners: Iterable[Holding]) -> Holding:
    """What a reservation still holds beside its owners."""
    cpus = reserved.cpus
    zones = {zone: dict(amounts) for zone, amounts in reserved.zones.items()}
    for owner in owners:
        cpus &= ~owner.cpus
        for zone, amounts in owner.zones.items():
            left = zones.get(zone, {})
            for name, amount in amounts.items():
                if name in left:
                    left[name] = max(0, left[name] - amount)
    return replace(reserved, cpus=cpus, zones=zones)


class NodeHoldings(ReservedHoldings[Holding]):
    """CPUs and amounts of zones. They do not depend on the node's topology, which may arrive later."""

    def __init__(self) -> None:
        super().__init__()
        self.refs: dict[int, int] = {}
        """CPU -> number of pods that hold it."""
        self.cpus = 0
        """Mask of the CPUs that any pod holds."""
        self.undivided = 0
        """Mask of the CPUs of pods that hold no amounts of zones."""
        self.zones: dict[int, dict[str, int]] = {}
        """Zone id -> amounts held."""

    def claimed_by_others(self, uid: str, holding: Holding) -> int:
        """Mask of the CPUs of `holding` that are neither free nor shared between a reservation and its owner."""
        own = union(owner.cpus for owner in self._owners.get(uid, {}).values())
        reserved = self.counted.get(holding.reservation)
        return holding.cpus & self.cpus & ~own & ~(0 if reserved is None else reserved.cpus)

    def left(self, uids: Iterable[str]) -> Holding:
        """What these reservations hold together beside their owners."""
        cpus, zones = 0, dict[int, dict[str, int]]()
        for holding in (self.counted[uid] for uid in uids if uid in self.counted):
            cpus |= holding.cpus
            for zone, amounts in holding.zones.items():
                total = zones.setdefault(zone, {})
                for name, amount in amounts.items():
                    total[name] = total.get(name, 0) + amount
        return Holding(cpus, zones)

    def _left_by(self, reserved: Holding, owners: Iterable[Holding]) -> Holding:
        return left_by(reserved, owners)

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
            self.undivided = union(pod.cpus for pod in self.counted.values() if not pod.zones)
        for zone, amounts in holding.zones.items():
            held = self.zones.setdefault(zone, {})
            for name, amount in amounts.items():
                held[name] = held.get(name, 0) + sign * amount

    def full(self, max_refs: int) -> int:
        """Mask of the CPUs that no other pod can get."""
        return self.cpus if max_refs == 1 else union(1 << cpu for cpu, refs in self.refs.items() if refs >= max_refs)

    def held(self) -> HeldCPUs:
        def of(policy: str) -> int:
            return union(pod.cpus for pod in self.counted.values() if pod.exclusive == policy)

        return HeldCPUs(of(EXCLUSIVE_PCPU_LEVEL), of(EXCLUSIVE_NUMA_NODE_LEVEL), self.refs)

    def status(self, layout: CoreLayout) -> dict[int, str]:
        """NUMA node -> IDLE; SINGLE if all pods with CPUs there have CPUs of this node only; else SHARED."""
        status = dict.fromkeys(layout.nodes, IDLE)
        for pod in self.counted.values():
            touched = layout.touched_nodes(pod.cpus) if pod.cpus else []
            for node in touched:
                if len(touched) > 1:
                    status[node] = SHARED
                elif status[node] == IDLE:
                    status[node] = SINGLE
        return status
