"""The columns compared with a simple implementation of spec 04 §6.3 to §6.5, and laws for any input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.manager.noderesource.batch import batch_amounts
from control.manager.noderesource.columns import AmountColumns, StrategyColumns, StrategyValues
from control.manager.noderesource.fold import charges, node_row, zone_rows
from control.manager.noderesource.mid import mid_amounts
from control.manager.noderesource.pods import PodFacts
from control.manager.noderesource.report import NodeReport
from control.manager.noderesource.reserved import NodeFacts
from control.manager.noderesource.units import UNIT, ceil_units
from koordlet.api.sloconfig.colocation import ColocationStrategy
from tests.control.manager.noderesource.world import strategy

CORE, BYTE = 10**9, 10**3
CLASSES = ("koord-prod", "koord-mid", "koord-batch", "koord-free", "")
cpus = st.one_of(st.integers(0, 40).map(lambda n: n * CORE), st.integers(0, 40 * CORE))
memories = st.one_of(st.integers(0, 200).map(lambda n: n * 2**30 * BYTE), st.integers(0, 200 * 2**30 * BYTE))
both = st.tuples(cpus, memories)
capacities = st.tuples(st.integers(1, 300).map(lambda n: n * CORE), st.integers(1, 2**40).map(lambda n: n * BYTE))


@dataclass(frozen=True)
class Node:
    own: NodeFacts
    pods: tuple[PodFacts, ...]
    report: NodeReport
    how: ColocationStrategy
    strict: bool


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    count = draw(st.integers(0, 6))
    pods = tuple(
        PodFacts(
            f"demo/p{index}",
            draw(st.sampled_from(CLASSES)),
            draw(st.booleans()),
            draw(both),
            tuple(sorted(draw(st.sets(st.integers(0, 4), max_size=3)))),
        )
        for index in range(count)
    )
    measured = {
        f"demo/p{index}": (draw(both), draw(st.sampled_from(CLASSES)))
        for index in draw(st.sets(st.integers(0, count + 2)))
    }
    report = NodeReport(
        at=0.0,
        node_usage=draw(both),
        complete=draw(st.booleans()),
        system=draw(both),
        host_high=draw(both),
        host_prod=draw(both),
        pods=measured,
        reclaimable=draw(both),
    )
    percents = {
        name: draw(st.integers(0, high))
        for name, high in {
            "cpu_reclaim_threshold_percent": 200,
            "memory_reclaim_threshold_percent": 200,
            "mid_cpu_threshold_percent": 100,
            "mid_memory_threshold_percent": 100,
            "mid_unallocated_percent": 100,
            "mid_static_cpu_reserved_percent": 100,
            "mid_static_memory_reserved_percent": 100,
        }.items()
    }
    limits = {
        name: draw(st.none() | st.integers(0, 150))
        for name in ("batch_cpu_threshold_percent", "batch_memory_threshold_percent")
    }
    how = strategy(
        **percents,
        **limits,
        cpu_calculate_policy=draw(st.sampled_from(("usage", "maxUsageRequest", "request", "odd"))),
        memory_calculate_policy=draw(st.sampled_from(("usage", "maxUsageRequest", "request", ""))),
        mid_reclaim_mode=draw(st.sampled_from((None, "static"))),
    )
    own = NodeFacts(draw(capacities), draw(both), draw(both))
    return Node(own, pods, report, how, draw(st.booleans()))


# --- the plain implementation: exact fractions of a core and of a byte, one resource at a time


def fraction(amount: tuple[int, int], resource: int) -> Fraction:
    return Fraction(amount[resource], (CORE, BYTE)[resource])


def times(amount: Fraction, ratio: float, resource: int) -> Fraction:
    """mulMilli for cpu, mul for memory."""
    if resource == 0:
        return Fraction(math.trunc(float(math.ceil(amount * 1000)) * ratio), 1000)
    return Fraction(math.trunc(float(math.ceil(amount)) * ratio))


def takes(pod: PodFacts) -> bool:
    return pod.priority not in ("koord-batch", "koord-free")


def sums(node: Node, resource: int) -> tuple[Fraction, Fraction, Fraction]:
    """hpReq, hpUsed, hpMax."""
    request = used = peak = Fraction(0)
    for pod in filter(takes, node.pods):
        requested = fraction(pod.request, resource)
        request += requested
        if pod.key not in node.report.pods:
            used += requested
            peak += 0 if node.strict else requested
            continue
        usage = fraction(node.report.pods[pod.key][0], resource)
        used += requested if pod.exclusive and resource == 0 else usage
        peak += max(requested, usage)
    known = {pod.key for pod in node.pods}
    for key, (amount, priority) in node.report.pods.items():
        if key not in known and priority not in ("koord-batch", "koord-free"):
            used += fraction(amount, resource)
            peak += fraction(amount, resource)
    return request, used, peak


def plain_batch(node: Node, resource: int) -> int:
    how = node.how
    reclaim, policy, limit = (
        (how.cpu_reclaim_threshold_percent, how.cpu_calculate_policy, how.batch_cpu_threshold_percent),
        (how.memory_reclaim_threshold_percent, how.memory_calculate_policy, how.batch_memory_threshold_percent),
    )[resource]
    assert reclaim is not None
    capacity = fraction(node.own.capacity, resource)
    margin = times(capacity, (100 - reclaim) / 100, resource)
    reserved = max(fraction(node.own.kubelet, resource), fraction(node.own.annotation, resource))
    measured = fraction(node.report.system, resource) + fraction(node.report.host_high, resource)
    system = max(measured, reserved)
    request, used, peak = sums(node, resource)
    if policy == "request" and resource == 1:
        result = capacity - margin - reserved - request
    elif policy == "maxUsageRequest":
        result = capacity - margin - system - peak
    else:
        result = capacity - margin - system - used
    result = max(result, Fraction(0))
    if limit is not None:
        result = min(result, times(capacity, limit / 100, resource))
    return math.ceil(result * (1000, 1)[resource])


def plain_mid(node: Node, resource: int) -> int:
    how = node.how
    threshold, static = (
        (how.mid_cpu_threshold_percent, how.mid_static_cpu_reserved_percent),
        (how.mid_memory_threshold_percent, how.mid_static_memory_reserved_percent),
    )[resource]
    assert threshold is not None and static is not None and how.mid_unallocated_percent is not None
    capacity = fraction(node.own.capacity, resource)
    limit = times(capacity, threshold / 100, resource)
    if how.mid_reclaim_mode == "static":
        return math.ceil(min(times(capacity, static / 100, resource), limit) * (1000, 1)[resource])
    unused = capacity - fraction(node.report.node_usage, resource) if node.report.complete else Fraction(0)
    reserved = max(fraction(node.own.kubelet, resource), fraction(node.own.annotation, resource))
    system = max(fraction(node.report.system, resource) + fraction(node.report.host_prod, resource), reserved)
    requested = sum(
        (fraction(pod.request, resource) for pod in node.pods if pod.priority in ("koord-prod", "")), Fraction()
    )
    unallocated = max(capacity - system - requested, Fraction(0))
    mid = max(min(fraction(node.report.reclaimable, resource), unused), Fraction(0))
    mid += times(unallocated, how.mid_unallocated_percent / 100, resource)
    return math.ceil(min(mid, limit) * (1000, 1)[resource])


def table(nodes: Sequence[Node]) -> tuple[AmountColumns, StrategyColumns]:
    rows = [
        node_row(node.own, node.pods, node.report, charges(node.pods, node.report, strict=node.strict))
        for node in nodes
    ]
    return AmountColumns.of(rows), StrategyColumns.of([StrategyValues.of(node.how) for node in nodes])


@given(st.lists(nodes(), max_size=5))
def test_columns_agree_with_the_plain_implementation(given_nodes: list[Node]) -> None:
    rows, settings = table(given_nodes)
    batch, mid = ceil_units(batch_amounts(rows, settings).amount), ceil_units(mid_amounts(rows, settings).amount)
    assert batch.tolist() == [[plain_batch(node, column) for column in (0, 1)] for node in given_nodes]
    assert mid.tolist() == [[plain_mid(node, column) for column in (0, 1)] for node in given_nodes]


def batch_units(node: Node) -> list[int]:
    rows, settings = table([node])
    amounts: list[int] = ceil_units(batch_amounts(rows, settings).amount)[0].tolist()
    return amounts


@given(nodes())
def test_never_negative_never_above_the_limit(node: Node) -> None:
    rows, settings = table([node])
    amounts = batch_amounts(rows, settings)
    assert (amounts.amount >= 0).all()
    assert (amounts.amount <= amounts.limit).all()


@given(nodes())
def test_batch_and_used_and_margin_fit_into_the_node(node: Node) -> None:
    rows, settings = table([node])
    amounts = batch_amounts(rows, settings)
    total = amounts.amount + amounts.high + amounts.system + amounts.margin
    assert ((total <= rows.capacity) | (amounts.amount == 0)).all()


@given(nodes(), both)
def test_more_usage_never_raises_batch(node: Node, more: tuple[int, int]) -> None:
    system = (node.report.system[0] + more[0], node.report.system[1] + more[1])
    busier = batch_units(replace(node, report=node.report._replace(system=system)))
    assert all(after <= before for after, before in zip(busier, batch_units(node), strict=True))


@given(nodes(), both, st.sampled_from(("koord-prod", "koord-mid", "")))
def test_another_pod_never_raises_batch_and_a_batch_pod_changes_nothing(
    node: Node, request: tuple[int, int], priority: str
) -> None:
    def plus(pod: PodFacts) -> list[int]:
        return batch_units(replace(node, pods=(*node.pods, pod)))

    before = batch_units(node)
    assert all(a <= b for a, b in zip(plus(PodFacts("demo/new", priority, False, request)), before, strict=True))
    assert plus(PodFacts("demo/new", "koord-batch", False, request)) == before


@given(nodes(), st.integers(0, 100))
def test_a_higher_reclaim_percentage_never_lowers_batch(node: Node, more: int) -> None:
    cpu = node.how.cpu_reclaim_threshold_percent
    assert cpu is not None
    higher = msgspec.structs.replace(node.how, cpu_reclaim_threshold_percent=cpu + more)
    assert batch_units(replace(node, how=higher))[0] >= batch_units(node)[0]


@given(nodes(), st.integers(1, 4))
def test_sums_of_zones_equal_those_of_the_node(node: Node, count: int) -> None:
    """Each part is rounded up, so zones together never take less, and at most a thousandth a part more."""
    capacities = [(numa, (node.own.capacity[0] // count, node.own.capacity[1] // count)) for numa in range(count)]
    taken = list(charges(node.pods, node.report))
    zones = zone_rows(node.own, capacities, node.report, taken)
    whole = node_row(node.own, node.pods, node.report, taken)
    parts = (len(node.pods) + len(node.report.pods) + 1) * count
    for field in ("high_request", "high_used", "high_max", "system"):
        for resource, smallest in ((0, 10**6), (1, 1)):
            total = sum(getattr(zone, field)[resource] for zone in zones)
            of_node = getattr(whole, field)[resource] + (whole.host_high[resource] if field == "system" else 0)
            assert of_node <= total <= of_node + parts * smallest + parts * (10**6 if resource == 0 else 1)


@given(st.lists(nodes(), min_size=1, max_size=4), st.data())
def test_rows_are_independent(given_nodes: list[Node], data: Any) -> None:
    rows, settings = table(given_nodes)
    chosen = data.draw(st.integers(0, len(given_nodes) - 1))
    alone = table([given_nodes[chosen]])
    assert (batch_amounts(rows, settings).amount[chosen] == batch_amounts(*alone).amount[0]).all()


@pytest.mark.parametrize("amount", [0, 1, 10**6 - 1, 10**6, 10**6 + 1])
def test_units_round_up(amount: int) -> None:
    assert ceil_units(np.array([[amount, amount]]))[0].tolist() == [-(-amount // int(unit)) for unit in UNIT]
