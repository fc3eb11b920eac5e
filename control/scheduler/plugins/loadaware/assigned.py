"""Pods that a node has, measured or not, and what they add to what it reports (spec 05 §8.3, §8.4). Pure.

A NodeMetric is a minute old. A pod that it does not know yet, or knows only from its first seconds, is counted with its
estimate as far as that is more than what was measured. All sums are kept current as pods come and go.
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
    """What one pod adds to the sums of its node; None is nothing."""

    prod_usage: Vector | None
    node_delta: Vector | None
    estimated: Vector | None
    prod_delta: Vector | None


def parts(pod: Assigned, report: LoadReport) -> Parts:
    """What `pod` adds while `report` is the last one."""
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
    """The pods of one node, its last report, and the sums over both."""

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
        """Take over a report (None: it is gone) and sum up anew."""
        self.report = report
        zero = self.zero
        self.prod_usage = list(report.system if report is not None and include_system else zero)
        self.node_delta, self.prod_delta, self.estimated = list(zero), list(zero), list(zero)
        if report is not None:
            for pod in self.pods.values():
                self._sum(pod, report, 1)

    def add(self, pod: Assigned) -> None:
        """Count a pod, instead of an earlier version of it."""
        self.remove(pod.uid)
        self.pods[pod.uid] = pod
        if self.report is not None:
            self._sum(pod, self.report, 1)

    def remove(self, uid: str) -> None:
        pod = self.pods.pop(uid, None)
        if pod is not None and self.report is not None:
            self._sum(pod, self.report, -1)

    def existing(self, window: tuple[str, int] | None) -> Sequence[int]:
        """What the node uses, as far as it is known: by average, or by a percentile of a window."""
        report = self.report
        base = None if report is None else report.usage if window is None else report.window(window)
        return plus(self.zero if base is None else base, self.estimated if base is None else self.node_delta)

    def existing_prod(self) -> Sequence[int]:
        """What pods of class prod use."""
        return plus(self.prod_usage, self.prod_delta)

    def each(self) -> Iterator[tuple[Assigned, Parts | None]]:
        """Every pod with what it adds; None while there is no report."""
        for pod in self.pods.values():
            yield pod, parts(pod, self.report) if self.report is not None else None

    def _sum(self, pod: Assigned, report: LoadReport, sign: int) -> None:
        part = parts(pod, report)
        _add(self.prod_usage, part.prod_usage, sign)
        _add(self.node_delta, part.node_delta, sign)
        _add(self.estimated, part.estimated, sign)
        _add(self.prod_delta, part.prod_delta, sign)


def _unsettled(pod: Assigned, report: LoadReport) -> bool:
    """Whether what was measured is too young to be believed."""
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
