"""Extended resources: translation by priority class, deprecated names, amplification, node reservation.

Pure functions on resource lists (name -> Quantity) that do not modify their arguments. Units: cpu in cores, `batch-cpu`
and `mid-cpu` in milli-cores, memory in bytes (spec 01 §4.3, §5.10).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordlet.api import names, priority
from koordlet.api.annotations.node import NodeReservation
from koordlet.api.cpus import parse_cpus
from koordlet.api.encoding.quantity import ZERO, Quantity

ResourceList = dict[str, Quantity]
Resources = Mapping[str, Quantity]

_TRANSLATED: Final[dict[str, dict[str, str]]] = {
    priority.BATCH: {"cpu": names.RESOURCE_BATCH_CPU, "memory": names.RESOURCE_BATCH_MEMORY},
    priority.MID: {"cpu": names.RESOURCE_MID_CPU, "memory": names.RESOURCE_MID_MEMORY},
}
BATCH_RESOURCES: Final = frozenset({names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY})
DEPRECATED: Final[dict[str, str]] = names.DEPRECATED_BATCH_RESOURCES | names.DEPRECATED_DEVICE_RESOURCES


def translate_name(priority_class: str, resource: str) -> str:
    """The resource that a class uses instead of `resource`; the same name if there is none.

    (Koordinator returns an empty name for koord-free: spec 01 §9 A17.)
    """
    return _TRANSLATED.get(priority_class, {}).get(resource, resource)


def without_deprecated(resources: Resources) -> ResourceList:
    """A list with deprecated names replaced; if the new name exists already, both are kept."""
    renamed = dict(resources)
    for old, new in DEPRECATED.items():
        if old in renamed and new not in renamed:
            renamed[new] = renamed.pop(old)
    return renamed


def is_extended(name: str) -> bool:
    """Whether a resource is an extended one: not native to Kubernetes, with integer amounts and no overcommit."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def amplified_allocatable(allocatable: Resources, raw: Resources, ratios: Mapping[str, float]) -> ResourceList:
    """Amplification by the node webhook: cpu and memory only, from raw amounts, truncated instead of rounded up."""
    result = dict(allocatable)
    for name in ("cpu", "memory"):
        ratio, amount = ratios.get(name, 0.0), raw.get(name)
        if amount is not None and ratio > 1:
            if name == "cpu":
                result[name] = Quantity.milli(int(amount.milli_value() * ratio), amount.fmt)
            else:
                result[name] = Quantity.of(int(amount.value() * ratio), amount.fmt)
    return result


def next_raw_allocatable(old: Resources, incoming: Resources, raw: Resources | None) -> ResourceList | None:
    """The new value of `raw-allocatable` after a status update with a ratio, or None if it stays unchanged.

    `old` and `incoming` are the allocatable of the stored and of the new object. The incoming cpu and memory are
    recorded if nothing was recorded yet or if they differ from the stored ones.
    """
    if raw and all(old.get(name) == incoming.get(name) for name in ("cpu", "memory")):
        return None
    return {name: incoming[name] for name in ("cpu", "memory") if name in incoming}


def reserved_resources(reservation: NodeReservation | None) -> ResourceList:
    """The amounts of a node reservation; the number of listed CPUs replaces the amount of cpu."""
    if reservation is None:
        return {}
    reserved = dict(reservation.resources)
    if reservation.reserved_cpus:
        reserved["cpu"] = Quantity.of(len(parse_cpus(reservation.reserved_cpus)))
    return reserved


def without_reserved(allocatable: Resources, reservation: NodeReservation | None) -> ResourceList:
    """Allocatable minus the amounts of a reservation with the default policy, at least zero.

    Batch resources are not reduced: the manager has subtracted the reservation when it computed them.
    """
    if reservation is None or reservation.apply_policy not in ("", "Default"):
        return dict(allocatable)
    reserved = reserved_resources(reservation)
    return {
        name: amount if name in BATCH_RESOURCES or name not in reserved else max(amount - reserved[name], ZERO)
        for name, amount in allocatable.items()
    }
