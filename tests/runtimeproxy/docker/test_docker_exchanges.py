"""Each call's hook request, what the response changes, what is stored (spec 08 §12)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.hooks.api_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from koordlet.runtimehooks.stages import HookStage
from runtimeproxy.docker.interception import DockerCallRefused
from runtimeproxy.hooks.dispatch import HookDispatcher, HookOutcome
from runtimeproxy.hooks.registry import HookServerRegistry
from runtimeproxy.hooks.stages import Hook, HookFailurePolicy, HookRequest, HookResponse
from tests.runtimeproxy.docker.conftest import (
    CONTAINER_ID,
    SANDBOX_ID,
    SKIP,
    UID,
    World,
    container_body,
    sandbox_body,
)
from tests.runtimeproxy.docker.livedocker import ALL_HOOKS, PATIENCE, koordlet

POD, CONTAINER, UPDATE = Hook.PRE_RUN_POD_SANDBOX, Hook.PRE_CREATE_CONTAINER, Hook.PRE_UPDATE_CONTAINER_RESOURCES
BEFORE = (POD, CONTAINER, UPDATE, Hook.PRE_START_CONTAINER)
PARENT = f"/kubepods/burstable/pod{UID}"
ECHOED = ("CpuPeriod", "CpuQuota", "CpuShares", "Memory", "OomScoreAdj", "CpusetCpus", "CpusetMems", "MemorySwap")


def echo(request: HookRequest) -> HookResponse:
    """koordlet's response when no plugin changes anything."""
    if isinstance(request, PodSandboxHookRequest):
        return PodSandboxHookResponse(
            labels=request.labels,
            annotations=request.annotations,
            cgroup_parent=request.cgroup_parent,
            resources=request.resources,
        )
    return ContainerResourceHookResponse(
        container_annotations=request.container_annotations,
        container_resources=request.container_resources,
        pod_cgroup_parent=request.pod_cgroup_parent,
        container_envs=request.container_envs,
    )


async def pod_and_container(world: World, labels: dict[str, str] | None = None) -> None:
    await world.create(sandbox_body(labels or {}), SANDBOX_ID, "POD")
    await world.create(container_body(), CONTAINER_ID)
    world.hooks.asked.clear()


# Create


async def test_a_sandboxs_hook_request(world: World) -> None:
    world.hooks.answers[POD] = PodSandboxHookResponse()
    assert await world.create(sandbox_body(), SANDBOX_ID, "POD") is None
    assert world.hooks.asked == [
        (
            POD,
            PodSandboxHookRequest(
                pod_meta={"name": "web-0", "uid": UID, "namespace": "shop", "attempt": 0},
                runtime_handler="docker",
                labels={
                    "app": "web",
                    "io.kubernetes.docker.type": "podsandbox",
                    "io.kubernetes.pod.name": "web-0",
                    "io.kubernetes.pod.uid": UID,
                },
                annotations={"kubernetes.io/config.source": "api"},
                cgroup_parent=PARENT,
                resources=LinuxContainerResources(cpu_shares=2, oom_score_adj=-998),
            ),
        )
    ]


async def test_a_containers_hook_request(world: World) -> None:
    world.hooks.answers[CONTAINER] = ContainerResourceHookResponse()
    await world.create(sandbox_body(), SANDBOX_ID, "POD")
    assert await world.create(container_body(), CONTAINER_ID) is None
    pod = world.store.pods[SANDBOX_ID]
    assert world.hooks.asked == [
        (
            CONTAINER,
            ContainerResourceHookRequest(
                pod_meta={"name": "web-0", "uid": UID, "namespace": "shop", "attempt": 0},
                container_meta={"name": "app"},
                container_annotations={"io.kubernetes.container.hash": "1f"},
                container_resources=LinuxContainerResources(
                    cpu_period=100000, cpu_quota=50000, cpu_shares=512, memory_limit_in_bytes=1 << 28, oom_score_adj=999
                ),
                pod_resources=LinuxContainerResources(cpu_shares=2, oom_score_adj=-998),
                pod_annotations={"kubernetes.io/config.source": "api"},
                pod_labels=pod.labels,
                pod_cgroup_parent=PARENT,
                container_envs={"A": "2", "B": "1"},
            ),
        )
    ]


