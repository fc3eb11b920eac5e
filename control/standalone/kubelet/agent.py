"""The kubelet itself: registers the node, sends its heartbeats, and runs one worker per pod.

The start order matters for the recovery after a kill -9: first the runtime finds its containers, then workers adopt
the pods of the state files, and only then the API server is read. Pods that it no longer has are terminated once
its list is complete. An unavailable API server never stops running pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from control.standalone.kubelet.cgroups.pods import PodCgroups
from control.standalone.kubelet.node.apirequests import NodeApi
from control.standalone.kubelet.node.machine import MachineCapacity
from control.standalone.kubelet.node.sources import PodSource
from control.standalone.kubelet.node.status import NodeResources, labels, lease, node_conditions, node_status
from control.standalone.kubelet.pods.admission import admit
from control.standalone.kubelet.pods.backoff import CrashLoopBackoff
from control.standalone.kubelet.pods.environ import DownwardNodeInfo, Lookup
from control.standalone.kubelet.pods.security import reaches_node
from control.standalone.kubelet.pods.spec import ParsedPod
from control.standalone.kubelet.pods.state import PodStore
from control.standalone.kubelet.pods.status import PhaseDecision
from control.standalone.kubelet.pods.statusmanager import StatusManager
from control.standalone.kubelet.pods.volumes import TokenWish
from control.standalone.kubelet.pods.worker import PodWorker
from control.standalone.kubelet.pods.workercontext import ApiUnavailable, PodWorkerContext
from control.standalone.kubelet.runtimes.runtime import ContainerRuntime, RuntimeContainer, RuntimeFailure
from koordlet.api.encoding.quantity import Quantity, QuantityError
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.app.periodic import Periodic
from koordlet.app.tasks import end_tasks
from koordlet.kube.errors import Conflict, KubeError

log = get_logger(__name__)

REPORT_SECONDS = 300.0
"""An unchanged Node status is sent again after this time."""


class PodEventSink(Protocol):
    """Records Events; must not block and not raise."""

    def event(self, raw: Mapping[str, Any], kind: str, reason: str, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The facts about the node, computed before the start."""

    name: str
    ip: str
    machine: MachineCapacity
    resources: NodeResources
    kubelet_version: str
    extra_labels: Mapping[str, str]
    status_period: float
    lease_seconds: int
    service_env: Sequence[tuple[str, str]] = ()
    privileged_namespaces: Collection[str] = ()
    """Only pods there may use the node's files, namespaces and more capabilities."""


