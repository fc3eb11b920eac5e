"""Pod annotations for QoS and eviction (spec 01 §5.1, §10)."""

from __future__ import annotations

import pytest

from koordlet.api.annotations import pod
from koordlet.api.annotations.pod import PodOOMScores
from koordlet.api.core import Container, Pod, PodSpec, ResourceRequirements
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError
from koordlet.api.meta import ObjectMeta

K = "koordinator.sh/"


@pytest.mark.parametrize(("text", "value"), [(None, 0), ("100", 100), ("-10", -10), ("0", 0)])
def test_eviction_priority(text: str | None, value: int) -> None:
    assert pod.eviction_priority({} if text is None else {K + "eviction-priority": text}) == value


@pytest.mark.parametrize("text", ["xxx", "", "1.5", "2147483648", " 1", "1_0"])
def test_eviction_priority_refuses(text: str) -> None:
    with pytest.raises(WireError, match=r"koordinator\.sh/eviction-priority"):
        pod.eviction_priority({K + "eviction-priority": text})


@pytest.mark.parametrize(
    ("text", "allowed"),
    [('["evictByMemoryUsage"]', True), ('["other"]', False), ("[]", False), ("", False), ("invalid", False),
     ('{"a":1}', False), (None, True)],
)  # fmt: skip
def test_eviction_policy(text: str | None, allowed: bool) -> None:
    annotations = {} if text is None else {K + "eviction-policy": text}
    assert pod.eviction_allowed(annotations, "evictByMemoryUsage") == allowed


@pytest.mark.parametrize(("value", "enabled"), [("true", True), ("True", False), ("1", False), (None, False)])
def test_eviction_enabled(value: str | None, enabled: bool) -> None:
    assert pod.eviction_enabled({} if value is None else {K + "eviction-enabled": value}) == enabled


def test_network_limits_are_bytes() -> None:
    key = K + "networkQOS"
    assert pod.network_limits({key: '{"ingressLimit":"50M","egressLimit":"100M"}'}) == (6_250_000, 12_500_000)
    assert pod.network_limits({key: '{"egressLimit":"7"}'}) == (0, 0)
    assert pod.network_limits({}) is None
    spec = pod.NetworkQOSSpec(ingress_limit="50M")
    assert pod.NETWORK_QOS.put({"a": "b"}, spec) == {"a": "b", key: '{"ingressLimit":"50M","egressLimit":""}'}
    for text in ("{", '{"ingressLimit":"fast"}', '{"egressLimit":"-1"}'):
        with pytest.raises(WireError, match=key):
            pod.network_limits({key: text})


def test_strategies_of_one_pod() -> None:
    burst = pod.CPU_BURST.get({K + "cpuBurst": '{"policy":"auto","cpuBurstPercent":200}'})
    assert burst and (burst.policy, burst.cpu_burst_percent) == ("auto", 200)
    memory = pod.MEMORY_QOS.get({K + "memoryQOS": '{"policy":"auto","minLimitPercent":10}'})
    assert memory and (memory.policy, memory.min_limit_percent) == ("auto", 10)
    blkio = pod.BLKIO_QOS.get(
        {K + "blkioQOS": '{"blocks":[{"name":"pvc-a","type":"podvolume","ioCfg":{"readIOPS":100}}]}'}
    )
    assert (
        blkio
        and blkio.blocks[0].io_cfg.read_iops == 100
        and pod.BLKIO_QOS.text(blkio) == ('{"blocks":[{"name":"pvc-a","type":"podvolume","ioCfg":{"readIOPS":100}}]}')
    )
    assert pod.CPU_BURST.get({}) is None and pod.CPU_BURST.get(None) is None
    with pytest.raises(WireError, match=r"annotation koordinator\.sh/cpuBurst: cpuBurstPercent: must be an integer"):
        pod.CPU_BURST.get({K + "cpuBurst": '{"cpuBurstPercent":"x"}'})


def test_cpu_qos_bounds_the_group_identity() -> None:
    qos = pod.cpu_qos({K + "cpuQOS": '{"enable":true,"groupIdentity":-1}'})
    assert qos and qos.enable and qos.group_identity == -1
    assert pod.cpu_qos({}) is None
    for value in (-2, 3):
        with pytest.raises(WireError, match="groupIdentity"):
            pod.cpu_qos({K + "cpuQOS": f'{{"groupIdentity":{value}}}'})


