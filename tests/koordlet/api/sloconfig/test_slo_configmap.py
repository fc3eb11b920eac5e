"""Loading and merging the ConfigMap: spec 01 §6.2, §6.3, §6.4 and the examples of §6.7."""

from __future__ import annotations

import pytest

from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import encode
from koordlet.api.meta import LabelSelector, LabelSelectorRequirement
from koordlet.api.sloconfig import colocation, defaults
from koordlet.api.sloconfig.colocation import ColocationStrategy, for_node, metric_settings, percent_of_ratio
from koordlet.api.sloconfig.configmap import DEFAULTS, UNREAD, SLOConfig, load, system_for_node
from koordlet.api.sloconfig.merge import MergedStrategies, NodeStrategy

THRESHOLD = (
    '{"clusterStrategy":{"enable":true,"cpuSuppressThresholdPercent":60},"nodeStrategies":['
    '{"name":"a","nodeSelector":{"matchLabels":{"xxx":"yyy"}},"memoryEvictThresholdPercent":75},'
    '{"name":"b","nodeSelector":{},"enable":false}]}'
)
COLOCATION = (
    '{"enable":true,"cpuReclaimThresholdPercent":70,"nodeConfigs":['
    '{"nodeSelector":{"matchLabels":{"p":"1"}},"metricAggregateDurationSeconds":-1},'
    '{"nodeSelector":{"matchLabels":{"p":"2"}},"resourceDiffThreshold":0.2}]}'
)


def loaded(**data: str) -> SLOConfig:
    config, problems = load(UNREAD, {key.replace("_", "-"): text for key, text in data.items()})
    assert problems == ()
    return config


def test_threshold_example() -> None:
    merged = loaded(resource_threshold_config=THRESHOLD).threshold
    assert merged
    assert encode(merged.for_node({"xxx": "yyy"})).decode() == (
        '{"enable":true,"cpuSuppressThresholdPercent":60,"cpuSuppressPolicy":"cpuset",'
        '"memoryEvictThresholdPercent":75,"cpuEvictPolicy":"evictByRealLimit"}'
    )
    assert encode(merged.for_node({"xxx": "other"})).decode() == (
        '{"enable":false,"cpuSuppressThresholdPercent":60,"cpuSuppressPolicy":"cpuset",'
        '"memoryEvictThresholdPercent":70,"cpuEvictPolicy":"evictByRealLimit"}'
    )


def test_colocation_example() -> None:
    merged = loaded(colocation_config=COLOCATION).colocation
    assert merged
    first = for_node(merged, {"p": "1"}, {})
    assert first == merged.cluster
    assert (first.enable, first.cpu_reclaim_threshold_percent, first.resource_diff_threshold) == (True, 70, 0.1)
    second = for_node(
        merged,
        {"p": "2", "node.koordinator.sh/cpu-reclaim-ratio": "0.8"},
        {"node.koordinator.sh/colocation-strategy": '{"cpuReclaimThresholdPercent":100}'},
    )
    assert (second.cpu_reclaim_threshold_percent, second.resource_diff_threshold) == (80, 0.2)
    assert second.memory_reclaim_threshold_percent == 65 and second.enable is True


def test_qos_example_is_not_changed_by_the_manager() -> None:
    document = '{"clusterStrategy":{"beClass":{"cpuQOS":{"enable":true},"memoryQOS":{"wmarkRatio":90}}}}'
    merged = loaded(resource_qos_config=document).qos
    assert merged
    assert encode(merged.for_node({})) == b'{"beClass":{"cpuQOS":{"enable":true},"memoryQOS":{"wmarkRatio":90}}}'


def test_system_example_inherits_the_bandwidth() -> None:
    document = (
        '{"clusterStrategy":{"totalNetworkBandwidth":"10G"},"nodeStrategies":['
        '{"nodeSelector":{"matchLabels":{"a":"b"}},"watermarkScaleFactor":150}]}'
    )
    merged = loaded(system_config=document).system
    assert merged
    strategy = merged.for_node({"a": "b"})
    assert (strategy.watermark_scale_factor, strategy.total_network_bandwidth) == (150, Quantity("10G"))
    key = "node.koordinator.sh/network-bandwidth"
    annotated = system_for_node(merged, {"a": "b"}, {key: "99M"})
    assert annotated and annotated.total_network_bandwidth == Quantity("99M")
    assert system_for_node(merged, {}, {key: "fast"}) is None
    assert system_for_node(merged, {}, {}) == merged.cluster


