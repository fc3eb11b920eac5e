"""The eviction limiter and the evictor that plugins work with (spec 07 §3.2, §4.4)."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from control.descheduler.framework.evictor import PluginEvictor
from control.descheduler.framework.limiter import EvictionLimiter, EvictionLimits
from control.descheduler.framework.plugin import EvictOptions
from tests.control.descheduler.world import World

LIMIT = st.none() | st.integers(0, 4)


def test_the_worked_example() -> None:
    limiter = EvictionLimiter(EvictionLimits(2, 3, 4))
    allowed = []
    for node, namespace in (("n1", "x"), ("n1", "x"), ("n1", "x"), ("n2", "x"), ("n2", "y"), ("n3", "y")):
        allowed.append(limiter.refusal(node, namespace) is None)
        if allowed[-1]:
            limiter.done(node, namespace)
    assert allowed == [True, True, False, True, True, False]
    assert limiter.node_limit_exceeded("n1")
    assert not limiter.node_limit_exceeded("n3")
    limiter.reset()
    assert limiter.refusal("n1", "x") is None


def test_an_unbound_pod_does_not_count_for_a_node() -> None:
    limiter = EvictionLimiter(EvictionLimits(per_node=0))
    assert limiter.refusal("", "x") is None
    assert "per node" in str(limiter.refusal("n1", "x"))


@given(LIMIT, LIMIT, LIMIT, st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=30))
def test_no_limit_is_ever_exceeded(
    node: int | None, namespace: int | None, total: int | None, pods: list[tuple[str, str]]
) -> None:
    limiter = EvictionLimiter(EvictionLimits(node, namespace, total))
    evicted: list[tuple[str, str]] = []
    for pod in pods:
        counts = (
            sum(eviction[0] == pod[0] for eviction in evicted),
            sum(eviction[1] == pod[1] for eviction in evicted),
            len(evicted),
        )
        free = all(
            limit is None or count < limit for limit, count in zip((node, namespace, total), counts, strict=True)
        )
        assert (limiter.refusal(*pod) is None) == free
        if free:
            limiter.done(*pod)
            evicted.append(pod)


def test_evictions_are_charged_only_when_they_succeed_and_in_dry_runs() -> None:
    world = World(EvictionLimits(total=1))
    world.node("n1")
    first, second = world.pod("a", on="n1"), world.pod("b", on="n1")
    world.evictor.failing = {"a"}
    evictor = PluginEvictor(world.proxy, "Tester")
    assert asyncio.run(evictor.evict(first, "why")) is False
    assert world.limiter.total == 0
    assert asyncio.run(evictor.evict(second, "why")) is True
    assert asyncio.run(evictor.evict(second, "why")) is False
    ((pod, options),) = world.evictor.evicted
    assert (pod.name, options) == ("b", EvictOptions("Tester", "why"))

    dry = World(EvictionLimits(total=1), dry_run=True)
    dry.node("n1")
    pods = [dry.pod(name, on="n1") for name in ("a", "b")]
    evictor = PluginEvictor(dry.proxy, "Tester")
    assert [asyncio.run(evictor.evict(pod, "why")) for pod in pods] == [True, False]
    assert dry.evicted == []
    assert [
        (eviction.pod, eviction.node, eviction.plugin, eviction.reason, eviction.dry_run) for eviction in dry.planned
    ] == [("default/a", "n1", "Tester", "why", True)]


def test_filters_report_the_first_refusal() -> None:
    world = World()
    world.node("n1")
    pod = world.pod("a", on="n1")
    evictor = PluginEvictor(world.proxy, "Tester")
    assert evictor.filter(pod) is None
    world.evictor.protected = {"a"}
    assert evictor.filter(pod) == "protected"
    assert evictor.pre_eviction_filter(pod) is None
