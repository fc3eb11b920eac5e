"""Whether pods could be placed now, and if not, why: the status of a ScheduleExplanation (spec 05 §7.2, 06 §6).

Evaluated on the present cluster; nothing is cached and nothing is changed. The members of a job are placed one after
another tentatively, each beside the previous ones. The first member without a node determines the result for the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from control.scheduler.cycle.evaluation import evaluate, rank_nodes
from control.scheduler.cycle.failures import FitError
from control.scheduler.explain.diagnosis import filter_statuses, group_refusals
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.profile import Framework
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
"""Nodes listed per reason: the object must stay well below the size limit of the API server."""
MAX_VICTIM_NODES: Final = 100
MAX_DOMAINS: Final = 64


@dataclass
class _DomainResult:
    """The result for the pods in one topology domain."""

    placed: list[SchedulingResult] = field(default_factory=list)
    message: str = ""
    refused: list[NodeFailedDetail] = field(default_factory=list)
    victims: list[Victims] = field(default_factory=list)


def explain_job(framework: Framework, pods: Sequence[PodInfo]) -> ScheduleExplanationStatus:
    """The status, without its time. Pods that have a node count as placed there."""
    ordered = sorted(pods, key=lambda pod: (pod.row < 0, pod.created, pod.key))
    parts = [_detailed(framework, ordered, domain, rows) for domain, rows in _domains(framework, ordered)]
    best = next((part for part in parts if part.schedulable), None)
    best = best or next((part for part in parts if part.schedulable_after_preemption), parts[0])
    return ScheduleExplanationStatus(
        schedulable=best.schedulable,
        schedulable_after_preemption=best.schedulable_after_preemption,
        failed_message=best.failed_message,
        detailed_explanation=parts,
    )


def _domains(framework: Framework, pods: Sequence[PodInfo]) -> Iterator[tuple[str, RowArray | None]]:
    """(name, rows) of each domain that is evaluated separately: the values of the node label that a pod names, or all
    nodes."""
    labels = (pod.shape.labels.get(names.LABEL_TOPOLOGY_KEY_TO_EXPLAIN) for pod in pods)
    key = next(filter(None, labels), "")
    table = framework.handle.table
    rows: dict[str, list[int]] = {}
    for row in np.flatnonzero(table.valid).tolist() if key else ():
        value = table.node(row).metadata.labels.get(key)
        if value:
            rows.setdefault(value, []).append(row)
    if not rows:
        yield "", None
    for value in sorted(rows)[:MAX_DOMAINS]:
        yield value, np.array(rows[value], np.intp)


def _detailed(framework: Framework, pods: Sequence[PodInfo], domain: str, rows: RowArray | None) -> DetailedExplanation:
    result = _try(framework, pods, rows)
    names_of = framework.handle.table.names
    after_preemption = None
    if result.victims:
        first = result.victims[0]
        pod = next(pod for pod in pods if pod.row < 0)
        after_preemption = Explanation(schedulable=True, feasible_scheduling_result=[_result(pod, names_of[first.row])])
    return DetailedExplanation(
        topology_domain=domain,
        schedulable=not result.message,
        schedulable_after_preemption=bool(result.victims),
        failed_message=result.message,
        schedule_explanation=Explanation(
            schedulable=not result.message,
            failed_message=result.message,
            feasible_scheduling_result=result.placed,
            node_failed_details=result.refused,
        ),
        node_possible_victims=[
            _victims(names_of[victim.row], victim.pods) for victim in result.victims[:MAX_VICTIM_NODES]
        ],
        preempt_explanation=after_preemption,
    )


def _try(framework: Framework, pods: Sequence[PodInfo], within: RowArray | None) -> _DomainResult:
    result = _DomainResult()
    table = framework.handle.table
    with table.what_if() as trial:
        for pod in pods:
            if pod.row >= 0:
                result.placed.append(_result(pod, table.names[pod.row]))
                continue
            state = CycleState()
            try:
                if not _place(framework, state, pod, within, trial, result, alone=len(pods) == 1):
                    break
            finally:
                state.run_undo()
    return result


def _place(
    framework: Framework,
    state: CycleState,
    pod: PodInfo,
    within: RowArray | None,
    trial: Trial,
    result: _DomainResult,
    *,
    alone: bool,
) -> bool:
    """Place the pod tentatively and record where; or record why not. Returns whether it was placed."""
    table = framework.handle.table
    failure, feasible = evaluate(framework, state, pod, within)
    if len(feasible):
        best = rank_nodes(framework, state, pod, feasible, limit=1)[0].node
        result.placed.append(_result(pod, best))
        trial.add(pod, table.rows[best])
        return True
    result.message = failure.text() if alone else f"{pod.key}: {failure.text()}"
    if failure.pre_filter is None:
        refused = group_refusals(filter_statuses(failure, table.names))
        for group in refused:
            group.failed_nodes = group.failed_nodes[:MAX_NODES]
        result.refused = msgspec.convert(msgspec.to_builtins(refused), list[NodeFailedDetail])
    if alone:
        result.victims = _possible_victims(framework, state, pod, failure)
    return False


def _possible_victims(framework: Framework, state: CycleState, pod: PodInfo, failure: FitError) -> list[Victims]:
    plugin = framework.plugins.get(DefaultPreemption.name)
    return plugin.would_displace(state, pod, failure) if isinstance(plugin, DefaultPreemption) else []


def _result(pod: PodInfo, node: str) -> SchedulingResult:
    return SchedulingResult(namespace=pod.namespace, name=pod.name, uid=pod.uid, node_name=node)


def _victims(node: str, pods: Sequence[PodInfo]) -> NodePossibleVictim:
    return NodePossibleVictim(
        node_name=node,
        possible_victims=[PossibleVictim(namespace=pod.namespace, name=pod.name, uid=pod.uid) for pod in pods],
    )
