"""From a node's facts, pods and report to one row of the table: sums over pods (spec 04 §6.3, §6.4). Pure.

This is the only loop over pods; everything after it is columns over nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from control.manager.noderesource.pods import LENT, PodFacts
from control.manager.noderesource.report import Report
from control.manager.noderesource.reserved import Own
from control.manager.noderesource.units import ZERO, Amounts, clamp, divided, larger, plus


class Row(NamedTuple):
    """One node, or one NUMA zone of it; the order of fields is that of `columns.Columns`."""

    capacity: Amounts
    kubelet: Amounts = ZERO
    annotation: Amounts = ZERO
    system: Amounts = ZERO
    """measured, host applications left out"""
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
"""What one pod, or one metric without a pod, takes from what can be lent: request, usage, peak; its NUMA nodes."""


def charges(pods: Iterable[PodFacts], report: Report, *, strict: bool = False) -> Iterator[Charge]:
    """The pod table of spec 04 §6.3, high-priority pods first, then metrics without a pod.

    `strict` is Koordinator to the digit: a pod without metric adds nothing to `maxUsageRequest`.
    """
    measured = dict(report.pods)
    for key, priority, exclusive, request, numa in pods:
        metric = measured.pop(key, None)
        if priority in LENT:
            continue
        if metric is None:
            yield request, request, ZERO if strict else request, numa
            continue
        usage = metric[0]
        yield request, (request[0], usage[1]) if exclusive else usage, larger(request, usage), numa
    for usage, priority in measured.values():
        if priority not in LENT:
            yield ZERO, usage, usage, ()


def node_row(own: Own, pods: Collection[PodFacts], report: Report, taken: Iterable[Charge]) -> Row:
    """The row of a node; `taken` are its `charges`."""
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
    own: Own, capacities: Sequence[tuple[int, Amounts]], report: Report, taken: Iterable[Charge]
) -> list[Row]:
    """The rows of a node's NUMA zones, given as (NUMA id, allocatable); `taken` are the node's `charges`.

    What belongs to no zone is split evenly, a pod bound to some zones evenly among them, each part rounded up (§6.4).
    """
    count = len(capacities)
    position = {numa: index for index, (numa, _) in enumerate(capacities)}
    own_parts = [[0] * 6 for _ in capacities]
    request_cpu = request_memory = used_cpu = used_memory = peak_cpu = peak_memory = 0
    milli = count * 10**6  # rounding up to thousandths of a core and then to a part is rounding up once
    for request, used, peak, numa in taken:
        bound = [position[one] for one in numa if one in position] if numa else ()
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
