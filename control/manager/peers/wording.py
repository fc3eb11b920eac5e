"""The texts of Events and logs about replicas that are slower than their peers. Pure."""

from __future__ import annotations

from control.manager.peers.compare import PeerOutlier
from control.manager.peers.samples import GroupKey
from koordlet.api.crs.performance import CPI, WAITS

WAITING = {
    "cpu": "waits for a CPU",
    "memory": "is stalled for lack of memory",
    "io": "waits for the disk",
    "network": "waits for network processing",
}


def outlier_text(group: GroupKey, outlier: PeerOutlier) -> str:
    """What is slower, than what, and whether a neighbour on the node explains it."""
    _, kind, name, container = group
    peers, node = outlier.peers, outlier.replica.node
    neighbour = (
        f"a neighbour on node {node} delays it (see InterferenceDetected)"
        if outlier.replica.has_neighbour
        else f"no neighbour on node {node} explains it"
    )
    median, p99 = (_amount(outlier.figure, value) for value in (peers.median, peers.p99))
    return (
        f"container {container} {_value(outlier.figure, outlier.value)}; "
        f"the {peers.replicas} replicas of {kind} {name} on {peers.nodes} other nodes: median {median}, "
        f"99 % below {p99}; {neighbour}"
    )


def ended_text(group: GroupKey, outlier: PeerOutlier) -> str:
    """The end of it."""
    return f"container {group[3]} is not slower than its replicas on other nodes any more ({outlier.figure})"


def _value(figure: str, value: float) -> str:
    if figure in WAITS:
        return f"{WAITING[figure]} {_amount(figure, value)} of its time"
    if figure == CPI:
        return f"needs {_amount(figure, value)} cycles per instruction"
    return f"has {figure} {_amount(figure, value)}"


def _amount(figure: str, value: float) -> str:
    return f"{100 * value:.1f} %" if figure in WAITS else f"{value:.3g}"
