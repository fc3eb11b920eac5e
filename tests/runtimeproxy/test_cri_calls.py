"""CRI's intercepted calls: hook requests, requests to the runtime, and the store. Hooks are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from koordlet.api.cri.api_pb2 import (
    ContainerRequest,
    CreateContainerRequest,
    CreateContainerResponse,
    PodSandboxRequest,
    RunPodSandboxRequest,
    RunPodSandboxResponse,
    UpdateContainerResourcesRequest,
)
from koordlet.api.hooks.api_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    HugepageLimit,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from runtimeproxy.cri.calls import CriInterceptor, CriMethod, PendingCall, intercepted
from runtimeproxy.hooks.dispatch import NO_SERVER, HookOutcome, HookRefused
from runtimeproxy.hooks.pods import SkipRule
from runtimeproxy.hooks.stages import Hook, HookFailurePolicy, HookRequest
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import ProxyStore, StoredContainer, StoredPod

GIB = 1 << 30
LATER = b"\xa2\x06\x03new"
"""Field 100, of an unknown later version of the messages."""
Answer = Callable[[Any], Any]


class Hooks:
    """Fake dispatcher: scripted responses by hook, and a record of requests. A hook without a response is not
    registered."""

    def __init__(self) -> None:
        self.answers: dict[Hook, Answer | HookOutcome] = {}
        self.asked: list[tuple[Hook, Any]] = []
        self.gate: asyncio.Event | None = None

    def handles(self, hook: Hook) -> bool:
        return hook in self.answers

    async def dispatch(self, hook: Hook, request: HookRequest, deadline: float | None = None) -> HookOutcome:
        answer = self.answers.get(hook)
        if answer is None:
            return NO_SERVER
        self.asked.append((hook, request))
        if self.gate is not None:
            await self.gate.wait()
        return answer if isinstance(answer, HookOutcome) else HookOutcome(answer(request), HookFailurePolicy.IGNORE)

    def __getitem__(self, place: int) -> Any:
        return self.asked[place][1]


def echo(request: Any, **over: Any) -> Any:
    """A well-behaved server's response: the request's fields with its own changes."""
    if isinstance(request, PodSandboxHookRequest):
        response: Any = PodSandboxHookResponse(
            labels=request.labels, annotations=request.annotations, cgroup_parent=request.cgroup_parent
        )
    else:
        response = ContainerResourceHookResponse(
            container_annotations=request.container_annotations,
            pod_cgroup_parent=request.pod_cgroup_parent,
            container_envs=request.container_envs,
        )
        if request.HasField("container_resources"):
            response.container_resources.CopyFrom(request.container_resources)
    response.MergeFrom(type(response)(**over))
    return response


def saying(**over: Any) -> Answer:
    return lambda request: echo(request, **over)


class Proxy:
    """An interceptor with an empty store."""

    def __init__(self) -> None:
        self.hooks, self.store, self.registry = Hooks(), ProxyStore(), CollectorRegistry()
        hooks: Any = self.hooks
        self.interceptor = CriInterceptor(self.store, hooks, SkipRule(), metrics=ProxyMetrics.of(self.registry))

    async def call(
        self, call: CriMethod, request: Message | bytes, answer: Message | None
    ) -> tuple[bytes, bytes, PendingCall]:
        """The request before and after interception, and the answered call."""
        body = request if isinstance(request, bytes) else request.SerializeToString()
        sent, pending = await self.interceptor.before(call, body)
        self.interceptor.answered(pending, None if answer is None else answer.SerializeToString())
        after = self.interceptor.after(pending)
        if after is not None:
            await after
        return body, sent, pending

    async def run(self, request: Message | bytes, pod_id: str = "pod-1") -> RunPodSandboxRequest:
        _, sent, _ = await self.call(CriMethod.RUN_POD_SANDBOX, request, RunPodSandboxResponse(pod_sandbox_id=pod_id))
        return RunPodSandboxRequest.FromString(sent)

    async def create(self, request: Message | bytes, container_id: str = "c-1") -> CreateContainerRequest:
        answer = CreateContainerResponse(container_id=container_id)
        return CreateContainerRequest.FromString((await self.call(CriMethod.CREATE_CONTAINER, request, answer))[1])

    async def update(self, **fields: Any) -> UpdateContainerResourcesRequest:
        request = UpdateContainerResourcesRequest(container_id="c-1", **fields)
        _, sent, _ = await self.call(CriMethod.UPDATE_CONTAINER_RESOURCES, request, PodSandboxRequest())
        return UpdateContainerResourcesRequest.FromString(sent)

    def unhooked(self, reason: str) -> float | None:
        return self.registry.get_sample_value("koord_runtime_proxy_unhooked_total", {"reason": reason})


def pod_request(**over: Any) -> RunPodSandboxRequest:
    config = {
        "metadata": {"name": "web", "uid": "u-1", "namespace": "ns", "attempt": 2},
        "labels": {"koordinator.sh/qosClass": "LS"},
        "annotations": {"a": "1"},
        "linux": {"cgroup_parent": "/kubepods/podu-1"},
    }
    return RunPodSandboxRequest(config={**config, **over}, runtime_handler="runc")


def container_request(**over: Any) -> CreateContainerRequest:
    config = {
        "metadata": {"name": "main", "attempt": 1},
        "annotations": {"c": "1"},
        "envs": [{"key": "B", "value": "1"}, {"key": "A", "value": "2"}],
        "linux": {"resources": {"cpu_period": 100000, "cpu_quota": 100000, "cpu_shares": 1024}},
    }
    return CreateContainerRequest(
        pod_sandbox_id="pod-1", config={**config, **over}, sandbox_config=pod_request().config
    )


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


@pytest.fixture
async def ready() -> Proxy:
    """With a pod pod-1 and its container c-1."""
    proxy = Proxy()
    await proxy.run(pod_request())
    await proxy.create(container_request())
    return proxy


@pytest.mark.parametrize(
    ("path", "call"),
    [
        ("/runtime.v1.RuntimeService/RunPodSandbox", CriMethod.RUN_POD_SANDBOX),
        ("/runtime.v1alpha2.RuntimeService/RemoveContainer", CriMethod.REMOVE_CONTAINER),
        ("/runtime.v1.RuntimeService/Version", None),
        ("/runtime.v1.ImageService/RunPodSandbox", None),
        ("/runtime.v2.RuntimeService/RunPodSandbox", None),
        ("", None),
    ],
)
def test_paths(path: str, call: CriMethod | None) -> None:
    assert intercepted(path) is call


# Hook requests


async def test_a_sandboxes_hook(proxy: Proxy) -> None:
    proxy.hooks.answers[Hook.PRE_RUN_POD_SANDBOX] = echo
    await proxy.run(pod_request())
    assert proxy.hooks[0] == PodSandboxHookRequest(
        pod_meta={"name": "web", "uid": "u-1", "namespace": "ns", "attempt": 2},
        runtime_handler="runc",
        labels={"koordinator.sh/qosClass": "LS"},
        annotations={"a": "1"},
        cgroup_parent="/kubepods/podu-1",
    )


async def test_a_containers_hooks_in_its_life(proxy: Proxy) -> None:
    proxy.hooks.answers = dict.fromkeys(Hook, echo)
    await proxy.run(pod_request())
    await proxy.create(container_request())
    about = ContainerRequest(container_id="c-1")
    await proxy.call(CriMethod.START_CONTAINER, about, PodSandboxRequest())
    await proxy.update(linux={"cpu_shares": 512})
    await proxy.call(CriMethod.STOP_CONTAINER, about, PodSandboxRequest())
    await proxy.call(CriMethod.REMOVE_CONTAINER, about, PodSandboxRequest())
    await proxy.call(CriMethod.STOP_POD_SANDBOX, PodSandboxRequest(pod_sandbox_id="pod-1"), PodSandboxRequest())
    await proxy.call(CriMethod.REMOVE_POD_SANDBOX, PodSandboxRequest(pod_sandbox_id="pod-1"), PodSandboxRequest())
    assert [hook.value for hook, _ in proxy.hooks.asked] == [
        "PreRunPodSandbox",
        "PreCreateContainer",
        "PreStartContainer",
        "PostStartContainer",
        "PreUpdateContainerResources",
        "PostStopContainer",
        "PostStopPodSandbox",
    ]
    request = ContainerResourceHookRequest(
        pod_meta={"name": "web", "uid": "u-1", "namespace": "ns", "attempt": 2},
        container_meta={"name": "main", "attempt": 1},
        container_annotations={"c": "1"},
        container_resources={"cpu_period": 100000, "cpu_quota": 100000, "cpu_shares": 1024},
        pod_annotations={"a": "1"},
        pod_labels={"koordinator.sh/qosClass": "LS"},
        pod_cgroup_parent="/kubepods/podu-1",
        container_envs={"A": "2", "B": "1"},
    )
    assert proxy.hooks[1] == request
    request.container_meta.id = "c-1"
    assert proxy.hooks[2] == proxy.hooks[3] == request
    request.container_resources.cpu_shares = 512
    assert proxy.hooks[4] == proxy.hooks[5] == request
    assert (proxy.store.pods, proxy.store.containers) == ({}, {})


async def test_later_hook_requests_contain_earlier_changes(proxy: Proxy) -> None:
    proxy.hooks.answers = {
        Hook.PRE_RUN_POD_SANDBOX: saying(
            labels={"l": "x"}, annotations={"a": "2"}, cgroup_parent="/other", resources={"cpu_shares": 7}
        ),
        Hook.PRE_CREATE_CONTAINER: saying(container_annotations={"h": "1"}, container_resources={"cpu_shares": 9}),
        Hook.PRE_START_CONTAINER: echo,
    }
    sent = await proxy.run(pod_request())
    assert dict(sent.config.labels) == {"koordinator.sh/qosClass": "LS", "l": "x"}
    assert dict(sent.config.annotations) == {"a": "2"}
    assert proxy.store.pods["pod-1"].cgroup_parent == "/other"
    await proxy.create(container_request())
    assert proxy.hooks[1].pod_resources.cpu_shares == 7
    assert dict(proxy.hooks[1].pod_annotations) == {"a": "2"}
    await proxy.call(CriMethod.START_CONTAINER, ContainerRequest(container_id="c-1"), PodSandboxRequest())
    assert dict(proxy.hooks[2].container_annotations) == {"c": "1", "h": "1"}
    assert proxy.hooks[2].container_resources.cpu_shares == 9


# Requests to the runtime

EVERY_CALL = [
    pytest.param(CriMethod.RUN_POD_SANDBOX, pod_request(), id="run"),
    pytest.param(CriMethod.STOP_POD_SANDBOX, PodSandboxRequest(pod_sandbox_id="pod-1"), id="stop-pod"),
    pytest.param(CriMethod.REMOVE_POD_SANDBOX, PodSandboxRequest(pod_sandbox_id="pod-1"), id="remove-pod"),
    pytest.param(CriMethod.CREATE_CONTAINER, container_request(), id="create"),
    pytest.param(CriMethod.START_CONTAINER, ContainerRequest(container_id="c-1"), id="start"),
    pytest.param(
        CriMethod.UPDATE_CONTAINER_RESOURCES,
        UpdateContainerResourcesRequest(
            container_id="c-1", linux={"cpu_period": 100000, "cpu_quota": 100000, "cpu_shares": 1024}
        ),
        id="update-to-what-it-has",
    ),
    pytest.param(CriMethod.STOP_CONTAINER, ContainerRequest(container_id="c-1"), id="stop"),
    pytest.param(CriMethod.REMOVE_CONTAINER, ContainerRequest(container_id="c-1"), id="remove"),
]


def silent(request: Any) -> Any:
    return type(echo(request))()


@pytest.mark.parametrize(("call", "message"), EVERY_CALL)
@pytest.mark.parametrize(
    "answer",
    [None, echo, silent, HookOutcome(None, HookFailurePolicy.IGNORE, "down")],
    ids=["no server", "echo", "silent", "failed"],
)
async def test_the_original_bytes_are_forwarded_when_nothing_changes(
    ready: Proxy, call: CriMethod, message: Message, answer: Any
) -> None:
    ready.hooks.answers = {} if answer is None else dict.fromkeys(Hook, answer)
    # an order of fields and maps that no serialiser produces
    body = LATER + message.SerializeToString() + LATER
    came, sent, _ = await ready.call(call, body, RunPodSandboxResponse(pod_sandbox_id="p-2"))
    assert sent is came


@pytest.mark.parametrize(("call", "message"), EVERY_CALL)
async def test_a_policy_of_fail(ready: Proxy, call: CriMethod, message: Message) -> None:
    ready.hooks.answers = dict.fromkeys(Hook, HookOutcome(None, HookFailurePolicy.FAIL, "down"))
    if call in (
        CriMethod.RUN_POD_SANDBOX,
        CriMethod.CREATE_CONTAINER,
        CriMethod.START_CONTAINER,
        CriMethod.UPDATE_CONTAINER_RESOURCES,
    ):
        with pytest.raises(HookRefused, match=r"^hook server err: down$"):
            await ready.call(call, message, None)
    else:  # failures of post hooks affect no call
        came, sent, _ = await ready.call(call, message, PodSandboxRequest())
        assert sent is came


@pytest.mark.parametrize("call", list(CriMethod))
@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe"], ids=["tag", "short", "not-utf-8"])
async def test_unparsable_requests_are_forwarded(ready: Proxy, call: CriMethod, body: bytes) -> None:
    ready.hooks.answers = dict.fromkeys(Hook, echo)
    sent, pending = await ready.interceptor.before(call, body)
    assert sent is body
    ready.interceptor.answered(pending, b"\xff")
    assert ready.interceptor.after(pending) is None
    assert ready.unhooked("undecodable") == 1
    assert list(ready.store.containers) == ["c-1"]


bodies = st.sampled_from([pod_request(), container_request()]).map(lambda request: request.SerializeToString())


@given(st.sampled_from(list(CriMethod)), st.binary(max_size=100) | bodies, st.binary(max_size=20))
async def test_no_bytes_make_a_call_fail(call: CriMethod, body: bytes, answer: bytes) -> None:
    proxy = Proxy()
    proxy.hooks.answers = dict.fromkeys(Hook, echo)
    proxy.store.put_pod("pod-1", StoredPod(name="p"))
    sent, pending = await proxy.interceptor.before(call, body)
    assert sent is body
    proxy.interceptor.answered(pending, answer)
    after = proxy.interceptor.after(pending)
    if after is not None:
        await after


async def test_a_sandbox_is_rewritten(proxy: Proxy) -> None:
    proxy.hooks.answers[Hook.PRE_RUN_POD_SANDBOX] = lambda request: PodSandboxHookResponse(
        labels={"new": "l"}, annotations={"a": "9", "b": "2"}, cgroup_parent="/kubepods/besteffort/podu-1"
    )
    request = RunPodSandboxRequest.FromString(pod_request().SerializeToString() + LATER)
    request.config.MergeFromString(LATER)
    request.config.linux.MergeFromString(LATER)
    sent = await proxy.run(request)
    assert dict(sent.config.annotations) == {"a": "9", "b": "2"}
    assert dict(sent.config.labels) == {"koordinator.sh/qosClass": "LS", "new": "l"}
    assert sent.config.linux.cgroup_parent == "/kubepods/besteffort/podu-1"
    assert proxy.store.pods["pod-1"].cgroup_parent == "/kubepods/besteffort/podu-1"
    assert sent.SerializeToString().count(LATER) == 3


async def test_a_container_is_rewritten(ready: Proxy) -> None:
    ready.hooks.answers[Hook.PRE_CREATE_CONTAINER] = lambda request: ContainerResourceHookResponse(
        container_annotations={"c": "2", "d": "3"},
        container_resources={"cpu_period": 100000, "cpu_quota": -1, "cpu_shares": 2, "cpuset_cpus": "0-3"},
        pod_cgroup_parent="/kubepods/besteffort/podu-1",
        container_envs={"A": "3", "B": "1", "Z": "z", "C": "c"},
    )
    request = container_request()
    for part in (request, request.config, request.config.linux, request.config.linux.resources, request.config.envs[1]):
        part.MergeFromString(LATER)
    sent = await ready.create(request, "c-2")
    assert [(env.key, env.value) for env in sent.config.envs] == [("B", "1"), ("A", "3"), ("C", "c"), ("Z", "z")]
    assert dict(sent.config.annotations) == {"c": "2", "d": "3"}
    assert sent.sandbox_config.linux.cgroup_parent == "/kubepods/besteffort/podu-1"
    assert sent.SerializeToString().count(LATER) == 5
    kept = ready.store.containers["c-2"]
    assert kept.resources == LinuxContainerResources(cpu_period=100000, cpu_quota=-1, cpu_shares=2, cpuset_cpus="0-3")
    assert kept.envs == {"A": "3", "B": "1", "C": "c", "Z": "z"}
    assert kept.cgroup_parent == "/kubepods/besteffort/podu-1"


async def test_sections_that_are_missing_are_made(ready: Proxy) -> None:
    ready.hooks.answers[Hook.PRE_RUN_POD_SANDBOX] = saying(cgroup_parent="/x")
    ready.hooks.answers[Hook.PRE_CREATE_CONTAINER] = lambda request: ContainerResourceHookResponse(
        container_resources={"cpu_shares": 2}, pod_cgroup_parent="/y"
    )
    ready.hooks.answers[Hook.PRE_UPDATE_CONTAINER_RESOURCES] = saying(container_resources={"cpuset_cpus": "1"})
    bare = RunPodSandboxRequest(config={"metadata": {"name": "p"}})
    assert (await ready.run(bare)).config.linux.cgroup_parent == "/x"
    sent = await ready.create(CreateContainerRequest(pod_sandbox_id="pod-1", config={"metadata": {"name": "c"}}))
    assert sent.config.linux.resources.cpu_shares == 2
    assert sent.sandbox_config.linux.cgroup_parent == "/y"
    assert (await ready.update()).linux == LinuxContainerResources(cpu_shares=2, cpuset_cpus="1")


async def test_windows_keeps_its_resources(ready: Proxy) -> None:
    everything = {"cpu_period": 100000, "cpu_quota": -1, "cpu_shares": 2, "cpuset_cpus": "0"}
    ready.hooks.answers[Hook.PRE_RUN_POD_SANDBOX] = saying(cgroup_parent="/x", annotations={"h": "1"})
    ready.hooks.answers[Hook.PRE_CREATE_CONTAINER] = saying(
        container_resources=everything, pod_cgroup_parent="/x", container_envs={"H": "1"}
    )
    ready.hooks.answers[Hook.PRE_UPDATE_CONTAINER_RESOURCES] = saying(
        container_resources=everything, container_annotations={"h": "2"}
    )
    pod = RunPodSandboxRequest(config={"metadata": {"name": "p"}, "windows": {}})
    sent = await ready.run(pod)
    assert (sent.config.HasField("linux"), dict(sent.config.annotations)) == (False, {"h": "1"})
    container = CreateContainerRequest(pod_sandbox_id="pod-1", config={"windows": {}}, sandbox_config=pod.config)
    created = await ready.create(container)
    assert not created.config.HasField("linux") and not created.sandbox_config.HasField("linux")
    assert [env.key for env in created.config.envs] == ["H"]
    changed = await ready.update(windows={})
    assert (changed.HasField("linux"), dict(changed.annotations)) == (False, {"h": "2"})


async def test_the_specs_update(proxy: Proxy) -> None:
    proxy.store.put_container(
        StoredContainer(
            pod=StoredPod(name="p"),
            pod_id="pod-1",
            id="c-1",
            resources=LinuxContainerResources(
                cpu_quota=100000, cpu_shares=1024, memory_limit_in_bytes=GIB, cpuset_cpus="0-3"
            ),
        )
    )
    proxy.hooks.answers[Hook.PRE_UPDATE_CONTAINER_RESOURCES] = lambda request: ContainerResourceHookResponse(
        container_resources=LinuxContainerResources(
            cpu_quota=100000, cpu_shares=512, memory_limit_in_bytes=GIB, cpuset_cpus="0-1"
        )
    )
    whole = LinuxContainerResources(cpu_quota=100000, cpu_shares=512, memory_limit_in_bytes=GIB, cpuset_cpus="0-1")
    assert (await proxy.update(linux={"cpu_shares": 512})).linux == whole
    assert proxy.store.containers["c-1"].resources == whole


async def test_an_update_without_a_hook_passes_and_is_kept(ready: Proxy) -> None:
    sent = await ready.update(linux={"cpu_shares": 512, "oom_score_adj": 5})
    assert sent.linux == LinuxContainerResources(cpu_shares=512, oom_score_adj=5)
    assert ready.store.containers["c-1"].resources == LinuxContainerResources(
        cpu_period=100000, cpu_quota=100000, cpu_shares=512
    )


async def test_an_update_that_the_runtime_rejects_is_not_stored(ready: Proxy) -> None:
    before = ready.store.containers["c-1"]
    request = UpdateContainerResourcesRequest(container_id="c-1", linux={"cpu_shares": 512})
    await ready.call(CriMethod.UPDATE_CONTAINER_RESOURCES, request, None)
    assert ready.store.containers["c-1"] == before


async def test_an_updates_own_fields_survive(ready: Proxy) -> None:
    ready.hooks.answers[Hook.PRE_UPDATE_CONTAINER_RESOURCES] = saying(
        container_resources={"cpuset_cpus": "1"}, container_annotations={"h": "1"}
    )
    linux = LinuxContainerResources(cpu_shares=3, hugepage_limits=[HugepageLimit(page_size="2MB", limit=4)])
    linux.MergeFromString(LATER)
    sent = await ready.update(linux=linux, annotations={"own": "1"})
    assert list(sent.linux.hugepage_limits) == list(linux.hugepage_limits)
    assert sent.linux.SerializeToString().count(LATER) == 1
    assert dict(sent.annotations) == {"own": "1", "h": "1"}
    assert (sent.linux.cpu_shares, sent.linux.cpu_quota, sent.linux.cpuset_cpus) == (3, 100000, "1")


async def test_unknown_resources_are_replaced_by_the_hooks(proxy: Proxy) -> None:
    proxy.store.put_container(StoredContainer(pod=StoredPod(name="p"), pod_id="pod-1", id="c-1"))
    proxy.hooks.answers[Hook.PRE_UPDATE_CONTAINER_RESOURCES] = saying(container_resources={"cpuset_cpus": "1"})
    sent = await proxy.update(linux={"cpu_shares": 3})
    assert sent.linux == LinuxContainerResources(cpu_shares=3, cpuset_cpus="1")


async def test_messages_of_sixteen_mebibytes(ready: Proxy) -> None:
    ready.hooks.answers[Hook.PRE_CREATE_CONTAINER] = saying(container_annotations={"h": "1"})
    large = "x" * (16 << 20)
    sent = await ready.create(container_request(annotations={"large": large}))
    assert dict(sent.config.annotations) == {"large": large, "h": "1"}


@given(st.text(max_size=30), st.text(max_size=30))
async def test_labels_of_any_text(name: str, value: str) -> None:
    """Unknown QoS classes, empty and odd labels are the hook server's to check."""
    proxy = Proxy()
    proxy.hooks.answers = dict.fromkeys(Hook, echo)
    request = pod_request(labels={"koordinator.sh/qosClass": value, name: value}, annotations={name: value})
    came, sent, _ = await proxy.call(CriMethod.RUN_POD_SANDBOX, request, RunPodSandboxResponse(pod_sandbox_id="p"))
    assert sent is came
    assert proxy.store.pods["p"].labels == dict(request.config.labels)
    assert dict(proxy.hooks[0].labels) == dict(request.config.labels)


