"""Objects that the proxy did not see being created: from lists, from verbose statuses, from a real containerd; and
calls on objects whose details have not arrived yet."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from control.standalone.kubelet.runtimes.criclient import CriClient
from koordlet.api.cri.api_pb2 import (
    ContainerRequest,
    ContainerStatusRequest,
    ContainerStatusResponse,
    CreateContainerRequest,
    CreateContainerResponse,
    ListContainersResponse,
    ListPodSandboxResponse,
    PodSandboxRequest,
    PodSandboxStatusRequest,
    PodSandboxStatusResponse,
    UpdateContainerResourcesRequest,
)
from koordlet.api.hooks.api_pb2 import HugepageLimit, LinuxContainerResources
from runtimeproxy.cri.calls import CriInterceptor, CriMethod
from runtimeproxy.cri.mode import RuntimeClient
from runtimeproxy.cri.recover import CriRecovery, RuntimeCallError
from runtimeproxy.cri.verbose import container_details, sandbox_parent
from runtimeproxy.hooks.pods import SkipRule
from runtimeproxy.hooks.stages import Hook
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import ProxyStore, StoredPod
from tests.runtimeproxy.test_cri_calls import Hooks, echo
from tests.runtimes.daemons import Containerd
from tests.runtimes.pods import container_config, sandbox_config

SPEC = {
    "linux": {
        "cgroupsPath": "/kubepods/podu-0/abc",
        "resources": {
            "cpu": {"shares": 512, "quota": 50000, "period": 100000, "cpus": "0-1"},
            "memory": {"limit": 4096, "swap": 4096},
        },
    },
    "process": {"oomScoreAdj": -997, "env": ["PATH=/bin", "A=1"]},
}
ASKED = {"linux": {"cgroup_parent": "/kubepods/podu-1"}}
CRIO = {"io.kubernetes.cri-o.CgroupParent": "a.slice"}
CONFIG = {
    "metadata": {"name": "main"},
    "envs": [{"key": "A", "value": "1"}, {"key": "EMPTY"}],
    "linux": {
        "resources": {
            "cpu_shares": 1024,
            "cpuset_mems": "0",
            "hugepage_limits": [{"page_size": "2MB", "limit": 4}],
            "unified": {"memory.high": "1"},
        }
    },
}


@pytest.mark.parametrize(
    ("info", "parent"),
    [
        pytest.param({"config": ASKED, "runtimeSpec": SPEC}, "/kubepods/podu-1", id="containerd"),
        pytest.param({"runtimeSpec": {**SPEC, "annotations": CRIO}}, "a.slice", id="cri-o"),
        pytest.param({"runtimeSpec": SPEC}, "/kubepods/podu-0", id="only-a-path"),
        pytest.param({"runtimeSpec": {"linux": {"cgroupsPath": "a.slice:cri:abc"}}}, "", id="only-a-slice"),
        pytest.param({"config": {"linux": {"cgroup_parent": 5}}}, "", id="odd"),
        pytest.param([], "", id="no-object"),
        pytest.param(None, "", id="null"),
    ],
)
def test_a_sandboxes_parent(info: Any, parent: str) -> None:
    assert sandbox_parent({"info": json.dumps(info)}) == parent


@pytest.mark.parametrize("info", [{}, {"info": ""}, {"info": "{"}, {"info": "[" * 100_000}, {"other": "{}"}])
def test_no_verbose_part(info: dict[str, str]) -> None:
    assert sandbox_parent(info) == ""
    container = container_details(ContainerStatusResponse(info=info))
    assert (container.resources, container.envs) == (None, None)


def details(info: Any, **status: Any) -> Any:
    return container_details(ContainerStatusResponse(status=status, info={"info": json.dumps(info)}))


def test_a_statuss_own_fields_take_precedence() -> None:
    container = details({"config": CONFIG, "runtimeSpec": SPEC}, resources={"linux": {"cpu_shares": 7}})
    assert container.resources == LinuxContainerResources(cpu_shares=7)
    assert container.envs == {"A": "1", "EMPTY": ""}


def test_applied_values_override_requested_ones() -> None:
    assert details({"config": CONFIG, "runtimeSpec": SPEC}).resources == LinuxContainerResources(
        cpu_shares=512,
        cpu_quota=50000,
        cpu_period=100000,
        cpuset_cpus="0-1",
        cpuset_mems="0",
        memory_limit_in_bytes=4096,
        oom_score_adj=-997,
        hugepage_limits=[HugepageLimit(page_size="2MB", limit=4)],
        unified={"memory.high": "1"},
    )


def test_one_half_is_enough() -> None:
    assert details({"config": CONFIG}).resources.cpu_shares == 1024
    spec_only = details({"runtimeSpec": SPEC})
    assert (spec_only.resources.cpu_quota, spec_only.envs) == (50000, None)


def test_odd_values_are_not_taken() -> None:
    odd = {
        "cpu": {"shares": "many", "quota": 2**63, "period": True, "cpus": 5},
        "memory": [],
        "unified": {"a.b": 1, "c.d": "2"},
    }
    config = {"envs": [{"key": 1, "value": "x"}, {"key": "A", "value": 2}, "B", {"key": "C", "value": "3"}]}
    pages = {"resources": {"hugepage_limits": [{"page_size": "2MB", "limit": -1}, {"limit": 1}, 7]}}
    container = details({"config": {**config, "linux": pages}, "runtimeSpec": {"linux": {"resources": odd}}})
    assert container.resources == LinuxContainerResources(unified={"c.d": "2"})
    assert container.envs == {"C": "3"}


class Runtime:
    """A runtime with two sandboxes, a container in each, and a container of a sandbox that it does not list."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken: set[str] = set()
        self.gate: asyncio.Event | None = None
        self.reached = asyncio.Event()

    async def call(self, method: str, request: bytes) -> bytes:
        self.asked.append(method)
        if method.endswith("Status") and self.gate is not None:
            self.reached.set()
            await self.gate.wait()
        if method in self.broken:
            raise RuntimeCallError(f"{method}: UNAVAILABLE: gone")
        return self.answer(method, request).SerializeToString()

    def answer(self, method: str, request: bytes) -> Message:
        pods = [
            {
                "id": f"p-{n}",
                "metadata": {"name": f"pod-{n}", "uid": f"u-{n}"},
                "labels": {"l": "1"},
                "runtime_handler": "h",
            }
            for n in (1, 2)
        ]
        match method:
            case "ListPodSandbox":
                return ListPodSandboxResponse(items=pods)
            case "ListContainers":
                return ListContainersResponse(
                    containers=[
                        {"id": f"c-{n}", "pod_sandbox_id": f"p-{n}", "metadata": {"name": "m", "attempt": n}}
                        for n in (1, 2, 9)
                    ]
                )
            case "PodSandboxStatus":
                status_request = PodSandboxStatusRequest.FromString(request)
                assert status_request.verbose
                listed_pod = next((pod for pod in pods if pod["id"] == status_request.pod_sandbox_id), None)
                if listed_pod is None:
                    raise RuntimeCallError("PodSandboxStatus: NOT_FOUND: no such sandbox")
                config = {"linux": {"cgroup_parent": f"/kubepods/{listed_pod['id']}"}}
                return PodSandboxStatusResponse(status=listed_pod, info={"info": json.dumps({"config": config})})
            case "ContainerStatus":
                assert ContainerStatusRequest.FromString(request).verbose
                return ContainerStatusResponse(info={"info": json.dumps({"config": CONFIG})})
        raise AssertionError(method)


