"""The page of a node: its topology, what is free and who holds what (spec 06 §7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from control.numa.masks import cpu_list, numbers_of
from control.scheduler.plugins.nodenumaresource.book import MAX_REFS, NumaBook


def page(book: NumaBook, row: int, name: str) -> dict[str, Any]:
    """Raises RuntimeError for a node without a valid topology."""
    report, layout = book.report(row), book.report(row).layout
    if not layout.valid:
        raise RuntimeError(f"node {name} has no valid CPU topology")
    room, holdings = book.room(row), book.holdings.get(row)
    bind, numa, _ = book.policies(row)
    exclusive = {
        cpu: pod.exclusive
        for pod in (() if holdings is None else holdings.counted.values())
        for cpu in numbers_of(pod.cpus)
    }
    return {
        "name": name,
        "cpuTopology": {
            "numCPUs": layout.number,
            "numCores": len(layout.cores),
            "numNodes": len(layout.nodes),
            "numSockets": len(layout.sockets),
            "cpuDetails": {str(cpu): _position(book, row, cpu) for cpu in numbers_of(layout.cpus)},
        },
        "reservedCPUs": cpu_list(report.reserved),
        "maxRefCount": MAX_REFS,
        "policy": bind,
        "numaTopologyPolicy": numa,
        "numaNodeResources": [{"node": zone.id, "resources": _amounts(zone.total)} for zone in room.zones],
        "amplificationRatios": book.ratios(row),
        "remainingNUMANodeResources": {str(zone.id): _amounts(zone.available) for zone in room.zones},
        "allocatedNUMANodeResources": {
            str(zone.id): _amounts({n: zone.total[n] - zone.available[n] for n in zone.total}) for zone in room.zones
        },
        "availableCPUs": cpu_list(room.free),
        "allocatedCPUs": {}
        if holdings is None
        else {
            str(cpu): {**_position(book, row, cpu), "refCount": refs, "exclusivePolicy": exclusive.get(cpu, "")}
            for cpu, refs in sorted(holdings.refs.items())
        },
        "allocatedPods": {} if holdings is None else {uid: _pod(book, row, uid) for uid in sorted(holdings.given)},
    }


def _pod(book: NumaBook, row: int, uid: str) -> dict[str, Any]:
    pod, holding = book.pod(row, uid), book.holdings[row].given[uid]
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "cpuset": cpu_list(holding.cpus),
        "cpuExclusivePolicy": holding.exclusive,
        "numaNodeResources": [
            {"node": zone, "resources": _amounts(amounts)} for zone, amounts in sorted(holding.zones.items())
        ],
    }


def _position(book: NumaBook, row: int, cpu: int) -> dict[str, int]:
    core = book.report(row).layout.core_of.get(cpu)
    if core is None:  # the pod's CPU is not online any more
        return {"cpuID": cpu}
    return {"cpuID": cpu, "coreID": core.key, "nodeID": core.node, "socketID": core.socket}


def _amounts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in sorted(amounts.items())}
