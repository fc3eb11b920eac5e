"""Accelerators from files and RDMA NICs from sysfs become facts; what is wrong costs only itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from koordlet.devices.model import DeviceFault
from koordlet.metriccache import MetricCache
from koordlet.metriccache.facts import FACT_RDMA, FACT_XPU, PeerLink, XpuInfo
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.facts import xpu
from koordlet.metricsadvisor.facts.rdma import REREAD_S, RdmaCollector
from koordlet.metricsadvisor.facts.xpu import HOLD_S, MAX_BYTES, MAX_FILES, XpuCollector
from koordlet.prometheus import Registries
from koordlet.system.devices.pci import PciPlace
from tests.koordlet.system.rdmatree import RdmaTree

CARD = {
    "vendor": "huawei",
    "model": "Ascend-910B3",
    "uuid": "npu-0-0",
    "minor": "0",
    "resources": {"koordinator.sh/gpu-memory": "65536Mi", "huawei.com/npu-core": "20"},
    "topology": {"socketID": "-1", "nodeID": "1", "pcieID": "pci0000:c0", "busID": "0000:C1:00.0"},
    "status": {"healthy": True},
}


class Node:
    """A cache, clocks, and the collector's conditions."""

    def __init__(self) -> None:
        self.cache, self.registries, self.now, self.wall_ns = MetricCache(), Registries(), 100.0, 1 << 62
        self.registries.node = "n"
        self.conditions = CollectorConditions(self.registries)

    def failures(self, collector: str) -> float:
        families = [f for f in self.registries.internal.collect() if f.name == "koordlet_collector_failures"]
        return sum(s.value for f in families for s in f.samples if s.labels["collector"] == collector)


