"""The kubelet as a process with a real API server over TLS; KUBECONFIG selects another cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from control.standalone.apiserver import ApiServer
from control.standalone.apiserver.tls import kubelet_serving_certificate
from control.standalone.kubelet.cgroups.directories import CgroupTree
from koordlet.kube import Client, ClientConfig, NotFound
from tests.accounts import account_token
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.kernel]


class Cluster:
    """An API server, and one kubelet process that can be started, killed and started again."""

    def __init__(self, client: Client, kubeconfig: Path, root: Path, pki: Path | None) -> None:
        """`pki`: the folder with the authority that issues the kubelet's certificate; None: a self-signed one."""
        self.client, self._kubeconfig, self._root, self._pki = client, kubeconfig, root, pki
        self.node = f"kubelet-{uuid.uuid4().hex[:8]}"
        self.prefix = f"koordtest-{self.node}"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        log = (self._root / "kubelet.log").open("ab")
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "control.standalone.kubelet"),
            f"--kubeconfig={self._kubeconfig}",
            f"--node-name={self.node}",
            f"--root-dir={self._root / 'kubelet'}",
            f"--cgroup-root={self.prefix}",
            "--port=0",
            "--cleanup-on-exit",
            *self._certificates(),
            stdout=log,
            stderr=log,
        )
        log.close()

    def _certificates(self) -> list[str]:
        """Flags of the certificate by which the API server verifies the kubelet, and its clients' authority."""
        if self._pki is None:
            return []
        cert, key = kubelet_serving_certificate(self._pki, self._root / "certificates", self.node, "127.0.0.1")
        return [f"--tls-cert-file={cert}", f"--tls-private-key-file={key}", f"--client-ca-file={self._pki / 'ca.crt'}"]

    async def signal(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        async with asyncio.timeout(120):
            return await self.process.wait()

    async def get(self, path: str) -> Any:
        try:
            return json.loads(await self.client.raw("GET", path))
        except NotFound:
            return None

    def pod_path(self, name: str) -> str:
        return f"/api/v1/namespaces/default/pods/{name}"

    async def create(self, name: str, command: list[str], **spec: Any) -> None:
        container = {"name": "main", "image": "busybox", "command": command, **spec.pop("container", {})}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": self.node, "containers": [container], "tolerations": [{"operator": "Exists"}], **spec},
        }
        await self.client.raw("POST", "/api/v1/namespaces/default/pods", body=body)

    async def until(self, path: str, done: Callable[[Any], Any], seconds: float = 120) -> Any:
        result: Any = None
        try:
            async with asyncio.timeout(seconds):
                while not done(result := await self.get(path)):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            log_tail = (self._root / "kubelet.log").read_text()[-3000:]
            pytest.fail(f"{path} did not come to it: {json.dumps(result)[:2000]}\nkubelet: {log_tail}")
        return result


def phase(expected: str) -> Callable[[Any], bool]:
    return lambda pod: pod is not None and pod.get("status", {}).get("phase") == expected


