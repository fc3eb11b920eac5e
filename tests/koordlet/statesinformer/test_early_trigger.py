"""Pod events bring the next look forward, within limits."""

import asyncio
import time
from pathlib import Path

import pytest

from koordlet.app.periodic import Periodic
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex
from koordlet.statesinformer.pods.earlytrigger import BURST_BYTES, MAX_BYTES_PER_S, EarlyTrigger
from koordlet.statesinformer.pods.model import Workloads
from koordlet.statesinformer.pods.pleg import Pleg, PodEvent, PodEventKind
from tests.fakeclock import FakeClock
from tests.waiting import until

POD, CONTAINER = PodEvent(PodEventKind.POD_ADDED, "uid"), PodEvent(PodEventKind.CONTAINER_ADDED, "uid", "abc")
GONE = PodEvent(PodEventKind.POD_DELETED, "uid")


async def test_a_burst_of_ten_then_five_per_second() -> None:
    clock, calls = FakeClock(), []
    prompt = EarlyTrigger(lambda: calls.append(clock.monotonic()), clock=clock)
    for _ in range(100):
        prompt.on_added(POD)
    assert len(calls) == 10, "more are dropped, not saved up"
    for _ in range(100):
        await clock.advance(0.1)
        for _ in range(3):
            prompt.on_added(POD)
    assert len(calls) == pytest.approx(60, abs=1)


async def test_long_answers_are_read_early_less_often() -> None:
    """A tenant chooses the length of the kubelet's answer, up to gigabytes, and starts pods at any rate."""
    clock, calls = FakeClock(), []
    prompt = EarlyTrigger(lambda: calls.append(clock.monotonic()), length=lambda: BURST_BYTES // 4, clock=clock)
    for _ in range(100):
        prompt.on_added(POD)
    assert len(calls) == 4
    for _ in range(100):
        await clock.advance(0.1)
        prompt.on_added(POD)
    assert len(calls) == pytest.approx(4 + 10 * MAX_BYTES_PER_S / (BURST_BYTES / 4), abs=1)


async def test_an_early_run_restarts_the_period() -> None:
    clock, runs = FakeClock(), []
    task = Periodic("pods", 10.0, lambda: runs.append(clock.monotonic()), clock=clock)
    prompt = EarlyTrigger(task.trigger, clock=clock)
    await task.start()
    await clock.advance(4.0)
    prompt.on_added(POD)
    await clock.advance(9.9)
    assert runs == [0.0, 4.0]
    await clock.advance(0.2)
    assert runs == [0.0, 4.0, 14.0]
    await task.stop()


async def test_new_containers_are_queried_after_a_delay() -> None:
    calls = []
    prompt = EarlyTrigger(lambda: calls.append(time.monotonic()), delay_s=0.05)
    began = time.monotonic()
    prompt.on_added(CONTAINER)
    prompt.on_added(CONTAINER)  # may be too young for the first look: there is a second one
    assert calls == []
    await until(lambda: len(calls) == 2)
    assert calls[0] >= began + 0.04
    assert calls[1] >= calls[0] + 0.04
    await prompt.close()


async def test_nothing_is_triggered_after_close() -> None:
    calls = []
    prompt = EarlyTrigger(lambda: calls.append(1), delay_s=0.01)
    prompt.later()
    await prompt.close()
    await prompt.close()
    await asyncio.sleep(0.03)
    assert calls == []


async def test_the_last_of_many_events_is_not_missed() -> None:
    clock, calls = FakeClock(), []
    prompt = EarlyTrigger(lambda: calls.append(1), delay_s=0.01, clock=clock)
    for _ in range(50):
        prompt.on_any(GONE)
    assert len(calls) == 10
    await clock.advance(1.0)
    await until(lambda: len(calls) > 10)
    await prompt.close()


@pytest.mark.parametrize("event", [POD, CONTAINER, GONE], ids=lambda event: event.kind.value)
def test_the_tree_is_read_again_after_any_event(event: PodEvent) -> None:
    calls = []
    EarlyTrigger(lambda: calls.append(1)).on_any(event)
    assert calls == [1]


def test_deletions_do_not_trigger_a_query_of_the_kubelet() -> None:
    calls = []
    EarlyTrigger(lambda: calls.append(1)).on_added(GONE)
    assert calls == []


async def test_the_index_finds_a_new_cgroup_at_its_next_refresh(tmp_path: Path) -> None:
    """Without events it would take an unknown id and two seconds since the last walk."""

    def walk() -> list[tuple[str, int]]:
        return [(str(path.relative_to(tmp_path)), path.stat().st_ino) for path in sorted(tmp_path.rglob("*/"))]

    index, workloads = CgroupIndex(walk), Workloads()
    pleg = Pleg(tmp_path)
    pleg.add_handler(lambda _: index.expire())
    await pleg.start()
    index.refresh(workloads, now=1.0)
    container = tmp_path / "kubepods/podu1/abc"
    container.mkdir(parents=True)
    await until(lambda: pleg.counts[PodEventKind.CONTAINER_ADDED])
    index.refresh(workloads, now=1.1)
    owner = index.owner(container.stat().st_ino)
    assert (owner.kind, owner.pod_uid) == ("pod", "u1"), "the pod's, until the container is known by name"
    await pleg.stop()
