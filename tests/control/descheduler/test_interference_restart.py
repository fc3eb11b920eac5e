"""InterferenceAware after a restart or a change of the leader: what moved recently is left alone."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.descheduler.framework.handle import LeaseReference
from control.descheduler.framework.leasenote import MAX_ENTRIES, LeaseNote
from control.descheduler.migration.decide.objectlimiter import RecordedBucket
from control.descheduler.plugins.interferenceaware.recentmoves import MAX_MOVES, RecentMoves
from koordlet.api.core import Lease
from koordlet.api.meta import ObjectMeta, Status
from koordlet.api.names import ANNOTATION_INTERFERENCE_MOVES
from koordlet.kube import ConnectionFailed
from koordlet.kube.errors import from_status
from tests.control.descheduler.test_interference_moves import Trouble
from tests.fakeclock import FakeClock

LEASE = LeaseReference("koordinator-system", "koord-descheduler")
HOUR_S = 3600


class Killed(BaseException):
    """kill -9 of the process."""


class LeaseServer:
    """The API server with one lease, as far as the client's `get` and `patch` use it."""

    def __init__(self) -> None:
        self.annotations: dict[str, str] = {}
        self.writes = 0
        self.fails = False

    async def get(self, kind: type[Lease], name: str, namespace: str) -> Lease:
        self._check(kind, name, namespace)
        return Lease(metadata=ObjectMeta(name=name, namespace=namespace, annotations=dict(self.annotations)))

    async def patch(self, kind: type[Lease], name: str, namespace: str, *, body: dict[str, Any]) -> None:
        self._check(kind, name, namespace)
        self.writes += 1
        self.annotations |= body["metadata"]["annotations"]

    def _check(self, kind: type[Lease], name: str, namespace: str) -> None:
        assert (kind, namespace, name) == (Lease, LEASE.namespace, LEASE.name)
        if self.fails:
            raise ConnectionFailed("no answer")

    def moved(self) -> dict[str, float]:
        return msgspec.json.decode(self.annotations.get(ANNOTATION_INTERFERENCE_MOVES, "{}"), type=dict[str, float])


def note(server: LeaseServer, value: type[Any] = float) -> LeaseNote[Any]:
    client: Any = server
    return LeaseNote(client, LEASE.namespace, LEASE.name, ANNOTATION_INTERFERENCE_MOVES, value)


def leader(server: LeaseServer, clock: FakeClock | None = None, **args: Any) -> Trouble:
    """A process that leads from now on."""
    return Trouble(server=server, clock=clock, **args)


async def test_the_next_leader_leaves_node_and_workload_alone() -> None:
    server = LeaseServer()
    first = leader(server)
    await first.minutes(11)
    assert first.evicted == ["noisy"]
    assert set(server.moved()) == {"n1", first.state.pods["default/noisy"].uid}
    second = leader(server, first.clock)
    await second.minutes(58)
    assert second.evicted == []
    await second.minutes(3)
    assert second.evicted == ["noisy"]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(("restart", "minutes", "calm")), st.integers(1, 12)), max_size=20))
def test_no_node_and_no_workload_moves_twice_within_the_cool_down(steps: list[tuple[str, int]]) -> None:
    asyncio.run(_check_cool_down(steps))


async def _check_cool_down(steps: list[tuple[str, int]]) -> None:
    server = LeaseServer()
    args: dict[str, Any] = {"persistSeconds": 60, "cooldownSeconds": 1200}
    world, times = leader(server, **args), []
    for step, number in steps:
        if step == "restart":
            world = leader(server, world.clock, **args)
            continue
        for _ in range(number):
            before, now = len(world.evicted), world.clock.now()
            await world.minutes(1, [] if step == "calm" else None)
            times += [now] * (len(world.evicted) - before)
    assert all(later - earlier >= 1200 for earlier, later in itertools.pairwise(times)), times


