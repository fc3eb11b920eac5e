"""The migration controller against the embedded API server: its ReplicaSets, budgets and garbage collection, and
koord-scheduler for pods and Reservations. The nodes' kubelets are part of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
import yaml
from prometheus_client import CollectorRegistry

from control.descheduler.framework.evictor import EvictionProxy, PluginEvictor
from control.descheduler.framework.handle import PluginHandle, ProcessParts
from control.descheduler.framework.limiter import EvictionLimiter, EvictionLimits
from control.descheduler.framework.plugin import EvictOptions
from control.descheduler.migration.decide.args import MigrationControllerArgs
from control.descheduler.migration.plugin import MigrationController
from control.descheduler.state.cluster import ClusterState
from control.descheduler.state.objects import descheduler_objects, follow
from control.scheduler.config.shipped import configuration
from control.scheduler.process.options import SchedulerOptions
from control.scheduler.process.process import Scheduler
from control.standalone.apiserver import ApiServer
from control.standalone.controllers import nodes
from koordlet.api.core import Event, Node, Pod
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.crs.reservation import Reservation
from koordlet.api.encoding import crdgen, wire
from koordlet.api.gates import DESCHEDULER
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.app.clock import SYSTEM_CLOCK
from koordlet.app.flags import read
from koordlet.app.gates import FeatureGates
from koordlet.kube import Client, ClientConfig, EventRecorder, PatchKind
from tests.ports import free_port

T = TypeVar("T")


async def _until(check: Callable[[], Awaitable[T | None]], seconds: float = 120.0) -> T:
    async with asyncio.timeout(seconds):
        while True:
            outcome = await check()
            if outcome:
                return outcome
            await asyncio.sleep(0.05)


class Cluster:
    """An API server with nodes, a scheduler, and kubelets that start and end every pod at once."""

    def __init__(self, admin: Client) -> None:
        self.admin = admin

    async def start(self, stack: AsyncExitStack, path: Path, kubeconfig: Path) -> None:
        stack.enter_context(patch.object(nodes, "GRACE_SECONDS", 3600.0))  # no kubelet sends heartbeats
        for crd in crdgen.documents().values():
            path_of = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
            params = {"fieldManager": "tests", "force": "true"}
            await self.admin.raw("PATCH", path_of, params=params, body=crd, content_type=PatchKind.APPLY.value)
        await self.admin.raw("POST", "/api/v1/namespaces", body={"metadata": {"name": KOORDINATOR_NAMESPACE}})
        for name in ("n1", "n2"):
            amounts = {"cpu": "8", "memory": "16Gi", "pods": "110"}
            await self.admin.raw("POST", "/api/v1/nodes", body={"metadata": {"name": name}})
            status = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
            await self.admin.patch(Node, name, body={"status": status}, subresource="status")
            await self.admin.patch(Node, name, body={"spec": {"taints": None}})
        config = path / "scheduler.yaml"
        config.write_text(yaml.safe_dump(configuration()))
        flags = [f"--config={config}", f"--port={free_port()}", "--secure-port=0", "--address=127.0.0.1"]
        scheduler = Scheduler(read(SchedulerOptions, flags), config=ClientConfig.load(kubeconfig))
        running, kubelets = asyncio.create_task(scheduler.run()), asyncio.create_task(self._kubelets())

        async def stop() -> None:
            kubelets.cancel()
            scheduler.runner.stop()
            await asyncio.gather(kubelets, running, return_exceptions=True)

        stack.push_async_callback(stop)

    async def _kubelets(self) -> None:
        while True:
            for pod in await self.admin.list(Pod):
                meta = pod.metadata
                if meta.deletion_timestamp is not None:
                    await self.admin.delete(Pod, meta.name, meta.namespace, grace_seconds=0, missing_ok=True)
                elif pod.spec.node_name and pod.status.phase == "Pending":
                    ready = {"type": "Ready", "status": "True"}
                    body = {"status": {"phase": "Running", "conditions": [*_conditions(pod), ready]}}
                    await self.admin.patch(Pod, meta.name, meta.namespace, body=body, subresource="status")
            await asyncio.sleep(0.05)

    async def workload(self, name: str, replicas: int, on: str = "") -> list[Pod]:
        """A ReplicaSet whose pods run; on one node first if `on` is set."""
        labels = {"app": name}
        container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "100m"}}}
        template = {
            "metadata": {"labels": labels},
            "spec": {"schedulerName": "koord-scheduler", "containers": [container]},
        }
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        body = {"metadata": {"name": name}, "spec": spec}
        await self.admin.raw("POST", "/apis/apps/v1/namespaces/default/replicasets", body=body)
        return await _until(lambda: self.running(name, replicas))

    async def running(self, app: str, count: int) -> list[Pod]:
        pods = await self.admin.list(Pod, "default", label_selector={"app": app})
        serving = [pod for pod in pods if pod.status.condition("Ready") and pod.metadata.deletion_timestamp is None]
        return serving if len(serving) == len(pods) == count else []

    async def job(self, name: str) -> PodMigrationJob:
        return await self.admin.get(PodMigrationJob, name)

    async def phase(self, name: str, *phases: str) -> PodMigrationJob | None:
        job = await self.job(name)
        return job if job.status.phase in phases else None

    async def create_job(self, name: str, pod: str, **spec: Any) -> None:
        body = {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "PodMigrationJob",
            "metadata": {"name": name},
            "spec": {"podRef": {"namespace": "default", "name": pod}, **spec},
        }
        await self.admin.raw("POST", "/apis/scheduling.koordinator.sh/v1alpha1/podmigrationjobs", body=body)

    async def reasons(self, name: str) -> set[str]:
        return {event.reason for event in await self.admin.list(Event) if event.involved_object.name == name}


def _conditions(pod: Pod) -> list[dict[str, Any]]:
    conditions: list[dict[str, Any]] = wire.to_builtins(pod.status.conditions)
    return conditions


class Controller:
    """The plugin with real informers."""

    def __init__(self, client: Client, args: MigrationControllerArgs) -> None:
        self.state, self.objects = ClusterState(), descheduler_objects(client)
        follow(self.objects, self.state)
        self.events = EventRecorder(client, "koord-descheduler")
        parts = ProcessParts(
            self.state,
            self.objects,
            client,
            SYSTEM_CLOCK,
            FeatureGates(DESCHEDULER),
            CollectorRegistry(),
            False,
            0.0,
        )
        proxy = EvictionProxy("p", EvictionLimiter(EvictionLimits()), dry_run=False)
        handle = PluginHandle(parts, "p", "MigrationController", PluginEvictor(proxy, "x"), self.events)
        self.plugin = MigrationController(args, handle)

    async def start(self) -> None:
        await self.events.start()
        await self.objects.start()
        await self.objects.synced()
        await self.plugin.start()

    async def stop(self) -> None:
        await self.plugin.stop()
        await self.objects.stop()
        await self.events.stop()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ApiServer(tmp_path / "api"))
        config = ClientConfig.load(server.kubeconfig_path, qps=0)
        cluster = Cluster(await stack.enter_async_context(Client(config)))
        await cluster.start(stack, tmp_path, server.kubeconfig_path)
        yield cluster


@pytest.fixture
async def controller(cluster: Cluster) -> AsyncIterator[Callable[..., Awaitable[Controller]]]:
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Controller:
            controller = Controller(cluster.admin, MigrationControllerArgs(**settings))
            stack.push_async_callback(controller.stop)
            await controller.start()
            return controller

        yield start


async def test_evict_directly(cluster: Cluster, controller: Callable[..., Awaitable[Controller]]) -> None:
    """A plugin's job and a user's job; the budget of the workload holds."""
    pods = await cluster.workload("web", 5)
    budget = {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 4}}
    await cluster.admin.raw("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", body=budget)
    running = await controller(default_job_mode="EvictDirectly")
    subject = running.state.pods[pods[0].metadata.key]
    assert await running.plugin.evict(subject, EvictOptions("LowNodeLoad", "node is overutilized"))
    (job,) = await cluster.admin.list(PodMigrationJob)
    name = job.metadata.name
    done = await _until(lambda: cluster.phase(name, "Succeeded", "Failed"))
    assert done.status.phase == "Succeeded", done.status
    assert done.status.message == f'Pod "default/{pods[0].metadata.name}" has been evicted'
    assert done.metadata.annotations["koordinator.sh/evict-trigger"] == "LowNodeLoad"
    await _until(lambda: cluster.running("web", 5))
    assert await _until(lambda: cluster.reasons(name)) >= {"Evicting", "EvictComplete"}
    assert "Descheduled" in await cluster.reasons(pods[0].metadata.name)
    of_jobs = [each for each in await cluster.admin.list(Event) if each.involved_object.kind == "PodMigrationJob"]
    assert {(each.action, each.reporting_component) for each in of_jobs} == {("Migrating", "koord-descheduler")}
    await cluster.create_job("by-hand", pods[1].metadata.name, ttl="10m")
    await _until(lambda: cluster.phase("by-hand", "Running", "Succeeded"))
    assert (await cluster.job("by-hand")).spec.pod_ref.uid == pods[1].metadata.uid


async def test_reservation_first(cluster: Cluster, controller: Callable[..., Awaitable[Controller]]) -> None:
    """koord-scheduler binds the Reservation to another node; the replacement consumes it there."""
    pods = await cluster.workload("db", 4)
    old = pods[0]
    await controller()
    await cluster.create_job("move", old.metadata.name, ttl="10m")
    done = await _until(lambda: cluster.phase("move", "Succeeded", "Failed"))
    assert done.status.phase == "Succeeded", done.status
    other = "n2" if old.spec.node_name == "n1" else "n1"
    assert done.status.node_name == other
    reservation = await cluster.admin.get(Reservation, done.metadata.uid)
    assert reservation.metadata.owner_references[0].uid == done.metadata.uid
    owner = reservation.spec.owners[0].controller
    assert owner is not None and owner.name == "db"
    assert reservation.status.phase == "Succeeded"
    assert done.status.pod_ref is not None
    new = await cluster.admin.get(Pod, done.status.pod_ref.name, "default")
    assert new.metadata.uid not in {pod.metadata.uid for pod in pods}
    assert new.spec.node_name == other
    reached = {each.type for each in done.status.conditions if each.status == "True"}
    assert reached >= {"ReservationCreated", "ReservationScheduled", "Eviction", "ReservationBound", "BoundPodReady"}
    assert len(await _until(lambda: cluster.running("db", 4))) == 4


async def test_without_room_nothing_is_evicted(
    cluster: Cluster, controller: Callable[..., Awaitable[Controller]]
) -> None:
    """The other node is cordoned: the Reservation finds no node, and the job ends with its time."""
    pods = await cluster.workload("api", 4)
    subject = pods[0]
    other = "n2" if subject.spec.node_name == "n1" else "n1"
    await cluster.admin.patch(Node, other, body={"spec": {"unschedulable": True}})
    await controller()
    await cluster.create_job("late", subject.metadata.name, ttl="8s")
    done = await _until(lambda: cluster.phase("late", "Succeeded", "Failed"))
    assert (done.status.phase, done.status.reason) == ("Failed", "Timeout"), done.status
    assert await cluster.admin.list(Reservation) == []
    assert {pod.metadata.uid for pod in await cluster.running("api", 4)} == {pod.metadata.uid for pod in pods}
