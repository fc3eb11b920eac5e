"""The Device reporter against the embedded API server: written once, kept right, never in the way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from control.standalone.apiserver import ApiServer
from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.crs.device import Device
from koordlet.api.meta import ObjectMeta
from koordlet.devices.model import DeviceFault, GpuInfo
from koordlet.kube import Client, ConnectionFailed, NotFound
from koordlet.metriccache.facts import PeerLink, RdmaInfo, XpuInfo
from koordlet.prometheus import Registries
from koordlet.statesinformer.devices.reporter import HOLD_ROUNDS, DeviceReporter
from koordlet.statesinformer.devices.status import Inventory
from koordlet.system.devices.pci import PciPlace
from tests.koordlet.statesinformer.reporting import kubectl, outcomes, until_stored
from tests.waiting import until

PLACE = PciPlace("0000:c1:00.0", 0, "pci0000:c0")
CARD = XpuInfo("huawei", "Ascend-910B3", "npu-0", 0, {"gpu-memory": "64Gi"}, place=PLACE, status_known=True)
SICK = replace(CARD, uuid="npu-1", minor=1, fault=DeviceFault("chip error", "NPU index 1 has 3 chip faults"))
NIC = RdmaInfo(PciPlace("0000:1f:00.0", 1, "pci0000:1e"), 0, True, True, ("0000:1f:00.3", "0000:1f:00.2"))
GPU = GpuInfo(0, "GPU-0", 80 << 30, "NVIDIA A100-SXM4-80GB", PLACE)


class World:
    """What the reporter sees, to be changed by tests."""

    def __init__(self, client: Client, node: Node) -> None:
        self.client, self.node, self.found, self.now = client, node, Inventory(xpus=[CARD], rdma=[NIC]), 1e9
        self.registries = Registries()
        self.registries.node = "n"
        self.reporter = DeviceReporter(
            client, "n", node=lambda: self.node, inventory=lambda: self.found, registries=self.registries,
            wall=lambda: self.now,
        )  # fmt: skip

    async def report(self) -> Device:
        """A round an hour later, which the reporter's copy then shows."""
        self.now += 3600
        await self.reporter.report()
        device = await self.stored()
        await until_stored(self.reporter.stored, device.metadata.resource_version)
        return device

    async def stored(self) -> Device:
        return await self.client.get(Device, "n")

    def outcomes(self) -> dict[str, float]:
        return outcomes(self.registries, "device_reports")


@pytest.fixture
async def world(client: Client) -> AsyncIterator[World]:
    world = World(client, await client.create(Node(metadata=ObjectMeta(name="n"))))
    await world.reporter.stored.start()
    await world.reporter.stored.synced.wait()
    yield world
    await world.reporter.stored.stop()


def ids(device: Device) -> list[str]:
    return [info.id for info in device.spec.devices]


async def test_the_object_is_created_once_and_not_written_without_changes(world: World) -> None:
    """With conditions in it, whose time goes on."""
    patch = await world.report()
    (owner,) = patch.metadata.owner_references
    assert (owner.kind, owner.uid) == ("Node", world.node.metadata.uid)
    assert ids(patch) == ["npu-0", "0000:1f:00.0"]
    for _ in range(3):
        assert (await world.report()).metadata.resource_version == patch.metadata.resource_version
    assert world.outcomes() == {"created": 1}


async def test_a_fault_and_its_recovery_are_each_written_once(world: World) -> None:
    """The vendor's error code has a space in it: the CRD would refuse it."""
    patch = await world.report()
    first = patch.spec.devices[0].conditions[0].last_transition_time
    world.found = Inventory(xpus=[replace(SICK, uuid="npu-0", minor=0)], rdma=[NIC])
    broken = await world.report()
    (condition,) = broken.spec.devices[0].conditions
    assert (condition.status, condition.reason) == ("False", "chiperror")
    assert condition.last_transition_time > first
    assert (await world.report()).spec.devices[0].conditions == [condition]
    world.found = Inventory(xpus=[CARD], rdma=[NIC])
    assert (await world.report()).spec.devices[0].health is True
    assert world.outcomes() == {"created": 1, "updated": 2}


async def test_without_devices_no_object_is_created_but_an_existing_one_is_updated(world: World) -> None:
    world.found = Inventory()
    await world.reporter.report()
    with pytest.raises(NotFound):
        await world.stored()
    assert world.outcomes() == {}
    world.found = Inventory(rdma=[NIC])
    assert ids(await world.report()) == ["0000:1f:00.0"]
    world.found = Inventory()
    assert ids(await world.report()) == []


async def test_fields_of_other_writers_are_kept(world: World) -> None:
    patch = await world.report()
    fpga = {"type": "fpga", "id": "f", "minor": 0, "health": True}
    devices = [*json.loads(await _raw(world))["spec"]["devices"], fpga]
    mine = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": {"devices": devices}}
    theirs = await world.client.patch(Device, "n", body=mine)
    await until_stored(world.reporter.stored, theirs.metadata.resource_version)
    assert (await world.report()).metadata.resource_version == theirs.metadata.resource_version, "written for nothing"
    world.found = Inventory(rdma=[NIC])
    now = await world.report()
    assert ids(now) == ["f", "0000:1f:00.0"]
    assert (now.metadata.labels, now.metadata.annotations) == ({"a": "b"}, {"c": "d"})
    assert now.metadata.uid == patch.metadata.uid


