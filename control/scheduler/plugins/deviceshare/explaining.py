"""What an explanation adds to a rejection: what each device has too little of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from control.devices.needs import DeviceNeed
from control.devices.requests import completed
from control.devices.room import DeviceState, TypeRoom, type_room


def details(state: DeviceState, need: DeviceNeed) -> Iterator[str]:
    """For a node that rejects the pod, as it is now."""
    for kind, request in need.requests.items():
        units = state.inventory.units.get(kind, {})
        room = type_room(state, kind, None, lambda unit: True)
        fitting = room.fitting(request.amounts)
        amounts = ", ".join(f"{name} {amount}" for name, amount in sorted(request.amounts.items()))
        yield (
            f"{kind}: {request.count} with {amounts} each; of {len(units)} devices {len(room.units)} are healthy and "
            f"{len(fitting)} have enough"
        )
        for minor in room.units:
            if minor not in fitting:
                yield f"{kind} {minor}: {_short(room, minor, request.amounts)}"


def _short(room: TypeRoom, minor: int, request: Mapping[str, int]) -> str:
    free = room.free[minor]
    completed_request = completed(request, room.units[minor].total)
    short = [
        f"{name} {free[name]} of {amount}"
        for name, amount in completed_request.items()
        if free.get(name, amount) < amount
    ]
    return f"too little {', '.join(short)}" if short else "nothing is left"
