"""Plugin arguments: defaults and validation (spec 05 §2.3)."""

from __future__ import annotations

from typing import Any

import pytest

from control.component.reading import Reader
from control.scheduler.config.argchecks import check
from control.scheduler.config.args import ARGS, QUOTA_UNLIMITED, WeightedResource, default_args


def read(plugin: str, body: dict[str, Any]) -> Any:
    problems: list[str] = []
    args = Reader(problems).struct(body, ARGS[plugin], "args")
    assert problems == []
    return args


def wrong(plugin: str, body: dict[str, Any]) -> list[str]:
    return [text.removeprefix("args") for text in check(read(plugin, body), "args")]


@pytest.mark.parametrize("plugin", ARGS)
def test_defaults_are_within_limits(plugin: str) -> None:
    assert check(default_args(plugin), "args") == []
    assert read(plugin, {}) == default_args(plugin)


def test_a_plugin_without_arguments_has_none() -> None:
    assert default_args("DefaultPreBind") is None


@pytest.mark.parametrize(
    ("plugin", "body", "field", "expected"),
    [
        ("LoadAwareScheduling", {}, "resource_weights", {"cpu": 1, "memory": 1}),
        ("LoadAwareScheduling", {"dominantResourceWeight": 5}, "resource_weights", {}),
        ("LoadAwareScheduling", {"resourceWeights": {"cpu": 3}}, "resource_weights", {"cpu": 3}),
        ("LoadAwareScheduling", {}, "usage_thresholds", {"cpu": 65, "memory": 95}),
        ("LoadAwareScheduling", {"usageThresholds": {"cpu": 0}}, "usage_thresholds", {"cpu": 0}),
        (
            "LoadAwareScheduling",
            {"estimatedScalingFactors": {"cpu": 50}},
            "estimated_scaling_factors",
            {"cpu": 50, "memory": 70},
        ),
        ("LoadAwareScheduling", {}, "filter_expired_node_metrics", True),
        ("LoadAwareScheduling", {}, "node_metric_expiration_seconds", 180),
        ("Coscheduling", {}, "default_match_policy", "once-satisfied"),
        ("Reservation", {"controllerWorkers": 0}, "controller_workers", 1),
        ("Reservation", {"gcDurationSeconds": 0}, "gc_duration_seconds", 86400),
        ("Reservation", {"minCandidateNodesAbsolute": 0}, "min_candidate_nodes_absolute", 0),
        ("NodeNUMAResource", {}, "default_cpu_bind_policy", "FullPCPUs"),
        ("NodeNUMAResource", {"defaultCPUBindPolicy": ""}, "default_cpu_bind_policy", ""),
        ("DeviceShare", {"disableDeviceNUMATopologyAlignment": True}, "disable_device_numa_topology_alignment", True),
        ("SchedulingHint", {}, "max_hint_nodes", 100),
        ("InterPodAffinity", {"hardPodAffinityWeight": 0}, "hard_pod_affinity_weight", 0),
        ("VolumeBinding", {}, "bind_timeout_seconds", 600),
        ("DefaultPreemption", {"minCandidateNodesPercentage": 20}, "min_candidate_nodes_percentage", 20),
        ("PodTopologySpread", {}, "defaulting_type", "System"),
    ],
)
def test_defaults(plugin: str, body: dict[str, Any], field: str, expected: object) -> None:
    assert getattr(read(plugin, body), field) == expected


@pytest.mark.parametrize(
    ("plugin", "body", "strategy", "expected"),
    [
        ("NodeResourcesFit", {}, "scoring_strategy", [("cpu", 1), ("memory", 1)]),
        (
            "NodeResourcesFit",
            {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "x"}]}},
            "scoring_strategy",
            [("x", 1)],
        ),
        ("NodeNUMAResource", {}, "numa_scoring_strategy", [("cpu", 1), ("memory", 1)]),
        (
            "DeviceShare",
            {},
            "scoring_strategy",
            [(f"koordinator.sh/{name}", 1) for name in ("gpu-memory-ratio", "gpu-memory", "rdma", "fpga")],
        ),
    ],
)
def test_scored_resources(plugin: str, body: dict[str, Any], strategy: str, expected: list[tuple[str, int]]) -> None:
    assert getattr(read(plugin, body), strategy).resources == [WeightedResource(*weighted) for weighted in expected]