async def test_an_echo_leaves_the_bytes(world: World) -> None:
    world.hooks.answers = dict.fromkeys(BEFORE, echo)
    await pod_and_container(world)
    assert await world.create(sandbox_body(), SANDBOX_ID, "POD") is None
    assert await world.create(container_body(), CONTAINER_ID) is None
    assert await world.call(f"POST /containers/{CONTAINER_ID}/start") is None
    # the complete merged state is sent, as in the hook request
    response = {"CpuPeriod": 100000, "CpuQuota": 50000, "CpuShares": 100, "Memory": 1 << 28}
    assert await world.call(f"POST /containers/{CONTAINER_ID}/update", {"CpuShares": 100}, status=200) == response


async def test_what_a_pods_hook_changes(world: World) -> None:
    world.hooks.answers[POD] = PodSandboxHookResponse(
        labels={"app": "web", "new": "1"},
        annotations={"kubernetes.io/config.source": "file", "b": "2"},
        cgroup_parent="/kubepods/besteffort",
        resources=LinuxContainerResources(cpu_shares=1024, cpu_quota=-1),
    )
    body = sandbox_body(Memory=1 << 20)
    sent = await world.create(body, SANDBOX_ID, "POD")
    assert sent["Labels"] == {
        **body["Labels"],
        "new": "1",
        "annotation.kubernetes.io/config.source": "file",
        "annotation.b": "2",
    }
    assert sent["HostConfig"] == {
        **body["HostConfig"], "CpuShares": 1024, "CpuQuota": -1, "OomScoreAdj": 0, "Memory": 0,
        "CgroupParent": "/kubepods/besteffort",
    }  # fmt: skip
    assert {**sent, "Labels": 0, "HostConfig": 0} == {**body, "Labels": 0, "HostConfig": 0}
    pod = world.store.pods[SANDBOX_ID]
    assert (pod.cgroup_parent, pod.annotations["b"], pod.labels["new"]) == ("/kubepods/besteffort", "2", "1")
    assert pod.resources == LinuxContainerResources(cpu_shares=1024, cpu_quota=-1)
    assert world.counted("calls", method="docker create", result="rewritten") == 1


async def test_what_a_containers_hook_changes(world: World) -> None:
    await world.create(sandbox_body(), SANDBOX_ID, "POD")
    world.hooks.answers[CONTAINER] = ContainerResourceHookResponse(
        container_annotations={"gpu": "0"},
        container_resources=LinuxContainerResources(cpuset_cpus="0-3", cpu_shares=2),
        pod_cgroup_parent="/other",
        container_envs={"B": "1", "A": "3", "NEW": "x"},
    )
    body = container_body()
    sent = await world.create(body, CONTAINER_ID)
    assert sent["Env"] == ["B=1", "A=3", "NEW=x"]
    assert sent["Labels"] == {**body["Labels"], "annotation.gpu": "0"}
    assert sent["HostConfig"] == {
        **body["HostConfig"], "CgroupParent": "/other", "CpuPeriod": 0, "CpuQuota": 0, "CpuShares": 2, "Memory": 0,
        "OomScoreAdj": 0, "CpusetCpus": "0-3",
    }  # fmt: skip
    container = world.store.containers[CONTAINER_ID]
    assert container.envs == {"A": "3", "B": "1", "NEW": "x"} and container.annotations["gpu"] == "0"
    assert container.resources == LinuxContainerResources(cpu_shares=2, cpuset_cpus="0-3")
    assert (container.id, container.pod_id, container.cgroup_parent) == (CONTAINER_ID, SANDBOX_ID, "/other")


@pytest.mark.parametrize(
    ("hook", "answer"),
    [
        pytest.param(POD, PodSandboxHookResponse(), id="sandbox"),
        pytest.param(CONTAINER, ContainerResourceHookResponse(), id="container"),
    ],
)
async def test_an_empty_response_removes_nothing(world: World, hook: Hook, answer: HookResponse) -> None:
    world.hooks.answers[hook] = answer
    await world.create(sandbox_body(), SANDBOX_ID, "POD")
    assert await world.create(container_body(), CONTAINER_ID) is None
    assert world.store.pods[SANDBOX_ID].cgroup_parent == PARENT
    assert len(world.hooks.asked) == 1