class Recovered:
    def __init__(self) -> None:
        self.runtime, self.store, self.hooks, self.registry = Runtime(), ProxyStore(), Hooks(), CollectorRegistry()
        metrics = ProxyMetrics.of(self.registry)
        self.recovery = CriRecovery(self.store, self.runtime, metrics)
        hooks: Any = self.hooks
        self.interceptor = CriInterceptor(self.store, hooks, SkipRule(), self.recovery, metrics)


@pytest.fixture
def world() -> Recovered:
    return Recovered()


async def test_lists_come_first_and_details_behind(world: Recovered) -> None:
    assert await world.recovery.lists()
    assert world.runtime.asked == ["ListPodSandbox", "ListContainers"]
    assert world.store.pods["p-1"] == StoredPod(
        name="pod-1", uid="u-1", labels={"l": "1"}, runtime_handler="h", complete=False
    )
    assert sorted(world.store.containers) == ["c-1", "c-2"]  # not the one of the unknown sandbox
    await world.recovery.details()
    pod, container = world.store.pods["p-2"], world.store.containers["c-2"]
    assert (pod.cgroup_parent, pod.complete) == ("/kubepods/p-2", True)
    assert (container.name, container.attempt, container.pod) == ("m", 2, pod)
    assert container.resources is not None and container.resources.cpu_shares == 1024
    assert container.envs == {"A": "1", "EMPTY": ""}
    before = len(world.runtime.asked)
    await world.recovery.details()
    assert len(world.runtime.asked) == before
    recoveries = {
        kind: world.registry.get_sample_value("koord_runtime_proxy_recoveries_total", {"kind": kind})
        for kind in ("sandbox", "container")
    }
    assert recoveries == {"sandbox": 2, "container": 2}


