"""The store restored from dockerd: its list, inspects, and calls that precede these."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koordlet.api.hooks.api_pb2 import ContainerResourceHookRequest, LinuxContainerResources, PodSandboxHookResponse
from runtimeproxy.docker.api import DockerError, InspectedContainer
from runtimeproxy.hooks.stages import Hook
from tests.runtimeproxy.docker.conftest import (
    CONTAINER_ID,
    SANDBOX_ID,
    SKIP,
    UID,
    World,
    container_body,
    sandbox_body,
)

START, UPDATE = f"POST /containers/{CONTAINER_ID}/start", f"POST /containers/{CONTAINER_ID}/update"


def entry(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """dockerd's inspect result of a created container."""
    config = {"Labels": body["Labels"], "Env": body["Env"], "Image": body["Image"]}
    return {"Name": f"/k8s_{name}_web-0_shop_{UID}_0", "Config": config, "HostConfig": body["HostConfig"], "State": {}}


def has_pod(world: World) -> None:
    """dockerd has a sandbox with a container, for which every hook runs."""
    world.docker.entries = {CONTAINER_ID: entry("app", container_body()), SANDBOX_ID: entry("POD", sandbox_body())}
    world.hooks.answers = dict.fromkeys(Hook)


def told(world: World) -> list[tuple[Hook, str, str, LinuxContainerResources]]:
    """The objects in hook requests, and their cgroups."""
    return [
        (hook, f"{request.pod_meta.name}/{request.container_meta.name}", request.pod_cgroup_parent,
         request.container_resources)
        for hook, request in world.hooks.asked
        if isinstance(request, ContainerResourceHookRequest)
    ]  # fmt: skip


PARENT = f"/kubepods/burstable/pod{UID}"
RESOURCES = LinuxContainerResources(
    cpu_period=100000, cpu_quota=50000, cpu_shares=512, memory_limit_in_bytes=1 << 28, oom_score_adj=999
)


@pytest.mark.parametrize("driver", ["cgroupfs", "systemd"])
async def test_a_new_proxy_restores_the_state_of_its_predecessor(driver: str) -> None:
    parent = {"cgroupfs": PARENT, "systemd": "kubepods-burstable-podX.slice"}[driver]
    sandbox, container = sandbox_body({SKIP: "true"}, CgroupParent=parent), container_body(CgroupParent=parent)
    before, after = World(driver), World(driver)
    await before.create(sandbox, SANDBOX_ID, "POD")
    await before.create(container, CONTAINER_ID)
    after.docker.entries = {CONTAINER_ID: entry("app", container), SANDBOX_ID: entry("POD", sandbox)}
    await after.context.recovery.lists()
    assert after.store.containers[CONTAINER_ID].pod.labels[SKIP] == "true"  # the list has the labels for the skip rule
    assert not after.store.pods[SANDBOX_ID].complete and not after.store.containers[CONTAINER_ID].complete
    await after.context.recovery.details()
    assert after.store.pods == before.store.pods and after.store.containers == before.store.containers
    assert after.counted("recoveries", kind="sandbox") == after.counted("recoveries", kind="container") == 1


async def test_the_list_inspects_no_container(world: World) -> None:
    """A container that is being started delays its inspect."""
    has_pod(world)

    async def inspect(container_id: str) -> InspectedContainer:
        raise AssertionError("must not be asked")

    world.docker.inspect = inspect  # type: ignore[method-assign]
    await world.context.recovery.lists()
    assert set(world.store.pods) == {SANDBOX_ID} and set(world.store.containers) == {CONTAINER_ID}


