"""DaemonSet: one pod on every node that its pod template selects.

Pods are bound by spec.nodeName instead of node affinity, so that they run without a scheduler. A rolling update
deletes pods of older templates, at most maxUnavailable at a time.
"""

from __future__ import annotations

from typing import Any

from control.standalone.controllers import ownership
from control.standalone.controllers.base import Key, Mapper
from control.standalone.controllers.workload import WorkloadController, available, soonest
from control.standalone.kinds import NODE
from control.standalone.registry import ObjectChange

Json = dict[str, Any]

REVISION_LABEL = "controller-revision-hash"
_TOLERATED = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)


class DaemonSetController(WorkloadController):
    name = "daemonset"
    kind = "apps/daemonsets"
    kind_name = "DaemonSet"

    def watches(self) -> dict[str, Mapper]:
        return {**super().watches(), NODE: self._all}

    def _all(self, change: ObjectChange) -> list[Key]:
        daemon_sets = self.registry.store.list(self.kind)
        return [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in daemon_sets]

    async def reconcile(self, key: Key) -> float | None:
        owner = self.registry.find(self.kind, *key)
        if owner is None:
            return None
        spec = owner["spec"]
        revision = ownership.template_hash(spec.get("template") or {})
        nodes = {each["metadata"]["name"]: each for each in self.registry.store.list(NODE)}
        fitting = {name for name, node in nodes.items() if fits(spec["template"].get("spec") or {}, node)}
        if not owner["metadata"].get("deletionTimestamp"):
            await self._place(owner, fitting, revision)
        pods = [pod for pod in await self.owned(owner) if ownership.active(pod)]
        placed = [pod for pod in pods if _node_of(pod) in fitting]
        waits = [available(pod, spec.get("minReadySeconds", 0), self.now) for pod in placed]

        def status(old: Json) -> Json:
            counts = {
                "currentNumberScheduled": len(placed),
                "desiredNumberScheduled": len(fitting),
                "numberMisscheduled": len(pods) - len(placed),
                "numberReady": sum(wait is not None for wait in waits),
                "numberAvailable": sum(wait == 0 for wait in waits),
                "numberUnavailable": len(fitting) - sum(wait == 0 for wait in waits),
                "updatedNumberScheduled": sum(_revision_of(pod) == revision for pod in placed),
            }
            return {**old, **counts, "observedGeneration": owner["metadata"].get("generation", 1)}

        await self.set_status(key, status)
        return soonest(waits)

    async def _place(self, owner: Json, fitting: set[str], revision: str) -> None:
        by_node: dict[str, list[Json]] = {}
        for pod in await self.owned(owner):
            by_node.setdefault(_node_of(pod), []).append(pod)
        outdated = []
        down = 0
        for name in sorted(fitting | by_node.keys()):
            pods = by_node.get(name, [])
            for pod in pods:
                if ownership.finished(pod) or name not in fitting:
                    await self.delete_child(pod)
            if name not in fitting:
                continue
            pods = sorted((pod for pod in pods if not ownership.finished(pod)), key=ownership.deletion_order)
            for extra in pods[:-1]:
                await self.delete_child(extra)
            if not pods:
                await self.create_pod(_pod(owner, name, revision))
                down += 1
            elif not ownership.ready(pods[-1]):
                down += 1
            if pods and ownership.active(pods[-1]) and _revision_of(pods[-1]) != revision:
                outdated.append(pods[-1])
        strategy = owner["spec"].get("updateStrategy") or {}
        if strategy.get("type") == "OnDelete":
            return
        limit = ownership.amount((strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1), len(fitting), True)
        for pod in sorted(outdated, key=ownership.ready):  # pods that aren't ready first: they reduce no availability
            if ownership.ready(pod):
                if down >= max(1, limit):
                    continue
                down += 1
            await self.delete_child(pod)


def _pod(owner: Json, node: str, revision: str) -> Json:
    pod = ownership.pod_from(owner, owner["spec"].get("template") or {}, **{REVISION_LABEL: revision})
    spec = pod["spec"]
    spec["nodeName"] = node
    spec["tolerations"] = [
        *(spec.get("tolerations") or ()),
        *({"key": key, "operator": "Exists", "effect": effect} for key, effect in _TOLERATED),
    ]
    return pod


def _node_of(pod: Json) -> str:
    return str((pod.get("spec") or {}).get("nodeName", ""))


def _revision_of(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(REVISION_LABEL, ""))


def fits(spec: Json, node: Json) -> bool:
    """Whether a DaemonSet pod with this spec runs on the node: node selector, required node affinity, taints."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if affinity is not None and not any(_term(term, node, labels) for term in affinity.get("nodeSelectorTerms") or ()):
        return False
    tolerated = [
        *(spec.get("tolerations") or ()),
        *({"key": k, "operator": "Exists", "effect": e} for k, e in _TOLERATED),
    ]
    taints = (node.get("spec") or {}).get("taints") or ()
    return all(
        taint.get("effect") == "PreferNoSchedule" or any(_tolerates(each, taint) for each in tolerated)
        for taint in taints
    )


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    return toleration.get("key") == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or "")


def _term(term: Json, node: Json, labels: dict[str, str]) -> bool:
    fields = {"metadata.name": node["metadata"]["name"]}
    checks = [(each, labels) for each in term.get("matchExpressions") or ()]
    checks += [(each, fields) for each in term.get("matchFields") or ()]
    return bool(checks) and all(_requirement(each, values) for each, values in checks)


def _requirement(requirement: Json, labels: dict[str, str]) -> bool:
    value: str | None = labels.get(requirement["key"])
    values: list[str] = requirement.get("values") or []
    operator: str = requirement["operator"]
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) == (operator == "Exists")
    try:
        number, limit = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return number > limit if operator == "Gt" else number < limit
