"""What vendors' device plugins read of a pod (spec 06 §3.10)."""

from __future__ import annotations

import pytest

from control.devices.handoff import annotations_for, labels_for, refused_by
from control.devices.room import DeviceHolding, HeldDevice
from koordlet.api import names
from tests.control.devices.builddevices import inventory

TWO: DeviceHolding = {"gpu": (HeldDevice(0, {}), HeldDevice(1, {}))}
PART: DeviceHolding = {"gpu": (HeldDevice(3, {}, (), "vir04"),)}
MLU: DeviceHolding = {"gpu": (HeldDevice(2, {names.RESOURCE_GPU_CORE: 30, names.RESOURCE_GPU_MEMORY: 3 << 30}),)}
NIC: DeviceHolding = {"rdma": (HeldDevice(1, {}),)}
BIND, MINORS, TIME = names.ANNOTATION_BIND_TIMESTAMP, names.ANNOTATION_GPU_MINORS, names.ANNOTATION_PREDICATE_TIME
ANY = {BIND: "7"}


@pytest.mark.parametrize(
    ("holding", "vendor", "model", "expected"),
    [
        (NIC, "nvidia", "", ANY),
        (TWO, "nvidia", "", {**ANY, MINORS: "0,1"}),
        (TWO, "huawei", "Ascend-910B", {**ANY, MINORS: "0,1", TIME: "7", "huawei.com/npu-core": "0,1"}),
        (PART, "huawei", "Ascend-910B", {**ANY, MINORS: "3", TIME: "7", "huawei.com/npu-core": "3-vir04"}),
        (
            TWO,
            "huawei",
            "Ascend-310P3-300I-DUO",
            {**ANY, MINORS: "0,1", TIME: "7", "huawei.com/Ascend310P": "Ascend310P-0,Ascend310P-1"},
        ),
        (
            MLU,
            "cambricon",
            "",
            {**ANY, MINORS: "2", "CAMBRICON_DSMLU_ASSIGHED": "false", "CAMBRICON_DSMLU_PROFILE": "2_30_12"},
        ),
        (
            MLU,
            "metax",
            "",
            {
                **ANY,
                MINORS: "2",
                "metax-tech.com/gpu-devices-allocated": '[[{"uuid":"GPU-2","compute":30,"vRam":3072}]]',
            },
        ),
    ],
)
def test_annotations(holding: DeviceHolding, vendor: str, model: str, expected: dict[str, str]) -> None:
    labels = {names.LABEL_GPU_VENDOR: vendor, names.LABEL_GPU_MODEL: model}
    assert annotations_for(holding, inventory(labels=labels), 7) == expected


def test_the_label_of_hami() -> None:
    isolated = {names.LABEL_GPU_ISOLATION_PROVIDER: "HAMi-core"}
    assert labels_for(TWO, isolated, "n1") == {"hami.io/vgpu-node": "n1"}
    assert labels_for(TWO, {}, "n1") == labels_for(NIC, isolated, "n1") == {}


def shares(count: int, core: int, memory: int) -> DeviceHolding:
    amounts = {names.RESOURCE_GPU_CORE: core, names.RESOURCE_GPU_MEMORY: memory}
    return {"gpu": tuple(HeldDevice(minor, amounts) for minor in range(count))}


@pytest.mark.parametrize(
    ("vendor", "holding", "reason"),
    [
        ("nvidia", shares(2, 0, 0), ""),
        ("cambricon", NIC, ""),
        ("cambricon", shares(1, 1, 256 << 20), ""),
        ("cambricon", shares(2, 1, 256 << 20), "the device plugin of cambricon attaches one device to a pod, not 2"),
        ("cambricon", shares(1, 0, 256 << 20), "the device plugin of cambricon needs koordinator.sh/gpu-core"),
        (
            "cambricon",
            shares(1, 1, (256 << 20) - 1),
            "the device plugin of cambricon needs 256Mi of koordinator.sh/gpu-memory",
        ),
        ("metax", shares(2, 1, 1 << 20), ""),
        ("metax", shares(2, 0, 1 << 20), "the device plugin of metax needs koordinator.sh/gpu-core"),
        ("metax", shares(1, 1, 1000), "the device plugin of metax needs 1Mi of koordinator.sh/gpu-memory"),
    ],
)
def test_what_a_device_plugin_cannot_attach(vendor: str, holding: DeviceHolding, reason: str) -> None:
    assert refused_by(vendor, holding) == reason
