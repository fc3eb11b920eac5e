"""Vendors that fail now and then, and the file for koordlet."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from devicedaemon import output
from devicedaemon.rounds import MAX_FAILED_ROUNDS, DiscoveryRounds
from devicedaemon.vendors import Vendor
from devicedaemon.vendors.node import HostNode, VendorError
from koordlet.api.deviceinfos import DeviceDescription, DeviceInfoStatus, DeviceInfoTopology, P2PLink, read_descriptions
from koordlet.system.devices.pci import PciFunction
from koordlet.system.errors import UnreadableFile
from tests.devicedaemon import vendortools as tools

SPECS = DeviceDescription(
    vendor="huawei", model="Ascend-910B3", uuid="npu-0-0", minor="0",
    resources={
        "koordinator.sh/gpu-memory": "65536Mi", "huawei.com/npu-core": "20", "huawei.com/npu-cpu": "7",
        "huawei.com/npu-dvpp": "100",
    },
    topology=DeviceInfoTopology(socket_id="-1", node_id="0", pcie_id="pci0000:c0", bus_id="0000:c1:00.0"),
    status=DeviceInfoStatus(healthy=True),
)  # fmt: skip
SPECS_TEXT = """\
[
  {
    "vendor": "huawei", "model": "Ascend-910B3", "uuid": "npu-0-0", "minor": "0",
    "resources": {"koordinator.sh/gpu-memory": "65536Mi", "huawei.com/npu-core": "20",
                  "huawei.com/npu-cpu": "7", "huawei.com/npu-dvpp": "100"},
    "topology": {"socketID": "-1", "nodeID": "0", "pcieID": "pci0000:c0", "busID": "0000:c1:00.0"},
    "status": {"healthy": true}
  }
]
"""
BROKEN = DeviceDescription(
    vendor="metax", model="C", uuid="u", minor="1",
    topology=DeviceInfoTopology(p2p_links=[P2PLink(peer_minor="0,2", type="HCCS")], must_honor_partition=True),
    status=DeviceInfoStatus(err_code="ECCError", err_message="GPU 1 has 3 uncorrectable ECC errors"),
)  # fmt: skip


class FakeVendor:
    """A vendor that returns or raises `result`; None hangs."""

    def __init__(self, name: str, number: str) -> None:
        self.result: list[DeviceDescription] | Exception | None = [device(name)]
        self.vendor = Vendor(name, number, self.discover)
        self.calls = 0

    async def discover(self, _: HostNode) -> list[DeviceDescription]:
        self.calls += 1
        if self.result is None:
            await asyncio.Event().wait()
        if isinstance(self.result, Exception):
            raise self.result
        assert self.result is not None
        return self.result


def device(uuid: str) -> DeviceDescription:
    return DeviceDescription(vendor="v", model="m", uuid=uuid, minor="0")


class Scene:
    def __init__(self, tmp_path: Path) -> None:
        self.one, self.two = FakeVendor("one", "0001"), FakeVendor("two", "0002")
        self.functions: Sequence[PciFunction] | Exception = [
            PciFunction("0000:00:01.0", "0002", ""), PciFunction("0000:00:02.0", "0001", ""),
        ]  # fmt: skip
        vendors = (self.one.vendor, self.two.vendor)
        self.rounds = DiscoveryRounds(tools.node(tmp_path, {}), self._pci, vendors, seconds=0.2)

    def _pci(self) -> Sequence[PciFunction]:
        if isinstance(self.functions, Exception):
            raise self.functions
        return self.functions

    async def uuids(self) -> list[str]:
        return [device.uuid for device in await self.rounds.run()]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize("failure", [VendorError("broken"), ZeroDivisionError(), None], ids=["tool", "bug", "hangs"])
async def test_a_broken_vendor_keeps_its_devices_for_three_rounds(scene: Scene, failure: Any) -> None:
    assert await scene.uuids() == ["one", "two"]
    scene.one.result = failure
    for _ in range(MAX_FAILED_ROUNDS):
        assert await scene.uuids() == ["one", "two"]
    assert await scene.uuids() == ["two"] == await scene.uuids()
    scene.one.result = [device("new")]
    assert await scene.uuids() == ["new", "two"]
    scene.one.result = failure
    assert await scene.uuids() == ["new", "two"], "failures are counted from 0 again"


async def test_a_vendor_that_never_succeeded_has_no_devices(scene: Scene) -> None:
    scene.two.result = VendorError("broken")
    assert await scene.uuids() == ["one"]


async def test_tools_of_absent_vendors_are_not_run(scene: Scene) -> None:
    scene.functions = [PciFunction("0000:00:01.0", "0002", "")]
    assert await scene.uuids() == ["two"] and scene.one.calls == 0
    scene.functions = []
    assert await scene.uuids() == [] and scene.two.calls == 1, "removed devices disappear at once"


async def test_an_unreadable_bus_is_a_failed_round_of_all_vendors(scene: Scene) -> None:
    await scene.uuids()
    scene.functions = UnreadableFile("/host-sys/bus/pci/devices", PermissionError(13, "denied"))
    for _ in range(MAX_FAILED_ROUNDS):
        assert await scene.uuids() == ["one", "two"]
    assert await scene.uuids() == []


def test_the_file_follows_the_specifications_example() -> None:
    assert json.loads(output.text_of([SPECS])) == json.loads(SPECS_TEXT)
    assert list(json.loads(output.text_of([SPECS]))[0]) == list(json.loads(SPECS_TEXT)[0])
    assert b'\n  {\n    "vendor": "huawei",\n' in output.text_of([SPECS])


def test_empty_fields_are_left_out_and_koordlet_reads_the_file() -> None:
    assert output.text_of([]).strip() == b"[]"
    (bare,) = json.loads(output.text_of([device("x")]))
    assert bare == {"vendor": "v", "model": "m", "uuid": "x", "minor": "0"}
    (broken,) = json.loads(output.text_of([BROKEN]))
    assert broken["status"] == {
        "healthy": False, "errCode": "ECCError", "errMessage": "GPU 1 has 3 uncorrectable ECC errors",
    }  # fmt: skip
    assert broken["topology"] == {"p2pLinks": [{"peerMinor": "0,2", "type": "HCCS"}], "mustHonorPartition": True}
    devices = [SPECS, BROKEN, device("x")]
    assert read_descriptions(output.text_of(devices), where="ic-device") == devices


def test_the_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "ic-device"
    output.write(path, [SPECS])
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    with path.open("rb") as reader:
        output.write(path, [])
        assert json.loads(reader.read()) == json.loads(SPECS_TEXT), "an open reader still has the old content"
    assert path.read_bytes() == output.text_of([])
    assert [entry.name for entry in tmp_path.iterdir()] == ["ic-device"]


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        output.write(tmp_path / "absent" / "ic-device", [])
    path = tmp_path / "ic-device"
    path.mkdir()
    with pytest.raises(OSError):
        output.write(path, [])
    assert [entry.name for entry in tmp_path.iterdir()] == ["ic-device"]


def test_leftovers_of_a_killed_daemon_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "ic-device"
    for name in (".ic-device12ab", "ic-device", "other", ".other"):
        (tmp_path / name).touch()
    (tmp_path / "ic-device-tmp/deep").mkdir(parents=True)
    output.sweep(path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"ic-device", "other", ".other", "ic-device-tmp"}
    output.remove(path)
    output.remove(path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"other", ".other"}
