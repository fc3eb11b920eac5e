"""DefaultPreemption against trying on every node who would have to go, with all of upstream's filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.scheduler.cycle.failures import FitError
from control.scheduler.plugins.registry import PLUGINS
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from koordlet.api.core.workloads import PodDisruptionBudget
from koordlet.api.encoding.wire import convert
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.clusters import specs
from tests.control.scheduler.plain import preemption as plain
from tests.control.scheduler.plain import whole
from tests.control.scheduler.plain.whole import PlainCycle
from tests.control.scheduler.plain.world import Storage, World
from tests.control.scheduler.plugins.storages import StorageObjects, pod_volumes, storages
from tests.control.scheduler.toys import cycle_of

FILTERS = tuple(whole.FILTERS)
POINTS = {"preFilter": FILTERS, "filter": FILTERS, "postFilter": ("DefaultPreemption",)}
APPS, ZONE = ("web", "db"), "topology.kubernetes.io/zone"


class Evicted:
    """Notes who had to go."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def evict(self, victims: Sequence[PodInfo], *, by: PodInfo, message: str) -> None:
        self.names = [victim.name for victim in victims]

    def clear_nominations(self, pods: Sequence[PodInfo]) -> None:
        return

    def evicting_for(self, uid: str) -> bool:
        return False


class Objects(StorageObjects):
    """Budgets, and storage."""

    def __init__(self, storage: Storage, budgets: Sequence[PodDisruptionBudget]) -> None:
        super().__init__(storage)
        self.budgets = budgets

    def informer(self, kind: type[Any]) -> Any:
        of_kind = super().informer(kind)
        if kind is PodDisruptionBudget:
            of_kind.list = lambda: list(self.budgets)
        return of_kind


@st.composite
def placed(draw: st.DrawFn, number: int, nodes: int) -> Pod:
    """A pod on a node; some are terminating because they were preempted."""
    metadata: dict[str, Any] = {}
    status: dict[str, Any] = {}
    if draw(st.integers(0, 3)):
        status["startTime"] = f"2026-01-01T00:00:0{draw(st.integers(0, 2))}Z"
    if draw(st.integers(0, 9)) == 5:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        status["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    app = draw(st.sampled_from((*APPS, "")))
    port = [{"containerPort": 80, "hostPort": 80}] if draw(st.integers(0, 4)) == 4 else []
    return pod(
        f"p{number}",
        draw(st.sampled_from(("1", "2", "3"))),
        labels={"app": app} if app else {},
        priority=draw(st.sampled_from((None, 1, 2, 5))),
        on=f"n{draw(st.integers(0, nodes - 1))}",
        metadata=metadata,
        status=status,
        spec=_ports(port) | (draw(specs(app)) if app and draw(st.integers(0, 3)) == 3 else {}) | draw(mounted()),
    )


@st.composite
def mounted(draw: st.DrawFn) -> dict[str, Any]:
    """Volumes, seldom."""
    return {"volumes": draw(pod_volumes(generated=False))} if draw(st.integers(0, 3)) == 3 else {}


def _ports(ports: list[dict[str, int]]) -> dict[str, Any]:
    if not ports:
        return {}
    return {"containers": [{"name": "main", "image": "img", "ports": ports, "resources": {"requests": {"cpu": "1"}}}]}


@st.composite
def budgets(draw: st.DrawFn, app: str) -> PodDisruptionBudget:
    disrupted = {"p0": "2026-01-01T00:00:00Z"} if draw(st.booleans()) else {}
    body = {
        "metadata": {"name": app, "namespace": "default"},
        "spec": {"selector": draw(st.sampled_from(({"matchLabels": {"app": app}}, {"matchLabels": {"app": app}}, {})))},
        "status": {"disruptionsAllowed": draw(st.integers(0, 2)), "disruptedPods": disrupted},
    }
    return convert(body, PodDisruptionBudget)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[World, list[PodDisruptionBudget], Pod]:
    """Full nodes, and a pod that wants to be on one."""
    number = draw(st.integers(1, 3))
    nodes = [
        node(f"n{at}", draw(st.sampled_from(("3", "4"))), labels={ZONE: f"z{at % 2}", "disk": "ssd", "rank": "2"})
        for at in range(number)
    ]
    there = [draw(placed(at, number)) for at in range(draw(st.integers(2, 7)))]
    app = draw(st.sampled_from(APPS))
    spec: dict[str, Any] = draw(mounted()) | ({"preemptionPolicy": "Never"} if draw(st.integers(0, 15)) == 7 else {})
    if draw(st.integers(0, 2)) == 2:
        spec |= draw(specs(app))
    elif draw(st.integers(0, 3)) == 3:
        spec |= _ports([{"containerPort": 80, "hostPort": 80}])
    nominated = {"nominatedNodeName": "n0"} if draw(st.integers(0, 4)) == 4 else {}
    cpu, priority = draw(st.sampled_from(("2", "3", "4"))), draw(st.sampled_from((2, 5, 9)))
    incoming = pod("new", cpu, labels={"app": app}, priority=priority, spec=spec, status=nominated)
    storage = draw(storages(number)) if draw(st.booleans()) else Storage()
    return World(nodes, there, storage=storage), [draw(budgets(app)) for app in APPS if draw(st.booleans())], incoming


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(scenes())
def test_victims_and_node_are_those_of_trying(scene: tuple[World, list[PodDisruptionBudget], Pod]) -> None:
    world, some_budgets, incoming = scene
    nodes, there = world.nodes, world.pods
    cluster, evicted = Cluster(*nodes), Evicted()
    cluster.use(objects=Objects(world.storage, some_budgets), evictor=evicted)
    cycle = cycle_of(cluster, POINTS, PLUGINS)
    cluster.put(*there)
    counted = cluster.table.requested.copy()
    expected = PlainCycle().feasible(incoming, world)
    codes = {name: refusal[1] for name, refusal in expected.items() if refusal is not None}
    if len(codes) < len(nodes):
        assert expected[cycle.place(cluster.info(incoming)).node] is None
        return

    def fits(name: str, pods: Sequence[Pod]) -> bool:
        target = next(n for n in nodes if n.metadata.name == name)
        return PlainCycle().refusal(incoming, target, replace(world, pods=pods)) is None

    choices = plain.choices(incoming, codes, there, some_budgets, fits)
    info = cluster.info(msgspec.structs.replace(incoming))
    try:
        cycle.place(info)
    except FitError as failure:
        assert (cluster.table.requested == counted).all()  # trials were taken back
        if not choices:
            assert not failure.nominated
            assert evicted.names == []
        else:
            assert failure.nominated in choices
            assert evicted.names == choices[failure.nominated]
    else:
        raise AssertionError(f"placed although {expected}")
