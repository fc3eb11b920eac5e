"""When the Device is written, and exactly what: a second round writes nothing, and what others wrote survives."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.crs.device import GPU, RDMA, Device, DeviceInfo, DeviceSpec
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Time, convert, encode
from koordlet.api.meta import Condition, ObjectMeta
from koordlet.devices.model import DeviceFault, GpuInfo
from koordlet.metriccache.facts import PeerLink, RdmaInfo, XpuInfo
from koordlet.statesinformer.devices.patch import new_object, patch_for
from koordlet.statesinformer.devices.status import Inventory, NodeDevices, describe
from koordlet.system.devices.pci import PciPlace

THEN, NOW = Time.parse("2026-01-02T03:04:05Z"), Time.parse("2026-01-02T04:00:00Z")
NODE = Node(metadata=ObjectMeta(name="n", uid="node-uid"))
NIC = RdmaInfo(PciPlace("0000:1f:00.0", 0, "pci0000:1e"), 0, True)
POLICY, PARTITIONS = names.LABEL_GPU_PARTITION_POLICY, names.ANNOTATION_GPU_PARTITIONS


def xpu(minor: int, fault: DeviceFault | None = None, *, vendor: str = "huawei", peers: str = "1") -> XpuInfo:
    return XpuInfo(
        vendor=vendor,
        model="m",
        uuid=f"u{minor}",
        minor=minor,
        resources={"gpu-core": "100", "gpu-memory": "1Gi"},
        links=(PeerLink(peers, "HCCS"),) if peers else (),
        fault=fault,
        status_known=True,
    )


def gpu(minor: int) -> GpuInfo:
    return GpuInfo(minor, f"u{minor}", 1 << 30, "NVIDIA M", PciPlace("0000:01:00.0", 0, "pci0000:00"))


def merge(target: Any, patch: Any) -> Any:
    """RFC 7396, the slow and plain way."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def written(stored: Device, status: NodeDevices) -> Device:
    """What a server has after the patch."""
    patch = patch_for(stored, status)
    patched: Device = convert(merge(json.loads(encode(stored)), json.loads(encode(patch))), Device)
    return patched


def stored(inventory: Inventory, at: Time = THEN) -> Device:
    created = new_object(NODE, describe(inventory, at))
    assert created is not None
    return msgspec.structs.replace(created, metadata=msgspec.structs.replace(created.metadata, resource_version="7"))


def test_the_object_belongs_to_the_node() -> None:
    document = stored(Inventory(xpus=[xpu(0)]))
    (owner,) = document.metadata.owner_references
    assert (owner.api_version, owner.kind, owner.name, owner.uid, owner.controller, owner.block_owner_deletion) == (
        "v1", "Node", "n", "node-uid", True, True,
    )  # fmt: skip
    assert document.metadata.labels == {
        names.LABEL_GPU_VENDOR: "huawei", names.LABEL_GPU_MODEL: "m", POLICY: "Prefer",
    }  # fmt: skip
    assert set(document.metadata.annotations) == {PARTITIONS}


def test_no_device_no_object() -> None:
    assert new_object(NODE, describe(Inventory(), NOW)) is None
    assert new_object(NODE, describe(Inventory(xpus=None, rdma=None), NOW)) is None


def test_a_newer_condition_time_alone_causes_no_write() -> None:
    inventory = Inventory(xpus=[xpu(0), xpu(1, DeviceFault("chip error", "sick"))], rdma=[NIC])
    assert patch_for(stored(inventory), describe(inventory, NOW)) == {}


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    before = stored(Inventory(xpus=[xpu(0), xpu(1), xpu(2, DeviceFault("A", "old"))]))
    after = describe(
        Inventory(xpus=[xpu(0), xpu(1, DeviceFault("ECC error", "sick")), xpu(2, DeviceFault("B", "new"))]), NOW
    )
    now = written(before, after)
    conditions = [
        (condition.status, condition.reason, condition.last_transition_time)
        for d in now.spec.devices
        for condition in d.conditions
    ]
    assert conditions == [("True", "DeviceHealthy", THEN), ("False", "ECCerror", NOW), ("False", "B", THEN)]
    assert [device.health for device in now.spec.devices] == [True, False, False]


