"""Whole cycles of the default profile against a slow, plain one, over random clusters and histories.

The plain cycle (tests/control/scheduler/plain) is written from the specification and shares nothing with the product
but the structs of the API. For every pod of a history both must agree on every node: fits or not, who refuses it, with
which words; on the total of every node that fits; and the product must choose one of the best.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.scheduler.cycle import Cycle
from control.scheduler.failures import FitError
from control.scheduler.plugin import CycleState
from control.scheduler.plugins.registry import PLUGINS
from control.scheduler.pods import PodInfo
from koordlet.api.core import Node, Pod
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.plain import whole
from tests.control.scheduler.toys import cycle_of

FILTERS = tuple(whole.FILTERS)
SCORES = tuple(whole.WEIGHTS)
POINTS = {"preFilter": (*FILTERS, "NodeResourcesBalancedAllocation"), "filter": FILTERS, "score": SCORES}
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"

apps = st.sampled_from(["web", "db", "job"])
zones = st.sampled_from(["z1", "z2", "z3", None])
effects = st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])


@st.composite
def nodes(draw: st.DrawFn, number: int) -> Node:
    labels = {"disk": draw(st.sampled_from(["ssd", "hdd"])), "rank": str(draw(st.integers(0, 3)))}
    zone = draw(zones)
    if zone is not None:
        labels[ZONE] = zone
    taints = draw(st.lists(st.builds(lambda e: {"key": "dedicated", "value": "x", "effect": e}, effects), max_size=1))
    return node(
        f"n{number}",
        cpu=str(draw(st.integers(1, 8))),
        memory=f"{draw(st.integers(1, 16))}Gi",
        pods=draw(st.integers(1, 6)),
        labels=labels,
        taints=taints,
        unschedulable=draw(st.integers(0, 9)) == 0,
    )


def _term(app: str, key: str) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}


@st.composite
def specs(draw: st.DrawFn, app: str) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if draw(st.booleans()):
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists", "effect": draw(effects)}]
    affinity: dict[str, Any] = {}
    match draw(st.integers(0, 7)):
        case 0:
            spec["nodeSelector"] = {"disk": draw(st.sampled_from(["ssd", "hdd"]))}
        case 1:
            expression = {"key": "rank", "operator": draw(st.sampled_from(["Gt", "Lt"])), "values": ["1"]}
            required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
            affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        case 2:
            preference = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
            weighted = [{"weight": draw(st.integers(1, 100)), "preference": preference}]
            affinity["nodeAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": weighted}
    key = draw(st.sampled_from([ZONE, HOST]))
    match draw(st.integers(0, 7)):
        case 0:
            affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [_term(draw(apps), key)]}
        case 1:
            affinity["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [_term(draw(apps), key)]}
        case 2:
            weighted_terms = [{"weight": draw(st.integers(1, 100)), "podAffinityTerm": _term(draw(apps), key)}]
            kind = draw(st.sampled_from(["podAffinity", "podAntiAffinity"]))
            affinity[kind] = {"preferredDuringSchedulingIgnoredDuringExecution": weighted_terms}
    if affinity:
        spec["affinity"] = affinity
    if draw(st.integers(0, 3)) == 0:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": draw(st.integers(1, 2)),
                "topologyKey": key,
                "whenUnsatisfiable": draw(st.sampled_from(["DoNotSchedule", "ScheduleAnyway"])),
                "labelSelector": {"matchLabels": {"app": app}},
            }
        ]
    return spec


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    app = draw(apps)
    return pod(
        cpu=draw(st.sampled_from([None, "100m", "500m", "1", "3"])),
        memory=draw(st.sampled_from([None, "128Mi", "1Gi", "6Gi"])),
        labels={"app": app},
        spec=draw(specs(app)),
    )


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
        one = data.draw(pods())
        chosen = _agree(cycle, cluster, one, listed, bound)
        if chosen is not None:
            placed.append(chosen)
            bound.append(_on(one, cluster.table.names[chosen.row]))


def _agree(cycle: Cycle, cluster: Cluster, one: Pod, listed: list[Node], bound: list[Pod]) -> PodInfo | None:
    expected = whole.feasible(one, listed, bound)
    info = cluster.info(one)
    if not any(refusal is None for refusal in expected.values()):
        try:
            cycle.place(info)
        except FitError as failure:
            said = {cluster.table.names[row]: status for row, status in failure.statuses()}
            if failure.pre_filter is None:
                assert {n: (s.plugin, s.code_name, s.reasons) for n, s in said.items()} == expected
            return None
        raise AssertionError(f"placed on {cluster.table.names[info.row]} although {expected}")
    fits = sorted(cluster.table.rows[name] for name, refusal in expected.items() if refusal is None)
    totals = whole.totals(one, listed, bound)
    state = CycleState()
    rows, _ = cycle._pre_filter(state, info)
    remembered = cycle.memory.of(info)
    remembered.filter(state, info)
    feasible = cycle._feasible(state, info, remembered, rows)
    assert feasible.tolist() == fits
    found = cycle._totals(state, info, remembered, feasible)
    if len(feasible) > 1:
        assert {cluster.table.names[row]: int(t) for row, t in zip(feasible, found, strict=True)} == totals
    cycle.place(info)
    if len(feasible) > 1:
        assert cluster.table.names[info.row] in whole.best(one, listed, bound)
    return info


def _on(one: Pod, name: str) -> Pod:
    return msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, node_name=name))
