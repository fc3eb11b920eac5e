"""A small cluster for the migration controller: an API server in memory with faults, and everything that reacts to it.

The server refuses what the real one refuses: outdated resource versions, names that exist, evictions against a budget,
preconditions that do not hold. `Faults` decides before and after each request whether it fails, whether its answer is
lost, and whether the process dies there. Informers deliver the server's state only when `World.deliver` is called.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from prometheus_client import CollectorRegistry

from control.descheduler.framework.evictor import EvictionProxy, PluginEvictor
from control.descheduler.framework.handle import LeaseReference, PluginHandle, ProcessParts
from control.descheduler.framework.limiter import EvictionLimiter, EvictionLimits
from control.descheduler.migration.decide.args import MigrationControllerArgs
from control.descheduler.migration.plugin import MigrationController
from control.descheduler.state.cluster import ClusterState
from control.standalone.patch.merge_patch import apply
from koordlet.api import registry
from koordlet.api.core import Pod
from koordlet.api.encoding import wire
from koordlet.api.gates import DESCHEDULER
from koordlet.api.meta import Status
from koordlet.app.gates import FeatureGates
from koordlet.kube import Client, ClientConfig, ConnectionFailed, EventRecorder
from koordlet.kube.errors import from_status
from tests.control.descheduler.migration.build import NOW, moment, owner
from tests.fakeclock import FakeClock

Json = dict[str, Any]
CLUSTER_SCOPED = ("podmigrationjobs", "reservations", "nodes")
JOBS, RESERVATIONS, PODS, SETS = "podmigrationjobs", "reservations", "pods", "replicasets"
NODES, DRAINS, GROUPS = "nodes", "drainnodes", "drainnodegroups"
LEASE = LeaseReference("koordinator-system", "koord-descheduler")


class Killed(BaseException):
    """kill -9 of the process."""


class Faults(Protocol):
    """Decides the fate of a request: "", "refuse", "lose" (the answer), "kill", "kill-after"."""

    def __call__(self, method: str, path: str) -> str: ...


def no_faults(method: str, path: str) -> str:
    return ""


class FaultAt:
    """The fate of one request, counted from 0. `met`: whether that request was made."""

    def __init__(self, number: int, fate: str) -> None:
        self._remaining, self._fate = number, fate
        self.met = False

    def __call__(self, method: str, path: str) -> str:
        self._remaining -= 1
        if self._remaining == -1:
            self.met = True
            return self._fate
        return ""


class ApiStore:
    """The objects as JSON, by plural and key."""

    def __init__(self) -> None:
        kinds = (JOBS, RESERVATIONS, PODS, SETS, NODES, DRAINS, GROUPS, "leases")
        self.objects: dict[str, dict[str, Json]] = {name: {} for name in kinds}
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self.now: Callable[[], float] = lambda: NOW

    def put(self, plural: str, document: Json) -> Json:
        meta = document["metadata"]
        meta.setdefault("uid", f"{plural}-{next(self._uids)}")
        meta.setdefault("creationTimestamp", moment(self.now()))
        meta["resourceVersion"] = str(next(self._versions))
        key = f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else meta["name"]
        self.objects[plural][key] = document
        return document


class FakeTransport:
    """Serves the requests of `Client`."""

    def __init__(self, store: ApiStore, faults: Faults, evicted: Callable[[Json], None]) -> None:
        self._store = store
        self.faults = faults
        self._evicted = evicted
        self.allowed_disruptions: Callable[[Json], bool] = lambda pod: True

    async def request(self, method: str, path: str, **request: Any) -> bytes:
        fate = self.faults(method, path)
        if fate == "kill":
            raise Killed
        if fate == "refuse":
            raise from_status(Status(code=503, reason="ServiceUnavailable", message="injected"))
        answer = self._serve(method, path, request)
        if fate == "kill-after":
            raise Killed
        if fate == "lose":
            raise ConnectionFailed(f"{method} {path}: the connection was lost")
        return answer

    async def close(self) -> None:
        """Nothing is open."""

    def _serve(self, method: str, path: str, request: Any) -> bytes:
        parts = path.split("/")[3 if path.startswith("/api/") else 4 :]
        namespace = ""
        if parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        plural, name, sub = [*parts, "", ""][:3]
        if plural == "events":
            return request["body"] or b"{}"
        objects = self._store.objects[plural]
        key = f"{namespace}/{name}" if namespace else name
        body: Any = msgspec.json.decode(request["body"]) if request.get("body") else None
        if method == "POST" and not name:
            name = body["metadata"]["name"]
            key = f"{namespace}/{name}" if namespace else name
            if key in objects:
                raise from_status(Status(code=409, reason="AlreadyExists", message=f"{key} exists"))
            return msgspec.json.encode(self._store.put(plural, {**body, "status": {}}))
        stored = objects.get(key)
        if stored is None:
            raise from_status(Status(code=404, reason="NotFound", message=f"{plural} {key} not found"))
        if method == "GET":
            return msgspec.json.encode(stored)
        if method == "PATCH":
            return self._patch(plural, stored, body, sub)
        if method == "POST" and sub == "eviction":
            return self._evict(stored, body)
        assert method == "DELETE" and plural != PODS, f"{method} {path}"
        _check_preconditions(stored, body)
        del objects[key]
        return b"{}"

    def _patch(self, plural: str, stored: Json, body: Json, sub: str) -> bytes:
        version = body.get("metadata", {}).get("resourceVersion")
        if version is not None and version != stored["metadata"]["resourceVersion"]:
            raise from_status(Status(code=409, reason="Conflict", message="the object has been modified"))
        body = {key: value for key, value in body.items() if (key == "status") == (sub == "status")}
        new = apply(copy.deepcopy(stored), body)
        return msgspec.json.encode(self._store.put(plural, new))

    def _evict(self, pod: Json, body: Json) -> bytes:
        _check_preconditions(pod, body["deleteOptions"])
        if "deletionTimestamp" not in pod["metadata"]:
            if not self.allowed_disruptions(pod):
                raise from_status(Status(code=429, reason="TooManyRequests", message="disruption budget"))
            pod["metadata"]["deletionTimestamp"] = moment(self._store.now())
            self._evicted(pod)
        self._store.put(PODS, pod)
        return b"{}"


def _check_preconditions(stored: Json, options: Json | None) -> None:
    uid = ((options or {}).get("preconditions") or {}).get("uid")
    if uid is not None and uid != stored["metadata"]["uid"]:
        raise from_status(Status(code=409, reason="Conflict", message="UID in precondition"))


class FakeInformer:
    """Objects and handlers of one kind."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self._handlers: list[tuple[Any, Any, Any]] = []

    def add_handler(self, on_add: Any = None, on_update: Any = None, on_delete: Any = None) -> None:
        self._handlers.append((on_add, on_update, on_delete))

    def get(self, key: str) -> Any:
        return self.known.get(key)

    def list(self) -> list[Any]:
        return [*self.known.values()]

    def deliver(self, objects: dict[str, Any]) -> None:
        for key, old in list(self.known.items()):
            new = objects.get(key)
            if new is None or new.metadata.uid != old.metadata.uid:
                del self.known[key]
                self._call(2, old)
        for key, new in objects.items():
            old = self.known.get(key)
            if old is None or old.metadata.resource_version != new.metadata.resource_version:
                self.known[key] = new
                if old is None:
                    self._call(0, new)
                else:
                    self._call(1, old, new)

    def _call(self, which: int, *arguments: Any) -> None:
        for handler in self._handlers:
            if handler[which] is not None:
                handler[which](*arguments)