def test_quota_groups_are_unlimited_by_default() -> None:
    args = default_args("ElasticQuota")
    assert QUOTA_UNLIMITED == 1844674407370955161
    assert {name: amount.value() for name, amount in args.default_quota_group_max.items()} == {
        "cpu": QUOTA_UNLIMITED,
        "memory": QUOTA_UNLIMITED,
    }


WEIGHT = "resource weight of cpu not in valid range [1, 100]"


@pytest.mark.parametrize(
    ("plugin", "body", "expected"),
    [
        (
            "LoadAwareScheduling",
            {"nodeMetricExpirationSeconds": 0},
            [".nodeMetricExpirationSeconds: Invalid value: 0: nodeMetricExpirationSeconds should be a positive value"],
        ),
        (
            "LoadAwareScheduling",
            {"resourceWeights": {"cpu": 101, "gpu": 1}},
            [
                ".resourceWeights[cpu]: Invalid value: 101: not in valid range [1, 100]",
                '.estimatedScalingFactors: Not found: "gpu"',
            ],
        ),
        (
            "LoadAwareScheduling",
            {"usageThresholds": {"cpu": -1}, "prodUsageThresholds": {"cpu": 101}},
            [
                ".usageThresholds[cpu]: Invalid value: -1: not in valid range [0, 100]",
                ".prodUsageThresholds[cpu]: Invalid value: 101: not in valid range [0, 100]",
            ],
        ),
        (
            "LoadAwareScheduling",
            {"estimatedScalingFactors": {"cpu": 0}, "dominantResourceWeight": 101},
            [
                ".dominantResourceWeight: Invalid value: 101: not in valid range [0, 100]",
                ".estimatedScalingFactors[cpu]: Invalid value: 0: not in valid range [1, 100]",
            ],
        ),
        (
            "LoadAwareScheduling",
            {"aggregated": {"usageAggregationType": "p42", "scoreAggregatedDuration": "-1s"}},
            [
                '.aggregated.usageAggregationType: Unsupported value: "p42": supported values: "avg", "p50", "p90",'
                ' "p95", "p99"',
                '.aggregated.scoreAggregatedDuration: Invalid value: "-1s": must be greater than or equal to 0',
            ],
        ),
        (
            "Coscheduling",
            {"defaultTimeout": "-1s", "controllerWorkers": 0},
            [
                '.defaultTimeout: Invalid value: "-1s": must be greater than or equal to 0',
                ".controllerWorkers: Invalid value: 0: must be greater than 0",
            ],
        ),
        (
            "Reservation",
            {"minCandidateNodesPercentage": 101, "minCandidateNodesAbsolute": -1, "gcIntervalSeconds": -5},
            [
                ".minCandidateNodesPercentage: Invalid value: 101: not in valid range [0, 100]",
                ".minCandidateNodesAbsolute: Invalid value: -1: not in valid range [0, inf)",
                ".gcIntervalSeconds: Invalid value: -5: must be greater than or equal to 0",
            ],
        ),
        (
            "Reservation",
            {"ignoredResources": ["cpu", "example.com/a"], "ignoredResourceGroups": ["a/b", "kubernetes.io", "A"]},
            [
                '.ignoredResources[0]: Invalid value: "cpu": must be an extended resource',
                ".ignoredResourceGroups[0]: Invalid value: \"a/b\": resource group name can't contain '/'",
                '.ignoredResourceGroups[1]: Invalid value: "kubernetes.io": must not be kubernetes.io',
                '.ignoredResourceGroups[2]: Invalid value: "A": must be a DNS subdomain',
            ],
        ),
        (
            "NodeNUMAResource",
            {
                "defaultCPUBindPolicy": "Any",
                "scoringStrategy": {"type": "RequestedToCapacityRatio", "resources": [{"name": "cpu", "weight": 0}]},
            },
            [
                '.defaultCPUBindPolicy: Unsupported value: "Any": supported values: "", "FullPCPUs", "SpreadByPCPUs"',
                '.scoringStrategy.type: Unsupported value: "RequestedToCapacityRatio": supported values:'
                ' "BalancedAllocation", "LeastAllocated", "MostAllocated"',
                f".scoringStrategy.resources[0].weight: Invalid value: 0: {WEIGHT}",
            ],
        ),
        ("DeviceShare", {"scoringStrategy": {"resources": []}}, [".scoringStrategy.resources: Required value"]),
        ("SchedulingHint", {"maxHintNodes": 0}, [".maxHintNodes: Invalid value: 0: must be greater than 0"]),
        (
            "NodeResourcesFit",
            {"scoringStrategy": {"resources": [{"name": "cpu", "weight": 101}, {"name": "cpu", "weight": 1}]}},
            [
                f".scoringStrategy.resources[0].weight: Invalid value: 101: {WEIGHT}",
                '.scoringStrategy.resources[1].name: Duplicate value: "cpu"',
            ],
        ),
        (
            "NodeResourcesFit",
            {"scoringStrategy": {"type": "RequestedToCapacityRatio"}},
            [".scoringStrategy.requestedToCapacityRatio: Required value"],
        ),
        (
            "NodeResourcesFit",
            {
                "scoringStrategy": {
                    "type": "RequestedToCapacityRatio",
                    "requestedToCapacityRatio": {
                        "shape": [{"utilization": 50, "score": 11}, {"utilization": 50, "score": 0}]
                    },
                }
            },
            [
                ".scoringStrategy.requestedToCapacityRatio.shape[0].score: Invalid value: 11: not in valid range"
                " [0, 10]",
                ".scoringStrategy.requestedToCapacityRatio.shape[1].utilization: Invalid value: 50: utilization values"
                " must be sorted in increasing order",
            ],
        ),
        (
            "NodeResourcesBalancedAllocation",
            {"resources": [{"name": "cpu", "weight": 2}]},
            [".resources[0].weight: Invalid value: 2: must be 1"],
        ),
        (
            "PodTopologySpread",
            {"defaultConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"}]},
            ['.defaultingType: Invalid value: "System": when .defaultConstraints are not empty'],
        ),
        (
            "PodTopologySpread",
            {
                "defaultingType": "List",
                "defaultConstraints": [
                    {"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "Never", "labelSelector": {}}
                ],
            },
            [
                ".defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf)",
                ".defaultConstraints[0].topologyKey: Required value: can not be empty",
                '.defaultConstraints[0].whenUnsatisfiable: Unsupported value: "Never": supported values:'
                ' "DoNotSchedule", "ScheduleAnyway"',
                ".defaultConstraints[0].labelSelector: Forbidden: constraint must not define a selector, as they"
                " deduced for each pod",
            ],
        ),
        (
            "NodeAffinity",
            {
                "addedAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Near"}]}]
                    }
                }
            },
            [
                ".addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]"
                '.operator: Unsupported value: "Near": supported values: "DoesNotExist", "Exists", "Gt", "In", "Lt",'
                ' "NotIn"'
            ],
        ),
        (
            "VolumeBinding",
            {"bindTimeoutSeconds": -1},
            [
                ".bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should not be a negative value",
            ],
        ),
        (
            "DefaultPreemption",
            {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0},
            [
                ".minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as"
                " minCandidateNodesAbsolute"
            ],
        ),
        (
            "Reservation",
            {"enablePreemption": True, "minCandidateNodesPercentage": 101, "minCandidateNodesAbsolute": 0},
            [".minCandidateNodesPercentage: Invalid value: 101: not in valid range [0, 100]"],
        ),
        ("Reservation", {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0}, []),
        (
            "Reservation",
            {"enablePreemption": True, "minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0},
            [
                ".minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as"
                " minCandidateNodesAbsolute"
            ],
        ),
    ],
)
def test_limits(plugin: str, body: dict[str, Any], expected: list[str]) -> None:
    assert wrong(plugin, body) == expected
