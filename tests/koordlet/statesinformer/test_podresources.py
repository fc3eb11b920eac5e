"""What the scheduler allocated, among what the kubelet tells of a pod: the specification's example, what survives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.core import Pod
from koordlet.api.encoding.wire import WireError
from koordlet.api.meta import ObjectMeta
from koordlet.api.podresources import api_pb2
from koordlet.metriccache.facts import GpuInfo, XpuInfo
from koordlet.statesinformer.podresources.merge import Accelerators, add, devices_of, vendor_resource

NONE = Accelerators()
GPUS = Accelerators(gpus=(GpuInfo(0, "GPU-a", 1), GpuInfo(3, "GPU-d", 1)))


def xpu(minor: int, vendor: str, model: str) -> XpuInfo:
    return XpuInfo(vendor, model, f"npu-{minor}", minor, {})


ASCENDS = Accelerators(gpus=GPUS.gpus, xpus=(xpu(0, "huawei", "Ascend-910B3"), xpu(1, "huawei", "Ascend-310P3")))


def pod(allocated: object) -> Pod:
    text = allocated if isinstance(allocated, str) else json.dumps(allocated)
    return Pod(metadata=ObjectMeta(annotations={"scheduling.koordinator.sh/device-allocated": text}))


@pytest.mark.parametrize(
    ("allocated", "accelerators", "expected"),
    [
        pytest.param(
            {
                "gpu": [{"minor": 0, "id": "0"}],
                "rdma": [{"minor": 0, "extension": {"vfs": [{"busID": "0000:01:00.2"}]}}],
            },
            NONE, [("nvidia.com/gpu", ["0"]), ("koordinator.sh/rdma", ["0000:01:00.2"])], id="the specification's",
        ),
        pytest.param(
            {"gpu": [{"minor": 0, "id": "GPU-a"}, {"minor": 3, "id": "GPU-d"}]},
            NONE, [("nvidia.com/gpu", ["GPU-a", "GPU-d"])], id="several of a type are one entry",
        ),
        pytest.param(
            {"rdma": [{"minor": 0, "id": "0000:1f:00.0", "extension": {}}]},
            NONE, [("koordinator.sh/rdma", ["0000:1f:00.0"])], id="an extension without functions: the device",
        ),
        pytest.param(
            {"rdma": [{"minor": 0, "id": "pf", "extension": {"vfs": [{"busID": "a"}, {"busID": "b"}]}}]},
            NONE, [("koordinator.sh/rdma", ["a", "b"])], id="functions instead of their device",
        ),
        pytest.param({"fpga": [{"minor": 0, "id": "x"}]}, NONE, [], id="a type without a resource"),
        pytest.param({"gpu": [{"minor": 3}]}, GPUS, [("nvidia.com/gpu", ["GPU-d"])], id="no id: the UUID"),
        pytest.param({"gpu": [{"minor": 7}]}, GPUS, [], id="no id, and an unknown device"),
        pytest.param({"rdma": [{"minor": 0}]}, GPUS, [], id="a NIC without an id is no GPU"),
        pytest.param(
            {"gpu": [{"minor": 0, "id": "npu-0"}, {"minor": 1}]},
            ASCENDS, [("huawei.com/Ascend910", ["npu-0"]), ("huawei.com/Ascend310P", ["npu-1"])], id="by vendor",
        ),
        pytest.param(
            {"gpu": [{"minor": 5, "id": "five"}]}, ASCENDS, [("huawei.com/Ascend910", ["five"])],
            id="a minor that is not listed is like the first",
        ),
        pytest.param({}, NONE, [], id="nothing allocated"),
    ],
)  # fmt: skip
def test_devices_of_an_allocation(
    allocated: object, accelerators: Accelerators, expected: list[tuple[str, list[str]]]
) -> None:
    assert devices_of(pod(allocated), accelerators) == expected


def test_a_pod_without_the_annotation_and_one_that_can_not_be_read() -> None:
    assert devices_of(Pod(), NONE) == []
    for text in ("{", "[]", '{"gpu": 1}', '{"gpu": [{"minor": "x"}]}'):
        with pytest.raises(WireError, match="device-allocated"):
            devices_of(pod(text), NONE)


@pytest.mark.parametrize(
    ("vendor", "model", "resource"),
    [
        ("huawei", "Ascend-910B3", "huawei.com/Ascend910"),
        ("huawei", "Ascend-910", "huawei.com/Ascend910"),
        ("huawei", "Ascend-310P3-300I-DUO", "huawei.com/Ascend310P"),
        ("huawei", "Ascend-310", "huawei.com/Ascend310"),
        ("huawei", "Kunpeng", "nvidia.com/gpu"),
        ("cambricon", "MLU370", "cambricon.com/mlu"),
        ("kunlun", "R300", "kunlunxin.com/xpu"),
        ("metax", "C500", "metax-tech.com/gpu"),
        ("iluvatar", "BI-V150", "iluvatar.com/gpu"),
        ("nvidia", "H100", "nvidia.com/gpu"),
        ("", "", "nvidia.com/gpu"),
    ],
)
def test_resource_names_of_vendors(vendor: str, model: str, resource: str) -> None:
    assert vendor_resource(vendor, model) == resource


def _whole() -> type[Message]:
    """PodResources as a newer kubelet has it: fields that our own messages do not declare, at all levels."""
    kinds = FieldDescriptorProto
    file = FileDescriptorProto(name="whole.proto", package="whole", syntax="proto3")
    for name, fields in {
        "Devices": [("resource_name", 1, "s", 0), ("device_ids", 2, "s", 1), ("topology", 3, "b", 0)],
        "Container": [
            ("name", 1, "s", 0),
            ("devices", 2, "Devices", 1),
            ("cpu_ids", 3, "i", 1),
            ("dynamic", 5, "b", 1),
        ],
        "Pod": [("name", 1, "s", 0), ("namespace", 2, "s", 0), ("containers", 3, "Container", 1), ("more", 99, "b", 1)],
        "List": [("pod_resources", 1, "Pod", 1), ("later", 7, "b", 1)],
    }.items():
        message = file.message_type.add(name=name)
        for field, number, kind, many in fields:
            added = message.field.add(name=field, number=number)
            added.label = kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL
            scalars = {"s": kinds.TYPE_STRING, "b": kinds.TYPE_BYTES, "i": kinds.TYPE_INT64}
            added.type = scalars.get(kind, kinds.TYPE_MESSAGE)
            if kind not in scalars:
                added.type_name = f".whole.{kind}"
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("whole.List"))


WHOLE: Any = _whole()
words = st.text(alphabet="abcz./-", min_size=1, max_size=8)
devices = st.fixed_dictionaries(
    {"resource_name": words, "device_ids": st.lists(words, max_size=3), "topology": st.binary(max_size=4)}
)
containers = st.fixed_dictionaries(
    {
        "name": words,
        "devices": st.lists(devices, max_size=3),
        "cpu_ids": st.lists(st.integers(0, 1000), max_size=3),
        "dynamic": st.lists(st.binary(max_size=4), max_size=2),
    }
)
pods = st.fixed_dictionaries(
    {
        "name": words,
        "namespace": words,
        "containers": st.lists(containers, max_size=3),
        "more": st.lists(st.binary(max_size=4), max_size=2),
    }
)
answers = st.fixed_dictionaries(
    {"pod_resources": st.lists(pods, max_size=4), "later": st.lists(st.binary(max_size=4), max_size=2)}
)
gains = st.lists(st.tuples(words, st.lists(words, min_size=1, max_size=2)), max_size=3)


@given(answers, st.data())
def test_only_the_first_containers_devices_change(answer: dict[str, Any], data: st.DataObject) -> None:
    before = WHOLE(**answer)
    message = api_pb2.ListPodResourcesResponse.FromString(before.SerializeToString())
    for pod, was in zip(message.pod_resources, answer["pod_resources"], strict=True):
        gained = data.draw(gains)
        assert add(pod, gained) == bool(gained and was["containers"])
        if gained and was["containers"]:
            first = was["containers"][0]
            new = [{"resource_name": name, "device_ids": ids, "topology": b""} for name, ids in gained]
            first["devices"] = sorted([*first["devices"], *new], key=lambda device: device["resource_name"])
    assert WHOLE.FromString(message.SerializeToString()) == WHOLE(**answer)
