"""The page /apis/v1/plugins/Reservation/nodeReservations/{node} (spec 06 §7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from control.quota.amounts import to_list
from control.scheduler.plugins.nodeports import HostPort, ports_of
from control.scheduler.plugins.reservation.book import ReservationBook, ReservedRoom
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import NodeTable
from koordlet.api.encoding import wire

_FIELDS: Final = {"cpu": "MilliCPU", "memory": "Memory", "ephemeral-storage": "EphemeralStorage", "pods": "PodNumber"}


def on_node(book: ReservationBook, table: NodeTable, node: str) -> dict[str, Any]:
    """The reservations on a node; empty for an unknown node."""
    rooms = book.on(table.rows.get(node, -1))
    return {"items": [item(room) for room in sorted(rooms, key=lambda room: room.uid)]}


def item(room: ReservedRoom) -> dict[str, Any]:
    """One reservation. Empty fields are left out."""
    model = room.model
    if model is None:
        return {}
    ports = ports_of(room.info.shape) if room.info is not None else ()
    owners = [*room.owners.values()]
    fields = {
        "name": model.name,
        "namespace": model.namespace,
        "uid": model.uid,
        "kind": model.kind,
        "available": room.offered,
        "allocateOnce": model.allocate_once,
        "allocatable": _list(model.amounts),
        "reserved": _list(model.inner_reserved),
        "allocated": _list(room.used),
        "allocatablePorts": _ports(ports),
        "allocatedPorts": _ports(port for pod in owners for port in ports_of(pod.shape)),
        "availableResource": _resource(room.remaining),
        "allocatedResource": _resource(room.used),
        "owners": wire.to_builtins(list(model.owners)),
        "allocatePolicy": model.policy,
        "assignedPods": {pod.uid: _pod(pod) for pod in owners},
        "problem": model.problem,
    }
    return {name: value for name, value in fields.items() if value not in ("", None, {}, [], False)}


def _list(amounts: Mapping[str, int]) -> Any:
    return wire.to_builtins(to_list({name: amount for name, amount in amounts.items() if amount}))


def _resource(amounts: Mapping[str, int]) -> dict[str, Any]:
    fields: dict[str, Any] = {_FIELDS[name]: amount for name, amount in amounts.items() if name in _FIELDS and amount}
    scalars = {name: amount for name, amount in amounts.items() if name not in _FIELDS and amount}
    return {**fields, **({"ScalarResources": scalars} if scalars else {})}


def _ports(ports: Iterable[HostPort]) -> dict[str, Any]:
    by_address: dict[str, list[dict[str, Any]]] = {}
    for port in ports:
        by_address.setdefault(port.address, []).append({"protocol": port.protocol, "port": port.number})
    return by_address


def _pod(pod: PodInfo) -> dict[str, Any]:
    fields = {"Namespace": pod.namespace, "Name": pod.name, "UID": pod.uid, "Requests": _list(pod.requests)}
    ports = _ports(ports_of(pod.shape))
    return {**fields, **({"Ports": ports} if ports else {})}