class Kubelet:
    """Runs the pods of the source between `start` and `stop`, and reports the node."""

    name = "kubelet"

    def __init__(
        self,
        config: NodeConfig,
        api: NodeApi,
        source: PodSource,
        runtime: ContainerRuntime,
        cgroups: PodCgroups,
        store: PodStore,
        recorder: PodEventSink,
        clock: Clock,
    ) -> None:
        self.config = config
        self.runtime = runtime
        self.cgroups = cgroups
        self._api = api
        self._source = source
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._port = 0
        self.node: dict[str, Any] = {}
        self.registered = asyncio.Event()
        self.statuses = StatusManager(api, clock)
        self.workers: dict[str, PodWorker] = {}
        self._active: frozenset[str] | None = None
        self._reported: tuple[float, dict[str, Any]] | None = None
        self._orphans: asyncio.Task[None] | None = None
        allocatable = config.resources.allocatable
        self.worker_context = PodWorkerContext(
            runtime=runtime,
            cgroups=cgroups,
            store=store,
            clock=clock,
            backoff=CrashLoopBackoff(),
            node=DownwardNodeInfo(
                config.name,
                config.ip,
                allocatable["cpu"].milli_value(),
                allocatable["memory"].value(),
                config.service_env if runtime.isolates else (),
            ),
            memory_capacity=config.machine.memory,
            host=self,
        )
        self._beats = [
            Periodic("node-status", config.status_period, self._report_node, clock=clock),
            Periodic("node-lease", config.lease_seconds / 4, self._renew_lease, clock=clock),
        ]

    async def start(self, port: int) -> None:
        """`port`: of the HTTPS endpoints, for the Node."""
        self._port = port
        self.cgroups.setup()
        self.runtime.on_exit(self._container_ended)
        await self.runtime.load()
        for uid, state in self._store.load():
            worker = self.workers[uid] = PodWorker(self.worker_context, state.raw, state)
            log.info("Adopted pod", pod=f"{worker.namespace}/{worker.pod_name}", uid=uid)
        self._update_qos()
        for worker in list(self.workers.values()):
            worker.start()
        await self.statuses.start()
        await self._source.start(self)
        self._orphans = asyncio.create_task(self._drop_orphans(), name="orphans")
        for beat in self._beats:
            await beat.start()

    async def stop(self) -> None:
        """Stop managing the pods; their processes keep running."""
        for beat in self._beats:
            await beat.stop()
        await end_tasks(self._orphans)
        await self._source.stop()
        for worker in list(self.workers.values()):
            await worker.stop()
        await self.statuses.stop()

    async def cleanup(self) -> None:
        """Kill all containers and remove all cgroups that this kubelet made; call after `stop`."""
        await asyncio.gather(*(worker.kill_now() for worker in self.workers.values()))
        for info in self.runtime.containers():
            await self.runtime.remove(info.id)
        remaining = self.cgroups.teardown()
        if remaining:
            log.warning("Cannot remove cgroups that other processes use", cgroups=remaining)

    async def _drop_orphans(self) -> None:
        """Remove pods that are not in the API's complete list: they were deleted while the kubelet did not run."""
        await self._source.synced.wait()
        for worker in list(self.workers.values()):
            if not worker.seen:
                worker.removed()
        for info in self.runtime.containers():
            if info.pod_uid not in self.workers:
                log.info("Removing a container without a pod", container=info.id, pod_uid=info.pod_uid)
                try:
                    await self.runtime.remove(info.id)
                except (RuntimeFailure, OSError) as error:
                    log.error("Cannot remove a container without a pod", container=info.id, err=error)

    # The methods of sources.PodSourceListener.

    def pod_seen(self, raw: Mapping[str, Any]) -> None:
        uid = raw["metadata"].get("uid")
        if not uid:
            log.error("Ignoring a pod without uid", pod=raw["metadata"].get("name"))
            return
        worker = self.workers.get(uid)
        if worker is None:
            worker = self.workers[uid] = PodWorker(self.worker_context, raw)
            worker.seen = True
            worker.start()
            return
        worker.seen = True
        worker.update(raw)
        if self.statuses.lost(uid, raw.get("status")):
            self.publish(worker)

    def pod_gone(self, uid: str) -> None:
        worker = self.workers.get(uid)
        if worker is not None:
            worker.removed()

    def node_seen(self, raw: Mapping[str, Any]) -> None:
        self.node = dict(raw)

    # The methods of workercontext.KubeletInterface.

    def event(self, raw: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        self._recorder.event(raw, kind, reason, message)

    def publish(self, worker: PodWorker) -> None:
        if not worker.gone and worker.status.get("phase"):
            self.statuses.set(worker.uid, worker.namespace, worker.pod_name, worker.status)
        self._update_qos()

    async def lookup(self, namespace: str, references: set[tuple[str, str]]) -> Lookup:
        data: dict[tuple[str, str], Mapping[str, str] | None] = {}
        for kind, name in references:
            try:
                data[kind, name] = await self._api.config_data(kind, namespace, name)
            except KubeError as error:
                raise ApiUnavailable(f"failed to get {kind} {namespace}/{name}: {error}") from error
        return lambda kind, name: data[kind, name]

    async def token(self, pod: ParsedPod, wish: TokenWish) -> str:
        reference = {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        try:
            return await self._api.account_token(reference, pod.service_account, wish.audience, wish.seconds)
        except KubeError as error:
            account = f"{pod.namespace}/{pod.service_account}"
            raise ApiUnavailable(f"failed to get a token of ServiceAccount {account}: {error}") from error

    async def finalize(self, worker: PodWorker) -> None:
        if worker.gone:
            return
        await self.statuses.finalize(worker.uid, worker.namespace, worker.pod_name)

    async def admit(self, worker: PodWorker) -> PhaseDecision | None:
        """Decide with the Node as last seen; before a rejection, read the Node again and repeat."""
        decision = self._admit(worker)
        if decision is not None:
            try:
                fresh = await self._api.get_node()
            except KubeError as error:
                log.warning("Admission uses the Node as last seen", pod=worker.pod_name, err=error)
            else:
                self.node = fresh or self.node
                decision = self._admit(worker)
        if decision is None:
            worker.admitted = True
            self._update_qos()
        return decision

    def _admit(self, worker: PodWorker) -> PhaseDecision | None:
        assert worker.spec is not None
        reached = reaches_node(worker.spec) if self.runtime.isolates else None
        if reached is not None and worker.namespace not in self.config.privileged_namespaces:
            message = f"{reached} is allowed in the namespaces of --privileged-namespaces only"
            return PhaseDecision("PrivilegesNotAllowed", f"Pod was rejected: {message}")
        admitted = [
            w.spec for w in self.workers.values() if w is not worker and w.admitted and w.spec and not w.finished
        ]
        node_labels = (self.node.get("metadata") or {}).get("labels") or self._labels()
        return admit(worker.raw, worker.spec, admitted, self._allocatable(), node_labels)

    def _allocatable(self) -> dict[str, Quantity]:
        """The kubelet's own resources, plus those that others (koord-manager, device plug-ins) put into the status."""
        out: dict[str, Quantity] = {}
        for name, text in ((self.node.get("status") or {}).get("allocatable") or {}).items():
            try:
                out[name] = Quantity(str(text))
            except QuantityError as error:
                log.once(f"allocatable:{name}:{text}", "Ignoring an invalid allocatable", resource=name, err=error)
        return out | self.config.resources.allocatable

    def forget(self, worker: PodWorker) -> None:
        if self.workers.get(worker.uid) is worker:
            del self.workers[worker.uid]
        self.statuses.forget(worker.uid)
        self._update_qos()

    def active_specs(self) -> list[ParsedPod]:
        return [w.spec for w in self.workers.values() if w.admitted and w.spec is not None and not w.finished]

    def _update_qos(self) -> None:
        specs = self.active_specs()
        active = frozenset(spec.uid for spec in specs)
        if active == self._active:
            return
        self._active = active
        try:
            self.cgroups.update_qos(specs)
        except OSError as error:
            log.error("Cannot update the cgroups of the QoS classes", err=error)
            self._active = None

    def _container_ended(self, info: RuntimeContainer) -> None:
        worker = self.workers.get(info.pod_uid)
        if worker is not None:
            worker.container_ended(info)

    def _labels(self) -> dict[str, str]:
        return labels(self.config.machine, self.config.name, self.config.extra_labels)

    def _status(self) -> dict[str, Any]:
        old = {c.get("type"): c for c in (self.node.get("status") or {}).get("conditions") or []}
        return node_status(
            self.config.machine,
            self.config.resources,
            address=self.config.ip,
            hostname=self.config.name,
            port=self._port,
            kubelet_version=self.config.kubelet_version,
            runtime_version=f"{self.runtime.name}://{self.runtime.version}",
            conditions=node_conditions(old, self._clock.now()),
        )

    async def _report_node(self) -> None:
        if not self.registered.is_set():
            await self._register()
        status = self._status()
        bare = {**status, "conditions": [_without_heartbeat(c) for c in status["conditions"]]}
        now = self._clock.monotonic()
        server = self.node.get("status") or {}
        unchanged = self._reported is not None and self._reported[1] == bare and _includes(server, bare)
        if unchanged and self._reported is not None and now - self._reported[0] < REPORT_SECONDS:
            return
        self.node = await self._api.patch_node_status({"status": status})
        self._reported = (now, bare)

    async def _register(self) -> None:
        node = await self._api.get_node()
        if node is None:
            body = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": self.config.name, "labels": self._labels()},
                "spec": {},
                "status": self._status(),
            }
            try:
                node = await self._api.create_node(body)
            except Conflict:  # another client created it between the two requests
                node = await self._api.get_node() or {}
        self.node = node
        labels = (node.get("metadata") or {}).get("labels") or {}
        missing = {k: v for k, v in self._labels().items() if labels.get(k) != v}
        if missing:
            self.node = await self._api.patch_node({"metadata": {"labels": missing}})
        self.registered.set()
        log.info("Registered node", node=self.config.name)
        self._recorder.event(self.node_reference(), "Normal", "Starting", "Starting kubelet.")

    def node_reference(self) -> dict[str, Any]:
        meta = self.node.get("metadata") or {}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.config.name, "uid": meta.get("uid", "")},
        }

    async def _renew_lease(self) -> None:
        await self.registered.wait()
        uid = (self.node.get("metadata") or {}).get("uid", "")
        await self._api.renew_lease(lease(self.config.name, uid, self._clock.now(), self.config.lease_seconds))


def _without_heartbeat(condition: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in condition.items() if k not in ("lastHeartbeatTime", "lastTransitionTime")}


def _includes(server: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether the API server's status still has the values of `ours`; another client may have changed them."""
    for field in ("capacity", "allocatable"):
        server_amounts = server.get(field) or {}
        if any(server_amounts.get(name) != text for name, text in ours[field].items()):
            return False
    conditions = {c.get("type"): c.get("status") for c in server.get("conditions") or []}
    if any(conditions.get(c["type"]) != c["status"] for c in ours["conditions"]):
        return False
    port = ((server.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
    return bool(port == ours["daemonEndpoints"]["kubeletEndpoint"]["Port"])
