"""Requests of devices in every form, and what is refused (spec 06 §3.3)."""

from __future__ import annotations

import json

import pytest

from control.devices.needs import need_of
from control.devices.requests import TypeRequest, completed, type_requests
from koordlet.api import names
from koordlet.api.devicerequest import DeviceRequestError
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError
from tests.control.devices.builddevices import CORE, MEMORY, RATIO, need

NPU, SHARED = names.RESOURCE_HUAWEI_NPU_CORE, names.RESOURCE_GPU_SHARED
RDMA, FPGA = names.RESOURCE_RDMA, names.RESOURCE_FPGA


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ({"nvidia.com/gpu": "2"}, TypeRequest({CORE: 100, RATIO: 100}, 2)),
        ({"amd.com/gpu": "1"}, TypeRequest({CORE: 100, RATIO: 100}, 1)),
        ({"dcu.com/gpu": "8"}, TypeRequest({CORE: 100, RATIO: 100}, 8)),
        ({"koordinator.sh/gpu": "50"}, TypeRequest({CORE: 50, RATIO: 50}, 1, True)),
        ({"koordinator.sh/gpu": "300"}, TypeRequest({CORE: 100, RATIO: 100}, 3)),
        ({CORE: "200", RATIO: "200"}, TypeRequest({CORE: 100, RATIO: 100}, 2)),
        ({CORE: "100", MEMORY: "1024"}, TypeRequest({CORE: 100, MEMORY: 1024}, 1, True)),
        ({MEMORY: "8Gi"}, TypeRequest({MEMORY: 8 << 30}, 1, True)),
        ({RATIO: "100"}, TypeRequest({RATIO: 100}, 1)),
        ({SHARED: "2", CORE: "100", RATIO: "100"}, TypeRequest({CORE: 50, RATIO: 50}, 2, True)),
        ({SHARED: "2", MEMORY: "16Gi"}, TypeRequest({MEMORY: 8 << 30}, 2, True)),
        ({NPU: "16", RATIO: "200"}, TypeRequest({NPU: 8, RATIO: 100}, 2)),
        ({"nvidia.com/gpu": "1", CORE: "0"}, TypeRequest({CORE: 100, RATIO: 100}, 1)),
    ],
)
def test_gpu_requests(requests: dict[str, str], expected: TypeRequest) -> None:
    assert type_requests({name: Quantity(amount) for name, amount in requests.items()}) == {"gpu": expected}


@pytest.mark.parametrize(
    "requests",
    [
        {CORE: "100"},
        {"nvidia.com/gpu": "1", "koordinator.sh/gpu": "100"},
        {"koordinator.sh/gpu": "150"},
        {CORE: "150", RATIO: "150"},
        {CORE: "200", MEMORY: "64Gi"},
        {CORE: "200", RATIO: "100"},
        {SHARED: "2"},
        {SHARED: "2", CORE: "101", RATIO: "100"},
        {SHARED: "1", CORE: "200", RATIO: "100"},
        {SHARED: "4", MEMORY: "3"},
        {RDMA: "150"},
        {FPGA: "101"},
    ],
)
def test_refused_requests_are_named(requests: dict[str, str]) -> None:
    with pytest.raises(DeviceRequestError, match="invalid resource device requests: "):
        type_requests({name: Quantity(amount) for name, amount in requests.items()})


