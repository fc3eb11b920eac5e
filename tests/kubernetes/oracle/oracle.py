"""Runs worlds through kube-scheduler and the product, and collects the differences."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from tests.kubernetes.oracle.controlplane import ControlPlane, InvalidObject
from tests.kubernetes.oracle.differences import Difference, Observed, differences
from tests.kubernetes.oracle.replay import OurScheduler
from tests.kubernetes.oracle.schedulerlog import KubeAttempt, SchedulerLog
from tests.kubernetes.oracle.worlds import NAMESPACES, World

PATHS: Final = {
    "Service": "/api/v1/namespaces/{}/services",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "CSINode": "/apis/storage.k8s.io/v1/csinodes",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{}/pods",
}
WATCHED: Final = (
    *("Node", "Pod", "Service", "ReplicaSet", "PodDisruptionBudget", "CSINode", "PersistentVolume"),
    *("PersistentVolumeClaim", "Namespace", "StorageClass"),
)
EVENTS: Final = "/apis/events.k8s.io/v1/namespaces/{}/events"
MERGE: Final = "application/merge-patch+json"
SETTLE_S: Final = 0.02
"""kube-scheduler does not log when it sees a service or a claim; nodes and pods, which it logs, are created later."""
CONDITION_S: Final = 10.0
POLL_S: Final = 0.01
PREEMPTED: Final = "Preemptor Pod preempted victim Pod"
STARTED, FINISHED = "Start the preemption asynchronously", "Async Preemption finished completely"
START_S: Final = 0.1
"""Within this time kube-scheduler begins to delete the victims that are not terminating yet."""
DELETED_ALREADY: Final = "Victim Pod is already being deleted, skipping the API call for it"


@dataclass
class Tally:
    """Results over all worlds."""

    worlds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)


class Oracle:
    """Worlds on one control plane, one after another. `settle`: seconds between objects and nodes."""

    def __init__(self, plane: ControlPlane, log: SchedulerLog) -> None:
        self._plane = plane
        self._log = log
        self._starts = 0
        self._displaced = False
        """Whether an attempt of the current world has evicted pods; they terminate until its end."""

    async def prepare(self) -> None:
        """Wait for kube-scheduler's stores, and create the namespaces."""
        for kind in WATCHED:
            await self._seen("Caches populated", f"*v1.{kind}")
        for name, labels in NAMESPACES.items():
            if name != "default":
                body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
                await self._plane.request("POST", "/api/v1/namespaces", body)

    async def run(self, world: World, tally: Tally, settle: float = SETTLE_S) -> list[Difference]:
        """One world. Everything is deleted at the end."""
        self._log.forget()
        try:
            async with OurScheduler() as ours:
                differences_found = await self._play(world, ours, tally, settle)
        finally:
            await self._wipe(world)
        tally.worlds += 1
        return differences_found

    async def _play(self, world: World, ours: OurScheduler, tally: Tally, settle: float) -> list[Difference]:
        for name in NAMESPACES:
            ours.set(await self._plane.request("GET", f"/api/v1/namespaces/{name}") | {"kind": "Namespace"})
        owners = {}
        for bodies in world.objects.values():
            for created in await asyncio.gather(*map(self._create, bodies)):
                ours.set(created)
                owners[created["metadata"]["name"]] = created
        for pod in (*world.bound, *world.pending):
            for reference in pod["metadata"].get("ownerReferences", ()):
                owner = owners[reference["name"]]
                reference |= {"controller": True, "uid": owner["metadata"]["uid"]}
        if any(world.objects.values()):
            await asyncio.sleep(settle)
        for created in await asyncio.gather(*map(self._create, world.nodes)):
            ours.set(created)
        made_pods = await asyncio.gather(*map(self._create_bound, world.bound))
        world.bound = [pod for pod, created in zip(world.bound, made_pods, strict=True) if created is not None]
        tally.counts["refused"] += made_pods.count(None)
        for created in filter(None, made_pods):
            ours.set(created)
        for node in world.nodes:
            await self._seen("Add event for node", node["metadata"]["name"])
        for pod in world.bound:
            await self._seen("Update event for scheduled pod", _key(pod))
        total: list[Difference] = []
        self._displaced = False
        for pod in world.pending:
            of_attempt = await self._attempt(world.seed, pod, ours, tally)
            if of_attempt is None:
                break
            total += of_attempt
        return total

    async def _attempt(self, seed: int, pod: Any, ours: OurScheduler, tally: Tally) -> list[Difference] | None:
        """The differences in the attempt for one pod. None: kube-scheduler tried an older pod again."""
        key, log = _key(pod), self._log
        try:
            ours.set(await self._create(pod))
        except InvalidObject:
            tally.counts["refused"] += 1
            return []
        if pod["spec"].get("schedulingGates"):
            await self._seen("Add event for unscheduled pod", key)
            tally.counts["gated"] += 1
            return [] if ours.gated(key) else [Difference(seed, key, "gated", True, False)]
        await log.until(lambda: key in log.attempts, f"an attempt for {key}")
        if sum(map(len, log.attempts.values())) != tally_of(log):
            tally.counts["cut"] += 1
            return None
        attempt = log.attempts[key][0]
        result = await ours.attempt(key)
        observed = await self._observe(attempt)
        tally.counts["scheduled" if attempt.node else "unschedulable"] += 1
        tally.counts["preemptions"] += bool(attempt.preempts_on)
        tally.counts["scored"] += bool(attempt.totals)
        if self._displaced and attempt.preempts_on and _spreads(pod):
            # kube-scheduler subtracts terminating pods from counts of topology spreading that do not contain them.
            tally.counts["spread of terminating pods"] += 1
            listed = []
        else:
            listed = differences(seed, observed, result, pod_level="resources" in pod["spec"])
        self._displaced = self._displaced or bool(observed.victims)
        await self._follow(attempt, observed, ours)
        return listed

    async def _observe(self, attempt: KubeAttempt) -> Observed:
        """What the attempt left in the API server."""
        log, key = self._log, attempt.pod
        if attempt.preempts_on:
            await log.until(
                lambda: (
                    log.counts["Async Preemption finished completely", key] > 0
                    or (
                        log.counts[DELETED_ALREADY, key] > 0
                        and not log.counts["Start the preemption asynchronously", key]
                    )
                ),
                f"the end of the preemption for {key}",
            )
        status = await self._status(key, attempt)
        victims = sorted(log.victims.get(key, ()))
        if attempt.node:
            return Observed(attempt, victims, status)
        return Observed(attempt, victims, status, await self._event(key))

    async def _status(self, key: str, attempt: KubeAttempt) -> Any:
        """The pod's status once kube-scheduler has written its condition."""
        async with asyncio.timeout(CONDITION_S):
            while True:
                pod = await self._plane.request("GET", self._pod(key))
                conditions = {condition["type"]: condition for condition in pod["status"].get("conditions", ())}
                condition = conditions.get("PodScheduled", {})
                nominated = bool(pod["status"].get("nominatedNodeName")) or not attempt.preempts_on
                if pod["spec"].get("nodeName") or (condition.get("status") == "False" and nominated):
                    return pod["status"]
                await asyncio.sleep(POLL_S)

    async def _event(self, key: str) -> tuple[str, str, str]:
        namespace, name = key.split("/")
        path = EVENTS.format(namespace) + "?fieldSelector=reason=FailedScheduling"
        async with asyncio.timeout(CONDITION_S):
            while True:
                for event in (await self._plane.request("GET", path))["items"]:
                    if event["regarding"]["name"] == name:
                        return event["type"], event["reason"], event["note"]
                await asyncio.sleep(POLL_S)

    async def _follow(self, attempt: KubeAttempt, observed: Observed, ours: OurScheduler) -> None:
        """Bring the product to the state that kube-scheduler's decision leads to."""
        key, log = attempt.pod, self._log
        if attempt.node:
            changed = await self._plane.request("PATCH", f"{self._pod(key)}/status", self._started(), patch=MERGE)
            ours.set(changed)
            await self._seen("Update event for scheduled pod", key)
            return
        await self._seen("Update event for unscheduled pod", key)
        for victim in observed.victims:
            await log.until(
                lambda victim=victim: log.counts["Update event for scheduled pod", victim] >= 3,  # type: ignore[misc]
                f"the deletion of {victim}",
            )
        for pod in (await self._plane.request("GET", "/api/v1/pods"))["items"]:
            ours.set(pod | {"kind": "Pod", "apiVersion": "v1"})

    async def _create(self, body: Any) -> Any:
        path = PATHS[body["kind"]].format(body["metadata"].get("namespace", ""))
        created = await self._plane.request("POST", path, body)
        if body["kind"] == "PodDisruptionBudget":
            created |= {"status": body["status"]}
            created = await self._plane.request("PUT", f"{path}/{body['metadata']['name']}/status", created)
        return created

    async def _create_bound(self, body: Any) -> Any:
        """A pod on a node, with the start time that its kubelet would have written. None: it is invalid."""
        try:
            await self._create(body)
        except InvalidObject:
            return None
        status = self._started()
        status["status"] |= body.get("status", {})
        return await self._plane.request("PATCH", f"{self._pod(_key(body))}/status", status, patch=MERGE)

    def _started(self) -> dict[str, Any]:
        """A start time that no other pod has: kube-scheduler's order of pods with equal times is undefined."""
        self._starts += 1
        at = datetime.fromtimestamp(1_700_000_000 + self._starts, UTC)
        return {"status": {"startTime": at.strftime("%Y-%m-%dT%H:%M:%SZ"), "phase": "Running"}}

    def _pod(self, key: str) -> str:
        namespace, name = key.split("/")
        return f"{PATHS['Pod'].format(namespace)}/{name}"

    async def _seen(self, message: str, about: str) -> None:
        await self._log.until(lambda: self._log.counts[message, about] > 0, f"{message}: {about}")

    async def _wipe(self, world: World) -> None:
        """Delete everything, and wait until kube-scheduler knows."""
        request = self._plane.request
        spaces = [namespace for namespace in NAMESPACES if namespace]
        await asyncio.gather(
            *(request("DELETE", PATHS["Pod"].format(name) + "?gracePeriodSeconds=0") for name in spaces),
            *(request("DELETE", EVENTS.format(name)) for name in spaces),
        )
        for kind in (kind for kind, bodies in world.objects.items() if bodies):
            path = PATHS[kind]
            for name in spaces if "{}" in path else ("",):
                await request("DELETE", path.format(name))
        await request("DELETE", PATHS["Node"])
        with contextlib.suppress(TimeoutError):
            for pod in world.bound:
                await self._seen("Delete event for scheduled pod", _key(pod))
            for node in world.nodes:
                if self._log.counts["Add event for node", node["metadata"]["name"]]:
                    await self._seen("Delete event for node", node["metadata"]["name"])


def tally_of(log: SchedulerLog) -> int:
    """Number of pods that were tried."""
    return len(log.attempts)


def _key(pod: Any) -> str:
    meta = pod["metadata"]
    return f"{meta['namespace']}/{meta['name']}"


def _spreads(pod: Any) -> bool:
    """Whether the pod has a constraint of topology spreading that a node must fulfil."""
    constraints = pod["spec"].get("topologySpreadConstraints", ())
    return any(constraint["whenUnsatisfiable"] == "DoNotSchedule" for constraint in constraints)
