"""Spec 04 §6.3's Prepare, §6.2's write filter, §6.4's zones, §6.6 to §6.9, and interference: tables and laws."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.manager.noderesource import devices, ratios
from control.manager.noderesource.interference import describe, step, updated_holds, written_holds
from control.manager.noderesource.prepare import NodePlan, Prepared, meta_patch, must_write, prepare, status_patch
from control.manager.noderesource.report import read_report
from control.manager.noderesource.zones import is_diff, must_rewrite, rewritten, zone_capacities, zone_values
from koordlet.api import names
from koordlet.api.crs.device import Device, DeviceInfo, DeviceSpec
from koordlet.api.crs.topology import NodeResourceTopology, ResourceInfo, Zone
from koordlet.api.encoding.quantity import BINARY_SI, Quantity
from koordlet.api.encoding.wire import to_builtins
from koordlet.api.meta import ObjectMeta
from koordlet.api.pages.overcommit import AS_MEASURED, OVERCOMMIT, Hold, OvercommitExplanation
from koordlet.api.sloconfig.normalization import (
    CPUNormalizationStrategy,
    ModelRatios,
    RatioError,
    ResourceAmplificationStrategy,
)
from koordlet.api.sloconfig.overcommit import (
    ANY,
    CULPRITS_OVERCOMMITTED,
    InterferencePolicy,
    InterferencePolicyError,
    policy_of,
)
from tests.control.manager.noderesource.world import NOW, make_metric, make_node, pod_metric, strategy

CPU, MEMORY = names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY
G, GI = 10**9, 2**30


def batch(cpu: int, memory: int) -> dict[str, Quantity | None]:
    return {CPU: Quantity.of(cpu), MEMORY: Quantity.of(memory, BINARY_SI)}


# --- Prepare


@pytest.mark.parametrize(
    ("ratio", "cpu"), [(None, 10001), (1.0, 10001), (1.2, 12002), (0.5, 10001), (5.0, 50005)], ids=str
)
def test_normalization_multiplies_batch_cpu_and_rounds_up(ratio: float | None, cpu: int) -> None:
    prepared = prepare(make_node(), NodePlan(overcommit=batch(10001, GI), ratio=ratio))
    assert prepared.resources == {CPU: Quantity.of(cpu), MEMORY: Quantity.of(GI)}


@pytest.mark.parametrize(
    ("held", "cpu", "memory"),
    [((10000, "10Gi"), 40000, "110Gi"), ((60000, "120Gi"), 0, "0"), ((0, "0"), 50000, "120Gi")],
)
def test_third_parties(held: tuple[int, str], cpu: int, memory: str) -> None:
    allocations = [
        {"name": "yarn", "priority": "koord-batch", "resources": {CPU: str(held[0]), MEMORY: held[1]}},
        {"name": "prod", "priority": "koord-prod", "resources": {CPU: "7"}},
    ]
    annotations = {names.ANNOTATION_THIRD_PARTY_ALLOCATIONS: json.dumps({"allocations": allocations})}
    node = make_node(annotations=annotations)
    prepared = prepare(node, NodePlan(overcommit=batch(50000, 120 * GI)))
    assert prepared.resources == {CPU: Quantity.of(cpu), MEMORY: Quantity(memory)}
    patch = status_patch(
        node, prepared, lambda: OvercommitExplanation(reason=AS_MEASURED), explanation_changed=False, now=NOW
    )
    origin = patch["metadata"]["annotations"][names.ANNOTATION_ORIGIN_EXTENDED_ALLOCATABLE]
    assert origin == f'{{"resources":{{"{CPU}":"50k","{MEMORY}":"120Gi"}}}}'


def test_a_malformed_third_party_annotation_is_ignored_and_reported() -> None:
    node = make_node(annotations={names.ANNOTATION_THIRD_PARTY_ALLOCATIONS: "{"})
    prepared = prepare(node, NodePlan(overcommit=batch(50000, GI)))
    assert prepared.resources[CPU] == Quantity.of(50000)
    assert names.ANNOTATION_THIRD_PARTY_ALLOCATIONS in prepared.problem


def test_other_resources_are_kept_in_the_origin_annotation() -> None:
    annotations = {names.ANNOTATION_ORIGIN_EXTENDED_ALLOCATABLE: '{"resources":{"vendor.io/x":"3"}}'}
    node = make_node(annotations=annotations)
    prepared = prepare(node, NodePlan(overcommit=batch(1000, GI)))
    patch = status_patch(
        node, prepared, lambda: OvercommitExplanation(reason=AS_MEASURED), explanation_changed=False, now=NOW
    )
    origin = json.loads(patch["metadata"]["annotations"][names.ANNOTATION_ORIGIN_EXTENDED_ALLOCATABLE])
    assert origin["resources"] == {CPU: "1k", MEMORY: "1Gi", "vendor.io/x": "3"}


def test_removed_resources_are_deleted_from_the_node() -> None:
    node = make_node(extended={CPU: "1000", MEMORY: "1Gi", "vendor.io/x": "3"})
    prepared = prepare(node, NodePlan(overcommit={CPU: None, MEMORY: None}))
    patch = status_patch(
        node, prepared, lambda: OvercommitExplanation(reason="NodeMetricStale"), explanation_changed=True, now=NOW
    )
    assert patch["status"]["capacity"] == patch["status"]["allocatable"] == {CPU: None, MEMORY: None}
    assert patch["status"]["conditions"][0]["status"] == "False"
    assert patch["metadata"]["resourceVersion"] == node.metadata.resource_version


def test_an_up_to_date_node_gets_no_patch() -> None:
    origin = {names.ANNOTATION_ORIGIN_EXTENDED_ALLOCATABLE: json.dumps({"resources": {MEMORY: "1Gi", CPU: "1000"}})}
    node = make_node(extended={CPU: "1000", MEMORY: "1Gi"}, annotations=origin)

    def never() -> OvercommitExplanation:
        raise AssertionError("must not be called")

    prepared = prepare(node, NodePlan(overcommit=batch(1000, GI)))
    assert status_patch(node, prepared, never, explanation_changed=False, now=NOW) == {}
    assert meta_patch(node, NodePlan(annotations=origin)) == {}


# --- the write filter


@pytest.mark.parametrize(
    ("have", "computed", "write"),
    [
        ("20000", 20000, False),
        ("20000", 22000, False),
        ("20000", 22001, True),
        ("20000", 18000, False),
        ("20000", 17999, True),
        ("0", 0, False),
        ("0", 1, True),
        (None, 1, True),
        ("5", None, True),
        (None, None, False),
    ],
    ids=str,
)
def test_a_tenth_more_or_less_is_not_written(have: str | None, computed: int | None, write: bool) -> None:
    node = make_node(extended={} if have is None else {CPU: have})
    prepared = Prepared({CPU: None if computed is None else Quantity.of(computed)}, {}, {})
    assert must_write(node, prepared, (), 0.1) is write


def test_device_totals_are_written_at_any_change() -> None:
    node = make_node(extended={names.RESOURCE_GPU: "1600"})
    prepared = Prepared({names.RESOURCE_GPU: Quantity.of(1500)}, {}, {})
    assert must_write(node, prepared, [names.RESOURCE_GPU], 0.1)
    assert not must_write(node, prepared, (), 0.1)


@given(st.integers(0, 10**15), st.integers(0, 10**15), st.floats(0.01, 1))
def test_a_difference_is_relative_to_the_old_amount(old: int, new: int, threshold: float) -> None:
    assert is_diff(Quantity.milli(old), Quantity.milli(new), threshold) == (abs(new - old) > old * threshold)


# --- zones


def zone(name: str, **amounts: str) -> Zone:
    def info(resource: str, text: str) -> ResourceInfo:
        amount = Quantity(text)
        return ResourceInfo(name=resource, capacity=amount, allocatable=amount, available=amount)

    return Zone(name=name, type="Node", resources=[info(resource, text) for resource, text in amounts.items()])


@pytest.mark.parametrize(
    ("zones", "expected"),
    [
        ([zone("node-0", cpu="50"), zone("node-1", cpu="40", memory="1k")], [(0, (50 * G, 0)), (1, (40 * G, 10**6))]),
        ([zone("node-3", cpu="1"), zone("left", cpu="2")], [(3, (G, 0)), (1, (2 * G, 0))]),
        ([zone("node-0", other="50")], []),
        ([], []),
    ],
    ids=["by name", "by place", "neither cpu nor memory", "none"],
)
def test_zones_are_numa_nodes_by_name_or_place(zones: list[Zone], expected: Any) -> None:
    assert zone_capacities(NodeResourceTopology(zones=zones)) == expected


def test_zones_are_written_beyond_the_threshold_or_when_due() -> None:
    values = zone_values([(10 * G, 1000 * G)], None)
    assert values == [{CPU: Quantity.of(10000), MEMORY: Quantity.of(G)}]
    entry = {"name": CPU, "capacity": "9500", "allocatable": "9k", "available": "9900"}
    present: list[dict[str, Any]] = [
        {"name": "node-0", "costs": [1], "resources": [{"name": "cpu"}, entry, {"name": MEMORY}, {"name": "zz"}]}
    ]
    by_threshold = rewritten(present, values, 0.1, refresh=False, clearing=False)
    assert by_threshold is not None
    assert by_threshold[0]["resources"][1] == {**entry, "allocatable": "10k"}
    assert by_threshold[0]["costs"] == [1]
    due = rewritten(present, values, 0.1, refresh=True, clearing=False)
    assert due is not None
    assert due[0]["resources"][1] == {"name": CPU, "capacity": "10k", "allocatable": "10k", "available": "10k"}
    assert rewritten(due, values, 0.1, refresh=True, clearing=False) is None


def test_zone_amounts_that_are_missing_are_added_in_order_unless_cleared() -> None:
    present: list[dict[str, Any]] = [{"name": "node-0", "resources": [{"name": "cpu"}, {"name": "memory"}]}]
    values = zone_values([(10 * G, 1000)], 1.2)
    added = rewritten(present, values, 0.1, refresh=False, clearing=False)
    assert added is not None
    assert [resource["name"] for resource in added[0]["resources"]] == ["cpu", CPU, MEMORY, "memory"]
    assert added[0]["resources"][1]["available"] == "12k"
    assert rewritten(present, values, 0.1, refresh=False, clearing=True) is None
    assert rewritten([], values, 0.1, refresh=True, clearing=False) is None, "another topology than was worked out"


@given(
    st.lists(st.dictionaries(st.sampled_from((CPU, MEMORY, "cpu")), st.integers(0, 3)), max_size=3),
    st.lists(st.fixed_dictionaries({CPU: st.integers(0, 3), MEMORY: st.integers(0, 3)}), max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_must_rewrite_agrees_with_rewritten(present: Any, computed: Any, refresh: bool, clearing: bool) -> None:
    zones = [
        zone(f"node-{i}", **{name: str(n) for name, n in present_zone.items()})
        for i, present_zone in enumerate(present)
    ]
    topology = NodeResourceTopology(zones=zones)
    values = [{name: Quantity.of(n) for name, n in computed_zone.items()} for computed_zone in computed]
    slow = rewritten(to_builtins(topology)["zones"], values, 0.4, refresh=refresh, clearing=clearing) is not None
    assert must_rewrite(topology, values, 0.4, refresh=refresh, clearing=clearing) is slow


# --- ratios

MODEL = {"Fast": ModelRatios(base_ratio=1.0, hyper_thread_enabled_ratio=1.2, turbo_enabled_ratio=5.1)}
ON = CPUNormalizationStrategy(enable=True, ratio_model=MODEL)


def topology(**info: Any) -> NodeResourceTopology:
    return NodeResourceTopology(
        metadata=ObjectMeta(annotations={names.ANNOTATION_CPU_BASIC_INFO: json.dumps(info)}), zones=[]
    )


@pytest.mark.parametrize(
    ("how", "label", "info", "expected"),
    [
        (ON, None, {"cpuModel": "Fast", "hyperThreadEnabled": True}, "1.20"),
        (ON, "false", {"cpuModel": "Fast", "hyperThreadEnabled": True}, "1.00"),
        (CPUNormalizationStrategy(ratio_model=MODEL), None, {"cpuModel": "Fast"}, "1.00"),
        (CPUNormalizationStrategy(ratio_model=MODEL), "true", {"cpuModel": "Fast"}, "1.00"),
        (CPUNormalizationStrategy(enable=True, default_ratio=1.5), None, {"cpuModel": "Slow"}, "1.50"),
        (ON, None, {"cpuModel": "Fast", "turboEnabled": True}, RatioError),
        (ON, None, {"cpuModel": "Slow"}, RatioError),
        (ON, None, None, RatioError),
        (ON, "perhaps", {"cpuModel": "Fast"}, RatioError),
        (None, None, {"cpuModel": "Fast"}, RatioError),
    ],
    ids=[
        "model",
        "label off",
        "off",
        "label on",
        "default",
        "out of range",
        "unknown",
        "no info",
        "bad label",
        "no config",
    ],
)
def test_normalization(how: Any, label: str | None, info: Any, expected: Any) -> None:
    node = make_node(labels={names.LABEL_CPU_NORMALIZATION_ENABLED: label} if label else {})
    known = topology(**info) if info is not None else None
    if expected is RatioError:
        with pytest.raises(RatioError):
            ratios.normalization_text(how, node, known)
    else:
        assert ratios.normalization_text(how, node, known) == expected


@pytest.mark.parametrize(
    ("old", "new", "write"),
    [
        (None, "1.00", True),
        ("1.00", "1.00", False),
        ("1.21", "1.20", False),
        ("1.23", "1.20", True),
        ("x", "1.00", True),
        ("-1", "1.00", True),
    ],
)
def test_normalization_is_written_when_it_differs(old: str | None, new: str, write: bool) -> None:
    node = make_node(annotations={names.ANNOTATION_CPU_NORMALIZATION_RATIO: old} if old else {})
    assert ratios.normalization_differs(node, new) is write


@pytest.mark.parametrize(
    ("given_ratios", "just", "on_node", "expected"),
    [
        ({"cpu": 1.5, "memory": 2.5}, "1.20", None, '{"cpu":1.80,"memory":2.50}'),
        ({"cpu": 1.5, "memory": 2.5}, None, "1.20", '{"cpu":1.80,"memory":2.50}'),
        ({"cpu": 1.5}, "1.00", "1.20", '{"cpu":1.50}'),
        (None, "1.22", None, '{"cpu":1.22}'),
        (None, "1.00", None, None),
        ({"memory": 0.5}, "1.00", None, RatioError),
        ({}, None, "broken", RatioError),
    ],
    ids=[
        "just worked out",
        "on the node",
        "just beats node",
        "off but normalized",
        "nothing",
        "below one",
        "unreadable",
    ],
)
def test_amplification(given_ratios: Any, just: str | None, on_node: str | None, expected: Any) -> None:
    how = ResourceAmplificationStrategy(
        enable=given_ratios is not None, resource_amplification_ratio=given_ratios or {}
    )
    node = make_node(annotations={names.ANNOTATION_CPU_NORMALIZATION_RATIO: on_node} if on_node else {})
    if expected is RatioError:
        with pytest.raises(RatioError):
            ratios.amplification_text(how, node, just)
    else:
        assert ratios.amplification_text(how, node, just) == expected


# --- devices


def gpu(memory: str, *, health: bool = True) -> DeviceInfo:
    resources = {
        names.RESOURCE_GPU_CORE: Quantity("100"),
        names.RESOURCE_GPU_MEMORY: Quantity(memory),
        names.RESOURCE_GPU_MEMORY_RATIO: Quantity("100"),
        "vendor.io/else": Quantity("1"),
    }
    return DeviceInfo(type="gpu", health=health, resources=resources)


def device(*infos: DeviceInfo, **labels: str) -> Device:
    return Device(metadata=ObjectMeta(name="n1", labels=labels), spec=DeviceSpec(devices=list(infos)))


@pytest.mark.parametrize(("vendor", "shared"), [("", True), ("nvidia", False), ("huawei", False)])
def test_gpu_totals(vendor: str, shared: bool) -> None:
    gpu_device = device(gpu("8000"), gpu("10000"), gpu("9", health=False), **{names.LABEL_GPU_VENDOR: vendor})
    totals = {names.RESOURCE_GPU_CORE: 200, names.RESOURCE_GPU_MEMORY: 18000, names.RESOURCE_GPU_MEMORY_RATIO: 200}
    if vendor != "huawei":
        totals[names.RESOURCE_GPU] = 200
    if shared:
        totals[names.RESOURCE_GPU_SHARED] = 200
    assert devices.gpu_totals(gpu_device, shared=shared) == {name: Quantity.of(n) for name, n in totals.items()}
    assert devices.gpu_labels(gpu_device) == {names.LABEL_GPU_VENDOR: vendor}


@pytest.mark.parametrize(
    "device_object", [None, device(), device(gpu("1", health=False))], ids=["none", "empty", "broken"]
)
def test_without_healthy_gpus_all_gpu_resources_are_removed(device_object: Device | None) -> None:
    assert devices.gpu_totals(device_object, shared=True) == dict.fromkeys(devices.GPU_RESOURCES)
    assert devices.gpu_labels(device_object) == {}
    assert devices.rdma_totals(device_object) == {names.RESOURCE_RDMA: None}


def test_rdma_counts_healthy_devices() -> None:
    infos = [DeviceInfo(type="rdma", health=health) for health in (True, True, False)]
    assert devices.rdma_totals(device(*infos)) == {names.RESOURCE_RDMA: Quantity.of(200)}


# --- interference

POLICY = InterferencePolicy(persist_seconds=60, step_seconds=30, step_percent=20, recover_percent=10, floor_percent=50)


def walk(*reports: tuple[float, bool], policy: InterferencePolicy = POLICY) -> list[int]:
    hold, percents = Hold(), []
    for at, bad in reports:
        hold = step(hold, at, "bad" if bad else "", policy)
        percents.append(hold.percent)
    return percents


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([(1, True), (40, True), (61, True), (70, True), (91, True)], [100, 100, 80, 80, 60]),
        ([(1, True), (61, True), (121, True), (181, True), (241, True)], [100, 80, 60, 50, 50]),
        ([(1, True), (40, False), (61, True), (100, True)], [100, 100, 100, 100]),
        ([(1, True), (61, True), (70, False), (100, False), (130, False), (190, False)], [100, 80, 80, 80, 90, 100]),
        ([(1, True), (61, True), (61, True), (50, True)], [100, 80, 80, 80]),
    ],
    ids=["lasts", "floor", "flickers", "recovers", "seen twice or late"],
)
def test_steps(reports: list[tuple[float, bool]], expected: list[int]) -> None:
    assert walk(*reports) == expected


@given(st.lists(st.tuples(st.floats(1, 100), st.booleans()), max_size=60))
def test_steps_are_small_rare_and_bounded(gaps: list[tuple[float, bool]]) -> None:
    at, hold, moved = 1.0, Hold(), -1e9
    for gap, bad in gaps:
        at += gap
        after = step(hold, at, "bad" if bad else "", POLICY)
        assert POLICY.floor_percent <= after.percent <= 100
        assert -POLICY.step_percent <= after.percent - hold.percent <= POLICY.recover_percent
        if after.percent != hold.percent:
            assert at - moved >= POLICY.step_seconds
            assert (after.percent < hold.percent) == bad
            moved = at
        hold = after


@given(st.lists(st.booleans(), max_size=30))
def test_without_interference_the_reduction_is_reverted(bad: list[bool]) -> None:
    reports = [(60.0 * (index + 1), interfered) for index, interfered in enumerate(bad)]
    calm = [(60.0 * (len(bad) + 1 + index), False) for index in range(12)]
    assert walk(*reports, *calm)[-1] == 100


def brief(resource: str, culprit: str = "demo/burn/main", **more: Any) -> dict[str, Any]:
    message = {"container": "c", "resource": resource, "cause": "neighbour", "state": "interfered", "confidence": 0.9}
    return {**message, "culprit": culprit, **more}


@pytest.mark.parametrize(
    ("node", "briefs", "policy", "resource", "expected"),
    [
        ({"cpu": 2}, [], {}, "cpu", "2 containers delayed by co-located pods"),
        ({"memory": 1}, [], {}, "cpu", ""),
        ({"memory": 1}, [], {}, "memory", "1 container delayed by co-located pods"),
        ({}, [brief("io")], {}, "cpu", "1 container delayed by co-located pods, culprits: demo/burn"),
        ({}, [brief("cpu", cause="self")], {}, "cpu", ""),
        ({}, [brief("cpu", state="suspected")], {}, "cpu", ""),
        ({}, [brief("cpu", confidence=0.3)], {}, "cpu", ""),
        ({"cpu": 3}, [brief("cpu", "demo/web/main")], {"culprits": CULPRITS_OVERCOMMITTED}, "cpu", ""),
        (
            {"cpu": 3},
            [brief("cpu")],
            {"culprits": CULPRITS_OVERCOMMITTED},
            "cpu",
            "1 container delayed by co-located pods, culprits: demo/burn",
        ),
        ({}, [brief("cpu", "system")], {"culprits": ANY}, "cpu", "1 container delayed by co-located pods"),
    ],
)
def test_what_counts_as_interference(node: Any, briefs: Any, policy: Any, resource: str, expected: str) -> None:
    victim = pod_metric("v", "1", "1G", extensions={"interference": briefs})
    report = read_report(make_metric(victim, extensions={"interference": {"interfered": node}}))
    assert report is not None
    assert describe(report, resource, InterferencePolicy(**policy), lambda key: key == "demo/burn") == expected


@pytest.mark.parametrize("message", [1, [1], {"interfered": 3}, {"interfered": {"cpu": "many"}}, "x", None])
def test_extensions_of_another_shape_are_ignored(message: Any) -> None:
    victim = pod_metric("v", "1", "1G", extensions={"interference": message})
    report = read_report(make_metric(victim, extensions={"interference": message}))
    assert report is not None
    assert not report.has_interference


def test_disabling_the_policy_removes_reductions_at_once() -> None:
    report = read_report(make_metric(extensions={"interference": {"interfered": {"cpu": 2}}}))
    assert report is not None
    held = {"cpu": Hold(percent=60)}
    assert updated_holds(held, report, InterferencePolicy(enable=False), lambda _: True) == {}
    assert updated_holds(held, report, POLICY, lambda _: True)["cpu"].percent == 60


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"stepPercent": 0}, "extensions.interference.stepPercent: 0 is less than 1"),
        ({"floorPercent": 101}, "extensions.interference.floorPercent"),
        ({"culprits": "all"}, "extensions.interference.culprits"),
        ({"persistSeconds": "long"}, "extensions.interference.persistSeconds"),
        ([], "extensions.interference: "),
    ],
)
def test_a_policy_out_of_bounds_names_its_field(message: Any, field: str) -> None:
    with pytest.raises(InterferencePolicyError, match=field):
        policy_of(strategy(extensions={"interference": message}))


def test_the_default_policy() -> None:
    assert policy_of(strategy()) == InterferencePolicy(
        enable=True, persist_seconds=120, step_seconds=50, step_percent=10, recover_percent=5, floor_percent=40,
        min_confidence=0.5, culprits=ANY,
    )  # fmt: skip


def test_a_new_leader_continues_from_the_annotation() -> None:
    hold = Hold(percent=70, seen=NOW, hurt_since=NOW - 90.5, because="bad")
    text = OVERCOMMIT.text(OvercommitExplanation(reason="InterferencePersists", hold={"cpu": hold, "disk": hold}))
    assert written_holds(make_node(annotations={names.ANNOTATION_OVERCOMMIT: text})) == {"cpu": hold}
    assert written_holds(make_node(annotations={names.ANNOTATION_OVERCOMMIT: "{"})) == {}
