"""Vendors' devices from their tools' output: the specification's tables, and invalid output."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from devicedaemon.vendors import VENDORS, cambricon, huawei, iluvatar, kunlun, metax
from devicedaemon.vendors.node import HostNode, VendorError
from koordlet.api.deviceinfos import DeviceDescription, DeviceInfoStatus, DeviceInfoTopology, P2PLink
from koordlet.system.devices.pci import PciFunction
from tests.devicedaemon import vendortools as tools

HEALTHY = DeviceInfoStatus(healthy=True)
SHARED = {"koordinator.sh/gpu-core": "100"}


def place(bus: str, node: str = "0", pcie: str = "", links: tuple[P2PLink, ...] = ()) -> DeviceInfoTopology:
    return DeviceInfoTopology(p2p_links=list(links), socket_id="-1", node_id=node, pcie_id=pcie, bus_id=bus)


def npu(
    card: int, minor: int, bus: str, peer: int, pcie: str = "", status: DeviceInfoStatus = HEALTHY
) -> DeviceDescription:
    return DeviceDescription(
        vendor="huawei", model="Ascend-910B3", uuid=f"npu-{card}-{minor}", minor=str(minor),
        resources={
            "koordinator.sh/gpu-memory": "65536Mi", "huawei.com/npu-core": "20", "huawei.com/npu-cpu": "7",
            "huawei.com/npu-dvpp": "100",
        },
        topology=place(bus, pcie=pcie, links=(P2PLink(peer_minor=str(peer), type="HCCS"),)), status=status,
    )  # fmt: skip


async def test_huawei_devices_follow_the_specification(tmp_path: Path) -> None:
    tools.pci_function(tmp_path / "sys", "0000:c1:00.0", "0x19e5")
    devices = await huawei.discover(tools.node(tmp_path, tools.huawei(first=2), davinci=(0, 1)))
    broken = DeviceInfoStatus(err_code="ChipError", err_message="NPU index 0 has 2 chip faults")
    assert devices == [npu(0, 0, "0000:c1:00.0", 1, "pci0000:c0", broken), npu(4, 1, "0000:c2:00.0", 0)]


async def test_huawei_minors_are_numeric_and_cards_without_one_are_skipped(tmp_path: Path) -> None:
    assert huawei.minors_of(["davinci10", "davinci2", "davinci0", "davinci_manager", "null"]) == [0, 2, 10]
    devices = await huawei.discover(tools.node(tmp_path, tools.huawei(), davinci=(10,)))
    assert [(device.uuid, device.topology and device.topology.p2p_links) for device in devices] == [("npu-0-10", [])]
    with pytest.raises(VendorError, match="davinci"):
        await huawei.discover(tools.node(tmp_path / "none", tools.huawei()))


async def test_huawei_without_some_commands_has_fallbacks(tmp_path: Path) -> None:
    texts = tools.huawei()
    texts |= {f"npu-smi info -t memory -i {card}": 8 for card in (0, 4)}
    texts |= {f"npu-smi info -t topo -i {card}": 1 for card in (0, 4)}
    texts["npu-smi info -m"] = tools.NPU_MODEL.replace("910B3", "310P3")
    del texts["npu-smi info -t common -i 0"]
    texts["npu-smi info -t cpu-num-cfg -i 0"] = tools.NPU_CPUS
    devices = await huawei.discover(tools.node(tmp_path, texts, davinci=(0, 1)))
    for device in devices:
        assert device.model == "Ascend-310P3"
        assert device.resources["koordinator.sh/gpu-memory"] == "21527Mi"
        assert (device.resources["huawei.com/npu-core"], device.resources["huawei.com/npu-cpu"]) == ("8", "7")
        assert device.topology is not None and not device.topology.p2p_links


@pytest.mark.parametrize(
    ("model", "cpus"), [("910B", "0"), ("910B2", "6"), ("910B3", "7"), ("910B4", "7"), ("910", "reported")]
)
async def test_huawei_cpus_by_model(tmp_path: Path, model: str, cpus: str) -> None:
    texts = tools.huawei()
    texts["npu-smi info -m"] = tools.NPU_MODEL.replace("910B3", model)
    if cpus == "reported":
        texts["npu-smi info -t cpu-num-cfg -i 0"] = tools.NPU_CPUS.replace(": 7", ": 14")
    (device, _) = await huawei.discover(tools.node(tmp_path, texts, davinci=(0, 1)))
    assert device.resources["huawei.com/npu-cpu"] == {"reported": "14"}.get(cpus, cpus)


def test_huawei_links_of_one_card() -> None:
    table = """\
