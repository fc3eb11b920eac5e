"""Validation of network bandwidth in `resource-qos-config`: kinds, ranges and sums (spec 01 §6.6 rule 4, §9 A13).

A value is a percentage (number) or a quantity in bit/s (string). The requests of LSR, LS and BE in one strategy must be
of one kind; percentages may sum to 100, quantities to the bandwidth in `system-config`.

Koordinator, and `strict_parity`, add both kinds as plain numbers, compare the sum with both limits, and use 0 for a
missing bandwidth, also for a node entry without a matching entry in `system-config` (spec 04 §15.3). Without a
`clusterStrategy` in `system-config` the cluster strategy's sum is not compared with a bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from koordlet.api.encoding.quantity import ZERO, Quantity, QuantityError
from koordlet.api.encoding.wire import encode
from koordlet.api.sloconfig.bounds import field_at
from koordlet.api.sloconfig.documents import QOSConfig, SystemConfigDocument

_CLASSES = ("lsrClass", "lsClass", "beClass")
_FIELDS = ("ingressRequest", "ingressLimit", "egressRequest", "egressLimit")


def network_problems(config: QOSConfig, system: SystemConfigDocument, *, strict_parity: bool = False) -> dict[str, str]:
    """Field path -> reason, for the cluster strategy and every entry; empty when all are valid."""
    reasons: dict[str, str] = {}
    cluster_total = system.cluster_strategy.total_network_bandwidth if system.cluster_strategy else None
    if strict_parity and system.cluster_strategy is not None:
        cluster_total = cluster_total or ZERO
    if config.cluster_strategy is not None:
        reasons |= _strategy("clusterStrategy", config.cluster_strategy, cluster_total, strict=strict_parity)
    totals = {
        encode(entry.node_selector): entry.total_network_bandwidth
        for entry in reversed(system.node_strategies)
        if entry.node_selector is not None
    }
    for index, entry in enumerate(config.node_strategies):
        # A node entry of system-config without bandwidth inherits the cluster's, as in merging.
        total = totals.get(encode(entry.node_selector)) if entry.node_selector is not None else None
        if total is None and not (strict_parity and system.node_strategies):
            total = cluster_total
        if strict_parity:
            total = total or ZERO
        reasons |= _strategy(f"nodeStrategies[{entry.name or index}]", entry, total, strict=strict_parity)
    return reasons


def _strategy(where: str, strategy: msgspec.Struct, total: Quantity | None, *, strict: bool) -> dict[str, str]:
    reasons = {path: reason for path, reason in _ranges(where, strategy) if reason}
    if reasons:
        return reasons
    requests = {
        field: [field_at(strategy, f"{name}.networkQOS.{field}") for name in _CLASSES]
        for field in ("ingressRequest", "egressRequest")
    }
    kinds = {type(value) for values in requests.values() for value in values if value is not None}
    if len(kinds) > 1:
        return {f"{where}.*.networkQOS.*Request": "requests mix percentages and quantities"}
    for field, values in requests.items():
        numbers = [value for value in values if isinstance(value, int)]
        texts = [value for value in values if isinstance(value, str)]
        path = f"{where}.*.networkQOS.{field}"
        if strict:
            reasons |= _sums_of_either(path, [Quantity(str(value)) for value in (*numbers, *texts)], total)
        elif sum(numbers) > 100:
            reasons[path] = f"requests sum to {sum(numbers)} percent, more than 100"
        elif texts and total is not None:
            requested = sum((Quantity(text) for text in texts), start=ZERO)
            if requested > total:
                reasons[path] = f"requests sum to {requested}, more than the total bandwidth {total}"
    return reasons


def _sums_of_either(path: str, requests: list[Quantity], total: Quantity | None) -> dict[str, str]:
    requested = sum(requests, start=ZERO)
    for limit, name in ((Quantity("100"), "100"), (total, f"the total bandwidth {total}")):
        if limit is not None and requested > limit:
            return {path: f"requests sum to {requested}, more than {name}"}
    return {}


def _ranges(where: str, strategy: msgspec.Struct) -> Iterator[tuple[str, str | None]]:
    for name in (*_CLASSES, "systemClass", "cgroupRoot"):
        for field in _FIELDS:
            value = field_at(strategy, f"{name}.networkQOS.{field}")
            path = f"{where}.{name}.networkQOS.{field}"
            if isinstance(value, int) and not 0 <= value <= 100:
                yield path, f"{value} percent is not within 0 and 100"
            elif isinstance(value, str):
                yield path, _not_a_bandwidth(value)


def _not_a_bandwidth(text: str) -> str | None:
    try:
        return f"{text} is negative" if Quantity(text) < ZERO else None
    except QuantityError as error:
        return str(error)
