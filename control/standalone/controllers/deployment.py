"""Deployment: a ReplicaSet for each template it has had, and a gradual move to the newest.

RollingUpdate keeps within maxSurge and maxUnavailable, Recreate empties the old sets first. Revisions are
numbered in `deployment.kubernetes.io/revision`, so that `kubectl rollout` status, history and undo work. A
rollout that makes no progress for progressDeadlineSeconds is reported as such.
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
        """The ReplicaSet of the present template, made if needed, with the highest revision number."""
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
        mark = {HASH: ownership.template_hash(template)}
        template.setdefault("metadata", {})["labels"] = {**(template["metadata"].get("labels") or {}), **mark}
        selector = copy.deepcopy(spec["selector"])
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), **mark}
        annotations = {
            k: v for k, v in (metadata.get("annotations") or {}).items() if k not in (LAST_APPLIED, REVISION)
        }
        obj = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{metadata['name']}-{mark[HASH]}",
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
        wanted = deployment["spec"].get("replicas", 1)
        plan = rolling_plan(wanted, *_limits(deployment), _size(new), [(_size(each), _available(each)) for each in old],
                            _available(new))  # fmt: skip
        await self._scale(new, plan[0])
        for each, size in zip(old, plan[1], strict=True):
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
    """The status that the ReplicaSets call for, and when to look again if the rollout is still going on."""
    spec, stamp = deployment["spec"], timestamp(now)
    wanted, deadline = spec.get("replicas", 1), spec.get("progressDeadlineSeconds", 600)
    new = next((each for each in sets if _same_template(each, spec["template"])), None)
    counts = {
        name: sum((each.get("status") or {}).get(name, 0) for each in sets)
        for name in ("replicas", "readyReplicas", "availableReplicas")
    }
    serving = counts["availableReplicas"]
    counts["updatedReplicas"] = ((new or {}).get("status") or {}).get("replicas", 0)
    counts["unavailableReplicas"] = max(0, wanted - serving)
    complete = new is not None and counts["updatedReplicas"] == wanted == counts["replicas"] == serving
    enough = serving >= wanted - _limits(deployment)[1]
    rows = conditions.put(old.get("conditions"), "Available", *_availability(enough), stamp)

    found = conditions.find(rows, "Progressing")
    moved = found is None or any(old.get(name, 0) != value for name, value in counts.items())
    since = stamp if moved or found is None else found.get("lastUpdateTime", stamp)
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
    wanted: int, surge: int, unavailable: int, new: int, old: list[tuple[int, int]], new_available: int
) -> tuple[int, list[int]]:
    """Next sizes of the new set and of the old ones, each given as (size, available).

    Never more than `wanted + surge` pods in all, and none that is available is given up while that would leave
    fewer than `wanted - unavailable`.
    """
    sizes = [size for size, _ in old]
    if new > wanted:
        new = wanted
    room = max(0, wanted + surge - new - sum(sizes))
    grown = min(wanted, new + room)
    spare = max(0, new + sum(sizes) - (wanted - unavailable) - max(0, new - new_available))
    for at, (size, ready) in enumerate(old):  # pods that serve nobody go first
        idle = min(size - min(ready, size), spare)
        sizes[at] -= idle
        spare -= idle
    free = min(spare, max(0, new_available + sum(min(r, s) for (_, r), s in zip(old, sizes, strict=True))
                          - (wanted - unavailable)))  # fmt: skip
    for at, size in enumerate(sizes):
        cut = min(size, free)
        sizes[at] -= cut
        free -= cut
    return grown, sizes


def _limits(deployment: Json) -> tuple[int, int]:
    """(maxSurge, maxUnavailable) in pods; never both 0, or nothing could move."""
    wanted = deployment["spec"].get("replicas", 1)
    strategy = deployment["spec"].get("strategy") or {}
    rolling = strategy.get("rollingUpdate") or {}
    if strategy.get("type") == "Recreate":
        return 0, wanted
    surge = ownership.amount(rolling.get("maxSurge", "25%"), wanted, True)
    unavailable = min(wanted, ownership.amount(rolling.get("maxUnavailable", "25%"), wanted, False))
    return surge, unavailable if surge or unavailable else min(1, wanted)


def _availability(enough: bool) -> tuple[str, str, str]:
    if enough:
        return "True", "MinimumReplicasAvailable", "Deployment has minimum availability."
    return "False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability."


def _same_template(replica_set: Json, template: Json) -> bool:
    held = copy.deepcopy(replica_set["spec"].get("template") or {})
    labels = (held.get("metadata") or {}).get("labels") or {}
    wanted = ((template.get("metadata") or {}).get("labels") or {}).get(HASH)
    if wanted is None:
        labels.pop(HASH, None)
    return _content(held) == _content(template)


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
