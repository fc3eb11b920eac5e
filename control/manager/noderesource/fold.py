"""Sums a node's pods and report into one row of the formulas' input (spec 04 §6.3, §6.4). Pure.

This is the only loop over pods; the later steps are column operations over nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from control.manager.noderesource.pods import BATCH_CLASSES, PodFacts
from control.manager.noderesource.report import NodeReport
from control.manager.noderesource.reserved import NodeFacts
from control.manager.noderesource.units import ZERO, Amounts, clamp, divided, larger, plus


class Row(NamedTuple):
    """One node or one NUMA zone; the field order is that of `columns.AmountColumns`."""

    capacity: Amounts
    kubelet: Amounts = ZERO
    annotation: Amounts = ZERO
    system: Amounts = ZERO
    """measured usage, without host applications"""
    host_high: Amounts = ZERO
    host_prod: Amounts = ZERO
    high_request: Amounts = ZERO
    high_used: Amounts = ZERO
    high_max: Amounts = ZERO
    prod_request: Amounts = ZERO
    node_usage: Amounts = ZERO
    complete: Amounts = ZERO
    """(1, 1) where `node_usage` is known"""
    reclaimable: Amounts = ZERO


Charge = tuple[Amounts, Amounts, Amounts, tuple[int, ...]]
"""What one pod, or one metric without a pod, subtracts from batch resources: request, usage, maximum of both; and its
NUMA nodes."""


def charges(pods: Iterable[PodFacts], report: NodeReport, *, strict: bool = False) -> Iterator[Charge]:
    """The pod table of spec 04 §6.3: high-priority pods first, then metrics without a pod.

    `strict` reproduces Koordinator: a pod without metric adds nothing to `maxUsageRequest`.
    """
    measured = dict(report.pods)
    for key, priority, exclusive, request, numa in pods:
        metric = measured.pop(key, None)
        if priority in BATCH_CLASSES:
            continue
        if metric is None:
            yield request, request, ZERO if strict else request, numa
            continue
        usage = metric[0]
        yield request, (request[0], usage[1]) if exclusive else usage, larger(request, usage), numa
    for usage, priority in measured.values():
        if priority not in BATCH_CLASSES:
            yield ZERO, usage, usage, ()


def node_row(own: NodeFacts, pods: Collection[PodFacts], report: NodeReport, taken: Iterable[Charge]) -> Row:
    """The row of a node; `taken` is the result of `charges` for it."""
    request_cpu = request_memory = used_cpu = used_memory = peak_cpu = peak_memory = prod_cpu = prod_memory = 0
    for request, used, peak, _ in taken:
        request_cpu += request[0]
        request_memory += request[1]
        used_cpu += used[0]
        used_memory += used[1]
        peak_cpu += peak[0]
        peak_memory += peak[1]
    for pod in pods:
        if pod.prod:
            prod_cpu += pod.request[0]
            prod_memory += pod.request[1]
    return Row(
        capacity=own.capacity,
        kubelet=own.kubelet,
        annotation=own.annotation,
        system=report.system,
        host_high=(clamp(report.host_high[0]), clamp(report.host_high[1])),
        host_prod=(clamp(report.host_prod[0]), clamp(report.host_prod[1])),
        high_request=(clamp(request_cpu), clamp(request_memory)),
        high_used=(clamp(used_cpu), clamp(used_memory)),
        high_max=(clamp(peak_cpu), clamp(peak_memory)),
        prod_request=(clamp(prod_cpu), clamp(prod_memory)),
        node_usage=report.node_usage,
        complete=(1, 1) if report.complete else ZERO,
        reclaimable=report.reclaimable,
    )


def zone_rows(
    own: NodeFacts, capacities: Sequence[tuple[int, Amounts]], report: NodeReport, taken: Iterable[Charge]
) -> list[Row]:
    """The rows of a node's NUMA zones, given as (NUMA id, allocatable); `taken` is the result of `charges`.

    Amounts that belong to no zone are split evenly over all zones; the amounts of a pod that is bound to some zones are
    split evenly among these. Each part is rounded up (spec 04 §6.4).
    """
    count = len(capacities)
    position = {numa: index for index, (numa, _) in enumerate(capacities)}
    own_parts = [[0] * 6 for _ in capacities]
    request_cpu = request_memory = used_cpu = used_memory = peak_cpu = peak_memory = 0
    # Rounding up to milli-cores and then to 1/count equals rounding up once to milli-cores * count.
    milli = count * 10**6
    for request, used, peak, numa in taken:
        bound = [position[numa_id] for numa_id in numa if numa_id in position] if numa else ()
        if not bound:
            request_cpu -= -request[0] // milli
            request_memory -= -request[1] // count
            used_cpu -= -used[0] // milli
            used_memory -= -used[1] // count
            peak_cpu -= -peak[0] // milli
            peak_memory -= -peak[1] // count
            continue
        for index in bound:
            total = own_parts[index]
            for field, amount in enumerate((*request, *used, *peak)):
                total[field] -= -amount // (len(bound) * (10**6 if field % 2 == 0 else 1))
    everywhere = (request_cpu, request_memory, used_cpu, used_memory, peak_cpu, peak_memory)
    system = divided(plus(report.system, report.host_high), count) if count else ZERO
    kept = divided(larger(own.kubelet, own.annotation), count) if count else ZERO
    rows = []
    for (_, capacity), own_part in zip(capacities, own_parts, strict=True):
        total = [a + b for a, b in zip(everywhere, own_part, strict=True)]
        rows.append(
            Row(
                capacity=capacity,
                annotation=kept,
                system=system,
                high_request=(clamp(total[0] * 10**6), clamp(total[1])),
                high_used=(clamp(total[2] * 10**6), clamp(total[3])),
                high_max=(clamp(total[4] * 10**6), clamp(total[5])),
            )
        )
    return rows
