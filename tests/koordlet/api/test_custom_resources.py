"""Custom resources on the wire: bytes, fields that are always written, required fields, leniency."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.core import PodTemplateSpec
from koordlet.api.crs import analysis, quota, scheduling, slo, topology
from koordlet.api.crs.config import ClusterColocationProfile, ClusterColocationProfileSpec
from koordlet.api.crs.device import DeviceInfo, DeviceTopology, VirtualFunction
from koordlet.api.crs.explanation import NodeFailedDetail
from koordlet.api.crs.migration import PodMigrationJobStatus, PreemptionOptions, ReservationOptions
from koordlet.api.crs.networktopology import NetworkTopologyDetail, TopologyInfo
from koordlet.api.crs.nodemetric import NodeMetricStatus
from koordlet.api.crs.reservation import Reservation, ReservationSpec
from koordlet.api.encoding import wire
from koordlet.api.encoding.quantity import BINARY_SI, Quantity
from koordlet.api.encoding.wire import Duration, Time
from koordlet.api.meta import DeleteOptions, LabelSelector, Status
from tests.present import present

NODE_METRIC_STATUS = (
    b'{"updateTime":"2026-07-01T08:00:00Z","nodeMetric":{"nodeUsage":{"resources":{"cpu":"12340m",'
    b'"memory":"34567890Ki"}},"aggregatedNodeUsages":[{"usage":{"avg":{"resources":{"cpu":"12100m",'
    b'"memory":"33Gi"}},"p50":{},"p90":{},"p95":{},"p99":{}},"duration":"5m0s"}],"systemUsage":{"resources":'
    b'{"cpu":"800m","memory":"2Gi"}}},"podsMetric":[{"name":"web-0","namespace":"prod","podUsage":{"resources":'
    b'{"cpu":"900m","memory":"1Gi"}},"priority":"koord-prod","qos":"LS"}],"prodReclaimableMetric":{"resource":'
    b'{"resources":{"cpu":"5","memory":"10Gi"}}}}'
)
NODE_SLO_MANAGER_DEFAULTS = (
    b'{"resourceUsedThresholdWithBE":{"enable":false,"cpuSuppressThresholdPercent":65,"cpuSuppressPolicy":"cpuset",'
    b'"memoryEvictThresholdPercent":70,"cpuEvictPolicy":"evictByRealLimit"},"resourceQOSStrategy":{},'
    b'"cpuBurstStrategy":{"policy":"none","cpuBurstPercent":1000,"cfsQuotaBurstPercent":300,'
    b'"cfsQuotaBurstPeriodSeconds":-1,"sharePoolThresholdPercent":50},"systemStrategy":'
    b'{"totalNetworkBandwidth":"0"},"extensions":{"Object":{}}}'
)

BYTES = {
    "NodeMetric status (spec 01 §3.3)": (slo.NodeMetricStatus, NODE_METRIC_STATUS),
    "NodeSLO spec (spec 01 §6.5.1)": (slo.NodeSLOSpec, NODE_SLO_MANAGER_DEFAULTS),
    "manager's collect policy": (
        slo.NodeMetricSpec,
        b'{"metricCollectPolicy":{"aggregateDurationSeconds":300,"reportIntervalSeconds":60,'
        b'"nodeAggregatePolicy":{"durations":["5m0s","10m0s","30m0s"]},'
        b'"nodeMemoryCollectPolicy":"usageWithoutPageCache"}}',
    ),
    "a GPU in a NodeMetric": (
        DeviceInfo,
        b'{"type":"gpu","id":"GPU-1","minor":0,"health":false,"resources":{"koordinator.sh/gpu-core":"13",'
        b'"koordinator.sh/gpu-memory":"4Gi","koordinator.sh/gpu-memory-ratio":"40"}}',
    ),
    "failed prediction": (slo.NodeMetricStatus, b'{"prodReclaimableMetric":{"resource":{}}}'),
}


@pytest.mark.parametrize("case", BYTES)
def test_bytes_survive(case: str) -> None:
    kind, data = BYTES[case]
    assert wire.encode(wire.decode(data, kind)) == data
    assert wire.encode(wire.json_decoder(kind).decode(data)) == data


def test_constructed_objects() -> None:
    usage = slo.AggregatedUsage(
        usage={name: slo.ResourceMap() for name in reversed(slo.AGGREGATIONS)}, duration=Duration.of(seconds=90)
    )
    amounts = {"memory": Quantity.of(2**30, BINARY_SI), "cpu": Quantity.milli(2534)}
    status = slo.NodeMetricStatus(
        update_time=Time.from_unix(1782892800.9),
        node_metric=slo.NodeMetricInfo(node_usage=slo.ResourceMap(resources=amounts), aggregated_node_usages=[usage]),
        pods_metric=[slo.PodMetricInfo(name="a", namespace="b")],
    )
    assert wire.encode(status) == (
        b'{"updateTime":"2026-07-01T08:00:00Z","nodeMetric":{"nodeUsage":{"resources":{"cpu":"2534m","memory":"1Gi"}},'
        b'"aggregatedNodeUsages":[{"usage":{"avg":{},"p50":{},"p90":{},"p95":{},"p99":{}},"duration":"1m30s"}],'
        b'"systemUsage":{}},"podsMetric":[{"name":"a","namespace":"b","podUsage":{}}]}'
    )


ALWAYS = {
    "health": (DeviceInfo(), b'{"health":false}'),
    "topology": (
        DeviceTopology(socket_id=0, node_id=0, pcie_id=""),
        b'{"socketID":0,"nodeID":0,"pcieID":""}',
    ),
    "virtual function": (VirtualFunction(minor=0), b'{"minor":0}'),
    "numaNodeID": (slo.NUMAUsage(numa_node_id=0), b'{"numaNodeID":0,"nodeUsage":{},"systemUsage":{}}'),
    "minor and moduleID are nullable": (
        DeviceInfo(minor=0, module_id=0),
        b'{"minor":0,"moduleID":0,"health":false}',
    ),
    "zone resources": (
        topology.ResourceInfo(name="cpu", capacity=Quantity("0"), allocatable=Quantity("0"), available=Quantity("0")),
        b'{"name":"cpu","capacity":"0","allocatable":"0","available":"0"}',
    ),
    "topologyPolicies": (
        topology.NodeResourceTopology(zones=[]),
        b'{"kind":"NodeResourceTopology","apiVersion":"topology.node.k8s.io/v1alpha1","metadata":{},'
        b'"topologyPolicies":[],"zones":[]}',
    ),
    "nodeNum": (NetworkTopologyDetail(topology_info=TopologyInfo(), node_num=0), b'{"topologyInfo":{},"nodeNum":0}'),
    "allocateOnce false, ttl 0": (
        ReservationSpec(template=PodTemplateSpec(), owners=[], allocate_once=False, ttl=Duration.of()),
        b'{"template":{"metadata":{},"spec":{}},"owners":[],"ttl":"0s","allocateOnce":false}',
    ),
    "empty class of a profile is left out (spec 01 §9 A19)": (
        ClusterColocationProfileSpec(qos_class="", koordinator_priority=0),
        b'{"koordinatorPriority":0}',
    ),
    "empty selector is not absent": (
        ClusterColocationProfileSpec(selector=LabelSelector()),
        b'{"selector":{}}',
    ),
    "preemption allowed by presence": (
        ReservationOptions(preemption_options=PreemptionOptions()),
        b'{"preemptionOptions":{}}',
    ),
    "quota keys sorted": (
        quota.ElasticQuotaSpec(max={"memory": Quantity("40Gi"), "cpu": Quantity("40000m")}),
        b'{"max":{"cpu":"40","memory":"40Gi"}}',
    ),
    "delete options": (DeleteOptions(grace_period_seconds=0), b'{"gracePeriodSeconds":0}'),
}


@pytest.mark.parametrize("case", ALWAYS)
def test_zeros_that_are_written(case: str) -> None:
    thing, data = ALWAYS[case]
    assert wire.encode(thing) == data
    assert wire.decode(data, type(thing)) == thing


REF = {"apiVersion": "v1", "kind": "Pod"}
MISSING = {
    "reservation without spec": (Reservation, {}, "spec"),
    "reservation without template": (Reservation, {"spec": {"owners": []}}, "spec.template"),
    "reservation without owners": (Reservation, {"spec": {"template": {}}}, "spec.owners"),
    "reservation controller": (
        Reservation,
        {"spec": {"template": {}, "owners": [{"controller": {"apiVersion": "v1", "kind": "Job", "name": "j"}}]}},
        "spec.owners[0].controller.uid",
    ),
    "reservation taint": (
        Reservation,
        {"spec": {"template": {}, "owners": [], "taints": [{"key": "k"}]}},
        "spec.taints[0].effect",
    ),
    "selector expression": (
        Reservation,
        {"spec": {"template": {}, "owners": [{"labelSelector": {"matchExpressions": [{"key": "k"}]}}]}},
        "spec.owners[0].labelSelector.matchExpressions[0].operator",
    ),
    "device topology": (
        scheduling.Device,
        {"spec": {"devices": [{"topology": {"socketID": 0, "nodeID": 0}}]}},
        "spec.devices[0].topology.pcieID",
    ),
    "device function": (scheduling.Device, {"spec": {"devices": [{"vfGroups": [{"vfs": [{}]}]}]}},
                        "spec.devices[0].vfGroups[0].vfs[0].minor"),
    "device condition": (
        scheduling.Device,
        {"spec": {"devices": [{"conditions": [{"type": "Healthy", "status": "True", "reason": "r", "message": ""}]}]}},
        "spec.devices[0].conditions[0].lastTransitionTime",
    ),
    "migration job": (scheduling.PodMigrationJob, {"spec": {"paused": True}}, "spec.podRef"),
    "migration condition": (
        scheduling.PodMigrationJob,
        {"spec": {"podRef": REF}, "status": {"conditions": [{"type": "Eviction"}]}},
        "status.conditions[0].status",
    ),
    "numa usage": (slo.NodeMetric, {"status": {"nodeMetric": {"numaUsages": [{}]}}},
                   "status.nodeMetric.numaUsages[0].numaNodeID"),
    "quota profile": (quota.ElasticQuotaProfile, {"spec": {"quotaName": "q"}}, "spec.nodeSelector"),
    "zone": (topology.NodeResourceTopology, {"zones": [{"name": "node-0"}]}, "zones[0].type"),
    "zone resource": (
        topology.NodeResourceTopology,
        {"zones": [{"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "capacity": 1}]}]},
        "zones[0].resources[0].allocatable",
    ),
    "zone cost": (topology.NodeResourceTopologyV1Alpha2,
                  {"zones": [{"name": "n", "type": "Node", "costs": [{"name": "m"}]}]}, "zones[0].costs[0].value"),
    "network topology": (scheduling.ClusterNetworkTopology, {"spec": {}}, "spec.networkTopologySpec"),
    "network layer": (scheduling.ClusterNetworkTopology, {"spec": {"networkTopologySpec": [{}]}},
                      "spec.networkTopologySpec[0].topologyLayer"),
    "recommendation": (analysis.Recommendation, {"spec": {"target": {}}}, "spec.target.type"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISSING)
@pytest.mark.parametrize("fast", [False, True], ids=["lenient", "fast"])
def test_missing_required_field_is_named(case: str, fast: bool) -> None:
    kind, document, path = MISSING[case]
    data = json.dumps({"metadata": {"name": "x"}, **document}).encode()  # type: ignore[dict-item]
    with pytest.raises(wire.WireError) as caught:
        if fast:
            wire.json_decoder(kind).decode(data, where="x")
        else:
            wire.decode(data, kind, where="x")
    assert str(caught.value) == f"x: {path}: is required"


WRONG = {
    "quantity": (quota.ElasticQuota, {"spec": {"min": {"cpu": "many"}}}, "spec.min[cpu]"),
    "duration": (Reservation, {"spec": {"template": {}, "owners": [], "ttl": "1 day"}}, "spec.ttl"),
    "time": (slo.NodeMetric, {"status": {"updateTime": "noon"}}, "status.updateTime"),
    "int32": (scheduling.PodGroup, {"spec": {"minMember": 2**31}}, "spec.minMember"),
    "bool": (slo.NodeSLO, {"spec": {"resourceUsedThresholdWithBE": {"enable": "yes"}}},
             "spec.resourceUsedThresholdWithBE.enable"),
    "list": (scheduling.Device, {"spec": {"devices": {"type": "gpu"}}}, "spec.devices"),
    "kept object": (scheduling.PodMigrationJob, {"spec": {"podRef": {}, "reservationOptions": {"template": []}}},
                    "spec.reservationOptions.template"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_type_is_named(case: str) -> None:
    kind, document, path = WRONG[case]
    with pytest.raises(wire.WireError) as caught:
        wire.decode(json.dumps(document).encode(), kind)
    assert caught.value.path == path


def test_leniency_of_readers() -> None:
    """Notes of the schema never reject on decode; null is unset; keys match in any case."""
    profile: ClusterColocationProfile = wire.convert(
        {"spec": {"qosClass": "FUTURE", "labels": None, "PROBABILITY": "30%"}}, ClusterColocationProfile
    )
    assert (profile.spec.qos_class, profile.spec.labels, profile.spec.probability) == ("FUTURE", {}, "30%")
    strategy: slo.NodeSLOSpec = wire.convert(
        {"resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": 101}}, slo.NodeSLOSpec
    )
    assert strategy.resource_used_threshold_with_be is not None
    assert strategy.resource_used_threshold_with_be.cpu_suppress_threshold_percent == 101


def test_topology_written_as_v1alpha2_reads_as_v1alpha1() -> None:
    thing: topology.NodeResourceTopology = wire.convert(
        {"metadata": {"name": "n"}, "zones": [], "attributes": []}, topology.NodeResourceTopology
    )
    assert thing.topology_policies == []


def test_untyped_objects_are_preserved() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {"spec": {"dnsPolicy": "Default"}}}}
    job: scheduling.PodMigrationJob = wire.convert(
        {"spec": {"podRef": REF, "reservationOptions": {"template": template}}}, scheduling.PodMigrationJob
    )
    assert json.loads(wire.encode(job))["spec"]["reservationOptions"]["template"] == template


@pytest.mark.parametrize(
    ("extensions", "values"),
    [
        (None, {}),
        ({}, {}),
        ({"Object": {}}, {}),
        ({"Object": {"plugin": {"a": 1}}}, {"plugin": {"a": 1}}),
        ({"plugin": {"a": 1}}, {"plugin": {"a": 1}}),
        ({"Object": "scalar"}, {"Object": "scalar"}),
        ({"mine": 1, "both": 2, "Object": {"third": 3, "both": 4}}, {"mine": 1, "third": 3, "both": 4}),
    ],
    ids=str,
)
def test_extension_values(extensions: dict[str, Any] | None, values: dict[str, Any]) -> None:
    assert slo.extension_values(extensions) == values


def test_condition_lookup() -> None:
    status: PodMigrationJobStatus = wire.convert(
        {"conditions": [{"type": "Eviction", "status": "True"}]}, PodMigrationJobStatus
    )
    assert present(status.condition("Eviction")).status == "True"
    assert status.condition("Preemption") is None


def test_status_is_the_error_of_the_api() -> None:
    status = wire.json_decoder(Status).decode(
        b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"m","reason":"Conflict",'
        b'"details":{"name":"x","kind":"pods","causes":[{"field":"spec"}],"retryAfterSeconds":3},"code":409}'
    )
    assert (status.code, status.reason, status.details.retry_after_seconds) == (409, "Conflict", 3)
    assert status.details.causes[0].field == "spec"


DETAIL = st.builds(
    NodeFailedDetail,
    failed_plugin=st.sampled_from("AB"),
    reason=st.sampled_from("xy"),
    preempt_might_help=st.booleans(),
    failed_nodes=st.lists(st.sampled_from(["n1", "n2", "n10"]), max_size=3),
)


AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "koordinator.sh/gpu"]), st.integers(0, 2**40).map(Quantity.of), max_size=3
)
METRICS = st.builds(
    slo.NodeMetricStatus,
    update_time=st.none() | st.integers(0, 2**32).map(Time.from_unix),
    pods_metric=st.lists(
        st.builds(
            slo.PodMetricInfo,
            name=st.text(max_size=8),
            pod_usage=st.builds(
                slo.ResourceMap,
                resources=AMOUNTS,
                devices=st.lists(
                    st.builds(DeviceInfo, minor=st.none() | st.integers(0, 7), health=st.booleans()), max_size=2
                ),
            ),
            qos=st.sampled_from(["", "LS", "BE"]),
        ),
        max_size=3,
    ),
)


@given(METRICS)
def test_encode_then_decode_is_identity(status: NodeMetricStatus) -> None:
    data = wire.encode(status)
    assert wire.json_decoder(slo.NodeMetricStatus).decode(data) == status
    assert wire.decode(data, slo.NodeMetricStatus) == status
