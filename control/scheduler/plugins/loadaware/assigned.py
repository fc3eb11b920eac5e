"""The pods of a node, and what they add to the usage that the node reports (spec 05 §8.3, §8.4). Pure.

A NodeMetric is up to a minute old. For a pod that it does not contain yet, or measured only in its first seconds, the
part of the estimate that exceeds the measured usage is added. All sums are updated when pods are added and removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from control.scheduler.plugins.loadaware.estimate import PodLoad
from control.scheduler.plugins.loadaware.report import LoadReport
from control.scheduler.plugins.loadaware.vectors import Vector, plus
from koordlet.api.core import Pod


@dataclass(frozen=True, slots=True)
class Assigned:
    """A pod on a node. Times are Unix seconds."""

    uid: str
    key: str
    pod: Pod
    load: PodLoad
    estimate: Vector | None
    timestamp: float
    deadline: float | None


@dataclass(frozen=True, slots=True)
class Parts:
    """What one pod adds to the sums of its node; None: nothing."""

    prod_usage: Vector | None
    node_delta: Vector | None
    estimated: Vector | None
    prod_delta: Vector | None


def parts(pod: Assigned, report: LoadReport) -> Parts:
    """What `pod` adds to the sums, given the last report."""
    usage, prod = report.pods.get(pod.key), pod.load.prod
    as_prod = prod and pod.key in report.prod
    estimate = pod.estimate
    if estimate is None:
        return Parts(usage if as_prod else None, None, None, None)
    needed = usage is None or _unsettled(pod, report)
    more = _excess(estimate, usage) if needed else None
    prod_more = None
    if prod:
        if usage is not None and not as_prod:
            prod_more = estimate
        elif needed:
            prod_more = more
    return Parts(usage if as_prod else None, more, estimate, prod_more)


class NodeLoad:
    """The pods of one node, its last report, and the sums of both."""

    __slots__ = ("estimated", "name", "node_delta", "pods", "prod_delta", "prod_usage", "report", "zero")

    def __init__(self, name: str, zero: Vector) -> None:
        self.name = name
        self.zero = zero
        self.pods: dict[str, Assigned] = {}
        self.report: LoadReport | None = None
        self.prod_usage = list(zero)
        self.node_delta = list(zero)
        self.prod_delta = list(zero)
        self.estimated = list(zero)

    @property
    def empty(self) -> bool:
        return not self.pods and self.report is None

    def set_report(self, report: LoadReport | None, *, include_system: bool) -> None:
        """Set the last report (None: it was deleted) and compute all sums again."""
        self.report = report
        zero = self.zero
        self.prod_usage = list(report.system if report is not None and include_system else zero)
        self.node_delta, self.prod_delta, self.estimated = list(zero), list(zero), list(zero)
        if report is not None:
            for pod in self.pods.values():
                self._sum(pod, report, 1)

    def add(self, pod: Assigned) -> None:
        """Add a pod, or replace its previous version."""
        self.remove(pod.uid)
        self.pods[pod.uid] = pod
        if self.report is not None:
            self._sum(pod, self.report, 1)

    def remove(self, uid: str) -> None:
        pod = self.pods.pop(uid, None)
        if pod is not None and self.report is not None:
            self._sum(pod, self.report, -1)

    def existing(self, window: tuple[str, int] | None) -> Sequence[int]:
        """The node's usage including estimates: the average, or a percentile over a window."""
        report = self.report
        base = None if report is None else report.usage if window is None else report.window(window)
        return plus(self.zero if base is None else base, self.estimated if base is None else self.node_delta)

    def existing_prod(self) -> Sequence[int]:
        """The usage of pods of priority class prod."""
        return plus(self.prod_usage, self.prod_delta)

    def each(self) -> Iterator[tuple[Assigned, Parts | None]]:
        """Every pod with what it adds to the sums; None without a report."""
        for pod in self.pods.values():
            yield pod, parts(pod, self.report) if self.report is not None else None

    def _sum(self, pod: Assigned, report: LoadReport, sign: int) -> None:
        part = parts(pod, report)
        _add(self.prod_usage, part.prod_usage, sign)
        _add(self.node_delta, part.node_delta, sign)
        _add(self.estimated, part.estimated, sign)
        _add(self.prod_delta, part.prod_delta, sign)


def _unsettled(pod: Assigned, report: LoadReport) -> bool:
    """Whether the measurement covers too short a time to replace the estimate."""
    if report.update_time is None:
        return True
    if report.update_time - report.interval < pod.timestamp:
        return True
    return pod.deadline is not None and pod.deadline > report.update_time


def _excess(estimate: Vector, usage: Vector | None) -> Vector:
    if usage is None:
        return estimate
    return tuple(max(0, e - u) for e, u in zip(estimate, usage, strict=True))


def _add(total: list[int], part: Vector | None, sign: int) -> None:
    if part is not None:
        for at, amount in enumerate(part):
            total[at] += sign * amount