async def test_unparsable_details_keep_the_lists_values(world: World) -> None:
    sandbox, container = sandbox_body(), container_body()
    world.docker.entries = {
        SANDBOX_ID: entry("POD", sandbox),
        CONTAINER_ID: entry("app", container),
        "1" * 64: "gone between the list and now",
        "2" * 64: entry("odd", {**container, "HostConfig": {"Memory": "much"}}),
        "3" * 64: entry("orphan", container_body("f" * 64)),
        "4" * 64: {**entry("x", container), "Name": "/registry"},
        "5" * 64: entry("empty", {**container, "HostConfig": {}}),
    }
    await world.context.recovery.lists()
    await world.context.recovery.details()
    store = world.store
    assert {pod_id: pod.complete for pod_id, pod in store.pods.items()} == {SANDBOX_ID: True, "1" * 64: False}
    complete = {container_id: container.complete for container_id, container in store.containers.items()}
    assert complete == {CONTAINER_ID: True, "2" * 64: False, "5" * 64: True}
    assert store.containers["5" * 64].resources == LinuxContainerResources()


async def test_the_start_fails_without_a_list(world: World) -> None:
    world.docker.fails = "no answer"
    with pytest.raises(DockerError):
        await world.context.recovery.lists()


# Calls before the inspects


async def test_a_call_queries_missing_details(world: World) -> None:
    has_pod(world)
    await world.context.recovery.lists()
    await world.call(START)
    await world.context.finish()
    hooks = (Hook.PRE_START_CONTAINER, Hook.POST_START_CONTAINER)
    assert told(world) == [(hook, "web-0/app", PARENT, RESOURCES) for hook in hooks]
    assert world.store.pods[SANDBOX_ID].complete


async def test_an_update_is_merged_into_dockerds_values(world: World) -> None:
    has_pod(world)
    await world.context.recovery.lists()
    await world.call(UPDATE, {"CpuShares": 9}, status=200)
    merged = LinuxContainerResources()
    merged.CopyFrom(RESOURCES)
    merged.cpu_shares = 9
    assert told(world) == [(Hook.PRE_UPDATE_CONTAINER_RESOURCES, "web-0/app", PARENT, merged)]
    await (
        world.context.recovery.details()
    )  # the fake dockerd returns the old shares: known values are not queried again
    assert world.store.containers[CONTAINER_ID].resources == merged


async def test_hooks_of_stops_have_details(world: World) -> None:
    has_pod(world)
    await world.context.recovery.lists()
    await world.call(f"POST /containers/{CONTAINER_ID}/stop")
    await world.call(f"POST /containers/{SANDBOX_ID}/stop")
    await world.context.finish()
    stop, stop_pod = world.hooks.asked
    assert told(world) == [(Hook.POST_STOP_CONTAINER, "web-0/app", PARENT, RESOURCES)] and stop == world.hooks.asked[0]
    assert stop_pod[0] is Hook.POST_STOP_POD_SANDBOX and getattr(stop_pod[1], "cgroup_parent", "") == PARENT
    assert not world.store.pods and not world.store.containers


async def test_calls_without_hooks_do_not_query_dockerd(world: World) -> None:
    has_pod(world)
    world.hooks.answers = {}
    await world.context.recovery.lists()
    for line in (START, f"POST /containers/{CONTAINER_ID}/stop", f"POST /containers/{SANDBOX_ID}/stop"):
        world.docker.entries = {}
        await world.call(line)
    assert world.handler(START) is None


@pytest.mark.parametrize("trouble", ["error", "silence", "gone"])
async def test_missing_details_delay_no_call(world: World, trouble: str) -> None:
    has_pod(world)
    await world.context.recovery.lists()

    async def silence(pod_id: str) -> None:
        await asyncio.Event().wait()

    if trouble == "silence":
        world.context._hooks._limit = 0.01  # type: ignore[attr-defined]
        world.context.recovery.pod = silence  # type: ignore[method-assign]
    else:
        world.docker.entries = dict.fromkeys((SANDBOX_ID, CONTAINER_ID), "oh") if trouble == "error" else {}
    await world.call(START)
    await world.call(f"POST /containers/{CONTAINER_ID}/stop")
    await world.call(f"POST /containers/{SANDBOX_ID}/stop")
    await world.context.finish()
    assert [call[1:] for call in told(world)] == [("web-0/app", "", LinuxContainerResources())] * 3
    assert len(world.hooks.asked) == 4


