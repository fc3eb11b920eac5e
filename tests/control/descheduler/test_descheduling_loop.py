"""The main loop: which nodes and plugins a pass runs, in which order, and what a failure ends (spec 07 §1.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from control.descheduler.config.load import ResolvedProfile
from control.descheduler.framework.evictor import EvictionProxy
from control.descheduler.framework.handle import PluginHandle
from control.descheduler.framework.limiter import EvictionLimits
from control.descheduler.framework.metrics import DeschedulerMetrics
from control.descheduler.framework.plugin import BalancePlugin, DeschedulePlugin, NoArgs
from control.descheduler.framework.profile import DeschedulerProfile
from control.descheduler.process.loop import DeschedulingLoop
from control.descheduler.state.cluster import NodeRecord
from koordlet.api.meta import LabelSelector
from koordlet.app.tasks import end_tasks
from tests.control.descheduler.world import RecordingEvictor, World

Effect = Callable[[], None]


class LoopWorld(World):
    """Profiles whose plugins record their calls: `First` is a deschedule plugin, `Second` and `Third` balance."""

    def __init__(self, nodes: int = 2, limits: EvictionLimits = EvictionLimits()) -> None:
        super().__init__(limits)
        self.calls: list[str] = []
        self.failing_plugins: set[str] = set()
        self.effects: dict[str, Effect] = {}
        self.pass_s = 0.0
        """how long deschedule plugins take"""
        for number in range(nodes):
            self.node(f"n{number}", labels={"pool": f"p{number % 2}"})

    def called(self, call: str, nodes: Sequence[NodeRecord]) -> None:
        self.calls.append(f"{call}:{','.join(node.name for node in nodes)}")
        self.effects.get(call, lambda: None)()
        if call in self.failing_plugins:
            raise OSError(f"{call} is broken")

    def profile(self, name: str, selector: LabelSelector | None = None) -> DeschedulerProfile:
        world = self

        class First(DeschedulePlugin):
            def __init__(self, args: Any, handle: PluginHandle) -> None: ...

            async def deschedule(self, nodes: Sequence[NodeRecord]) -> None:
                world.called(f"{name}.First", nodes)
                await world.clock.sleep(world.pass_s)

        class Second(BalancePlugin):
            def __init__(self, args: Any, handle: PluginHandle) -> None: ...

            async def balance(self, nodes: Sequence[NodeRecord]) -> None:
                world.called(f"{name}.{self.name}", nodes)

        class Third(Second): ...

        First.name, Second.name, Third.name = "First", "Second", "Third"
        enabled = {"deschedule": ("First",), "balance": ("Second", "Third"), "evict": ("E",), "filter": ("E",)}
        kinds = {"First": First, "Second": Second, "Third": Third, "E": RecordingEvictor}
        settings = ResolvedProfile(name, selector, enabled, dict.fromkeys(kinds, NoArgs()))
        proxy = EvictionProxy(name, self.limiter, dry_run=False)
        return DeschedulerProfile(settings, kinds, self.handle("loop").process, proxy, self.events)

    def loop(self, *profiles: DeschedulerProfile, interval_s: float = 0.0, **more: Any) -> DeschedulingLoop:
        metrics = DeschedulerMetrics.of(self.registry)
        return DeschedulingLoop(profiles, self.state, self.limiter, self.clock, metrics, interval_s=interval_s, **more)


P0 = LabelSelector(match_labels={"pool": "p0"})


def test_deschedule_plugins_of_all_profiles_run_before_any_balance_plugin() -> None:
    world = LoopWorld()
    loop = world.loop(world.profile("b"), world.profile("a", P0))
    assert asyncio.run(loop.once())
    assert world.calls == [
        "b.First:n0,n1",
        "a.First:n0",
        "b.Second:n0,n1",
        "b.Third:n0,n1",
        "a.Second:n0",
        "a.Third:n0",
    ]


@pytest.mark.parametrize(
    ("failing", "calls"),
    [
        pytest.param("a.First", ["a.First"], id="no balance pass, and later profiles are skipped"),
        pytest.param("b.First", ["a.First", "b.First"], id="no balance pass"),
        pytest.param(
            "a.Second",
            ["a.First", "b.First", "a.Second", "a.Third"],
            id="the other plugins of the profile run",
        ),
    ],
)
def test_a_failing_plugin_ends_the_pass_after_its_profile(failing: str, calls: list[str]) -> None:
    world = LoopWorld()
    world.failing_plugins = {failing}
    loop = world.loop(world.profile("a"), world.profile("b"))
    assert not asyncio.run(loop.once())
    assert [call.partition(":")[0] for call in world.calls] == calls
    profile, _, plugin = failing.partition(".")
    labels = {"strategy": plugin, "profile": profile}
    assert world.registry.get_sample_value("descheduler_strategy_failures_total", labels) == 1


@pytest.mark.parametrize("nodes", [0, 1])
def test_a_cluster_of_one_node_has_no_passes(nodes: int) -> None:
    world = LoopWorld(nodes)
    assert not asyncio.run(world.loop(world.profile("a")).once())
    assert world.calls == []


def test_the_node_selector_counts_before_the_size_of_the_cluster() -> None:
    world = LoopWorld(3)  # n0 and n2 are of pool p0
    assert asyncio.run(world.loop(world.profile("a"), node_selector=P0).once())
    assert world.calls[0] == "a.First:n0,n2"
    world = LoopWorld(2)
    assert not asyncio.run(world.loop(world.profile("a"), node_selector=P0).once())


def test_limits_are_those_of_one_pass() -> None:
    world = LoopWorld(2, EvictionLimits(total=1))
    loop = world.loop(world.profile("a"))
    world.limiter.done("n0", "default")
    assert world.limiter.refusal("n0", "default") is not None
    asyncio.run(loop.once())
    assert world.limiter.refusal("n0", "default") is None


async def run_for(world: LoopWorld, loop: DeschedulingLoop, seconds: int) -> None:
    task = asyncio.create_task(loop.run())
    for _ in range(seconds):
        await world.clock.advance(1)
    assert not task.done()
    await end_tasks(task)


@pytest.mark.parametrize(
    ("pass_s", "expected"),
    [
        (0.0, [0, 10, 20, 30]),
        (4.0, [0, 10, 20, 30]),
        (15.0, [0, 15, 30]),  # the next pass follows immediately
    ],
)
async def test_the_interval_is_between_the_starts_of_passes(pass_s: float, expected: list[int]) -> None:
    world = LoopWorld()
    world.pass_s = pass_s
    starts: list[float] = []
    world.effects["a.First"] = lambda: starts.append(world.clock.monotonic())
    begin = world.clock.monotonic()
    await run_for(world, world.loop(world.profile("a"), interval_s=10), 35)
    assert [start - begin for start in starts] == expected


async def test_interval_0_means_one_pass_and_the_loop_stays() -> None:
    world = LoopWorld()
    await run_for(world, world.loop(world.profile("a")), 300)
    assert [call.partition(":")[0] for call in world.calls] == ["a.First", "a.Second", "a.Third"]
