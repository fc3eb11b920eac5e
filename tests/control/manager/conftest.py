"""An embedded API server with everything installed, and managers that run in it under their own account."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.manager import manifests
from control.manager.options import ManagerOptions
from control.manager.process import Manager
from control.manager.rights import FEATURES
from control.slim import EMPTY_LIST, EMPTY_MAP
from control.standalone.apiserver import ApiServer
from koordlet.api.core import Node
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.app.flags import read
from koordlet.kube import ApiError, Client, ClientConfig, KubeError, PatchKind
from tests import waiting
from tests.accounts import account_config, account_token
from tests.control.crds import CRDS
from tests.ports import free_port

_PLURALS = {"NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses"}
SERVICE = f"{KOORDINATOR_NAMESPACE}/koordinator-webhook-service"


SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{KOORDINATOR_NAMESPACE}/endpointslices"


def endpoint_slice(name: str, address: str, port: int) -> dict[str, Any]:
    """A ready endpoint of the webhook Service, as the endpoint slice controller of a cluster writes it."""
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "koordinator-webhook-service"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "webhook", "port": port, "protocol": "TCP"}],
    }


def path_of(obj: dict[str, Any]) -> str:
    """The URL path of any object here."""
    version, kind, meta = obj["apiVersion"], obj["kind"], obj["metadata"]
    plural = _PLURALS.get(kind, kind.lower() + "s")
    where = f"/namespaces/{meta['namespace']}" if meta.get("namespace") else ""
    return f"/{'apis' if '/' in version else 'api'}/{version}{where}/{plural}/{meta['name']}"


async def apply(client: Client, obj: dict[str, Any]) -> None:
    await client.raw(
        "PATCH",
        path_of(obj),
        params={"fieldManager": "tests", "force": "true"},
        body=obj,
        content_type=PatchKind.APPLY.value,
        repeatable=True,
    )


@dataclass
class Cluster:
    """A server, an administrator's client, and what a manager needs to run in it."""

    server: ApiServer
    admin: Client
    tmp: Path
    audit: Path
    webhook_port: int

    async def token(self, account: str) -> str:
        """Of a ServiceAccount in Koordinator's namespace."""
        return await account_token(self.admin, account)

    async def account(self) -> ClientConfig:
        """Credentials of the manager's ServiceAccount."""
        return await account_config(self.server, self.admin, manifests.ACCOUNT)

    async def install(self, *objects: dict[str, Any]) -> None:
        for obj in objects:
            await apply(self.admin, obj)

    async def kubeconfig(self) -> Path:
        """The same as a file, for processes."""
        document = yaml.safe_load(self.server.kubeconfig_path.read_text())
        token = (await self.account()).credentials
        headers = await token.headers()
        document["users"] = [{"name": "manager", "user": {"token": headers["Authorization"].removeprefix("Bearer ")}}]
        document["contexts"][0]["context"]["user"] = "manager"
        path = self.tmp / "manager.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    def environ(self, name: str = "a", **more: str) -> dict[str, str]:
        """The webhook server's environment; certificates in a directory of that name."""
        return {"WEBHOOK_PORT": str(self.webhook_port), "WEBHOOK_CERT_DIR": str(self.tmp / f"certs-{name}"), **more}

    async def nodes(self, *names: str, **labels: str) -> None:
        for name in names:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
            status = {"status": {"allocatable": {"cpu": "8", "memory": "16Gi"}, "capacity": {"cpu": "8"}}}
            await self.admin.raw("POST", "/api/v1/nodes", body=node)
            await self.admin.patch(Node, name, body=status, subresource="status")

    async def config(self, data: dict[str, str], *, first: bool = False) -> None:
        """Set the ConfigMap's data; `first`: before any manager runs, while its webhook would still be in the way."""
        webhooks = manifests.webhooks()[1]
        if first:
            await self.admin.raw("DELETE", path_of(webhooks))
        path = path_of(manifests.config()[0])
        config = await self.get(path)
        await self.admin.raw("PUT", path, body={**config, "data": data})
        if first:
            await apply(self.admin, webhooks)

    async def get(self, path: str) -> Any:
        """An object as it is, None when it is not there."""
        try:
            return json.loads(await self.admin.raw("GET", path))
        except KubeError as error:
            if getattr(error, "status", 0) == 404:
                return None
            raise

    async def spec(self, kind: str, name: str) -> Any:
        """`spec` of a NodeMetric or NodeSLO."""
        stored = await self.get(f"/apis/slo.koordinator.sh/v1alpha1/{kind}/{name}")
        return stored and stored["spec"]


async def install(client: Client, *, skip: tuple[str, ...] = ("deployment.yaml",)) -> None:
    for crd in CRDS:
        await apply(client, crd)
    for name, make in manifests.FILES.items():
        if name not in skip:
            for obj in make():
                await apply(client, obj)
    for feature in FEATURES:
        for obj in feature.role(manifests.ACCOUNT):
            await apply(client, obj)