names = st.sampled_from("ABCDE")
texts = st.sampled_from(["", "1", "2"])
limits = st.builds(
    LinuxContainerResources,
    cpu_period=st.sampled_from([0, 100000]),
    cpu_quota=st.sampled_from([-1, 0, 5000]),
    cpu_shares=st.sampled_from([0, 2, 1024]),
    memory_limit_in_bytes=st.sampled_from([-1, 0, GIB]),
    oom_score_adj=st.sampled_from([-997, 0, 1000]),
    cpuset_cpus=st.sampled_from(["", "0", "0-3"]),
    unified=st.dictionaries(st.sampled_from(["cpu.idle"]), texts),
)
answers = st.builds(
    ContainerResourceHookResponse,
    container_annotations=st.dictionaries(names, texts),
    container_resources=st.none() | limits,
    pod_cgroup_parent=st.sampled_from(["", "/kubepods/podu-1", "/other"]),
    container_envs=st.dictionaries(names, texts),
)


@given(
    answers,
    st.dictionaries(names, texts),
    st.lists(st.tuples(names, texts)),
    st.none() | limits,
    st.binary(min_size=1, max_size=20),
)
async def test_nothing_else_of_a_request_changes_and_no_answer_counts_twice(
    answer: Any, annotations: Any, envs: Any, resources: Any, new: bytes
) -> None:
    proxy = Proxy()
    await proxy.run(pod_request())
    later = b"\xa2\x06" + bytes((len(new),)) + new
    request = container_request(
        annotations=annotations,
        envs=[{"key": key, "value": value} for key, value in envs],
        linux={"resources": resources} if resources is not None else {},
    )
    for part in (request, request.config, request.config.linux, request.sandbox_config, *request.config.envs):
        part.MergeFromString(later)
    request = CreateContainerRequest.FromString(request.SerializeToString())
    proxy.hooks.answers[Hook.PRE_CREATE_CONTAINER] = lambda _: answer
    once = await proxy.create(request)
    came, again, _ = await proxy.call(CriMethod.CREATE_CONTAINER, once, None)
    assert again is came
    for env in once.config.envs:
        if env.key in dict(envs):
            assert env.SerializeToString().count(later) >= 1
    for sent in (request, once):
        del sent.config.envs[:]
        sent.config.annotations.clear()
        sent.config.linux.ClearField("resources")
        sent.sandbox_config.linux.ClearField("cgroup_parent")
    assert once.SerializeToString(deterministic=True) == request.SerializeToString(deterministic=True)


