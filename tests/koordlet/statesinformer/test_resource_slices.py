"""The ResourceSlices of a node's devices: their content, when they are written, and that they are deleted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordlet.api.core import Node
from koordlet.api.core.claims import ResourceSlice
from koordlet.api.encoding.wire import Time, to_builtins
from koordlet.api.meta import ObjectMeta
from koordlet.devices.model import DeviceFault, GpuInfo
from koordlet.kube import Client, NotFound
from koordlet.metriccache.facts import RdmaInfo
from koordlet.prometheus import Registries
from koordlet.statesinformer.devices.slicereporter import NotServed, SliceRemoval, SliceReporter
from koordlet.statesinformer.devices.slices import MAX_SLICE_DEVICES, MAX_SLICES, changes, offered
from koordlet.statesinformer.devices.status import Inventory, NodeDevices, describe
from koordlet.system.devices.pci import PciPlace
from tests.koordlet.statesinformer.reporting import outcomes, slices_crd
from tests.waiting import until

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PLACE = PciPlace("0000:c1:00.0", 1, "pci0000:c0")
GPU = GpuInfo(0, "GPU-0", 80 << 30, "NVIDIA A100-SXM4-80GB", PLACE)
NIC = RdmaInfo(PciPlace("0000:1f:00.0", 0, "pci0000:1e"), 2, True)
NODE = Node(metadata=ObjectMeta(name="n", uid="u"))
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def gpus(count: int) -> list[GpuInfo]:
    return [replace(GPU, minor=number, uuid=f"GPU-{number}") for number in range(count)]


def status(inventory: Inventory) -> NodeDevices:
    return describe(inventory, Time.from_unix(1e9))


def desired(inventory: Inventory, stored: list[ResourceSlice] | None = None) -> list[ResourceSlice]:
    """The slices after all writes of a first round."""
    devices = offered(status(inventory), stored or [], pytest.fail)
    return list(changes(NODE, devices, []).created)


@pytest.mark.parametrize("parts", [1, 114, 115, 116, 126])
def test_slices_of_nodes_with_long_names_have_names_of_their_own(parts: int) -> None:
    devices = offered(status(Inventory(gpus=gpus(MAX_SLICES * MAX_SLICE_DEVICES))), [], pytest.fail)
    nodes = [Node(metadata=ObjectMeta(name="a." * parts + last)) for last in "bc"]
    names = {each.metadata.name for node in nodes for each in changes(node, devices, []).created}
    assert len(names) == 2 * MAX_SLICES
    assert all(len(name) <= 253 and SUBDOMAIN.fullmatch(name) for name in names)


def test_what_a_slice_says() -> None:
    faults = {"GPU-0": DeviceFault("Xid79", "fallen off the bus")}
    (slice_,) = desired(Inventory(gpus=[GPU], rdma=[NIC], faults=faults))
    (owner,) = slice_.metadata.owner_references
    assert (slice_.metadata.name, owner.kind, owner.uid) == ("n-devices.koordinator.sh-0", "Node", "u")
    spec: Any = to_builtins(slice_.spec)
    gpu, nic = spec.pop("devices")
    assert spec == {
        "driver": "devices.koordinator.sh",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
    }
    assert gpu == {
        "name": "gpu-0",
        "attributes": {
            "type": {"string": "gpu"},
            "minor": {"int": 0},
            "healthy": {"bool": False},
            "numaNode": {"int": 1},
            "uuid": {"string": "GPU-0"},
            "model": {"string": "NVIDIA A100-SXM4-80GB"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:c0"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:c1:00.0"},
        },
        "capacity": {"memory": {"value": "80Gi"}, "cores": {"value": "100"}},
        "taints": [{"key": "devices.koordinator.sh/unhealthy", "value": "true", "effect": "NoSchedule"}],
    }
    assert nic["name"] == "rdma-2" and "capacity" not in nic and "taints" not in nic
    assert nic["attributes"]["healthy"] == {"bool": True}


def test_texts_of_other_programs_fit_the_limits_of_attributes() -> None:
    (slice_,) = desired(Inventory(gpus=[replace(GPU, uuid="u" * 65, model="m" * 65)]))
    attributes = slice_.spec.devices[0].attributes
    assert "uuid" not in attributes and attributes["model"].string == "m" * 64


def test_many_devices_are_one_pool_of_several_slices() -> None:
    slices = desired(Inventory(gpus=gpus(2 * MAX_SLICE_DEVICES + 1)))
    assert [len(each.spec.devices) for each in slices] == [MAX_SLICE_DEVICES, MAX_SLICE_DEVICES, 1]
    assert {each.spec.pool.resource_slice_count for each in slices} == {3}
    problems: list[str] = []
    many = offered(status(Inventory(gpus=gpus(MAX_SLICES * MAX_SLICE_DEVICES + 1))), [], problems.append)
    assert len(many) == MAX_SLICES * MAX_SLICE_DEVICES and problems == ["only 512 of 513 devices are published"]


def test_devices_that_cannot_be_told_apart_are_left_out() -> None:
    problems: list[str] = []
    devices = Inventory(gpus=[GPU, replace(GPU, uuid="GPU-1"), replace(GPU, minor=-1, uuid="GPU-2")])
    assert [each.name for each in offered(status(devices), [], problems.append)] == ["gpu-0"]
    assert sorted(problems) == ["gpu GPU-2 has no minor number", "two devices are called gpu-0"]


def test_devices_of_an_unknown_type_are_kept() -> None:
    stored = desired(Inventory(gpus=[GPU], rdma=[NIC]))
    kept = offered(status(Inventory(xpus=None, rdma=[replace(NIC, minor=3)])), stored, pytest.fail)
    assert sorted(each.name for each in kept) == ["gpu-0", "rdma-3"]


def test_every_slice_gets_the_next_generation_with_a_change() -> None:
    stored = desired(Inventory(gpus=gpus(MAX_SLICE_DEVICES + 1)))
    less = changes(NODE, offered(status(Inventory(gpus=gpus(2))), stored, pytest.fail), stored)
    (body,) = less.patches.values()
    assert body["spec"]["pool"] == {"name": "n", "generation": 2, "resourceSliceCount": 1}
    assert less.deleted == ("n-devices.koordinator.sh-1",)
    same = offered(status(Inventory(gpus=gpus(MAX_SLICE_DEVICES + 1))), stored, pytest.fail)
    assert not changes(NODE, same, stored)
    stored[1].spec.pool = msgspec.structs.replace(stored[1].spec.pool, generation=7)
    mixed = changes(NODE, same, stored)
    assert [body["spec"]["pool"]["generation"] for body in mixed.patches.values()] == [8, 8]


def test_taints_that_the_api_server_drops_cause_no_write() -> None:
    devices = Inventory(gpus=[GPU], faults={"GPU-0": DeviceFault("Xid79", "")})
    stored = desired(devices)
    stored[0].spec.devices[0].taints = []
    assert not changes(NODE, offered(status(devices), stored, pytest.fail), stored)


class World:
    """What the reporter sees, to be changed by tests."""

    def __init__(self, client: Client, published: Path, node: Node = NODE) -> None:
        self.client, self.published, self.inventory = client, published, Inventory(gpus=[GPU], rdma=[NIC])
        self.registries = Registries()
        self.registries.node = "n"
        self.reporter = SliceReporter(
            client, "n", node=lambda: node, devices=lambda: status(self.inventory), registries=self.registries,
            published=published,
        )  # fmt: skip

    async def slices(self) -> list[ResourceSlice]:
        return await SliceRemoval(self.client, "n", self.published).slices()

    async def report(self) -> list[ResourceSlice]:
        """A round, which the reporter's copy then shows."""
        await self.reporter.report()
        slices = await self.slices()
        versions = {each.metadata.resource_version for each in slices}
        await until(lambda: {each.metadata.resource_version for each in self.reporter.stored.list()} == versions)
        return slices

    def outcomes(self) -> dict[str, float]:
        return outcomes(self.registries, "resource_slice_reports")


