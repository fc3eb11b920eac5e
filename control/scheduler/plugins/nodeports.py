"""NodePorts: host ports that the pod wants are free on the node (spec 05 §4).

0.0.0.0 stands for every address of the node. Only pods with host ports are kept account of, by protocol and port.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import Code
from control.scheduler.plugins import answers
from control.scheduler.state.columns import Reasons16, Rows
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api.core import Pod

_ANY: Final = "0.0.0.0"
_MEMO: Final = "NodePorts.ports"


class HostPort(NamedTuple):
    """An address of the node, and a port there."""

    address: str
    protocol: str
    number: int


class NodePorts(Plugin):
    name = "NodePorts"
    reads = Reads.PODS

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._used: dict[tuple[str, int], dict[int, dict[str, int]]] = {}
        """(protocol, port) -> row -> address -> pods that have it there."""
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
        return answers.PASS_ALL if ports_of(pod.shape) else answers.SKIP_FILTER

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        some = answers.few(rows)
        wanted = [(one, self._used.get((one.protocol, one.number), {})) for one in ports_of(pod.shape)]
        if some is not None:
            taken = (any(_clashes(one.address, by_row.get(row)) for one, by_row in wanted) for row in some)
            return answers.reasons([self._taken if clash else 0 for clash in taken])
        column = np.zeros(self.table.size, np.int16)
        for one, by_row in wanted:
            column[[row for row, addresses in by_row.items() if _clashes(one.address, addresses)]] = self._taken
        chosen: Reasons16 = column[rows]
        return chosen

    def pod_added(self, row: int, pod: PodInfo) -> None:
        for one in ports_of(pod.shape):
            addresses = self._used.setdefault((one.protocol, one.number), {}).setdefault(row, {})
            addresses[one.address] = addresses.get(one.address, 0) + 1

    def pod_removed(self, row: int, pod: PodInfo) -> None:
        for one in ports_of(pod.shape):
            key = (one.protocol, one.number)
            addresses = self._used[key][row]
            addresses[one.address] -= 1
            if not addresses[one.address]:
                del addresses[one.address]
            if not addresses:
                del self._used[key][row]
            if not self._used[key]:
                del self._used[key]


def ports_of(shape: Shape) -> tuple[HostPort, ...]:
    """The host ports that pods of the shape have."""
    found: tuple[HostPort, ...] | None = shape.memo.get(_MEMO)
    if found is None:
        found = shape.memo[_MEMO] = host_ports(shape.pod)
    return found


def host_ports(pod: Pod) -> tuple[HostPort, ...]:
    """Of containers and of sidecars, in order."""
    containers = (*pod.spec.containers, *(one for one in pod.spec.init_containers if one.is_sidecar))
    return tuple(
        HostPort(port.host_ip or _ANY, port.protocol or "TCP", port.host_port)
        for container in containers
        for port in container.ports
        if port.host_port > 0
    )


def _clashes(address: str, used: dict[str, int] | None) -> bool:
    if not used:
        return False
    return address == _ANY or _ANY in used or address in used


def _pod_hint(pod: PodInfo, old: Any, new: Any) -> bool:
    """A pod left a node, and had a port that the waiting pod wants."""
    gone = answers.as_pod(old)
    if gone is None:
        return True
    freed = host_ports(gone)
    return any(
        (one.protocol, one.number) == (other.protocol, other.number)
        and (one.address == other.address or _ANY in (one.address, other.address))
        for one in ports_of(pod.shape)
        for other in freed
    )