# Calls without hooks


async def test_the_skip_label(proxy: Proxy) -> None:
    proxy.hooks.answers = dict.fromkeys(Hook, HookOutcome(None, HookFailurePolicy.FAIL, "must not be asked"))
    await proxy.run(pod_request(labels={"runtimeproxy.koordinator.sh/skip-hookserver": "true"}))
    await proxy.create(container_request())
    await proxy.call(CriMethod.START_CONTAINER, ContainerRequest(container_id="c-1"), PodSandboxRequest())
    assert list(proxy.store.pods) == ["pod-1"]
    assert list(proxy.store.containers) == ["c-1"]
    await proxy.call(CriMethod.STOP_CONTAINER, ContainerRequest(container_id="c-1"), PodSandboxRequest())
    await proxy.call(CriMethod.STOP_POD_SANDBOX, PodSandboxRequest(pod_sandbox_id="pod-1"), PodSandboxRequest())
    assert proxy.hooks.asked == []
    assert (proxy.store.pods, proxy.store.containers) == ({}, {})
    assert proxy.unhooked("skip-label") == 3


@pytest.mark.parametrize(
    ("rule", "labels", "exempt"),
    [
        (SkipRule(), {"runtimeproxy.koordinator.sh/skip-hookserver": "true"}, True),
        (SkipRule(), {"runtimeproxy.koordinator.sh/skip-hookserver": "false"}, False),
        (SkipRule(), {"runtimeproxy.koordinator.sh/skip-hookserver": "true", "koordinator.sh/qosClass": "BE"}, False),
        (SkipRule(), {}, False),
        (SkipRule("k", "v"), {"k": "v"}, True),
        (SkipRule("", ""), {"": ""}, False),
    ],
)
def test_skip_rules(rule: SkipRule, labels: dict[str, str], exempt: bool) -> None:
    assert rule.exempts(StoredPod(labels=labels, annotations=dict.fromkeys(labels, "true"))) is exempt


