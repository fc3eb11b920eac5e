"""What a NodeMetric says of the pods of a node, if it is to be believed. Pure.

A report counts by its own time. One from the future would outweigh what comes until then, and one that is old tells
nothing new; a clock may be off by a minute.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from koordlet.api.crs.nodemetric import NodeMetric, containers_of

STALE_SECONDS, AHEAD_SECONDS = 900.0, 60.0
STALE, FUTURE = "stale", "future"


@dataclass(frozen=True, slots=True)
class Report:
    """Pods of one node, `namespace/name` -> cores and bytes, as measured at `at` (Unix seconds), and where koordlet
    tells them apart the containers of pods in which several run, `namespace/name` -> container -> the same."""

    at: float
    pods: dict[str, tuple[float, float]]
    containers: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)


def read_report(metric: NodeMetric, now: float) -> tuple[Report | None, str]:
    """The report, or None and why. A pod without CPU or memory, or with less than nothing, is left out."""
    updated = metric.status.update_time
    if updated is None or now - updated.unix > STALE_SECONDS:
        return None, STALE
    if updated.unix - now > AHEAD_SECONDS:
        return None, FUTURE
    pods: dict[str, tuple[float, float]] = {}
    containers: dict[str, dict[str, tuple[float, float]]] = {}
    for pod in metric.status.pods_metric:
        cpu, memory = pod.pod_usage.resources.get("cpu"), pod.pod_usage.resources.get("memory")
        if cpu is not None and memory is not None and cpu.nano >= 0 and memory.nano >= 0:
            pods[f"{pod.namespace}/{pod.name}"] = (float(cpu), float(memory))
            if pod.extensions and (apart := containers_of(pod)):
                containers[f"{pod.namespace}/{pod.name}"] = apart
    return Report(updated.unix, pods, containers), ""
