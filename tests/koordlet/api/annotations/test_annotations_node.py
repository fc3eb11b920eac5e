"""Node, topology and device annotations (spec 01 §5.3-§5.5, §5.9, §10)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from koordlet.api.annotations import Annotation, device, node, topology
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Duration, Time, WireError

N = "node.koordinator.sh/"
S = "scheduling.koordinator.sh/"
RATIO = N + "cpu-normalization-ratio"
AMPLIFY = N + "resource-amplification-ratio"


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (node.RESERVATION,
         '{"resources":{"cpu":"2","memory":"4Gi"},"reservedCPUs":"0-3","applyPolicy":"Default"}'),
        (node.RAW_ALLOCATABLE, '{"cpu":"8","memory":"16Gi"}'),
        (node.ORIGIN_ALLOCATABLE,
         '{"resources":{"kubernetes.io/batch-cpu":"20k","kubernetes.io/batch-memory":"64Gi"}}'),
        (node.THIRD_PARTY, '{"allocations":[{"name":"hadoop-yarn","priority":"koord-batch",'
         '"resources":{"kubernetes.io/batch-cpu":"10k"}}]}'),
        (topology.CPU_TOPOLOGY, '{"detail":[{"id":0,"core":0,"socket":0,"node":0}]}'),
        (topology.CPU_SHARED_POOLS, '[{"socket":0,"node":0,"cpuset":"4-15"}]'),
        (topology.BE_CPU_SHARED_POOLS, '[{"socket":0,"node":0}]'),
        (topology.POD_CPU_ALLOCS,
         '[{"namespace":"d","name":"p","uid":"u","cpuset":"1-2","managedByKubelet":true}]'),
        (topology.CPU_BASIC_INFO, '{"cpuModel":"x","hyperThreadEnabled":true,"turboEnabled":true,'
         '"catL3CbmMask":"fffff","vendorID":"GenuineIntel"}'),
        (topology.KUBELET_CPU_MANAGER,
         '{"policy":"static","options":{"full-pcpus-only":"true"},"reservedCPUs":"0-1"}'),
        (device.ALLOCATED, '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100",'
         '"koordinator.sh/gpu-memory":"80Gi","koordinator.sh/gpu-memory-ratio":"100"}}],'
         '"rdma":[{"minor":1,"resources":{"koordinator.sh/rdma":"1"},"id":"0000:09:00.0",'
         '"extension":{"vfs":[{"busID":"0000:09:00.2"}]}}]}'),
        (device.ALLOCATE_HINT,
         '{"rdma":{"vfSelector":{"matchLabels":{"type":"fast"}},"allocateStrategy":"ApplyForAll"}}'),
        (device.JOINT_ALLOCATE, '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}'),
    ],
    ids=lambda value: getattr(value, "key", None),
)  # fmt: skip
def test_reads_and_writes_the_same_bytes(annotation: Annotation[object], text: str) -> None:
    value = annotation.get({annotation.key: text})
    assert value is not None and annotation.text(value) == text
    with pytest.raises(WireError, match=annotation.key):
        annotation.get({annotation.key: "{"})


def test_always_written_fields() -> None:
    assert device.ALLOCATED.text({"gpu": [device.PodDeviceAllocation()]}) == '{"gpu":[{"minor":0,"resources":{}}]}'
    assert device.gpu_partitions_text({1: [device.GPUPartition()]}) == '{"1":[{"minors":[]}]}'
    assert node.THIRD_PARTY.text(node.ThirdPartyAllocations(allocations=[node.ThirdPartyAllocation()])) == (
        '{"allocations":[{"name":"","priority":""}]}'
    )
    assert topology.KUBELET_CPU_MANAGER.text(topology.KubeletCPUManagerPolicy()) == "{}"


def test_topology_annotations_are_sorted() -> None:
    cpus = [topology.CPUInfo(id=1, core=1), topology.CPUInfo()]
    assert topology.cpu_topology_text(cpus) == (
        '{"detail":[{"id":0,"core":0,"socket":0,"node":0},{"id":1,"core":1,"socket":0,"node":0}]}'
    )
    pools = [topology.CPUSharedPool(socket=1, node=0), topology.CPUSharedPool(node=1), topology.CPUSharedPool()]
    assert topology.shared_pools_text(pools) == ('[{"socket":0,"node":0},{"socket":0,"node":1},{"socket":1,"node":0}]')
    allocs = [topology.PodCPUAlloc(uid="b"), topology.PodCPUAlloc(uid="a")]
    assert topology.pod_cpu_allocs_text(allocs) == '[{"uid":"a"},{"uid":"b"}]'
    assert topology.pod_cpu_allocs_text([]) == "null"
    assert topology.POD_CPU_ALLOCS.get({topology.POD_CPU_ALLOCS.key: "null"}) == []


@pytest.mark.parametrize(("text", "ratio"), [("1.20", 1.2), ("5", 5.0), (None, None)])
def test_normalization_ratio(text: str | None, ratio: float | None) -> None:
    assert node.normalization_ratio({} if text is None else {RATIO: text}) == ratio


@pytest.mark.parametrize("text", ["0", "-1", "x", "", "nan", "inf", "1e999", "1_0"])
def test_normalization_ratio_refuses(text: str) -> None:
    with pytest.raises(WireError, match="cpu-normalization-ratio"):
        node.normalization_ratio({RATIO: text})


def test_amplification_ratio() -> None:
    assert node.amplification_text({"memory": 1.2, "cpu": 1.8}) == '{"cpu":1.80,"memory":1.20}'
    assert node.amplification_ratios({AMPLIFY: '{"cpu":1.50,"memory":1}'}) == {"cpu": 1.5, "memory": 1.0}
    with pytest.raises(WireError):
        node.amplification_ratios({AMPLIFY: "{"})


@pytest.mark.parametrize(("text", "value"), [("1", True), ("T", True), ("FALSE", False), ("f", False), (None, None)])
def test_normalization_enabled(text: str | None, value: bool | None) -> None:
    assert node.normalization_enabled({} if text is None else {N + "cpu-normalization-enabled": text}) is value


def test_normalization_enabled_refuses() -> None:
    with pytest.raises(WireError, match="'yes' is not a boolean"):
        node.normalization_enabled({N + "cpu-normalization-enabled": "yes"})


@pytest.mark.parametrize(
    ("label", "policy", "option", "effective"),
    [
        ("SpreadByPCPUs", "static", "true", "FullPCPUsOnly"),
        ("SpreadByPCPUs", "static", "false", "SpreadByPCPUs"),
        ("SpreadByPCPUs", "none", "true", "SpreadByPCPUs"),
        ("FullPCPUsOnly", "", "", "FullPCPUsOnly"),
        ("other", "", "", "None"),
        ("", "static", "true", "FullPCPUsOnly"),
    ],
)
def test_cpu_bind_policy(label: str, policy: str, option: str, effective: str) -> None:
    labels = {N + "cpu-bind-policy": label} if label else {}
    assert node.cpu_bind_policy(labels, policy, {"full-pcpus-only": option}) == effective


def test_numa_topology_policy() -> None:
    key = N + "numa-topology-policy"
    assert node.numa_topology_policy({key: "Restricted"}, "BestEffort") == "Restricted"
    assert node.numa_topology_policy({key: ""}, "BestEffort") == node.numa_topology_policy({}, "BestEffort")


def test_system_qos_resource() -> None:
    key = N + "system-qos-resource"
    assert node.system_qos_resource(None) is None
    assert node.system_qos_resource({}) == node.SystemQOSResource()
    resource = node.system_qos_resource({key: '{"cpuset":"0-1"}'})
    assert resource and resource.cpuset == "0-1" and resource.exclusive
    shared = node.system_qos_resource({key: '{"cpuset":"0-1","cpusetExclusive":false}'})
    assert shared and not shared.exclusive


def test_third_party_allocations() -> None:
    def batch(name: str, memory: str) -> node.ThirdPartyAllocation:
        resources = {"kubernetes.io/batch-memory": Quantity(memory)}
        return node.ThirdPartyAllocation(name=name, priority="koord-batch", resources=resources)

    both = node.ThirdPartyAllocations(allocations=[batch("a", "1Gi"), batch("b", "2Gi")])
    assert both.total("koord-batch") == {"kubernetes.io/batch-memory": Quantity("3Gi")}
    assert both.total("koord-mid") == {}


def test_usage_thresholds() -> None:
    key = S + "usage-thresholds"
    full = (
        '{"usageThresholds":{"cpu":65,"memory":95},"prodUsageThresholds":{"cpu":55},"aggregatedUsage":'
        '{"usageThresholds":{"cpu":70},"usageAggregationType":"p95","usageAggregatedDuration":"5m0s"}}'
    )
    thresholds = node.usage_thresholds({key: full})
    assert thresholds and thresholds.prod_usage_thresholds == {"cpu": 55} and thresholds.aggregated_usage
    assert thresholds.aggregated_usage.usage_aggregated_duration == Duration("5m")
    for aggregated in ('{"usageThresholds":{"cpu":70}}', '{"usageAggregationType":"p95"}'):
        partial = node.usage_thresholds({key: f'{{"usageThresholds":{{"cpu":65}},"aggregatedUsage":{aggregated}}}'})
        assert partial == node.UsageThresholds(usage_thresholds={"cpu": 65})
    assert node.usage_thresholds({}) is None
    with pytest.raises(WireError):
        node.usage_thresholds({key: "{"})


def test_gpu_partition_spec() -> None:
    key = S + "gpu-partition-spec"
    spec = device.gpu_partition_spec({key: '{"ringBusBandwidth":"200Gi"}'})
    assert spec and (spec.allocate_policy, spec.ring_bus_bandwidth) == ("BestEffort", Quantity("200Gi"))
    strict = device.gpu_partition_spec({key: '{"allocatePolicy":"Restricted"}'})
    assert strict and strict.allocate_policy == "Restricted"
    assert device.gpu_partition_spec({}) is None


def test_gpu_partitions() -> None:
    key = S + "gpu-partitions"
    text = '{"2":[{"minors":[0,1],"gpuLinkType":"NVLink","ringBusBandwidth":"200Gi","allocationScore":1}]}'
    table = device.gpu_partitions({key: text})
    assert table and table[2][0].minors == [0, 1] and device.gpu_partitions_text(table) == text
    assert device.gpu_partitions({}) is None and device.gpu_partitions({key: ""}) is None
    assert device.gpu_partitions({key: "{}"}) == {}
    for bad in ("null", "{", '{"two":[]}', '{"2":{}}'):
        with pytest.raises(WireError, match="gpu-partitions"):
            device.gpu_partitions({key: bad})


@pytest.mark.parametrize(("value", "policy"), [("honor", "Prefer"), ("Honor", "Honor"), (None, "Prefer")])
def test_gpu_partition_policy(value: str | None, policy: str) -> None:
    assert device.gpu_partition_policy({} if value is None else {N + "gpu-partition-policy": value}) == policy


def test_device_labels() -> None:
    assert device.minors_text([0, 1]) == "0,1"
    assert max(device.TOPOLOGY_SCOPE_LEVELS, key=device.TOPOLOGY_SCOPE_LEVELS.__getitem__) == "Device"


def test_vendor_lock() -> None:
    key = "hami.io/mutex.lock"
    lock = device.vendor_lock({key: "2024-03-05T08:00:00Z,ns,p"}, key)
    assert lock and str(lock) == "2024-03-05T08:00:00Z,ns,p"
    start = Time.parse("2024-03-05T08:00:00Z")
    assert not lock.expired(start + timedelta(minutes=5)) and lock.expired(start + timedelta(minutes=5, seconds=1))
    assert device.vendor_lock({}, key) is None
    for bad in ("", "a,b", "soon,ns,p"):
        with pytest.raises(WireError, match=r"hami\.io"):
            device.vendor_lock({key: bad}, key)
