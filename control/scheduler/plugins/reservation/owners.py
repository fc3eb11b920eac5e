"""Finds the reservations whose owners match a pod without comparing the pod with every reservation.

Reservations with equal owners form a group, which is compared once. Groups are found by one label, controller or name
that a pod must have; the others are compared with every pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from control.reservation.matching import owned_by
from control.reservation.model import parse
from control.scheduler.state.pods import REPLICA_LABELS, PodInfo
from control.scheduler.state.table import RowLog
from koordlet.api.core import Pod
from koordlet.api.crs.reservation import Reservation, ReservationOwner
from koordlet.api.encoding import wire

if TYPE_CHECKING:
    from control.scheduler.plugins.reservation.book import ReservedRoom

Key = tuple[str, str, str]
"""(what is compared, name, value)"""
ANY_POD: Final[Key] = ("", "", "")
_MEMO: Final = "Reservation/owners"


class OwnerGroup:
    """Reservations with equal owners, by uid. `log`: the rows on which one of them changed."""

    __slots__ = ("by_shape", "keys", "log", "members", "number", "owners", "text")

    def __init__(self, number: int, text: bytes, owners: tuple[ReservationOwner, ...]) -> None:
        self.number = number
        self.text = text
        self.owners = owners
        self.keys = frozenset(key_of(owner) for owner in owners)
        self.by_shape = all(map(_reads_shape, owners))
        """Whether all pods of a shape match or none does."""
        self.members: dict[str, ReservedRoom] = {}
        self.log = RowLog()


class OwnerIndex:
    """The groups of all reservations that are not malformed."""

    def __init__(self) -> None:
        self._by_text: dict[bytes, OwnerGroup] = {}
        self._by_key: dict[Key, dict[int, OwnerGroup]] = {}
        self._next = 1
        self._version = 0
        """Grows when a group comes or goes."""
        self._others = 0
        """Number of groups that are not `by_shape`."""

    def __len__(self) -> int:
        return len(self._by_text)

    def join(self, member: ReservedRoom, owners: tuple[ReservationOwner, ...]) -> OwnerGroup:
        """Put a reservation into the group of its owners."""
        text = wire.encode(owners)
        group = self._by_text.get(text)
        if group is None:
            group = self._by_text[text] = OwnerGroup(self._next, text, owners)
            self._next += 1
            self._version += 1
            self._others += not group.by_shape
            for key in group.keys:
                self._by_key.setdefault(key, {})[group.number] = group
        group.members[member.uid] = member
        return group

    def leave(self, member: ReservedRoom, group: OwnerGroup) -> None:
        group.members.pop(member.uid, None)
        if not group.members:
            del self._by_text[group.text]
            self._version += 1
            self._others -= not group.by_shape
            for key in group.keys:
                numbered = self._by_key[key]
                del numbered[group.number]
                if not numbered:
                    del self._by_key[key]

    def matching(self, pod: PodInfo) -> tuple[OwnerGroup, ...]:
        """The groups whose owners match the pod, by number."""
        if not self._by_key:
            return ()
        if self._others:
            return self._compared(pod)
        known: tuple[OwnerIndex, int, tuple[OwnerGroup, ...]] | None = pod.shape.memo.get(_MEMO)
        if known is None or known[0] is not self or known[1] != self._version:
            known = pod.shape.memo[_MEMO] = (self, self._version, self._compared(pod))
        return known[2]

    def _compared(self, pod: PodInfo) -> tuple[OwnerGroup, ...]:
        groups: dict[int, OwnerGroup] = {}
        for key in _keys(pod.pod):
            for number, group in self._by_key.get(key, {}).items():
                if number not in groups and owned_by(group.owners, pod.pod):
                    groups[number] = group
        return tuple(groups[number] for number in sorted(groups)) if groups else ()


class EventOwners:
    """The owners of the Reservations in the current event, which is compared with many waiting pods."""

    MAX_KNOWN: Final = 2
    """An event has an old and a new version."""

    def __init__(self) -> None:
        self._known: list[tuple[Reservation, tuple[ReservationOwner, ...]]] = []

    def of(self, reservation: Reservation) -> tuple[ReservationOwner, ...]:
        """Empty if the Reservation is malformed, because it matches no pod."""
        for known, owners in self._known:
            if known is reservation:
                return owners
        model = parse(reservation)
        owners = () if model.problem else model.owners
        self._known = [*self._known[1 - self.MAX_KNOWN :], (reservation, owners)]
        return owners


def key_of(owner: ReservationOwner) -> Key:
    """One property that every pod of the owner has."""
    reference, controller, selector = owner.object, owner.controller, owner.label_selector
    if reference is not None and reference.uid:
        return ("uid", "", reference.uid)
    if reference is not None and reference.name:
        return ("name", "", reference.name)
    if controller is not None and controller.uid:
        return ("controller", "uid", controller.uid)
    if controller is not None and controller.name:
        return ("controller", "name", controller.name)
    if selector is not None and selector.match_labels:
        return ("label", *min(selector.match_labels.items()))
    return ANY_POD


def _reads_shape(owner: ReservationOwner) -> bool:
    """Whether the owner compares only labels that are equal for all pods of a shape."""
    if owner.object is not None or owner.controller is not None:
        return False
    selector = owner.label_selector
    if selector is None:
        return True
    compared = {*selector.match_labels, *(expression.key for expression in selector.match_expressions)}
    return not compared & REPLICA_LABELS


def _keys(pod: Pod) -> Iterator[Key]:
    meta = pod.metadata
    yield ANY_POD
    yield ("uid", "", meta.uid)
    yield ("name", "", meta.name)
    for reference in meta.owner_references:
        yield ("controller", "uid", reference.uid)
        yield ("controller", "name", reference.name)
    for name, value in meta.labels.items():
        yield ("label", name, value)