def test_host_applications_are_replaced_not_merged() -> None:
    document = (
        '{"applications":[{"name":"nginx","qos":"LS","cgroupPath":{"base":"CgroupRoot","relativePath":"nginx"}}],'
        '"nodeConfigs":[{"nodeSelector":{"matchLabels":{"a":"b"}},"applications":[{"name":"x"}]},'
        '{"nodeSelector":{"matchLabels":{"a":"c"}}}]}'
    )
    merged = loaded(host_application_config=document).host_applications
    assert merged
    assert [app.name for app in merged.for_node({})] == ["nginx"]
    assert [app.name for app in merged.for_node({"a": "b"})] == ["x"]
    assert merged.for_node({"a": "c"}) == ()


def test_missing_keys_mean_defaults() -> None:
    assert load(UNREAD, {}) == (DEFAULTS, ())
    assert load(loaded(resource_threshold_config=THRESHOLD, colocation_config=COLOCATION), {}) == (DEFAULTS, ())


def test_no_configmap() -> None:
    config, problems = load(UNREAD, None)
    assert config.colocation == DEFAULTS.colocation and config.colocation_error and config.node_slo_available
    assert config.normalization == DEFAULTS.normalization and problems == ()
    kept = loaded(colocation_config=COLOCATION)
    assert load(kept, None) == (kept, ()), "a ConfigMap deleted at run time changes nothing"
    assert not UNREAD.node_slo_available


ALL_BAD = dict.fromkeys(
    (
        "colocation-config",
        "resource-threshold-config",
        "resource-qos-config",
        "cpu-burst-config",
        "system-config",
        "host-application-config",
        "cpu-normalization-config",
        "resource-amplification-config",
    ),
    "{",
)


def test_invalid_json_at_first_load() -> None:
    config, problems = load(UNREAD, ALL_BAD)
    assert config.colocation is None and config.colocation_error
    assert config.normalization is None and config.amplification is None
    assert config.threshold == DEFAULTS.threshold and config.host_applications == DEFAULTS.host_applications
    assert {problem.key: problem.event for problem in problems} == {
        "colocation-config": "ColocationCfgUnmarshalFailed",
        "resource-threshold-config": "SLOCfgUnmarshalFailed",
        "resource-qos-config": "SLOCfgUnmarshalFailed",
        "cpu-burst-config": "SLOCfgUnmarshalFailed",
        "system-config": "SLOCfgUnmarshalFailed",
        "host-application-config": "SLOCfgUnmarshalFailed",
        "cpu-normalization-config": "CPUNormalizationCfgUnmarshalFailed",
        "resource-amplification-config": "ResourceAmplificationCfgUnmarshalFailed",
    }


def test_invalid_json_keeps_the_last_good_of_its_key_alone() -> None:
    good = loaded(
        colocation_config=COLOCATION,
        resource_threshold_config=THRESHOLD,
        cpu_normalization_config='{"enable":true,"defaultRatio":1.5}',
    )
    config, problems = load(good, {**ALL_BAD, "cpu-burst-config": '{"clusterStrategy":{"policy":"auto"}}'})
    assert config.colocation == good.colocation and config.colocation_error
    assert config.threshold == good.threshold and config.normalization == good.normalization
    assert config.cpu_burst and config.cpu_burst.cluster.policy == "auto"
    assert len(problems) == 7
    repaired, problems = load(config, {"colocation-config": "{}"})
    assert not repaired.colocation_error and problems == ()


def test_empty_text_is_missing_for_colocation_and_an_error_elsewhere() -> None:
    good = loaded(colocation_config=COLOCATION, resource_threshold_config=THRESHOLD)
    config, problems = load(good, {"colocation-config": "", "resource-threshold-config": ""})
    assert config.colocation == DEFAULTS.colocation and not config.colocation_error
    assert config.threshold == good.threshold
    assert [problem.key for problem in problems] == ["resource-threshold-config"]


def test_cluster_strategy_out_of_bounds_keeps_the_last_good_without_an_event() -> None:
    good = loaded(colocation_config=COLOCATION)
    config, problems = load(good, {"colocation-config": '{"midUnallocatedPercent":101}'})
    assert config.colocation == good.colocation and config.colocation_error
    assert [(problem.event, problem.message) for problem in problems] == [
        (None, "midUnallocatedPercent: 101 is greater than 100")
    ]


def test_an_error_names_the_field() -> None:
    _, problems = load(UNREAD, {"cpu-burst-config": '{"clusterStrategy":{"cpuBurstPercent":"x"}}'})
    assert problems[0].message.startswith("clusterStrategy.cpuBurstPercent: must be an integer")


IN = LabelSelectorRequirement(key="k", operator="In", values=["a", "b"])
BAD = LabelSelector(match_expressions=[LabelSelectorRequirement(key="k", operator="NotIn", values=["bad value!"])])


