"""Pods are created continuously while the system is installed, upgraded, killed and uninstalled: none is rejected.

The manifests are applied with kubectl; the managers are processes, and this test is their endpoint slice controller:
it publishes a replica when `/readyz` answers, as a kubelet and a control plane do.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from control.standalone.apiserver import ApiServer
from koordlet.app.tasks import end_tasks
from koordlet.kube import Client, ClientConfig, KubeError
from tests.control.manager.conftest import SLICES, Cluster, endpoint_slice
from tests.ports import free_port
from tests.waiting import until

ROOT = Path(__file__).parents[3]
KUBECTL = Path(sys.executable).with_name("kubectl")
NAMESPACES = ("default", "kube-system")
MUTATING = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/koordinator-mutating-webhook-configuration"
)
CLUSTER_WIDE = (
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/api/v1/namespaces", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
)  # fmt: skip
PROFILE = {
    "apiVersion": "config.koordinator.sh/v1alpha1",
    "kind": "ClusterColocationProfile",
    "metadata": {"name": "everything"},
    "spec": {"selector": {}, "labels": {"profile": "applied"}},
}

pytestmark = pytest.mark.kubectl


@dataclass
class PodLoad:
    """Creates one pod after the other in each namespace, under names that are used once."""

    admin: Client
    created: Counter[str] = field(default_factory=Counter)
    mutated: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    async def run(self, namespace: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods"
        while True:
            name = f"p-{sum(self.created.values())}-{len(self.failures)}"
            pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
            try:
                stored = json.loads(await self.admin.raw("POST", path, body=pod))
                self.created[namespace] += 1
                self.mutated[namespace] += "profile" in stored["metadata"].get("labels", {})
                await self.admin.raw("DELETE", f"{path}/{name}", body={"gracePeriodSeconds": 0})
            except KubeError as error:
                self.failures.append(f"{namespace}: {error}")
            await asyncio.sleep(0.02)  # faster, it would take the time of the programs that it waits for


@dataclass
class Installation:
    """A cluster without any object of ours, and what an administrator does to it."""

    cluster: Cluster
    load: PodLoad
    stack: AsyncExitStack
    policy: str = "Ignore"

    async def kubectl(self, *arguments: str) -> str:
        environ = {**os.environ, "HOME": str(self.cluster.tmp), "KUBECONFIG": str(self.cluster.server.kubeconfig_path)}
        process = await asyncio.create_subprocess_exec(
            str(KUBECTL), *arguments, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()

    async def start(self, name: str) -> asyncio.subprocess.Process:
        """A replica; returns when its endpoint is published."""
        port, probes = free_port(), free_port()
        command = [
            sys.executable, "-m", "control.manager", f"--kubeconfig={await self.cluster.kubeconfig()}",
            "--metrics-addr=127.0.0.1:0", f"--health-probe-addr=127.0.0.1:{probes}", "--enable-pprof=false",
            "--webhook-bind-address=127.0.0.1", "--controllers=nodeslo",
        ]  # fmt: skip
        environ = {
            **os.environ, "POD_NAME": name, "WEBHOOK_PORT": str(port),
            "WEBHOOK_CERT_DIR": str(self.cluster.tmp / name),
            "WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS": self.policy,
        }  # fmt: skip
        with (self.cluster.tmp / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=log, stderr=log)
        self.stack.push_async_callback(ended, process)

        async def ready() -> bool:
            assert process.returncode is None, (self.cluster.tmp / f"{name}.log").read_text()
            try:
                async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{probes}/readyz") as page:
                    return page.status == 200
            except aiohttp.ClientError:
                return False

        await until(ready)
        await self.cluster.admin.raw("POST", SLICES, body=endpoint_slice(name, "127.0.0.1", port))
        return process

    async def withdraw(self, name: str) -> None:
        await self.cluster.admin.raw("DELETE", f"{SLICES}/{name}")

    async def more_pods(self, *, mutated: bool = False) -> None:
        """Wait for some pods in each namespace; `mutated`: those of default went through the webhook."""
        counts = self.load.mutated if mutated else self.load.created
        start = Counter(counts)
        names = ("default",) if mutated else NAMESPACES
        await until(lambda: all(counts[name] >= start[name] + 5 for name in names))
        assert not self.load.failures, self.load.failures[:3]


async def ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    async with (
        ApiServer(tmp_path / "api", port=free_port()) as server,
        Client(ClientConfig.load(server.kubeconfig_path, qps=0)) as admin,
        AsyncExitStack() as stack,
    ):
        cluster = Cluster(server, admin, tmp_path, tmp_path / "audit.log", 0)
        load = PodLoad(admin)
        for namespace in NAMESPACES:
            await until(
                lambda namespace=namespace: cluster.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
            )
        tasks = [asyncio.create_task(load.run(namespace)) for namespace in NAMESPACES]
        try:
            yield Installation(cluster, load, stack)
        finally:
            await end_tasks(*tasks)


async def registered(installation: Installation) -> bool:
    return bool((await installation.cluster.get(MUTATING)).get("webhooks"))


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
async def test_no_pod_is_rejected(installation: Installation, policy: str) -> None:
    installation.policy = policy
    await installation.kubectl("apply", "-k", str(ROOT / "deploy"))
    await installation.more_pods()
    assert not await registered(installation), "no manager answers yet"
    first = await installation.start("first")
    await until(lambda: registered(installation))
    await installation.cluster.admin.raw(
        "POST", "/apis/config.koordinator.sh/v1alpha1/clustercolocationprofiles", body=PROFILE
    )
    await installation.more_pods(mutated=True)
    # An upgrade: the new replica is ready before the old one leaves.
    await installation.kubectl("apply", "-k", str(ROOT / "deploy/base"))
    second = await installation.start("second")
    await installation.withdraw("first")
    await installation.more_pods(mutated=True)
    first.terminate()
    await first.wait()
    await installation.more_pods(mutated=True)
    if policy == "Ignore":  # with Fail, pods of default wait for a replica: that is its meaning
        second.send_signal(signal.SIGKILL)
        await second.wait()
        await installation.more_pods()
    await installation.kubectl("delete", "-k", str(ROOT / "deploy"), "--ignore-not-found", "--wait=false")
    await installation.more_pods()
    assert await installation.cluster.get(MUTATING) is None
    assert not installation.load.mutated["kube-system"], "kube-system is exempt"
    await until(lambda: nothing_left(installation))


async def nothing_left(installation: Installation) -> bool:
    lists = [await installation.cluster.get(path) for path in CLUSTER_WIDE]
    names = [item["metadata"]["name"] for listed in lists for item in listed["items"]]
    return not any(part in name for name in names for part in ("koord", "scheduling.sigs", "topology.node"))
