"""Victims are deleted in the background; the preemptor learns whether all of them will go (spec 05 §3.6-5)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from control.scheduler.cycle.victimdeletion import BackgroundEvictor
from control.scheduler.state.pods import PodInfo
from koordlet.kube import NotFound, ServerError
from tests.control.scheduler.build import Cluster, pod
from tests.fakeclock import FakeClock


class Deletions:
    """The client: answers deletions by the victim's name, and notes patches."""

    def __init__(self, failures: dict[str, Exception]) -> None:
        self.failures = failures
        self.patches: list[tuple[str, Any]] = []

    async def patch(self, type: type, name: str, namespace: str, *, body: Any, **_: Any) -> None:
        self.patches.append((name, body["status"]))

    async def delete(self, type: type, name: str, namespace: str, **_: Any) -> None:
        if name in self.failures:
            raise self.failures[name]


def evictor_of(client: Deletions) -> tuple[BackgroundEvictor, list[tuple[str, bool]]]:
    ended: list[tuple[str, bool]] = []

    def finished(by: PodInfo, incomplete: bool) -> None:
        ended.append((by.name, incomplete))

    events = SimpleNamespace(normal=lambda *_: None)
    failures = Counter("failures", "", registry=CollectorRegistry())
    return BackgroundEvictor(client, events, FakeClock(), failures, finished), ended  # type: ignore[arg-type]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("failures", "incomplete"),
    [({}, False), ({"b": ServerError(500)}, True), ({"a": NotFound(404)}, True)],
    ids=["all", "refused", "gone already"],
)
async def test_the_preemptor_is_tried_again_only_if_a_victim_does_not_go(
    failures: dict[str, Exception], *, incomplete: bool
) -> None:
    cluster = Cluster()
    evictor, ended = evictor_of(Deletions(failures))
    by = cluster.info(pod("new", priority=9))
    evictor.evict([cluster.info(pod(name, on="n")) for name in "ab"], by=by, message="go")
    assert evictor.evicting_for(by.uid)
    await settle()
    assert ended == [("new", incomplete)]
    assert not evictor.evicting_for(by.uid)


async def test_nominations_are_removed_from_the_status() -> None:
    cluster = Cluster()
    client = Deletions({})
    evictor, _ = evictor_of(client)
    evictor.clear_nominations([
        cluster.info(pod("lesser", status={"nominatedNodeName": "n"})), cluster.info(pod("in-memory-only")),
    ])  # fmt: skip
    await settle()
    assert client.patches == [("lesser", {"nominatedNodeName": None})]