def ready(node: Any) -> bool:
    conditions = ((node or {}).get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with contextlib.AsyncExitStack() as stack:
        if os.environ.get("KUBECONFIG"):
            kubeconfig, pki = Path(os.environ["KUBECONFIG"]), None
        else:
            server = await stack.enter_async_context(ApiServer(tmp_path / "api"))
            kubeconfig, pki = Path(server.kubeconfig_path), tmp_path / "api" / "pki"
        client = await stack.enter_async_context(Client(ClientConfig.load(kubeconfig, qps=0)))
        cluster = Cluster(client, kubeconfig, tmp_path, pki)
        await cluster.start()
        try:
            await cluster.until(f"/api/v1/nodes/{cluster.node}", ready)
            yield cluster
        finally:
            assert cluster.process is not None
            if cluster.process.returncode is None:
                await cluster.signal(signal.SIGTERM)
            with contextlib.suppress(NotFound):
                await client.raw("DELETE", f"/api/v1/nodes/{cluster.node}")
            tree = CgroupTree.discover(Path("/sys/fs/cgroup"))
            assert not tree.exists(cluster.prefix), "the kubelet did not remove its cgroups"


async def test_node_lease_and_a_job(cluster: Cluster) -> None:
    node = await cluster.get(f"/api/v1/nodes/{cluster.node}")
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("process://")
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == cluster.node
    lease = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{cluster.node}"
    await cluster.until(lease, lambda node_object: node_object is not None)
    await cluster.create("job", ["sh", "-c", "echo hello from $HOSTNAME"], restartPolicy="Never")
    done = await cluster.until(cluster.pod_path("job"), phase("Succeeded"))
    assert done["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert await cluster.client.raw("GET", cluster.pod_path("job") + "/log") == b"hello from job\n"
    await cluster.client.raw("DELETE", cluster.pod_path("job"))
    await cluster.until(cluster.pod_path("job"), lambda lease_object: lease_object is None)


async def test_events_are_recorded(cluster: Cluster) -> None:
    await cluster.create("loop", ["false"])
    await cluster.until(
        cluster.pod_path("loop"),
        lambda p: (
            p["status"].get("containerStatuses", [{}])[0].get("state", {}).get("waiting", {}).get("reason")
            == "CrashLoopBackOff"
        ),
    )
    events = await cluster.until(
        "/api/v1/namespaces/default/events",
        lambda recorded: (
            {"Started", "BackOff"} <= {e["reason"] for e in recorded["items"] if e["involvedObject"]["name"] == "loop"}
        ),
    )
    assert {e["source"]["component"] for e in events["items"]} == {"kubelet"}


async def test_graceful_deletion_waits_for_the_process(cluster: Cluster) -> None:
    script = "trap 'sleep 0.5; exit 0' TERM; while :; do sleep 0.1; done"
    await cluster.create("slow", ["sh", "-c", script])
    await cluster.until(cluster.pod_path("slow"), phase("Running"))
    deleting = json.loads(await cluster.client.raw("DELETE", cluster.pod_path("slow")))
    assert deleting["metadata"]["deletionTimestamp"]
    await cluster.until(cluster.pod_path("slow"), lambda pod: pod is None)


async def test_eviction_is_a_graceful_deletion(cluster: Cluster) -> None:
    await cluster.create("victim", ["sleep", "1000"], terminationGracePeriodSeconds=1)
    await cluster.until(cluster.pod_path("victim"), phase("Running"))
    await cluster.client.evict("victim", "default")
    await cluster.until(cluster.pod_path("victim"), lambda pod: pod is None)


async def test_kill_9_of_the_kubelet_loses_no_container(cluster: Cluster, tmp_path: Path) -> None:
    go, state = tmp_path / "go", tmp_path / "kubelet/containers"
    await cluster.create("stays", ["sleep", "1000"], terminationGracePeriodSeconds=1)
    script = f"while [ ! -e {go} ]; do sleep 0.1; done; exit 5"
    await cluster.create("ends", ["sh", "-c", script], restartPolicy="Never")
    before = await cluster.until(cluster.pod_path("stays"), phase("Running"))
    await cluster.until(cluster.pod_path("ends"), phase("Running"))
    assert await cluster.signal(signal.SIGKILL) == -signal.SIGKILL
    go.touch()

    async def ended_alone() -> bool:
        return any(state.glob("*/exit.json"))

    await until(ended_alone)
    await cluster.start()
    ended = await cluster.until(cluster.pod_path("ends"), phase("Failed"))
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
    after = await cluster.get(cluster.pod_path("stays"))
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    await cluster.client.raw("DELETE", cluster.pod_path("stays"))
    await cluster.until(cluster.pod_path("stays"), lambda pod: pod is None)


async def test_endpoints_authenticate_callers_by_the_api_server(cluster: Cluster) -> None:
    await cluster.create("web", ["sleep", "1000"], terminationGracePeriodSeconds=1)
    await cluster.until(cluster.pod_path("web"), phase("Running"))
    node = await cluster.until(f"/api/v1/nodes/{cluster.node}", ready)
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    accounts, name = "/api/v1/namespaces/default/serviceaccounts", f"caller-of-{cluster.node}"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    await cluster.client.raw("POST", accounts, body=account)
    weak = await account_token(cluster.client, name, "default")
    admin = (await cluster.client.config.credentials.headers()).get("Authorization")
    async with aiohttp.ClientSession() as session:

        async def get(header: str | None) -> int:
            headers = {"Authorization": header} if header else {}
            async with session.get(f"https://127.0.0.1:{port}/pods", headers=headers, ssl=False) as response:
                return response.status

        assert await get(None) == 401
        assert await get("Bearer made-up") == 401
        assert await get(f"Bearer {weak}") == 403
        assert admin, "this test needs a kubeconfig with a token"
        assert await get(admin) == 200
    await cluster.client.raw("DELETE", f"{accounts}/{name}")
