"""The annotation resource-status: written when a pod is bound, read when it is bound already (spec 06 §2.3).

A tenant may have written the annotation of a bound pod. So it counts for not more than the pod requests. It counts
also for pods of other schedulers, since a scheduler with another profile may have bound them.
"""

from __future__ import annotations

from collections.abc import Mapping

from control.numa.holdings import Holding
from control.numa.masks import cpu_list, mask_of
from control.numa.report import MAX_AMOUNT, MAX_ZONE_ID
from koordlet.api import names
from koordlet.api.annotations.scheduling import (
    BIND_DEFAULT,
    RESOURCE_SPEC,
    RESOURCE_STATUS,
    NUMANodeResource,
    ResourceSpec,
    ResourceStatus,
)
from koordlet.api.cpus import CPUListError, parse_cpus
from koordlet.api.encoding.quantity import BINARY_SI, DECIMAL_SI, Quantity
from koordlet.api.encoding.wire import WireError


class RefusedAllocation(ValueError):
    """The annotation does not count; the message is the reason."""


def status_text(holding: Holding) -> str:
    """The annotation for a holding."""
    nodes = [
        NUMANodeResource(
            node=zone,
            resources={name: _quantity(name, amount) for name, amount in sorted(amounts.items())},
        )
        for zone, amounts in sorted(holding.zones.items())
    ]
    return RESOURCE_STATUS.text(ResourceStatus(cpuset=cpu_list(holding.cpus), numa_node_resources=nodes))


def holding_of(annotations: Mapping[str, str], requests: Mapping[str, int]) -> Holding | None:
    """What the annotation gives a pod with these requests; None without annotation. Raises RefusedAllocation."""
    if names.ANNOTATION_RESOURCE_STATUS not in annotations:
        return None
    try:
        status = RESOURCE_STATUS.get(annotations)
        cpus = mask_of(parse_cpus(status.cpuset))
    except (WireError, CPUListError) as error:
        raise RefusedAllocation(str(error)) from error
    if 1000 * cpus.bit_count() > requests.get("cpu", 0):
        raise RefusedAllocation(f"{cpus.bit_count()} CPUs are more than the pod requests")
    zones: dict[int, dict[str, int]] = {}
    sums: dict[str, int] = {}
    for resource in status.numa_node_resources:
        if not 0 <= resource.node < MAX_ZONE_ID or resource.node in zones:
            raise RefusedAllocation(f"NUMA node {resource.node} is repeated or not from 0 to {MAX_ZONE_ID - 1}")
        zones[resource.node] = amounts = {
            name: _amount(name, quantity) for name, quantity in resource.resources.items()
        }
        for name, amount in amounts.items():
            sums[name] = sums.get(name, 0) + amount
            if amount < 0 or sums[name] > requests.get(name, 0):
                raise RefusedAllocation(f"NUMA amounts of {name} are negative or more than the pod requests")
    if not cpus and not zones:
        return None
    try:
        exclusive = RESOURCE_SPEC.get(annotations).preferred_cpu_exclusive_policy
    except WireError:
        exclusive = ""
    return Holding(cpus, zones, exclusive if cpus else "")


def completed_spec(spec: ResourceSpec, policy: str, *, required: bool) -> ResourceSpec:
    """The pod's resource-spec with the policy by which it got its CPUs."""
    mandatory, preferred = spec.required_cpu_bind_policy, spec.preferred_cpu_bind_policy
    if required and mandatory in ("", BIND_DEFAULT):
        mandatory = policy
    if preferred == BIND_DEFAULT:
        preferred = policy
    if not mandatory and not preferred:
        preferred = policy
    return ResourceSpec(
        required_cpu_bind_policy=mandatory,
        preferred_cpu_bind_policy=preferred,
        preferred_cpu_exclusive_policy=spec.preferred_cpu_exclusive_policy,
    )


def _quantity(name: str, amount: int) -> Quantity:
    if name == "cpu":
        return Quantity.milli(amount)
    return Quantity.of(amount, BINARY_SI if name == "memory" or name.startswith("hugepages-") else DECIMAL_SI)


def _amount(name: str, quantity: Quantity) -> int:
    return min(quantity.milli_value() if name == "cpu" else quantity.value(), MAX_AMOUNT)