@pytest.mark.parametrize("method", ["ListPodSandbox", "ListContainers"])
async def test_a_runtime_that_does_not_list(world: Recovered, method: str) -> None:
    world.runtime.broken = {method}
    assert not await world.recovery.lists()
    await world.recovery.details()
    assert (world.store.pods, world.store.containers) == ({}, {})


async def test_a_runtime_without_details(world: Recovered) -> None:
    await world.recovery.lists()
    world.runtime.broken = {"PodSandboxStatus", "ContainerStatus"}
    await world.recovery.details()
    assert not world.store.pods["p-1"].complete
    world.hooks.answers[Hook.PRE_START_CONTAINER] = echo
    await world.interceptor.before(CriMethod.START_CONTAINER, ContainerRequest(container_id="c-1").SerializeToString())
    assert world.hooks[0].pod_meta.name == "pod-1"  # with the known values


async def test_a_call_fetches_missing_details(world: Recovered) -> None:
    await world.recovery.lists()
    world.hooks.answers[Hook.PRE_START_CONTAINER] = echo
    await world.interceptor.before(CriMethod.START_CONTAINER, ContainerRequest(container_id="c-1").SerializeToString())
    hook_call = world.hooks[0]
    assert (hook_call.pod_cgroup_parent, hook_call.container_resources.cpu_shares) == ("/kubepods/p-1", 1024)
    assert world.runtime.asked[2:] == ["PodSandboxStatus", "ContainerStatus"]


async def test_an_update_without_a_hook_is_kept_over_what_was_there(world: Recovered) -> None:
    await world.recovery.lists()
    request = UpdateContainerResourcesRequest(container_id="c-1", linux={"cpu_shares": 2})
    _, pending = await world.interceptor.before(CriMethod.UPDATE_CONTAINER_RESOURCES, request.SerializeToString())
    world.interceptor.answered(pending, b"")
    kept = world.store.containers["c-1"].resources
    assert kept is not None and (kept.cpu_shares, kept.cpuset_mems) == (2, "0")


async def test_a_concurrent_stop_is_not_undone(world: Recovered) -> None:
    await world.recovery.lists()
    world.runtime.gate = asyncio.Event()
    details = asyncio.create_task(world.recovery.details())
    await world.runtime.reached.wait()
    world.store.forget_pod("p-1")
    world.runtime.gate.set()
    await details
    assert (list(world.store.pods), list(world.store.containers)) == (["p-2"], ["c-2"])


async def test_fetching_details_can_be_cancelled(world: Recovered) -> None:
    await world.recovery.lists()
    world.runtime.gate = asyncio.Event()
    details = asyncio.create_task(world.recovery.details())
    await asyncio.sleep(0)
    details.cancel()
    with pytest.raises(asyncio.CancelledError):
        await details


def create(pod_id: str) -> bytes:
    return CreateContainerRequest(pod_sandbox_id=pod_id, config={"metadata": {"name": "n"}}).SerializeToString()


async def test_an_unknown_sandbox_is_fetched(world: Recovered) -> None:
    world.hooks.answers[Hook.PRE_CREATE_CONTAINER] = echo
    _, pending = await world.interceptor.before(CriMethod.CREATE_CONTAINER, create("p-2"))
    world.interceptor.answered(pending, CreateContainerResponse(container_id="c-7").SerializeToString())
    assert world.hooks[0].pod_cgroup_parent == "/kubepods/p-2"
    assert world.store.containers["c-7"].pod.name == "pod-2"


