"""Where a pod would be placed now and why: the result of every plugin for every node (`koordctl explain pod`).

Nothing is cached and nothing is changed. A pod that has a node is removed from it during the evaluation.
"""

from __future__ import annotations

from collections import defaultdict

from msgspec.structs import replace

from control.scheduler.cycle.evaluation import evaluate, rank_nodes
from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.status import Code
from control.scheduler.plugins.reservation import ReservationPlugin
from control.scheduler.state.pods import PodInfo
from koordlet.api.pages.placement import PodPlacement, RejectedNodes

MAX_NODES_SHOWN = 10
"""Number of nodes that are listed by name, for the best nodes and for each reason."""


def explain(framework: Framework, pod: PodInfo, state: str) -> PodPlacement:
    """Evaluate the pod now. `state`: where the pod is, in words for the user."""
    table = framework.handle.table
    own_node = table.names[pod.row] if pod.row >= 0 else ""
    report = PodPlacement(pod=pod.key, state=state, node=own_node, nominated=pod.nominated, attempts=pod.attempts)
    report.nodes = table.nodes_alive
    original = pod.pod
    with table.what_if() as trial:
        if pod.row >= 0:
            trial.remove(pod)
            pod.pod = replace(original, spec=replace(original.spec, node_name=""))  # or NodeName rejects other nodes
        try:
            _evaluate(framework, pod, own_node, report)
        finally:
            pod.pod = original
    return report


def _evaluate(framework: Framework, pod: PodInfo, own_node: str, report: PodPlacement) -> None:
    state = CycleState()
    try:
        failure, feasible = evaluate(framework, state, pod)
        report.feasible = len(feasible)
        if len(feasible):
            report.scored = rank_nodes(framework, state, pod, feasible, limit=MAX_NODES_SHOWN, always=own_node)
        else:
            report.scored = []
        reserving = framework.plugins.get(ReservationPlugin.name)
        if isinstance(reserving, ReservationPlugin):
            report.reservations = reserving.considered(state, pod, MAX_NODES_SHOWN)
    finally:
        state.run_undo()
    report.refused = _refused(framework, pod, failure)
    if not report.feasible:
        report.message = failure.text()


def _refused(framework: Framework, pod: PodInfo, failure: FitError) -> list[RejectedNodes]:
    table, plugins = framework.handle.table, framework.plugins
    groups: dict[tuple[str, str, bool], list[str]] = defaultdict(list)
    for row, status in failure.statuses():
        if not status.ok:
            might_help = status.code is not Code.UNRESOLVABLE
            groups[status.plugin, status.message, might_help].append(table.names[row])
    refused = [
        RejectedNodes(
            plugin=plugin,
            reason=reason,
            preemption_might_help=might_help,
            count=len(nodes),
            nodes=sorted(nodes)[:MAX_NODES_SHOWN],
            details=[*plugins[plugin].rejection_details(pod, table.rows[min(nodes)])] if plugin in plugins else [],
        )
        for (plugin, reason, might_help), nodes in groups.items()
    ]
    return sorted(refused, key=lambda refusal: (-refusal.count, refusal.plugin, refusal.reason))
