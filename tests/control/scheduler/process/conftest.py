"""An embedded API server with Koordinator's kinds, and schedulers that run in it under their own account."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from control.manager import manifests as manager_manifests
from control.scheduler.config.shipped import configuration
from control.scheduler.process import manifests
from control.scheduler.process.options import SchedulerOptions
from control.scheduler.process.process import Scheduler
from control.slim import EMPTY_LIST, EMPTY_MAP
from control.standalone.apiserver import ApiServer
from control.standalone.controllers import nodes
from koordlet.api.core import Event, Node, Pod
from koordlet.app.flags import read
from koordlet.kube import Client, ClientConfig, PatchKind
from tests import waiting
from tests.accounts import account_config
from tests.control.crds import CRDS
from tests.ports import free_port

_PLURALS = {"PriorityClass": "priorityclasses", "ConfigMap": "configmaps"}


@dataclass
class World:
    """A server, an administrator's client, and short ways to make things."""

    server: ApiServer
    admin: Client
    tmp: Path
    audit: Path

    async def apply(self, obj: dict[str, Any]) -> None:
        version, kind, meta = obj["apiVersion"], obj["kind"], obj["metadata"]
        plural = _PLURALS.get(kind, kind.lower() + "s")
        where = f"/namespaces/{meta['namespace']}" if meta.get("namespace") else ""
        path = f"/{'apis' if '/' in version else 'api'}/{version}{where}/{plural}/{meta['name']}"
        params = {"fieldManager": "tests", "force": "true"}
        await self.admin.raw(
            "PATCH", path, params=params, body=obj, content_type=PatchKind.APPLY.value, repeatable=True
        )

    async def node(
        self, name: str, cpu: str = "4", *, resources: Mapping[str, str] | None = None, **labels: str
    ) -> None:
        """A node that is ready; `resources`: further ones."""
        meta = {"name": name, "labels": labels}
        await self.admin.raw("POST", "/api/v1/nodes", body={"apiVersion": "v1", "kind": "Node", "metadata": meta})
        amounts = {"cpu": cpu, "memory": "16Gi", "pods": "110", **(resources or {})}
        conditions = [{"type": "Ready", "status": "True"}]
        status = {"allocatable": amounts, "capacity": amounts, "conditions": conditions}
        await self.admin.patch(Node, name, body={"status": status}, subresource="status")
        await self.admin.patch(Node, name, body={"spec": {"taints": None}})

    async def pod(
        self, name: str, cpu: str = "1", *, on: str = "", requests: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        """`requests`: further ones; `more`: labels, annotations, and fields of the spec."""
        meta = {"name": name, "labels": more.pop("labels", {}), "annotations": more.pop("annotations", {})}
        amounts = {"cpu": cpu, **(requests or {})}
        resources = {"requests": amounts, "limits": dict(requests or {})}
        container = {"name": "c", "image": "x", "resources": resources if requests else {"requests": amounts}}
        spec = {"schedulerName": "koord-scheduler", "containers": [container], **more}
        if on:
            spec["nodeName"] = on
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        await self.admin.raw("POST", "/api/v1/namespaces/default/pods", body=body)

    async def delete_pod(self, name: str) -> None:
        await self.admin.delete(Pod, name, "default", grace_seconds=0)

    async def placed(self) -> dict[str, str]:
        """Pod -> node, "" while it has none."""
        return {pod.metadata.name: pod.spec.node_name for pod in await self.admin.list(Pod, "default")}

    async def bound(self, *names: str) -> dict[str, str] | None:
        placements = await self.placed()
        return placements if all(placements.get(name) for name in names) else None

    async def condition(self, name: str) -> str:
        """Message of PodScheduled=False."""
        pod = await self.admin.get(Pod, name, "default")
        scheduled = pod.status.condition("PodScheduled")
        return scheduled.message if scheduled is not None and scheduled.status == "False" else ""

    async def events(self, name: str) -> dict[str, str]:
        """Reason -> message."""
        listed = await self.admin.list(Event, "default")
        return {event.reason: event.message for event in listed if event.involved_object.name == name}

    async def account(self, name: str = manifests.ACCOUNT) -> ClientConfig:
        """For a client with the rights of a ServiceAccount."""
        return await account_config(self.server, self.admin, name)


class Running:
    """A scheduler in this process."""

    def __init__(self, scheduler: Scheduler, port: int) -> None:
        self.scheduler, self.port = scheduler, port
        self.task = asyncio.create_task(scheduler.run(), name="scheduler")

    async def leading(self) -> Running:
        await waiting.until(self._leads)
        return self

    def _leads(self) -> bool:
        assert not self.task.done(), f"the scheduler ended: {self.task}"
        return self.scheduler.leading

    async def page(self, path: str, method: str = "GET", data: str | None = None) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"http://127.0.0.1:{self.port}{path}", data=data) as answer,
        ):
            return answer.status, await answer.text()

    async def stop(self) -> int:
        self.scheduler.runner.stop()
        return await self.task


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(nodes, "GRACE_SECONDS", 3600.0)  # the nodes have no kubelets that send heartbeats
    audit = tmp_path / "audit.log"
    async with (
        ApiServer(tmp_path / "api", audit_log=audit) as server,
        Client(ClientConfig.load(server.kubeconfig_path, qps=0)) as admin,
    ):
        scheduler_world = World(server, admin, tmp_path, audit)
        for obj in (*CRDS, *manager_manifests.namespace(), *manifests.rbac()):
            await scheduler_world.apply(obj)
        yield scheduler_world


@pytest.fixture
async def scheduler(world: World) -> AsyncIterator[Callable[..., Awaitable[Running]]]:
    """`await scheduler("--flag")`: one with the shipped profile that leads; stopped with the test."""
    path = world.tmp / "config.yaml"
    path.write_text(yaml.safe_dump(configuration()))
    async with AsyncExitStack() as stack:

        async def start(*flags: str, wait: bool = True, through: str = "") -> Running:
            """`through`: an address to reach the API server by."""
            port = free_port()
            basic_flags = (f"--config={path}", f"--port={port}", "--secure-port=0", "--address=127.0.0.1")
            options = read(SchedulerOptions, [*basic_flags, "--kube-api-qps=500", "--kube-api-burst=500", *flags])
            config = await world.account()
            config = replace(config, server=through, ssl=None) if through else config
            running = Running(Scheduler(options, config=config), port)

            async def stop() -> None:
                if not running.task.done():
                    await running.stop()
                assert not EMPTY_LIST and not EMPTY_MAP, "an object of a store was changed"

            stack.push_async_callback(stop)
            return await running.leading() if wait else running

        yield start