@pytest.mark.parametrize(
    ("selectors", "labels", "expected"),
    [
        ([LabelSelector(match_labels={"k": "a"})], {"k": "a"}, 0),
        ([LabelSelector(match_labels={"k": "b"}), LabelSelector(match_expressions=[IN])], {"k": "a"}, 1),
        ([LabelSelector(match_expressions=[IN]), LabelSelector(match_labels={"k": "a"})], {"k": "a"}, 0),
        ([LabelSelector()], {}, 0),
        ([None], {"k": "a"}, None),
        ([BAD, LabelSelector()], {"k": "a"}, 1),
        ([], {}, None),
    ],
    ids=["match", "second", "first wins", "empty matches all", "absent matches none", "invalid is skipped", "none"],
)
def test_node_selection(selectors: list[LabelSelector | None], labels: dict[str, str], expected: int | None) -> None:
    merged = MergedStrategies(  # type: ignore[misc]
        None, tuple(NodeStrategy("", selector, index) for index, selector in enumerate(selectors))
    )
    assert merged.for_node(labels) == expected


@pytest.mark.parametrize(
    ("text", "percent"),
    [
        ("0.8", 80), ("1.0", 100), ("1.1", 110), ("0.12", 12), ("0.29", 29), ("0.57", 57), ("2.3", 230), ("0", 0),
        ("1e-1", 10), ("-1", None), ("abc", None), ("", None), (" 1", None), ("nan", None), ("inf", None),
        ("1_0", None), ("1e999", None),
    ],
)  # fmt: skip
def test_ratio_labels_round_to_the_nearest_percent(text: str, percent: int | None) -> None:
    assert percent_of_ratio(text) == percent


def test_all_four_ratio_labels() -> None:
    prefix = "node.koordinator.sh/"
    strategy = for_node(
        MergedStrategies(colocation.DEFAULT),
        {
            prefix + "cpu-reclaim-ratio": "0.1",
            prefix + "memory-reclaim-ratio": "0.2",
            prefix + "mid-static-cpu-reserved-ratio": "0.3",
            prefix + "mid-static-memory-reserved-ratio": "junk",
        },
        {prefix + "colocation-strategy": "{"},
    )
    assert (strategy.cpu_reclaim_threshold_percent, strategy.memory_reclaim_threshold_percent) == (10, 20)
    assert (strategy.mid_static_cpu_reserved_percent, strategy.mid_static_memory_reserved_percent) == (30, 0)


@pytest.mark.parametrize(
    ("strategy", "valid"),
    [
        (None, False),
        (ColocationStrategy(), True),
        (colocation.DEFAULT, True),
        (ColocationStrategy(mid_unallocated_percent=101), False),
        (ColocationStrategy(batch_cpu_threshold_percent=200), True),
        (ColocationStrategy(batch_memory_threshold_percent=-1), False),
        (ColocationStrategy(resource_diff_threshold=0.0), False),
        (ColocationStrategy(resource_diff_threshold=1.5), True),
        (ColocationStrategy(metric_memory_collect_policy=""), False),
        (ColocationStrategy(metric_report_interval_seconds=0), False),
        (ColocationStrategy(degrade_time_minutes=0), False),
        (ColocationStrategy(update_time_threshold_seconds=-1), False),
        (ColocationStrategy(cpu_reclaim_threshold_percent=0), True),
        (ColocationStrategy(mid_static_cpu_reserved_percent=101), True),
    ],
    ids=str,
)
def test_runtime_bounds(strategy: ColocationStrategy | None, valid: bool) -> None:
    assert (not colocation.problems(strategy)) == valid


def test_default_colocation_on_the_wire() -> None:
    assert encode(colocation.DEFAULT).decode() == (
        '{"enable":false,"metricAggregateDurationSeconds":300,"metricReportIntervalSeconds":60,'
        '"metricAggregatePolicy":{"durations":["5m0s","10m0s","30m0s"]},'
        '"metricMemoryCollectPolicy":"usageWithoutPageCache","cpuReclaimThresholdPercent":60,'
        '"cpuCalculatePolicy":"usage","memoryReclaimThresholdPercent":65,"memoryCalculatePolicy":"usage",'
        '"degradeTimeMinutes":15,"updateTimeThresholdSeconds":300,"resourceDiffThreshold":0.1,'
        '"midCPUThresholdPercent":100,"midMemoryThresholdPercent":100,"midUnallocatedPercent":0,'
        '"midStaticCPUReservedPercent":0,"midStaticMemoryReservedPercent":0}'
    )


def test_metric_settings_need_an_enabled_valid_strategy() -> None:
    on = ColocationStrategy(enable=True, metric_report_interval_seconds=30)
    assert metric_settings(on) is on
    assert metric_settings(ColocationStrategy(metric_report_interval_seconds=30)) is colocation.DEFAULT
    assert metric_settings(ColocationStrategy(enable=True, degrade_time_minutes=0)) is colocation.DEFAULT


def test_manager_qos_defaults_are_empty() -> None:
    assert DEFAULTS.qos == MergedStrategies(defaults.MANAGER_QOS)
