"""Deployment: one ReplicaSet per pod template, and a rollout to the newest one.

RollingUpdate stays within maxSurge and maxUnavailable; Recreate scales the old sets to zero first. Revisions are
numbered in `deployment.kubernetes.io/revision`, for `kubectl rollout` status, history and undo. A
rollout without progress for progressDeadlineSeconds gets the reason ProgressDeadlineExceeded.
"""

from __future__ import annotations

import copy
from typing import Any

from control.standalone.controllers import conditions, ownership
from control.standalone.controllers.base import Key, ignore_missing
from control.standalone.controllers.workload import WRITE, WorkloadController
from control.standalone.objectmeta import parse_timestamp, timestamp
from control.standalone.policyinterfaces import SYSTEM

Json = dict[str, Any]

REPLICA_SETS = "apps/replicasets"
HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class DeploymentController(WorkloadController):
    name = "deployment"
    kind = "apps/deployments"
    kind_name = "Deployment"
    children_kind = REPLICA_SETS

    async def reconcile(self, key: Key) -> float | None:
        deployment = self.registry.find(self.kind, *key)
        if deployment is None or deployment["metadata"].get("deletionTimestamp"):
            return None
        spec = deployment["spec"]
        sets = await self.owned(deployment)
        new = next((each for each in sets if _same_template(each, spec["template"])), None)
        if not spec.get("paused"):
            new = await self._current(deployment, new, sets)
            old = [each for each in sets if each["metadata"]["uid"] != new["metadata"]["uid"]]
            if (spec.get("strategy") or {}).get("type") == "Recreate":
                await self._recreate(deployment, new, old)
            else:
                await self._roll(deployment, new, old)
            await self._forget_old(deployment, old)
        elif new is not None and len(sets) == 1:
            await self._scale(new, spec.get("replicas", 1))
        return await self._report(key, deployment, await self.owned(deployment))

    async def _current(self, deployment: Json, new: Json | None, sets: list[Json]) -> Json:
        """The ReplicaSet of the current template, created if needed, with the highest revision number."""
        highest = max((_revision(each) for each in sets), default=0)
        if new is None:
            new = await self._create(deployment, highest + 1)
        elif _revision(new) < highest:
            new = await self._number(REPLICA_SETS, new, highest + 1)
        if deployment["metadata"].get("annotations", {}).get(REVISION) != str(_revision(new)):
            await self._number(self.kind, deployment, _revision(new))
        return new

    async def _create(self, deployment: Json, revision: int) -> Json:
        metadata, spec = deployment["metadata"], deployment["spec"]
        template = copy.deepcopy(spec["template"])
        hash_label = {HASH: ownership.template_hash(template)}
        template.setdefault("metadata", {})["labels"] = {**(template["metadata"].get("labels") or {}), **hash_label}
        selector = copy.deepcopy(spec["selector"])
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), **hash_label}
        annotations = {
            k: v for k, v in (metadata.get("annotations") or {}).items() if k not in (LAST_APPLIED, REVISION)
        }
        obj = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{metadata['name']}-{hash_label[HASH]}",
                "namespace": metadata["namespace"],
                "labels": template["metadata"]["labels"],
                "annotations": {**annotations, REVISION: str(revision)},
                "ownerReferences": [ownership.reference(deployment)],
            },
            "spec": {
                "replicas": 0,
                "minReadySeconds": spec.get("minReadySeconds", 0),
                "selector": selector,
                "template": template,
            },
        }
        return await self.registry.create(REPLICA_SETS, metadata["namespace"], obj, SYSTEM, WRITE)

    async def _number(self, kind: str, obj: Json, revision: int) -> Json:
        def change(live: Json) -> Json:
            live["metadata"]["annotations"] = {**(live["metadata"].get("annotations") or {}), REVISION: str(revision)}
            return live

        metadata = obj["metadata"]
        write = self.registry.modify(kind, metadata["namespace"], metadata["name"], change, SYSTEM, WRITE)
        return await ignore_missing(write) or obj

    async def _scale(self, replica_set: Json, replicas: int) -> None:
        if replica_set["spec"].get("replicas") == replicas:
            return

        def change(live: Json) -> Json:
            live["spec"]["replicas"] = replicas
            return live

        metadata = replica_set["metadata"]
        write = self.registry.modify(REPLICA_SETS, metadata["namespace"], metadata["name"], change, SYSTEM, WRITE)
        await ignore_missing(write)

    async def _recreate(self, deployment: Json, new: Json, old: list[Json]) -> None:
        for each in old:
            await self._scale(each, 0)
        pods = self.registry.store.list("/pods", deployment["metadata"]["namespace"])
        if not any(ownership.controlled_by(pod, each) and not ownership.finished(pod) for pod in pods for each in old):
            await self._scale(new, deployment["spec"].get("replicas", 1))

    async def _roll(self, deployment: Json, new: Json, old: list[Json]) -> None:
        desired = deployment["spec"].get("replicas", 1)
        old_sizes = [(_size(each), _available(each)) for each in old]
        new_size, sizes = rolling_plan(desired, *_limits(deployment), _size(new), old_sizes, _available(new))
        await self._scale(new, new_size)
        for each, size in zip(old, sizes, strict=True):
            await self._scale(each, size)

    async def _forget_old(self, deployment: Json, old: list[Json]) -> None:
        keep = deployment["spec"].get("revisionHistoryLimit", 10)
        empty = [each for each in old if not _size(each) and not (each.get("status") or {}).get("replicas")]
        for each in sorted(empty, key=_revision)[: max(0, len(empty) - keep)]:
            await self.delete_child(each)

    async def _report(self, key: Key, deployment: Json, sets: list[Json]) -> float | None:
        again: float | None = None

        def status(old: Json) -> Json:
            nonlocal again
            new, again = next_status(old, deployment, sets, self.now)
            return new

        await self.set_status(key, status)
        return again


