"""Computes the content of this node's Device from the collectors' facts (spec 02 §3.9, 08 §4.3-§4.6). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordlet.api import names
from koordlet.api.annotations.device import (
    PARTITION_HONOR,
    PARTITION_PREFER,
    GPUPartition,
    PartitionTable,
    gpu_partitions_text,
)
from koordlet.api.crs.device import (
    CONDITION_HEALTHY,
    GPU,
    RDMA,
    DeviceInfo,
    DeviceTopology,
    VirtualFunction,
    VirtualFunctionGroup,
)
from koordlet.api.encoding.quantity import BINARY_SI, ZERO, Quantity, QuantityError
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import Condition
from koordlet.devices.model import DeviceFault, GpuInfo
from koordlet.metriccache.facts import RdmaInfo, XpuInfo
from koordlet.system.devices.pci import PciPlace

NVIDIA: Final = "nvidia"
WHOLE: Final = Quantity.of(100)
"""100 % of a device."""
PARTITION_LABEL: Final = names.LABEL_GPU_PARTITION_POLICY
PARTITIONS: Final = names.ANNOTATION_GPU_PARTITIONS
GPU_LABELS: Final = (names.LABEL_GPU_VENDOR, names.LABEL_GPU_MODEL, names.LABEL_GPU_DRIVER_VERSION)
MAX_MESSAGE_CHARS = 32768
MAX_REASON_CHARS = 1024
MAX_LABEL_CHARS = 63
_SHORT_NAMES: Final = {"gpu-core": names.RESOURCE_GPU_CORE, "gpu-memory": names.RESOURCE_GPU_MEMORY}
_UNKNOWN_SOCKET: Final = -1


@dataclass(frozen=True, slots=True)
class Inventory:
    """The collectors' recent facts. None: unknown, because the collector has not run yet or keeps failing."""

    xpus: Sequence[XpuInfo] | None = ()
    gpus: Sequence[GpuInfo] | None = ()
    rdma: Sequence[RdmaInfo] | None = ()
    driver: str = ""
    """Version of NVIDIA's driver."""
    faults: Mapping[str, DeviceFault] = field(default_factory=dict)
    """Unhealthy GPUs by UUID."""


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The part of the Device object that koordlet owns, as far as it is known."""

    devices: tuple[DeviceInfo, ...]
    """Sorted by type and minor."""
    types: frozenset[str]
    """Types of which all devices are known."""
    labels: Mapping[str, str | None]
    """None: the label must be absent."""
    partitions: str | None
    """Value of the annotation."""
    partitioned: bool
    """Whether koordlet owns the annotation and the policy's label; for NVIDIA GPUs other writers do."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Model by device id, where it is known."""
    unknown: tuple[str, ...] = ()
    """Kinds without recent facts, for messages."""
    problems: tuple[str, ...] = ()
    """Inputs that were ignored, for the log."""


def describe(inventory: Inventory, now: Time) -> NodeDevices:
    """The desired content. Accelerators described in files have precedence over NVML's; conditions are as of `now`."""
    problems: list[str] = []
    devices: list[DeviceInfo] = []
    types: set[str] = set()
    labels: dict[str, str | None] = {}
    unknown: list[str] = []
    models: dict[str, str] = {}
    partitions, partitioned = None, False
    if inventory.xpus is None or (not inventory.xpus and inventory.gpus is None):
        unknown.append("GPUs" if inventory.xpus is not None else "accelerators")
    else:
        types.add(GPU)
        labels = dict.fromkeys(GPU_LABELS)
        models = {each.uuid: each.model for each in inventory.xpus or inventory.gpus or ()}
        if inventory.xpus:
            devices += [_xpu(xpu, now, problems) for xpu in inventory.xpus]
            table = partition_table(inventory.xpus, problems)
            partitions = gpu_partitions_text(table) if table else None
            partitioned = True
            labels.update(xpu_labels(inventory.xpus[0]))
        elif inventory.gpus:
            devices += [_gpu(gpu, inventory.faults.get(gpu.uuid), now) for gpu in inventory.gpus]
            labels.update(gpu_labels(inventory.gpus, inventory.driver))
    if inventory.rdma is None:
        unknown.append("RDMA NICs")
    else:
        types.add(RDMA)
        devices += [_rdma(nic) for nic in inventory.rdma]
    return NodeDevices(
        devices=tuple(sorted(devices, key=sort_key)),
        types=frozenset(types),
        labels=labels,
        partitions=partitions,
        partitioned=partitioned,
        models=models,
        unknown=tuple(unknown),
        problems=tuple(problems),
    )


def sort_key(device: DeviceInfo) -> tuple[str, int, str]:
    """By type, minor, id."""
    return device.type, -1 if device.minor is None else device.minor, device.id


def _gpu(gpu: GpuInfo, fault: DeviceFault | None, now: Time) -> DeviceInfo:
    """A GPU of NVML; it has a condition only while it is unhealthy."""
    place = gpu.place
    known = place is not None and place.node_id >= 0 and place.pcie_id and place.bus_id
    return DeviceInfo(
        type=GPU,
        id=gpu.uuid,
        minor=gpu.minor,
        health=fault is None,
        resources={
            names.RESOURCE_GPU_CORE: WHOLE,
            names.RESOURCE_GPU_MEMORY: Quantity.of(gpu.memory_total, BINARY_SI),
            names.RESOURCE_GPU_MEMORY_RATIO: WHOLE,
        },
        topology=_topology(place) if place is not None and known else None,
        conditions=[] if fault is None else [healthy_condition(fault, now)],
    )