class FakeObjects:
    """The `InformerSet`."""

    def __init__(self) -> None:
        self.informers: dict[type[Any], FakeInformer] = {}

    def informer(self, kind: type[Any]) -> FakeInformer:
        return self.informers.setdefault(kind, FakeInformer())


class World:
    """The cluster, and the process that runs in it now."""

    def __init__(self, args: MigrationControllerArgs, faults: Faults = no_faults, *, budget: int = 1) -> None:
        """`budget`: unavailable pods that the disruption budget of each workload allows."""
        self.args = args
        self.clock = FakeClock(NOW)
        self.store = ApiStore()
        self.store.now = self.clock.now
        self.evictions: list[Json] = []
        """pods as they were when their eviction was accepted"""
        self.violations: list[str] = []
        self.transport = FakeTransport(self.store, faults, self._check_eviction)
        self.transport.allowed_disruptions = lambda pod: self.unavailable(pod) < budget
        self.default_node = "n1"
        """where the scheduler places a pod without Reservation"""
        self._serial = itertools.count(1)
        self.store.put("leases", {"metadata": {"name": LEASE.name, "namespace": LEASE.namespace}, "spec": {}})
        self.restart()

    def restart(self) -> None:
        """A new process leads; it has read everything."""
        self.objects, self.state = FakeObjects(), ClusterState()
        pods = self.objects.informer(Pod)
        pods.add_handler(self.state.set_pod, lambda old, new: self.state.set_pod(new), self.state.remove_pod)
        client = Client(ClientConfig(server="http://test"), clock=self.clock, registry=CollectorRegistry())
        client.transport = self.transport  # type: ignore[assignment]
        parts = ProcessParts(
            state=self.state,
            objects=self.objects,  # type: ignore[arg-type]
            client=client,
            clock=self.clock,
            gates=FeatureGates(DESCHEDULER),
            registry=CollectorRegistry(),
            dry_run=False,
            interval_s=0.0,
            lease=LEASE,
        )
        proxy = EvictionProxy("p", EvictionLimiter(EvictionLimits()), dry_run=False)
        events = EventRecorder(client, "p")
        handle = PluginHandle(parts, "p", "MigrationController", PluginEvictor(proxy, "MigrationController"), events)
        self.plugin = MigrationController(self.args, handle)
        self.migration = self.plugin._migration
        self.extend(handle)
        self.deliver()
        self.migration.lead()

    def extend(self, handle: PluginHandle) -> None:
        """Construct further parts of the process, before it has read anything."""

    def deliver(self) -> None:
        """The informers catch up with the server."""
        for kind, informer in self.objects.informers.items():
            plural = registry.resource_for(kind).plural
            documents = self.store.objects.get(plural, {})
            informer.deliver({key: wire.convert(copy.deepcopy(each), kind) for key, each in documents.items()})

    # The controller

    async def run_jobs(self) -> None:
        """One look at every job that may run."""
        for job in list(self.migration.book.all()):
            await self.migration.reconcile(job.metadata.uid)

    # Everything else in the cluster

    def workload(self, name: str, replicas: int, nodes: list[str]) -> None:
        spec = {"replicas": replicas, "selector": {}, "template": {}}
        meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
        self.store.put(SETS, {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta, "spec": spec})
        for number in range(replicas):
            self.pod(name, nodes[number % len(nodes)])

    def pod(self, by: str, node: str) -> Json:
        meta = {
            "name": f"{by}-{next(self._serial)}",
            "namespace": "default",
            "ownerReferences": [owner("ReplicaSet", by)],
        }
        spec = {"nodeName": node, "schedulerName": "koord-scheduler", "containers": [{"name": "c"}]}
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        return self.store.put(PODS, {"metadata": meta, "spec": spec, "status": status})

    def unavailable(self, pod: Json) -> int:
        """Pods that the workload of `pod` lacks."""
        by = pod["metadata"]["ownerReferences"][0]["uid"]
        replicas = next(each["spec"]["replicas"] for each in self.sets() if each["metadata"]["uid"] == by)
        serving = [each for each in self.members(by) if "deletionTimestamp" not in each["metadata"] and _ready(each)]
        return int(replicas) - len(serving)

    def sets(self) -> list[Json]:
        return list(self.store.objects[SETS].values())

    def members(self, by: str) -> list[Json]:
        pods = self.store.objects[PODS].values()
        return [pod for pod in pods if any(each["uid"] == by for each in pod["metadata"]["ownerReferences"])]

    def schedule_reservations(self, node: str | None) -> None:
        """koord-scheduler binds every pending Reservation to a node; None: there is no room."""
        for each in list(self.store.objects[RESERVATIONS].values()):
            if each["status"].get("phase", "Pending") == "Pending":
                condition = {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
                each["status"] = {"phase": "Pending", "conditions": [condition]}
                if node is not None:
                    condition = {"type": "Scheduled", "status": "True", "reason": "Scheduled"}
                    each["status"] = {"phase": "Available", "nodeName": node, "conditions": [condition]}
                self.store.put(RESERVATIONS, each)

    def expire_reservations(self) -> None:
        for each in list(self.store.objects[RESERVATIONS].values()):
            if each["status"].get("phase") == "Available":
                each["status"]["phase"] = "Failed"
                each["status"]["conditions"].append({"type": "Ready", "status": "False", "reason": "Expired"})
                self.store.put(RESERVATIONS, each)

    def delete_reservations(self) -> None:
        self.store.objects[RESERVATIONS].clear()

    def finish_terminations(self) -> None:
        """The kubelet removes terminating pods, and ReplicaSets replace missing ones."""
        pods = self.store.objects[PODS]
        for key in [key for key, pod in pods.items() if "deletionTimestamp" in pod["metadata"]]:
            del pods[key]
        for each in self.sets():
            while len(self.members(each["metadata"]["uid"])) < each["spec"]["replicas"]:
                self._replace(each["metadata"]["name"])

    def _replace(self, by: str) -> None:
        """A new pod; it consumes an available Reservation of its ReplicaSet."""
        for each in self.store.objects[RESERVATIONS].values():
            owners = [owner.get("controller", {}).get("name") for owner in each["spec"]["owners"]]
            if each["status"].get("phase") == "Available" and by in owners:
                pod = self.pod(by, each["status"]["nodeName"])
                meta = pod["metadata"]
                owner_ref = {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
                each["status"] |= {"phase": "Succeeded", "currentOwners": [owner_ref]}
                self.store.put(RESERVATIONS, each)
                return
        self.pod(by, self.default_node)

    def kill_pod(self, number: int) -> None:
        """A pod dies without the descheduler."""
        keys = sorted(self.store.objects[PODS])
        if keys:
            del self.store.objects[PODS][keys[number % len(keys)]]

    # Invariants

    def jobs(self) -> list[Json]:
        return list(self.store.objects[JOBS].values())

    def _check_eviction(self, pod: Json) -> None:
        """Called when the server accepts an eviction."""
        self.evictions.append(copy.deepcopy(pod))
        meta = pod["metadata"]
        jobs = [job for job in self.jobs() if job["spec"]["podRef"].get("uid") == meta["uid"] and _running(job)]
        if len(jobs) != 1:
            self.violations.append(f"{meta['name']} was evicted with {len(jobs)} running jobs")
            return
        if (jobs[0]["spec"].get("mode") or self.args.default_job_mode) == "EvictDirectly":
            return
        options = jobs[0]["spec"].get("reservationOptions", {})
        reserved = self.store.objects[RESERVATIONS].get(options.get("reservationRef", {}).get("name", ""))
        if reserved is None or reserved["status"].get("phase") != "Available":
            self.violations.append(f"{meta['name']} was evicted without an available Reservation")
        elif reserved["status"]["nodeName"] == pod["spec"]["nodeName"]:
            self.violations.append(f"{meta['name']} was evicted with a Reservation on its own node")

    def check_limits(self) -> None:
        """Limits of the configuration, counted on the server."""
        running = [job for job in self.jobs() if _running(job)]
        if self.args.max_migrating_globally and len(running) > self.args.max_migrating_globally:
            self.violations.append(f"{len(running)} jobs run")
        nodes: dict[str, int] = {}
        for job in running:
            ref = job["spec"]["podRef"]
            pod = self.store.objects[PODS].get(f"{ref['namespace']}/{ref['name']}")
            if pod is not None:
                nodes[pod["spec"]["nodeName"]] = nodes.get(pod["spec"]["nodeName"], 0) + 1
        most = max(nodes.values(), default=0)
        if self.args.max_migrating_per_node and most > self.args.max_migrating_per_node:
            self.violations.append(f"{most} jobs run on one node")


def _running(job: Json) -> bool:
    return bool(job["status"].get("phase") == "Running")


def _ready(pod: Json) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"]["conditions"])
