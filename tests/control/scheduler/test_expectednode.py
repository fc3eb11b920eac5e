"""The node of a pod in its status while PreBind takes time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from control.scheduler.cycle.expectednode import ExpectedNode
from control.scheduler.cycle.podsubject import PodSubject
from control.scheduler.state.subjects import FailedAttempt
from koordlet.kube import ConnectionFailed
from tests.control.scheduler.build import Cluster, pod
from tests.fakeclock import FakeClock

NO_TIME, NEVER = 0.0, 1e6


async def test_a_binding_that_is_over_soon_writes_nothing() -> None:
    async def write() -> None:
        raise AssertionError("written")

    async with ExpectedNode(write, NEVER):
        await asyncio.sleep(0)


async def test_the_write_has_ended_before_the_binding_goes_on() -> None:
    begun, go, steps = asyncio.Event(), asyncio.Event(), []

    async def write() -> None:
        begun.set()
        await go.wait()
        steps.append("written")

    async def bind() -> None:
        async with ExpectedNode(write, NO_TIME):
            await begun.wait()
        steps.append("bound")

    binding = asyncio.create_task(bind())
    await begun.wait()
    await asyncio.sleep(0)
    assert steps == []
    go.set()
    await binding
    assert steps == ["written", "bound"]


async def test_a_cancelled_binding_cancels_the_write() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def write() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def bind() -> None:
        async with ExpectedNode(write, NO_TIME):
            await asyncio.Event().wait()

    binding = asyncio.create_task(bind())
    await begun.wait()
    binding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await binding
    assert ended.is_set()


class StatusPatches:
    """Takes patches of statuses; `failure` is raised instead."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.failure: Exception | None = None

    async def patch(self, of: type, name: str, namespace: str, *, body: Any, **more: Any) -> None:
        if self.failure is not None:
            raise self.failure
        self.sent.append(body["status"])


@pytest.mark.parametrize("lost", [False, True], ids=["written", "result lost"])
async def test_a_failed_binding_removes_what_the_watch_has_not_shown_yet(lost: bool) -> None:
    stored = pod("a")
    client: Any = StatusPatches()
    subject, info = PodSubject(client, FakeClock(), lambda key: stored), Cluster().info(stored)
    client.failure = ConnectionFailed("no answer") if lost else None
    await subject.expect(info, "n1")
    client.failure = None
    await subject.report(info, FailedAttempt("SchedulerError", "x", ""))
    assert client.sent[:-1] == ([] if lost else [{"nominatedNodeName": "n1"}])
    assert client.sent[-1]["nominatedNodeName"] is None
    await subject.report(info, FailedAttempt("SchedulerError", "y", ""))
    assert "nominatedNodeName" not in client.sent[-1]


@pytest.mark.parametrize("known", [{"on": "n1"}, {"status": {"nominatedNodeName": "n1"}}], ids=["bound", "nominated"])
async def test_nothing_is_written_that_is_known(known: dict[str, Any]) -> None:
    stored = pod("a", **known)
    client: Any = StatusPatches()
    await PodSubject(client, FakeClock(), lambda key: stored).expect(Cluster().info(stored), "n1")
    assert client.sent == []