async def test_calls_on_unknown_objects(proxy: Proxy) -> None:
    proxy.hooks.answers = dict.fromkeys(Hook, HookOutcome(None, HookFailurePolicy.FAIL, "must not be asked"))
    for call, request in (
        (CriMethod.CREATE_CONTAINER, container_request()),
        (CriMethod.START_CONTAINER, ContainerRequest(container_id="x")),
        (
            CriMethod.UPDATE_CONTAINER_RESOURCES,
            UpdateContainerResourcesRequest(container_id="x", linux={"cpu_shares": 2}),
        ),
        (CriMethod.STOP_CONTAINER, ContainerRequest(container_id="x")),
        (CriMethod.STOP_POD_SANDBOX, PodSandboxRequest(pod_sandbox_id="x")),
        (CriMethod.RUN_POD_SANDBOX, RunPodSandboxRequest(runtime_handler="runc")),  # without a config
        (CriMethod.RUN_POD_SANDBOX, b""),
        (CriMethod.CREATE_CONTAINER, b""),
    ):
        came, sent, _ = await proxy.call(call, request, CreateContainerResponse(container_id="x"))
        assert sent is came
    assert (proxy.store.pods, proxy.store.containers) == ({}, {})
    assert proxy.unhooked("unknown-container") == 3
    assert proxy.unhooked("unknown-sandbox") == 2