def next_status(old: Json, deployment: Json, sets: list[Json], now: float) -> tuple[Json, float | None]:
    """The status that follows from the ReplicaSets, and the seconds until the next run while a rollout is going on."""
    spec, stamp = deployment["spec"], timestamp(now)
    desired, deadline = spec.get("replicas", 1), spec.get("progressDeadlineSeconds", 600)
    new = next((each for each in sets if _same_template(each, spec["template"])), None)
    counts = {
        name: sum((each.get("status") or {}).get(name, 0) for each in sets)
        for name in ("replicas", "readyReplicas", "availableReplicas")
    }
    available = counts["availableReplicas"]
    counts["updatedReplicas"] = ((new or {}).get("status") or {}).get("replicas", 0)
    counts["unavailableReplicas"] = max(0, desired - available)
    complete = new is not None and counts["updatedReplicas"] == desired == counts["replicas"] == available
    enough = available >= desired - _limits(deployment)[1]
    rows = conditions.put(old.get("conditions"), "Available", *_availability(enough), stamp)

    progressing = conditions.find(rows, "Progressing")
    progress = progressing is None or any(old.get(name, 0) != value for name, value in counts.items())
    since = stamp if progress or progressing is None else progressing.get("lastUpdateTime", stamp)
    name = (new or deployment)["metadata"]["name"]
    again = None
    if complete:
        row = ("True", "NewReplicaSetAvailable", f'ReplicaSet "{name}" has successfully progressed.')
    elif now - parse_timestamp(since) > deadline:
        row = ("False", "ProgressDeadlineExceeded", f'ReplicaSet "{name}" has timed out progressing.')
    else:
        row = ("True", "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.')
        again = deadline + 1.0
    rows = conditions.put(rows, "Progressing", *row, stamp, lastUpdateTime=since)
    status = {**old, **counts, "conditions": rows, "observedGeneration": deployment["metadata"].get("generation", 1)}
    return {key: value for key, value in status.items() if value or key == "observedGeneration"}, again


def rolling_plan(
    desired: int, surge: int, unavailable: int, new: int, old: list[tuple[int, int]], new_available: int
) -> tuple[int, list[int]]:
    """The next size of the new set and the next sizes of the old ones; `old` has their (size, available).

    The total is at most `desired + surge` pods, and available pods are only removed while at least
    `desired - unavailable` remain.
    """
    sizes = [size for size, _ in old]
    new = min(new, desired)
    room = max(0, desired + surge - new - sum(sizes))
    grown = min(desired, new + room)
    minimum = desired - unavailable
    spare = max(0, new + sum(sizes) - minimum - max(0, new - new_available))
    for index, (size, available) in enumerate(old):  # first the pods that are not available
        removed = min(size - min(available, size), spare)
        sizes[index] -= removed
        spare -= removed
    old_available = sum(min(available, size) for (_, available), size in zip(old, sizes, strict=True))
    spare = min(spare, max(0, new_available + old_available - minimum))
    for index, size in enumerate(sizes):
        removed = min(size, spare)
        sizes[index] -= removed
        spare -= removed
    return grown, sizes


def _limits(deployment: Json) -> tuple[int, int]:
    """(maxSurge, maxUnavailable) in pods; not both 0, because then a rollout could not proceed."""
    desired = deployment["spec"].get("replicas", 1)
    strategy = deployment["spec"].get("strategy") or {}
    rolling = strategy.get("rollingUpdate") or {}
    if strategy.get("type") == "Recreate":
        return 0, desired
    surge = ownership.amount(rolling.get("maxSurge", "25%"), desired, True)
    unavailable = min(desired, ownership.amount(rolling.get("maxUnavailable", "25%"), desired, False))
    return surge, unavailable if surge or unavailable else min(1, desired)


def _availability(enough: bool) -> tuple[str, str, str]:
    if enough:
        return "True", "MinimumReplicasAvailable", "Deployment has minimum availability."
    return "False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability."


def _same_template(replica_set: Json, template: Json) -> bool:
    set_template = copy.deepcopy(replica_set["spec"].get("template") or {})
    labels = (set_template.get("metadata") or {}).get("labels") or {}
    if ((template.get("metadata") or {}).get("labels") or {}).get(HASH) is None:
        labels.pop(HASH, None)
    return _content(set_template) == _content(template)


def _content(template: Json) -> Json:
    metadata = {k: v for k, v in (template.get("metadata") or {}).items() if v and k != "creationTimestamp"}
    return {"metadata": metadata, "spec": template.get("spec") or {}}


def _revision(obj: Json) -> int:
    text = (obj["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdigit() else 0


def _size(replica_set: Json) -> int:
    return int(replica_set["spec"].get("replicas", 1))


def _available(replica_set: Json) -> int:
    return int((replica_set.get("status") or {}).get("availableReplicas", 0))
