"""A manager beside the embedded API server, both in the test's loop, reached over real HTTPS as registered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client import CollectorRegistry

from control.manager import manifests
from control.manager.options import Options
from control.manager.process import Manager
from control.standalone.apiserver.server import ApiServer
from koordlet.app.flags import read
from koordlet.kube import ApiError, Client, Config

CRDS = Path(__file__).resolve().parents[4] / "deploy" / "crds"


@dataclass
class Cluster:
    """An API server with a manager. Objects are plain JSON, as any client would send them."""

    client: Client
    manager: Manager

    async def create(self, path: str, obj: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """POST; the object that was stored. Raises ApiError."""
        params = {"dryRun": "All"} if dry_run else {}
        return msgspec.json.decode(await self.client.raw("POST", path, body=obj, params=params))

    async def get(self, path: str) -> dict[str, Any]:
        return msgspec.json.decode(await self.client.raw("GET", path))

    async def merge(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A merge patch. Raises ApiError."""
        kind = "application/merge-patch+json"
        return msgspec.json.decode(await self.client.raw("PATCH", path, body=body, content_type=kind))

    async def refused(self, request: Any) -> ApiError:
        """The error that a write is refused with."""
        with pytest.raises(ApiError) as caught:
            await request
        return caught.value

    async def until(self, holds: Callable[[], Any], what: str, seconds: float = 30.0) -> None:
        """Wait for a condition; an awaitable one is awaited."""
        async with asyncio.timeout(seconds):
            while True:
                found = holds()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return
                await asyncio.sleep(0.02)

    def cached(self, kind: type, key: str) -> bool:
        """Whether the manager's own cache knows an object already."""
        return self.manager.context.caches.informer(kind).get(key) is not None


async def install(client: Client) -> None:
    """The custom resources and what the manager is installed with, but for its Deployment."""
    documents = [yaml.safe_load(file.read_text()) for file in sorted(CRDS.glob("*_*.yaml"))]
    for make in (manifests.namespace, manifests.priority_classes, manifests.config, manifests.webhooks):
        documents += make()
    plurals = {
        "CustomResourceDefinition": "customresourcedefinitions", "Namespace": "namespaces",
        "PriorityClass": "priorityclasses", "ConfigMap": "configmaps",
        "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
        "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
    }  # fmt: skip
    for document in documents:
        version, namespace = document["apiVersion"], document["metadata"].get("namespace")
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        path += f"/namespaces/{namespace}" if namespace else ""
        await client.raw("POST", f"{path}/{plurals[document['kind']]}", body=document)


@pytest.fixture
def start(tmp_path) -> Callable[..., AbstractAsyncContextManager[Cluster]]:
    """`async with start(gates={…}, **flags) as cluster`: everything up, caches filled, webhooks registered."""

    @asynccontextmanager
    async def running(gates: dict[str, bool] | None = None, **flags: Any) -> AsyncIterator[Cluster]:
        async with ApiServer(tmp_path / "api", port=0) as server:
            config = Config.load(server.kubeconfig_path, qps=0)
            async with Client(config, registry=CollectorRegistry()) as client:
                await install(client)
                told = {
                    "metrics-addr": "127.0.0.1:0", "health-probe-addr": "127.0.0.1:0", "enable-pprof": "false",
                    "rest-config-qps": "0", "webhook-bind-address": "127.0.0.1",
                    "feature-gates": ",".join(f"{gate}={on}" for gate, on in (gates or {}).items()),
                    **{name.replace("_", "-"): str(value) for name, value in flags.items()},
                }  # fmt: skip
                argv = [f"--{name}={value}" for name, value in told.items() if value]
                options = read(Options, argv)
                environ = {
                    "WEBHOOK_HOST": "127.0.0.1", "WEBHOOK_PORT": "0", "WEBHOOK_CERT_DIR": str(tmp_path / "certs"),
                }  # fmt: skip
                manager = Manager(options, environ, config=config)
                cluster = Cluster(client, manager)
                running = asyncio.create_task(manager.run())
                try:
                    await cluster.until(lambda: running.done() or _registered(cluster), "webhooks are registered")
                    assert not running.done(), "the manager ended"
                    yield cluster
                finally:
                    manager.runner.stop()
                    with contextlib.suppress(asyncio.CancelledError):
                        await running

    return running


async def _registered(cluster: Cluster) -> bool:
    """Whether both configurations point at this manager."""
    base = "/apis/admissionregistration.k8s.io/v1"
    for made in manifests.webhooks():
        plural = made["kind"].lower() + "s"
        found = await cluster.get(f"{base}/{plural}/{made['metadata']['name']}")
        if any("url" not in each["clientConfig"] for each in found["webhooks"]):
            return False
    return True