def _xpu(xpu: XpuInfo, now: Time, problems: list[str]) -> DeviceInfo:
    return DeviceInfo(
        type=GPU,
        id=xpu.uuid,
        minor=xpu.minor,
        health=xpu.fault is None,
        resources=_amounts(xpu, problems) | {names.RESOURCE_GPU_MEMORY_RATIO: WHOLE},
        topology=None if xpu.place is None else _topology(xpu.place),
        conditions=[healthy_condition(xpu.fault, now)] if xpu.status_known else [],
    )


def _rdma(nic: RdmaInfo) -> DeviceInfo:
    vfs = [VirtualFunction(minor=-1, bus_id=address) for address in sorted(nic.vfs)] if nic.vf_enabled else []
    return DeviceInfo(
        type=RDMA,
        id=nic.place.bus_id,
        minor=nic.minor,
        health=nic.healthy,
        resources={names.RESOURCE_RDMA: WHOLE},
        topology=_topology(nic.place),
        vf_groups=[VirtualFunctionGroup(vfs=vfs)] if vfs else [],
    )


def _topology(place: PciPlace) -> DeviceTopology:
    return DeviceTopology(socket_id=_UNKNOWN_SOCKET, node_id=place.node_id, pcie_id=place.pcie_id, bus_id=place.bus_id)


def _amounts(xpu: XpuInfo, problems: list[str]) -> dict[str, Quantity]:
    """Amounts by Koordinator's resource names; a full name has precedence over its short form."""
    amounts: dict[str, Quantity] = {}
    for name, text in sorted(xpu.resources.items(), key=lambda item: item[0] not in _SHORT_NAMES):
        try:
            amount = Quantity(text.strip())
            if amount < ZERO:
                raise QuantityError(f"{text!r} is negative")
        except QuantityError as error:
            problems.append(f"accelerator {xpu.uuid}: resources[{name}]: {error}")
            continue
        amounts[_SHORT_NAMES.get(name, name)] = amount
    return amounts


def healthy_condition(fault: DeviceFault | None, now: Time) -> Condition:
    """Condition `Healthy` (spec 08 §4.4)."""
    if fault is None:
        return _condition("True", "DeviceHealthy", "device is healthy", now)
    return _condition("False", legal_reason(fault.code), fault.message or "device is unhealthy", now)


def _condition(status: str, reason: str, message: str, now: Time) -> Condition:
    return Condition(
        type=CONDITION_HEALTHY,
        status=status,
        last_transition_time=now,
        reason=reason,
        message=message[:MAX_MESSAGE_CHARS],
    )


def legal_reason(code: str) -> str:
    """A vendor's error code as a condition's reason, without characters that are not allowed; -8001 is `Code8001`.

    With an invalid reason the API server would reject the whole Device, at the time when a device fails.
    """
    kept = re.sub(r"[^A-Za-z0-9_,:]", "", code).lstrip("_,:")
    if kept and kept[0].isdigit():
        kept = f"Code{kept}"
    return kept[:MAX_REASON_CHARS].rstrip(",:") or "Unknown"


def gpu_labels(gpus: Sequence[GpuInfo], driver: str) -> dict[str, str | None]:
    """Vendor; model and driver only if all GPUs are of the same model."""
    models = {gpu.model for gpu in gpus}
    model = models.pop() if len(models) == 1 else ""
    return {
        names.LABEL_GPU_VENDOR: NVIDIA,
        names.LABEL_GPU_MODEL: legal_label(model.removeprefix("NVIDIA ")),
        names.LABEL_GPU_DRIVER_VERSION: legal_label(driver) if model else None,
    }


def xpu_labels(first: XpuInfo) -> dict[str, str | None]:
    """Vendor, model and partition policy, from the first device."""
    policy = PARTITION_HONOR if first.must_honor_partition else PARTITION_PREFER
    return {
        names.LABEL_GPU_VENDOR: legal_label(first.vendor),
        names.LABEL_GPU_MODEL: legal_label(first.model),
        PARTITION_LABEL: policy if first.links else None,
    }


def legal_label(text: str) -> str | None:
    """A valid label value: characters that are not allowed become `-`. None for an empty text."""
    legal = re.sub(r"[^A-Za-z0-9_.-]", "-", text.strip())
    return legal.strip("-_.")[:MAX_LABEL_CHARS].rstrip("-_.") or None


def partition_table(xpus: Iterable[XpuInfo], problems: list[str]) -> PartitionTable:
    """Groups of linked devices by group size, each group once (spec 08 §4.5)."""
    table: PartitionTable = {}
    seen: set[tuple[int, ...]] = set()
    for xpu in xpus:
        for link in xpu.links:
            if not link.peer_minor or not link.type:
                continue
            peers = [part.strip() for part in link.peer_minor.split(",")]
            invalid = [part for part in peers if not re.fullmatch(r"[0-9]{1,10}", part)]
            if invalid:
                problems.append(f"accelerator {xpu.uuid}: p2pLinks: peerMinor: {invalid[0]!r} is not a number")
            members = tuple(sorted({xpu.minor, *(int(part) for part in peers if part not in invalid)}))
            if members not in seen:
                seen.add(members)
                partition = GPUPartition(minors=list(members), gpu_link_type=link.type, allocation_score=1)
                table.setdefault(len(members), []).append(partition)
    return table
