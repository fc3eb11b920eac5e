"""InterferenceAware: avoids nodes where co-located pods delay latency-sensitive pods. Not part of Koordinator.

koordlet reports in each NodeMetric which containers are victims of interference, and by which resource
(`docs/interference.md`). Per node and resource, the latency-sensitive victims with sufficient confidence are counted.
The score falls with that number. From `thresholds` on, the node rejects best-effort pods that would use more of the
resource. Expired reports are ignored, so a node that stops reporting is not avoided permanently.

A best-effort pod counts as a user of cpu and memory if it requests them, or if it requests nothing at all. Pods do not
declare disk and network usage, so interference by those rejects all best-effort pods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from control.scheduler.config.args import InterferenceAwareArgs
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import MAX_SCORE, CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import SKIP, Code
from control.scheduler.state.columns import IntArray, Reasons16, RowColumn, Rows, count
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.pages.interference import EXTENSION_KEY, briefs_of
from koordlet.api.qos import BE, LS, LSE, LSR, qos_class

KINDS: Final = ("cpu", "memory", "io", "network")
_KIND_OF: Final = {"cpu": 0, "cache": 0, "memory": 1, "io": 2, "network": 3}
"""Resource of a verdict -> its kind. Cache interference counts as cpu."""
_REQUESTED: Final[dict[int, tuple[str, ...]]] = {
    0: ("cpu", "kubernetes.io/batch-cpu", "kubernetes.io/mid-cpu"),
    1: ("memory", "kubernetes.io/batch-memory", "kubernetes.io/mid-memory"),
}
_VICTIM_QOS: Final = frozenset((LSE, LSR, LS))
_VICTIM_STATES: Final = frozenset(("interfered", "recovering"))
_PASS, _EXEMPT = PreFilterResult(), PreFilterResult(SKIP)
_NEVER: Final = float("inf")


class InterferenceAware(Plugin):
    """See the module text."""

    name: ClassVar[str] = "InterferenceAware"
    reads: ClassVar[Reads] = Reads.PODS

    def __init__(self, args: InterferenceAwareArgs | None, handle: Handle) -> None:
        super().__init__(args or InterferenceAwareArgs(), handle)
        self.args: InterferenceAwareArgs
        self.reported: dict[str, tuple[float, tuple[int, ...]]] = {}
        """Node -> (Unix seconds of the report, victim containers by kind), for nodes with victims."""
        self._weights = [self.args.weights.get(kind, 0) for kind in KINDS]
        self._thresholds = [self.args.thresholds.get(kind, 0) for kind in KINDS]
        self._score: RowColumn = self.table.column(np.int64, MAX_SCORE)
        self._refuses: list[RowColumn] = [self.table.column(np.bool_, False) for _ in KINDS]
        self._expires: RowColumn = self.table.column(np.float64, _NEVER)
        self._next_expiry = _NEVER
        self._numbers = [
            self.reasons.number(Code.UNSCHEDULABLE, f"node(s) had pods suffering from {kind} interference")
            for kind in KINDS
        ]
        self._nodes_seen = 0
        self._memo = f"{self.name}/{handle.profile}"
        if handle.objects is not None:
            handle.objects.informer(NodeMetric).add_handler(
                self.set_metric, lambda _, new: self.set_metric(new), self.drop_metric
            )

    # The cycle

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("NodeMetric", hint=self._may_help),
            EventInterest("AssignedPod", frozenset({"Delete"})),
            EventInterest("Node", frozenset({"Add"})),
        )

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        self._catch_up()
        return _PASS if self._uses(pod.shape) else _EXEMPT

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        self._catch_up()
        reasons = np.zeros(count(rows, self.table.size), np.int16)
        for kind in reversed(self._uses(pod.shape)):
            reasons[self._refuses[kind].data[rows]] = self._numbers[kind]
        return reasons

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        self._catch_up()
        scores: IntArray = self._score.data[rows]
        return scores

    def _uses(self, shape: Shape) -> tuple[int, ...]:
        """The kinds of resources that a best-effort pod would use; empty for all other pods."""
        kinds: tuple[int, ...] | None = shape.memo.get(self._memo)
        if kinds is None:
            kinds = ()
            if qos_class(shape.pod) == BE:
                idle = not any(shape.requests.get(name) for names in _REQUESTED.values() for name in names)
                kinds = tuple(
                    kind
                    for kind in range(len(KINDS))
                    if kind not in _REQUESTED or idle or any(shape.requests.get(name) for name in _REQUESTED[kind])
                )
            shape.memo[self._memo] = kinds
        return kinds

    # Reports

    def set_metric(self, metric: NodeMetric) -> None:
        """A NodeMetric was added or updated."""
        name, time = metric.metadata.name, metric.status.update_time
        victims = victim_containers(metric, self.args.min_confidence)
        before = self.reported.pop(name, None)
        if time is not None and any(victims):
            self.reported[name] = (time.unix, victims)
        if before != self.reported.get(name):
            self._changed(name)

    def drop_metric(self, metric: NodeMetric) -> None:
        """A NodeMetric was deleted."""
        if self.reported.pop(metric.metadata.name, None) is not None:
            self._changed(metric.metadata.name)

    def _changed(self, name: str) -> None:
        self._catch_up_nodes()
        row = self.table.rows.get(name)
        if row is not None:
            self._put(row)

    def _may_help(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """Whether this plugin accepts the node of the changed NodeMetric for the pod now."""
        row = self.table.row((new or old).metadata.name)
        return row is not None and not self.filter(CycleState(), pod, np.array([row], np.intp)).any()

    # Rows

    def _catch_up(self) -> None:
        """Update rows of changed nodes and of reports that have expired."""
        self._catch_up_nodes()
        if self._next_expiry == _NEVER:
            return
        now = self.handle.clock.now()
        if now >= self._next_expiry:
            expires = self._expires.data
            for row in np.flatnonzero(expires <= now).tolist():
                self._put(row)
            self._next_expiry = float(expires.min(initial=_NEVER))

    def _catch_up_nodes(self) -> None:
        table = self.table
        if self._nodes_seen != table.node_log.end:
            changed = table.node_log.since(self._nodes_seen)
            self._nodes_seen = table.node_log.end
            for row in range(table.size) if changed is None else set(changed):
                self._put(row)

    def _put(self, row: int) -> None:
        """Compute the columns of a row."""
        reported, victims = self.reported.get(self.table.names[row], (-_NEVER, (0,) * len(KINDS)))
        expiry = reported + self.args.report_expiration_seconds
        if expiry <= self.handle.clock.now():
            expiry, victims = _NEVER, (0,) * len(KINDS)
        score = points(victims, self._thresholds, self._weights)
        refuses = [0 < threshold <= number for number, threshold in zip(victims, self._thresholds, strict=True)]
        self._expires.data[row] = expiry
        self._next_expiry = min(self._next_expiry, expiry)
        if score != self._score.data[row] or refuses != [bool(column.data[row]) for column in self._refuses]:
            self._score.data[row] = score
            for column, refused in zip(self._refuses, refuses, strict=True):
                column.data[row] = refused
            self.table.touch(row)

    # Pages

    def routes(self) -> Mapping[str, Callable[..., Any]]:
        return {"nodes": self.nodes_page}

    def nodes_page(self) -> dict[str, Any]:
        """Nodes with victims of interference: time of the report, and number of containers by kind."""
        return {
            name: {"reported": at, "hurt": dict(zip(KINDS, hurt, strict=True))}
            for name, (at, hurt) in sorted(self.reported.items())
        }


def victim_containers(metric: NodeMetric, min_confidence: float) -> tuple[int, ...]:
    """By kind: the number of latency-sensitive containers that a co-located pod delays. Pure.

    An extension of another format is ignored: third parties may use the key."""
    victims = [set[tuple[str, str]]() for _ in KINDS]
    for pod in metric.status.pods_metric:
        briefs_document = (pod.extensions or {}).get(EXTENSION_KEY)
        if briefs_document is None or pod.qos not in _VICTIM_QOS:
            continue
        for brief in briefs_of(briefs_document):
            kind = _KIND_OF.get(brief.resource)
            sure = brief.confidence >= min_confidence
            if kind is not None and sure and brief.cause == "neighbour" and brief.state in _VICTIM_STATES:
                victims[kind].add((f"{pod.namespace}/{pod.name}", brief.container))
    return tuple(map(len, victims))


def points(victims: Sequence[int], thresholds: Sequence[int], weights: Sequence[int]) -> int:
    """100 minus the weight of each kind: the full weight from its threshold on, proportionally less below. Pure.

    A kind with threshold 0 rejects no pods; its full weight is subtracted from one victim on."""
    lost = sum(
        weight * min(number, max(threshold, 1)) // max(threshold, 1)
        for number, threshold, weight in zip(victims, thresholds, weights, strict=True)
    )
    return max(0, MAX_SCORE - lost)