async def test_parents_of_the_systemd_driver_are_paths_for_hooks_and_names_for_docker() -> None:
    world = World("systemd")
    world.hooks.answers[POD] = PodSandboxHookResponse(cgroup_parent="/kubepods.slice/kubepods-podY.slice")
    sent = await world.create(sandbox_body(CgroupParent="kubepods-besteffort-podX.slice"), SANDBOX_ID, "POD")
    request = world.hooks.asked[0][1]
    assert isinstance(request, PodSandboxHookRequest)
    assert request.cgroup_parent == "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podX.slice"
    assert sent["HostConfig"]["CgroupParent"] == "kubepods-podY.slice"
    assert world.store.pods[SANDBOX_ID].cgroup_parent == "/kubepods.slice/kubepods-podY.slice"
    for answer in (echo, PodSandboxHookResponse(cgroup_parent="kubepods-podX.slice")):  # the same in either spelling
        world.hooks.answers[POD] = answer
        assert await world.create(sandbox_body(CgroupParent="kubepods-podX.slice"), "c" * 64, "POD") is None


@pytest.mark.parametrize("status", [400, 404, 409, 500])
async def test_only_what_was_created_is_stored(world: World, status: int) -> None:
    await world.create(sandbox_body(), SANDBOX_ID, "POD", status=status)
    assert not world.store.pods and not world.store.containers
    assert world.counted("calls", method="docker create", result="failed") == 1


async def test_a_created_answer_without_an_id_stores_nothing(world: World) -> None:
    line = f"POST /containers/create?name=k8s_POD_p_n_{UID}_0"
    for answer in ({}, {"Id": 3}, {"Id": ""}, "text"):
        await world.call(line, sandbox_body(), status=201, answer=answer)
    assert not world.store.pods


@pytest.mark.parametrize("name", ["", "web", "k8s_a_b_c_d", "k8s_a_b_c_d_e"])
def test_a_create_without_a_kubernetes_name_has_no_handler(world: World, name: str) -> None:
    assert world.handler(f"POST /containers/create?name={name}") is None


async def refusal(world: World, line: str, body: bytes) -> str:
    exchange = world.handler(line)
    assert exchange is not None
    with pytest.raises(DockerCallRefused) as refused:
        await exchange.before(body)
    exchange.lost()
    return str(refused.value)


CREATE = f"POST /containers/create?name=k8s_app_web-0_shop_{UID}_0"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"", "body", id="empty"),
        pytest.param(b'{"Labels": ', "body", id="torn"),
        pytest.param(b'{"Labels": {"a": 1}}', "Labels", id="labels"),
        pytest.param(
            b'{"Env": 1, "Labels": {"io.kubernetes.sandbox.id": "' + SANDBOX_ID.encode() + b'"}}', "Env", id="env"
        ),
        pytest.param(b'{"HostConfig": []}', "HostConfig", id="host-config"),
        pytest.param(b"{}", "no label io.kubernetes.sandbox.id", id="no-sandbox-named"),
        pytest.param(
            json.dumps(container_body("f" * 64)).encode(), f"No such sandbox: {'f' * 64}", id="unknown-sandbox"
        ),
    ],
)
async def test_unusable_create_requests(world: World, body: bytes, message: str) -> None:
    await world.create(sandbox_body(), SANDBOX_ID, "POD")
    assert message in await refusal(world, CREATE, body)
    assert world.counted("calls", method="docker create", result="refused") == 1


async def test_a_sandbox_the_store_lacks_is_looked_up(world: World) -> None:
    body = sandbox_body({"late": "1"})
    config = {"Labels": body["Labels"], "Env": None}
    world.docker.entries[SANDBOX_ID] = {
        "Name": f"/k8s_POD_web-0_shop_{UID}_0", "Config": config, "HostConfig": body["HostConfig"]
    }  # fmt: skip
    world.hooks.answers[CONTAINER] = ContainerResourceHookResponse()
    await world.create(container_body(), CONTAINER_ID)
    request = world.hooks.asked[0][1]
    assert isinstance(request, ContainerResourceHookRequest) and request.pod_labels["late"] == "1"
    assert SANDBOX_ID in world.store.pods and CONTAINER_ID in world.store.containers