# The store


@pytest.mark.parametrize(
    ("call", "message", "succeeds", "pods", "containers"),
    [
        (CriMethod.STOP_CONTAINER, ContainerRequest(container_id="c-1"), True, ["pod-1"], []),
        (CriMethod.STOP_CONTAINER, ContainerRequest(container_id="c-1"), False, ["pod-1"], []),
        (CriMethod.REMOVE_CONTAINER, ContainerRequest(container_id="c-1"), True, ["pod-1"], []),
        (CriMethod.REMOVE_CONTAINER, ContainerRequest(container_id="c-1"), False, ["pod-1"], ["c-1"]),
        (CriMethod.STOP_POD_SANDBOX, PodSandboxRequest(pod_sandbox_id="pod-1"), False, [], ["c-1"]),
        (CriMethod.REMOVE_POD_SANDBOX, PodSandboxRequest(pod_sandbox_id="pod-1"), True, [], []),
        (CriMethod.REMOVE_POD_SANDBOX, PodSandboxRequest(pod_sandbox_id="pod-1"), False, ["pod-1"], ["c-1"]),
        (CriMethod.RUN_POD_SANDBOX, pod_request(), False, ["pod-1"], ["c-1"]),
        (CriMethod.CREATE_CONTAINER, container_request(), False, ["pod-1"], ["c-1"]),
    ],
)
async def test_dropped_objects_are_unknown(
    ready: Proxy, call: CriMethod, message: Message, succeeds: bool, pods: list[str], containers: list[str]
) -> None:
    await ready.call(call, message, PodSandboxRequest() if succeeds else None)
    assert (list(ready.store.pods), list(ready.store.containers)) == (pods, containers)