def test_a_device_with_another_id_gets_a_new_transition_time() -> None:
    before = stored(Inventory(xpus=[xpu(0)]))
    other = msgspec.structs.replace(before.spec.devices[0], id="other")
    now = written(msgspec.structs.replace(before, spec=msgspec.structs.replace(before.spec, devices=[other])),
                  describe(Inventory(xpus=[xpu(0)]), NOW))  # fmt: skip
    assert [info.conditions[0].last_transition_time for info in now.spec.devices] == [NOW]


def _reordered(device: Device) -> None:
    device.spec.devices.reverse()


def _again_in_milli(device: Device) -> None:
    device.spec.devices[0].resources[names.RESOURCE_GPU_CORE] = Quantity("100000m")


SAME: dict[str, Callable[[Device], object]] = {
    "another label": lambda device: device.metadata.labels.update({"whose": "not ours"}),
    "another annotation": lambda device: device.metadata.annotations.update({"whose": "not ours"}),
    "devices in another order": _reordered,
    "an amount in another form": _again_in_milli,
    "a device of a type that we do not know": lambda device: device.spec.devices.append(
        DeviceInfo(type="fpga", id="f")
    ),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_differences_that_cause_no_write(change: Callable[[Device], object]) -> None:
    inventory = Inventory(xpus=[xpu(0), xpu(1)], rdma=[NIC])
    before = stored(inventory)
    change(before)
    assert patch_for(before, describe(inventory, NOW)) == {}


DIFFERENT: dict[str, tuple[Callable[[Device], object], dict[str, Any]]] = {
    "a label": (
        lambda device: device.metadata.labels.update({names.LABEL_GPU_MODEL: "other"}),
        {"metadata": {"labels": {names.LABEL_GPU_MODEL: "m"}}},
    ),
    "a label too many": (
        lambda device: device.metadata.labels.update({names.LABEL_GPU_DRIVER_VERSION: "1"}),
        {"metadata": {"labels": {names.LABEL_GPU_DRIVER_VERSION: None}}},
    ),
    "partitions": (lambda device: device.metadata.annotations.pop(PARTITIONS), {"metadata": {"annotations": {}}}),
    "health": (lambda device: setattr(device.spec.devices[0], "health", False), {"spec": {}}),
    "a device too many": (lambda device: device.spec.devices.append(DeviceInfo(type="gpu", id="gone")), {"spec": {}}),
    "a condition too many": (
        lambda device: device.spec.devices[0].conditions.append(
            Condition(type="A", status="True", last_transition_time=THEN, reason="R", message="")
        ),
        {"spec": {}},
    ),
}


@pytest.mark.parametrize(("change", "parts"), DIFFERENT.values(), ids=DIFFERENT)
def test_differences_that_are_written(change: Callable[[Device], object], parts: dict[str, Any]) -> None:
    inventory = Inventory(xpus=[xpu(0), xpu(1)])
    right = stored(inventory)
    before = copy.deepcopy(right)
    change(before)
    patch = patch_for(before, describe(inventory, NOW))
    assert patch["metadata"].pop("resourceVersion") == "7"
    assert {key for key in patch if patch[key]} == set(parts)
    assert patch["metadata"].keys() == parts.get("metadata", {}).keys()
    if "labels" in patch["metadata"]:
        assert patch["metadata"] == parts["metadata"], "only what differs"
    assert written(before, describe(inventory, NOW)) == right


def test_only_the_labels_of_removed_accelerators_are_removed() -> None:
    before = stored(Inventory(xpus=[xpu(0)], rdma=[NIC]))
    before.metadata.labels["whose"] = before.metadata.annotations["whose"] = "not ours"
    now = written(before, describe(Inventory(rdma=[NIC]), NOW))
    assert [info.type for info in now.spec.devices] == ["rdma"]
    assert (now.metadata.labels, now.metadata.annotations) == ({"whose": "not ours"}, {"whose": "not ours"})
    empty = written(now, describe(Inventory(), NOW))
    assert empty.spec.devices == [], "an object that is there is kept up to date"


def test_partitions_of_nvidia_gpus_belong_to_other_writers() -> None:
    before = stored(Inventory(gpus=[gpu(0)]))
    before.metadata.labels[POLICY], before.metadata.annotations[PARTITIONS] = "Honor", '{"8":[]}'
    assert patch_for(before, describe(Inventory(gpus=[gpu(0)]), NOW)) == {}
    assert patch_for(before, describe(Inventory(), NOW))["metadata"]["labels"] == {
        names.LABEL_GPU_VENDOR: None, names.LABEL_GPU_MODEL: None,
    }  # fmt: skip


def test_partitions_of_files_are_removed_when_nvml_reports_the_gpus() -> None:
    now = written(stored(Inventory(xpus=[xpu(0)])), describe(Inventory(gpus=[gpu(0)]), NOW))
    assert now.metadata.labels == {names.LABEL_GPU_VENDOR: "nvidia", names.LABEL_GPU_MODEL: "M"}
    assert now.metadata.annotations == {}


def test_entries_of_unknown_types_stay_as_reported() -> None:
    before = stored(Inventory(xpus=[xpu(0)], rdma=[NIC]))
    assert patch_for(before, describe(Inventory(xpus=None, rdma=[NIC]), NOW)) == {}
    assert patch_for(before, describe(Inventory(xpus=[xpu(0)], rdma=None), NOW)) == {}
    now = written(before, describe(Inventory(xpus=None, rdma=()), NOW))
    assert [info.id for info in now.spec.devices] == ["u0"]
    assert now.metadata == before.metadata


# --- laws

faults = st.none() | st.builds(DeviceFault, st.text(max_size=5), st.text(max_size=5))
minors = st.lists(st.integers(0, 9), unique=True, max_size=4)
xpu_lists = minors.flatmap(
    lambda numbers: st.tuples(
        *(st.builds(xpu, st.just(number), faults, peers=st.sampled_from(["", "1,2", "g", "0"])) for number in numbers)
    )
)
gpu_lists = minors.map(lambda numbers: [gpu(number) for number in numbers])
nic_lists = st.lists(
    st.builds(RdmaInfo, st.just(NIC.place), st.just(0), st.booleans(), st.booleans(), st.just(("0000:1f:00.1",))),
    max_size=1,
)
inventories = st.builds(
    Inventory,
    xpus=st.none() | xpu_lists,
    gpus=st.none() | gpu_lists,
    rdma=st.none() | nic_lists,
    faults=st.dictionaries(st.sampled_from(["u0", "u1"]), st.builds(DeviceFault, st.text(max_size=3), st.just("m"))),
)


@given(inventories, inventories)
def test_any_change_is_written_once_and_keeps_foreign_fields(first: Inventory, second: Inventory) -> None:
    fpga = DeviceInfo(type="fpga", id="f", minor=3)
    spec = describe(first, THEN)
    before = Device(metadata=ObjectMeta(name="n", labels={"a": "b"}, annotations={"c": "d"}, resource_version="7"))
    before = written(msgspec.structs.replace(before, spec=DeviceSpec(devices=[fpga])), spec)
    status = describe(second, NOW)
    now = written(before, status)
    later = describe(second, Time.parse("2026-01-02T05:00:00Z"))
    assert patch_for(now, later) == {}, "the second round writes nothing"
    assert (now.metadata.labels["a"], now.metadata.annotations["c"]) == ("b", "d")
    assert [info for info in now.spec.devices if info.type == "fpga"] == [fpga]
    for kind in (GPU, RDMA):
        expected = status if kind in status.types else spec
        assert [timeless(info) for info in now.spec.devices if info.type == kind] == [
            timeless(info) for info in expected.devices if info.type == kind
        ]


def timeless(device: DeviceInfo) -> DeviceInfo:
    """Without when its conditions came to be."""
    conditions = [msgspec.structs.replace(condition, last_transition_time=THEN) for condition in device.conditions]
    return msgspec.structs.replace(device, conditions=conditions)