async def test_without_leader_election_the_cool_down_ends_with_the_process() -> None:
    first = Trouble()
    await first.minutes(11)
    second = Trouble(clock=first.clock)
    await second.minutes(11)
    assert second.evicted == ["noisy"]


async def test_a_process_that_is_killed_at_the_eviction_has_recorded_it() -> None:
    server = LeaseServer()
    first = leader(server)

    async def evict(pod: Any, options: Any) -> bool:
        raise Killed

    first.evictor.evict = evict  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await first.minutes(11)
    second = leader(server, first.clock)
    await second.minutes(40)
    assert second.evicted == []


async def test_no_pod_moves_while_moves_cannot_be_recorded() -> None:
    server = LeaseServer()
    world = leader(server)
    server.fails = True
    await world.minutes(20)
    assert world.evicted == [] and world.events.messages == []
    server.fails = False
    await world.moves.balance(world.state.ready_nodes())
    server.fails = True
    await world.minutes(20)
    assert world.evicted == ["noisy"]


async def test_a_refused_eviction_is_not_recorded() -> None:
    server = LeaseServer()
    world = leader(server, moveVictims=False)
    world.evictor.failing = {"noisy"}
    await world.minutes(11)
    assert server.moved() == {} and server.writes == 2
    world.evictor.failing = set()
    await world.minutes(1)
    assert world.evicted == ["noisy"]


@pytest.mark.parametrize("args", [{"dryRun": True}, {"global_dry_run": True}], ids=["plugin", "process"])
async def test_a_dry_run_records_nothing(args: dict[str, Any]) -> None:
    server = LeaseServer()
    world = leader(server, **args)
    await world.minutes(40)
    assert len(world.planned) == 1
    assert server.writes == 0


async def test_what_is_recorded_is_bounded() -> None:
    server, clock = LeaseServer(), FakeClock()
    moves = RecentMoves(clock, note(server))
    moves.keep_s = HOUR_S
    await moves.read()
    moves.add([f"{number:0253}" for number in range(MAX_MOVES)])
    await clock.advance(1.0)
    await moves.record(["n1"])
    assert len(moves._moved) == MAX_MOVES
    assert len(server.moved()) == MAX_ENTRIES and "n1" in server.moved()
    assert set(await note(server).read()) == set(server.moved()), "the longest text is readable"
    await clock.advance(HOUR_S)
    await moves.record(["n2"])
    assert set(server.moved()) == {"n2"}


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "{}x", '{"n1": "x"}', '{"n1": null}', '{"n1": [1, 2]}', '{"' + "x" * 300_000 + '": 1}']
)
@pytest.mark.parametrize("value", [float, RecordedBucket])
async def test_malformed_records_are_ignored(text: str, value: type[Any]) -> None:
    server = LeaseServer()
    server.annotations[ANNOTATION_INTERFERENCE_MOVES] = text
    assert await note(server, value).read() == {}


async def test_a_time_in_the_future_counts_as_now() -> None:
    server, clock = LeaseServer(), FakeClock(100.0)
    server.annotations[ANNOTATION_INTERFERENCE_MOVES] = '{"n1": 500, "n2": 50}'
    moves = RecentMoves(clock, note(server))
    await moves.read()
    assert moves._moved == {"n1": 100.0, "n2": 50.0}


async def test_a_clock_that_was_set_back_does_not_prolong_the_time() -> None:
    clock = FakeClock()
    moves = RecentMoves(clock, None)
    moves.add(["n1"])
    moves._moved["n1"] += 1e6
    assert moves.within("n1", HOUR_S)
    await clock.advance(HOUR_S)
    assert not moves.within("n1", HOUR_S)


async def test_a_missing_lease_has_no_record() -> None:
    class Missing(LeaseServer):
        async def get(self, kind: type[Lease], name: str, namespace: str) -> Lease:
            raise from_status(Status(code=404, reason="NotFound", message="no lease"))

    assert await note(Missing()).read() == {}
