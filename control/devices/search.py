"""The default search for devices, and virtual functions (spec 06 §3.5.1, §3.6)."""

from __future__ import annotations

from collections.abc import Callable, Collection

from control.devices.requests import TypeRequest, completed
from control.devices.room import HeldDevice, TypeRoom
from koordlet.api.meta import LabelSelector

Score = Callable[[int], int]
"""Minor -> score."""


class DevicesLacking(Exception):
    """No devices for the pod; the message is the reason. `final`: no other pod's removal would help."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final

    def copy(self) -> DevicesLacking:
        """To raise a remembered one: each `raise` adds to the traceback, which keeps all frames."""
        return DevicesLacking(str(self), final=self.final)


def take_default(
    room: TypeRoom,
    request: TypeRequest,
    score: Score,
    functions: LabelSelector | None,
    switches: Collection[str],
    most: int,
) -> list[HeldDevice]:
    """Devices in order of their scores, those on `switches` (PCIe) first. `most`: how many are taken if there are more
    than requested. Fewer than requested is possible, the caller checks that."""
    limit = max(request.count, most, 1)
    taken: list[HeldDevice] = []
    for minor in ordered(room, score, switches):
        if not room.fits(minor, request.amounts):
            continue
        chosen: tuple[tuple[int, str], ...] = ()
        if functions is not None:
            function = free_function(room, minor, functions)
            if function is None:
                continue
            chosen = (function,)
        taken.append(held(room, minor, request, chosen))
        if len(taken) == limit:
            break
    return taken


def held(room: TypeRoom, minor: int, request: TypeRequest, functions: tuple[tuple[int, str], ...] = ()) -> HeldDevice:
    """The device with the requested amounts."""
    return HeldDevice(minor, completed(request.amounts, room.units[minor].total), functions)


def ordered(room: TypeRoom, score: Score, switches: Collection[str]) -> list[int]:
    """Minors: those that a reservation holds for the pod, then by score, then minor. Before them one of each preferred
    switch, then a second one of each, and so on."""
    by_score = sorted(room.units, key=lambda minor: (minor not in room.preferred, -score(minor), minor))
    if not switches:
        return by_score
    seen: dict[str, int] = {}
    rounds: dict[int, int] = {}
    for minor in by_score:
        switch = room.pcie(minor)
        if switch is not None and switch in switches:
            rounds[minor] = seen[switch] = seen.get(switch, -1) + 1
    preferred = sorted(rounds, key=lambda minor: rounds[minor])
    return preferred + [minor for minor in by_score if minor not in rounds]


def free_function(room: TypeRoom, minor: int, selector: LabelSelector) -> tuple[int, str] | None:
    """The free virtual function with the lowest bus id that the selector matches."""
    free = [
        function
        for group in room.units[minor].groups
        if selector.holds(group.labels)
        for function in group.functions
        if room.free_function(minor, function[1])
    ]
    return min(free, key=lambda function: function[1], default=None)