async def test_a_container_of_a_pod_known_from_the_list_only(world: World) -> None:
    has_pod(world)
    await world.context.recovery.lists()
    world.docker.entries[SANDBOX_ID] = "no answer"
    await world.create(container_body(), "c" * 64, "second")
    assert [call[:2] for call in told(world)] == [(Hook.PRE_CREATE_CONTAINER, "web-0/second")]
    assert "c" * 64 in world.store.containers


async def test_a_sandbox_stopped_during_its_inspect_stays_dropped(world: World) -> None:
    has_pod(world)
    await world.context.recovery.lists()
    inspect = world.docker.inspect

    async def stopped_meanwhile(container_id: str) -> InspectedContainer:
        world.store.drop_pod(SANDBOX_ID)
        world.store.drop_container(CONTAINER_ID)
        return await inspect(container_id)

    world.docker.inspect = stopped_meanwhile  # type: ignore[method-assign]
    await world.context.recovery.details()
    assert not world.store.pods and not world.store.containers


# Another cgroup driver

SLICE, SLICE_PATH = "kubepods-podX.slice", "/kubepods.slice/kubepods-podX.slice"


async def comes_back(world: World, driver: str) -> None:
    """The proxy knows a complete pod that was created when the driver was cgroupfs."""
    has_pod(world)
    sandbox, container = sandbox_body(CgroupParent=SLICE), container_body(CgroupParent=SLICE)
    world.docker.entries = {CONTAINER_ID: entry("app", container), SANDBOX_ID: entry("POD", sandbox)}
    await world.context.recovery.refresh_driver()
    await world.context.recovery.lists()
    await world.context.recovery.details()
    await world.call(START)
    await world.context.finish()
    assert (world.docker.told, told(world)[0][2]) == (1, SLICE)
    world.hooks.asked.clear()
    world.docker.restarted, world.docker.driver = True, driver


async def test_all_containers_are_inspected_again_after_a_change_of_driver(world: World) -> None:
    await comes_back(world, "systemd")
    await world.call(UPDATE, {}, status=200)
    await world.call(START)
    await world.create(container_body(CgroupParent=SLICE), "c" * 64, "second")
    await world.call(f"POST /containers/{SANDBOX_ID}/stop")
    await world.context.finish()
    assert {parent for _, _, parent, _ in told(world)} == {SLICE_PATH} and len(told(world)) == 4
    assert getattr(world.hooks.asked[-1][1], "cgroup_parent", "") == SLICE_PATH
    assert world.docker.told == 2 and world.store.containers["c" * 64].cgroup_parent == SLICE_PATH


async def test_a_new_pods_hook_uses_the_present_driver(world: World) -> None:
    await comes_back(world, "systemd")
    answer = PodSandboxHookResponse(cgroup_parent="/kubepods.slice/kubepods-podY.slice")
    world.hooks.answers[Hook.PRE_RUN_POD_SANDBOX] = answer
    sent = await world.create(sandbox_body(CgroupParent=SLICE), "d" * 64, "POD")
    assert sent["HostConfig"]["CgroupParent"] == "kubepods-podY.slice"
    assert getattr(world.hooks.asked[0][1], "cgroup_parent", "") == SLICE_PATH


async def test_only_the_driver_is_queried_after_an_unchanged_restart(world: World) -> None:
    await comes_back(world, "cgroupfs")
    world.docker.entries = {}
    await world.call(UPDATE, {}, status=200)
    await world.create(container_body(CgroupParent=SLICE), "c" * 64, "second")
    assert [parent for _, _, parent, _ in told(world)] == [SLICE, SLICE] and world.docker.told == 2


async def test_the_last_driver_is_used_when_dockerd_does_not_respond(world: World) -> None:
    await comes_back(world, "systemd")
    world.docker.fails = "no answer"
    await world.call(UPDATE, {}, status=200)
    await world.create(sandbox_body(CgroupParent=SLICE), "d" * 64, "POD")
    await world.create(container_body("d" * 64, CgroupParent=SLICE), "e" * 64)
    assert [parent for _, _, parent, _ in told(world)] == [SLICE, SLICE]
    world.docker.fails = None
    await world.call(UPDATE, {}, status=200)
    assert told(world)[-1][2] == SLICE_PATH


