"""Virtual time behaves like time."""

import asyncio

import pytest

from koordlet.app.clock import SystemClock
from koordlet.app.tasks import end_tasks
from tests.fakeclock import FakeClock
from tests.present import present


async def test_sleepers_wake_in_order_also_when_they_sleep_again() -> None:
    clock, woken = FakeClock(), []

    async def beat(name: str, period: int) -> None:
        while True:
            await clock.sleep(period)
            woken.append((clock.monotonic(), name))

    tasks = [asyncio.create_task(beat("a", 2)), asyncio.create_task(beat("b", 3))]
    await clock.advance(6)
    assert woken == [(2, "a"), (3, "b"), (4, "a"), (6, "b"), (6, "a")]
    assert clock.monotonic() == 6
    await end_tasks(*tasks)


async def test_jump_moves_the_wall_clock_only() -> None:
    clock = FakeClock(wall=1000)
    clock.jump(-500)
    assert (clock.now(), clock.monotonic()) == (500, 0)


async def test_timeout_cancels_the_body() -> None:
    clock = FakeClock()

    async def body() -> None:
        async with clock.timeout(5):
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await clock.advance(4.9)
    assert not task.done()
    await clock.advance(0.1)
    with pytest.raises(TimeoutError):
        await task


async def test_timeout_that_is_met_leaves_no_trace() -> None:
    clock = FakeClock()
    async with clock.timeout(5):
        await clock.settle()
    await clock.advance(10)
    assert present(asyncio.current_task()).cancelling() == 0


async def test_outer_cancellation_is_not_a_timeout() -> None:
    clock = FakeClock()

    async def body() -> None:
        async with clock.timeout(5):
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await clock.settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_auto_sleeps_end_at_once() -> None:
    clock = FakeClock(auto=True)
    await clock.sleep(3600)
    assert clock.monotonic() == 3600 and clock.slept == [3600]


async def test_system_clock() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(-1)
    with pytest.raises(TimeoutError):
        async with clock.timeout(0):
            await asyncio.Event().wait()
    assert clock.monotonic() >= before and clock.now() > 1_600_000_000