@pytest.mark.parametrize(
    ("amount", "hint", "expected"),
    [
        ("1", {}, TypeRequest({RDMA: 1})),
        ("100", {}, TypeRequest({RDMA: 100})),
        ("300", {}, TypeRequest({RDMA: 100}, 3)),
        ("4", {"allocateStrategy": "RequestsAsCount"}, TypeRequest({RDMA: 1}, 4)),
        ("4", {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"}, TypeRequest({RDMA: 100}, 4)),
        ("200", {"allocateStrategy": "RequestsAsCount"}, TypeRequest({RDMA: 100}, 2)),
        ("1", {"allocateStrategy": "ApplyForAll"}, TypeRequest({RDMA: 1})),
    ],
)
def test_requests_in_percent(amount: str, hint: dict[str, str], expected: TypeRequest) -> None:
    assert need({RDMA: amount}, hint={"rdma": hint}).requests == {"rdma": expected}


@pytest.mark.parametrize(
    ("requested", "total", "expected"),
    [
        ({MEMORY: 8 << 30}, {MEMORY: 83201216 << 10}, {MEMORY: 8 << 30, RATIO: 10}),
        ({RATIO: 50}, {MEMORY: 83201216 << 10}, {RATIO: 50, MEMORY: 42599022592}),
        ({MEMORY: 1}, {MEMORY: 80 << 30}, {MEMORY: 1, RATIO: 1}),
        ({RATIO: 50}, {RATIO: 100}, {RATIO: 50}),
        ({CORE: 10, MEMORY: 5, RATIO: 7}, {MEMORY: 100}, {CORE: 10, MEMORY: 5, RATIO: 7}),
    ],
)
def test_memory_and_ratio_complete_each_other(
    requested: dict[str, int], total: dict[str, int], expected: dict[str, int]
) -> None:
    assert completed(requested, total) == expected


def test_joint_types_are_those_that_the_pod_requests() -> None:
    requests = {"nvidia.com/gpu": "1", RDMA: "1", FPGA: "1"}
    joint = {"deviceTypes": ["npu", "rdma", "gpu", "rdma"], "requiredScope": "SamePCIe"}
    request = need(requests, joint=joint)
    assert (request.joint, request.same_pcie) == (("rdma", "gpu"), True)
    request = need(requests, joint=joint, hint={"rdma": {"allocateStrategy": "ApplyForAll"}})
    assert request.joint == ("gpu",)
    assert need({"nvidia.com/gpu": "1"}, joint=joint).joint == ()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (names.ANNOTATION_DEVICE_ALLOCATE_HINT, {"gpu": {"allocateStrategy": "All"}}, "gpu.allocateStrategy: 'All'"),
        (names.ANNOTATION_DEVICE_ALLOCATE_HINT, {"gpu": {"requiredTopologyScope": "Rack"}}, "requiredTopologyScope"),
        (names.ANNOTATION_DEVICE_ALLOCATE_HINT, {"gpu": {"exclusivePolicy": "x"}}, "gpu.exclusivePolicy: 'x'"),
        (
            names.ANNOTATION_DEVICE_ALLOCATE_HINT,
            {"gpu": {"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}},
            "gpu.selector: ",
        ),
        (names.ANNOTATION_DEVICE_ALLOCATE_HINT, {"gpu": {"vfSelector": {"matchLabels": {"/": ""}}}}, "gpu.vfSelector"),
        (names.ANNOTATION_DEVICE_ALLOCATE_HINT, [], names.ANNOTATION_DEVICE_ALLOCATE_HINT),
        (names.ANNOTATION_DEVICE_JOINT_ALLOCATE, {"requiredScope": "SameRack"}, "requiredScope: 'SameRack'"),
        (names.ANNOTATION_GPU_PARTITION_SPEC, {"allocatePolicy": "Any"}, "allocatePolicy: 'Any'"),
        (names.ANNOTATION_GPU_PARTITION_SPEC, {"ringBusBandwidth": "fast"}, "ringBusBandwidth"),
    ],
)
def test_malformed_annotations_are_named(key: str, value: object, message: str) -> None:
    with pytest.raises(WireError, match="(?s)" + message.replace("[", r"\[")):
        need_of({"nvidia.com/gpu": Quantity("1")}, {key: json.dumps(value)}, {})


def test_annotations_of_pods_without_devices_are_not_read() -> None:
    assert need_of({"cpu": Quantity("1")}, {names.ANNOTATION_DEVICE_ALLOCATE_HINT: "{"}, {}).requests == {}
