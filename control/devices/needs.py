"""A pod's whole demand for devices: requests, hints, joint allocation and partitions (spec 06 §3.3, §3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from control.devices.requests import PERCENT_RESOURCES, WHOLE, TypeRequest, type_requests
from control.devices.room import DeviceHolding
from koordlet.api import names
from koordlet.api.annotations.device import (
    ALLOCATE_HINT,
    APPLY_FOR_ALL,
    EXCLUSIVE_DEVICE_LEVEL,
    EXCLUSIVE_PCIE_LEVEL,
    JOINT_ALLOCATE,
    PARTITION_BEST_EFFORT,
    PARTITION_RESTRICTED,
    REQUESTS_AS_COUNT,
    SAME_PCIE,
    TOPOLOGY_SCOPE_LEVELS,
    DeviceHint,
    GPUPartitionSpec,
    gpu_partition_spec,
)
from koordlet.api.crs.device import GPU
from koordlet.api.devicerequest import share_request
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.quoting import quoted
from koordlet.api.encoding.wire import WireError
from koordlet.api.meta import SelectorError

NO_HINT: Final = DeviceHint()


@dataclass(frozen=True, eq=False)
class DeviceNeed:
    """See the module text. Compared by identity."""

    requests: Mapping[str, TypeRequest]
    """By type; empty: the pod needs no devices."""
    hints: Mapping[str, DeviceHint] = field(default_factory=dict)
    """By requested type."""
    joint: tuple[str, ...] = ()
    """Types that are allocated together, the primary type first; empty without a joint allocation."""
    same_pcie: bool = False
    partition: GPUPartitionSpec | None = None
    isolation: str = ""
    """Label `gpu-isolation-provider` of the pod."""
    designated: DeviceHolding | None = None
    """The devices that the pod is to get."""

    @property
    def gpu(self) -> TypeRequest | None:
        return self.requests.get(GPU)

    @property
    def plain(self) -> bool:
        """Whether a node fits exactly if it has enough devices with enough room, unless it has GPU partitions."""
        gpu_follows = GPU in self.joint[1:]
        free = self.partition is None and self.designated is None
        return free and not self.hints and not self.same_pcie and not gpu_follows

    def hint(self, kind: str) -> DeviceHint:
        return self.hints.get(kind, NO_HINT)


def need_of(requests: Mapping[str, Quantity], annotations: Mapping[str, str], labels: Mapping[str, str]) -> DeviceNeed:
    """Raises DeviceRequestError for requests and WireError for annotations that are not allowed."""
    types = type_requests(requests)
    if not types:
        return DeviceNeed({})
    hints = {kind: hint for kind, hint in (ALLOCATE_HINT.get(annotations) or {}).items() if kind in types}
    for kind, hint in hints.items():
        _check_hint(kind, hint)
        types[kind] = _hinted(types[kind], kind, hint, requests)
    joint = JOINT_ALLOCATE.get(annotations)
    if joint is not None and joint.required_scope not in ("", SAME_PCIE):
        raise _invalid(names.ANNOTATION_DEVICE_JOINT_ALLOCATE, "requiredScope", joint.required_scope, (SAME_PCIE,))
    listed = [] if joint is None else list(dict.fromkeys(joint.device_types))
    members = tuple(
        kind for kind in listed if kind in types and hints.get(kind, NO_HINT).allocate_strategy != APPLY_FOR_ALL
    )
    partition = gpu_partition_spec(annotations) if GPU in types else None
    policies = (PARTITION_BEST_EFFORT, PARTITION_RESTRICTED)
    if partition is not None and partition.allocate_policy not in policies:
        raise _invalid(names.ANNOTATION_GPU_PARTITION_SPEC, "allocatePolicy", partition.allocate_policy, policies)
    jointly = len(types) > 1 and bool(members)
    return DeviceNeed(
        types,
        hints,
        members if jointly else (),
        jointly and joint is not None and joint.required_scope == SAME_PCIE,
        partition,
        labels.get(names.LABEL_GPU_ISOLATION_PROVIDER, ""),
    )


def _check_hint(kind: str, hint: DeviceHint) -> None:
    """Raises WireError."""
    key = names.ANNOTATION_DEVICE_ALLOCATE_HINT
    for name, value, allowed in (
        ("allocateStrategy", hint.allocate_strategy, (APPLY_FOR_ALL, REQUESTS_AS_COUNT)),
        ("requiredTopologyScope", hint.required_topology_scope, tuple(TOPOLOGY_SCOPE_LEVELS)),
        ("exclusivePolicy", hint.exclusive_policy, (EXCLUSIVE_DEVICE_LEVEL, EXCLUSIVE_PCIE_LEVEL)),
    ):
        if value and value not in allowed:
            raise _invalid(key, f"{kind}.{name}", value, allowed)
    for name, selector in (("selector", hint.selector), ("vfSelector", hint.vf_selector)):
        if selector is not None:
            try:
                selector.validate()
            except SelectorError as error:
                raise WireError(f"{kind}.{name}: {error}", where=f"annotation {key}") from error


def _hinted(request: TypeRequest, kind: str, hint: DeviceHint, requests: Mapping[str, Quantity]) -> TypeRequest:
    """The request as the hint's strategy counts it."""
    if kind not in PERCENT_RESOURCES or hint.allocate_strategy != REQUESTS_AS_COUNT:
        return request
    resource = PERCENT_RESOURCES[kind]
    number = share_request(requests, resource)
    if number > WHOLE:
        return request
    each = WHOLE if hint.exclusive_policy == EXCLUSIVE_DEVICE_LEVEL else 1
    return replace(request, amounts={resource: each}, count=number)


def _invalid(key: str, name: str, value: str, allowed: tuple[str, ...]) -> WireError:
    return WireError(f"{name}: {quoted(value)} is not one of {', '.join(allowed)}", where=f"annotation {key}")
