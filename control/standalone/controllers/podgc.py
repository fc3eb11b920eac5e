"""Removes pods that no kubelet removes: those of deleted nodes, and deleted pods that were never bound.

A node must be missing for QUARANTINE_SECONDS before its pods are removed: a node that is registered again keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from control.standalone.controllers.base import EmbeddedController, Key, Mapper, ignore_missing, itself, pods_on
from control.standalone.controllers.ownership import finished
from control.standalone.deletion import DeletionOptions
from control.standalone.kinds import NODE, POD
from control.standalone.policyinterfaces import SYSTEM
from control.standalone.registry import ObjectChange, ObjectRegistry, WriteOptions

Json = dict[str, Any]

QUARANTINE_SECONDS = 40.0
_STATUS = WriteOptions(subresource="status", field_manager="kube-controller-manager")


class PodGarbage(EmbeddedController):
    name = "pod-garbage"

    def __init__(self, registry: ObjectRegistry, monotonic: Callable[[], float]) -> None:
        super().__init__(registry)
        self._monotonic = monotonic
        self._missing: dict[str, float] = {}  # node -> monotonic time since which it is missing

    def watches(self) -> dict[str, Mapper]:
        return {POD: itself, NODE: self._pods_of}

    def _pods_of(self, change: ObjectChange) -> list[Key]:
        name = change.object["metadata"]["name"]
        if change.type != "DELETED":
            self._missing.pop(name, None)
            return []
        return pods_on(self.registry, name)

    async def reconcile(self, key: Key) -> float | None:
        pod = self.registry.store.get(POD, *key)
        if pod is None:
            return None
        node = (pod.get("spec") or {}).get("nodeName")
        if not node:
            if pod["metadata"].get("deletionTimestamp"):
                await self._remove(key, pod)
            return None
        if self.registry.store.get(NODE, None, node) is not None:
            self._missing.pop(node, None)
            return None
        since = self._missing.setdefault(node, self._monotonic())
        left = since + QUARANTINE_SECONDS - self._monotonic()
        if left > 0:
            return left
        await self._remove(key, pod)
        return None

    async def _remove(self, key: Key, pod: Json) -> None:
        if not finished(pod):

            def fail(obj: Json) -> Json:
                status = {**(obj.get("status") or {}), "phase": "Failed"}
                return {**obj, "status": status}

            await ignore_missing(self.registry.modify(POD, *key, fail, SYSTEM, _STATUS))
        options = DeletionOptions(grace_period_seconds=0, uid=pod["metadata"]["uid"])
        await ignore_missing(self.registry.delete(POD, *key, SYSTEM, options))