async def test_a_sandbox_that_the_runtime_does_not_know_either(world: Recovered) -> None:
    world.hooks.answers[Hook.PRE_CREATE_CONTAINER] = echo
    body = create("p-9")
    sent, pending = await world.interceptor.before(CriMethod.CREATE_CONTAINER, body)
    world.interceptor.answered(pending, CreateContainerResponse(container_id="c-7").SerializeToString())
    assert sent is body
    assert world.hooks.asked == []
    assert world.store.containers == {}


async def test_a_hanging_runtime_delays_a_call_at_most_until_its_deadline(world: Recovered) -> None:
    world.hooks.answers[Hook.PRE_CREATE_CONTAINER] = echo
    world.runtime.gate = asyncio.Event()
    body = create("p-2")
    sent, _ = await world.interceptor.before(CriMethod.CREATE_CONTAINER, body, deadline=0.0)  # expired
    assert sent is body


async def test_stopping_what_is_incomplete_needs_no_details_unless_a_hook_does(world: Recovered) -> None:
    await world.recovery.lists()
    stop = PodSandboxRequest(pod_sandbox_id="p-1").SerializeToString()
    await world.interceptor.before(CriMethod.STOP_POD_SANDBOX, stop)
    await world.interceptor.before(CriMethod.STOP_CONTAINER, ContainerRequest(container_id="c-1").SerializeToString())
    assert len(world.runtime.asked) == 2
    world.hooks.answers[Hook.POST_STOP_POD_SANDBOX] = echo
    _, pending = await world.interceptor.before(CriMethod.STOP_POD_SANDBOX, stop)
    assert pending.pod is not None and pending.pod.cgroup_parent == "/kubepods/p-1"


async def test_an_answer_that_cannot_be_parsed(world: Recovered) -> None:
    async def garbage(method: str, request: bytes) -> bytes:
        return b"\xff"

    world.runtime.call = garbage  # type: ignore[method-assign]
    assert not await world.recovery.lists()


@pytest.mark.runtime
@pytest.mark.parametrize("slices", [False, True], ids=["cgroupfs", "slices"])
async def test_a_real_containerd_returns_the_requested_values(
    containerd: Containerd, cri: CriClient, slices: bool
) -> None:
    parent = containerd.cgroup_parent("pod", slices=slices)
    sandbox = sandbox_config(parent, name="web")
    pod_id = await cri.run_pod_sandbox(sandbox)
    requested = LinuxContainerResources(cpu_period=100_000, cpu_quota=50_000, cpu_shares=512, oom_score_adj=900)
    config = container_config(resources=requested, envs=[("GREETING", "hello")])
    container_id = await cri.create_container(pod_id, config, sandbox)
    store = ProxyStore()
    recovery = CriRecovery(store, RuntimeClient(containerd.socket), ProxyMetrics.of(CollectorRegistry()))
    assert await recovery.lists()
    await recovery.details()
    pod, container = store.pods[pod_id], store.containers[container_id]
    assert (pod.name, pod.cgroup_parent, pod.complete) == ("web", parent, True)
    assert container.resources is not None and container.complete
    values = (container.resources.cpu_period, container.resources.cpu_quota, container.resources.cpu_shares)
    assert values == (100_000, 50_000, 512)
    assert container.resources.oom_score_adj == 900
    assert container.envs == {"GREETING": "hello"}


async def test_containers_removed_beside_the_proxy_are_dropped(world: Recovered) -> None:
    await world.recovery.lists()
    await world.recovery.details()
    pod = world.store.pods["p-1"]
    world.store.put_pod("p-gone", pod)
    world.store.put_container(replace(world.store.containers["c-1"], id="c-gone"))
    world.runtime.broken = {"ListContainers"}
    assert await world.recovery.forget_gone() == 0
    assert "p-gone" in world.store.pods and "c-gone" in world.store.containers
    world.runtime.broken = set()
    assert await world.recovery.forget_gone() == 2
    assert sorted(world.store.pods) == ["p-1", "p-2"] and sorted(world.store.containers) == ["c-1", "c-2"]
