"""A small cluster for job queueing: an API server in memory with faults, Kubernetes' Job controller, a kubelet that
runs every pod, and the process of the two controllers, which can be killed at every request.

Every kind is watched on a connection of its own: the caches of a process follow the server separately, and a process
that starts to lead may have caches of any earlier state. After each write the server checks that no quota holds more
admitted jobs than its max, and that only admitted jobs are resumed.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import random
from collections import Counter
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from control.manager.context import ManagerContext
from control.manager.options import ManagerOptions
from control.manager.queueing.jobcontroller import QueuedJobsController
from control.manager.queueing.queuecontroller import QueueController
from control.quota.amounts import from_list
from koordlet.api import names, registry
from koordlet.api.core import Job, Namespace, Node, Pod, PriorityClass
from koordlet.api.core.pod import ResourceList
from koordlet.api.crs.queueing import ADMITTED, DEQUEUED, RUNNING, Queue, QueueUnit
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Time
from koordlet.api.gates import MANAGER
from koordlet.app.flags import read
from koordlet.app.gates import FeatureGates
from koordlet.kube import Client, ClientConfig
from tests.control.descheduler.migration.world import (
    ApiStore,
    FakeInformer,
    FakeObjects,
    FakeTransport,
    Faults,
    Json,
    Killed,
    no_faults,
)
from tests.fakeclock import FakeClock

KINDS: dict[str, type[Any]] = {
    registry.resource_for(kind).plural: kind
    for kind in (Job, QueueUnit, Queue, ElasticQuota, Pod, Node, Namespace, PriorityClass)
}
JOBS, UNITS, PODS, QUOTAS = "jobs", "queueunits", "pods", "elasticquotas"
NAMESPACE = "default"
OLD_STATES = 20
"""Earlier states of the server that the caches of a new leader may have."""
START_S, BACKOFF_S = 30.0, 10.0


class QueueInformer(FakeInformer):
    """Like the real one it reports what exists to a new handler."""

    def add_handler(self, on_add: Any = None, on_update: Any = None, on_delete: Any = None) -> None:
        super().add_handler(on_add, on_update, on_delete)
        for obj in self.list():
            on_add(obj)


class QueueObjects(FakeObjects):
    """The caches of a process."""

    def informer(self, kind: type[Any]) -> FakeInformer:
        return self.informers.setdefault(kind, QueueInformer())


class QueueStore(ApiStore):
    """Keeps the last states of each kind. Documents are replaced, never changed."""

    def __init__(self) -> None:
        super().__init__()
        self.objects = {plural: {} for plural in KINDS}
        self.history: dict[str, list[dict[str, Json]]] = {plural: [{}] for plural in KINDS}

    def put(self, plural: str, document: Json) -> Json:
        stored = super().put(plural, {**document, "metadata": {**document["metadata"]}})
        self.record(plural)
        return stored

    def record(self, plural: str) -> None:
        states = self.history[plural]
        states.append(dict(self.objects[plural]))
        del states[:-OLD_STATES]


class QueueTransport(FakeTransport):
    """Requests of one process. Between request and answer the rest of the cluster goes on."""

    def __init__(self, world: QueueWorld) -> None:
        super().__init__(world.store, lambda method, path: world.faults(method, path), lambda pod: None)
        self._world = world
        self.dead = False

    async def request(self, method: str, path: str, **request: Any) -> bytes:
        await self._world.meanwhile()
        if self.dead:
            raise Killed
        try:
            return await super().request(method, path, **request)
        except Killed:
            self.dead = True
            raise
        finally:
            await self._world.meanwhile()
            if self.dead:
                raise Killed

    def _serve(self, method: str, path: str, request: Any) -> bytes:
        plural = path.rpartition("/")[2]
        if method == "GET" and plural in KINDS:
            return msgspec.json.encode({"metadata": {}, "items": [*self._store.objects[plural].values()]})
        return super()._serve(method, path, request)

    def _patch(self, plural: str, stored: Json, body: Json, sub: str) -> bytes:
        if plural == JOBS and body.get("spec", {}).get("suspend") is False:
            self._world.check_resumed(stored)
        if plural == UNITS and not sub and stored["status"].get("phase") in ADMITTED:
            self._world.violations.append(f"the spec of the admitted unit {stored['metadata']['name']} was changed")
        answer = super()._patch(plural, stored, body, sub)
        if plural == UNITS:
            self._world.check()
        return answer


class QueueWorld:
    """See the module text. `parents`: quota -> parent; all quotas: `limits`, in cores."""

    def __init__(self, limits: dict[str, int], parents: dict[str, str], rng: random.Random) -> None:
        self.rng = rng
        self.clock = FakeClock(1_800_000_000.0)
        self.store = QueueStore()
        self.store.now = self.clock.now
        self.faults: Faults = no_faults
        self.limits, self.parents = limits, parents
        self.violations: list[str] = []
        self.is_lively = False
        """Whether the cluster goes on during requests."""
        self.kills = 0
        self._serial = itertools.count(1)
        amounts = {"cpu": "1000"}
        self.store.put("nodes", {"metadata": {"name": "n"}, "status": {"allocatable": amounts, "capacity": amounts}})
        self.store.put("namespaces", {"metadata": {"name": NAMESPACE}})
        for name, cores in limits.items():
            labels = {names.LABEL_QUOTA_PARENT: parents.get(name, names.ROOT_QUOTA)}
            labels[names.LABEL_QUOTA_IS_PARENT] = str(name in parents.values()).lower()
            meta = {"name": name, "namespace": names.KOORDINATOR_NAMESPACE, "labels": labels}
            spec = {"min": {"cpu": str(cores)}, "max": {"cpu": str(cores)}}
            self.store.put(QUOTAS, {"metadata": meta, "spec": spec, "status": {}})
        self._tasks: list[asyncio.Task[None]] = []

    # The process

    async def restart(self, *, stale: bool = True, **caches: dict[str, Json]) -> None:
        """A new process leads. `stale`: its caches have any earlier state; `caches`: that of a kind."""
        await self.stop()
        self.transport = QueueTransport(self)
        client = Client(ClientConfig(server="http://test"), clock=self.clock, registry=CollectorRegistry())
        client.transport = self.transport  # type: ignore[assignment]
        gates = FeatureGates(MANAGER)
        gates.set({"JobQueueing": True})
        flags = [f"--job-queue-start-timeout={START_S:g}s", f"--job-queue-backoff={BACKOFF_S:g}s"]
        self.objects = QueueObjects()
        unused: Any = None
        context = ManagerContext(
            options=read(ManagerOptions, flags),
            gates=gates,
            client=client,
            caches=self.objects,  # type: ignore[arg-type]
            config=unused,
            events=unused,
            framework=CollectorRegistry(),
            internal=CollectorRegistry(),
            external=CollectorRegistry(),
        )
        self.queue, self.jobs = QueueController(context), QueuedJobsController(context)
        for plural in KINDS:
            states = self.store.history[plural]
            self._deliver(plural, caches.get(plural, self.rng.choice(states) if stale else states[-1]))
        for controller in (self.queue, self.jobs):
            self._tasks.append(asyncio.create_task(controller.run()))

    async def stop(self) -> None:
        """kill -9: nothing that the process still does reaches the server."""
        if self._tasks:
            self.transport.dead = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _deliver(self, plural: str, documents: dict[str, Json]) -> None:
        informer = self.objects.informer(KINDS[plural])
        known = {key: int(each.metadata.resource_version) for key, each in informer.known.items()}
        typed: dict[str, Any] = {key: wire.convert(each, KINDS[plural]) for key, each in documents.items()}
        assert all(int(each.metadata.resource_version) >= known.get(key, 0) for key, each in typed.items())
        informer.deliver(typed)

    def deliver(self, plural: str) -> None:
        """The cache of a kind catches up."""
        self._deliver(plural, self.store.objects[plural])

    async def meanwhile(self) -> None:
        """What happens during a request."""
        for _ in range(self.rng.randrange(3) if self.is_lively else 0):
            self.act()
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Time passes. A process that was killed is replaced."""
        await self.clock.advance(seconds)
        if any(task.done() for task in self._tasks):
            for task in self._tasks:
                if task.done() and not isinstance(task.exception(), Killed):
                    task.result()
            self.kills += 1
            await self.restart()

    # The rest of the cluster

    def act(self) -> None:
        """One event, if the cluster is lively."""
        if self.is_lively:
            plural = self.rng.choice((JOBS, UNITS, PODS, QUOTAS))
            self.rng.choice((self.run_pods, self.collect, lambda: self.deliver(plural), lambda: self.deliver(UNITS)))()

    def settle(self) -> None:
        """Everything but the process catches up."""
        self.run_pods()
        self.collect()
        for plural in KINDS:
            self.deliver(plural)

    def submit(self, queue: str, cores: int, *, suspend: bool = True, pods: int = 1, namespace: str = NAMESPACE) -> str:
        name = f"j{next(self._serial)}"
        container = {"name": "c", "resources": {"requests": {"cpu": str(cores)}}}
        meta = {"name": name, "namespace": namespace, "annotations": {names.ANNOTATION_QUEUE_NAME: queue}}
        template = {"metadata": {"labels": {}}, "spec": {"containers": [container]}}
        spec = {"suspend": suspend, "parallelism": pods, "template": template}
        self.store.put(JOBS, {"metadata": meta, "spec": spec, "status": {}})
        return name

    def run_pods(self) -> None:
        """Kubernetes' Job controller and the kubelet: pods of resumed jobs are ready at once."""
        for job in list(self.store.objects[JOBS].values()):
            if _ended(job) or "deletionTimestamp" in job["metadata"]:
                continue
            pods, status = self.pods_of(job), dict(job["status"])
            if job["spec"]["suspend"]:
                for pod in pods:
                    del self.store.objects[PODS][f"{NAMESPACE}/{pod['metadata']['name']}"]
                    self.store.record(PODS)
                status |= {"ready": 0, "active": 0}
                status.pop("startTime", None)
            else:
                for _ in range(job["spec"]["parallelism"] - len(pods)):
                    self._pod(job)
                ready = len(self.pods_of(job))
                status |= {"ready": ready, "active": ready}
                status.setdefault("startTime", str(Time.from_unix(self.clock.now())))
            if status != job["status"]:
                self.store.put(JOBS, {**job, "status": status})

    def _pod(self, job: Json) -> None:
        meta = job["metadata"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        template = copy.deepcopy(job["spec"]["template"])
        name = f"{meta['name']}-{next(self._serial)}"
        labels = template["metadata"]["labels"]
        pod = {"name": name, "namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner]}
        self.store.put(
            PODS, {"metadata": pod, "spec": {**template["spec"], "nodeName": "n"}, "status": {"phase": "Running"}}
        )

    def pods_of(self, job: Json) -> list[Json]:
        uid = job["metadata"]["uid"]
        pods = self.store.objects[PODS].values()
        return [pod for pod in pods if any(each["uid"] == uid for each in pod["metadata"]["ownerReferences"])]

    def finish(self, job: Json) -> None:
        """A running job ends."""
        for pod in self.pods_of(job):
            del self.store.objects[PODS][f"{NAMESPACE}/{pod['metadata']['name']}"]
            self.store.record(PODS)
        done = {"conditions": [{"type": "Complete", "status": "True"}], "ready": 0, "active": 0}
        self.store.put(JOBS, {**job, "status": {**job["status"], **done}})

    def delete(self, job: Json) -> None:
        """A user deletes a job with its pods; its unit goes later."""
        for pod in self.pods_of(job):
            del self.store.objects[PODS][f"{NAMESPACE}/{pod['metadata']['name']}"]
        del self.store.objects[JOBS][f"{NAMESPACE}/{job['metadata']['name']}"]
        for plural in (PODS, JOBS):
            self.store.record(plural)

    def collect(self) -> None:
        """Kubernetes' garbage collector: units whose job is gone, which a process with an old cache may have made."""
        jobs = {job["metadata"]["uid"] for job in self.store.objects[JOBS].values()}
        units = self.store.objects[UNITS]
        for key in [key for key, unit in units.items() if unit["metadata"]["ownerReferences"][0]["uid"] not in jobs]:
            del units[key]
            self.store.record(UNITS)

    # What the server holds

    def unit(self, name: str) -> Json:
        unit: Json = self.store.objects[UNITS].get(f"{NAMESPACE}/{name}", {"status": {}})
        return unit

    def job(self, name: str) -> Json:
        return self.store.objects[JOBS][f"{NAMESPACE}/{name}"]

    def running(self) -> list[Json]:
        return [job for job in self.store.objects[JOBS].values() if not _ended(job) and self.pods_of(job)]

    def open(self) -> list[Json]:
        return [job for job in self.store.objects[JOBS].values() if not _ended(job)]

    def admitted(self) -> Counter[str]:
        """Cores of the admitted units, by quota and its parents."""
        cores: Counter[str] = Counter()
        for unit in self.store.objects[UNITS].values():
            if unit["status"].get("phase") not in ADMITTED:
                continue
            quota: str | None = unit["status"]["quota"]
            amount = sum(_milli(each["resources"]) for each in unit["status"]["admissions"])
            while quota is not None:
                cores[quota] += amount
                quota = self.parents.get(quota)
        return cores

    def counted(self) -> Counter[str]:
        """What the process counts as used."""
        forest = self.queue._demand.forest
        quotas = {name: forest.get(name) for name in self.limits}
        return Counter({name: quota.used.get("cpu", 0) for name, quota in quotas.items() if quota is not None})

    def check(self) -> None:
        for name, cores in self.admitted().items():
            if cores > self.limits[name] * 1000:
                self.violations.append(f"{name} holds admitted jobs with {cores} of {self.limits[name] * 1000}")

    def check_resumed(self, job: Json) -> None:
        phase = self.unit(job["metadata"]["name"])["status"].get("phase")
        if phase not in (DEQUEUED, RUNNING):
            self.violations.append(f"{job['metadata']['name']} was resumed while its unit was {phase}")


def _ended(job: Json) -> bool:
    return bool(job["status"].get("conditions"))


def _milli(resources: dict[str, str]) -> int:
    return from_list(wire.convert(resources, ResourceList)).get("cpu", 0)
