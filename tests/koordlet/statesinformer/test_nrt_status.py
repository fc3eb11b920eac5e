"""What NodeResourceTopology says, in the numbers of spec 02 §3.8."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api import names
from koordlet.api.annotations.topology import CPUBasicInfo, CPUInfo
from koordlet.api.core import Node, NodeStatus, Pod
from koordlet.api.cpus import format_cpus, parse_cpus
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.meta import ObjectMeta
from koordlet.statesinformer.nrt.kubelet import (
    KubeletConfig,
    KubeletStateError,
    kubelet_config,
    read_cpu_manager_state,
    topology_policy,
)
from koordlet.statesinformer.nrt.pools import PinnedPod, pool_cpus, split
from koordlet.statesinformer.nrt.status import MachineInfo, TopologyError, TopologyStatus, compute
from koordlet.statesinformer.pods.cpuallocation import allocation_of
from koordlet.statesinformer.pods.model import PodMeta
from koordlet.system.cpu.cputopology import Cpu, CpuTopology
from koordlet.system.proc.procfs import NumaMemInfo
from tests.present import present

MEMORY = 263432804 * 1024
BASIC = CPUBasicInfo(cpu_model="XYZ CPU @ 2GHz", turbo_enabled=True, cat_l3_cbm_mask="fffff", vendor_id="GenuineIntel")


def cpu(number: int, core: int, socket: int, node: int) -> Cpu:
    return Cpu(id=number, core=core, socket=socket, node=node, l1=None, l2=None, l3=None)


def machine(
    nodes: int = 2, per_node: int = 4, *, memory: int = MEMORY, huge: dict[int, int] | None = None
) -> MachineInfo:
    """Single-threaded cores, a socket for each NUMA node."""
    cpus = tuple(cpu(i, i, i // per_node, i // per_node) for i in range(nodes * per_node))
    numa = {node: NumaMemInfo(node, memory, memory, 0, huge or {}) for node in range(nodes)}
    return MachineInfo(CpuTopology(cpus, smt=False, turbo=True), BASIC, numa)


TWELVE = MachineInfo(
    CpuTopology(tuple(cpu(i, i % 6, i % 2, i % 2) for i in range(12)), smt=True, turbo=False),
    CPUBasicInfo(),
    {node: NumaMemInfo(node, MEMORY, 0, 0, {}) for node in range(2)},
)
"""Cores (0,6), (2,8), (4,10) on socket 0, the odd ones on socket 1."""


def node(annotations: dict[str, object] | None = None, labels: dict[str, str] | None = None, **status: Any) -> Node:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in (annotations or {}).items()}
    amounts = {member: {k: Quantity(v) for k, v in quantities.items()} for member, quantities in status.items()}
    return Node(
        metadata=ObjectMeta(name="n", uid="node-uid", annotations=texts, labels=labels or {}),
        status=NodeStatus(**amounts),  # type: ignore[arg-type]
    )


def pod(uid: str, cpuset: str | None = None, qos: str = "", *, name: str = "", status: str | None = None) -> PodMeta:
    annotations = {} if cpuset is None else {names.ANNOTATION_RESOURCE_STATUS: json.dumps({"cpuset": cpuset})}
    if status is not None:
        annotations = {names.ANNOTATION_RESOURCE_STATUS: status}
    labels = {names.LABEL_QOS_CLASS: qos} if qos else {}
    meta = ObjectMeta(name=name or uid, namespace="ns", uid=uid, annotations=annotations, labels=labels)
    pod = Pod(metadata=meta)
    allocated = allocation_of(pod)
    return PodMeta(uid, meta.name, "ns", qos or "LS", "", "Burstable", "", (), pod, cpu_allocation=allocated)


PINNED = [pod("x1", "4", "LSR"), pod("x2", "3", "LSE"), pod("x3", "5", "LSR")]
STATIC = KubeletConfig(cpu_manager_policy="static", kube_reserved={"cpu": "2000m"})


def say(
    machine_info: MachineInfo,
    node_object: Node,
    pods: Sequence[PodMeta] = (),
    kubelet: KubeletConfig | None = None,
    state: dict[str, dict[str, str]] | None = None,
) -> TopologyStatus:
    return compute(machine_info, node_object, tuple(pods), kubelet=kubelet, kubelet_state=state or {})


def annotation(status: TopologyStatus, key: str) -> Any:
    return json.loads(status.annotations[key])


def pools(status: TopologyStatus, key: str = names.ANNOTATION_CPU_SHARED_POOLS) -> list[tuple[int, int, str]]:
    return [(p["socket"], p["node"], p.get("cpuset", "")) for p in annotation(status, key)]


# --- what the node keeps

RESERVATIONS = {
    "cpu 2": ({"resources": {"cpu": "2"}}, "0,6"),
    "cpu 2500m": ({"resources": {"cpu": "2500m"}}, "0,2,6"),
    "cpu -2": ({"resources": {"cpu": "-2"}}, None),
    "cpu 0": ({"resources": {"cpu": "0"}}, None),
    "memory only": ({"resources": {"memory": "1Gi"}}, None),
    "a policy": ({"reservedCPUs": "0", "applyPolicy": "ReservedCPUsOnly"}, "0"),
    "CPUs win over an amount": ({"resources": {"cpu": "10"}, "reservedCPUs": "0-1"}, "0-1"),
    "not canonical": ({"reservedCPUs": "3,1,2"}, "1-3"),
    "not a CPU list": ({"reservedCPUs": "-1"}, None),
    "more than there are": ({"resources": {"cpu": "13"}}, None),
    "not JSON": ("{", None),
    "absent": (None, None),
}


def kept(reserved: dict[str, Any] | None) -> dict[str, Any]:
    """The parts of the reservation that are copied as they are."""
    return {key: value for key, value in (reserved or {}).items() if key != "reservedCPUs"}


@pytest.mark.parametrize(("reserved", "expected"), RESERVATIONS.values(), ids=RESERVATIONS)
def test_reservation(reserved: dict[str, Any] | str | None, expected: str | None) -> None:
    status = say(TWELVE, node({} if reserved is None else {names.ANNOTATION_NODE_RESERVATION: reserved}))
    written = annotation(status, names.ANNOTATION_NODE_RESERVATION)
    assert written is not None
    assert written.pop("reservedCPUs", None) == expected
    assert written == ({} if names.ANNOTATION_NODE_RESERVATION in status.problems else kept(reserved))  # type: ignore[arg-type]
    assert parse_cpus(expected or "").isdisjoint(pool_cpus(status.pools.ls) | pool_cpus(status.pools.be))


SYSTEM = {
    "no annotations at all": ({}, None, "0-3", None),
    "others only": ({"a": "b"}, {}, "0-3", None),
    "exclusive by default": ({names.ANNOTATION_SYSTEM_QOS_RESOURCE: {"cpuset": "0-1"}}, {"cpuset": "0-1"}, "2-3", None),
    "shared": (
        {names.ANNOTATION_SYSTEM_QOS_RESOURCE: {"cpuset": "0-1", "cpusetExclusive": False}},
        {"cpuset": "0-1", "cpusetExclusive": False}, "0-3", None,
    ),
    "not JSON": ({names.ANNOTATION_SYSTEM_QOS_RESOURCE: "{"}, None, "", "system-qos-resource"),
    "not a CPU list": ({names.ANNOTATION_SYSTEM_QOS_RESOURCE: {"cpuset": "a"}}, {"cpuset": "a"}, "0-3", None),
}  # fmt: skip


@pytest.mark.parametrize(("annotations", "written", "left", "error"), SYSTEM.values(), ids=SYSTEM)
def test_system_qos(annotations: dict[str, Any], written: dict[str, Any] | None, left: str, error: str | None) -> None:
    if error:
        with pytest.raises(TopologyError, match=error):
            say(machine(1), node(annotations))
        return
    status = say(machine(1), node(annotations))
    assert annotation(status, names.ANNOTATION_SYSTEM_QOS_RESOURCE) == written
    assert pools(status) == pools(status, names.ANNOTATION_BE_CPU_SHARED_POOLS) == [(0, 0, left)]


# --- the kubelet


def test_static_policy_reserves_cpus() -> None:
    policy = annotation(say(machine(), node(), kubelet=STATIC), names.ANNOTATION_CPU_MANAGER_POLICY)
    assert policy == {"policy": "static", "reservedCPUs": "0-1"}


RESERVED = {
    "both amounts": ({"kube_reserved": {"cpu": "500m"}, "system_reserved": {"cpu": "600m"}}, "0-1", None),
    "listed": ({"reserved_system_cpus": "6,7", "kube_reserved": {"cpu": "3"}}, "6-7", None),
    "nothing": ({"kube_reserved": {"memory": "1Gi"}}, None, "not greater than 0"),
    "elsewhere": ({"reserved_system_cpus": "7-9"}, None, "has no CPUs 8-9"),
    "no list": ({"reserved_system_cpus": "x"}, None, "reservedSystemCPUs: 'x'"),
    "no quantity": ({"system_reserved": {"cpu": "lots"}}, None, "systemReserved.cpu: .*lots"),
    "too many": ({"kube_reserved": {"cpu": "9"}}, None, "9 CPUs are requested"),
}


@pytest.mark.parametrize(("fields", "expected", "problem"), RESERVED.values(), ids=RESERVED)
def test_reserved_by_the_kubelet(fields: dict[str, Any], expected: str | None, problem: str | None) -> None:
    """An error is told and leaves the set empty."""
    status = say(machine(), node(), kubelet=KubeletConfig(cpu_manager_policy="static", **fields))
    assert present(annotation(status, names.ANNOTATION_CPU_MANAGER_POLICY)).get("reservedCPUs") == expected
    if problem is None:
        assert not status.problems
    else:
        assert re.search(problem, status.problems["kubelet"])
    assert pools(status) == [(0, 0, "0-3"), (1, 1, "4-7")], "the kubelet's CPUs stay in the pools"


def test_options_are_reported_and_empty_if_the_kubelet_is_not_queried() -> None:
    config = kubelet_config({"cpuManagerPolicy": "none", "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}})
    policy = annotation(say(machine(), node(), kubelet=config), names.ANNOTATION_CPU_MANAGER_POLICY)
    assert policy == {"policy": "none", "options": {"full-pcpus-only": "true"}}
    assert annotation(say(machine(), node()), names.ANNOTATION_CPU_MANAGER_POLICY) == {}


POLICIES = {
    ("single-numa-node", "container"): "SingleNUMANodeContainerLevel",
    ("single-numa-node", "pod"): "SingleNUMANodePodLevel",
    ("restricted", "container"): "RestrictedContainerLevel",
    ("restricted", "pod"): "RestrictedPodLevel",
    ("best-effort", "container"): "BestEffortContainerLevel",
    ("best-effort", "pod"): "BestEffortPodLevel",
    ("none", "container"): "None",
    ("", "pod"): "None",
    ("restricted", "galaxy"): "None",
    ("of-tomorrow", "pod"): "None",
}


@pytest.mark.parametrize(
    ("policy_and_scope", "expected"), POLICIES.items(), ids=lambda value: "-".join(value) or "empty"
)
def test_topology_policy(policy_and_scope: tuple[str, str], expected: str) -> None:
    config = KubeletConfig(topology_manager_policy=policy_and_scope[0], topology_manager_scope=policy_and_scope[1])
    assert topology_policy(config) == expected
    assert topology_policy(None) == "None"


STATE = {"policyName": "static", "defaultCpuSet": "0-2", "entries": {"u": {"main": "3", "side": "4"}}, "checksum": 7}
FILES = {
    "missing": (None, {}),
    "empty": ("", {}),
    "no entries": ('{"policyName":"none","defaultCpuSet":"","checksum":1}', {}),
    "entries": (json.dumps(STATE), {"u": {"main": "3", "side": "4"}}),
    "not JSON": ("{", "cpu_manager_state"),
    "the old form": ('{"entries":{"abc":"0-1"}}', "entries"),
}


@pytest.mark.parametrize(("text", "expected"), FILES.values(), ids=FILES)
def test_cpu_manager_state(tmp_path: Path, text: str | None, expected: dict[str, dict[str, str]] | str) -> None:
    if text is not None:
        (tmp_path / "cpu_manager_state").write_text(text)
    if isinstance(expected, str):
        with pytest.raises(KubeletStateError, match=expected):
            read_cpu_manager_state(tmp_path)
    else:
        assert read_cpu_manager_state(tmp_path) == expected


def test_a_state_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").mkdir()
    with pytest.raises(KubeletStateError, match="directory"):
        read_cpu_manager_state(tmp_path)


def test_pods_pinned_by_the_kubelet() -> None:
    pods = [pod("a"), pod("b", qos="LS"), pod("c", qos="BE"), pod("d", "7", "LSR"), pod("e", qos="LSE")]
    state = {
        "b": {"m": "0"}, "c": {"m": "0"}, "d": {"m": "0"},  # LS, BE, managed by koordlet
        "gone": {"m": "6"}, "a": {"m": "4", "n": "5", "o": "x"}, "e": {"m": "y"},
    }  # fmt: skip
    status = say(machine(), node(), pods, KubeletConfig(cpu_manager_policy="static", reserved_system_cpus="0"), state)
    assert annotation(status, names.ANNOTATION_POD_CPU_ALLOCS) == [
        {"namespace": "ns", "name": "a", "uid": "a", "cpuset": "4-5", "managedByKubelet": True},
        {"uid": "gone", "cpuset": "6", "managedByKubelet": True},
    ]
    assert pools(status) == [(0, 0, "0-3")], "4-6 are the kubelet's, 7 is koordlet's"


def test_the_checkpoint_is_ignored_without_the_static_policy() -> None:
    status = say(machine(), node(), [pod("a")], KubeletConfig(cpu_manager_policy="none"), {"a": {"m": "0"}})
    assert status.annotations[names.ANNOTATION_POD_CPU_ALLOCS] == "null"
    assert pools(status) == [(0, 0, "0-3"), (1, 1, "4-7")]


# --- pools


def test_pinned_pods_leave_the_pools() -> None:
    """8 CPUs: pods on 4, 3 and 5, the one on 3 is LSE."""
    status = say(machine(), node(), PINNED, STATIC)
    assert pools(status) == [(0, 0, "0-2"), (1, 1, "6-7")]
    assert pools(status, names.ANNOTATION_BE_CPU_SHARED_POOLS) == [(0, 0, "0-2"), (1, 1, "4-7")]


RESERVED_NODE = {
    names.ANNOTATION_NODE_RESERVATION: {"reservedCPUs": "1-2"},
    names.ANNOTATION_SYSTEM_QOS_RESOURCE: {"cpuset": "7"},
}


def test_reservation_and_system_qos_leave_the_pools() -> None:
    assert pools(say(machine(), node(RESERVED_NODE), PINNED, STATIC)) == [(0, 0, "0"), (1, 1, "6")]  # type: ignore[arg-type]


def test_cpus_pinned_by_the_kubelet_leave_the_pools() -> None:
    pods = [*PINNED, pod("xxx-y4", name="pod4")]
    status = say(machine(), node(), pods, STATIC, {"xxx-y4": {"demo": "1"}})
    assert pools(status)[0] == (0, 0, "0,2")
    assert status.annotations[names.ANNOTATION_POD_CPU_ALLOCS] == (
        '[{"namespace":"ns","name":"pod4","uid":"xxx-y4","cpuset":"1","managedByKubelet":true}]'
    )


def test_an_empty_pool_is_kept() -> None:
    status = say(machine(), node({names.ANNOTATION_NODE_RESERVATION: {"reservedCPUs": "0-3"}}))
    assert pools(status) == [(0, 0, ""), (1, 1, "4-7")]
    full = say(machine(), node(), [pod("x", "0-3", "LSE")])
    assert pools(full) == [(1, 1, "4-7")], "a NUMA node that is wholly pinned has no pool"


BAD_PODS = {"no JSON": "{", "no CPU list": '{"cpuset":"x-y"}', "wrong type": '{"cpuset":7}'}


@pytest.mark.parametrize("text", BAD_PODS.values(), ids=BAD_PODS)
def test_a_malformed_pod_costs_only_itself(text: str) -> None:
    status = say(machine(), node(), [pod("bad", status=text), *PINNED])
    assert pools(status) == [(0, 0, "0-2"), (1, 1, "6-7")]
    assert status.problems == {}, "the pods informer reports it"


@given(
    st.lists(st.tuples(st.sampled_from(["LSE", "LSR", ""]), st.frozensets(st.integers(0, 7)))),
    st.frozensets(st.integers(0, 7)), st.frozensets(st.integers(0, 7)),
)  # fmt: skip
def test_pools_are_disjoint_from_pinned_and_reserved_cpus(
    given_pods: list[tuple[str, frozenset[int]]], kubelets: frozenset[int], withheld: frozenset[int]
) -> None:
    cpus = [CPUInfo(id=i, core=i // 2, socket=i // 4, node=i // 2) for i in range(8)]
    usable = frozenset(range(8)) - kubelets
    pinned = [PinnedPod(qos, taken) for qos, taken in given_pods]
    parts = split(cpus, usable, pinned, withheld)
    own = frozenset().union(*(pool.cpus for pool in pinned))
    exclusive = frozenset().union(*(pool.cpus for pool in pinned if pool.qos == "LSE"))
    assert pool_cpus(parts.ls) == usable - own - withheld
    assert pool_cpus(parts.be) == usable - exclusive - withheld
    for side in (parts.ls, parts.be):
        assert sum(len(parse_cpus(p.cpuset)) for p in side) == len(pool_cpus(side)), "no CPU is in two pools"
        assert [(p.socket, p.node) for p in side] == sorted((p.socket, p.node) for p in side)
        assert all(parse_cpus(p.cpuset) <= {c.id for c in cpus if c.node == p.node} for p in side)
        assert all(p.cpuset == format_cpus(parse_cpus(p.cpuset)) for p in side)


# --- machine and zones


def test_the_machine() -> None:
    status = say(machine(), node())
    assert annotation(status, names.ANNOTATION_CPU_BASIC_INFO) == {
        "cpuModel": "XYZ CPU @ 2GHz", "turboEnabled": True, "catL3CbmMask": "fffff", "vendorID": "GenuineIntel",
    }  # fmt: skip
    detail = present(annotation(status, names.ANNOTATION_CPU_TOPOLOGY))["detail"]
    assert detail[0] == {"id": 0, "core": 0, "socket": 0, "node": 0}
    assert [field["id"] for field in detail] == list(range(8))


def amounts(status: TopologyStatus, resource: str, member: str) -> list[int]:
    return [
        getattr(zone_resource, member).milli_value()
        for zone in status.zones
        for zone_resource in zone.resources
        if zone_resource.name == resource
    ]


def test_zones() -> None:
    status = say(machine(), node())
    assert [(zone.name, zone.type) for zone in status.zones] == [("node-0", "Node"), ("node-1", "Node")]
    resource_names = [resource.name for resource in status.zones[0].resources]
    assert resource_names == ["cpu", "hugepages-1Gi", "hugepages-2Mi", "memory"]
    for member in ("capacity", "allocatable", "available"):
        assert amounts(status, "memory", member) == [269755191296 * 1000] * 2
        assert amounts(status, "cpu", member) == [4000] * 2
        assert amounts(status, "hugepages-2Mi", member) == [0, 0]


def test_reported_huge_pages_are_subtracted_from_memory() -> None:
    huge = {1 << 20: 2, 2048: 10}
    status = say(machine(huge=huge), node())
    assert amounts(status, "hugepages-1Gi", "capacity") == [2 * 2**30 * 1000] * 2
    assert amounts(status, "hugepages-2Mi", "capacity") == [10 * 2**21 * 1000] * 2
    assert amounts(status, "memory", "capacity") == [(MEMORY - 2 * 2**30 - 10 * 2**21) * 1000] * 2


def test_zones_are_in_the_order_of_numbers() -> None:
    assert [zone.name for zone in say(machine(nodes=12), node()).zones] == [f"node-{i}" for i in range(12)]


ENABLED = {names.LABEL_ENABLE_NUMA_RESERVATION: "true"}
NUMA_RESERVATIONS = {  # milli-units: capacity, allocatable of each zone
    "cpu 8 of which 7 allocatable": (2, 4, "cpu", "8", "7", 4000, 3500),
    "4000m over 3": (3, 4, "cpu", "12", "8", 4000, 4000 - 1334),
    "10Gi over 3": (3, 4, "memory", "100Gi", "90Gi", MEMORY * 1000, MEMORY * 1000 - 3579139413334),
    "everything": (2, 4, "cpu", "100", "0", 4000, 0),
    "nothing": (2, 4, "cpu", "8", "8", 4000, 4000),
    "more allocatable than there is": (2, 4, "cpu", "8", "9", 4000, 4000),
}


@pytest.mark.parametrize("case", NUMA_RESERVATIONS.values(), ids=NUMA_RESERVATIONS)
def test_numa_reservation_keeps_capacity_apart(case: tuple[int | str, ...]) -> None:
    nodes, per_node, resource, capacity, allocatable, whole, left = case
    node_amounts = {"capacity": {resource: capacity}, "allocatable": {resource: allocatable}}
    status = say(machine(nodes, per_node), node(labels=ENABLED, **node_amounts))  # type: ignore[arg-type]
    assert status.numa_reservation == "true"
    assert amounts(status, resource, "capacity") == [whole] * nodes  # type: ignore[arg-type, operator]
    assert amounts(status, resource, "allocatable") == amounts(status, resource, "available") == [left] * nodes  # type: ignore[arg-type, operator]
    off = say(machine(nodes, per_node), node(labels={names.LABEL_ENABLE_NUMA_RESERVATION: "false"}, **node_amounts))  # type: ignore[arg-type]
    assert amounts(off, resource, "allocatable") == [whole] * nodes  # type: ignore[arg-type, operator]
    assert off.numa_reservation == "false"


def test_numa_nodes_that_do_not_match() -> None:
    odd = MachineInfo(machine(2).cpus, BASIC, machine(1).numa)
    with pytest.raises(TopologyError, match=r"with CPUs: \[0, 1\], NUMA nodes with memory: \[0\]"):
        say(odd, node())


def test_malformed_cpus_of_class_system_do_not_skip_the_round() -> None:
    status = say(machine(1), node({names.ANNOTATION_SYSTEM_QOS_RESOURCE: {"cpuset": "a"}}))
    assert "cpuset: 'a'" in status.problems[names.ANNOTATION_SYSTEM_QOS_RESOURCE]