async def test_a_container_starts_although_its_sandbox_cannot_be_looked_up(world: World) -> None:
    world.docker.entries[SANDBOX_ID] = "no answer in 10 s"
    world.hooks.answers[CONTAINER] = ContainerResourceHookResponse()
    assert await world.create(container_body(), CONTAINER_ID) is None
    assert not world.hooks.asked and not world.store.containers
    assert world.counted("unhooked", reason="unknown-sandbox") == 1


names = st.text("abXY", min_size=1, max_size=3)
plain = st.none() | st.integers() | st.text(max_size=4) | st.lists(st.booleans(), max_size=2)


@given(st.dictionaries(names, plain, max_size=4), st.dictionaries(names, plain, max_size=4))
def test_unknown_fields_survive_a_rewrite(extra: dict[str, Any], host: dict[str, Any]) -> None:
    async def test() -> None:
        world = World()
        world.hooks.answers[POD] = PodSandboxHookResponse(resources=LinuxContainerResources(cpu_shares=7))
        body = {**extra, **sandbox_body(**host)}
        sent = await world.create(body, SANDBOX_ID, "POD")
        assert sent == {**body, "HostConfig": {**body["HostConfig"], "CpuShares": 7, "OomScoreAdj": 0}}

    asyncio.run(test())


# Unusual requests


@pytest.mark.parametrize("odd", [{}, {"HostConfig": None}, {"hostconfig": {}}], ids=["absent", "null", "other-case"])
async def test_a_request_without_a_host_config(world: World, odd: dict[str, Any]) -> None:
    world.hooks.answers = {
        POD: PodSandboxHookResponse(resources=LinuxContainerResources(cpu_shares=7), cgroup_parent="/p"),
        CONTAINER: ContainerResourceHookResponse(container_resources=LinuxContainerResources(cpu_shares=8)),
    }
    for body, container_id, name, host_config in (
        (sandbox_body(), SANDBOX_ID, "POD", {"CpuShares": 7, "CgroupParent": "/p"}),
        (container_body(), CONTAINER_ID, "app", {"CpuShares": 8}),
    ):
        create_body = {**{key: value for key, value in body.items() if key != "HostConfig"}, **odd}
        sent = await world.create(create_body, container_id, name)
        key = next((key for key in odd), "HostConfig")
        assert sent[key] == host_config and {**sent, key: 0} == {**create_body, key: 0}
    requests = [request for _, request in world.hooks.asked]
    assert isinstance(requests[0], PodSandboxHookRequest) and requests[0].cgroup_parent == ""
    assert requests[0].resources == LinuxContainerResources()


async def test_a_windows_shaped_request(world: World) -> None:
    """Unknown to hooks: its fields are forwarded, an echo changes no byte."""
    world.hooks.answers = dict.fromkeys(BEFORE, echo)
    windows = {"Isolation": "process", "CpuCount": 2, "CpuPercent": 50, "IOMaximumIOps": 100, "ConsoleSize": [30, 80],
               "CredentialSpec": "file://spec.json"}  # fmt: skip
    sandbox, container = sandbox_body(), container_body()
    assert await world.create({**sandbox, "HostConfig": windows}, SANDBOX_ID, "POD") is None
    assert await world.create({**container, "HostConfig": windows}, CONTAINER_ID) is None
    world.hooks.answers[UPDATE] = ContainerResourceHookResponse(
        container_resources=LinuxContainerResources(cpu_shares=9)
    )
    sent = await world.call(f"POST /containers/{CONTAINER_ID}/update", {"CpuCount": 4}, status=200)
    assert sent == {"CpuCount": 4, "CpuShares": 9}


