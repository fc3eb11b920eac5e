"""InterferenceAware, one node at a time, from the reports as they are (docs/scheduler-plugins.md)."""

from __future__ import annotations

from typing import Any

from koordlet.api.core import Node, Pod
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.qos import qos_class
from tests.control.scheduler.plain.world import S, Verdict, World, requests

KINDS = {"cpu": ("cpu", "cache"), "memory": ("memory",), "io": ("io",), "network": ("network",)}
"""Kind -> resources of verdicts."""


def _hurt(kind: str, metric: NodeMetric, args: Any) -> int:
    """Containers of services that a neighbour delays."""
    containers = set()
    for pod in metric.status.pods_metric:
        verdicts = (pod.extensions or {}).get("interference")
        if pod.qos not in ("LSE", "LSR", "LS") or not isinstance(verdicts, list):
            continue
        for verdict in verdicts:
            sure = verdict.get("confidence", 0) >= args.min_confidence
            now = verdict.get("state") in ("interfered", "recovering")
            if verdict.get("resource") in KINDS[kind] and verdict.get("cause") == "neighbour" and sure and now:
                containers.add((pod.namespace, pod.name, verdict.get("container")))
    return len(containers)


def _metric(node: Node, world: World, args: Any) -> NodeMetric | None:
    metric = world.metrics.get(node.metadata.name)
    time = None if metric is None else metric.status.update_time
    if time is None or time.unix + args.report_expiration_seconds <= world.now:
        return None
    return metric


def _would_use(pod: Pod, kind: str) -> bool:
    if qos_class(pod) != "BE":
        return False
    if kind in ("io", "network"):
        return True
    requested = {name for name, amount in requests(pod).items() if amount}
    plain = ["", "kubernetes.io/batch-", "kubernetes.io/mid-"]
    anything = any(prefix + name in requested for prefix in plain for name in ("cpu", "memory"))
    return not anything or any(prefix + kind in requested for prefix in plain)


def interference(pod: Pod, node: Node, world: World, args: Any) -> Verdict:
    metric = _metric(node, world, args)
    if metric is None:
        return None
    for kind in KINDS:
        threshold = args.thresholds.get(kind, 0)
        if threshold and _would_use(pod, kind) and _hurt(kind, metric, args) >= threshold:
            return S, (f"node(s) had pods suffering from {kind} interference",)
    return None


def interference_score(_: Pod, node: Node, world: World, args: Any) -> int:
    metric = _metric(node, world, args)
    if metric is None:
        return 100
    score = 100
    for kind in KINDS:
        full = max(1, args.thresholds.get(kind, 0))
        score -= args.weights.get(kind, 0) * min(full, _hurt(kind, metric, args)) // full
    return max(0, score)