async def test_a_stale_copy_is_corrected_by_a_retry(world: World) -> None:
    """The watch is late: deleted, or recreated and changed by others since."""
    await world.report()
    await world.reporter.stored.stop()  # its copy stays what it was
    await world.client.delete(Device, "n")
    world.found = Inventory(xpus=[CARD, SICK])
    await world.reporter.report()
    assert ids(await world.stored()) == ["npu-0", "npu-1"], "NotFound leads to a new object"
    await world.client.patch(Device, "n", body={"metadata": {"labels": {"a": "b"}}})
    world.found = Inventory(xpus=[SICK])
    await world.reporter.report()
    now = await world.stored()
    assert (ids(now), now.metadata.labels["a"]) == (["npu-1"], "b"), "Conflict leads to a fresh look"


async def test_devices_without_recent_data_stay_for_some_rounds(world: World) -> None:
    """As after a restart of koordlet: NVML takes its time."""
    patch = await world.report()
    world.found = Inventory(xpus=None, rdma=[NIC])
    for _ in range(HOLD_ROUNDS):
        await world.reporter.report()
    assert (await world.stored()).metadata.resource_version == patch.metadata.resource_version
    assert "accelerators" in (world.reporter.problem or "")
    now = await world.report()
    assert ids(now) == ["0000:1f:00.0"]
    assert names.LABEL_GPU_VENDOR not in now.metadata.labels
    assert world.reporter.problem is None
    world.found = Inventory(xpus=[CARD], rdma=[NIC])
    assert ids(await world.report()) == ["npu-0", "0000:1f:00.0"]


async def test_a_node_without_gpus_is_ready_at_once(world: World) -> None:
    world.found = Inventory(gpus=None)
    await world.reporter.report()
    assert world.reporter.problem is None


async def test_an_unknown_node_skips_only_the_round(world: World) -> None:
    node, world.node = world.node, None  # type: ignore[assignment]
    await world.reporter.report()
    assert "node n is not known" in (world.reporter.problem or "")
    assert world.outcomes() == {"skipped": 1}
    world.node = node
    await world.report()
    assert world.reporter.problem is None


async def test_an_unreachable_server_is_counted_and_retried(server: ApiServer, world: World) -> None:
    await world.report()
    await server.stop()
    world.found = Inventory(xpus=[CARD, SICK])
    with pytest.raises(ConnectionFailed):
        await world.reporter.report()
    assert world.outcomes() == {"created": 1, "failed": 1}


async def test_a_deleted_object_is_created_again(world: World) -> None:
    await world.report()
    await world.client.delete(Device, "n")
    await until(lambda: world.reporter.stored.object is None)
    await world.report()
    assert world.outcomes() == {"created": 2}


@pytest.mark.kubectl
async def test_kubectl_shows_it(server: ApiServer, world: World) -> None:
    linked = replace(CARD, links=(PeerLink("1", "HCCS"),), must_honor_partition=True)
    world.found = Inventory(xpus=[linked, SICK], rdma=[NIC])
    await world.report()
    assert (await kubectl(server, "get", "device", "-o", "name")).split() == ["device.scheduling.koordinator.sh/n"]
    shown = yaml.safe_load(await kubectl(server, "get", "device", "n", "-o", "yaml"))
    assert shown["metadata"]["labels"] == {
        names.LABEL_GPU_VENDOR: "huawei",
        names.LABEL_GPU_MODEL: "Ascend-910B3",
        names.LABEL_GPU_PARTITION_POLICY: "Honor",
    }
    partitions = json.loads(shown["metadata"]["annotations"][names.ANNOTATION_GPU_PARTITIONS])
    assert partitions == {"2": [{"minors": [0, 1], "gpuLinkType": "HCCS", "allocationScore": 1}]}
    first, second, nic = shown["spec"]["devices"]
    assert first["topology"] == {"socketID": -1, "nodeID": 0, "pcieID": "pci0000:c0", "busID": "0000:c1:00.0"}
    assert first["resources"] == {"koordinator.sh/gpu-memory": "64Gi", "koordinator.sh/gpu-memory-ratio": "100"}
    assert (second["health"], second["conditions"][0]["reason"]) == (False, "chiperror")
    assert nic["vfGroups"] == [{"vfs": [{"minor": -1, "busID": f"0000:1f:00.{n}"} for n in (2, 3)]}]


async def test_gpus_of_nvml(world: World) -> None:
    faults = {"GPU-0": DeviceFault("Xid79", "Xid error detected on device, error code: 79")}
    world.found = Inventory(gpus=[GPU], driver="550.54.15")
    assert (await world.report()).metadata.labels[names.LABEL_GPU_DRIVER_VERSION] == "550.54.15"
    world.found = replace(world.found, faults=faults)
    sick = await world.report()
    assert [(device.health, device.conditions[0].reason) for device in sick.spec.devices] == [(False, "Xid79")]
    world.found = replace(world.found, faults={})
    assert [(device.health, device.conditions) for device in (await world.report()).spec.devices] == [(True, [])]


async def _raw(world: World) -> Any:
    return (await world.client.raw("GET", "/apis/scheduling.koordinator.sh/v1alpha1/devices/n")).decode()
