"""Reads requests of containers under any resource name, and sets them to recommended amounts (spec 04 §9.3). Pure.

A container requests CPU and memory as native, batch or mid resources. The recommended amount is set under the resource
name that the container uses; admission then translates it as for every pod. A limit keeps its ratio to the request,
rounded up to a whole unit, and is never below the request, so a Guaranteed pod stays Guaranteed. A limit without a
request counts as the request, as in Kubernetes.
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
class ContainerAmounts:
    """Milli-cores and bytes; None: no recommendation."""

    cpu: int | None
    memory: int | None


def recommended(status: RecommendedContainerStatus) -> ContainerAmounts:
    """The recommended amounts of one container."""
    cpu, memory = status.resources.get("cpu"), status.resources.get("memory")
    return ContainerAmounts(cpu.milli_value() if cpu else None, memory.value() if memory else None)


def requested(container: Container) -> ContainerAmounts:
    """The requested amounts of a container; 0 where it requests nothing."""
    resources = {**container.resources.limits, **container.resources.requests}
    cpu, memory = _used_name(CPU, resources), _used_name(MEMORY, resources)
    milli = 0
    if cpu in resources:
        milli = resources[cpu].milli_value() if cpu == "cpu" else resources[cpu].value()
    return ContainerAmounts(milli, resources[memory].value() if memory in resources else 0)


def memory_limit(container: Container) -> int:
    """The memory limit in bytes; 0 for none."""
    limits = container.resources.limits
    name = _used_name(MEMORY, limits)
    return limits[name].value() if name in limits else 0


def set_requests(pod: Json, amounts: Mapping[str, ContainerAmounts]) -> list[str]:
    """Set the requests of a pod's containers in place. Returns the names of the changed containers.

    `pod` must have the shape of a Pod (`podschema`).
    """
    changed = []
    for container in containers(pod, init=False):
        recommendation = amounts.get(container["name"])
        if recommendation is not None and _set(container, recommendation):
            changed.append(container["name"])
    return changed


def _set(container: Json, amounts: ContainerAmounts) -> bool:
    resources = container.get("resources") or {}
    requests, limits = dict(resources.get("requests") or {}), dict(resources.get("limits") or {})
    for family, amount in ((CPU, amounts.cpu), (MEMORY, amounts.memory)):
        if amount is not None:
            name = _used_name(family, {**limits, **requests})
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


def _used_name(family: tuple[str, ...], resources: Mapping[str, object]) -> str:
    """The resource name that a container uses: an extended resource if present, else the native one."""
    return next((name for name in family[1:] if name in resources), family[0])


def _quantity(name: str, amount: int) -> Quantity:
    if name == "cpu":
        return Quantity.milli(amount)
    return Quantity.of(amount, BINARY_SI) if name in MEMORY else Quantity.of(amount)
