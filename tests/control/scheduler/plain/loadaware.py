"""LoadAwareScheduling, one node at a time, computed from the objects without caches (spec 05 §8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from koordlet.api.core import Node, Pod
from koordlet.api.core.podresources import pod_limits, pod_requests
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.priority import priority_class

Amounts = dict[str, int]
NAMES = ("cpu", "memory")


def whole(name: str, quantity: Quantity | None) -> int:
    if quantity is None:
        return 0
    return quantity.milli_value() if name == "cpu" else quantity.value()


def rounded(value: Decimal) -> int:
    return int(value.quantize(Decimal(1), rounding=ROUND_HALF_UP))


@dataclass
class PlainPod:
    pod: Pod
    timestamp: float

    @property
    def key(self) -> str:
        return f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"


@dataclass
class PlainNode:
    node: Node
    metric: NodeMetric | None = None
    pods: dict[str, PlainPod] = field(default_factory=dict)


def is_prod(pod: Pod) -> bool:
    return priority_class(pod) == "koord-prod"


def estimate(pod: Pod, args: Any) -> Amounts:
    requests, limits = pod_requests(pod), pod_limits(pod)
    amounts = {}
    for name in NAMES:
        kind = priority_class(pod)
        if kind == "koord-free":
            amounts[name] = 0
            continue
        real = name
        if kind in ("koord-batch", "koord-mid"):
            real = f"kubernetes.io/{kind.removeprefix('koord-')}-{name}"
        request, limit = whole(real, requests.get(real)), whole(real, limits.get(real))
        estimated = limit if limit > request else request
        if estimated == 0:
            plain = real in ("cpu", "memory") or "batch" in real
            amounts[name] = 0 if not plain else 250 if name == "cpu" else 209715200
        else:
            amounts[name] = rounded(Decimal(estimated) * args.estimated_scaling_factors[name] / 100)
            if limit > 0:
                amounts[name] = min(amounts[name], limit)
    return amounts


def reported(metric: NodeMetric, key: str) -> tuple[Amounts | None, str]:
    for usage in metric.status.pods_metric:
        if f"{usage.namespace}/{usage.name}" == key and usage.pod_usage.resources:
            return {name: whole(name, usage.pod_usage.resources.get(name)) for name in NAMES}, usage.priority
    return None, ""


def existing(node: PlainNode, args: Any, *, prod: bool, kind: str, duration: int) -> Amounts:
    metric = node.metric
    assert metric is not None
    info, at = metric.status.node_metric, metric.status.update_time
    policy = metric.spec.metric_collect_policy
    interval = (policy.report_interval_seconds if policy else None) or 60
    delta, estimated = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
    prod_usage, prod_delta = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
    if args.prod_usage_include_sys and info is not None:
        prod_usage = {name: whole(name, info.system_usage.resources.get(name)) for name in NAMES}
    for pod in node.pods.values():
        used, priority = reported(metric, pod.key)
        guess = estimate(pod.pod, args)
        young = used is None or at is None or at.unix - interval < pod.timestamp
        after = args.estimated_seconds_after_pod_scheduled
        if after and at is not None and pod.timestamp + after > at.unix:
            young = True
        for name in NAMES:
            if is_prod(pod.pod) and used is not None and priority == "koord-prod":
                prod_usage[name] += used[name]
            if not any(guess.values()):
                continue
            estimated[name] += guess[name]
            if young:
                delta[name] += max(0, guess[name] - (used or {}).get(name, 0))
            if is_prod(pod.pod):
                counted, needed = (used or {}).get(name, 0), young
                if used is not None and priority != "koord-prod":
                    counted, needed = 0, True
                if needed:
                    prod_delta[name] += max(0, guess[name] - counted)
    if prod:
        return {name: prod_usage[name] + prod_delta[name] for name in NAMES}
    base = info.node_usage.resources if info is not None else None
    if kind and info is not None:
        windows = [
            usage for usage in info.aggregated_node_usages if kind in usage.usage and usage.usage[kind].resources
        ]
        if duration:
            windows = [window for window in windows if window.duration.nanoseconds == duration]
        windows.sort(key=lambda window: window.duration.nanoseconds)
        if windows:
            base = windows[-1].usage[kind].resources
        elif duration:
            base = None
    if base is None:
        return estimated
    return {name: whole(name, base.get(name)) + delta[name] for name in NAMES}


def expired(node: PlainNode, args: Any, now: float) -> bool:
    assert node.metric is not None
    at = node.metric.status.update_time
    return at is None or now - at.unix >= args.node_metric_expiration_seconds


def verdict(pod: Pod, node: PlainNode, args: Any, now: float) -> str:
    """Why the node is refused; empty: it is not."""
    if any(ref.kind == "DaemonSet" and ref.controller for ref in pod.metadata.owner_references):
        return ""
    prod = is_prod(pod) and any(args.prod_usage_thresholds.values())
    kind, duration, thresholds = "", 0, args.usage_thresholds
    if prod:
        thresholds = args.prod_usage_thresholds
    elif args.aggregated and args.aggregated.usage_thresholds and args.aggregated.usage_aggregation_type:
        thresholds = args.aggregated.usage_thresholds
        kind = args.aggregated.usage_aggregation_type
        duration = args.aggregated.usage_aggregated_duration.nanoseconds
    if not any(thresholds.values()) or node.metric is None:
        return ""
    if args.filter_expired_node_metrics and expired(node, args, now):
        return "" if args.enable_schedule_when_node_metrics_expired else "node(s) nodeMetric expired"
    if node.metric.status.node_metric is None:
        return ""
    base, more = existing(node, args, prod=prod, kind=kind, duration=duration), estimate(pod, args)
    for name in NAMES:
        capacity, threshold = whole(name, node.node.status.allocatable.get(name)), thresholds.get(name, 0)
        if threshold and capacity and rounded(Decimal(100 * (base[name] + more[name])) / capacity) > threshold:
            return f"node(s) {name} {'aggregated ' if kind else ''}usage exceed threshold"
    return ""


def score(pod: Pod, node: PlainNode, args: Any, now: float) -> int:
    if node.metric is None or node.metric.status.node_metric is None or expired(node, args, now):
        return 0
    weights, dominant = args.resource_weights, args.dominant_resource_weight
    if not weights and not dominant:
        return 0
    prod = args.score_according_prod_usage and is_prod(pod)
    kind, duration = "", 0
    if args.aggregated and args.aggregated.score_aggregation_type:
        kind, duration = args.aggregated.score_aggregation_type, args.aggregated.score_aggregated_duration.nanoseconds
    base, more = existing(node, args, prod=prod, kind=kind, duration=duration), estimate(pod, args)
    each = {}
    for name in NAMES:
        capacity, used = whole(name, node.node.status.allocatable.get(name)), base[name] + more[name]
        each[name] = 0 if capacity == 0 or used > capacity else 100 * (capacity - used) // capacity
    counted = [
        each[name]
        for name in NAMES
        if whole(name, node.node.status.allocatable.get(name)) and (not weights or weights.get(name))
    ]
    total = sum(each[name] * weights.get(name, 0) for name in NAMES) + dominant * min(counted, default=0)
    result: int = total // (sum(weights.values()) + dominant)
    return result
