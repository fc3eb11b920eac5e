"""The plugin InterferenceAware: which pod moves when a service is delayed for a long time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.component.reading import Reader
from control.descheduler.framework.handle import LeaseReference
from control.descheduler.plugins.interferenceaware.args import InterferenceMovesArgs
from control.descheduler.plugins.interferenceaware.history import DelayHistory
from control.descheduler.plugins.interferenceaware.plugin import InterferenceMoves
from control.descheduler.state.delays import Delay, delays_of
from control.descheduler.state.loads import load_of
from koordlet.api.core import Pod
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Time
from tests.control.descheduler.world import World
from tests.fakeclock import FakeClock

ARGS: dict[str, Any] = {"persistSeconds": 600, "reportExpirationSeconds": 180}


def brief(**changes: Any) -> dict[str, Any]:
    return {
        "container": "c",
        "resource": "cpu",
        "cause": "neighbour",
        "state": "interfered",
        "score": 3.0,
        "lost": 0.4,
        "confidence": 0.9,
        "culprit": "default/noisy/c",
        "share": 0.8,
        "action": "limit-culprit",
        **changes,
    }


def metric(at: float, briefs: Any, *, qos: str = "LS", node: str = "n1") -> NodeMetric:
    entry = {"namespace": "default", "name": "web", "qos": qos, "podUsage": {}, "extensions": {"interference": briefs}}
    status = {"updateTime": str(Time.from_unix(at)), "nodeMetric": {}, "podsMetric": [entry]}
    return wire.convert({"metadata": {"name": node}, "status": status}, NodeMetric)


class Recorder:
    """Keeps Events."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, str]] = []

    def warning(self, about: Pod, reason: str, message: str) -> None:
        self.messages.append((about.metadata.name, reason, message))


class Trouble(World):
    """A service `web` on n1 that `noisy` delays; n2 is free."""

    def __init__(
        self,
        *,
        preview: bool = False,
        global_dry_run: bool = False,
        server: Any = None,
        clock: FakeClock | None = None,
        **args: Any,
    ) -> None:
        """`server`: has the lease that this process holds; None: no leader election."""
        super().__init__(dry_run=preview or global_dry_run, preview=preview)
        self.clock = clock or self.clock
        if server is not None:
            self.client, self.lease = server, LeaseReference("koordinator-system", "koord-descheduler")
        self.events = Recorder()
        for name in ("n1", "n2"):
            self.node(name)
        self.pod("web", on="n1")
        self.pod("noisy", on="n1")
        self.moves = self.plugin(InterferenceMoves, {**ARGS, **args})

    async def minutes(self, number: int, briefs: Any = None, *, node: str = "n1") -> None:
        """A report and a pass per minute."""
        for _ in range(number):
            now = self.clock.now()
            self.state.set_load(load_of(metric(now, [brief()] if briefs is None else briefs, node=node)))
            await self.moves.balance(self.state.ready_nodes())
            await self.clock.advance(60.0)


async def test_the_culprit_moves_when_the_delay_lasts() -> None:
    world = Trouble()
    await world.minutes(10)
    assert world.evicted == []
    await world.minutes(1)
    assert world.evicted == ["noisy"]
    evidence = (
        "pod default/web (container c) has lost 40% of its time to co-located pods (cpu) for 10 minutes on node n1; "
        "default/noisy causes 80% of it"
    )
    assert world.reasons == [evidence]
    assert world.events.messages == [
        ("web", "InterferencePersists", f"koord-descheduler moves pod default/noisy: {evidence}")
    ]


async def test_a_pause_starts_the_time_again() -> None:
    world = Trouble()
    await world.minutes(9)
    await world.minutes(1, [])
    await world.minutes(10)
    assert world.evicted == []


async def test_missing_reports_start_the_time_again() -> None:
    world = Trouble()
    await world.minutes(9)
    await world.clock.advance(600.0)
    await world.minutes(10)
    assert world.evicted == []


async def test_an_old_report_moves_nothing() -> None:
    world = Trouble()
    await world.minutes(10)
    await world.clock.advance(200.0)
    await world.moves.balance(world.state.ready_nodes())
    assert world.evicted == []


async def test_without_a_report_or_its_time_nothing_moves() -> None:
    world = Trouble(persistSeconds=1)
    await world.moves.balance(world.state.ready_nodes())
    timeless = metric(world.clock.now(), [brief()])
    timeless.status.update_time = None
    world.state.set_load(load_of(timeless))
    for _ in range(5):
        await world.moves.balance(world.state.ready_nodes())
        await world.clock.advance(60.0)
    assert world.evicted == []