@asynccontextmanager
async def running_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    port, audit = free_port(), tmp_path / "audit.log"
    hosts = {SERVICE: f"127.0.0.1:{port}"}
    async with ApiServer(tmp_path / "api", port=free_port(), webhook_hosts=hosts, audit_log=audit) as server:
        config = ClientConfig.load(server.kubeconfig_path, qps=0)
        async with Client(config) as admin:
            await install(admin)
            await admin.raw("POST", SLICES, body=endpoint_slice("static", "127.0.0.1", port))
            yield Cluster(server, admin, tmp_path, audit, port)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as cluster:
        yield cluster


class Running:
    """A manager in this process."""

    def __init__(self, manager: Manager, *, alone: bool) -> None:
        """`alone`: no other replica runs, so this one becomes the leader, which registers the webhooks."""
        self.manager = manager
        self.alone = alone
        self.task = asyncio.create_task(manager.run(), name="manager")

    async def ready(self) -> Running:
        """Wait until it would be sent requests."""
        await waiting.until(self._ready)
        return self

    async def _ready(self) -> bool:
        assert not self.task.done(), f"the manager ended: {self.task}"
        if self.manager.server is not None and "webhook-ready" not in self.manager.health._checks:
            return False
        rotation = self.manager.rotation
        if rotation is not None and self.alone and not rotation.registered.is_set():
            return False
        results = await self.manager.health.ready()
        leads = self.manager.context.internal.get_sample_value("koordinator_manager_is_leader") is not None
        return leads and all(result.ok for result in results)

    async def stop(self) -> int:
        self.manager.runner.stop()
        return await self.task


FLAGS = (
    "--metrics-addr=127.0.0.1:0",
    "--health-probe-addr=127.0.0.1:0",
    "--pprof-addr=127.0.0.1:0",
    "--webhook-bind-address=127.0.0.1",
    "--rest-config-qps=500",
    "--rest-config-burst=500",
)


@pytest.fixture
async def manager(cluster: Cluster) -> AsyncIterator[Callable[..., Awaitable[Running]]]:
    """`await manager("--flag")`: one that is ready; stopped with the test."""
    async with AsyncExitStack() as stack:
        started: list[Running] = []

        async def start(
            *flags: str, wait: bool = True, registered: bool = True, name: str = "a", **environ: str
        ) -> Running:
            """`registered`: also wait until the only replica has registered its webhooks."""
            options = read(ManagerOptions, [*FLAGS, *flags])
            replica = Manager(options, cluster.environ(name, **environ), config=await cluster.account())
            process = Running(replica, alone=registered and all(other.task.done() for other in started))
            started.append(process)
            stack.push_async_callback(_stopped, process)
            return await process.ready() if wait else process

        yield start


async def _stopped(running: Running) -> None:
    if not running.task.done():
        await running.stop()
    assert not EMPTY_LIST and not EMPTY_MAP, "a cached object was modified"


@dataclass
class WebhookCluster:
    """What a client of the API server sees while a manager answers its webhooks: objects as plain JSON."""

    client: Client
    manager: Manager

    async def create(self, path: str, obj: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """POST; the object that was stored. Raises ApiError."""
        params = {"dryRun": "All"} if dry_run else {}
        created: dict[str, Any] = json.loads(await self.client.raw("POST", path, body=obj, params=params))
        return created

    async def get(self, path: str) -> dict[str, Any]:
        stored: dict[str, Any] = json.loads(await self.client.raw("GET", path))
        return stored

    async def merge(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A merge patch. Raises ApiError."""
        answer = await self.client.raw("PATCH", path, body=body, content_type=PatchKind.MERGE.value)
        merged: dict[str, Any] = json.loads(answer)
        return merged

    async def delete(self, path: str) -> None:
        await self.client.raw("DELETE", path)

    async def refused(self, request: Awaitable[Any]) -> ApiError:
        """The error that a write is refused with."""
        with pytest.raises(ApiError) as caught:
            await request
        return caught.value

    async def until(self, check: Callable[[], Any | Awaitable[Any]]) -> Any:
        return await waiting.until(check)

    def cached(self, kind: type, key: str) -> Any:
        """An object as the manager's own cache knows it; None before it does."""
        return self.manager.context.caches.informer(kind).get(key)


@pytest.fixture
def webhook_cluster(
    cluster: Cluster, manager: Callable[..., Awaitable[Running]]
) -> Callable[..., Awaitable[WebhookCluster]]:
    """`await webhook_cluster({"Gate": True}, "--flag=…")`: a manager with webhooks."""

    async def start(
        gates: dict[str, bool] | None = None, *flags: str, environ: dict[str, str] | None = None
    ) -> WebhookCluster:
        gate_flag = ",".join(f"{gate}={on}" for gate, on in (gates or {}).items())
        arguments = ([f"--feature-gates={gate_flag}"] if gate_flag else []) + [
            "--controllers=colocationprofile,quotaprofile"
        ]
        running = await manager(*arguments, *flags, **(environ or {}))
        return WebhookCluster(cluster.admin, running.manager)

    return start
