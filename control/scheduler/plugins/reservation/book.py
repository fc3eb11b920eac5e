"""The reservations of a scheduler: where each is, which pods use it, and what is left (spec 06 §4.3, §4.5).

The table counts a reserve pod like every pod. The book adjusts that to what the owners do not use, so a node counts a
reservation once. Owners come from the annotation of bound pods and from Reserve. Nothing else is stored: after a
restart the same objects give the same figures, in any order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from control.quota.amounts import Amounts
from control.reservation.amounts import allocated, available
from control.reservation.matching import allocated_uid
from control.reservation.model import RESERVATION, ReservationModel
from control.scheduler.plugins.nodeports import ports_of
from control.scheduler.plugins.reservation.owners import OwnerGroup, OwnerIndex
from control.scheduler.state.allocations import Allocations
from control.scheduler.state.credit import NO_ROOM, Port, nonzero_key
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import CPU, MEMORY, PODS, NodeTable, RowLog, Trial
from koordlet.api.annotations.reservation import ALLOCATED, is_reservation_pod
from koordlet.api.encoding.wire import WireError
from koordlet.app.logging import get_logger

log = get_logger(__name__)

NO_PORTS: Final[Mapping[Port, int]] = {}


class ReservedRoom:
    """One reservation, or the owners of one that is not known."""

    __slots__ = (
        "group",
        "info",
        "lifted",
        "listed",
        "model",
        "owners",
        "owners_here",
        "ports",
        "remaining",
        "revision",
        "room",
        "row",
        "uid",
        "used",
    )

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.model: ReservationModel | None = None
        self.revision = 0
        """Number of versions of `model`."""
        self.info: PodInfo | None = None
        """The reserve pod while it is counted, or lifted."""
        self.row = -1
        """Row of the reserve pod; the last one if it is not counted any more."""
        self.listed = -1
        """The row on which other pods see it; -1: none."""
        self.owners: dict[str, PodInfo] = {}
        """By uid: the pods that use it, wherever they are."""
        self.owners_here = 0
        """Number of owners on its node. An owner elsewhere takes no room of it."""
        self.used: Amounts = {}
        """What the owners on its node use, of the counted resources."""
        self.remaining: Amounts = {}
        """What the next owner may take."""
        self.room: Mapping[int, int] = NO_ROOM
        """What the table counts for it, by key of a credit."""
        self.ports: Mapping[Port, int] = NO_PORTS
        self.group: OwnerGroup | None = None
        self.lifted = False
        """Removed from the table for one cycle: it offers its room, which the table does not count now."""

    @property
    def placed(self) -> bool:
        """Whether it is on a node and the table counts it."""
        return self.model is not None and self.model.available and self.info is not None

    @property
    def offered(self) -> bool:
        """Whether pods may use it now (matchable, spec 06 §4.3)."""
        model = self.model
        return (
            model is not None
            and self.info is not None
            and model.matchable
            and not (model.allocate_once and self.owners_here)
        )


class ReservationBook:
    """See the module text. A `PodListener`."""

    def __init__(self, table: NodeTable) -> None:
        self.table = table
        self.rooms: dict[str, ReservedRoom] = {}
        """By uid."""
        self.by_row: dict[int, dict[str, ReservedRoom]] = {}
        """Row -> by uid, those that are on the row."""
        self.held: dict[int, dict[str, ReservedRoom]] = {}
        """The same with those that are being bound."""
        self.index = OwnerIndex()
        self.log = RowLog()
        """Rows on which a reservation or its figures changed; each group has such a log of its own."""
        self.version = 0
        """Grows with every change of a figure."""
        self.deciders: dict[str, Callable[[PodInfo], str]] = {}
        """By profile: the uid of the reservation that a pod without a node would take on the row on which it is counted
        in a trial; empty: none."""
        self.owners: Allocations[str] = Allocations(self._read, self._use)
        """By uid of a pod: the uid of its reservation."""
        table.listen(self)
        table.listen(self.owners)

    def __len__(self) -> int:
        """Number of reservations on nodes."""
        return sum(map(len, self.by_row.values()))

    # Objects

    def put(self, model: ReservationModel) -> bool:
        """A reservation was added or changed. False: nothing that the scheduler reads changed."""
        room = self._room(model.uid)
        before = room.model
        if before == model:
            return False
        if model.problem and (before is None or before.problem != model.problem):
            log.warning("Ignoring a malformed reservation", reservation=model.name, problem=model.problem)
        room.model = model
        room.revision += 1
        owners = () if model.problem else model.owners
        if room.group is None or room.group.owners != owners:
            self._note(room, room.listed)
            if room.group is not None:
                self.index.leave(room, room.group)
            room.group = self.index.join(room, owners) if owners else None
        self._arrange(room)
        return True

    def remove(self, uid: str) -> None:
        """A reservation was deleted. Its owners keep what they use."""
        room = self.rooms.get(uid)
        if room is None:
            return
        room.model = None
        self._arrange(room)
        if room.group is not None:
            self.index.leave(room, room.group)
            room.group = None
        self._forget(room)

    # Pods that the table counts

    def pod_added(self, row: int, pod: PodInfo) -> None:
        if holds_room(pod):
            room = self._room(pod.uid)
            room.info, room.row = pod, row
            self.held.setdefault(row, {})[pod.uid] = room
            self._arrange(room)

    def pod_removed(self, row: int, pod: PodInfo) -> None:
        if holds_room(pod):
            room = self.rooms.get(pod.uid)
            if room is not None and not room.lifted:
                self.table.adjust(pod, ())
                room.info = None
                del self.held[row][pod.uid]
                if not self.held[row]:
                    del self.held[row]
                self._arrange(room)
                self._forget(room)

    def lift(self, rooms: Iterable[ReservedRoom]) -> Callable[[], None]:
        """Remove reserve pods from the table for one cycle, so that no plugin sees them. Call the result to end that.

        The reservations still offer their room."""
        trial = Trial(self.table)
        lifted = [room for room in rooms if room.info is not None]
        self.version += 1
        for room in lifted:
            room.lifted = True
            if room.info is not None:
                trial.remove(room.info)

        def lower() -> None:
            for room in lifted:
                room.lifted = False
            trial.undo()
            self.version += 1

        return lower

    def on(self, row: int) -> Iterable[ReservedRoom]:
        """The reservations on a row."""
        return self.by_row.get(row, {}).values()

    # Figures

    def _read(self, pod: PodInfo) -> str | None:
        if holds_room(pod) or pod.pod.spec.node_name:
            return _allocated_uid(pod)
        decide = self.deciders.get(pod.shape.scheduler)
        return (decide(pod) or None) if decide is not None and self.by_row else None

    def _use(self, row: int, pod: PodInfo, uid: str, sign: int) -> None:
        """A pod begins or ceases to use the reservation."""
        room = self._room(uid)
        if sign > 0:
            room.owners[pod.uid] = pod
        else:
            room.owners.pop(pod.uid, None)
        here = row == room.row
        room.owners_here += sign if here else 0
        model = room.model
        if model is not None and here:
            for name, amount in allocated((pod.requests,), model.restricted).items():
                room.used[name] = room.used.get(name, 0) + sign * amount
            self._count(room)
        self.version += 1
        if room.listed >= 0:
            self._changed(room, room.listed)
        if sign < 0:
            self._forget(room)

    def _arrange(self, room: ReservedRoom) -> None:
        """The object or the reserve pod changed: everything is counted again."""
        model = room.model
        self._unlist(room)
        if room.placed:
            room.listed = room.row
            self.by_row.setdefault(room.row, {})[room.uid] = room
            self._changed(room, room.row)
        here = [pod.requests for pod in room.owners.values() if pod.row == room.row]
        room.owners_here = len(here)
        room.used = {} if model is None else allocated(here, model.restricted)
        self._count(room)

    def _unlist(self, room: ReservedRoom) -> None:
        row, room.listed = room.listed, -1
        if row >= 0:
            rooms = self.by_row[row]
            del rooms[room.uid]
            if not rooms:
                del self.by_row[row]
            self._changed(room, row)

    def _changed(self, room: ReservedRoom, row: int) -> None:
        self._note(room, row)
        self.table.touch(row)

    def _note(self, room: ReservedRoom, row: int) -> None:
        if row >= 0:
            self.log.note(row)
            if room.group is not None:
                room.group.log.note(row)

    def _count(self, room: ReservedRoom) -> None:
        """What is left, for owners and for the node."""
        self.version += 1
        model, info = room.model, room.info
        if model is None:
            room.remaining, room.room = {}, NO_ROOM
            return
        room.remaining = available(model.amounts, room.used, model.inner_reserved)
        if info is None:
            return
        shape, table = info.shape, self.table
        taken = {
            table.resource(name): min(amount, shape.requests.get(name, 0))
            for name, amount in room.used.items()
            if amount
        }
        table.adjust(info, [(column, -amount) for column, amount in taken.items()])
        counted = {column: amount - taken.get(column, 0) for column, amount in table.vector(shape)}
        counted[PODS] = 1
        counted[nonzero_key(CPU)] = shape.nonzero_cpu - taken.get(CPU, 0)
        counted[nonzero_key(MEMORY)] = shape.nonzero_memory - taken.get(MEMORY, 0)
        room.room = counted
        ports = ports_of(shape)
        room.ports = {(port.address, port.protocol, port.number): 1 for port in ports} if ports else NO_PORTS

    def _room(self, uid: str) -> ReservedRoom:
        room = self.rooms.get(uid)
        if room is None:
            room = self.rooms[uid] = ReservedRoom(uid)
        return room

    def _forget(self, room: ReservedRoom) -> None:
        if room.model is None and room.info is None and not room.owners:
            self.rooms.pop(room.uid, None)


def holds_room(pod: PodInfo) -> bool:
    """Whether it is the pod of a Reservation, or a pod in operating mode."""
    return pod.subject == RESERVATION or is_reservation_pod(pod.shape.labels)


def _allocated_uid(pod: PodInfo) -> str | None:
    """The reservation of a bound pod; the annotation of a Reservation is its author's."""
    if pod.subject == RESERVATION or ALLOCATED.key not in pod.pod.metadata.annotations:
        return None
    try:
        return allocated_uid(pod.pod, strict=True) or None
    except WireError as error:
        log.once(f"allocated:{pod.uid}", "Ignoring a malformed annotation", pod=pod.key, err=error)
        return None