FORBIDDEN_POD = [
    pytest.param(
        PodSandboxHookResponse(cgroup_parent="/kubepods/../system.slice"), "outside the cgroup tree", id="parent"
    ),
    pytest.param(PodSandboxHookResponse(cgroup_parent="/"), "is the root", id="root"),
    pytest.param(PodSandboxHookResponse(resources=LinuxContainerResources(cpu_shares=-2)), "cpu_shares", id="shares"),
    pytest.param(
        PodSandboxHookResponse(resources=LinuxContainerResources(cpuset_cpus="all")), "cpuset_cpus", id="cpus"
    ),
]
FORBIDDEN_CONTAINER = [
    pytest.param(ContainerResourceHookResponse(pod_cgroup_parent="/../x"), "outside the cgroup tree", id="parent"),
    pytest.param(ContainerResourceHookResponse(container_envs={"A=B": "1"}), "A=B", id="env"),
    pytest.param(
        ContainerResourceHookResponse(container_resources=LinuxContainerResources(memory_limit_in_bytes=-5)),
        "memory_limit_in_bytes",
        id="memory",
    ),
]


def judged(world: World, folder: Path, answer: HookResponse, policy: str) -> None:
    """Use the real dispatcher, which validates responses, with a server that returns this one."""

    class Server:
        async def call(self, rpc: str, request: bytes, seconds: float) -> bytes:
            return answer.SerializeToString()

        async def close(self, grace: float) -> None: ...

    async def connect(endpoint: str) -> Server:
        return Server()

    hooks = [str(hook) for hook in (POD, CONTAINER, UPDATE)]
    document = {"remote-endpoint": str(folder / "k.sock"), "failure-policy": policy, "runtime-hooks": hooks}
    (folder / "k.sock").touch()
    (folder / "d").mkdir()
    (folder / "d/k.json").write_text(json.dumps(document))
    dispatcher = HookDispatcher(
        HookServerRegistry(folder / "d"), timeout=60.0, connect=connect, metrics=world.context.metrics
    )
    world.context._hooks._dispatcher = dispatcher


@pytest.mark.parametrize(("answer", "message"), FORBIDDEN_POD)
@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
async def test_responses_with_invalid_sandbox_values_are_refused(
    world: World, tmp_path: Path, answer: HookResponse, message: str, policy: str
) -> None:
    judged(world, tmp_path, answer, policy)
    line = f"POST /containers/create?name=k8s_POD_web-0_shop_{UID}_0"
    if policy == "Fail":
        text = await refusal(world, line, json.dumps(sandbox_body()).encode())
        assert text.startswith("hook server err: ") and message in text
    else:
        assert await world.create(sandbox_body(), SANDBOX_ID, "POD") is None
        assert world.store.pods[SANDBOX_ID].cgroup_parent == PARENT
    assert world.counted("hook_failures", hook=POD.value, policy=policy) == 1


@pytest.mark.parametrize(("answer", "message"), FORBIDDEN_CONTAINER)
@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
async def test_responses_with_invalid_container_values_are_refused(
    world: World, tmp_path: Path, answer: HookResponse, message: str, policy: str
) -> None:
    await pod_and_container(world)
    judged(world, tmp_path, answer, policy)
    update = f"POST /containers/{CONTAINER_ID}/update"
    calls = ((CREATE, container_body()), (update, {"CpuShares": 9}))
    if policy == "Fail":
        for line, body in calls:
            text = await refusal(world, line, json.dumps(body).encode())
            assert text.startswith("hook server err: ") and message in text
    else:
        for line, body in calls:
            assert await world.call(line, body, status=200) is None
    for hook in (CONTAINER, UPDATE):
        assert world.counted("hook_failures", hook=hook.value, policy=policy) == 1


@pytest.mark.parametrize("qos", ["", "VIP", "ls", "\U0001f600"])
async def test_a_pod_of_an_unknown_qos_class_is_created_unchanged(world: World, tmp_path: Path, qos: str) -> None:
    """Its label is koordlet's to check: koordlet's plugins change nothing."""
    label = {"koordinator.sh/qosClass": qos}
    with koordlet(tmp_path / "k.sock") as recorder:
        document = {"remote-endpoint": str(tmp_path / "k.sock"), "failure-policy": "Fail", "runtime-hooks": ALL_HOOKS}
        (tmp_path / "d").mkdir()
        (tmp_path / "d/k.json").write_text(json.dumps(document))
        dispatcher = HookDispatcher(HookServerRegistry(tmp_path / "d"), timeout=PATIENCE, metrics=world.context.metrics)
        world.context._hooks._dispatcher = dispatcher
        assert await world.create(sandbox_body(label), SANDBOX_ID, "POD") is None
        assert await world.create(container_body(), CONTAINER_ID) is None
        await dispatcher.close()
    assert recorder.stages_called() == [HookStage.PRE_RUN_POD_SANDBOX, HookStage.PRE_CREATE_CONTAINER]
    assert world.store.pods[SANDBOX_ID].labels["koordinator.sh/qosClass"] == qos


