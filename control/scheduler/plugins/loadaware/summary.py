"""The page of a node's load (spec 05 §6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from control.scheduler.plugins.loadaware.assigned import NodeLoad
from control.scheduler.plugins.loadaware.vectors import Tracked
from koordlet.api.encoding import wire
from koordlet.api.encoding.quantity import BINARY_SI, DECIMAL_SI, Quantity
from koordlet.api.encoding.wire import Time


def of(load: NodeLoad | None, tracked: Tracked) -> dict[str, Any]:
    """The pods by time, and with a NodeMetric also the sums and the pods that contribute to them."""
    if load is None:
        return {}
    pods = sorted(load.each(), key=lambda pair: (pair[0].timestamp, pair[0].key))
    page: dict[str, Any] = {
        "pods": [{"timestamp": str(Time.from_unix(pod.timestamp)), "pod": wire.to_builtins(pod.pod)} for pod, _ in pods]
    }
    if load.report is None:
        return page
    added = [(pod.key, part) for pod, part in pods if part is not None]
    return page | {
        "prodUsage": _amounts(load.prod_usage, tracked),
        "nodeDelta": _amounts(load.node_delta, tracked, zero=False),
        "prodDelta": _amounts(load.prod_delta, tracked, zero=False),
        "nodeEstimated": _amounts(load.estimated, tracked),
        "nodeDeltaPods": sorted(key for key, part in added if part.node_delta is not None),
        "prodDeltaPods": sorted(key for key, part in added if part.prod_delta is not None),
        "nodeEstimatedPods": sorted(key for key, part in added if part.estimated is not None),
    }


def _amounts(vector: Sequence[int], tracked: Tracked, *, zero: bool = True) -> dict[str, str]:
    """`zero`: whether resources with the amount 0 are listed."""
    return {
        name: str(Quantity.milli(amount) if name == "cpu" else Quantity.of(amount, _format(name)))
        for name, amount in zip(tracked.names, vector, strict=True)
        if amount or zero
    }


def _format(name: str) -> Any:
    return BINARY_SI if name.endswith("memory") else DECIMAL_SI