@pytest.mark.parametrize(("value", "policy"), [("none", "none"), ("exclusive", "exclusive"), ("other", ""), (None, "")])
def test_core_scheduling(value: str | None, policy: str) -> None:
    labels = {} if value is None else {K + "core-sched-policy": value}
    assert pod.core_sched_policy(labels) == policy
    assert pod.core_sched_group({K + "core-sched-group-id": "g"}) == "g" and pod.core_sched_group({}) == ""


def oom(pod_level: str | None = None, spec: str | None = None) -> PodOOMScores | None:
    annotations = {K + "oom-score-adj": pod_level, K + "oom-score-adj-spec": spec}
    return pod.oom_scores({key: text for key, text in annotations.items() if text is not None})


def test_oom_scores() -> None:
    assert oom() is None
    scores = oom("-500", '{"main":100,"bad":1001}')
    assert scores and (scores.of("main"), scores.of("other"), scores.of("bad")) == (100, -500, None)
    assert scores.refused == ("bad",)
    refused = oom("1001")
    assert refused and refused.of("main") is None and refused.refused == ("koordinator.sh/oom-score-adj",)
    with pytest.raises(WireError, match="oom-score-adj-spec"):
        oom("-500", "{")


def test_resctrl() -> None:
    value = pod.RESCTRL.get(
        {
            "node.koordinator.sh/resctrl": '{"llc":{"schemata":{"range":[0,30]},"schemataPerCache":[{"cacheid":1,'
            '"range":[20,30]}]},"mb":{"schemata":{"percent":35},"schemataPerCache":[{"cacheID":0,"percent":80}]}}'
        }
    )
    assert value and value.llc.schemata.range == [0, 30] and value.mb.schemata.percent == 35
    assert (value.llc.schemata_per_cache[0].cache_id, value.mb.schemata_per_cache[0].percent) == (1, 80)


def batch_pod(annotations: dict[str, str], *, batch: bool = True) -> Pod:
    amounts = {"kubernetes.io/batch-cpu": Quantity("1000"), "kubernetes.io/batch-memory": Quantity("2Gi")}
    mixed = ResourceRequirements(
        limits={"kubernetes.io/batch-cpu": Quantity("1k"), "kubernetes.io/mid-cpu": Quantity("1k")},
        requests={**amounts, "cpu": Quantity("1")},
    )
    return Pod(
        metadata=ObjectMeta(annotations=annotations),
        spec=PodSpec(
            containers=[
                Container(name="main", resources=mixed if batch else ResourceRequirements()),
                Container(name="side"),
            ],
            init_containers=[Container(name="init", resources=mixed)],
            overhead=amounts,
        ),
    )


SPEC = (
    '{"containers":{"main":{"limits":{"kubernetes.io/batch-cpu":"1k"},'
    '"requests":{"kubernetes.io/batch-cpu":"1k","kubernetes.io/batch-memory":"2Gi"}}}}'
)
KEY = "node.koordinator.sh/extended-resource-spec"


@pytest.mark.parametrize(
    ("annotations", "batch", "update"),
    [
        ({}, True, SPEC),
        ({KEY: SPEC}, True, None),
        ({KEY: SPEC.replace('"1k"', '"1000"')}, True, None),
        ({KEY: "{"}, True, SPEC),
        ({KEY: "{}"}, True, SPEC),
        ({KEY: SPEC}, False, "{}"),
        ({}, False, None),
        ({KEY: "{}"}, False, None),
    ],
    ids=["new", "same", "same meaning", "malformed", "empty", "no longer", "not needed", "not needed but there"],
)
def test_extended_resource_spec(annotations: dict[str, str], batch: bool, update: str | None) -> None:
    assert pod.extended_resource_update(batch_pod(annotations, batch=batch)) == update
    assert pod.EXTENDED_RESOURCE_SPEC.get({}) == pod.ExtendedResourceSpec()


def test_replaced_resources() -> None:
    annotation = {"pod.koordinator.sh/replace-resources": "a:b, c: ,d:e:f,g"}
    replaced = pod.replaced_resources(annotation)
    assert replaced == {"a": "b", "c": None}
    assert pod.replaced_resources({}) == {}
    amounts = {"a": Quantity("1"), "c": Quantity("2"), "x": Quantity("3")}
    assert pod.apply_replaced(amounts, replaced) == {"b": Quantity("1"), "x": Quantity("3")}
    assert pod.apply_replaced({"cpu": Quantity("1500m")}, {"cpu": "batch"}) == {"batch": Quantity("1500")}
