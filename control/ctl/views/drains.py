"""`koordctl drain`: the pods of a drain as a table, and how far it is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.table import Table
from rich.text import Text

from control.ctl.text import ABSENT
from koordlet.api.core import Pod
from koordlet.api.crs import drain as d
from koordlet.api.crs.drain import DrainNode
from koordlet.api.encoding.base import Struct

STYLES = {d.SUCCEED: "green", d.FAILED: "red", d.UNMIGRATABLE: "red", d.UNAVAILABLE: "yellow"}
STAYING = (d.UNMIGRATABLE, d.UNAVAILABLE, d.FAILED)
PLANNING = (d.READY,)


class DrainedPod(Struct):
    """One pod of the node, as shown."""

    pod: str
    owner: str = ""
    from_node: str = ""
    to_node: str = ""
    phase: str = ""
    reason: str = ""


class DrainPlan(Struct):
    """A drain, as shown."""

    node: str
    drain: str
    phase: str = ""
    message: str = ""
    planned: bool = False
    """whether the scheduler has decided on every pod"""
    pods: list[DrainedPod]


def owners_of(pods: list[Pod]) -> dict[str, str]:
    """UID of a pod -> `kind/name` of its controller."""
    owners = {}
    for pod in pods:
        owner = next((each for each in pod.metadata.owner_references if each.controller), None)
        if owner is not None:
            owners[pod.metadata.uid] = f"{owner.kind}/{owner.name}"
    return owners


def plan_of(drain: DrainNode, owners: Mapping[str, str]) -> DrainPlan:
    """What is shown of a drain; `owners` as of `owners_of`, also of pods that are gone by now."""
    pods = [
        DrainedPod(
            pod=f"{entry.namespace}/{entry.pod_name}",
            owner=owners.get(entry.uid, ""),
            from_node=drain.spec.node_name,
            to_node=entry.target_node,
            phase=entry.phase,
            reason=entry.message,
        )
        for entry in drain.status.pod_migrations
    ]
    return DrainPlan(
        node=drain.spec.node_name,
        drain=drain.metadata.name,
        phase=drain.status.phase,
        message=drain.status.message,
        planned=bool(drain.status.conditions)
        and not any(entry.phase in PLANNING for entry in drain.status.pod_migrations),
        pods=sorted(pods, key=lambda each: each.pod),
    )


def staying(plan: DrainPlan) -> list[DrainedPod]:
    """The pods that cannot move now."""
    return [pod for pod in plan.pods if pod.phase in STAYING]


def plan_table(plan: DrainPlan) -> Table:
    """One line per pod."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("POD", "OWNER", "FROM", "TO", "PHASE", "REASON"):
        table.add_column(column)
    for pod in plan.pods:
        phase = Text(pod.phase, style=STYLES.get(pod.phase, ""))
        table.add_row(pod.pod, pod.owner or ABSENT, pod.from_node, pod.to_node or ABSENT, phase, pod.reason or ABSENT)
    return table


def changes(before: DrainPlan, after: DrainPlan) -> Iterator[str]:
    """A line for each pod whose phase is another one now."""
    known = {pod.pod: pod.phase for pod in before.pods}
    for pod in after.pods:
        if known.get(pod.pod) != pod.phase:
            to = f" to {pod.to_node}" if pod.to_node else ""
            yield f"{pod.pod}{to}: {pod.phase}" + (f", {pod.reason}" if pod.reason else "")
