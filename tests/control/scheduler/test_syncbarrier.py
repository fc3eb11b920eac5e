"""A new leader waits until its own caches have caught up (spec 05 §1.4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from control.scheduler.process.syncbarrier import SyncBarrier
from control.scheduler.state.versions import reached
from koordlet.api.core import Pod
from koordlet.kube import ConnectionFailed, NotFound
from tests.control.scheduler.build import pod
from tests.fakeclock import FakeClock


@pytest.mark.parametrize(
    ("version", "target", "expected"),
    [("5", "5", True), ("6", "5", True), ("4", "5", False), ("10", "9", True), ("9", "10", False), ("", "1", False)],
)
def test_versions(version: str, target: str, expected: bool) -> None:
    assert reached(version, target) is expected


def at(name: str, version: str, on: str = "") -> Pod:
    return pod(name, namespace="kube-system", on=on, metadata={"resourceVersion": version, "uid": name})


class World:
    """The API server writes the mark as version 20; `store` and `counted` are what the replica knows."""

    def __init__(self, *store: Pod, failures: tuple[Exception, ...] = ()) -> None:
        self.clock = FakeClock()
        self.store = {pod.metadata.key: pod for pod in store}
        self.counted: dict[str, str] = {}
        self.failures = list(failures)
        self.marks: list[Any] = []

    async def patch(self, kind: type, name: str, namespace: str, *, body: Any) -> Pod:
        if self.failures:
            raise self.failures.pop(0)
        self.marks.append(body["metadata"]["annotations"])
        return at(name, "20")

    def start(self) -> asyncio.Task[bool]:
        client: Any = self
        barrier = SyncBarrier(
            client, "kube-system", "barrier", "the-lease", get=self.store.get, pods=self.store.values,
            counted=self.counted.get, timeout=60,
        )  # fmt: skip
        return asyncio.create_task(barrier.passed())

    def put(self, pod: Pod) -> None:
        self.store[pod.metadata.key] = pod


async def test_it_waits_for_the_mark_and_for_the_newest_pod_with_a_node() -> None:
    world = World(at("barrier", "9"), at("old", "7", "n"), at("new", "12", "n"), at("pending", "19"))
    task = world.start()
    await world.clock.advance(5)
    assert not task.done()
    (mark,) = world.marks
    assert mark == {"scheduling.koordinator.sh/sync-barrier-the-lease": "2023-11-14T22:13:20Z"}
    world.put(at("barrier", "20"))
    await world.clock.advance(5)
    assert not task.done()
    world.counted["new"] = "11"
    await world.clock.advance(5)
    assert not task.done()
    world.counted["new"] = "12"
    await world.clock.advance(1)
    assert await task is True


async def test_an_anchor_that_goes_is_waited_for_no_longer() -> None:
    world = World(at("barrier", "20"), at("new", "12", "n"))
    task = world.start()
    await world.clock.advance(1)
    assert not task.done()
    world.put(pod("new", namespace="kube-system", on="n"))  # another of the same name
    await world.clock.advance(1)
    assert await task is True


async def test_a_write_is_retried_while_the_server_is_away() -> None:
    world = World(at("barrier", "20"), failures=(ConnectionFailed("away"), ConnectionFailed("away")))
    task = world.start()
    await world.clock.advance(1)
    assert await task is True
    assert len(world.marks) == 1


@pytest.mark.parametrize("gone", [True, False])
async def test_without_its_pod_there_is_no_barrier(gone: bool) -> None:
    world = World(failures=(NotFound(404),) if gone else ())
    assert await world.start() is not gone  # gone from the copy alone: nothing comes back, the rest is looked at


async def test_the_time_is_limited() -> None:
    world = World(at("barrier", "9"))
    task = world.start()
    await world.clock.advance(59)
    assert not task.done()
    await world.clock.advance(2)
    assert await task is False