# Policies and the skip rule


async def test_policies(world: World) -> None:
    await pod_and_container(world)
    for hook in BEFORE:
        world.hooks.answers[hook] = HookOutcome(None, HookFailurePolicy.IGNORE, "koordlet is away")
    assert await world.create(sandbox_body(), "c" * 64, "POD") is None
    assert await world.create(container_body(), "d" * 64) is None
    assert await world.call(f"POST /containers/{CONTAINER_ID}/start") is None
    assert await world.call(f"POST /containers/{CONTAINER_ID}/update", {"Memory": 1}, status=200) is None
    for hook in BEFORE:
        world.hooks.answers[hook] = HookOutcome(None, HookFailurePolicy.FAIL, "koordlet is away")
    for line, body in (
        (f"POST /containers/create?name=k8s_POD_web-0_shop_{UID}_0", sandbox_body()),
        (CREATE, container_body()),
        (f"POST /containers/{CONTAINER_ID}/start", {}),
        (f"POST /containers/{CONTAINER_ID}/update", {"Memory": 1}),
    ):
        assert await refusal(world, line, json.dumps(body).encode()) == "hook server err: koordlet is away"


async def test_exempt_pods_are_stored_but_have_no_hooks(world: World) -> None:
    world.hooks.answers = dict.fromkeys(Hook, HookOutcome(None, HookFailurePolicy.FAIL, "never"))
    await pod_and_container(world, {SKIP: "true"})
    assert SANDBOX_ID in world.store.pods and CONTAINER_ID in world.store.containers
    await world.call(f"POST /containers/{CONTAINER_ID}/start")
    await world.call(f"POST /containers/{CONTAINER_ID}/update", {"Memory": 1 << 29}, status=200)
    await world.call(f"POST /containers/{CONTAINER_ID}/stop")
    await world.call(f"POST /containers/{SANDBOX_ID}/stop")
    await world.context.finish()
    assert not world.hooks.asked and not world.store.pods and not world.store.containers
    assert world.counted("unhooked", reason="skip-label") == 4


# Start, stop, remove


async def test_a_start_runs_pre_and_post_hooks(world: World) -> None:
    await pod_and_container(world)
    world.hooks.answers = dict.fromkeys(
        (Hook.PRE_START_CONTAINER, Hook.POST_START_CONTAINER), ContainerResourceHookResponse()
    )
    await world.call(f"POST /containers/{CONTAINER_ID}/start")
    await world.context.finish()
    assert [hook for hook, _ in world.hooks.asked] == [Hook.PRE_START_CONTAINER, Hook.POST_START_CONTAINER]
    request = world.hooks.asked[0][1]
    assert isinstance(request, ContainerResourceHookRequest)
    assert (request.container_meta.id, request.pod_meta.name) == (CONTAINER_ID, "web-0")


@pytest.mark.parametrize("status", [304, 404, 500])
async def test_a_failed_start_runs_no_post_hook(world: World, status: int) -> None:
    await pod_and_container(world)
    world.hooks.answers[Hook.POST_START_CONTAINER] = ContainerResourceHookResponse()
    await world.call(f"POST /containers/{CONTAINER_ID}/start", status=status)
    await world.context.finish()
    assert not world.hooks.asked


@pytest.mark.parametrize(
    ("status", "kept"),
    [
        pytest.param(204, False, id="stopped"),
        pytest.param(304, False, id="was-stopped"),
        pytest.param(404, False, id="gone"),
        pytest.param(500, True, id="still-there"),
    ],
)
async def test_a_stop_drops_the_entry_and_runs_the_post_hook(world: World, status: int, kept: bool) -> None:
    await pod_and_container(world)
    world.hooks.answers = {
        Hook.POST_STOP_CONTAINER: ContainerResourceHookResponse(), Hook.POST_STOP_POD_SANDBOX: PodSandboxHookResponse()
    }  # fmt: skip
    await world.call(f"POST /containers/{CONTAINER_ID}/stop?t=30", status=status)
    await world.call(f"POST /containers/{SANDBOX_ID}/stop", status=status)
    await world.context.finish()
    hooks = [] if kept else [Hook.POST_STOP_CONTAINER, Hook.POST_STOP_POD_SANDBOX]
    assert [hook for hook, _ in world.hooks.asked] == hooks
    assert (CONTAINER_ID in world.store.containers, SANDBOX_ID in world.store.pods) == (kept, kept)


