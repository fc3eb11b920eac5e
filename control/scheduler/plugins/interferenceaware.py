"""InterferenceAware (ours): nodes whose services are hurt by their neighbours get fewer pods, and none that hurt more.

koordlet says in each NodeMetric which containers of which pods a neighbour hurts, and in which resource
(`docs/interference.md`). Of every node the latency-sensitive ones are counted, by resource, where koordlet is sure
enough. The score falls with that number; from `thresholds` on the node refuses best-effort pods that would use more of
that resource. A report that is too old says nothing, so a node that stops reporting is not avoided for ever.

Best-effort pods use cpu and memory as far as they request them (or nothing at all, which may be anything); what they
read, write and send they don't say, so interference by disks and networks refuses them all.
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
from koordlet.api.encoding.wire import WireError, convert
from koordlet.api.pages.interference import EXTENSION_KEY, Brief
from koordlet.api.qos import BE, LS, LSE, LSR, qos_class

KINDS: Final = ("cpu", "memory", "io", "network")
_KIND_OF: Final = {"cpu": 0, "cache": 0, "memory": 1, "io": 2, "network": 3}
"""Resource of a verdict -> its kind; who uses cpus uses their caches."""
_REQUESTED: Final[dict[int, tuple[str, ...]]] = {
    0: ("cpu", "kubernetes.io/batch-cpu", "kubernetes.io/mid-cpu"),
    1: ("memory", "kubernetes.io/batch-memory", "kubernetes.io/mid-memory"),
}
_VICTIMS: Final = frozenset((LSE, LSR, LS))
_HURT: Final = frozenset(("interfered", "recovering"))
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
        """Node -> (when, hurt containers by kind), where anybody is hurt."""
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
        found = np.zeros(count(rows, self.table.size), np.int16)
        for kind in reversed(self._uses(pod.shape)):
            found[self._refuses[kind].data[rows]] = self._numbers[kind]
        return found

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        self._catch_up()
        scores: IntArray = self._score.data[rows]
        return scores

    def _uses(self, shape: Shape) -> tuple[int, ...]:
        """Kinds of resources that a best-effort pod would use more of; empty for all other pods."""
        found: tuple[int, ...] | None = shape.memo.get(self._memo)
        if found is None:
            found = ()
            if qos_class(shape.pod) == BE:
                idle = not any(shape.requests.get(name) for names in _REQUESTED.values() for name in names)
                found = tuple(
                    kind
                    for kind in range(len(KINDS))
                    if kind not in _REQUESTED or idle or any(shape.requests.get(name) for name in _REQUESTED[kind])
                )
            shape.memo[self._memo] = found
        return found

    # Reports

    def set_metric(self, metric: NodeMetric) -> None:
        """A NodeMetric was added or updated."""
        name, time = metric.metadata.name, metric.status.update_time
        hurt = hurt_containers(metric, self.args.min_confidence)
        before = self.reported.pop(name, None)
        if time is not None and any(hurt):
            self.reported[name] = (time.unix, hurt)
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
        """Whether the node of the changed NodeMetric takes the pod now, as far as interference is concerned."""
        row = self.table.row((new or old).metadata.name)
        return row is not None and not self.filter(CycleState(), pod, np.array([row], np.intp)).any()

    # Rows

    def _catch_up(self) -> None:
        """Take over what no event told: nodes, and reports that are too old by now."""
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
        """Work the row's columns out again."""
        at, hurt = self.reported.get(self.table.names[row], (-_NEVER, (0,) * len(KINDS)))
        expiry = at + self.args.report_expiration_seconds
        if expiry <= self.handle.clock.now():
            expiry, hurt = _NEVER, (0,) * len(KINDS)
        score = points(hurt, self._thresholds, self._weights)
        refuses = [0 < threshold <= number for number, threshold in zip(hurt, self._thresholds, strict=True)]
        self._expires.data[row] = expiry
        self._next_expiry = min(self._next_expiry, expiry)
        if score != self._score.data[row] or refuses != [bool(column.data[row]) for column in self._refuses]:
            self._score.data[row] = score
            for column, refused in zip(self._refuses, refuses, strict=True):
                column.data[row] = refused
            self.table.touch(row)

    # Around it

    def routes(self) -> Mapping[str, Callable[..., Any]]:
        return {"nodes": self.nodes_page}

    def nodes_page(self) -> dict[str, Any]:
        """Nodes with containers that are hurt: when it was reported, and how many by kind."""
        return {
            name: {"reported": at, "hurt": dict(zip(KINDS, hurt, strict=True))}
            for name, (at, hurt) in sorted(self.reported.items())
        }


def hurt_containers(metric: NodeMetric, min_confidence: float) -> tuple[int, ...]:
    """By kind: latency-sensitive containers that a neighbour hurts. Pure.

    An extension of another shape says nothing: third parties may use the key."""
    found = [set[tuple[str, str]]() for _ in KINDS]
    for pod in metric.status.pods_metric:
        said = (pod.extensions or {}).get(EXTENSION_KEY)
        if said is None or pod.qos not in _VICTIMS:
            continue
        for brief in _briefs(said):
            kind = _KIND_OF.get(brief.resource)
            sure = brief.confidence >= min_confidence
            if kind is not None and sure and brief.cause == "neighbour" and brief.state in _HURT:
                found[kind].add((f"{pod.namespace}/{pod.name}", brief.container))
    return tuple(map(len, found))


def points(hurt: Sequence[int], thresholds: Sequence[int], weights: Sequence[int]) -> int:
    """100 less the weight of each kind, in full from its threshold on and in proportion below. Pure.

    A kind whose threshold is 0 never refuses; its full weight is taken from one hurt container on."""
    lost = sum(
        weight * min(number, max(threshold, 1)) // max(threshold, 1)
        for number, threshold, weight in zip(hurt, thresholds, weights, strict=True)
    )
    return max(0, MAX_SCORE - lost)


def _briefs(said: Any) -> list[Brief]:
    try:
        briefs: list[Brief] = convert(said, list[Brief])
    except WireError:
        return []
    return briefs