# Containers created beside the proxy


@pytest.mark.parametrize("given_name", [CONTAINER_ID, f"k8s_app_web-0_shop_{UID}_0"])
@pytest.mark.parametrize("listed", [True, False], ids=["sandbox-known", "sandbox-unknown"])
async def test_hooks_run_for_a_container_created_beside_the_proxy(world: World, given_name: str, listed: bool) -> None:
    """Created by a request to the previous proxy, which dockerd completed after this one's list."""
    has_pod(world)
    late = world.docker.entries.pop(CONTAINER_ID)
    if listed:
        await world.context.recovery.lists()
    world.docker.entries[given_name] = late
    inspect = world.docker.inspect

    async def by_name(name: str) -> InspectedContainer:
        container = await inspect(name)
        return InspectedContainer(
            CONTAINER_ID if name == given_name else name, container.name, container.config, container.host_config
        )

    world.docker.inspect = by_name  # type: ignore[assignment, method-assign]
    await world.call(f"POST /containers/{given_name}/start")
    await world.call(UPDATE, {}, status=200)
    await world.context.finish()
    assert [call[1:] for call in told(world)] == [("web-0/app", PARENT, RESOURCES)] * 3
    assert set(world.store.containers) == {CONTAINER_ID}


@pytest.mark.parametrize(
    ("container", "unhooked"),
    [
        pytest.param(None, 0, id="unknown"),
        pytest.param("no answer", 1, id="dockerd-does-not-tell"),
        pytest.param({**entry("x", container_body()), "Name": "/registry"}, 0, id="not-kubernetes"),
        pytest.param(entry("x", container_body("f" * 64)), 0, id="no-such-sandbox"),
        pytest.param(entry("x", {**container_body(), "Labels": {}}), 0, id="no-sandbox-named"),
        pytest.param(entry("POD", sandbox_body()), 0, id="sandbox"),
    ],
)
async def test_calls_that_pass_after_a_lookup(world: World, container: Any, unhooked: int) -> None:
    world.hooks.answers = dict.fromkeys(Hook)
    if container is not None:
        world.docker.entries["9" * 64] = container
    body = b"not even JSON"
    for action in ("start", "update"):
        exchange = world.handler(f"POST /containers/{'9' * 64}/{action}")
        if exchange is None:  # a sandbox, known by now
            assert set(world.store.pods) == {"9" * 64}
            continue
        assert await exchange.before(body) is body
        exchange.answered(404, b"")
    assert not world.hooks.asked and world.counted("unhooked", reason="unknown-container") == 2 * unhooked


async def test_a_client_may_leave_during_the_lookup(world: World) -> None:
    has_pod(world)
    exchange = world.handler(START)
    assert exchange is not None
    exchange.lost()
    assert not world.hooks.asked


# Removed containers


async def test_containers_removed_beside_the_proxy_are_dropped(world: World) -> None:
    await world.create(sandbox_body(), SANDBOX_ID, "POD")
    await world.create(container_body(), CONTAINER_ID)
    world.docker.entries = {SANDBOX_ID: entry("POD", sandbox_body())}
    assert await world.context.recovery.forget_gone() == 1
    assert (set(world.store.pods), set(world.store.containers)) == ({SANDBOX_ID}, set())
    world.docker.entries = {}
    assert await world.context.recovery.forget_gone() == 1 and not world.store.pods
    world.docker.fails = "no answer"
    with pytest.raises(DockerError):
        await world.context.recovery.forget_gone()


async def test_containers_created_during_the_query_stay(world: World) -> None:
    listed = world.docker.containers

    async def containers() -> list[Any]:
        listed_containers = await listed()
        await world.create(sandbox_body(), SANDBOX_ID, "POD")
        return listed_containers

    world.docker.containers = containers  # type: ignore[method-assign]
    assert await world.context.recovery.forget_gone() == 0 and set(world.store.pods) == {SANDBOX_ID}