async def test_an_answer_without_an_id_is_not_kept(ready: Proxy) -> None:
    await ready.run(pod_request(), "")
    await ready.create(container_request(), "")
    assert (list(ready.store.pods), list(ready.store.containers)) == (["pod-1"], ["c-1"])


async def test_a_container_outlives_its_sandboxes_entry(ready: Proxy) -> None:
    ready.hooks.answers = dict.fromkeys(Hook, echo)
    await ready.call(CriMethod.STOP_POD_SANDBOX, PodSandboxRequest(pod_sandbox_id="pod-1"), PodSandboxRequest())
    await ready.call(CriMethod.STOP_CONTAINER, ContainerRequest(container_id="c-1"), PodSandboxRequest())
    hook, request = ready.hooks.asked[-1]
    assert (hook, request.pod_meta.name) == (Hook.POST_STOP_CONTAINER, "web")


async def test_a_failed_start_has_no_after_hook_but_a_failed_stop_has(ready: Proxy) -> None:
    ready.hooks.answers = {Hook.POST_START_CONTAINER: echo, Hook.POST_STOP_CONTAINER: echo}
    await ready.call(CriMethod.START_CONTAINER, ContainerRequest(container_id="c-1"), None)
    await ready.call(CriMethod.STOP_CONTAINER, ContainerRequest(container_id="c-1"), None)
    assert [hook for hook, _ in ready.hooks.asked] == [Hook.POST_STOP_CONTAINER]


