"""The store from what dockerd runs."""

from __future__ import annotations

from typing import Any

import pytest

from koordlet.api.hooks.api_pb2 import LinuxContainerResources
from runtimeproxy.docker.api import DockerError
from runtimeproxy.docker.recover import forget_gone, rebuild
from tests.runtimeproxy.docker.conftest import (
    CONTAINER_ID,
    SANDBOX_ID,
    SKIP,
    UID,
    World,
    container_body,
    sandbox_body,
)


def entry(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """As dockerd describes what it made of a create request."""
    config = {"Labels": body["Labels"], "Env": body["Env"], "Image": body["Image"]}
    return {"Name": f"/k8s_{name}_web-0_shop_{UID}_0", "Config": config, "HostConfig": body["HostConfig"], "State": {}}


@pytest.mark.parametrize("driver", ["cgroupfs", "systemd"])
async def test_a_new_proxy_knows_what_the_one_before_it_knew(driver: str) -> None:
    parent = {"cgroupfs": f"/kubepods/burstable/pod{UID}", "systemd": "kubepods-burstable-podX.slice"}[driver]
    sandbox, container = sandbox_body({SKIP: "true"}, CgroupParent=parent), container_body(CgroupParent=parent)
    before, after = World(driver), World(driver)
    await before.create(sandbox, SANDBOX_ID, "POD")
    await before.create(container, CONTAINER_ID)
    after.docker.entries = {CONTAINER_ID: entry("app", container), SANDBOX_ID: entry("POD", sandbox)}
    await rebuild(after.context)
    assert after.store.pods == before.store.pods and after.store.containers == before.store.containers
    assert after.store.containers[CONTAINER_ID].pod.labels[SKIP] == "true"
    assert after.counted("recoveries", kind="sandbox") == after.counted("recoveries", kind="container") == 1


async def test_what_cannot_be_read_is_left_out(world: World) -> None:
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
    await rebuild(world.context)
    assert set(world.store.pods) == {SANDBOX_ID}
    assert set(world.store.containers) == {CONTAINER_ID, "5" * 64}
    assert world.store.containers["5" * 64].resources == LinuxContainerResources()


async def test_without_a_list_there_is_no_start(world: World) -> None:
    world.docker.fails = "no answer"
    with pytest.raises(DockerError):
        await rebuild(world.context)


async def test_what_was_removed_past_the_proxy_is_forgotten(world: World) -> None:
    await world.create(sandbox_body(), SANDBOX_ID, "POD")
    await world.create(container_body(), CONTAINER_ID)
    world.docker.entries = {SANDBOX_ID: entry("POD", sandbox_body())}
    assert await forget_gone(world.context) == 1
    assert (set(world.store.pods), set(world.store.containers)) == ({SANDBOX_ID}, set())
    world.docker.entries = {}
    assert await forget_gone(world.context) == 1 and not world.store.pods
    world.docker.fails = "no answer"
    with pytest.raises(DockerError):
        await forget_gone(world.context)


async def test_what_is_made_while_dockerd_is_asked_stays(world: World) -> None:
    listed = world.docker.containers

    async def containers() -> list[Any]:
        found = await listed()
        await world.create(sandbox_body(), SANDBOX_ID, "POD")
        return found

    world.docker.containers = containers  # type: ignore[method-assign]
    assert await forget_gone(world.context) == 0 and set(world.store.pods) == {SANDBOX_ID}