@pytest.fixture
async def world(client: Client, tmp_path: Path) -> AsyncIterator[World]:
    await client.raw("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=slices_crd())
    async with asyncio.timeout(120):
        while not await served(client):  # noqa: ASYNC110 - it happens in the server
            await asyncio.sleep(0.01)
    node = await client.create(Node(metadata=ObjectMeta(name="n")))
    world = World(client, tmp_path / "published", node)
    await world.reporter.stored.start()
    await world.reporter.stored.synced.wait()
    yield world
    await world.reporter.stored.stop()


async def served(client: Client) -> bool:
    try:
        await client.raw("GET", SLICES)
    except NotFound:
        return False
    return True


async def test_slices_are_written_once_and_with_changes_only(world: World) -> None:
    (slice_,) = await world.report()
    assert (await world.report())[0].metadata.resource_version == slice_.metadata.resource_version
    world.inventory = replace(world.inventory, faults={"GPU-0": DeviceFault("Xid79", "")})
    (broken,) = await world.report()
    assert (broken.spec.pool.generation, broken.spec.devices[0].attributes["healthy"].bool_) == (2, False)
    world.inventory = Inventory()
    assert await world.report() == []
    assert world.outcomes() == {"created": 1, "updated": 1, "deleted": 1}


async def test_what_others_change_or_delete_is_written_again(world: World) -> None:
    """The kubelet deletes the slices of its node when it starts."""
    (slice_,) = await world.report()
    path = f"{SLICES}/{slice_.metadata.name}"
    await world.client.raw("PATCH", path, body={"spec": {"devices": []}}, content_type="application/merge-patch+json")
    await until(lambda: not world.reporter.stored.list()[0].spec.devices)
    assert (await world.report())[0].spec.devices == slice_.spec.devices
    await world.client.delete(ResourceSlice, slice_.metadata.name)
    await until(lambda: not world.reporter.stored.list())
    assert [each.spec.devices for each in await world.report()] == [slice_.spec.devices]


async def test_slices_of_other_drivers_and_nodes_are_not_touched(world: World) -> None:
    for number, (node, driver) in enumerate((("n", "gpu.example.com"), ("m", "devices.koordinator.sh"))):
        spec = {"driver": driver, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"s{number}"}}
        await world.client.raw("POST", SLICES, body={**kind, "spec": spec})
    await world.report()
    world.inventory = Inventory()
    assert await world.report() == []
    assert {each.metadata.name for each in await world.client.list(ResourceSlice)} == {"s0", "s1"}


async def test_slices_are_deleted_after_the_gate_was_switched_off(world: World) -> None:
    removal = SliceRemoval(world.client, "n", world.published)
    assert not removal.needed()
    await world.report()
    assert removal.needed()
    await removal.remove()
    assert await world.slices() == [] and not removal.needed() and removal.problem is None


async def test_a_late_copy_leads_to_no_wrong_write(world: World) -> None:
    await world.report()
    await world.reporter.stored.stop()
    world.inventory = Inventory(gpus=gpus(3))
    for _ in range(3):
        await world.reporter.report()
    (now,) = await world.slices()
    assert (now.spec.pool.generation, len(now.spec.devices)) == (2, 3)


async def test_an_api_server_without_the_kind_is_named(client: Client, tmp_path: Path) -> None:
    world = World(client, tmp_path / "published")
    await world.reporter.stored.start()
    await world.reporter.stored.synced.wait()
    with pytest.raises(NotServed):
        await world.reporter.report()
    assert "use Kubernetes 1.34 or later" in (world.reporter.problem or "")
    await world.reporter.stored.stop()
