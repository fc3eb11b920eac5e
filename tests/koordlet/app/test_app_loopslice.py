"""Long work rests after each slice, long enough for other tasks to be served completely."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from koordlet.app import loopslice
from koordlet.app.loopslice import MAX_REST_S, SLICE_S, yield_to_loop


class FakeTime:
    """Advances only by `work`."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTime]:
    clock = FakeTime()
    monkeypatch.setattr(loopslice, "time", clock)
    yield clock


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The length of each rest; a rest is two iterations of the loop here."""
    lengths: list[float] = []
    sleep = asyncio.sleep

    async def rest(seconds: float) -> None:
        lengths.append(seconds)
        await sleep(0)
        await sleep(0)

    monkeypatch.setattr(loopslice.asyncio, "sleep", rest)  # type: ignore[attr-defined]
    return lengths


async def test_there_is_no_rest_within_a_slice(work: FakeTime, rests: list[float]) -> None:
    for _ in range(7):
        await yield_to_loop()
        work.work(SLICE_S / 8)
    assert rests == []


async def test_each_slice_is_followed_by_a_rest_of_the_same_length(work: FakeTime, rests: list[float]) -> None:
    for _ in range(37):
        await yield_to_loop()
        work.work(SLICE_S / 8)
    assert len(rests) == 4
    assert rests == pytest.approx([SLICE_S] * 4)


async def test_the_rest_after_a_long_piece_of_work_is_as_long_up_to_a_bound(work: FakeTime, rests: list[float]) -> None:
    for seconds in (3 * SLICE_S, 1.0):
        await yield_to_loop()
        work.work(seconds)
        await yield_to_loop()
    assert rests == pytest.approx([3 * SLICE_S, MAX_REST_S])


async def test_a_new_loop_iteration_starts_a_new_slice(work: FakeTime, rests: list[float]) -> None:
    for _ in range(20):
        await yield_to_loop()
        work.work(SLICE_S * 0.9)
        await _next_iteration()
    assert rests == []


async def test_all_tasks_of_a_loop_share_one_slice(work: FakeTime, rests: list[float]) -> None:
    """Three tasks that are ready in one iteration do not occupy it for three slices."""
    waits: list[float] = []

    async def worker() -> None:
        for _ in range(30):
            await yield_to_loop()
            work.work(SLICE_S / 4)

    async def request() -> None:
        while len(waits) < 40:
            before = work.now
            await _next_iteration()
            waits.append(work.now - before)

    await asyncio.gather(*(worker() for _ in range(3)), request())
    assert max(waits) < SLICE_S * 1.8


async def _next_iteration() -> None:
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    await done
