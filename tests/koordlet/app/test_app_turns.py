"""Long work gives way: by the time it held the loop, and long enough for others to run through."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from koordlet.app import turns
from koordlet.app.turns import LONGEST_REST_SECONDS, SLICE_SECONDS, give_way


class Time:
    """Stands still but for what work takes."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    clock = Time()
    monkeypatch.setattr(turns, "time", clock)
    yield clock


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each rest was to be; they are turns of the loop here."""
    made: list[float] = []
    sleep = asyncio.sleep

    async def rest(seconds: float) -> None:
        made.append(seconds)
        await sleep(0)
        await sleep(0)

    monkeypatch.setattr(turns.asyncio, "sleep", rest)
    return made


async def test_pieces_of_a_slice_follow_each_other(work: Time, rests: list[float]) -> None:
    for _ in range(7):
        await give_way()
        work.work(SLICE_SECONDS / 8)
    assert rests == []


async def test_after_a_slice_as_long_a_rest(work: Time, rests: list[float]) -> None:
    for _ in range(37):
        await give_way()
        work.work(SLICE_SECONDS / 8)
    assert len(rests) == 4
    assert rests == pytest.approx([SLICE_SECONDS] * 4)


async def test_a_piece_that_could_not_be_divided_is_made_up_for_within_bounds(work: Time, rests: list[float]) -> None:
    for seconds in (3 * SLICE_SECONDS, 1.0):
        await give_way()
        work.work(seconds)
        await give_way()
    assert rests == pytest.approx([3 * SLICE_SECONDS, LONGEST_REST_SECONDS])


async def test_who_waited_for_something_else_starts_anew(work: Time, rests: list[float]) -> None:
    for _ in range(20):
        await give_way()
        work.work(SLICE_SECONDS * 0.9)
        await _turn()
    assert rests == []


async def test_several_at_work_share_a_slice(work: Time, rests: list[float]) -> None:
    """Three tasks that are ready in one turn do not hold it for three slices."""
    held: list[float] = []

    async def worker() -> None:
        for _ in range(30):
            await give_way()
            work.work(SLICE_SECONDS / 4)

    async def request() -> None:
        while len(held) < 40:
            before = work.now
            await _turn()
            held.append(work.now - before)

    await asyncio.gather(*(worker() for _ in range(3)), request())
    assert max(held) < SLICE_SECONDS * 1.8


async def _turn() -> None:
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    await done
