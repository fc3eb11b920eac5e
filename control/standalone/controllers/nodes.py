"""Nodes without heartbeat: conditions become Unknown, taints follow, pods that don't tolerate them are deleted.

A node is alive while its Lease in kube-node-lease is renewed (or its Ready condition's heartbeat changes). The time of
a renewal is when this controller observed it, not the node's clock, so that clock skew and a restart of the server
don't matter: after a start every node has the full grace period.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from control.standalone.controllers import conditions
from control.standalone.controllers.base import EmbeddedController, Key, Mapper, ignore_missing, itself, pods_on
from control.standalone.deletion import DeletionOptions
from control.standalone.kinds import NODE, POD
from control.standalone.objectmeta import parse_timestamp, timestamp
from control.standalone.policyinterfaces import SYSTEM
from control.standalone.registry import ObjectChange, ObjectRegistry, WriteOptions

Json = dict[str, Any]

GRACE_SECONDS = 40.0
LEASES, LEASE_NAMESPACE = "coordination.k8s.io/leases", "kube-node-lease"
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_PRESSURE = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
_MANAGED = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE, *_PRESSURE.values()})
_SILENT = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_WRITE = WriteOptions(field_manager="kube-controller-manager")
_STATUS = WriteOptions(subresource="status", field_manager="kube-controller-manager")


class NodeLifecycle(EmbeddedController):
    name = "node-lifecycle"

    def __init__(self, registry: ObjectRegistry, monotonic: Callable[[], float]) -> None:
        super().__init__(registry)
        self._monotonic = monotonic
        self._observed: dict[str, tuple[tuple[Any, Any], float]] = {}
        """Node -> ((renewTime, lastHeartbeatTime), monotonic time at which they changed)."""
        self._marked: set[str] = set()
        """Nodes without heartbeats whose pods were marked as not ready: without a kubelet no pod becomes ready
        there."""

    def watches(self) -> dict[str, Mapper]:
        return {NODE: itself, LEASES: _node_of_lease}

    def prepare(self) -> None:
        self._observed.clear()
        self._marked.clear()

    async def reconcile(self, key: Key) -> float | None:
        name = key[1]
        node = self.registry.find(NODE, None, name)
        if node is None:
            self._observed.pop(name, None)
            self._marked.discard(name)
            return None
        silent = self._monotonic() - self._last_seen(name, node)
        if silent >= GRACE_SECONDS:
            await self._mark_unknown(name, node)
            node = self.registry.find(NODE, None, name) or node
        else:
            self._marked.discard(name)
        await self._set_taints(name, desired_taints(node))
        return max(0.5, GRACE_SECONDS - silent) if silent < GRACE_SECONDS else GRACE_SECONDS

    def _last_seen(self, name: str, node: Json) -> float:
        lease = self.registry.store.get(LEASES, LEASE_NAMESPACE, name)
        ready = conditions.find((node.get("status") or {}).get("conditions"), "Ready") or {}
        observed = self._observed.get(name)
        renewed = ((lease or {}).get("spec") or {}).get("renewTime")
        if ready.get("reason") == "NodeStatusUnknown":  # set by this controller, not a heartbeat
            heartbeat = observed[0][1] if observed is not None else None
        else:
            heartbeat = ready.get("lastHeartbeatTime")
        if observed is None or observed[0] != (renewed, heartbeat):
            observed = self._observed[name] = ((renewed, heartbeat), self._monotonic())
        return observed[1]

    async def _mark_unknown(self, name: str, node: Json) -> None:
        now = timestamp(self.now)

        def change(obj: Json) -> Json | None:
            status = obj.setdefault("status", {})
            rows = list(status.get("conditions") or [])
            for kind in _SILENT:
                condition = conditions.find(rows, kind)
                if condition is None or condition.get("status") != "Unknown":
                    rows = conditions.put(
                        rows, kind, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", now
                    )
            if rows == status.get("conditions"):
                return None
            status["conditions"] = rows
            return obj

        await ignore_missing(self.registry.modify(NODE, None, name, change, SYSTEM, _STATUS))
        if name in self._marked:  # reading all pods once per node and interval took most of a large cluster's CPU time
            return
        for pod in self.registry.store.list(POD):
            if (pod.get("spec") or {}).get("nodeName") == name and conditions.is_true(pod, "Ready"):
                await self._pod_not_ready(pod, now)
        self._marked.add(name)

    async def _pod_not_ready(self, pod: Json, now: str) -> None:
        def change(obj: Json) -> Json | None:
            status = obj.get("status") or {}
            rows = conditions.put(status.get("conditions"), "Ready", "False", "NodeNotReady", "", now)
            return {**obj, "status": {**status, "conditions": rows}}

        metadata = pod["metadata"]
        write = self.registry.modify(POD, metadata["namespace"], metadata["name"], change, SYSTEM, _STATUS)
        await ignore_missing(write)

    async def _set_taints(self, name: str, desired: list[Json]) -> None:
        now = timestamp(self.now)

        def change(obj: Json) -> Json | None:
            spec = obj.setdefault("spec", {})
            present = list(spec.get("taints") or [])
            kept = [each for each in present if each.get("key") not in _MANAGED or _in(each, desired)]
            added = [dict(each) for each in desired if not _in(each, present)]
            for each in added:
                if each["effect"] == "NoExecute":
                    each["timeAdded"] = now
            if not added and kept == present:
                return None
            spec["taints"] = kept + added
            if not spec["taints"]:
                del spec["taints"]
            return obj

        await ignore_missing(self.registry.modify(NODE, None, name, change, SYSTEM, _WRITE))


def desired_taints(node: Json) -> list[Json]:
    """The taints that follow from a node's conditions and spec.unschedulable."""
    rows = (node.get("status") or {}).get("conditions")
    out: list[Json] = []
    ready = conditions.find(rows, "Ready")
    if ready is not None and ready.get("status") == "Unknown":
        out += [{"key": UNREACHABLE, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
    elif ready is None:
        out.append({"key": NOT_READY, "effect": "NoSchedule"})
    elif ready.get("status") == "False":
        out += [{"key": NOT_READY, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
    for kind, key in _PRESSURE.items():
        condition = conditions.find(rows, kind)
        if condition is not None and condition.get("status") == "True":
            out.append({"key": key, "effect": "NoSchedule"})
    if (node.get("spec") or {}).get("unschedulable"):
        out.append({"key": UNSCHEDULABLE, "effect": "NoSchedule"})
    return out


def _in(taint: Json, taints: list[Json]) -> bool:
    return any(each.get("key") == taint["key"] and each.get("effect") == taint["effect"] for each in taints)


def _node_of_lease(change: ObjectChange) -> list[Key]:
    metadata = change.object["metadata"]
    return [("", metadata["name"])] if metadata.get("namespace") == LEASE_NAMESPACE else []


class TaintEviction(EmbeddedController):
    """Deletes pods that don't tolerate a NoExecute taint of their node, or whose tolerationSeconds have passed."""

    name = "taint-eviction"

    def watches(self) -> dict[str, Mapper]:
        return {POD: self._bound, NODE: self._pods_of}

    def _bound(self, change: ObjectChange) -> list[Key]:
        obj = change.object
        if change.type == "DELETED" or not (obj.get("spec") or {}).get("nodeName"):
            return []
        return itself(change)

    def _pods_of(self, change: ObjectChange) -> list[Key]:
        name = change.object["metadata"]["name"]
        if not no_execute(change.object):
            return []
        return pods_on(self.registry, name)

    async def reconcile(self, key: Key) -> float | None:
        pod = self.registry.store.get(POD, *key)
        if pod is None or pod["metadata"].get("deletionTimestamp"):
            return None
        node = self.registry.store.get(NODE, None, (pod.get("spec") or {}).get("nodeName", ""))
        due = eviction_time(pod, no_execute(node or {}), self.now)
        if due is None:
            return None
        if due > self.now:
            return due - self.now
        options = DeletionOptions(uid=pod["metadata"]["uid"])
        await ignore_missing(self.registry.delete(POD, *key, SYSTEM, options))
        return None


def no_execute(node: Json) -> list[Json]:
    return [each for each in (node.get("spec") or {}).get("taints") or () if each.get("effect") == "NoExecute"]


def eviction_time(pod: Json, taints: list[Json], now: float) -> float | None:
    """The time at which a pod must be deleted because of its node's NoExecute taints; None: it may stay."""
    due: float | None = None
    tolerations = (pod.get("spec") or {}).get("tolerations") or ()
    for taint in taints:
        fitting = [each for each in tolerations if _tolerates(each, taint)]
        if not fitting:
            return now
        since = parse_timestamp(taint["timeAdded"]) if taint.get("timeAdded") else now
        limits = [each["tolerationSeconds"] for each in fitting if each.get("tolerationSeconds") is not None]
        if limits:
            end = since + max(0, min(limits))
            due = end if due is None else min(due, end)
    return due


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if key and key != taint["key"]:
        return False
    return operator == "Exists" or (bool(key) and (toleration.get("value") or "") == (taint.get("value") or ""))