@pytest.mark.parametrize(
    "change",
    [{"cause": "self"}, {"state": "suspected"}, {"confidence": 0.5}],
    ids=["own trouble", "suspected", "not sure"],
)
async def test_other_verdicts_do_not_count(change: dict[str, Any]) -> None:
    world = Trouble()
    await world.minutes(20, [brief(**change)])
    assert world.evicted == []


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({}, "noisy"),
        ({"share": 0.4}, "web"),
        ({"culprit": ""}, "web"),
        ({"culprit": "host-application"}, "web"),
        ({"culprit": "default/web/sidecar"}, "web"),
        ({"culprit": "default/gone/c"}, "web"),
    ],
)
async def test_which_pod_moves(change: dict[str, Any], moved: str) -> None:
    world = Trouble()
    await world.minutes(11, [brief(**change)])
    assert world.evicted == [moved]


async def test_the_service_moves_if_the_culprit_may_not() -> None:
    world = Trouble()
    world.evictor.protected = {"noisy"}
    await world.minutes(11)
    assert world.evicted == ["web"]
    world = Trouble(moveVictims=False)
    world.evictor.protected = {"noisy"}
    await world.minutes(20)
    assert world.evicted == []


async def test_no_pod_moves_to_a_node_with_the_same_trouble() -> None:
    world = Trouble()
    for _ in range(20):
        now = world.clock.now()
        world.state.set_load(load_of(metric(now, [brief()], node="n2")))
        await world.minutes(1)
    assert world.evicted == []
    world = Trouble(nodeFit=False)
    await world.minutes(11)
    assert world.evicted == ["noisy"]


async def test_node_and_workload_are_left_alone_after_a_move() -> None:
    world = Trouble(cooldownSeconds=3600)
    await world.minutes(60)
    assert world.evicted == ["noisy"]
    await world.minutes(20)
    assert len(world.evicted) == 2


async def test_a_preview_shows_at_once_what_would_move_and_writes_nothing() -> None:
    world = Trouble(preview=True)
    await world.minutes(1)
    assert [each.pod for each in world.planned] == ["default/noisy"]
    assert world.evicted == []
    assert world.events.messages == []


async def test_the_plugins_own_dry_run_reports_what_would_move() -> None:
    world = Trouble(dryRun=True)
    await world.minutes(11)
    assert [(each.pod, each.dry_run) for each in world.planned] == [("default/noisy", True)]
    assert world.evicted == []


async def test_a_dry_run_moves_nothing() -> None:
    cases: list[dict[str, Any]] = [{"dryRun": True}, {"paused": True}]
    for args in cases:
        world = Trouble(**args)
        await world.minutes(20)
        assert world.evicted == []
        assert len(world.events.messages) == ("dryRun" in args)
    assert "would move pod default/noisy" in (await _dry()).events.messages[0][2]


async def _dry() -> Trouble:
    world = Trouble(dryRun=True)
    await world.minutes(11)
    return world


async def test_best_effort_pods_are_no_victims() -> None:
    assert delays_of(metric(1e9, [brief()], qos="BE")) == []
    assert len(delays_of(metric(1e9, [brief()], qos="LSR"))) == 1


@pytest.mark.parametrize("briefs", ["x", [1], {"a": 1}, [{"lost": "x"}], None])
def test_extensions_of_another_format_are_ignored(briefs: Any) -> None:
    assert delays_of(metric(1e9, briefs)) == []


def test_the_number_of_verdicts_is_bounded() -> None:
    assert len(delays_of(metric(1e9, [brief(container=f"c{number}") for number in range(3000)]))) == 1000


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"persistSeconds": 0}, "args.persistSeconds"),
        ({"reportExpirationSeconds": 0}, "args.reportExpirationSeconds"),
        ({"maxMovesPerPass": 0}, "args.maxMovesPerPass"),
        ({"cooldownSeconds": -1}, "args.cooldownSeconds"),
        ({"minConfidence": 1.5}, "args.minConfidence"),
        ({"minCulpritShare": -0.1}, "args.minCulpritShare"),
        ({"evictableNamespaces": {"include": ["a"], "exclude": ["b"]}}, "args.evictableNamespaces"),
    ],
)
def test_invalid_arguments(document: dict[str, Any], field: str) -> None:
    errors: list[str] = []
    args = Reader(errors).struct(document, InterferenceMovesArgs, "args")
    errors += args.check("args")
    assert len(errors) == 1 and errors[0].startswith(field)


@given(st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=40))
def test_a_lasting_delay_was_in_every_report(steps: list[tuple[int, bool]]) -> None:
    history, now, since = DelayHistory(180.0), 0.0, None
    delay = Delay("ns/a", "c", "cpu", "", 0.0, 0.5, 1.0)
    for gap, delayed in steps:
        since = None if gap > 180 else since
        now += gap
        if gap:
            history.report("n", now, [delay] if delayed else [])
            since = (now if since is None else since) if delayed else None
        expected = since is not None and now - since >= 300
        assert bool(history.lasting(now, 300.0)) is expected
