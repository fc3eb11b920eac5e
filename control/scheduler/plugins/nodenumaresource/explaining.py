"""What an explanation adds to a rejection: the policies in force, and what each NUMA node has too little of."""

from __future__ import annotations

from collections.abc import Iterator

from control.numa.accumulator import usable
from control.numa.affinity import NodeRoom, NumaRequest, room_for
from control.scheduler.plugins.nodenumaresource.book import NumaBook
from control.scheduler.plugins.nodenumaresource.decision import RowDecisions
from control.scheduler.plugins.nodenumaresource.needs import NumaNeed


def details(book: NumaBook, decisions: RowDecisions, need: NumaNeed, row: int) -> Iterator[str]:
    """For a node that rejects the pod, as it is now."""
    bind, numa, _ = book.policies(row)
    choice = decisions.choice(need, row)
    room, request = choice.room, choice.request
    if numa or need.numa_policy:
        yield f"NUMA topology policy: {numa or 'none'} of the node, {need.numa_policy or 'none'} of the pod"
    if request.cpus:
        by = "the pod" if (need.bind and need.required) or bind == "None" else "the node"
        yield f"CPU bind policy: {request.rules.policy}, {'required' if request.required else 'preferred'} by {by}"
        free = usable(room.layout, room.free, request.required_policy).bit_count()
        yield f"CPUs of its own: {request.cpus}; {free} of the {room.free.bit_count()} free ones can be used"
    for zone in room.zones if numa or need.numa_policy else ():
        short = [
            f"{name} {_amount(name, room_for(room, request, zone, name))} of {_amount(name, amount)}"
            for name, amount in _published(room, request)
            if room_for(room, request, zone, name) < amount
        ]
        status = book.zone_status(row)[room.zones.index(zone)]
        yield f"NUMA node {zone.id} ({status}): {'too little ' + ', '.join(short) if short else 'enough of everything'}"


def _published(room: NodeRoom, request: NumaRequest) -> Iterator[tuple[str, int]]:
    return ((name, amount) for name, amount in request.amounts.items() if room.publishes(name))


def _amount(name: str, amount: int) -> str:
    if name == "cpu":
        return f"{amount / 1000:g}"
    return f"{amount / (1 << 20):g}Mi" if amount % (1 << 20) == 0 and amount else str(amount)