class Xpus(Node):
    """A directory of files."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.collector = XpuCollector(
            directory, self.cache, self.registries, self.conditions,
            clock=lambda: self.now, wall_ns=lambda: self.wall_ns,
        )  # fmt: skip

    def write(self, name: str, *devices: dict[str, Any]) -> Path:
        path = self.directory / name
        path.write_text(json.dumps(devices))
        return path

    def read(self, after: float = 1.0) -> tuple[XpuInfo, ...] | None:
        self.now += after
        self.collector.read()
        infos: tuple[XpuInfo, ...] | None = self.cache.facts.get(FACT_XPU, newer_than=self.now)
        return infos

    def ids(self, after: float = 1.0) -> list[str]:
        return [info.uuid for info in self.read(after) or ()]


@pytest.fixture
def xpus(tmp_path: Path) -> Xpus:
    (tmp_path / "infos").mkdir()
    return Xpus(tmp_path / "infos")


def card(uuid: str, **change: Any) -> dict[str, Any]:
    return {**CARD, "uuid": uuid, **change}


def test_a_file_becomes_facts(xpus: Xpus) -> None:
    sick = card("npu-1-1", minor="1", status={"healthy": False, "errCode": "chip error", "errMessage": "3 faults"})
    links = {"p2pLinks": [{"peerMinor": "1,2,g", "type": "HCCS"}], "mustHonorPartition": True}
    xpus.write("ic-device", CARD, sick, {"vendor": "kunlun", "uuid": "x", "minor": "7", "topology": links})
    place = PciPlace("0000:c1:00.0", 1, "pci0000:c0")
    first, second, third = xpus.read() or ()
    assert (first.vendor, first.model, first.minor, first.place) == ("huawei", "Ascend-910B3", 0, place)
    assert first.resources == CARD["resources"]
    assert (first.fault, first.status_known) == (None, True)
    assert (second.fault, second.status_known) == (DeviceFault("chip error", "3 faults"), True)
    assert (third.fault, third.status_known) == (None, False)
    assert (third.links, third.must_honor_partition) == ((PeerLink("1,2,g", "HCCS"),), True)
    assert third.place == PciPlace("", -1, "")
    assert xpus.conditions.states["xpu"].up


def test_files_in_the_order_of_their_names_and_a_directory_is_none(xpus: Xpus) -> None:
    xpus.write("b", card("b"))
    xpus.write("a", card("a"))
    (xpus.directory / "0").mkdir()
    xpus.write(".hidden", card("hidden"))
    xpus.write("x.tmp", card("half"))
    os.mkfifo(xpus.directory / "pipe")
    assert xpus.ids() == ["a", "b"]


def test_a_missing_and_an_empty_directory_and_removed_files(xpus: Xpus) -> None:
    assert xpus.read() == ()
    assert not xpus.conditions.states["xpu"].up
    path = xpus.write("a", card("a"))
    assert xpus.ids() == ["a"]
    path.unlink()
    assert xpus.read() == ()
    xpus.directory.rmdir()
    assert xpus.read() == ()


BAD = {
    "no array": b"{}",
    "cut off": b'[{"uuid": "z", "mi',
    "a number for a minor": b'[{"uuid": "z", "minor": 0}]',
    "too large": b" " * (MAX_BYTES + 1),
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_bad_file_costs_its_own_devices(xpus: Xpus, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    xpus.write("b", card("b"))
    (xpus.directory / "a").write_bytes(content)
    assert xpus.ids() == ["b"]
    assert xpus.ids() == ["b"]
    lines = [record for record in caplog.records if str(xpus.directory / "a") in record.getMessage()]
    assert len(lines) == 1, "logged once, with the file"
    assert xpus.failures("xpu") == 2, "counted each time"


def test_a_file_that_is_being_written_keeps_its_devices_for_a_while(xpus: Xpus) -> None:
    path = xpus.write("a", card("a"))
    assert xpus.ids() == ["a"]
    path.write_text("[")
    assert xpus.ids(after=HOLD_S - 1) == ["a"]
    assert xpus.ids(after=1) == []
    xpus.write("a", card("new"))
    assert xpus.ids() == ["new"]


def test_a_directory_that_cannot_be_read_leaves_the_old_fact(xpus: Xpus) -> None:
    xpus.write("a", card("a"))
    assert xpus.ids() == ["a"]
    collector = xpus.collector
    xpus.collector = XpuCollector(
        xpus.directory / "a", xpus.cache, xpus.registries, xpus.conditions, clock=lambda: xpus.now,
        wall_ns=lambda: xpus.wall_ns,
    )  # fmt: skip
    assert xpus.read() is None
    assert "Not a directory" in xpus.conditions.states["xpu"].reason
    xpus.collector = collector
    assert xpus.ids() == ["a"]


@pytest.mark.parametrize("minor", ["", "x", "-1", "1.0", "２", "99999999999", str(1 << 31)])
def test_a_device_without_a_number_is_left_out(xpus: Xpus, minor: str) -> None:
    xpus.write("a", card("bad", minor=minor), card("good"))
    assert xpus.ids() == ["good"]


@pytest.mark.parametrize(
    ("text", "node"), [("", -1), ("-1", -1), ("0", 0), ("3", 3), ("none", 0), ("99999999999", 0)]
)  # fmt: skip
def test_numa_nodes(xpus: Xpus, text: str, node: int) -> None:
    xpus.write("a", card("a", topology={"nodeID": text}))
    (info,) = xpus.read() or ()
    assert info.place is not None and info.place.node_id == node


def test_a_device_that_two_files_describe_is_there_once(xpus: Xpus) -> None:
    """A copy beside the original must not double what the node offers."""
    xpus.write("ic-device", card("a", model="first"))
    xpus.write("ic-device.bak", card("a", model="second"), card("b"))
    assert [(info.uuid, info.model) for info in xpus.read() or ()] == [("a", "first"), ("b", "Ascend-910B3")]


def test_a_device_that_a_file_describes_twice_is_there_once(xpus: Xpus) -> None:
    """Devices without a uuid are not compared."""
    xpus.write("a", card("a", minor="1"), card("b"), card("a", minor="2"), card("", minor="3"), card("", minor="4"))
    assert [(info.uuid, info.minor) for info in xpus.read() or ()] == [("a", 1), ("b", 0), ("", 3), ("", 4)]


def test_files_and_their_sizes_are_bounded(xpus: Xpus, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(MAX_FILES + 1):
        xpus.write(f"{number:03d}", card(str(number)))
    assert len(xpus.ids()) == MAX_FILES
    assert xpus.failures("xpu") == 1
    monkeypatch.setattr(xpu, "MAX_DEVICES", 10)
    assert len(xpus.ids()) == 10


def test_a_file_is_read_again_when_it_differs_and_only_then(xpus: Xpus, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    content = xpu._content

    def counted(path: Path) -> bytes:
        reads.append(path)
        return content(path)

    monkeypatch.setattr(xpu, "_content", counted)
    path = xpus.write("a", card("a"))
    xpus.wall_ns = path.stat().st_mtime_ns + 10**9  # just written: its time may hide another write
    xpus.read()
    xpus.read()
    assert len(reads) == 2
    xpus.wall_ns += 10 * 10**9
    xpus.read()
    assert xpus.ids() == ["a"]
    assert len(reads) == 3
    os.utime(path, ns=(0, 0))
    xpus.read()
    assert len(reads) == 4


# --- RDMA


class Nics(Node):
    """NICs of a sysfs."""

    def __init__(self, base: Path) -> None:
        super().__init__()
        self.tree = RdmaTree(base)
        self.collector = RdmaCollector(self.tree.roots, self.cache, self.conditions, clock=lambda: self.now)

    def read(self, after: float = 5.0) -> Any:
        self.now += after
        self.collector.read()
        return self.cache.facts.get(FACT_RDMA, newer_than=self.now)


@pytest.fixture
def nics(tmp_path: Path) -> Nics:
    return Nics(tmp_path)


def test_a_nic_with_its_virtual_functions(nics: Nics) -> None:
    nics.tree.nic("0000:1f:00.0", "mlx5_0", node=1)
    nics.tree.vfs("0000:1f:00.0", ["0000:1f:00.3", "0000:1f:00.2"])
    (nic,) = nics.read()
    assert nic.place == PciPlace("0000:1f:00.0", 1, "pci0000:1e")
    assert (nic.minor, nic.healthy, nic.vf_enabled) == (0, True, True)
    assert nic.vfs == ("0000:1f:00.3", "0000:1f:00.2")
    assert nics.conditions.states["rdma"].up


def test_a_machine_without_nics(nics: Nics) -> None:
    assert nics.read() == ()
    assert not nics.conditions.states["rdma"].up


def test_ports_are_seen_at_once_and_other_vendors_too(nics: Nics) -> None:
    nics.tree.nic("0000:1f:00.0", "bnxt_re3")
    (nic,) = nics.read()
    assert (nic.minor, nic.healthy) == (3, True)
    nics.tree.port("0000:1f:00.0", "bnxt_re3", "1: DOWN\n")
    assert [nic.healthy for nic in nics.read()] == [False]


def test_functions_that_come_and_go_are_seen_at_once(nics: Nics) -> None:
    nics.tree.nic("0000:1f:00.0", "mlx5_0")
    nics.read()
    nics.tree.nic("0000:20:00.0", "mlx5_1")
    nics.tree.vfs("0000:1f:00.0", ["0000:1f:00.2"])
    assert [(nic.minor, nic.vfs) for nic in nics.read()] == [(0, ("0000:1f:00.2",)), (1, ())]
    nics.tree.vfs("0000:1f:00.0", [])
    nics.tree.remove("0000:20:00.0", "mlx5_1")
    assert [(nic.minor, nic.vf_enabled, nic.vfs) for nic in nics.read()] == [(0, False, ())]


def test_other_changes_are_read_once_a_minute(nics: Nics) -> None:
    nics.tree.nic("0000:1f:00.0", "mlx5_0", node=0)
    nics.read()
    (nics.tree.function("0000:1f:00.0") / "numa_node").write_text("1\n")
    assert [nic.place.node_id for nic in nics.read()] == [0]
    assert [nic.place.node_id for nic in nics.read(after=REREAD_S)] == [1]


def test_of_two_nics_with_one_number_the_first_is_reported(nics: Nics, caplog: pytest.LogCaptureFixture) -> None:
    nics.tree.nic("0000:1f:00.0", "mlx5_0")
    nics.tree.nic("0000:20:00.0", "bnxt_re0")
    nics.tree.nic("0000:21:00.0", "nameless")
    assert [nic.place.bus_id for nic in nics.read()] == ["0000:1f:00.0"]
    nics.read(after=REREAD_S)
    lines = [record.getMessage() for record in caplog.records if "not reported" in record.getMessage()]
    assert len(lines) == 2
    assert "mlx5_0 has the same number" in lines[0] and "0000:20:00.0" in lines[0]
    assert "no number" in lines[1]
