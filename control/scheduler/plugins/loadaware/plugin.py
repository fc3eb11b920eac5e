"""LoadAwareScheduling, the plugin: filter and score over columns, and the events that update the columns (spec 05 §8).

Columns change with NodeMetrics, Reserve and Unreserve, pod events, node objects (`table.node_log`) and time. Every
change of a row calls `table.touch`, so that cached results for it become stale. Expired reports are detected at the
beginning of each cycle, which costs one comparison if there are none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from control.scheduler.config.args import LoadAwareSchedulingArgs
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import SKIP, SUCCESS, Code, PluginStatus
from control.scheduler.plugins.loadaware import report as reports
from control.scheduler.plugins.loadaware import summary
from control.scheduler.plugins.loadaware.assigned import Assigned, NodeLoad
from control.scheduler.plugins.loadaware.columns import LoadColumns
from control.scheduler.plugins.loadaware.estimate import PodLoad, pod_load, scheduled_at
from control.scheduler.plugins.loadaware.thresholds import NodeLimits, from_args, node_limits
from control.scheduler.plugins.loadaware.vectors import Tracked
from control.scheduler.state.columns import IntArray, Reasons16, Rows, count
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.core.podresources import is_terminated
from koordlet.api.crs.nodemetric import NodeMetric

PASS: Final = PreFilterResult()
EXEMPT: Final = PreFilterResult(SKIP)
MAX_SCALAR_ROWS: Final = 4
"""Up to this number of rows integers are faster than columns."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The data of a shape that filter and score need. `…_view`: the view of the columns that applies."""

    load: PodLoad
    estimate: IntArray
    """[resource, 1]"""
    filter_view: int
    score_view: int
    exempt: bool
    """The pod belongs to a DaemonSet and is not filtered."""