async def test_a_pods_next_hook_waits_for_the_last_after_hook(ready: Proxy) -> None:
    ready.hooks.answers = {Hook.POST_START_CONTAINER: echo, Hook.PRE_CREATE_CONTAINER: echo}
    await ready.run(pod_request(), "pod-2")
    start = ContainerRequest(container_id="c-1").SerializeToString()
    tasks = []
    ready.hooks.gate = asyncio.Event()
    for _ in range(2):
        _, pending = await ready.interceptor.before(CriMethod.START_CONTAINER, start)
        ready.interceptor.answered(pending, b"")
        after = ready.interceptor.after(pending)
        assert after is not None
        tasks.append(asyncio.create_task(after))
    create = asyncio.create_task(ready.create(container_request(), "c-2"))
    other = container_request()
    other.pod_sandbox_id = "pod-2"
    stranger = asyncio.create_task(ready.create(other, "c-3"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert [hook for hook, _ in ready.hooks.asked] == [Hook.POST_START_CONTAINER, Hook.PRE_CREATE_CONTAINER]
    assert ready.hooks[1].pod_meta.name == "web"
    ready.hooks.gate.set()
    await asyncio.gather(*tasks, create, stranger)
    assert [hook for hook, _ in ready.hooks.asked[2:]] == [Hook.POST_START_CONTAINER, Hook.PRE_CREATE_CONTAINER]
