"""What the Device should say of what collectors found: the specification's examples, and what an API server takes."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api import names
from koordlet.api.annotations.device import gpu_partitions
from koordlet.api.crs.device import GPU, RDMA, DeviceInfo
from koordlet.api.encoding.wire import Time, decode, encode, to_builtins
from koordlet.api.meta import Condition
from koordlet.devices.model import DeviceFault, GpuInfo
from koordlet.metriccache.facts import PeerLink, RdmaInfo, XpuInfo
from koordlet.statesinformer.devices.status import Inventory, describe, healthy_condition, legal_label, legal_reason
from koordlet.system.devices.pci import PciPlace

NOW = Time.parse("2026-01-02T03:04:05Z")
PLACE = PciPlace("0000:c1:00.0", 0, "pci0000:c0")
VENDOR, MODEL, DRIVER = names.LABEL_GPU_VENDOR, names.LABEL_GPU_MODEL, names.LABEL_GPU_DRIVER_VERSION
POLICY = names.LABEL_GPU_PARTITION_POLICY
REASON = re.compile(r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
LABEL = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")


def gpu(minor: int = 0, model: str = "NVIDIA A100-SXM4-80GB", **more: Any) -> GpuInfo:
    return GpuInfo(minor, f"GPU-{minor}", 80 << 30, model, **{"place": PLACE, **more})


def xpu(minor: int = 0, *links: str, kind: str = "HCCS", **more: Any) -> XpuInfo:
    fields: dict[str, Any] = {"vendor": "huawei", "model": "Ascend-910B3", "uuid": f"npu-{minor}", "resources": {}}
    return XpuInfo(minor=minor, links=tuple(PeerLink(link, kind) for link in links), **fields | more)


def only(inventory: Inventory) -> dict[str, Any]:
    """The one device, as it is written."""
    (device,) = describe(inventory, NOW).devices
    written: dict[str, Any] = to_builtins(device)
    return written


def test_a_gpu_of_nvml() -> None:
    assert only(Inventory(gpus=[gpu()])) == {
        "type": "gpu",
        "id": "GPU-0",
        "minor": 0,
        "health": True,
        "resources": {
            "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory": "80Gi",
            "koordinator.sh/gpu-memory-ratio": "100",
        },
        "topology": {"socketID": -1, "nodeID": 0, "pcieID": "pci0000:c0", "busID": "0000:c1:00.0"},
    }


@pytest.mark.parametrize("place", [None, PciPlace("0000:c1:00.0", 0, ""), PciPlace("0000:c1:00.0", -1, "pci0000:c0")])
def test_a_gpu_whose_place_is_not_wholly_known_has_none(place: PciPlace | None) -> None:
    assert "topology" not in only(Inventory(gpus=[gpu(place=place)]))


def test_an_unhealthy_gpu_has_a_reason() -> None:
    faults = {"GPU-0": DeviceFault("Xid79", "Xid error detected on device, error code: 79")}
    info = only(Inventory(gpus=[gpu()], faults=faults))
    assert info["health"] is False
    assert info["conditions"] == [
        {
            "type": "Healthy",
            "status": "False",
            "lastTransitionTime": str(NOW),
            "reason": "Xid79",
            "message": "Xid error detected on device, error code: 79",
        }
    ]


def test_a_card_of_a_file() -> None:
    resources = {"koordinator.sh/gpu-memory": "65536Mi", "huawei.com/npu-core": "20", "huawei.com/npu-cpu": "7"}
    assert only(Inventory(xpus=[xpu(resources=resources, place=PLACE, status_known=True)])) == {
        "type": "gpu",
        "id": "npu-0",
        "minor": 0,
        "health": True,
        "resources": {
            "koordinator.sh/gpu-memory": "64Gi",
            "koordinator.sh/gpu-memory-ratio": "100",
            "huawei.com/npu-core": "20",
            "huawei.com/npu-cpu": "7",
        },
        "topology": {"socketID": -1, "nodeID": 0, "pcieID": "pci0000:c0", "busID": "0000:c1:00.0"},
        "conditions": [
            {
                "type": "Healthy",
                "status": "True",
                "lastTransitionTime": str(NOW),
                "reason": "DeviceHealthy",
                "message": "device is healthy",
            }
        ],
    }


def test_a_card_without_status_is_healthy_and_has_no_condition() -> None:
    info = only(Inventory(xpus=[xpu()]))
    assert info["health"] is True
    assert "conditions" not in info
    assert "topology" not in info


def test_short_resource_names_and_invalid_amounts() -> None:
    resources = {
        "gpu-core": "100",
        "gpu-memory": "1Gi",
        "koordinator.sh/gpu-memory": "2Gi",
        "bad": "lots",
        "less": "-1",
    }
    status = describe(Inventory(xpus=[xpu(resources=resources)]), NOW)
    amounts = status.devices[0].resources
    assert {name: str(amount) for name, amount in amounts.items()} == {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": "2Gi",
        "koordinator.sh/gpu-memory-ratio": "100",
    }
    assert [text.partition(": ")[2].partition(":")[0] for text in status.problems] == [
        "resources[bad]", "resources[less]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (None, ("True", "DeviceHealthy", "device is healthy")),
        (DeviceFault("ChipError", "3 faults"), ("False", "ChipError", "3 faults")),
        (DeviceFault("", ""), ("False", "Unknown", "device is unhealthy")),
        (DeviceFault("chip error", "m"), ("False", "chiperror", "m")),
        (DeviceFault("ECC error", "m"), ("False", "ECCerror", "m")),
        (DeviceFault("0x17", "m"), ("False", "Code0x17", "m")),
        (DeviceFault("17", "m"), ("False", "Code17", "m")),
        (DeviceFault("设备", "m"), ("False", "Unknown", "m")),
        (DeviceFault("A:,", "m" * 40000), ("False", "A", "m" * 32768)),
    ],
)
def test_conditions(fault: DeviceFault | None, expected: tuple[str, str, str]) -> None:
    condition = healthy_condition(fault, NOW)
    assert (condition.status, condition.reason, condition.message) == expected
    assert (condition.type, condition.last_transition_time) == ("Healthy", NOW)


def test_valid_reasons_are_those_of_the_crd() -> None:
    """The pattern that the property below holds reasons to is the one an API server is given."""
    schema = msgspec.json.schema(Condition, schema_hook=lambda _: {"type": "string"})
    assert schema["$defs"]["Condition"]["properties"]["reason"]["pattern"] == REASON.pattern


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=50) | st.text(alphabet="aZ0_,: -", max_size=1500))
def test_any_error_code_becomes_a_legal_reason_and_a_legal_one_stays(code: str) -> None:
    reason = legal_reason(code)
    assert REASON.fullmatch(reason) and len(reason) <= 1024
    assert legal_reason(reason) == reason
    if REASON.fullmatch(code) and len(code) <= 1024:
        assert reason == code


@pytest.mark.parametrize(
    ("code", "reason"),
    [("-8001", "Code8001"), ("79", "Code79"), ("XID_79", "XID_79"), ("_x", "x"), ("--", "Unknown"), ("", "Unknown")],
)
def test_a_number_keeps_its_digits_as_a_reason(code: str, reason: str) -> None:
    assert legal_reason(code) == reason


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=100) | st.text(alphabet="aZ0_. -", max_size=100))
def test_any_model_becomes_a_legal_label(text: str) -> None:
    label = legal_label(text) or ""
    assert LABEL.fullmatch(label) and len(label) <= 63
    if LABEL.fullmatch(text) and len(text) <= 63:
        assert label == text


# --- labels


@pytest.mark.parametrize(
    ("models", "driver", "expected"),
    [
        (["NVIDIA A100-SXM4-80GB"], "550.54.15", ("A100-SXM4-80GB", "550.54.15")),
        (["NVIDIA A100 SXM4 80GB"] * 2, "550.54.15", ("A100-SXM4-80GB", "550.54.15")),
        (["GeForce RTX 2080 Ti"], "", ("GeForce-RTX-2080-Ti", None)),
        (["NVIDIA A100", "NVIDIA H100"], "550.54.15", (None, None)),
        (["NVIDIA A100", ""], "550.54.15", (None, None)),
        ([""], "550.54.15", (None, None)),
    ],
)
def test_labels_of_nvml(models: list[str], driver: str, expected: tuple[str | None, str | None]) -> None:
    gpus = [gpu(minor, model) for minor, model in enumerate(models)]
    status = describe(Inventory(gpus=gpus, driver=driver), NOW)
    assert status.labels == {VENDOR: "nvidia", MODEL: expected[0], DRIVER: expected[1]}
    assert (status.partitions, status.partitioned) == (None, False)


@pytest.mark.parametrize(
    ("first", "policy"),
    [
        (xpu(0), None),
        (xpu(0, "1,2,3"), "Prefer"),
        (xpu(0, "1,2,3", must_honor_partition=True), "Honor"),
        (xpu(0, must_honor_partition=True), None),
    ],
)
def test_labels_of_files_are_the_first_devices(first: XpuInfo, policy: str | None) -> None:
    status = describe(Inventory(xpus=[first, xpu(1, "0", vendor="other", model="other")]), NOW)
    assert status.labels == {VENDOR: "huawei", MODEL: "Ascend-910B3", DRIVER: None, POLICY: policy}


def test_a_model_with_a_space_becomes_a_valid_label() -> None:
    status = describe(Inventory(xpus=[xpu(vendor="", model="P800 (OAM)")]), NOW)
    assert (status.labels[VENDOR], status.labels[MODEL]) == (None, "P800--OAM")


# --- partitions

PARTITIONS = {
    "the specification's": (
        [xpu(0, "1,2,3,g"), xpu(1, "0,1,2,3"), xpu(4, "5,6,7,7,g")],
        '{"4":[{"minors":[0,1,2,3],"gpuLinkType":"HCCS","allocationScore":1},'
        '{"minors":[4,5,6,7],"gpuLinkType":"HCCS","allocationScore":1}]}',
    ),
    "by size": (
        [xpu(0, "1", "1,2,3")],
        '{"2":[{"minors":[0,1],"gpuLinkType":"HCCS","allocationScore":1}],'
        '"4":[{"minors":[0,1,2,3],"gpuLinkType":"HCCS","allocationScore":1}]}',
    ),
    "spaces": ([xpu(0, " 1 , 2")], '{"3":[{"minors":[0,1,2],"gpuLinkType":"HCCS","allocationScore":1}]}'),
    "no links": ([xpu(0)], None),
    "no peers": ([xpu(0, "")], None),
    "no type": ([xpu(0, "1", kind="")], None),
}


@pytest.mark.parametrize(("xpus", "text"), PARTITIONS.values(), ids=PARTITIONS)
def test_partitions(xpus: list[XpuInfo], text: str | None) -> None:
    status = describe(Inventory(xpus=xpus), NOW)
    assert status.partitions == text
    assert status.partitioned
    if text is not None:
        assert gpu_partitions({names.ANNOTATION_GPU_PARTITIONS: text})


# --- RDMA

VFS = ("0000:1f:00.3", "0000:1f:00.2")


@pytest.mark.parametrize(
    ("enabled", "vfs", "groups"),
    [
        (True, VFS, [{"vfs": [{"minor": -1, "busID": "0000:1f:00.2"}, {"minor": -1, "busID": "0000:1f:00.3"}]}]),
        (False, VFS, None),
        (True, (), None),
    ],
)
def test_an_rdma_nic(enabled: bool, vfs: tuple[str, ...], groups: Any) -> None:
    place = PciPlace("0000:1f:00.0", 1, "pci0000:1e")
    info = only(Inventory(rdma=[RdmaInfo(place, 0, False, enabled, vfs)]))
    assert info.pop("vfGroups", None) == groups
    assert info == {
        "type": "rdma",
        "id": "0000:1f:00.0",
        "minor": 0,
        "health": False,
        "resources": {"koordinator.sh/rdma": "100"},
        "topology": {"socketID": -1, "nodeID": 1, "pcieID": "pci0000:1e", "busID": "0000:1f:00.0"},
    }


# --- together


def test_devices_of_files_come_before_nvmls_and_all_are_in_order() -> None:
    nic = RdmaInfo(PciPlace("0000:1f:00.0"), 0, True)
    both = describe(Inventory(xpus=[xpu(10), xpu(9)], gpus=[gpu()], rdma=[nic]), NOW)
    assert [(device.type, device.minor, device.id) for device in both.devices] == [
        ("gpu", 9, "npu-9"), ("gpu", 10, "npu-10"), ("rdma", 0, "0000:1f:00.0"),
    ]  # fmt: skip


KNOWN = {
    "nothing": (Inventory(), {GPU, RDMA}, ()),
    "no XPUs yet": (Inventory(xpus=None, gpus=[gpu()]), {RDMA}, ("accelerators",)),
    "no GPUs yet": (Inventory(gpus=None), {RDMA}, ("GPUs",)),
    "files do without NVML": (Inventory(xpus=[xpu()], gpus=None), {GPU, RDMA}, ()),
    "no NICs yet": (Inventory(rdma=None), {GPU}, ("RDMA NICs",)),
}


@pytest.mark.parametrize(("inventory", "types", "unknown"), KNOWN.values(), ids=KNOWN)
def test_unknown_kinds_are_not_reported(inventory: Inventory, types: set[str], unknown: tuple[str, ...]) -> None:
    status = describe(inventory, NOW)
    assert (set(status.types), status.unknown) == (types, unknown)
    assert all(device.type in types for device in status.devices)
    assert bool(status.labels) == (GPU in types), "labels of GPUs that are not known are left alone"


def test_written_devices_are_decoded_unchanged() -> None:
    card = xpu(0, "1", resources={"gpu-core": "100"}, place=PLACE, status_known=True)
    nic = RdmaInfo(PciPlace("0000:1f:00.0"), 0, True, True, VFS)
    for device in describe(Inventory(xpus=[card], rdma=[nic]), NOW).devices:
        assert decode(encode(device), DeviceInfo) == device