class LoadAwareScheduling(Plugin):
    """See the module text."""

    name: ClassVar[str] = "LoadAwareScheduling"
    reads: ClassVar[Reads] = Reads.PODS

    def __init__(self, args: LoadAwareSchedulingArgs | None, handle: Handle) -> None:
        super().__init__(args or LoadAwareSchedulingArgs(), handle)
        self.args: LoadAwareSchedulingArgs
        self.tracked = Tracked(self.args)
        self.loads: dict[str, NodeLoad] = {}
        self._node_of: dict[str, NodeLoad] = {}
        """By uid of an assigned pod."""
        self._limits: dict[int, NodeLimits] = {}
        self._thresholds = from_args(self.args, self.tracked)
        number, tracked = self.reasons.number, self.tracked.names
        self._columns = LoadColumns(
            self.table, self.args, len(tracked), number(Code.UNSCHEDULABLE, "node(s) nodeMetric expired")
        )
        self._over = np.array(
            [
                [
                    number(Code.UNSCHEDULABLE, f"node(s) {name}{kind} usage exceed threshold")
                    for name in self.tracked.names
                ]
                for kind in ("", " aggregated")
            ],
            np.int16,
        )
        self._weight_of = self.tracked.numbers(self.args.resource_weights)
        self._weights: IntArray = np.array(self._weight_of, np.int64)
        weighted = np.flatnonzero(self._weights)
        self._dominant_of = (
            weighted if len(weighted) else np.array([self.tracked.names.index(n) for n in ("cpu", "memory")])
        )
        self._sum_of_weights: int = int(self._weights.sum()) + self.args.dominant_resource_weight
        self._nodes_seen = 0
        self._memo = f"{self.name}/{handle.profile}"
        if handle.objects is not None:
            handle.objects.informer(NodeMetric).add_handler(
                self.set_metric, lambda _, new: self.set_metric(new), self.drop_metric
            )
            handle.objects.informer(Pod).add_handler(self.pod_seen, self.pod_changed, self.pod_gone)

    # The cycle

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("AssignedPod", frozenset({"Delete"})),
            EventInterest("NodeMetric", hint=self._may_help),
            EventInterest(
                "Node", frozenset({"Add", "Allocatable", "Annotation"}), self._may_help
            ),  # not in Koordinator, see docs/scheduler-plugins.md
        )

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        self._catch_up()
        return EXEMPT if self._compiled(pod.shape).exempt else PASS

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        compiled, columns = self._compiled(pod.shape), self._columns
        self._catch_up_nodes()
        if compiled.exempt:
            return np.zeros(count(rows, self.table.size), np.int16)
        view = compiled.filter_view
        if not isinstance(rows, slice) and len(rows) <= MAX_SCALAR_ROWS:
            return np.array([self._reason(compiled, row) for row in rows.tolist()], np.int16)
        over = columns.room[view][:, rows] < compiled.estimate
        refused: Reasons16 = columns.blocked[view][rows]
        if not over.any():
            return refused
        kind = columns.aggregated[view][rows].astype(np.intp)
        reason = self._over[kind, over.argmax(axis=0)]
        return np.where(over.any(axis=0), reason, refused)  # a blocked row has no bounds

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        compiled, columns = self._compiled(pod.shape), self._columns
        self._catch_up_nodes()
        if not self._sum_of_weights:
            return np.zeros(count(rows, self.table.size), np.int64)
        if not isinstance(rows, slice) and len(rows) <= MAX_SCALAR_ROWS:
            return np.array([self._score(compiled, row) for row in rows.tolist()], np.int64)
        left = columns.left[compiled.score_view][:, rows] - compiled.estimate
        np.maximum(left, 0, out=left)
        left *= 100
        left //= columns.divisor[:, rows]
        total: IntArray = self._weights @ left
        dominant = self.args.dominant_resource_weight
        if dominant:
            chosen = self._dominant_of
            smallest = np.where(columns.has[:, rows][chosen], left[chosen], 101).min(axis=0)
            total += dominant * np.where(smallest > 100, 0, smallest)
        total //= self._sum_of_weights
        return total

    def _reason(self, compiled: _Compiled, row: int) -> int:
        """`filter` for one row."""
        columns, view = self._columns, compiled.filter_view
        at = columns.room_on(view, row, compiled.load.estimate)
        if at < 0:
            return int(columns.blocked.item(view, row))
        reason: int = self._over.item(int(columns.aggregated.item(view, row)), at)
        return reason

    def _score(self, compiled: _Compiled, row: int) -> int:
        """`score` for one row."""
        parts = self._columns.parts_left(compiled.score_view, row, compiled.load.estimate)
        total: int = sum(map(operator.mul, parts, self._weight_of))
        if self.args.dominant_resource_weight:
            counted = [parts[at] for at in self._dominant_of.tolist() if self._columns.has[at, row]]
            total += self.args.dominant_resource_weight * min(counted, default=0)
        return total // self._sum_of_weights

    def reserve(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        if not self._is_reservation(pod.pod):
            self._assign(pod.pod, pod.uid, pod.key, self.table.names[row], self._compiled(pod.shape).load)
        return SUCCESS

    def unreserve(self, state: CycleState, pod: PodInfo, row: int) -> None:
        self._unassign(pod.uid)

    def forgotten(self, pod: PodInfo) -> None:
        self._unassign(pod.uid)

    # Pods

    def pod_seen(self, pod: Pod) -> None:
        """A pod was added."""
        if pod.spec.node_name and not is_terminated(pod) and not self._is_reservation(pod):
            self._assign(pod, pod.metadata.uid, pod.metadata.key, pod.spec.node_name, self._load_of(pod))

    def pod_changed(self, old: Pod, new: Pod) -> None:
        """A pod was updated (spec 05 §8.3)."""
        uid, node = new.metadata.uid, new.spec.node_name
        if old.metadata.uid != uid or (old.spec.node_name and old.spec.node_name != node):
            self._unassign(old.metadata.uid)
        if is_terminated(new):
            self._unassign(uid)
            return
        known = self._node_of.get(uid)
        if (
            known is None
            or known.name != node
            or old.status.conditions != new.status.conditions
            or old.spec != new.spec
        ):
            self.pod_seen(new)

    def pod_gone(self, pod: Pod) -> None:
        """A pod was deleted."""
        self._unassign(pod.metadata.uid)

    def _assign(self, pod: Pod, uid: str, key: str, node: str, load: PodLoad) -> None:
        previous = self._node_of.get(uid)
        if previous is not None and previous.name != node:
            self._unassign(uid)
        entry = self.loads.get(node)
        if entry is None:
            entry = self.loads[node] = NodeLoad(node, self.tracked.zero)
        scheduled = scheduled_at(pod)
        timestamp = self.handle.clock.now() if scheduled is None else scheduled
        entry.add(Assigned(uid, key, pod, load, load.known, timestamp, load.deadline(pod, timestamp)))
        self._node_of[uid] = entry
        self._changed(entry)

    def _unassign(self, uid: str) -> None:
        entry = self._node_of.pop(uid, None)
        if entry is not None:
            entry.remove(uid)
            self._changed(entry)

    def _load_of(self, pod: Pod) -> PodLoad:
        """The load of the pod: that of its shape if the table has this version of the pod, else computed."""
        row = self.table.rows.get(pod.spec.node_name)
        info = self.table.pods[row].get(pod.metadata.uid) if row is not None else None
        if info is not None and info.pod is pod:
            return self._compiled(info.shape).load
        known = self._node_of.get(pod.metadata.uid)
        before = known.pods.get(pod.metadata.uid) if known is not None else None
        if before is not None and _same_load(before.pod, pod):
            return before.load
        return pod_load(pod, self.args, self.tracked)

    @staticmethod
    def _is_reservation(pod: Pod) -> bool:
        return names.ANNOTATION_RESERVE_POD in pod.metadata.annotations

    # Metrics

    def set_metric(self, metric: NodeMetric) -> None:
        """A NodeMetric was added or updated."""
        name = metric.metadata.name
        entry = self.loads.get(name)
        if entry is None:
            entry = self.loads[name] = NodeLoad(name, self.tracked.zero)
        report = reports.read(metric, self.tracked, entry.report)
        entry.set_report(report, include_system=self.args.prod_usage_include_sys)
        self._changed(entry)

    def drop_metric(self, metric: NodeMetric) -> None:
        """A NodeMetric was deleted."""
        entry = self.loads.get(metric.metadata.name)
        if entry is not None:
            entry.set_report(None, include_system=False)
            self._changed(entry)

    def _may_help(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """Whether this plugin accepts the changed node, or the node of the changed NodeMetric, for the pod now."""
        row = self.table.row((new or old).metadata.name)
        if row is None:
            return False
        return not self.filter(CycleState(), pod, np.array([row], np.intp)).any()

    # Rows

    def _changed(self, entry: NodeLoad) -> None:
        """Compute the row of the entry again, and drop an empty entry."""
        row = self.table.rows.get(entry.name)
        if row is not None:
            limits = self._limits.get(row)
            if limits is not None and self._nodes_seen == self.table.node_log.end:
                self._columns.put(row, limits, entry, self.handle.clock.now())
                self.table.touch(row)
            else:
                self._catch_up_nodes()
                self._put(row)
        if entry.empty:
            self.loads.pop(entry.name, None)

    def _put(self, row: int) -> None:
        limits, load = self._limits.get(row), self.loads.get(self.table.names[row])
        if limits is None or load is None:
            self._columns.clear(row)
        else:
            self._columns.put(row, limits, load, self.handle.clock.now())
        self.table.touch(row)

    def _catch_up(self) -> None:
        """Update rows of changed nodes and of reports that have expired."""
        self._catch_up_nodes()
        now = self.handle.clock.now()
        if now >= self._columns.next_expiry:
            for row in self._columns.just_expired(now):
                self._put(row)

    def _catch_up_nodes(self) -> None:
        table = self.table
        if self._nodes_seen == table.node_log.end:
            return
        changed = table.node_log.since(self._nodes_seen)
        self._nodes_seen = table.node_log.end
        for row in range(table.size) if changed is None else set(changed):
            node = table.nodes[row]
            if node is None:
                self._limits.pop(row, None)
            else:
                limits = self._limits[row] = node_limits(node, self._thresholds, self.tracked)
                self._columns.set_capacity(row, limits.capacity)
            self._put(row)

    def _compiled(self, shape: Shape) -> _Compiled:
        compiled: _Compiled | None = shape.memo.get(self._memo)
        if compiled is None:
            load = pod_load(shape.pod, self.args, self.tracked)
            compiled = shape.memo[self._memo] = _Compiled(
                load=load,
                estimate=np.array(load.estimate, np.int64)[:, None],
                filter_view=int(load.prod),
                score_view=int(load.prod and self.args.score_according_prod_usage),
                exempt=shape.owner_kind == "DaemonSet",
            )
        return compiled

    # Pages

    def routes(self) -> Mapping[str, Callable[..., Any]]:
        return {"node/{node}": self.node_page}

    def node_page(self, node: str) -> dict[str, Any]:
        """The load data of a node (spec 05 §6)."""
        return summary.of(self.loads.get(node), self.tracked)


def _same_load(old: Pod, new: Pod) -> bool:
    """Whether all inputs of the estimate are equal."""
    a, b = old.spec, new.spec
    return (
        a.containers == b.containers
        and a.init_containers == b.init_containers
        and a.overhead == b.overhead
        and a.resources == b.resources
        and a.priority == b.priority
        and old.metadata.labels == new.metadata.labels
        and old.metadata.annotations == new.metadata.annotations
        and old.status.qos_class == new.status.qos_class
    )
