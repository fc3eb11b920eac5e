"""Whether pods could be placed now, and if not, why: the status of a ScheduleExplanation (spec 05 §7.2, 06 §6).

Worked out on the cluster as it is, with nothing remembered and nothing left changed. The members of a job are placed
one after another on trial, each beside those before it; the first that finds no node speaks for the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.failures import FitError
from control.scheduler.explain.diagnosis import details, explicit
from control.scheduler.explain.podreport import judge, scored
from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.defaultpreemption.plugin import DefaultPreemption
from control.scheduler.plugins.defaultpreemption.victims import Victims
from control.scheduler.state.columns import RowArray
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import Trial
from koordlet.api import names
from koordlet.api.crs.explanation import (
    DetailedExplanation,
    Explanation,
    NodeFailedDetail,
    NodePossibleVictim,
    PossibleVictim,
    ScheduleExplanationStatus,
    SchedulingResult,
)

MAX_NODES: Final = 1000
"""Names of nodes that are listed for one reason: an object must stay well below the API server's limit."""
MAX_VICTIM_NODES: Final = 100
MAX_DOMAINS: Final = 64


@dataclass
class _Found:
    """What became of the pods in one part of the topology."""

    placed: list[SchedulingResult] = field(default_factory=list)
    message: str = ""
    refused: list[NodeFailedDetail] = field(default_factory=list)
    victims: list[Victims] = field(default_factory=list)


def answer(cycle: Cycle, pods: Sequence[PodInfo]) -> ScheduleExplanationStatus:
    """The status, without its time. Pods that have a node count as placed there."""
    wanted = sorted(pods, key=lambda pod: (pod.row < 0, pod.created, pod.key))
    parts = [_detailed(cycle, wanted, domain, rows) for domain, rows in _domains(cycle, wanted)]
    best = next((part for part in parts if part.schedulable), None)
    best = best or next((part for part in parts if part.schedulable_after_preemption), parts[0])
    return ScheduleExplanationStatus(
        schedulable=best.schedulable,
        schedulable_after_preemption=best.schedulable_after_preemption,
        failed_message=best.failed_message,
        detailed_explanation=parts,
    )


def _domains(cycle: Cycle, pods: Sequence[PodInfo]) -> Iterator[tuple[str, RowArray | None]]:
    """(name, rows) of each part that is judged by itself: of a node label when the pod says so, else everything."""
    key = next((found for pod in pods if (found := pod.shape.labels.get(names.LABEL_TOPOLOGY_KEY_TO_EXPLAIN))), "")
    rows: dict[str, list[int]] = {}
    for row in np.flatnonzero(cycle.table.valid).tolist() if key else ():
        value = cycle.table.node(row).metadata.labels.get(key)
        if value:
            rows.setdefault(value, []).append(row)
    if not rows:
        yield "", None
    for value in sorted(rows)[:MAX_DOMAINS]:
        yield value, np.array(rows[value], np.intp)


def _detailed(cycle: Cycle, pods: Sequence[PodInfo], domain: str, rows: RowArray | None) -> DetailedExplanation:
    found = _try(cycle, pods, rows)
    names_of = cycle.table.names
    after = None
    if found.victims:
        first = found.victims[0]
        pod = next(pod for pod in pods if pod.row < 0)
        after = Explanation(schedulable=True, feasible_scheduling_result=[_result(pod, names_of[first.row])])
    return DetailedExplanation(
        topology_domain=domain,
        schedulable=not found.message,
        schedulable_after_preemption=bool(found.victims),
        failed_message=found.message,
        schedule_explanation=Explanation(
            schedulable=not found.message,
            failed_message=found.message,
            feasible_scheduling_result=found.placed,
            node_failed_details=found.refused,
        ),
        node_possible_victims=[_victims(names_of[one.row], one.pods) for one in found.victims[:MAX_VICTIM_NODES]],
        preempt_explanation=after,
    )


def _try(cycle: Cycle, pods: Sequence[PodInfo], within: RowArray | None) -> _Found:
    found = _Found()
    with cycle.table.what_if() as trial:
        for pod in pods:
            if pod.row >= 0:
                found.placed.append(_result(pod, cycle.table.names[pod.row]))
                continue
            state = CycleState()
            try:
                if not _place(cycle, state, pod, within, trial, found, alone=len(pods) == 1):
                    break
            finally:
                while state.undo:
                    state.undo.pop()()
    return found


def _place(
    cycle: Cycle,
    state: CycleState,
    pod: PodInfo,
    within: RowArray | None,
    trial: Trial,
    found: _Found,
    *,
    alone: bool,
) -> bool:
    failure, feasible = judge(cycle, state, pod, within)
    if len(feasible):
        best = scored(cycle, state, pod, feasible, limit=1)[0].node
        found.placed.append(_result(pod, best))
        trial.add(pod, cycle.table.rows[best])
        return True
    found.message = failure.text() if alone else f"{pod.key}: {failure.text()}"
    if failure.pre_filter is None:
        refused = details(explicit(failure, cycle.table.names))
        for one in refused:
            one.failed_nodes = one.failed_nodes[:MAX_NODES]
        found.refused = msgspec.convert(msgspec.to_builtins(refused), list[NodeFailedDetail])
    if alone:
        found.victims = _displaced(cycle, state, pod, failure)
    return False


def _displaced(cycle: Cycle, state: CycleState, pod: PodInfo, failure: FitError) -> list[Victims]:
    plugin = cycle.framework.plugins.get(DefaultPreemption.name)
    return plugin.would_displace(state, pod, failure) if isinstance(plugin, DefaultPreemption) else []


def _result(pod: PodInfo, node: str) -> SchedulingResult:
    return SchedulingResult(namespace=pod.namespace, name=pod.name, uid=pod.uid, node_name=node)


def _victims(node: str, pods: Sequence[PodInfo]) -> NodePossibleVictim:
    return NodePossibleVictim(
        node_name=node,
        possible_victims=[PossibleVictim(namespace=pod.namespace, name=pod.name, uid=pod.uid) for pod in pods],
    )
