"""LowNodeLoad, slow and plain: dicts and loops, written from spec 07 §6 for comparison. It shares no code with the
plugin except the records of the state.

`PlainLowNodeLoad.balance(nodes, now, monotonic)` returns the names of the evicted pods and their reasons, in order. All
pods that `evictable` accepts can be evicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord

Vector = dict[str, int]


@dataclass
class PlainPool:
    """A pool; thresholds are percentages by resource."""

    low: dict[str, float]
    high: dict[str, float]
    prod_low: dict[str, float] = field(default_factory=dict)
    prod_high: dict[str, float] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    deviation: bool = False
    abnormalities: int = 1
    normalities: int = 3
    timeout: float = 60.0


@dataclass
class PlainDetector:
    """The state machine of spec 07 §6.6."""

    state: str = "OK"
    abnormal: int = 0
    normal: int = 0
    expiry: float = 0.0
    forgotten_at: float = 0.0

    def become(self, state: str) -> None:
        if state != self.state:
            self.state, self.abnormal, self.normal = state, 0, 0

    def mark(self, abnormal: bool, pool: PlainPool, now: float) -> None:
        if self.state == "ANOMALY" and (self.expiry < now or self.normal > pool.normalities):
            self.become("OK")
        if abnormal:
            self.abnormal, self.normal = self.abnormal + 1, 0
        else:
            self.abnormal, self.normal = 0, self.normal + 1
        if self.state == "OK" and self.abnormal > pool.abnormalities:
            self.become("ANOMALY")
            self.expiry = now + (pool.timeout if pool.timeout > 0 else 60)
        elif self.state == "ANOMALY" and self.normal > pool.normalities:
            self.become("OK")


@dataclass
class Usage:
    """One node in a pass."""

    node: NodeRecord
    usage: Vector
    prod_usage: Vector
    low: Vector
    high: Vector
    prod_low: Vector
    prod_high: Vector
    pods: list[PodRecord]
    metrics: dict[str, Vector]


class PlainLowNodeLoad:
    """See the module text."""

    def __init__(
        self,
        pool: PlainPool,
        *,
        expiration: int = 180,
        number_of_nodes: int = 0,
        node_fit: bool = True,
        evictable: Callable[[PodRecord], bool] = lambda pod: True,
        ttl: float = 300.0,
    ) -> None:
        self.pool = pool
        self.expiration = expiration
        self.number_of_nodes = number_of_nodes
        self.node_fit = node_fit
        self.evictable = evictable
        self.ttl = ttl
        self.detectors: dict[bool, dict[str, PlainDetector]] = {False: {}, True: {}}

    def balance(self, nodes: Sequence[NodeRecord], now: float, monotonic: float) -> list[tuple[str, str]]:
        self.evicted: list[tuple[str, str]] = []
        pool = self.pool
        default = 0.0 if pool.deviation else 100.0
        names = sorted({"memory", *pool.low, *pool.high, *pool.prod_low, *pool.prod_high})
        low, high, prod_low, prod_high = dict(pool.low), dict(pool.high), dict(pool.prod_low), dict(pool.prod_high)
        for name in names:
            if name not in low:
                low[name] = high[name] = default
            high.setdefault(name, default)
            if name not in prod_low:
                prod_low[name] = prod_high[name] = default
            prod_high.setdefault(name, default)
        self.names, self.percent = names, {False: high, True: prod_high}

        usages = [self.usage_of(node, now) for node in nodes]
        known = [usage for usage in usages if usage is not None]
        for usage in known:
            for prod, lows, highs, into_low, into_high in (
                (False, low, high, usage.low, usage.high),
                (True, prod_low, prod_high, usage.prod_low, usage.prod_high),
            ):
                for name in names:
                    capacity = usage.node.raw_allocatable.get(name, 0)
                    bottom, top = lows[name], highs[name]
                    if pool.deviation and bottom == 0:
                        into_low[name] = into_high[name] = capacity
                        continue
                    if pool.deviation:
                        average = self.average(known, name, prod)
                        bottom, top = clamp(average - bottom), clamp(average + top)
                    into_low[name] = math.floor(bottom * 0.01 * float(capacity))
                    into_high[name] = math.floor(top * 0.01 * float(capacity))
        classes: dict[str, list[Usage]] = {"high": [], "low": [], "prodHigh": [], "prodLow": [], "bothLow": [], "": []}
        for usage in known:
            classes[self.classify(usage)].append(usage)
        if not classes["high"] and not classes["prodHigh"]:
            return []
        abnormal = self.detect(classes["high"], False, monotonic)
        abnormal_prod = self.detect(classes["prodHigh"], True, monotonic)
        if not abnormal and not abnormal_prod:
            return []
        all_low = len(classes["low"]) + len(classes["prodLow"]) + len(classes["bothLow"])
        if all_low == 0:
            return []
        for usage in classes["low"] + classes["bothLow"]:
            self.reset(usage, False)
        for usage in classes["prodLow"]:
            self.reset(usage, True)
        if all_low <= self.number_of_nodes or all_low == len(nodes):
            return []
        abnormal.sort(key=lambda usage: (-self.score(usage, usage.usage), usage.node.name))
        abnormal_prod.sort(key=lambda usage: (-self.score(usage, usage.prod_usage), usage.node.name))
        a, b = self.available(classes["low"], False), self.available(classes["bothLow"], False)
        p, q = self.available(classes["prodLow"], True), self.available(classes["bothLow"], True)
        first = {name: a[name] + b[name] for name in names}
        self.phase(abnormal, classes["low"] + classes["bothLow"], first, False)
        rest = {name: min(b[name], first[name]) for name in names}
        second = {name: p[name] + min(q[name], rest[name]) for name in names}
        self.phase(abnormal_prod, classes["prodLow"] + classes["bothLow"], second, True)
        for prod, marked in ((False, abnormal), (True, abnormal_prod)):
            for usage in marked:
                detector = self.detectors[prod].get(usage.node.name)
                if detector is not None:
                    detector.mark(False, pool, monotonic)
        return self.evicted

    def usage_of(self, node: NodeRecord, now: float) -> Usage | None:
        load = node.load
        if load is None or not load.complete or load.updated is None or now - load.updated >= self.expiration:
            return None
        pods = [pod for pod in node.pods.values() if pod.pod.status.phase not in ("Succeeded", "Failed")]
        prod = [pod for pod in pods if pod.priority_class == "koord-prod"]
        usage = {name: load.usage.get(name, 0) for name in self.names}
        prod_usage = {name: sum(load.pods.get(pod.key, {}).get(name, 0) for pod in prod) for name in self.names}
        if "pods" in self.names:
            usage["pods"], prod_usage["pods"] = len(pods), len(prod)
        return Usage(node, usage, prod_usage, {}, {}, {}, {}, pods, load.pods)

    def average(self, known: list[Usage], name: str, prod: bool) -> float:
        total = 0.0
        for usage in known:
            capacity = usage.node.raw_allocatable.get(name, 0)
            if capacity:
                total += 100.0 * (usage.prod_usage if prod else usage.usage)[name] / capacity
        return total / len(known)

    def classify(self, usage: Usage) -> str:
        cordoned = usage.node.unschedulable
        under = all(usage.usage[n] <= usage.low[n] for n in self.names) and not cordoned
        prod_under = all(usage.prod_usage[n] <= usage.prod_low[n] for n in self.names) and not cordoned
        over, prod_over = self.over(usage, False), self.over(usage, True)
        if under:
            return "prodHigh" if prod_over else "bothLow" if prod_under else "low"
        if over:
            return "high"
        return "prodHigh" if prod_over else "prodLow" if prod_under else ""

    def over(self, usage: Usage, prod: bool) -> bool:
        if prod:
            return any(usage.prod_usage[n] > usage.prod_high[n] for n in self.names)
        return any(usage.usage[n] > usage.high[n] for n in self.names)

    def detect(self, usages: list[Usage], prod: bool, now: float) -> list[Usage]:
        kept = {name: detector for name, detector in self.detectors[prod].items() if detector.forgotten_at > now}
        self.detectors[prod] = kept
        if self.pool.abnormalities == 1:
            return list(usages)
        abnormal = []
        for usage in usages:
            detector = kept.setdefault(usage.node.name, PlainDetector())
            detector.forgotten_at = now + self.ttl
            detector.mark(True, self.pool, now)
            if detector.state == "ANOMALY":
                abnormal.append(usage)
        return abnormal

    def reset(self, usage: Usage, prod: bool) -> None:
        if usage.node.name in self.detectors[prod]:
            self.detectors[prod][usage.node.name].become("OK")

    def score(self, usage: Usage, amounts: Vector) -> int:
        weights = self.weights()
        total = points = 0
        for name in self.names:
            capacity = usage.node.raw_allocatable.get(name, 0)
            total += weights.get(name, 0)
            if capacity:
                points += weights.get(name, 0) * (1000 * min(amounts[name], capacity) // capacity)
        return points // total if total else 0

    def weights(self) -> dict[str, int]:
        pool = self.pool
        names = {"cpu", "memory", *pool.low, *pool.high, *pool.weights}
        return {name: pool.weights.get(name, 0) if pool.weights.get(name, 0) > 0 else 1 for name in names}

    def available(self, usages: list[Usage], prod: bool) -> Vector:
        if prod:
            return {n: sum(usage.prod_high[n] - usage.prod_usage[n] for usage in usages) for n in self.names}
        return {n: sum(usage.high[n] - usage.usage[n] for usage in usages) for n in self.names}

    def phase(self, sources: list[Usage], targets: list[Usage], budget: Vector, prod: bool) -> None:
        if not targets:
            return
        targets = sorted(targets, key=lambda usage: usage.node.name)
        simulated = {usage.node.name: dict(usage.prod_usage if prod else usage.usage) for usage in targets}
        for usage in sources:
            self.relieve(usage, targets, simulated, budget, prod)

    def relieve(
        self, usage: Usage, targets: list[Usage], simulated: dict[str, Vector], budget: Vector, prod: bool
    ) -> None:
        pods = [pod for pod in usage.pods if (pod.priority_class == "koord-prod" or not prod) and self.evictable(pod)]
        amounts, high = (usage.prod_usage, usage.prod_high) if prod else (usage.usage, usage.high)
        excess = {n: amounts[n] - high[n] for n in self.names if amounts[n] > high[n]}
        pods.sort(key=lambda pod: self.order(pod, usage.metrics.get(pod.key), excess))
        if self.node_fit:
            pods = [pod for pod in pods if self.placed(pod, usage.metrics.get(pod.key), targets, simulated, prod)]
        for pod in pods:
            if not self.over(usage, prod):
                break
            if any(budget[n] <= 0 for n in self.names):
                return
            text = ", ".join(self.item(usage, n, prod) for n in self.names if amounts[n] > high[n])
            self.evicted.append((pod.name, f"node is overutilized, {text}"))
            metric = usage.metrics.get(pod.key)
            if metric is None:
                continue
            for n in self.names:
                used = 1 if n == "pods" else metric.get(n, 0)
                budget[n] -= used
                usage.usage[n] -= used
                if prod or pod.priority_class == "koord-prod":
                    usage.prod_usage[n] -= used
        if not self.over(usage, prod):
            self.reset(usage, prod)

    def item(self, usage: Usage, name: str, prod: bool) -> str:
        used = (usage.prod_usage if prod else usage.usage)[name]
        capacity = usage.node.raw_allocatable.get(name, 0)
        percent = 100 * used / capacity if capacity else 0.0
        kind = "prod" if prod else "node"
        return f"{kind} {name} usage({percent:.2f}%)>threshold({self.percent[prod][name]:.2f}%)"

    def order(self, pod: PodRecord, metric: Vector | None, excess: Vector) -> tuple[Any, ...]:
        weights = {n: weight for n, weight in self.weights().items() if n in excess}
        score = 0.0
        total = sum(weights.get(n, 0) for n in metric or {})
        if metric is not None and total > 0:
            for n, used in metric.items():
                share = used / excess[n] if excess.get(n) else 0.0
                score += weights.get(n, 0) * (share if share < 1 else 1 + 1 / share)
            score /= total
        return (*pod.order, metric is None, -score, -pod.created, pod.namespace, pod.name)

    def placed(
        self, pod: PodRecord, metric: Vector | None, targets: list[Usage], simulated: dict[str, Vector], prod: bool
    ) -> bool:
        if metric is None:
            return False
        added = {n: 1 if n == "pods" else metric.get(n, 0) for n in self.names}
        for target in targets:
            if not plain_fits(pod, target.node):
                continue
            usage = simulated[target.node.name]
            high = target.prod_high if prod else target.high
            if all(usage[n] + added[n] <= high[n] for n in self.names):
                for n in self.names:
                    usage[n] += added[n]
                return True
        return False


def plain_fits(pod: PodRecord, node: NodeRecord) -> bool:
    """Node fit of spec 07 §3.5, from the objects."""
    if node.node is None or node.node.spec.unschedulable:
        return False
    labels, spec = node.node.metadata.labels, pod.pod.spec
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if required is not None and not any(
        term.matches(labels, {"metadata.name": node.name}) for term in required.node_selector_terms
    ):
        return False
    for taint in node.node.spec.taints:
        if taint.effect != "PreferNoSchedule" and not any(
            toleration.tolerates(taint) for toleration in spec.tolerations
        ):
            return False
    for name, amount in pod.requests.items():
        used = sum(other.requests.get(name, 0) for other in node.pods.values() if not other.terminated)
        if amount > node.allocatable.get(name, 0) - used:
            return False
    return True


def clamp(percent: float) -> float:
    return min(max(percent, 0.0), 100.0)
