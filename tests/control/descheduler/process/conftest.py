"""An embedded API server, and deschedulers that run in it under their own account."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from control.descheduler.config.shipped import configuration
from control.descheduler.process import manifests
from control.descheduler.process.options import DeschedulerOptions
from control.descheduler.process.process import Descheduler
from control.descheduler.process.rights import FEATURES
from control.manager import manifests as manager_manifests
from control.slim import EMPTY_LIST, EMPTY_MAP
from control.standalone.apiserver import ApiServer
from koordlet.api.core import Pod
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.app.flags import read
from koordlet.kube import Client, ClientConfig
from tests import waiting
from tests.control.crds import CRDS
from tests.control.scheduler.process.conftest import World
from tests.ports import free_port


@dataclass
class DeschedulerWorld(World):
    """A server with pods that have a controller, and reports of their usage."""

    owner_uid: str | None = None

    async def replica(self, name: str, on: str, **more: Any) -> None:
        """A running pod with a controller, which is an object that nothing acts on."""
        if self.owner_uid is None:
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}}
            document = json.loads(await self.admin.raw("POST", "/api/v1/namespaces/default/configmaps", body=body))
            self.owner_uid = document["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "web", "uid": self.owner_uid, "controller": True}
        meta = {"name": name, "labels": {"app": "web"}, "ownerReferences": [owner], **more.pop("metadata", {})}
        container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "100m"}}}
        spec = {"containers": [container], "nodeName": on, "terminationGracePeriodSeconds": 0, **more}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        await self.admin.raw("POST", "/api/v1/namespaces/default/pods", body=body)
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await self.admin.patch(Pod, name, "default", body={"status": status}, subresource="status")

    async def report(self, node: str, pods: dict[str, str], system: str = "0") -> None:
        """Write a node's NodeMetric as koordlet does: cores by pod of the namespace `default`."""
        kind = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric"}
        await self.apply({**kind, "metadata": {"name": node}, "spec": {}})
        entries = [
            {"namespace": "default", "name": name, "podUsage": {"resources": {"cpu": cpu, "memory": "0"}}}
            for name, cpu in pods.items()
        ]
        usage = {"resources": {"cpu": system, "memory": "0"}}
        status = {
            "updateTime": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "nodeMetric": {"nodeUsage": usage, "systemUsage": usage},
            "podsMetric": entries,
        }
        await self.admin.patch(NodeMetric, node, body={"status": status}, subresource="status")

    async def pods(self) -> set[str]:
        """The names of the pods that exist and are not terminating."""
        pods = await self.admin.list(Pod, "default")
        return {pod.metadata.name for pod in pods if pod.metadata.deletion_timestamp is None}


class RunningDescheduler:
    """A descheduler in this process."""

    def __init__(self, process: Descheduler, port: int) -> None:
        self.process, self.port = process, port
        self.task = asyncio.create_task(process.run(), name="descheduler")

    async def page(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}{path}") as answer:
            return answer.status, await answer.text()

    async def stop(self) -> int:
        self.process.runner.stop()
        return await self.task


def balancing(**changes: Any) -> dict[str, Any]:
    """The shipped configuration with LowNodeLoad enabled, short intervals and no waiting for anomalies."""
    document = configuration()
    (profile,) = document["profiles"]
    profile["plugins"]["balance"]["enabled"] = [{"name": "LowNodeLoad"}]
    profile["pluginConfig"][0]["args"] |= {"anomalyCondition": {"consecutiveAbnormalities": 1}}
    return {**document, "deschedulingInterval": "200ms", **changes}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[DeschedulerWorld]:
    audit = tmp_path / "audit.log"
    async with (
        ApiServer(tmp_path / "api", audit_log=audit) as server,
        Client(ClientConfig.load(server.kubeconfig_path, qps=0)) as admin,
    ):
        descheduler_world = DeschedulerWorld(server, admin, tmp_path, audit)
        rights = [obj for each in FEATURES for obj in each.role(manifests.ACCOUNT)]
        for obj in (*CRDS, *manager_manifests.namespace(), *manifests.rbac(), *rights):
            await descheduler_world.apply(obj)
        yield descheduler_world


@pytest.fixture
async def descheduler(world: DeschedulerWorld) -> AsyncIterator[Callable[..., Awaitable[RunningDescheduler]]]:
    """`await descheduler(configuration, "--flag")`: one that runs; stopped with the test."""
    async with AsyncExitStack() as stack:

        async def start(document: dict[str, Any], *flags: str) -> RunningDescheduler:
            port = free_port()
            document["healthzBindAddress"] = document["metricsBindAddress"] = f"127.0.0.1:{port}"
            path = world.tmp / f"config-{port}.yaml"
            path.write_text(yaml.safe_dump(document))
            options = read(DeschedulerOptions, [f"--config={path}", "--secure-port=0", *flags])
            running = RunningDescheduler(Descheduler(options, config=await world.account(manifests.ACCOUNT)), port)

            async def stop() -> None:
                if not running.task.done():
                    await running.stop()
                assert not EMPTY_LIST and not EMPTY_MAP, "an object of a store was changed"

            stack.push_async_callback(stop)
            await waiting.until(lambda: running.process.leading or running.task.done())
            assert not running.task.done(), f"the descheduler ended: {running.task}"
            return running

        yield start
