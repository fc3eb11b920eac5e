"""Nodes with devices, a cycle with DeviceShare over them, and restarts of the scheduler."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from control.scheduler.config.args import DeviceShareArgs, NodeNUMAResourceArgs
from control.scheduler.plugins.defaultpreemption.plugin import DefaultPreemption
from control.scheduler.plugins.deviceshare import DeviceShare
from control.scheduler.plugins.nodenumaresource import NodeNUMAResource
from control.scheduler.plugins.noderesourcesfit import NodeResourcesFit
from koordlet.api import names
from koordlet.api.core import Node, Pod
from koordlet.api.crs.device import Device
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding import wire
from koordlet.app.gates import FeatureGates
from tests.control.scheduler.build import node, pod
from tests.control.scheduler.plugins.pluginworld import PluginWorld

POINTS = {
    "preFilter": ("NodeNUMAResource", "DeviceShare"),
    "filter": ("NodeNUMAResource", "DeviceShare", "NodeResourcesFit"),
    "score": ("NodeNUMAResource", "DeviceShare"),
    "reserve": ("NodeNUMAResource", "DeviceShare"),
    "preBind": ("NodeNUMAResource", "DeviceShare"),
    "postFilter": ("DefaultPreemption",),
}
REGISTRY = {plugin.name: plugin for plugin in (NodeNUMAResource, DeviceShare, NodeResourcesFit, DefaultPreemption)}
GPU_MEMORY = 80 << 30


def gpu(minor: int, numa: int = 0, pcie: str = "0", *, health: bool = True, **more: Any) -> dict[str, Any]:
    memory = more.pop("memory", GPU_MEMORY)
    return {
        "type": "gpu",
        "minor": minor,
        "id": f"GPU-{minor}",
        "health": health,
        "resources": {
            "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory": str(memory),
            "koordinator.sh/gpu-memory-ratio": "100",
        },
        "topology": {"socketID": -1, "nodeID": numa, "pcieID": pcie, "busID": f"0000:0{minor}:00.0"},
        **more,
    }


def rdma(minor: int, numa: int = 0, pcie: str = "0", *, functions: int = 2, **more: Any) -> dict[str, Any]:
    listed = [{"minor": -1, "busID": f"0000:{10 + minor}:00.{number + 1}"} for number in range(functions)]
    return {
        "type": "rdma",
        "minor": minor,
        "id": f"0000:{10 + minor}:00.0",
        "health": True,
        "resources": {"koordinator.sh/rdma": "100"},
        "topology": {"socketID": -1, "nodeID": numa, "pcieID": pcie},
        "vfGroups": [{"labels": {"type": "fast"}, "vfs": listed}] if functions else [],
        **more,
    }


def machine() -> list[dict[str, Any]]:
    """8 GPUs and 4 RDMA NICs: two GPUs and a NIC on each PCIe switch, two switches on each of 2 NUMA nodes."""
    gpus = [gpu(minor, minor // 4, str(minor // 2)) for minor in range(8)]
    return [*gpus, *(rdma(minor + 1, minor // 2, str(minor)) for minor in range(4))]


def device(
    name: str,
    devices: Sequence[Mapping[str, Any]],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Device:
    body = {
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": {"devices": [dict(device) for device in devices]},
    }
    return wire.convert(body, Device)


def with_devices(
    requests: Mapping[str, str], *, hint: Any = None, joint: Any = None, partition: Any = None, **more: Any
) -> Pod:
    """A pod with these requests besides cpu and memory; `hint`, `joint`, `partition`: its annotations."""
    annotations = dict(more.pop("annotations", {}))
    for key, value in (
        (names.ANNOTATION_DEVICE_ALLOCATE_HINT, hint),
        (names.ANNOTATION_DEVICE_JOINT_ALLOCATE, joint),
        (names.ANNOTATION_GPU_PARTITION_SPEC, partition),
    ):
        if value is not None:
            annotations[key] = json.dumps(value)
    extra: dict[str, Any] = {key.replace("/", "__").replace("-", "_"): amount for key, amount in requests.items()}
    return pod(annotations=annotations, **extra, **more)


class DeviceWorld(PluginWorld):
    """Nodes with devices."""

    points, registry = POINTS, REGISTRY

    def __init__(
        self,
        *nodes: tuple[Node, Device | None],
        args: DeviceShareArgs | None = None,
        topologies: Sequence[NodeResourceTopology] = (),
        gates: FeatureGates | None = None,
    ) -> None:
        self.devices = {reported.metadata.name: reported for _, reported in nodes if reported is not None}
        self.topologies = topologies
        plugin_args = {"DeviceShare": args, "NodeNUMAResource": NodeNUMAResourceArgs()}
        super().__init__([member for member, _ in nodes], plugin_args, gates)

    def start(self) -> None:
        super().start()
        plugin = self.cycle.framework.plugins["DeviceShare"]
        assert isinstance(plugin, DeviceShare)
        self.plugin = plugin
        for reported in self.devices.values():
            self.report(reported)
        for topology in self.topologies:
            self.objects.informer(NodeResourceTopology).put(topology)

    def report(self, reported: Device) -> None:
        self.devices[reported.metadata.name] = reported
        self.objects.informer(Device).put(reported)

    def forget(self, name: str) -> None:
        """The Device object is deleted."""
        self.objects.informer(Device).remove(self.devices.pop(name))

    def run(self, pod: Pod) -> dict[str, Any]:
        """Schedule and bind a pod: its device-allocated."""
        return allocated(self.bind(self.place(pod)))

    def minors(self, pod: Pod) -> dict[str, list[int]]:
        """Schedule and bind a pod: the minors of its devices."""
        return {kind: [each["minor"] for each in devices] for kind, devices in self.run(pod).items()}


def allocated(pod: Pod) -> dict[str, Any]:
    text = pod.metadata.annotations.get(names.ANNOTATION_DEVICE_ALLOCATED)
    return {} if text is None else json.loads(text)


ALLOCATABLE: dict[str, Any] = {
    "nvidia.com__gpu": "64",
    "koordinator.sh__gpu": "6400",
    "koordinator.sh__gpu_core": "6400",
    "koordinator.sh__gpu_memory": str(64 * GPU_MEMORY),
    "koordinator.sh__gpu_memory_ratio": "6400",
    "koordinator.sh__gpu.shared": "6400",
    "koordinator.sh__rdma": "6400",
    "koordinator.sh__fpga": "6400",
    "huawei.com__npu_core": "6400",
    "huawei.com__npu_cpu": "6400",
    "huawei.com__npu_dvpp": "6400",
}
"""More than the devices have, so that DeviceShare alone decides."""


def equipped(
    *machines: Sequence[Mapping[str, Any]] | None,
    labels: Mapping[str, str] | None = None,
    args: DeviceShareArgs | None = None,
    device_labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    topologies: Sequence[NodeResourceTopology] = (),
    gates: FeatureGates | None = None,
) -> DeviceWorld:
    """Nodes n0, n1 … with these devices; None: without Device object. By default one `machine`."""
    listed = machines or (machine(),)
    nodes = [
        (
            node(f"n{at}", cpu="128", memory="512Gi", labels=labels, **ALLOCATABLE),
            None if devices_of is None else device(f"n{at}", devices_of, labels=device_labels, annotations=annotations),
        )
        for at, devices_of in enumerate(listed)
    ]
    return DeviceWorld(*nodes, args=args, topologies=topologies, gates=gates)
