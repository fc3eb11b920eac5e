"""The feed wakes a waiting task and runs the periodic flushes."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from control.scheduler.queue import Feed
from tests.control.scheduler.queue.scene import Scene
from tests.fakeclock import FakeClock


async def test_pop_waits_for_a_pod() -> None:
    scene = Scene()
    feed = Feed(scene.queue, registry=CollectorRegistry())
    waiting = asyncio.create_task(feed.pop_run(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    pod = scene.add("a")
    assert await waiting == [pod]


async def test_backoffs_end_by_themselves() -> None:
    clock = FakeClock()
    scene = Scene()
    feed = Feed(scene.queue, clock=clock, registry=CollectorRegistry())
    pod = scene.failed("a")
    waiting = asyncio.create_task(feed.pop_run(1))
    await feed.start()
    await clock.advance(1.5)
    assert not waiting.done()
    scene.now += 3
    await clock.advance(1)
    assert await waiting == [pod]
    await feed.stop()
