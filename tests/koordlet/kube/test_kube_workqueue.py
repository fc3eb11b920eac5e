"""The promises of the work queue, on virtual time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from koordlet.app.tasks import end_tasks
from koordlet.kube import QueueClosed, WorkQueue
from tests.fakeclock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def queue(clock: FakeClock) -> AsyncIterator[WorkQueue[Any]]:
    queue: WorkQueue[Any] = WorkQueue("q", clock=clock, registry=CollectorRegistry())
    yield queue
    await queue.shutdown()


async def test_an_item_waits_once_and_in_order(queue: WorkQueue[Any]) -> None:
    for item in ("a", "b", "a"):
        queue.add(item)
    assert len(queue) == 2
    assert [await queue.get(), await queue.get()] == ["a", "b"]


async def test_an_item_in_work_is_not_given_out_twice(queue: WorkQueue[Any], clock: FakeClock) -> None:
    queue.add("a")
    item = await queue.get()
    queue.add("a")
    waiting = asyncio.create_task(queue.get())
    await clock.settle()
    assert not waiting.done()
    queue.done(item)
    assert await waiting == "a"


async def test_delayed_items_come_in_time_and_the_earlier_time_counts(queue: WorkQueue[Any], clock: FakeClock) -> None:
    queue.add_after("late", 10)
    queue.add_after("soon", 5)
    queue.add_after("soon", 20)
    queue.add_after("late", 7)
    await clock.advance(4.9)
    assert len(queue) == 0
    await clock.advance(0.2)
    assert await queue.get() == "soon"
    await clock.advance(2)
    assert await queue.get() == "late"
    await clock.advance(30)
    assert len(queue) == 0


async def test_adding_at_once_voids_the_delay(queue: WorkQueue[Any], clock: FakeClock) -> None:
    queue.add_after("a", 5)
    queue.add("a")
    queue.done(await queue.get())
    await clock.advance(10)
    assert len(queue) == 0


async def test_failures_back_off_per_item(clock: FakeClock) -> None:
    queue: WorkQueue[Any] = WorkQueue("q", qps=0, clock=clock, registry=CollectorRegistry())
    waits = []
    for _ in range(6):
        before = clock.monotonic()
        queue.add_rate_limited("a")
        while not len(queue):
            await clock.advance(0.005)
        waits.append(round(clock.monotonic() - before, 3))
        queue.done(await queue.get())
    assert waits == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.08, 0.16], abs=0.006)  # looked at every 5 ms
    queue.forget("a")
    assert queue.failures("a") == 0
    await queue.shutdown()


async def test_overall_budget_holds_many_failures(clock: FakeClock) -> None:
    queue: WorkQueue[Any] = WorkQueue("q", qps=10, burst=2, clock=clock, registry=CollectorRegistry())
    for item in range(6):
        queue.add_rate_limited(item)
    await clock.advance(0.01)
    assert len(queue) == 2
    await clock.advance(0.41)
    assert len(queue) == 6
    await queue.shutdown()


async def test_work_retries_what_raises_and_repeats_what_asks(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    queue: WorkQueue[Any] = WorkQueue("q", clock=clock, registry=registry)
    attempts = []

    async def reconcile(item: str) -> float | None:
        attempts.append((item, round(clock.monotonic(), 3)))
        if len(attempts) == 1:
            raise OSError("conflict")
        return 60.0 if len(attempts) == 2 else None

    worker = asyncio.create_task(queue.work(reconcile))
    queue.add("a")
    await clock.advance(100)
    assert attempts == [("a", 0), ("a", 0.005), ("a", 60.005)]
    assert "conflict" in caplog.text and queue.failures("a") == 0
    assert registry.get_sample_value("koord_workqueue_retries_total", {"queue": "q"}) == 1
    await queue.shutdown()
    await worker


async def test_shutdown_gives_out_what_is_ready_then_ends(clock: FakeClock) -> None:
    queue: WorkQueue[Any] = WorkQueue("q", clock=clock, registry=CollectorRegistry())
    queue.add("a")
    queue.add_after("b", 1)
    await queue.shutdown()
    queue.add("c")
    assert await queue.get() == "a"
    with pytest.raises(QueueClosed):
        await queue.get()


async def test_a_cancelled_getter_loses_nothing(queue: WorkQueue[Any], clock: FakeClock) -> None:
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await clock.settle()
    queue.add("a")
    first.cancel()
    assert await second == "a"


async def test_work_that_meets_another_tasks_cancellation_is_retried_by_the_same_worker(
    queue: WorkQueue[Any], clock: FakeClock
) -> None:
    attempts = []

    async def reconcile(item: str) -> None:
        attempts.append(item)
        if len(attempts) == 1:
            shared = asyncio.create_task(asyncio.sleep(60))
            shared.cancel()
            await shared

    worker = asyncio.create_task(queue.work(reconcile))
    queue.add("a")
    await clock.advance(1)
    assert attempts == ["a", "a"] and not worker.done()
    await end_tasks(worker)
    assert worker.cancelled()


async def test_rescheduled_items_do_not_accumulate(queue: WorkQueue[Any], clock: FakeClock) -> None:
    for _ in range(1000):
        for item in ("a", "b"):
            queue.add_after(item, 3600)
            queue.add(item)
            queue.done(await queue.get())
    queue.add_after("a", 3600)
    queue.add_after("b", 1800)
    assert len(queue._delayed) < 100
    await clock.advance(3601)
    assert [await queue.get(), await queue.get()] == ["b", "a"] and len(queue) == 0


@given(st.lists(st.tuples(st.sampled_from(["add", "after", "limited", "get", "done", "time"]), st.integers(0, 3))))
def test_nothing_added_is_ever_lost_and_nothing_is_worked_on_twice_at_once(steps: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        queue: WorkQueue[Any] = WorkQueue("q", qps=0, clock=clock, registry=CollectorRegistry())
        owed, working = set(), set()
        for step, item in steps:
            if step in ("add", "after", "limited"):
                owed.add(item)
            match step:
                case "add":
                    queue.add(item)
                case "after":
                    queue.add_after(item, 1.0 + item)
                case "limited":
                    queue.add_rate_limited(item)
                case "time":
                    await clock.advance(item)
                case "get" if len(queue):
                    taken = await queue.get()
                    assert taken not in working
                    owed.discard(taken)
                    working.add(taken)
                case "done":
                    queue.done(item)
                    working.discard(item)
        for item in list(working):
            queue.done(item)
        await clock.advance(2000)
        while len(queue):
            taken = await queue.get()
            owed.discard(taken)
            queue.done(taken)
            await clock.advance(2000)
        assert not owed
        await queue.shutdown()

    asyncio.run(scenario())


@given(st.lists(st.tuples(st.sampled_from(["add", "add", "get"]), st.integers(0, 3), st.integers(0, 9))))
def test_shares_take_turns(steps: list[tuple[str, int, int]]) -> None:
    """Items of one share are given out in order. Before an item, each other share gives at most one item for it and for
    each item before it in its own share. A share without items is not kept."""

    async def scenario() -> None:
        queue: WorkQueue[tuple[int, int]] = WorkQueue(
            "q", share_of=lambda item: item[0], clock=FakeClock(), registry=CollectorRegistry()
        )
        waiting: list[tuple[int, int]] = []
        turns: dict[tuple[int, int], int] = {}
        """How many items of its share an item waits for, with itself."""
        foreign: dict[tuple[int, int], Counter[int]] = {}
        for step, share, number in [*steps, *[("get", 0, 0)] * len(steps)]:
            if step == "add" and (share, number) not in waiting:
                queue.add((share, number))
                waiting.append((share, number))
                turns[share, number] = sum(each[0] == share for each in waiting)
                foreign[share, number] = Counter()
            elif step == "get" and waiting:
                item = await queue.get()
                queue.done(item)
                assert item == next(each for each in waiting if each[0] == item[0])
                waiting.remove(item)
                for each in waiting:
                    foreign[each][item[0]] += each[0] != item[0]
                assert max(foreign[item].values(), default=0) <= turns[item]
            assert len(queue) == len(waiting) and queue._ready._shares.keys() == {each[0] for each in waiting}
        assert not waiting
        await queue.shutdown()

    asyncio.run(scenario())


async def test_work_in_progress_is_a_metric(clock: FakeClock) -> None:
    """Two items in progress for 3 and 5 seconds."""
    registry = CollectorRegistry()
    queue: WorkQueue[Any] = WorkQueue("q", clock=clock, registry=registry)

    def in_progress(name: Any) -> Any:
        return registry.get_sample_value(f"koord_workqueue_{name}_seconds", {"queue": "q"})

    assert (in_progress("unfinished_work"), in_progress("longest_running_processor")) == (0, 0)
    queue.add("a")
    queue.add("b")
    await queue.get()
    await clock.advance(2)
    await queue.get()
    await clock.advance(3)
    assert (in_progress("unfinished_work"), in_progress("longest_running_processor")) == (8, 5)
    queue.done("a")
    assert (in_progress("unfinished_work"), in_progress("longest_running_processor")) == (3, 3)
