"""What is left in a reservation, and what fits (spec 06 §4.3, §4.5, §4.6). Pure; cpu in milli-cores, others in units.

A node counts a reservation with its *booked* amount, which is what its owners do not use, and every owner with its own
requests. An owner that uses more than the reservation has takes the rest from the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from control.quota.amounts import Amounts, from_list
from koordlet.api.encoding.quantity import Quantity

MAX_AMOUNT: Final = 1 << 53
"""Larger amounts count as this one, as in the scheduler's node table: no node has that much."""
MAX_SCORE: Final = 100
PODS: Final = "pods"


def bounded(resources: Mapping[str, Quantity]) -> Amounts:
    """Integers from 0 to MAX_AMOUNT, rounded up."""
    return {name: min(amount, MAX_AMOUNT) for name, amount in from_list(resources).items()}


def allocated(owners: Iterable[Mapping[str, int]], resources: Iterable[str]) -> Amounts:
    """The sum of the owners' requests, of the counted `resources` only."""
    counted = frozenset(resources)
    total: Amounts = {}
    for requests in owners:
        for name, amount in requests.items():
            if name in counted:
                total[name] = total.get(name, 0) + amount
    return total


def available(allocatable: Mapping[str, int], used: Mapping[str, int], reserved: Mapping[str, int]) -> Amounts:
    """What the next owner may take: allocatable minus allocated minus the inner reserved amount, not below 0."""
    return {name: max(amount - used.get(name, 0) - reserved.get(name, 0), 0) for name, amount in allocatable.items()}


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource of which a reservation has too little; figures as in the message."""

    resource: str
    requested: int
    used: int
    capacity: int

    def text(self, *, figures: bool) -> str:
        """`figures`: for a pod that names the reservation."""
        what = "Too many pods" if self.resource == PODS else f"Insufficient {self.resource}"
        numbers = f", requested: {self.requested}, used: {self.used}, capacity: {self.capacity}" if figures else ""
        return f"Reservation(s) {what}{numbers}"


def restricted_shortages(
    requests: Mapping[str, int],
    resources: Iterable[str],
    allocatable: Mapping[str, int],
    used: Mapping[str, int],
    reserved: Mapping[str, int],
    *,
    owners: int = 0,
) -> list[Shortage]:
    """Why a Restricted reservation has no room for `requests`: every short resource, by name, pods first.

    `resources`: the restricted ones. `owners`: number of pods in it, compared only if it limits `pods`."""
    short = []
    if PODS in allocatable and owners + 1 > allocatable[PODS]:
        short.append(Shortage(PODS, 1, owners, allocatable[PODS]))
    for name in sorted(resources):
        amount = requests.get(name, 0)
        capacity = allocatable.get(name, 0) - reserved.get(name, 0)
        taken = max(used.get(name, 0), 0)
        if name != PODS and amount > 0 and amount > capacity - taken:
            short.append(Shortage(name, amount, taken, capacity))
    return short


def score(requests: Mapping[str, int], allocatable: Mapping[str, int], used: Mapping[str, int]) -> int:
    """0 to 100: how full the reservation would be; a resource that would overflow counts 0 (spec 06 §4.6)."""
    parts = []
    for name, capacity in allocatable.items():
        if capacity > 0:
            total_used = requests.get(name, 0) + used.get(name, 0)
            parts.append(MAX_SCORE * total_used // capacity if total_used <= capacity else 0)
    return sum(parts) // len(parts) if parts else 0
