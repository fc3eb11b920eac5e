"""Reports to users: truncated events, and conditions that are written once, newest first (spec 05 §3.4, §3.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from control.scheduler.cycle.monitor import AttemptMonitor
from control.scheduler.cycle.podsubject import PodSubject
from control.scheduler.cycle.reporter import RETRY_S, UserReporter, truncated
from control.scheduler.framework.status import error, unschedulable
from control.scheduler.process.metrics import SchedulerMetrics
from control.scheduler.state.subjects import Subjects
from koordlet.api.core import Pod
from koordlet.kube import Conflict, ConnectionFailed, NotFound, ServerError, TooManyRequests
from tests.control.scheduler.build import Cluster, pod
from tests.fakeclock import FakeClock


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("short", "short"),
        ("x" * 1024, "x" * 1024),
        ("x" * 1025, "x" * 1020 + " ..."),
        ("x" * 1019 + "éé" * 9, "x" * 1019 + " ..."),
    ],
    ids=["short", "just", "long", "no-half-letters"],
)
def test_notes_are_truncated(text: str, expected: str) -> None:
    assert truncated(text) == expected
    assert len(truncated(text).encode()) <= 1024


class Api:
    """Client and recorder in one; patches wait for `open`."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.patches: list[dict[str, Any]] = []
        self.events: list[tuple[str, str]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def patch(self, type: type, name: str, namespace: str, *, body: Any, **_: Any) -> None:
        await self.open.wait()
        self.patches.append(body["status"])
        if self.failures:
            raise self.failures.pop(0)

    def warning(self, about: Any, reason: str, message: str, action: str = "") -> None:
        self.events.append((reason, message))


@asynccontextmanager
async def reporter(
    api: Api, current: Callable[[str], Pod | None], clock: FakeClock | None = None
) -> AsyncIterator[tuple[UserReporter, SchedulerMetrics]]:
    metrics = SchedulerMetrics.of(CollectorRegistry())
    monitor = AttemptMonitor(lambda: 0.0, lambda profile: None)
    client: Any = api
    clock = clock or FakeClock()
    user_reporter = UserReporter(Subjects(PodSubject(client, clock, current)), client, metrics, monitor, clock)
    await user_reporter.start()
    try:
        yield user_reporter, metrics
    finally:
        await user_reporter.stop()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_rejection_becomes_event_and_condition() -> None:
    api, stored = Api(), pod("a")
    info = Cluster().info(stored)
    async with reporter(api, lambda key: stored) as (failures, _):
        failures.failed(info, unschedulable("no"), "0/1 nodes are available: 1 no.", "n1")
        await settle()
    assert api.events == [("FailedScheduling", "0/1 nodes are available: 1 no.")]
    (status,) = api.patches
    (condition,) = status["conditions"]
    assert status["nominatedNodeName"] == "n1"
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
    assert condition["message"] == "0/1 nodes are available: 1 no."


@pytest.mark.parametrize(
    ("message", "nominated", "sent"),
    [("same", None, []), ("same", "n1", []), ("same", "", [{"nominatedNodeName": None}])],
    ids=["known", "nominated-already", "cleared"],
)
async def test_an_equal_condition_is_not_written_again(message: str, nominated: str | None, sent: list[Any]) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": "same"}
    candidate = pod("a", status={"conditions": [condition], "nominatedNodeName": "n1"})
    api, info = Api(), Cluster().info(candidate)
    async with reporter(api, lambda key: candidate) as (failures, _):
        failures.failed(info, error("x"), message, nominated)
        await settle()
    assert api.patches == sent


@pytest.mark.parametrize(("observed", "writes"), [(2, 1), (3, 0)], ids=["older generation", "this generation"])
async def test_the_condition_names_the_generation_that_it_is_about(observed: int, writes: int) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "same"}
    known = {"conditions": [condition | {"observedGeneration": observed}]}
    api, stored = Api(), pod("a", metadata={"name": "a", "generation": 3}, status=known)
    async with reporter(api, lambda key: stored) as (failures, _):
        failures.failed(Cluster().info(stored), unschedulable("x"), "same", None)
        await settle()
    assert [status["conditions"][0]["observedGeneration"] for status in api.patches] == [3] * writes


async def test_of_several_failures_the_newest_is_written() -> None:
    api, stored = Api(), pod("a")
    info = Cluster().info(stored)
    api.open.clear()
    async with reporter(api, lambda key: stored) as (failures, _):
        for number in range(5):
            failures.failed(info, error("x"), f"failure {number}", None)
            await settle()
        api.open.set()
        await settle()
    assert [status["conditions"][0]["message"] for status in api.patches] == ["failure 0", "failure 4"]


@pytest.mark.parametrize("gone", ["deleted", "bound"])
async def test_nothing_is_written_to_a_pod_that_is_gone_or_bound(gone: str) -> None:
    candidate = pod("a")
    now = (
        None
        if gone == "deleted"
        else msgspec.structs.replace(candidate, spec=msgspec.structs.replace(candidate.spec, node_name="n"))
    )
    api = Api()
    async with reporter(api, lambda key: now) as (failures, _):
        failures.failed(Cluster().info(candidate), error("x"), "text", None)
        await settle()
    assert api.patches == []


async def test_a_failed_write_is_counted_and_others_go_on() -> None:
    candidate = pod("a")
    api, cluster = Api(NotFound(404), ServerError(500)), Cluster()
    async with reporter(api, lambda key: candidate) as (failures, metrics):
        for name in ("a", "b", "c"):
            failures.failed(cluster.info(pod(name)), error("x"), "text", None)
            await settle()
        assert metrics.patch_failures._value.get() == 1
    assert len(api.patches) == 3


@pytest.mark.parametrize(
    ("failure", "again"),
    [
        (ServerError(500), True),
        (TooManyRequests(429), True),
        (ConnectionFailed("no route"), True),
        (Conflict(409), False),
        (NotFound(404), False),
    ],
    ids=["500", "429", "no connection", "another pod of that name", "no pod"],
)
async def test_temporary_failures_are_retried(failure: Exception, again: bool) -> None:
    stored, clock = pod("a"), FakeClock()
    api = Api(failure)
    async with reporter(api, lambda key: stored, clock) as (failures, _):
        failures.failed(Cluster().info(stored), error("x"), "text", "n1")
        await settle()
        assert len(api.patches) == 1
        await clock.advance(RETRY_S)
        await settle()
        assert len(api.patches) == 1 + again
        await clock.advance(10 * RETRY_S)
        await settle()
    assert [status["conditions"][0]["message"] for status in api.patches] == ["text"] * (1 + again)
    assert [status["nominatedNodeName"] for status in api.patches] == ["n1"] * (1 + again)


async def test_a_newer_condition_or_a_node_replaces_a_failed_write() -> None:
    stored, clock = pod("a"), FakeClock()
    placed = msgspec.structs.replace(stored, spec=msgspec.structs.replace(stored.spec, node_name="n"))
    now = [stored]
    api, info = Api(ServerError(500), ServerError(500)), Cluster().info(stored)
    async with reporter(api, lambda key: now[0], clock) as (failures, _):
        failures.failed(info, error("x"), "older", None)
        await settle()
        failures.failed(info, error("x"), "newer", None)
        await clock.advance(RETRY_S)
        await settle()
        assert [status["conditions"][0]["message"] for status in api.patches] == ["older", "newer"]
        now[0] = placed
        await clock.advance(RETRY_S)
        await settle()
    assert len(api.patches) == 2
