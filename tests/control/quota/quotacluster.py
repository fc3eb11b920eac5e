"""A cluster with a tree of quotas in which koord-manager and koord-scheduler run as processes of their own.

The API server runs in the process of the test. What the quotas should state is computed by the plain twin from what the
API server has.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from control.quota.amounts import from_list
from control.scheduler.config.shipped import configuration
from control.scheduler.process import manifests
from koordlet.api import names
from koordlet.api.annotations import quota as annotation
from koordlet.api.core import Pod
from koordlet.api.crs.quota import ElasticQuota
from koordlet.kube import ApiError, Conflict, ConnectionFailed, ServerError
from tests.control.manager.conftest import Cluster, apply, running_cluster
from tests.control.scheduler.plain.quotas import ROOT, PlainQuota, PlainQuotaPod, PlainQuotas
from tests.ports import free_port

ROOT_FOLDER = Path(__file__).parents[3]
NODE_CORES = 32
WRITERS = 24


@dataclass(frozen=True)
class Size:
    """`levels`: quotas per level, from the top."""

    namespaces: int
    levels: tuple[int, ...]
    pods: int

    @property
    def leaves(self) -> int:
        return self.levels[-1]


SMALL = Size(4, (2, 4, 8, 16), 160)
LARGE = Size(50, (8, 40, 152, 800), 20_000)


def tree(size: Size) -> list[PlainQuota]:
    """Parents first. Leaves have a max below what their pods request, and parents less than their children's sum, so
    admission, leaves and parents all refuse pods."""
    each = size.pods // size.leaves
    leaf_max = max(each * 3 // 4, 1)
    limits = {len(size.levels) - 1: leaf_max}
    minima = {len(size.levels) - 1: 1}
    for level in range(len(size.levels) - 2, -1, -1):
        children = -(-size.levels[level + 1] // size.levels[level])
        limits[level] = max(limits[level + 1] * children * 9 // 10, limits[level + 1])
        minima[level] = minima[level + 1] * children
    quotas = []
    for level, count in enumerate(size.levels):
        for at in range(count):
            parent = f"q{level - 1}-{at % size.levels[level - 1]}" if level else ROOT
            low, high = {"cpu": minima[level] * 1000}, {"cpu": limits[level] * 1000}
            quotas.append(PlainQuota(f"q{level}-{at}", parent, low, high, high))
    return quotas


def quota_body(quota: PlainQuota, namespace: str, *, parent: bool) -> dict[str, Any]:
    labels = {names.LABEL_QUOTA_PARENT: quota.parent, **({names.LABEL_QUOTA_IS_PARENT: "true"} if parent else {})}
    low, high = quota.min["cpu"] // 1000, quota.max["cpu"] // 1000
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": quota.name, "namespace": namespace, "labels": labels},
        "spec": {"min": {"cpu": str(low)}, "max": {"cpu": str(high)}},
    }


def pod_body(name: str, quota: str) -> dict[str, Any]:
    """A pod of one core."""
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    return {
        "metadata": {"name": name, "labels": {names.LABEL_QUOTA_NAME: quota}},
        # The nodes have no kubelets, so the API server's controllers taint them after a while.
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [container],
            "tolerations": [{"operator": "Exists"}],
        },
    }


class Expected(PlainQuotas):
    """The plain twin over what the API server has. Every pod names a known quota, all quotas lead to the root. Results
    are kept, because they do not change."""

    sums: Mapping[tuple[str, bool], int]
    """(quota, whether only pods with a node count) -> request of its own pods."""
    below: Mapping[str, list[PlainQuota]]

    def __init__(
        self, total: Mapping[str, int], quotas: Mapping[str, PlainQuota], pods: Sequence[PlainQuotaPod]
    ) -> None:
        super().__init__(total, quotas, pods)
        sums: Counter[tuple[str, bool]] = Counter()
        for pod in self.pods:
            sums[pod.quota, False] += pod.request["cpu"]
            sums[pod.quota, True] += pod.request["cpu"] * pod.assigned
        object.__setattr__(self, "sums", sums)
        below: dict[str, list[PlainQuota]] = {}
        for quota in self.quotas.values():
            below.setdefault(quota.parent, []).append(quota)
        object.__setattr__(self, "below", below)
        for method in ("used", "request", "runtime", "level_of", "attached"):
            object.__setattr__(self, method, functools.cache(getattr(self, method)))

    def own(self, name: str, resource: str, *, assigned: bool) -> int:
        return self.sums[name, assigned]

    def children(self, name: str) -> list[PlainQuota]:
        return self.below.get(name, [])

    def used(self, name: str, resource: str) -> int:
        return self.own(name, resource, assigned=True) + sum(
            self.used(child.name, resource) for child in self.children(name)
        )

    def runtime(self, name: str, resource: str) -> int:
        if name == ROOT:
            return self.total[resource]
        return self.level_of(self.quotas[name].parent, resource)[name]

    def level_of(self, parent: str, resource: str) -> dict[str, int]:
        total = max(self.runtime(parent, resource) - self.own(parent, resource, assigned=True), 0)
        return self.level(self.children(parent), resource, total)

    def path(self, quota: str) -> list[str]:
        path = []
        while quota != ROOT:
            path.append(quota)
            quota = self.quotas[quota].parent
        return path

    def admits(self, pod: PlainQuotaPod) -> bool:
        """Whether the quota and all its parents admit a pod that has no node."""
        return all(
            self.used(name, "cpu") + pod.request["cpu"] <= self.runtime(name, "cpu") for name in self.path(pod.quota)
        )

    def stuck(self) -> list[str]:
        """Pods without a node that the tree admits, if any core is free: a quota whose runtime became less than it uses
        keeps its pods, and others wait for them. Pods of one quota are equal: one of them is judged."""
        if sum(pod.request["cpu"] for pod in self.pods if pod.assigned) >= self.total["cpu"]:
            return []
        waiting = {pod.quota: pod for pod in self.pods if not pod.assigned}
        return sorted(pod.name for pod in waiting.values() if self.admits(pod))

    def exceeded(self) -> list[str]:
        """Quotas that use more than their max."""
        return [name for name, quota in self.quotas.items() if self.used(name, "cpu") > quota.max["cpu"]]


@dataclass
class QuotaCluster:
    """See the module text."""

    cluster: Cluster
    size: Size
    rng: random.Random
    quotas: dict[str, PlainQuota] = field(default_factory=dict)
    cores: int = 0
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """By quota: pods that admission refused."""
    timeouts: int = 0
    """Pods that were submitted again because the answer came too late. Until the scheduler lowers child-request, such
    a pod may count twice."""
    port: int = 0
    """The scheduler's."""

    def space(self, quota: str) -> str:
        return f"team-{int(quota.partition('-')[2]) % self.size.namespaces}"

    async def prepare(self) -> None:
        """Nodes with three quarters of what the leaves may use, and the tree."""
        admin = self.cluster.admin
        for obj in manifests.rbac():
            await apply(admin, obj)
        leaf_cores = sum(quota.max["cpu"] for quota in tree(self.size) if quota.name.startswith(self._leaf)) // 1000
        count = max(leaf_cores * 3 // 4 // NODE_CORES, 1)
        self.cores = count * NODE_CORES
        amounts = {"cpu": str(NODE_CORES), "memory": "64Gi", "pods": "1000"}
        conditions = [{"type": "Ready", "status": "True"}]
        status = {"status": {"allocatable": amounts, "capacity": amounts, "conditions": conditions}}

        async def node(at: int) -> None:
            await admin.raw("POST", "/api/v1/nodes", body={"metadata": {"name": f"n{at}"}})
            path = f"/api/v1/nodes/n{at}"
            merge = "application/merge-patch+json"
            await admin.raw("PATCH", f"{path}/status", body=status, content_type=merge)
            await admin.raw("PATCH", path, body={"spec": {"taints": None}}, content_type=merge)

        await self.each(node(at) for at in range(count))
        for at in range(self.size.namespaces):
            await admin.raw("POST", "/api/v1/namespaces", body={"metadata": {"name": f"team-{at}"}})

    async def plant(self) -> None:
        """Create the tree, level by level. The manager must run."""
        levels: dict[str, list[PlainQuota]] = {}
        for quota in tree(self.size):
            self.quotas[quota.name] = quota
            levels.setdefault(quota.name.partition("-")[0], []).append(quota)
        for level in levels.values():
            await self.each(self._create_quota(quota) for quota in level)

    async def _create_quota(self, quota: PlainQuota) -> None:
        space = self.space(quota.name)
        body = quota_body(quota, space, parent=not quota.name.startswith(self._leaf))
        path = f"/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/{space}/elasticquotas"
        await self.cluster.admin.raw("POST", path, body=body)

    @property
    def _leaf(self) -> str:
        return f"q{len(self.size.levels) - 1}-"

    @property
    def leaves(self) -> list[str]:
        return [name for name in self.quotas if name.startswith(self._leaf)]

    async def each(self, tasks: Iterable[Awaitable[Any]]) -> None:
        """A few at a time."""
        rest = iter(tasks)

        async def run() -> None:
            for task in rest:
                await task

        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(run())

    async def submit(self, name: str, quota: str, *, dry_run: bool = False) -> bool:
        """Whether admission accepted the pod."""
        path = f"/api/v1/namespaces/{self.space(quota)}/pods"
        params = {"dryRun": "All"} if dry_run else {}
        while True:
            try:
                await self.cluster.admin.raw("POST", path, body=pod_body(name, quota), params=params)
            except (ConnectionFailed, ServerError):  # too slow: whether the pod exists shows the next attempt
                self.timeouts += 1
                assert all(process.returncode is None for process in self.processes), self.log("manager")
                continue
            except Conflict:
                return True
            except ApiError as error:
                if "exceeded quota" in str(error):
                    self.refused[quota] += 1
                    return False
                if dry_run:
                    return False
                if "timed out" not in str(error):
                    raise
                self.timeouts += 1
                continue
            return True

    async def knows(self, quota: str) -> bool:
        """Whether admission refuses a pod that the quota can never admit: the manager has seen the quota."""
        body = pod_body("oversized", quota)
        body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "100000"
        try:
            await self.cluster.admin.raw(
                "POST", f"/api/v1/namespaces/{self.space(quota)}/pods", body=body, params={"dryRun": "All"}
            )
        except ApiError as error:
            return "exceeded quota" in str(error)
        return False

    async def delete(self, pod: Pod) -> None:
        await self.cluster.admin.delete(Pod, pod.metadata.name, pod.metadata.namespace, grace_seconds=0)

    async def pods(self) -> list[Pod]:
        return [pod for pod in await self.cluster.admin.list(Pod) if pod.metadata.namespace.startswith("team-")]

    async def expected(self) -> Expected:
        """What follows from the pods that exist now."""
        pods = [
            PlainQuotaPod(
                pod.metadata.name, pod.metadata.labels[names.LABEL_QUOTA_NAME], {"cpu": 1000}, bool(pod.spec.node_name)
            )
            for pod in await self.pods()
        ]
        return Expected({"cpu": self.cores * 1000}, self.quotas, pods)

    async def settled(self) -> Expected | None:
        """What is expected, once no pod waits that the tree admits."""
        expected = await self.expected()
        return None if expected.stuck() else expected

    async def wrong(self) -> list[str]:
        """Differences between the statuses of the quotas and what is expected."""
        expected = await self.expected()
        wrong = []
        for quota in await self.cluster.admin.list(ElasticQuota):
            name = quota.metadata.name
            if name not in self.quotas:
                continue
            own = expected.own(name, "cpu", assigned=False)
            own += sum(expected.limited(child.name, "cpu") for child in expected.children(name))
            stated = from_list(annotation.CHILD_REQUEST.get(quota.metadata.annotations) or {}).get("cpu", 0)
            used = from_list(quota.status.used).get("cpu", 0)
            if (stated, used) != (own, expected.used(name, "cpu")):
                wrong.append(f"{name}: child-request {stated}, {own} expected; used {used}")
        return wrong

    # Processes

    async def start_manager(self, until: Callable[..., Awaitable[Any]]) -> asyncio.subprocess.Process:
        """Returns when it answers webhooks. A pod is refused as long as none does."""
        probes = free_port()
        process = await self._start(
            "manager",
            "control.manager",
            f"--kubeconfig={await self.cluster.kubeconfig()}",
            *("--metrics-addr=127.0.0.1:0", f"--health-probe-addr=127.0.0.1:{probes}", "--enable-pprof=false"),
            *("--webhook-bind-address=127.0.0.1", "--controllers=quotaprofile"),
            # The API server is loaded on purpose: it may answer late, and a manager that lost its lease ends.
            *("--leader-elect-lease-duration=600s", "--leader-elect-renew-deadline=590s"),
            *("--feature-gates=EnableQuotaAdmission=true", "--rest-config-qps=2000", "--rest-config-burst=2000"),
            environ=self.cluster.environ(
                WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS="Fail", WEBHOOK_CONFIGURATION_TIMEOUT_SECONDS="30"
            ),
        )

        async def ready() -> bool:
            assert process.returncode is None, self.log("manager")
            try:
                async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{probes}/readyz") as page:
                    return page.status == 200
            except aiohttp.ClientError:
                return False

        await until(ready)
        return process

    async def start_scheduler(self) -> asyncio.subprocess.Process:
        config = configuration()
        for plugin in config["profiles"][0]["pluginConfig"]:
            if plugin["name"] == "ElasticQuota":
                plugin["args"]["enableCheckParentQuota"] = True
        path = self.cluster.tmp / "scheduler.yaml"
        path.write_text(yaml.safe_dump(config))
        self.port = free_port()
        return await self._start(
            "scheduler",
            "control.scheduler",
            *(f"--config={path}", f"--kubeconfig={self.cluster.server.kubeconfig_path}"),
            *(f"--port={self.port}", "--address=127.0.0.1", "--secure-port=0", "--leader-elect=false"),
            *("--kube-api-qps=2000", "--kube-api-burst=2000"),
        )

    async def _start(
        self, name: str, module: str, *flags: str, environ: dict[str, str] | None = None
    ) -> asyncio.subprocess.Process:
        with (self.cluster.tmp / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, *flags),
                cwd=ROOT_FOLDER,
                env={**os.environ, "HOME": "/nonexistent", **(environ or {})},
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.cluster.tmp / f"{name}.log").read_text()[-4000:]

    async def page(self) -> Any:
        """The scheduler's figures of all quotas; None as long as it does not lead."""
        url = f"http://127.0.0.1:{self.port}/apis/v1/plugins/ElasticQuota/quotas"
        try:
            async with aiohttp.ClientSession() as session, session.get(url, params={"includePods": "true"}) as page:
                return json.loads(await page.text()) if page.status == 200 else None
        except aiohttp.ClientError:
            return None


@asynccontextmanager
async def quota_cluster(folder: Path, size: Size, seed: int) -> AsyncIterator[QuotaCluster]:
    async with running_cluster(folder) as cluster:
        cluster_of_quotas = QuotaCluster(cluster, size, random.Random(seed))
        try:
            await cluster_of_quotas.prepare()
            yield cluster_of_quotas
        finally:
            for process in cluster_of_quotas.processes:
                if process.returncode is None:
                    process.kill()
                await process.wait()
