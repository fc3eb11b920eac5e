"""Which devices are chosen: topology, partitions, joint allocation, virtual functions, hints (spec 06 §3.5, §3.6)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from control.devices.allocate import allocate
from control.devices.room import DeviceState, DeviceTraits, TypeUse
from control.devices.search import DevicesLacking
from koordlet.api import names
from tests.control.devices.builddevices import FULL, HALF, LEAST, MOST, inventory, minors, need, state
from tests.control.scheduler.plugins.deviceworld import gpu, machine, rdma

RDMA = names.RESOURCE_RDMA
H100 = DeviceTraits("nvidia", "H100", "", True)
FAST = {"vfSelector": {"matchLabels": {"type": "fast"}}}


def reason(of: DeviceState, requests: Mapping[str, str], **more: Any) -> tuple[str, bool]:
    with pytest.raises(DevicesLacking) as lacking:
        allocate(of, need(requests, **more), LEAST)
    return str(lacking.value), lacking.value.final


@pytest.mark.parametrize(
    ("used", "requests", "scope", "expected"),
    [
        ({}, "3", "", [0, 1, 2]),
        ({5: FULL}, "1", "", [4]),
        ({5: FULL}, "2", "PCIe", [6, 7]),
        ({0: FULL}, "2", "", [2, 3]),
        ({}, "1", "Device", [0]),
        ({}, "8", "Node", list(range(8))),
    ],
)
def test_gpus_are_packed_by_topology(used: Any, requests: str, scope: str, expected: list[int]) -> None:
    hint = {"gpu": {"requiredTopologyScope": scope}} if scope else {}
    assert minors(allocate(state(used), need({"nvidia.com/gpu": requests}, hint=hint), LEAST)) == expected


def test_a_half_gpu_joins_the_fullest_device() -> None:
    half = need({"koordinator.sh/gpu": "50"})
    assert minors(allocate(state({5: FULL, 7: HALF}), half, MOST)) == [7]
    assert minors(allocate(state({5: FULL, 7: HALF}), half, LEAST)) == [4]


@pytest.mark.parametrize(
    ("used", "requests", "hint", "expected"),
    [
        ({0: FULL, 5: FULL}, {"nvidia.com/gpu": "4"}, {"gpu": {"requiredTopologyScope": "NUMANode"}},
         ("Insufficient Topology Scoped GPU Devices", False)),
        ({}, {"nvidia.com/gpu": "2"}, {"gpu": {"requiredTopologyScope": "Device"}},
         ("Insufficient Topology Scoped GPU Devices", False)),
        ({}, {"nvidia.com/gpu": "9"}, {}, ("Insufficient GPU Devices", False)),
        ({}, {names.RESOURCE_FPGA: "1"}, {}, ("Insufficient fpga devices", True)),
        ({}, {RDMA: "500"}, {}, ("Insufficient rdma devices", False)),
        ({}, {RDMA: "1"}, {"rdma": {"vfSelector": {"matchLabels": {"type": "slow"}}}},
         ("Insufficient rdma devices", False)),
        ({}, {"nvidia.com/gpu": "1"}, {"gpu": {"selector": {"matchLabels": {"a": "b"}}}},
         ("Insufficient GPU Devices", False)),
        ({}, {names.RESOURCE_GPU_SHARED: "2", names.RESOURCE_GPU_MEMORY: "2Gi"},
         {"gpu": {"requiredTopologyScope": "Node"}}, ("node(s) Unsupported Multi-Shared GPU", True)),
    ],
)  # fmt: skip
def test_reasons(used: Any, requests: dict[str, str], hint: Any, expected: tuple[str, bool]) -> None:
    assert reason(state(used), requests, hint=hint) == expected


def test_gpus_without_topology() -> None:
    unknown = state({}, gpu(0), gpu(1, topology=None))
    assert minors(allocate(unknown, need({"nvidia.com/gpu": "2"}), LEAST)) == [0, 1]
    scope = {"gpu": {"requiredTopologyScope": "Node"}}
    assert reason(unknown, {"nvidia.com/gpu": "1"}, hint=scope) == ("node(s) missing GPU Device Topology Tree", True)


def test_functions_of_nics_without_any() -> None:
    assert reason(state({}, rdma(1, functions=0)), {RDMA: "1"}, hint={"rdma": FAST}) == (
        "Insufficient rdma VirtualFunctions",
        True,
    )


# Partitions


@pytest.mark.parametrize(
    ("used", "count", "expected"),
    [({2: FULL, 3: FULL}, "2", [0, 1]), ({4: FULL}, "1", [5]), ({}, "4", [0, 1, 2, 3]), ({1: HALF}, "2", [2, 3])],
)
def test_the_built_in_table(used: Any, count: str, expected: list[int]) -> None:
    assert minors(allocate(state(used, traits=H100), need({"nvidia.com/gpu": count}), LEAST)) == expected


def partitioned(table: Any, policy: str = "Honor") -> DeviceState:
    annotations = {names.ANNOTATION_GPU_PARTITIONS: json.dumps(table)}
    return state({}, annotations=annotations, labels={names.LABEL_GPU_PARTITION_POLICY: policy})


PAIRS = {
    "2": [
        {"minors": [0, 1], "allocationScore": 1, "ringBusBandwidth": "400Gi"},
        {"minors": [2, 5], "allocationScore": 3},
    ]
}


def test_the_partition_with_the_highest_score_is_tried_first() -> None:
    assert minors(allocate(partitioned(PAIRS), need({"nvidia.com/gpu": "2"}), LEAST)) == [2, 5]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [({"ringBusBandwidth": "200Gi"}, [0, 1]), ({"allocatePolicy": "Restricted"}, [2, 5])],
)
def test_a_partition_spec_of_the_pod(spec: Any, expected: list[int]) -> None:
    device_need = need({"nvidia.com/gpu": "2"}, partition=spec)
    assert minors(allocate(partitioned(PAIRS, "Prefer"), device_need, LEAST)) == expected


@pytest.mark.parametrize(
    ("of", "count", "spec", "expected"),
    [
        (partitioned(PAIRS), "3", None, ("node(s) Unsupported number of GPU requests", True)),
        (partitioned(PAIRS), "2", {"allocatePolicy": "Restricted", "ringBusBandwidth": "1"},
         ("Insufficient Partitioned GPU Devices", False)),
        (state({0: HALF, 2: HALF, 4: HALF, 6: HALF}, traits=H100), "2", None,
         ("Insufficient Partitioned GPU Devices", False)),
        (state(), "2", {}, ("node(s) missing GPU Partition Table", True)),
    ],
)  # fmt: skip
def test_honored_partitions_are_final(of: DeviceState, count: str, spec: Any, expected: tuple[str, bool]) -> None:
    more = {} if spec is None else {"partition": spec}
    assert reason(of, {"nvidia.com/gpu": count}, **more) == expected


def test_partitions_that_are_preferred_are_not_final() -> None:
    assert minors(allocate(partitioned(PAIRS, "Prefer"), need({"nvidia.com/gpu": "3"}), LEAST)) == [0, 1, 2]


# Joint allocation


@pytest.mark.parametrize(("count", "gpus", "nics"), [("3", [0, 1, 2], [1, 2]), ("2", [0, 1], [1])])
def test_a_nic_for_each_switch_of_the_gpus(count: str, gpus: list[int], nics: list[int]) -> None:
    device_need = need(
        {"nvidia.com/gpu": count, RDMA: "1"}, joint={"deviceTypes": ["gpu", "rdma"]}, hint={"rdma": FAST}
    )
    holding = allocate(state(), device_need, LEAST)
    assert (minors(holding), minors(holding, "rdma")) == (gpus, nics)
    assert [device.functions for device in holding["rdma"]] == [((-1, f"0000:{10 + nic}:00.1"),) for nic in nics]


def test_the_same_switch_is_a_must_only_if_required() -> None:
    busy = {"rdma": TypeUse({1: {RDMA: 100}})}
    node = DeviceState(inventory(), DeviceTraits(), busy)
    joint = {"deviceTypes": ["gpu", "rdma"]}
    requests = {"nvidia.com/gpu": "2", RDMA: "1"}
    assert minors(allocate(node, need(requests, joint=joint), LEAST), "rdma") == [2]
    same = {**joint, "requiredScope": "SamePCIe"}
    assert reason(node, requests, joint=same) == ("node(s) Device Joint-Allocate rules violation", False)


def test_a_lacking_primary_device() -> None:
    joint = {"deviceTypes": ["gpu", "rdma"]}
    assert reason(state(), {"nvidia.com/gpu": "9", RDMA: "1"}, joint=joint) == (
        "node(s) Insufficient primary device",
        False,
    )


def test_gpus_follow_the_switch_of_a_primary_nic() -> None:
    node = DeviceState(inventory(), DeviceTraits(), {"rdma": TypeUse({1: {RDMA: 100}, 2: {RDMA: 100}})})
    joint = {"deviceTypes": ["rdma", "gpu"], "requiredScope": "SamePCIe"}
    holding = allocate(node, need({"nvidia.com/gpu": "1", RDMA: "1"}, joint=joint), LEAST)
    assert (minors(holding, "rdma"), minors(holding)) == ([3], [4])


# Hints


def test_a_selector_chooses_devices() -> None:
    devices = [*machine()[:8], rdma(1), rdma(2, labels={"port": "a"})]
    hint = {"rdma": {"selector": {"matchLabels": {"port": "a"}}}}
    assert minors(allocate(state({}, *devices), need({RDMA: "1"}, hint=hint), LEAST), "rdma") == [2]


def test_apply_for_all_takes_every_healthy_device() -> None:
    devices = [rdma(1), rdma(2, health=False), rdma(3)]
    hint = {"rdma": {"allocateStrategy": "ApplyForAll"}}
    assert minors(allocate(state({}, *devices), need({RDMA: "10"}, hint=hint), LEAST), "rdma") == [1, 3]
    assert reason(state({}, rdma(1, health=False)), {RDMA: "1"}, hint=hint) == ("Insufficient rdma devices", True)


def test_an_exclusive_switch_has_no_other_users() -> None:
    devices = [rdma(1, pcie="0"), rdma(2, pcie="0"), rdma(3, pcie="1")]
    node = DeviceState(inventory(*devices), DeviceTraits(), {"rdma": TypeUse({1: {RDMA: 1}})})
    hint = {"rdma": {"exclusivePolicy": "PCIeLevel"}}
    assert minors(allocate(node, need({RDMA: "1"}, hint=hint), MOST), "rdma") == [3]


def test_a_shared_gpu_needs_its_isolation_provider() -> None:
    assert reason(state(), {"koordinator.sh/gpu": "50"}, isolation="HAMi-core") == (
        "GPUIsolationProviderHAMICore not found on the node",
        True,
    )
    isolated = state(traits=DeviceTraits(isolation="HAMi-core"))
    assert minors(allocate(isolated, need({"koordinator.sh/gpu": "50"}, isolation="HAMi-core"), LEAST)) == [0]
    assert minors(allocate(state(), need({"nvidia.com/gpu": "1"}, isolation="HAMi-core"), LEAST)) == [0]


def test_numa_nodes_restrict_the_choice() -> None:
    devices = [*machine(), rdma(9, -1), rdma(10, topology=None)]
    near = frozenset({1})
    assert minors(allocate(state({}, *devices), need({"nvidia.com/gpu": "1"}), LEAST, near)) == [4]
    everywhere = need({RDMA: "1"}, hint={"rdma": {"allocateStrategy": "ApplyForAll"}})
    assert minors(allocate(state({}, *devices), everywhere, LEAST, near), "rdma") == [3, 4, 9]


@pytest.mark.parametrize(
    ("free", "requested", "least", "most"), [(100, 50, 50, 50), (50, 30, 20, 80), (0, 0, 0, 100), (200, 0, 100, 0)]
)
def test_scores_of_a_device(free: int, requested: int, least: int, most: int) -> None:
    ratio = names.RESOURCE_GPU_MEMORY_RATIO
    assert LEAST.rate({ratio: requested}, {ratio: 100}, {ratio: free}) == least
    assert MOST.rate({ratio: requested}, {ratio: 100}, {ratio: free}) == most
