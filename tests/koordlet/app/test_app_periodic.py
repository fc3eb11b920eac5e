"""Periodic tasks on virtual time: beat, lateness, failures, deadlines."""

import asyncio
import random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from koordlet.app.periodic import Periodic
from tests.fakeclock import FakeClock


def sample(registry: CollectorRegistry, name: str, **labels: Any) -> float:
    return registry.get_sample_value(f"koord_periodic_task_{name}", {"task": "t", **labels})  # type: ignore[return-value]


async def test_keeps_a_fixed_rate() -> None:
    clock, at = FakeClock(), []

    async def tick() -> None:
        at.append(clock.monotonic())
        await clock.sleep(0.4)

    task = Periodic("t", 1, tick, clock=clock, registry=CollectorRegistry())
    await task.start()
    await clock.advance(3.5)
    await task.stop()
    assert at == [0, 1, 2, 3]


async def test_overrun_drops_missed_runs_and_counts_lateness() -> None:
    clock, registry, at = FakeClock(), CollectorRegistry(), []
    lengths = iter([2.5, 0, 0, 0])

    async def tick() -> None:
        at.append(clock.monotonic())
        await clock.sleep(next(lengths))

    task = Periodic("t", 1, tick, clock=clock, registry=registry)
    await task.start()
    await clock.advance(4.2)
    await task.stop()
    assert at == [0, 2.5, 3, 4]
    assert sample(registry, "lateness_seconds_sum") == pytest.approx(0.5)
    assert sample(registry, "runs_total") == 4


async def test_a_run_that_raises_is_counted_logged_and_followed_by_the_next(caplog: pytest.LogCaptureFixture) -> None:
    clock, registry, runs = FakeClock(), CollectorRegistry(), []

    def tick() -> None:
        runs.append(1)
        if len(runs) <= 5:
            raise OSError("cgroup vanished")

    task = Periodic("t", 1, tick, clock=clock, registry=registry)
    with caplog.at_level("INFO"):
        await task.start()
        await clock.advance(5.5)
        await task.stop()
    assert len(runs) == 6 and task.failing == 0
    assert sample(registry, "failures_total") == 5
    assert sample(registry, "last_success_timestamp_seconds") == clock.now() - 0.5
    messages = [record.koord_message for record in caplog.records]  # type: ignore[attr-defined]
    assert messages.count("Periodic task failed") == 3  # failures 1, 2 and 4 of the streak
    assert "Periodic task recovered" in messages
    assert "cgroup vanished" in caplog.text


async def test_deadline_cancels_the_run() -> None:
    clock, registry, ended = FakeClock(), CollectorRegistry(), []

    async def tick() -> None:
        try:
            await clock.sleep(100)
        finally:
            ended.append(clock.monotonic())

    task = Periodic("t", 10, tick, deadline=3, clock=clock, registry=registry)
    await task.start()
    await clock.advance(9)
    await task.stop()
    assert ended == [3] and sample(registry, "failures_total") == 1


async def test_trigger_runs_now_and_restarts_the_schedule() -> None:
    clock, at = FakeClock(), []
    task = Periodic(
        "t", 10, lambda: at.append(clock.monotonic()), immediate=False, clock=clock, registry=CollectorRegistry()
    )
    await task.start()
    await clock.advance(4)
    task.trigger()
    task.trigger()
    await clock.advance(11)
    await task.stop()
    assert at == [4, 14]


async def test_jitter_delays_within_its_bound() -> None:
    clock, at = FakeClock(), []
    task = Periodic(
        "t", 10, lambda: at.append(clock.monotonic()), jitter=0.2, clock=clock, registry=CollectorRegistry(),
        rng=random.Random(7),
    )  # fmt: skip
    await task.start()
    await clock.advance(100)
    await task.stop()
    late = [when - 10 * index for index, when in enumerate(at)]
    assert all(0 <= delay <= 2 for delay in late) and len(set(late)) > 5


async def test_wall_clock_jumps_change_nothing() -> None:
    clock, at = FakeClock(), []
    task = Periodic("t", 1, lambda: at.append(clock.monotonic()), clock=clock, registry=CollectorRegistry())
    await task.start()
    await clock.advance(1.5)
    clock.jump(-86400)
    await clock.advance(1)
    await task.stop()
    assert at == [0, 1, 2]


async def test_a_run_that_meets_another_tasks_cancellation_has_failed_and_the_next_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, registry, runs = FakeClock(), CollectorRegistry(), []

    async def tick() -> None:
        runs.append(1)
        if len(runs) == 1:
            shared = asyncio.create_task(asyncio.sleep(60))
            shared.cancel()  # as another user of the shared task may do
            await shared

    task = Periodic("t", 1, tick, clock=clock, registry=registry)
    await task.start()
    await clock.advance(1.5)
    await task.stop()
    assert len(runs) == 2 and sample(registry, "failures_total") == 1
    assert "CancelledError" in caplog.text


def test_period_must_be_positive() -> None:
    with pytest.raises(ValueError, match="period of task t"):
        Periodic("t", 0, lambda: None, registry=CollectorRegistry())
