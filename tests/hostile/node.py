"""A whole node for the attackers: `koordctl up` with the shipped roles, a service, tenants, and objects of others."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from control.ctl.node import state as node_state
from control.ctl.node.parts import Layout
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.kube import ClientConfig

KOORDCTL = Path(sys.executable).with_name("koordctl")
TENANT, VICTIM = "tenant", "victim"
"""Namespaces."""
SERVICE, ATTACKER = "service", "attacker"
"""Pods: of the victim, of the tenant."""
FOREIGN_NODE = "foreign-node"
MARK = "written-by-an-attacker"
"""In every object and field that an attacker tries to write."""
PORTS = ("", "kubelet-", "koordlet-", "manager-", "webhook-", "scheduler-", "runtimeproxy-")
FAIL = {f"WEBHOOK_CONFIGURATION_FAILURE_POLICY_{resource}": "Fail" for resource in ("PODS", "CONFIGMAPS")}
"""For koord-manager: with Ignore, clients that flood the webhooks' port switch their rules off (docs/security.md)."""
MERGE = "application/merge-patch+json"
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Answer:
    """Of the API server or another server; status 0: no answer."""

    status: int
    text: str = ""

    @property
    def object(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.text)
        return document


@dataclass
class Api:
    """Requests to one server as one user; `headers`: the credentials."""

    session: aiohttp.ClientSession
    url: str
    tls: Any
    headers: dict[str, str]

    async def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Answer:
        """The answer, whatever its status; none within the time limit is status 0."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {**self.headers, **({"Content-Type": kind} if data is not None else {})}
        try:
            async with self.session.request(
                method, self.url + path, data=data, headers=headers, ssl=self.tls
            ) as response:
                return Answer(response.status, await response.text(errors="replace"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Answer(0, f"{type(error).__name__}: {error}")

    async def must(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> dict[str, Any]:
        """The object of a request that has to succeed. Raises RuntimeError."""
        answer = await self.call(method, path, body, kind)
        if not 200 <= answer.status < 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.text[:500]}")
        return answer.object


class AttackedNode:
    """`start` and `stop` it; then the clients and paths are set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state_dir = folder / "node"
        self.layout = Layout(self.state_dir)
        self.socket = folder / "service.sock"
        self.sentinel = folder / "sentinel"
        self.session: aiohttp.ClientSession
        self.admin: Api
        self.tenant: Api
        self.koordlet: Api
        self.settings = node_state.NodeSettings(node_name="")

    async def start(self, service_code: str) -> None:
        """Bring up the node, the service and the objects that attackers want. Raises RuntimeError."""
        self.folder.chmod(0o755)
        self.sentinel.write_text("untouched")
        await self._koordctl(
            "up", "--runtime=process", "--report-interval=30", "--aggregate-duration=60",
            f"--bpf-pin-dir=/sys/fs/bpf/koord-hostile-{self.folder.name}", *(f"--{name}port=0" for name in PORTS),
        )  # fmt: skip
        settings = node_state.load(self.state_dir).settings
        if settings is None:
            raise RuntimeError("koordctl stored no settings")
        self.settings = settings
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        self.session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        self.admin = await self._api(self.layout.admin_kubeconfig)
        self.koordlet = await self._api(self.layout.kubeconfig("koordlet"))
        await self._objects(service_code)
        await self._settled()

    async def stop(self) -> None:
        """Remove everything that `start` made."""
        if hasattr(self, "session"):
            await self.session.close()
        await self._koordctl("down", "--purge")

    def pids(self) -> dict[str, int]:
        """Process of each part."""
        parts = node_state.load(self.state_dir).parts
        return {name: record.process.pid for name, record in parts.items()}

    def url(self, port: int, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{port}"

    def anonymous(self, url: str) -> Api:
        """A neighbour on the network."""
        return Api(self.session, url, False, {})

    async def token(self, namespace: str, account: str) -> str:
        """A token of a ServiceAccount."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        created = await self.admin.must("POST", path, body)
        return str(created["status"]["token"])

    async def _api(self, kubeconfig: Path) -> Api:
        config = ClientConfig.load(kubeconfig)
        headers = dict(await config.credentials.headers())
        return Api(self.session, config.server, config.ssl, headers)

    async def _koordctl(self, *arguments: str) -> None:
        command = [str(KOORDCTL), arguments[0], f"--state-dir={self.state_dir}", *arguments[1:]]
        environment = {**os.environ, **FAIL}
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")

    async def _objects(self, service_code: str) -> None:
        """Namespaces with an account each, the pods, and objects of another node."""
        create = self.admin.must
        for name in (TENANT, VICTIM):
            await create("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        await self.until(lambda: self._accounts(), "the service accounts")
        binding = {
            "metadata": {"name": "edit"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": TENANT}],
        }
        base = "/apis/rbac.authorization.k8s.io/v1"
        await create("POST", f"{base}/namespaces/{TENANT}/rolebindings", binding)
        bearer = {"Authorization": f"Bearer {await self.token(TENANT, 'default')}"}
        self.tenant = Api(self.session, self.admin.url, self.admin.tls, bearer)
        await create("POST", "/api/v1/nodes", {"metadata": {"name": FOREIGN_NODE}})
        metric = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": FOREIGN_NODE}}
        await self.admin.call("POST", "/apis/slo.koordinator.sh/v1alpha1/nodemetrics", metric)
        secret = {"metadata": {"name": "secret"}, "stringData": {"password": "hunter2"}}
        await create("POST", f"/api/v1/namespaces/{VICTIM}/secrets", secret)
        await create("POST", f"/api/v1/namespaces/{VICTIM}/pods", self._pod(SERVICE, service_code, "250m"))
        await create("POST", f"/api/v1/namespaces/{TENANT}/pods", self._pod(ATTACKER, "while True: pass", "100m"))

    def _pod(self, name: str, code: str, limit: str) -> dict[str, Any]:
        container = {
            "name": "main",
            "image": "localhost/process:none",
            "command": [sys.executable, "-S", "-c", code],
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": limit, "memory": "128Mi"}},
        }
        labels = {"koordinator.sh/qosClass": "LS"}
        spec = {
            "nodeName": self.settings.node_name,
            "priorityClassName": "koord-prod",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        }
        return {"metadata": {"name": name, "labels": labels}, "spec": spec}

    async def _settled(self) -> None:
        """The service answers, and koordlet has both pods."""
        await self.until(self._serving, "the service")
        await self.until(self._listed, "koordlet to list the pods")

    async def _accounts(self) -> bool:
        paths = [f"/api/v1/namespaces/{name}/serviceaccounts/default" for name in (TENANT, VICTIM)]
        return all([(await self.admin.call("GET", path)).status == 200 for path in paths])

    async def _serving(self) -> bool:
        return self.socket.exists()

    async def _listed(self) -> bool:
        answer = await self.anonymous(self.url(self.settings.koordlet_port)).call("GET", "/top")
        return answer.status == 200 and SERVICE in answer.text and ATTACKER in answer.text

    @staticmethod
    async def until(done: Callable[[], Any], what: str, seconds: float = 120.0) -> None:
        """Wait for a condition. Raises RuntimeError."""
        end = time.monotonic() + seconds
        while not await done():
            if time.monotonic() > end:
                raise RuntimeError(f"did not come within {seconds:g} s: {what}")
            await asyncio.sleep(0.3)


CONFIGMAP = f"/api/v1/namespaces/{KOORDINATOR_NAMESPACE}/configmaps/slo-controller-config"
