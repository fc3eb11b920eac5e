"""Whole cycles of the default profile agree with a slow, plain one, over random clusters and histories.

The plain cycle (tests/control/scheduler/plain) is written from the specification and shares nothing with the product
but the structs of the API.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.scheduler.plugins.registry import PLUGINS
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from tests.control.scheduler.agreeing import agree, on
from tests.control.scheduler.build import Cluster
from tests.control.scheduler.clusters import nodes, pods
from tests.control.scheduler.plain import whole
from tests.control.scheduler.plain.whole import PlainCycle
from tests.control.scheduler.plain.world import World
from tests.control.scheduler.toys import cycle_of

FILTERS = tuple(whole.FILTERS)
POINTS = {
    "preFilter": (*FILTERS, "NodeResourcesBalancedAllocation"),
    "filter": FILTERS,
    "score": tuple(whole.WEIGHTS),
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_cycles_agree_with_the_plain_ones(data: st.DataObject) -> None:
    listed = [data.draw(nodes(i)) for i in range(data.draw(st.integers(1, 6)))]
    cluster = Cluster(*listed)
    cycle = cycle_of(cluster, POINTS, PLUGINS, weights=whole.WEIGHTS)
    bound: list[Pod] = []
    placed: list[PodInfo] = []
    for _ in range(data.draw(st.integers(1, 12))):
        if placed and data.draw(st.integers(0, 5)) == 0:
            gone = data.draw(st.integers(0, len(placed) - 1))
            cycle.cache.remove_pod(placed.pop(gone).uid)
            bound.pop(gone)
        subject = data.draw(pods())
        chosen = agree(cycle, cluster, subject, World(listed, bound), PlainCycle())
        if chosen is not None:
            placed.append(chosen.pod)
            bound.append(on(subject, chosen.node))
