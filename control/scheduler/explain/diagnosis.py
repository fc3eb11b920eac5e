"""Debug output for single cycles: a table of the best nodes, and a diagnosis when no node fits (spec 05 §7.1, §7.2).

Both are off by default; `debugging` switches them. `Diagnoses` queues diagnoses until one of a few tasks writes them to
the log. When the queue is full, a diagnosis is dropped and that is logged.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import msgspec
import numpy as np

from control.scheduler.cycle.failures import LEFT_OUT, FitError
from control.scheduler.framework.status import Code, PluginStatus
from control.scheduler.state.pods import PodInfo
from koordlet.api import names
from koordlet.api.encoding.wire import Time
from koordlet.api.pages.placement import ScoredNode
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks

log = get_logger(__name__)


def score_table(pod: str, scored: Sequence[ScoredNode], plugins: Iterable[str]) -> list[str]:
    """The lines of a Markdown table of nodes, best first. Plugins that skipped the pod score 0."""
    columns = sorted(plugins)
    lines = [
        _line(("#", "Pod", "Node", "Score", *columns)),
        _line(("---", "---", "---", "---:", *("---:" for _ in columns))),
    ]
    for number, node_score in enumerate(scored):
        scores = (str(node_score.scores.get(name, 0)) for name in columns)
        lines.append(_line((str(number), pod, node_score.node, str(node_score.total), *scores)))
    return lines


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


class _Json(msgspec.Struct, rename="camel", omit_defaults=True):
    pass


class RefusedNodes(_Json, kw_only=True):
    """Nodes that one plugin rejects for one reason."""

    failed_plugin: str = ""
    reason: str = ""
    preempt_might_help: bool = False
    failed_nodes: list[str]


class ScheduleDiagnosis(_Json):
    """`node_offer_slot`: how many waiting pods of the same gang group each node has."""

    already_wait_for_bound: int
    node_offer_slot: dict[str, int] = {}
    node_failed_details: list[RefusedNodes] = []


class PreemptionDiagnosis(_Json):
    """The PostFilter messages. The nodes that preemption tried are not listed."""

    failed_message: str = ""


class SuggestedStep(_Json):
    """What would help; `type` is one of `SuggestionType`."""

    type: str
    message: str


class Diagnosis(_Json, kw_only=True):
    """One failed cycle."""

    timestamp: str
    questioned_key: str
    nominated_node: str = ""
    pre_filter_message: str = ""
    topology_key_to_explain: str = ""
    is_root_cause_pod: bool
    schedule_diagnosis: ScheduleDiagnosis
    preemption_diagnosis: PreemptionDiagnosis
    suggestion: SuggestedStep | None = None


def group_refusals(statuses: Iterable[tuple[str, PluginStatus]]) -> list[RefusedNodes]:
    """(node, its status), grouped by plugin, reason and whether preemption might help."""
    groups: dict[tuple[str, str, bool], list[str]] = defaultdict(list)
    for node, status in statuses:
        groups[status.plugin, status.message, status.code is not Code.UNRESOLVABLE].append(node)
    return [
        RefusedNodes(failed_plugin=plugin, reason=reason, preempt_might_help=helps, failed_nodes=sorted(nodes))
        for (plugin, reason, helps), nodes in sorted(groups.items(), key=lambda item: (*item[0][:2], not item[0][2]))
    ]


def schedule_diagnosis(statuses: Iterable[tuple[str, PluginStatus]], waiting: Sequence[str]) -> ScheduleDiagnosis:
    """`waiting`: the node of each pod of the same gang group that waits at Permit."""
    return ScheduleDiagnosis(
        already_wait_for_bound=len(waiting),
        node_offer_slot=dict(sorted(Counter(waiting).items())),
        node_failed_details=group_refusals(statuses),
    )


def diagnose(
    pod: PodInfo, failure: FitError, nodes: Sequence[str], *, at: float, group: str = "", waiting: Sequence[str] = ()
) -> Diagnosis:
    """`nodes`: names by row. `at`: Unix seconds. `group`: the pod's gang group. `waiting`: see `schedule_diagnosis`."""
    before, advice = failure.pre_filter, failure.suggestion
    return Diagnosis(
        suggestion=None if advice is None else SuggestedStep(advice.type, advice.message),
        timestamp=str(Time.of(datetime.fromtimestamp(at, UTC))),
        questioned_key=group or pod.key,
        nominated_node=failure.nominated or "",
        pre_filter_message=before.message if before is not None else "",
        topology_key_to_explain=pod.shape.labels.get(names.LABEL_TOPOLOGY_KEY_TO_EXPLAIN, ""),
        is_root_cause_pod=before is None or before.plugin != "Coscheduling",
        schedule_diagnosis=schedule_diagnosis(() if before is not None else filter_statuses(failure, nodes), waiting),
        preemption_diagnosis=PreemptionDiagnosis(
            failed_message="" if failure.nominated else " ".join(part for part in failure.post_filter if part)
        ),
    )


def filter_statuses(failure: FitError, nodes: Sequence[str]) -> Iterable[tuple[str, PluginStatus]]:
    """(node, status) of the nodes that Filter plugins evaluated."""
    known = {int(code): failure.of(int(code)) for code in np.unique(failure.codes)}
    for row, code in zip(failure.rows.tolist(), failure.codes.tolist(), strict=True):
        if code != LEFT_OUT:
            yield nodes[row], failure.overrides.get(row) or known[code]


Process = Callable[[Diagnosis], object]


def write(diagnosis: Diagnosis) -> None:
    """Write the diagnosis as one line of the log."""
    log.info("Schedule diagnosis", pod=diagnosis.questioned_key, diagnosis=msgspec.json.encode(diagnosis).decode())


class Diagnoses:
    """Writes diagnoses when `on`: inside the cycle when `blocking`, else in tasks that start with the first
    diagnosis."""

    def __init__(
        self, clock: Clock, *, on: bool = False, blocking: bool = False, limit: int = 1000, workers: int = 10
    ) -> None:
        self.name = "diagnoses"
        self.on = on
        self.blocking = blocking
        self.processors: list[Process] = [write]
        self._clock = clock
        self._limit = limit
        self._workers = workers
        self._queue: asyncio.Queue[Diagnosis] = asyncio.Queue(limit)
        self._tasks: list[asyncio.Task[None]] = []

    def failed(self, pod: PodInfo, failure: FitError, nodes: Sequence[str], group: str, waiting: Sequence[str]) -> None:
        """No node fits, and PostFilter has run. For the other arguments see `diagnose`."""
        diagnosis = diagnose(pod, failure, nodes, at=self._clock.now(), group=group, waiting=waiting)
        if self.blocking:
            self._process(diagnosis)
            return
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._work(), name=f"diagnosis:{n}") for n in range(self._workers)]
        try:
            self._queue.put_nowait(diagnosis)
        except asyncio.QueueFull:
            log.warning("Dropped a diagnosis: the queue is full", pod=pod.key, waiting=self._limit)

    async def start(self) -> None:
        """Tasks start with the first diagnosis."""

    async def stop(self) -> None:
        """Write the queued diagnoses."""
        tasks, self._tasks = self._tasks, []
        await end_tasks(*tasks)
        while not self._queue.empty():
            self._process(self._queue.get_nowait())

    async def _work(self) -> None:
        while True:
            self._process(await self._queue.get())
            await asyncio.sleep(0)

    def _process(self, diagnosis: Diagnosis) -> None:
        for process in self.processors:
            process(diagnosis)