\t   NPU0  NPU1  NPU2  NPU3
NPU0   X     HCCS  PIX   HCCS
NPU1   HCCS  X     SYS   PHB
"""
    assert huawei.peers_of(table, "0") == ["1", "3"]
    assert huawei.peers_of(table, "1") == ["0"]
    assert huawei.peers_of(table, "2") == huawei.peers_of("", "0") == huawei.peers_of("NPU0 HCCS", "0") == []


async def test_kunlun_devices_follow_the_specification(tmp_path: Path) -> None:
    tools.pci_function(tmp_path / "sys", "0000:1a:00.0", "0x1d22", node=1)
    devices = await kunlun.discover(tools.node(tmp_path, tools.kunlun()))
    assert devices == [
        DeviceDescription(
            vendor="kunlun", model="R300", uuid=f"xpu-{n}", minor=str(n),
            resources={"koordinator.sh/gpu-memory": "32768Mi", **SHARED}, topology=topology, status=HEALTHY,
        )
        for n, topology in enumerate((place("0000:0a:00.0"), place("0000:1a:00.0", "1", "pci0000:c0")))
    ]  # fmt: skip


async def test_cambricon_devices_follow_the_specification(tmp_path: Path) -> None:
    tools.pci_function(tmp_path / "sys", "0000:1a:00.0", "0xcabc", node=0)
    devices = await cambricon.discover(tools.node(tmp_path, tools.cambricon("Lost")))
    bad = DeviceInfoStatus(err_message="Device is unhealthy, status: Lost")
    assert devices == [
        DeviceDescription(
            vendor="cambricon", model="MLU370-X8", uuid=f"MLU-{letter}", minor=str(n),
            resources={"koordinator.sh/gpu-memory": "24576Mi", **SHARED}, topology=topology, status=status,
        )
        for n, letter, topology, status in (
            (0, "a", place("0000:1a:00.0", "1", "pci0000:c0"), HEALTHY), (1, "b", place("0000:1b:00.0", "1"), bad),
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("Device : 00\nDevice : Good", HEALTHY),
        ("Device:Good", HEALTHY),
        ("Device : 00", DeviceInfoStatus()),
        ("", DeviceInfoStatus()),
        ("Device : 1f\nDevice : Good", HEALTHY),
        (
            "Device : Good\nDevice : Not Found",
            DeviceInfoStatus(err_message="Device is unhealthy, status: Not Found"),
        ),
        ("Device name : Bad\nDevice : Good", HEALTHY),
    ],
)
def test_cambricon_health(lines: str, status: DeviceInfoStatus) -> None:
    assert cambricon.status_of(lines) == status


async def test_metax_devices_follow_the_specification(tmp_path: Path) -> None:
    tools.pci_function(tmp_path / "sys", "0000:0a:00.0", "0x9999")
    devices = await metax.discover(tools.node(tmp_path, tools.metax()))
    bad = DeviceInfoStatus(err_code="ECCError", err_message="GPU 1 has 3 uncorrectable ECC errors")
    assert devices == [
        DeviceDescription(
            vendor="metax", model="MXC500", uuid=uuid, minor=str(n),
            resources={"koordinator.sh/gpu-memory": "64Gi", **SHARED}, topology=topology, status=status,
        )
        for n, uuid, topology, status in (
            (0, "GPU-zero", place("0000:0a:00.0", pcie="pci0000:c0"), HEALTHY),
            (1, "GPU-one", place("0000:0b:00.0"), bad),
        )
    ]  # fmt: skip


async def test_metax_without_a_count_of_errors_is_healthy(tmp_path: Path) -> None:
    texts = tools.metax() | {"mx-smi --count-ecc -i 0": 1, "mx-smi --count-ecc -i 1": "DRAM Uncorrectable : N/A"}
    assert [device.status for device in await metax.discover(tools.node(tmp_path, texts))] == [HEALTHY] * 2


async def test_iluvatar_devices_follow_the_specification(tmp_path: Path) -> None:
    tools.pci_function(tmp_path / "sys", "0000:4a:00.0", "0x1e3e")
    devices = await iluvatar.discover(tools.node(tmp_path, tools.iluvatar()))
    assert devices == [
        DeviceDescription(
            vendor="iluvatar", model="Iluvatar-BI-V150", uuid=uuid, minor=str(n),
            resources={"koordinator.sh/gpu-memory": "32768Mi", **SHARED}, topology=topology, status=HEALTHY,
        )
        for n, uuid, topology in (
            (0, "GPU-ix0", place("0000:4a:00.0", pcie="pci0000:c0")), (1, "iluvatar-1", None),
        )
    ]  # fmt: skip


Discover = Callable[[HostNode], Awaitable[list[DeviceDescription]]]


@pytest.mark.parametrize(
    ("discover", "texts", "command", "output"),
    [
        (huawei.discover, tools.huawei(), "npu-smi info -m", "one line only"),
        (huawei.discover, tools.huawei(), "npu-smi info -m", "head\nword"),
        (huawei.discover, tools.huawei(), "npu-smi info -l", "no cards"),
        (huawei.discover, tools.huawei(), "npu-smi info -l", "NPU ID : none"),
        (huawei.discover, tools.huawei(), "npu-smi info -t common -i 0", "Aicore : 20"),
        (huawei.discover, tools.huawei(), "npu-smi info -t common -i 0", 1),
        (kunlun.discover, tools.kunlun(), "xpu_smi -m", ""),
        (kunlun.discover, tools.kunlun(), "xpu_smi -m", "a b c"),
        (kunlun.discover, tools.kunlun(), "xpu_smi -m", tools.XPU_LIST.replace("32768", "much")),
        (cambricon.discover, tools.cambricon(), "cnmon -l", "nothing here"),
        (cambricon.discover, tools.cambricon(), "cnmon -l", "MLU370 and no id"),
        (cambricon.discover, tools.cambricon(), "cnmon info", "Total : 24576 MiB\nPhysical Memory Usage :"),
        (metax.discover, tools.metax(), "mx-smi --show-hwinfo", "Model Name : MXC500"),
        (metax.discover, tools.metax(), "mx-smi --show-hwinfo", tools.MX_HARDWARE.replace("64GB", "lots")),
        (metax.discover, tools.metax(), "mx-smi --list", 2),
        (iluvatar.discover, tools.iluvatar(), "ixsmi --list-gpus", "\n"),
        (iluvatar.discover, tools.iluvatar(), "ixsmi --query-gpu=gpu_name --format=csv,noheader --id=0", "\n"),
        (iluvatar.discover, tools.iluvatar(), "ixsmi --query-gpu=memory.total --format=csv,noheader --id=0", "N/A"),
    ],
)
async def test_missing_common_properties_are_an_error(
    tmp_path: Path, discover: Discover, texts: tools.Texts, command: str, output: str | int
) -> None:
    with pytest.raises(VendorError, match=command.split()[0]):
        await discover(tools.node(tmp_path, texts | {command: output}, davinci=(0, 1)))


@pytest.mark.parametrize(
    ("discover", "texts", "command", "output"),
    [
        (huawei.discover, tools.huawei(), "npu-smi info -t board -i 0", "no bus"),
        (huawei.discover, tools.huawei(), "npu-smi info -t board -i 0", "PCIe Bus Info : 0000:C1:00.0\nChip Fault : ?"),
        (huawei.discover, tools.huawei(), "npu-smi info -t memory -i 0", "HBM Capacity(MB) : 0"),
        (huawei.discover, tools.huawei(), "npu-smi info -t memory -i 0", 255),
        (kunlun.discover, tools.kunlun(), "xpu_smi -m -d /dev/xpu0", ""),
        (cambricon.discover, tools.cambricon(), "cnmon info -c 0", "UUID : x"),
        (cambricon.discover, tools.cambricon(), "cnmon info -c 0", 1),
        (metax.discover, tools.metax(), "mx-smi --list", "GPU#1 MXC500 0000:0b:00.0 Available none (GPU-one)"),
        (metax.discover, tools.metax(), "mx-smi --show-hwinfo -i 0", "GPU#0 MXC500"),
    ],
)
async def test_an_indescribable_device_is_skipped(
    tmp_path: Path, discover: Discover, texts: tools.Texts, command: str, output: str | int
) -> None:
    (device,) = await discover(tools.node(tmp_path, texts | {command: output}, davinci=(0, 1)))
    assert device.minor == "1"


async def test_it_is_an_error_when_all_devices_are_skipped(tmp_path: Path) -> None:
    texts = tools.kunlun() | {"xpu_smi -m -d /dev/xpu0": 1, "xpu_smi -m -d /dev/xpu1": 1}
    with pytest.raises(VendorError, match="/dev/xpu0"):
        await kunlun.discover(tools.node(tmp_path, texts))


@pytest.mark.parametrize(
    ("vendor", "product", "expected"),
    [
        ("19e5", "d802", "huawei"), ("19e5", "1710", ""), ("19e5", "1711", ""), ("cabc", "", "cambricon"),
        ("1d22", "3684", "kunlun"), ("9999", "1000", "metax"), ("1e3e", "0001", "iluvatar"), ("10de", "2330", ""),
    ],
)  # fmt: skip
def test_the_vendor_of_a_pci_function(vendor: str, product: str, expected: str) -> None:
    function = PciFunction("0000:01:00.0", vendor, product)
    assert [candidate.name for candidate in VENDORS if candidate.has_some([function])] == (
        [expected] if expected else []
    )


def test_vendors_are_in_the_specified_order() -> None:
    assert [vendor.name for vendor in VENDORS] == ["huawei", "cambricon", "kunlun", "metax", "iluvatar"]
