"""ReplicaSet: keeps the desired number of pods."""

from __future__ import annotations

from typing import Any

from control.standalone.controllers import ownership
from control.standalone.controllers.base import Key
from control.standalone.controllers.workload import BURST, WorkloadController, available, soonest

Json = dict[str, Any]


class ReplicaSetController(WorkloadController):
    name = "replicaset"
    kind = "apps/replicasets"
    kind_name = "ReplicaSet"

    async def reconcile(self, key: Key) -> float | None:
        owner = self.registry.find(self.kind, *key)
        if owner is None:
            return None
        spec = owner.get("spec") or {}
        if not owner["metadata"].get("deletionTimestamp"):
            await self._balance(owner, [p for p in await self.owned(owner) if ownership.active(p)])
        pods = [pod for pod in await self.owned(owner) if ownership.active(pod)]
        labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
        waits = [available(pod, spec.get("minReadySeconds", 0), self.now) for pod in pods]

        def status(old: Json) -> Json:
            counts = {
                "replicas": len(pods),
                "fullyLabeledReplicas": sum(
                    labels.items() <= (pod["metadata"].get("labels") or {}).items() for pod in pods
                ),
                "readyReplicas": sum(wait is not None for wait in waits),
                "availableReplicas": sum(wait == 0 for wait in waits),
            }
            new = {**old, **counts, "observedGeneration": owner["metadata"].get("generation", 1)}
            return {name: value for name, value in new.items() if value or name in ("replicas", "observedGeneration")}

        await self.set_status(key, status)
        return soonest(waits)

    async def _balance(self, owner: Json, pods: list[Json]) -> None:
        desired = (owner.get("spec") or {}).get("replicas", 1)
        for _ in range(min(BURST, desired - len(pods))):
            await self.create_pod(ownership.pod_from(owner, owner["spec"].get("template") or {}))
        surplus = min(BURST, len(pods) - desired)
        for pod in sorted(pods, key=ownership.deletion_order)[: max(0, surplus)]:
            await self.delete_child(pod)
