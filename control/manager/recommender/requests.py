"""Requests of containers: read under whichever name they have, and set to what is recommended (spec 04 §9.3). Pure.

A container asks for CPU and memory as such or, when it is best effort, as batch or mid resources. What it is given goes
under the name it used; admission then translates as it does for every pod. A limit keeps its ratio to the request, up
to a whole unit, and never is below it, so that a Guaranteed pod stays one. A limit without a request counts as the
request, as it does for Kubernetes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from control.manager.webhooks.objects import Json, child, containers
from koordlet.api import names
from koordlet.api.core import Container
from koordlet.api.crs.analysis import RecommendedContainerStatus
from koordlet.api.encoding.quantity import BINARY_SI, Quantity

CPU: Final = ("cpu", names.RESOURCE_BATCH_CPU, names.RESOURCE_MID_CPU)
MEMORY: Final = ("memory", names.RESOURCE_BATCH_MEMORY, names.RESOURCE_MID_MEMORY)
NANO: Final = 10**9


@dataclass(frozen=True, slots=True)
class Amounts:
    """Milli-cores and bytes; None: not told."""

    cpu: int | None
    memory: int | None


def recommended(status: RecommendedContainerStatus) -> Amounts:
    """What a Recommendation says for one container."""
    cpu, memory = status.resources.get("cpu"), status.resources.get("memory")
    return Amounts(cpu.milli_value() if cpu else None, memory.value() if memory else None)


def requested(container: Container) -> Amounts:
    """What a container asks for; 0 where it asks for nothing."""
    have = {**container.resources.limits, **container.resources.requests}
    cpu, memory = _used(CPU, have), _used(MEMORY, have)
    milli = have[cpu].milli_value() if cpu == "cpu" and cpu in have else have[cpu].value() if cpu in have else 0
    return Amounts(milli, have[memory].value() if memory in have else 0)


def memory_limit(container: Container) -> int:
    """The bytes at which a container is killed; 0 when only the node limits it."""
    limits = container.resources.limits
    name = _used(MEMORY, limits)
    return limits[name].value() if name in limits else 0


def give(pod: Json, amounts: Mapping[str, Amounts]) -> list[str]:
    """Set the requests of a pod's containers, in place; the names of those that changed. `pod` has a pod's shape."""
    changed = []
    for container in containers(pod, init=False):
        wanted = amounts.get(container["name"])
        if wanted is not None and _give(container, wanted):
            changed.append(container["name"])
    return changed


def _give(container: Json, wanted: Amounts) -> bool:
    resources = container.get("resources") or {}
    requests, limits = dict(resources.get("requests") or {}), dict(resources.get("limits") or {})
    for family, amount in ((CPU, wanted.cpu), (MEMORY, wanted.memory)):
        if amount is not None:
            name = _used(family, {**limits, **requests})
            _scale(name, _quantity(name, amount), requests, limits)
    if requests == (resources.get("requests") or {}) and limits == (resources.get("limits") or {}):
        return False
    target = child(container, "resources")
    target["requests"] = requests
    if limits:
        target["limits"] = limits
    return True


def _scale(name: str, request: Quantity, requests: Json, limits: Json) -> None:
    limit = Quantity(str(limits[name])) if name in limits else None
    before = Quantity(str(requests[name])) if name in requests else limit
    if before != request or name not in requests:
        requests[name] = str(request)
    if limit is not None and before is not None:
        ratio = Fraction(limit.nano, before.nano) if before.nano else Fraction(1)
        unit = NANO // 1000 if name == "cpu" else NANO
        nano = max(-(-int(request.nano * ratio) // unit) * unit, request.nano)
        scaled = Quantity.milli(nano // (NANO // 1000)) if name == "cpu" else _quantity(name, nano // NANO)
        if scaled != limit:
            limits[name] = str(scaled)


def _used(family: tuple[str, ...], have: Mapping[str, object]) -> str:
    """The name that a container asks under: an extended one where it is used, else the plain one."""
    return next((name for name in family[1:] if name in have), family[0])


def _quantity(name: str, amount: int) -> Quantity:
    if name == "cpu":
        return Quantity.milli(amount)
    return Quantity.of(amount, BINARY_SI) if name in MEMORY else Quantity.of(amount)