async def test_a_failing_post_hook_affects_no_call(world: World) -> None:
    await pod_and_container(world)
    world.hooks.answers[Hook.POST_STOP_CONTAINER] = HookOutcome(None, HookFailurePolicy.FAIL, "no")
    await world.call(f"POST /containers/{CONTAINER_ID}/stop")
    await world.context.finish()
    assert world.counted("calls", method="docker stop", result="passed") == 1


async def test_the_next_hook_of_a_pod_waits_for_its_after_hook(world: World) -> None:
    await pod_and_container(world)
    order: list[str] = []
    slow = asyncio.Event()

    async def dispatch(hook: Hook, request: HookRequest, deadline: float | None = None) -> HookOutcome:
        order.append(f"{hook} begins")
        if hook is Hook.POST_START_CONTAINER:
            await slow.wait()
        order.append(f"{hook} ends")
        return HookOutcome()

    world.hooks.answers.update({Hook.POST_START_CONTAINER: None, UPDATE: None})
    world.hooks.dispatch = dispatch  # type: ignore[method-assign]
    await world.call(f"POST /containers/{CONTAINER_ID}/start")
    order.clear()
    update = asyncio.create_task(world.call(f"POST /containers/{CONTAINER_ID}/update", {}, status=200))
    other = asyncio.create_task(world.create(sandbox_body(), "c" * 64, "POD"))
    await other  # another pod does not wait
    assert not update.done() and f"{UPDATE} begins" not in order
    slow.set()
    await update
    assert order.index("PostStartContainer ends") < order.index(f"{UPDATE} begins")


@pytest.mark.parametrize(("status", "kept"), [(204, False), (404, False), (409, True), (500, True)])
async def test_a_removal_drops_the_entry(world: World, status: int, kept: bool) -> None:
    await pod_and_container(world)
    await world.call(f"DELETE /containers/{CONTAINER_ID}?v=1", status=status)
    await world.call(f"DELETE /containers/{SANDBOX_ID}", status=status)
    assert (CONTAINER_ID in world.store.containers, SANDBOX_ID in world.store.pods) == (kept, kept)


@pytest.mark.parametrize(
    "line",
    [
        "POST /containers/unknown/start",
        "POST /containers/unknown/stop",
        "POST /containers/unknown/update",
        "DELETE /containers/unknown",
        f"POST /containers/{SANDBOX_ID}/start",
        f"POST /containers/{SANDBOX_ID}/update",
        f"POST /containers/k8s_app_web-0_shop_{UID}_7/stop",
        "POST /containers/k8s_app_web-0/stop",
    ],
)
async def test_calls_on_unknown_containers_are_forwarded(world: World, line: str) -> None:
    await pod_and_container(world)
    assert world.handler(line) is None


@pytest.mark.parametrize(
    ("given_name", "container"),
    [
        pytest.param(CONTAINER_ID, CONTAINER_ID, id="id"),
        pytest.param("bbb", CONTAINER_ID, id="start-of-an-id"),
        pytest.param(f"k8s_app_web-0_shop_{UID}_0", CONTAINER_ID, id="name"),
        pytest.param(f"k8s_POD_web-0_shop_{UID}_0", SANDBOX_ID, id="sandbox-name"),
    ],
)
async def test_containers_are_resolved_as_docker_does(world: World, given_name: str, container: str) -> None:
    await pod_and_container(world)
    await world.call(f"DELETE /containers/{given_name}")
    assert container not in {**world.store.containers, **world.store.pods}


async def test_an_ambiguous_prefix_matches_no_container(world: World) -> None:
    await pod_and_container(world)
    await world.create(container_body(), "ab" * 32, "second")
    assert world.handler("DELETE /containers/a") is None and world.handler("DELETE /containers/ab") is not None


