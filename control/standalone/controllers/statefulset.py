"""StatefulSet, the basics: pods with ordinals and stable names, created in order, updated from the highest ordinal.

No volume claims are created from volumeClaimTemplates, because this server has no volumes.
"""

from __future__ import annotations

from typing import Any

from control.standalone.controllers import ownership
from control.standalone.controllers.base import Key
from control.standalone.controllers.workload import WorkloadController

Json = dict[str, Any]

REVISION_LABEL = "controller-revision-hash"
NAME_LABEL, INDEX_LABEL = "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"


class StatefulSetController(WorkloadController):
    name = "statefulset"
    kind = "apps/statefulsets"
    kind_name = "StatefulSet"

    async def reconcile(self, key: Key) -> float | None:
        owner = self.registry.find(self.kind, *key)
        if owner is None:
            return None
        revision = f"{owner['metadata']['name']}-{ownership.template_hash(owner['spec'].get('template') or {})}"
        if not owner["metadata"].get("deletionTimestamp"):
            await self._step(owner, revision)
        pods = [pod for pod in await self.owned(owner) if not ownership.finished(pod)]
        updated = sum(_revision_of(pod) == revision for pod in pods)

        def status(old: Json) -> Json:
            done = updated == len(pods)
            return {
                **old,
                "replicas": len(pods),
                "readyReplicas": sum(ownership.ready(pod) for pod in pods),
                "availableReplicas": sum(ownership.ready(pod) for pod in pods),
                "currentReplicas": updated if done else len(pods) - updated,
                "updatedReplicas": updated,
                "updateRevision": revision,
                "currentRevision": revision if done else old.get("currentRevision", revision),
                "observedGeneration": owner["metadata"].get("generation", 1),
                "collisionCount": 0,
            }

        await self.set_status(key, status)
        return None

    async def _step(self, owner: Json, revision: str) -> None:
        """One step towards the desired pods; the changes that it causes trigger the next one."""
        spec = owner["spec"]
        desired = spec.get("replicas", 1)
        parallel = spec.get("podManagementPolicy") == "Parallel"
        pods = {_ordinal(owner, pod): pod for pod in await self.owned(owner)}
        for ordinal in range(desired):
            pod = pods.get(ordinal)
            if pod is not None and ownership.finished(pod):
                await self.delete_child(pod)
                if not parallel:
                    return
            elif pod is None:
                await self.create_pod(_pod(owner, ordinal, revision))
                if not parallel:
                    return
            elif not parallel and (not ownership.ready(pod) or pod["metadata"].get("deletionTimestamp")):
                if ownership.active(pod) and _revision_of(pod) != revision and _rolls(spec, ordinal):
                    await self.delete_child(pod)  # an outdated pod that isn't ready is replaced at once
                return
        surplus = sorted((ordinal for ordinal in pods if ordinal >= desired), reverse=True)
        for ordinal in surplus:
            await self.delete_child(pods[ordinal])
            if not parallel:
                return
        if surplus:
            return
        for ordinal in range(desired - 1, -1, -1):
            pod = pods.get(ordinal)
            if pod is None or not ownership.active(pod):
                return
            if _revision_of(pod) != revision:
                if _rolls(spec, ordinal):
                    await self.delete_child(pod)
                return
            if not ownership.ready(pod):
                return


def _rolls(spec: Json, ordinal: int) -> bool:
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete":
        return False
    return bool(ordinal >= (strategy.get("rollingUpdate") or {}).get("partition", 0))


def _ordinal(owner: Json, pod: Json) -> int:
    suffix = pod["metadata"]["name"].removeprefix(owner["metadata"]["name"] + "-")
    return int(suffix) if suffix.isdigit() else 1 << 30


def _pod(owner: Json, ordinal: int, revision: str) -> Json:
    name = f"{owner['metadata']['name']}-{ordinal}"
    labels = {REVISION_LABEL: revision, NAME_LABEL: name, INDEX_LABEL: str(ordinal)}
    pod = ownership.pod_from(owner, owner["spec"].get("template") or {}, name, **labels)
    pod["spec"]["hostname"] = name
    if owner["spec"].get("serviceName"):
        pod["spec"]["subdomain"] = owner["spec"]["serviceName"]
    return pod


def _revision_of(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(REVISION_LABEL, ""))
