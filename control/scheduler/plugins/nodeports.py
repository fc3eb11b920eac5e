"""NodePorts: the host ports of the pod must be free on the node (spec 05 §4).

0.0.0.0 stands for every address of the node. Only pods with host ports are recorded, by protocol and port.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import Code
from control.scheduler.plugins import results
from control.scheduler.state.columns import Reasons16, Rows
from control.scheduler.state.credit import RowCredit
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api.core import Pod

_ANY: Final = "0.0.0.0"
_MEMO: Final = "NodePorts.ports"


class HostPort(NamedTuple):
    """A port on an address of the node."""

    address: str
    protocol: str
    number: int


class NodePorts(Plugin):
    name = "NodePorts"
    reads = Reads.PODS

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._used: dict[tuple[str, int], dict[int, dict[str, int]]] = {}
        """(protocol, port) -> row -> address -> number of pods that use it."""
        self._taken = self.reasons.number(
            Code.UNSCHEDULABLE, "node(s) didn't have free ports for the requested pod ports"
        )
        self.table.listen(self)

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("AssignedPod", frozenset(("Delete",)), _pod_hint),
            EventInterest("Node", frozenset(("Add",))),
        )

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        return results.PASS_ALL if ports_of(pod.shape) else results.SKIP_FILTER

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        some = results.scalar_rows(rows)
        requested_ports = [(port, self._used.get((port.protocol, port.number), {})) for port in ports_of(pod.shape)]
        credit = state.credit
        if some is not None:
            taken = (
                any(_clashes(port, by_row.get(row), credit, row) for port, by_row in requested_ports) for row in some
            )
            return results.reasons([self._taken if clash else 0 for clash in taken])
        column = np.zeros(self.table.size, np.int16)
        for port, by_row in requested_ports:
            column[[row for row, used in by_row.items() if _clashes(port, used, credit, row)]] = self._taken
        chosen: Reasons16 = column[rows]
        return chosen

    def pod_added(self, row: int, pod: PodInfo) -> None:
        for port in ports_of(pod.shape):
            addresses = self._used.setdefault((port.protocol, port.number), {}).setdefault(row, {})
            addresses[port.address] = addresses.get(port.address, 0) + 1

    def pod_removed(self, row: int, pod: PodInfo) -> None:
        for port in ports_of(pod.shape):
            key = (port.protocol, port.number)
            addresses = self._used[key][row]
            addresses[port.address] -= 1
            if not addresses[port.address]:
                del addresses[port.address]
            if not addresses:
                del self._used[key][row]
            if not self._used[key]:
                del self._used[key]


def ports_of(shape: Shape) -> tuple[HostPort, ...]:
    """The host ports of pods of the shape."""
    ports: tuple[HostPort, ...] | None = shape.memo.get(_MEMO)
    if ports is None:
        ports = shape.memo[_MEMO] = host_ports(shape.pod)
    return ports


def host_ports(pod: Pod) -> tuple[HostPort, ...]:
    """The host ports of containers and sidecars, in order."""
    containers = (*pod.spec.containers, *(container for container in pod.spec.init_containers if container.is_sidecar))
    return tuple(
        HostPort(port.host_ip or _ANY, port.protocol or "TCP", port.host_port)
        for container in containers
        for port in container.ports
        if port.host_port > 0
    )


def _clashes(port: HostPort, used: Mapping[str, int] | None, credit: RowCredit | None, row: int) -> bool:
    if not used:
        return False
    kept = {} if credit is None else credit.ports(row)
    if kept:  # a port that reservations keep for the pod is free, unless an owner uses it already
        used = {
            address: number
            for address, number in used.items()
            if number > kept.get((address, port.protocol, port.number), 0)
        }
    return bool(used) and (port.address == _ANY or _ANY in used or port.address in used)


def _pod_hint(pod: PodInfo, old: Any, new: Any) -> bool:
    """Whether the removed pod used a port that the waiting pod needs."""
    gone = results.as_pod(old)
    if gone is None:
        return True
    freed = host_ports(gone)
    return any(
        (port.protocol, port.number) == (other.protocol, other.number)
        and (port.address == other.address or _ANY in (port.address, other.address))
        for port in ports_of(pod.shape)
        for other in freed
    )
