"""What is read from a NodeResourceTopology (spec 06 §2.2), malformed parts included."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.numa.masks import cpu_list
from control.numa.report import NumaReport, read_report
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding import wire

NODE, KUBELET = "node.koordinator.sh/", "kubelet.koordinator.sh/"
DETAIL = [{"id": cpu, "core": cpu // 2, "socket": 0, "node": cpu // 4} for cpu in range(8)]
TOPOLOGY = {NODE + "cpu-topology": json.dumps({"detail": DETAIL})}


def zone(name: str, kind: str = "Node", **amounts: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind,
        "resources": [{"name": k, "capacity": v, "allocatable": v, "available": v} for k, v in amounts.items()],
    }


def report(annotations: dict[str, str], *zones: dict[str, Any], policies: tuple[str, ...] = ()) -> NumaReport:
    return read_report(
        wire.convert(
            {
                "metadata": {"name": "n", "annotations": annotations},
                "topologyPolicies": list(policies),
                "zones": list(zones),
            },
            NodeResourceTopology,
        )
    )


def test_layout_and_zones() -> None:
    read = report(
        {**TOPOLOGY, NODE + "reservation": '{"reservedCPUs": "0,5"}'},
        zone("node-1", cpu="4", memory="8Gi"),
        zone("node-0", cpu="3500m", memory="7Gi"),
        zone("socket-0", cpu="8"),
        zone("node-2", kind="Socket", cpu="8"),
    )
    assert [(zone.id, zone.total) for zone in read.zones] == [
        (0, {"cpu": 2500, "memory": 7 << 30}),
        (1, {"cpu": 3000, "memory": 8 << 30}),
    ]
    assert (len(read.layout.cores), read.layout.cpus_per_core, read.layout.cpus_per_node) == (4, 2, 4)
    assert read.errors == ()


def test_reserved_cpus_come_from_four_places() -> None:
    pods = [
        {"uid": "a", "cpuset": "1", "managedByKubelet": True},
        {"uid": "b", "cpuset": "2"},
        {"cpuset": "3", "managedByKubelet": True},
    ]
    annotations = {
        **TOPOLOGY,
        NODE + "pod-cpu-allocs": json.dumps(pods),
        KUBELET + "cpu-manager-policy": '{"policy": "static", "reservedCPUs": "4"}',
        NODE + "reservation": '{"reservedCPUs": "5,99"}',
        NODE + "system-qos-resource": '{"cpuset": "6"}',
    }
    assert cpu_list(report(annotations).reserved) == "1,4-6"
    annotations[NODE + "system-qos-resource"] = '{"cpuset": "6", "cpusetExclusive": false}'
    assert cpu_list(report(annotations).reserved) == "1,4-5"


@pytest.mark.parametrize(
    ("policies", "policy"),
    [
        ((), ""),
        (("None",), ""),
        (("SingleNUMANodeContainerLevel",), ""),
        (("BestEffort",), "BestEffort"),
        (("Unknown", "Restricted", "BestEffort"), "Restricted"),
        (("SingleNUMANodePodLevel",), "SingleNUMANode"),
    ],
)
def test_the_first_known_policy_counts(policies: tuple[str, ...], policy: str) -> None:
    assert report({}, policies=policies).policy == policy


@pytest.mark.parametrize(
    ("key", "text", "error"),
    [
        (NODE + "cpu-topology", "{", NODE + "cpu-topology"),
        (NODE + "cpu-topology", '{"detail": [{"id": 9000}]}', "CPU 9000 is not from 0 to 8191"),
        (NODE + "pod-cpu-allocs", "[1]", NODE + "pod-cpu-allocs"),
        (NODE + "pod-cpu-allocs", '[{"uid": "a", "cpuset": "x", "managedByKubelet": true}]', "'x' is not a CPU list"),
        (NODE + "reservation", '{"reservedCPUs": "3-1"}', "range 3-1"),
        (NODE + "system-qos-resource", "[]", NODE + "system-qos-resource"),
        (NODE + "resource-amplification-ratio", '{"cpu": "x"}', NODE + "resource-amplification-ratio"),
        (KUBELET + "cpu-manager-policy", "7", KUBELET + "cpu-manager-policy"),
    ],
)
def test_a_malformed_part_is_named_and_the_others_are_used(key: str, text: str, error: str) -> None:
    read = report({**TOPOLOGY, key: text}, zone("node-0", cpu="4"))
    assert len(read.errors) == 1
    assert error in read.errors[0]
    assert len(read.zones) == 1
    assert read.layout.valid == (key != NODE + "cpu-topology")


@pytest.mark.parametrize(
    "zones",
    [
        [zone(f"node-{number}") for number in range(9)],
        [zone("node-1024")],
        [zone("node-0"), zone("node-0")],
        [zone("node-0", **{f"r{number}": "1" for number in range(33)})],
    ],
    ids=["too many", "number", "repeated", "resources"],
)
def test_zones_out_of_bounds_are_refused_together(zones: list[dict[str, Any]]) -> None:
    read = report(TOPOLOGY, *zones)
    assert read.zones == ()
    assert read.errors[0].startswith("zones: ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9000) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("detail", "id", "cpuset")), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted([NODE + "cpu-topology", NODE + "pod-cpu-allocs"])), JSON.map(json.dumps)))
def test_no_annotation_breaks_the_reader(annotations: dict[str, str]) -> None:
    assert report(annotations, zone("node-0", cpu="4")).zones[0].total == {"cpu": 4000}  # nothing is reserved on it