# Update


async def test_an_update_is_merged_sent_to_the_hook_and_stored(world: World) -> None:
    await pod_and_container(world)
    world.hooks.answers[UPDATE] = lambda request: ContainerResourceHookResponse(
        container_resources=LinuxContainerResources(
            cpu_period=100000, cpu_quota=-1, cpu_shares=request.container_resources.cpu_shares * 2,  # type: ignore[union-attr]
            memory_limit_in_bytes=1 << 28, cpuset_cpus="0-1", memory_swap_limit_in_bytes=-1, oom_score_adj=5,
        )
    )  # fmt: skip
    body = {"CpuShares": 300, "CpuQuota": -1, "RestartPolicy": {"Name": ""}, "PidsLimit": None}
    sent = await world.call(f"POST /containers/{CONTAINER_ID}/update", body, status=200, answer={"Warnings": None})
    request = world.hooks.asked[0][1]
    assert isinstance(request, ContainerResourceHookRequest)
    assert request.container_resources == LinuxContainerResources(  # -1 is not merged
        cpu_period=100000, cpu_quota=50000, cpu_shares=300, memory_limit_in_bytes=1 << 28, oom_score_adj=999
    )
    assert sent == {
        **body, "CpuPeriod": 100000, "CpuShares": 600, "Memory": 1 << 28, "CpusetCpus": "0-1", "MemorySwap": -1
    }  # fmt: skip
    assert world.store.containers[CONTAINER_ID].resources == LinuxContainerResources(
        cpu_period=100000, cpu_quota=-1, cpu_shares=600, memory_limit_in_bytes=1 << 28, oom_score_adj=999,
        cpuset_cpus="0-1", memory_swap_limit_in_bytes=-1,
    )  # fmt: skip


async def test_values_that_are_not_sent_are_not_stored(world: World) -> None:
    await pod_and_container(world)
    unlimited = LinuxContainerResources(cpu_quota=-1, cpu_shares=-1, memory_limit_in_bytes=-1)
    world.hooks.answers[UPDATE] = ContainerResourceHookResponse(container_resources=unlimited)
    sent = await world.call(f"POST /containers/{CONTAINER_ID}/update", {"CpuShares": 300}, status=200)
    assert sent == {"CpuShares": 0, "CpuQuota": -1}
    stored = world.store.containers[CONTAINER_ID].resources
    assert stored is not None
    assert (stored.cpu_shares, stored.cpu_quota, stored.memory_limit_in_bytes) == (512, -1, 1 << 28)


async def test_an_update_without_a_server_is_forwarded_and_stored(world: World) -> None:
    await pod_and_container(world)
    assert await world.call(f"POST /containers/{CONTAINER_ID}/update", {"CpuShares": 9}, status=200) is None
    stored = world.store.containers[CONTAINER_ID].resources
    assert stored is not None and (stored.cpu_shares, stored.cpu_quota) == (9, 50000)


async def test_an_update_that_failed_is_not_stored(world: World) -> None:
    await pod_and_container(world)
    await world.call(f"POST /containers/{CONTAINER_ID}/update", {"CpuShares": 9}, status=500)
    stored = world.store.containers[CONTAINER_ID].resources
    assert stored is not None and stored.cpu_shares == 512


async def test_an_empty_update_is_forwarded(world: World) -> None:
    await pod_and_container(world)
    assert "Memory" in await refusal(world, f"POST /containers/{CONTAINER_ID}/update", b'{"Memory": "1g"}')


async def test_a_container_removed_meanwhile_passes(world: World) -> None:
    await pod_and_container(world)
    world.hooks.answers = dict.fromkeys(Hook, HookOutcome(None, HookFailurePolicy.FAIL, "never"))
    held = [world.handler(f"POST /containers/{CONTAINER_ID}/{action}") for action in ("start", "update", "stop")]
    world.store.drop_container(CONTAINER_ID)
    for exchange in held:
        assert exchange is not None
        body = b"not even JSON"
        assert await exchange.before(body) is body
        exchange.answered(404, b"")
    await world.context.finish()
    assert not world.hooks.asked
