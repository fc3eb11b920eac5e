"""Arguments of every plugin of kube-scheduler and Koordinator, with their defaults (spec 05 §2.3).

JSON names are the camelCase of the attribute unless the field states another name. Defaults that depend on other fields
are filled in by `__post_init__`. `ARGS` maps a plugin to the type of its arguments; plugins that are missing there take
none. `argchecks` validates the values.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import force_setattr

from koordlet.api.core.selectors import NodeAffinity, TopologySpreadConstraint
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.times import Duration

AGGREGATIONS: Final = ("avg", "p50", "p90", "p95", "p99")


class Args(msgspec.Struct, frozen=True, rename="camel"):
    """Base of all arguments. Frozen, because several objects share them."""


class WeightedResource(Args, frozen=True):
    """A resource and its weight in a score."""

    name: str = ""
    weight: int = 0


def weights(**amounts: int) -> list[WeightedResource]:
    """Resources and weights, in order."""
    return [WeightedResource(name, weight) for name, weight in amounts.items()]


# kube-scheduler


class UtilizationShapePoint(Args, frozen=True):
    """A point of a score function: at `utilization` percent the score is `score`, 0..10."""

    utilization: int = 0
    score: int = 0


class RequestedToCapacityRatioParam(Args, frozen=True):
    """The score function of the strategy `RequestedToCapacityRatio`."""

    shape: list[UtilizationShapePoint] = []


class ScoringStrategy(Args, frozen=True):
    """How a score is computed from amounts. Koordinator's plugins do not support `RequestedToCapacityRatio`."""

    type: str = "LeastAllocated"
    resources: list[WeightedResource] = []
    requested_to_capacity_ratio: RequestedToCapacityRatioParam | None = None


class NodeResourcesFitArgs(Args, frozen=True):
    """Default resources: cpu 1, memory 1. A weight of 0 means 1."""

    ignored_resources: list[str] = []
    ignored_resource_groups: list[str] = []
    scoring_strategy: ScoringStrategy = ScoringStrategy()

    def __post_init__(self) -> None:
        strategy = self.scoring_strategy
        resources = [msgspec.structs.replace(resource, weight=resource.weight or 1) for resource in strategy.resources]
        completed = msgspec.structs.replace(strategy, resources=resources or weights(cpu=1, memory=1))
        force_setattr(self, "scoring_strategy", completed)


class NodeResourcesBalancedAllocationArgs(Args, frozen=True):
    """Default resources: cpu 1, memory 1. A weight of 0 means 1; no other weight is allowed."""

    resources: list[WeightedResource] = []

    def __post_init__(self) -> None:
        resources = [msgspec.structs.replace(resource, weight=resource.weight or 1) for resource in self.resources]
        force_setattr(self, "resources", resources or weights(cpu=1, memory=1))


class NodeAffinityArgs(Args, frozen=True):
    """`added_affinity` applies to every pod of the profile, in addition to the pod's own."""

    added_affinity: NodeAffinity | None = None


class PodTopologySpreadArgs(Args, frozen=True):
    """Defaults for pods without constraints. `defaulting_type` System: zone 5, hostname 3; List:
    `default_constraints`."""

    default_constraints: list[TopologySpreadConstraint] = []
    defaulting_type: str = "System"


class InterPodAffinityArgs(Args, frozen=True):
    """`hard_pod_affinity_weight`: weight of the required affinity of existing pods in the score."""

    hard_pod_affinity_weight: int = 1
    ignore_preferred_terms_of_existing_pods: bool = False


class VolumeBindingArgs(Args, frozen=True):
    """`bind_timeout_seconds`: how long PreBind waits for volumes. `shape`: score by used capacity; empty: no score."""

    bind_timeout_seconds: int = 600
    shape: list[UtilizationShapePoint] = []


class DefaultPreemptionArgs(Args, frozen=True):
    """Number of nodes that preemption evaluates: the larger of a percentage and an absolute number."""

    min_candidate_nodes_percentage: int = 10
    min_candidate_nodes_absolute: int = 100


class DynamicResourcesArgs(Args, frozen=True):
    """Accepted without effect: this scheduler does not allocate resource claims."""

    filter_timeout: Duration = Duration("10s")
    binding_timeout: Duration = Duration("600s")


# Koordinator: load and gangs


class LoadAwareSchedulingAggregatedArgs(Args, frozen=True):
    """Percentiles instead of averages, for the filter (`usage…`) and the score. Duration 0: the longest available."""

    usage_thresholds: dict[str, int] = {}
    usage_aggregation_type: str = ""
    usage_aggregated_duration: Duration = Duration("0")
    score_aggregation_type: str = ""
    score_aggregated_duration: Duration = Duration("0")


class LoadAwareSchedulingArgs(Args, frozen=True):
    """Maps are by resource name. Thresholds and factors are in percent; a threshold of 0 is disabled."""

    filter_expired_node_metrics: bool = True
    node_metric_expiration_seconds: int = 180
    enable_schedule_when_node_metrics_expired: bool = False
    resource_weights: dict[str, int] = {}
    dominant_resource_weight: int = 0
    usage_thresholds: dict[str, int] = {}
    prod_usage_thresholds: dict[str, int] = {}
    prod_usage_include_sys: bool = False
    score_according_prod_usage: bool = False
    estimator: str = ""
    estimated_scaling_factors: dict[str, int] = {}
    estimated_seconds_after_pod_scheduled: int | None = None
    estimated_seconds_after_initialized: int | None = None
    allow_customize_estimation: bool = False
    aggregated: LoadAwareSchedulingAggregatedArgs | None = None
    supported_resources: list[str] = []

    def __post_init__(self) -> None:
        if not self.resource_weights and not self.dominant_resource_weight:
            force_setattr(self, "resource_weights", {"cpu": 1, "memory": 1})
        if not self.usage_thresholds:
            force_setattr(self, "usage_thresholds", {"cpu": 65, "memory": 95})
        force_setattr(self, "estimated_scaling_factors", {"cpu": 85, "memory": 70} | self.estimated_scaling_factors)


class CoschedulingArgs(Args, frozen=True):
    """`default_timeout`: how long a gang waits at Permit. `skip_check_schedule_cycle` has no effect.

    `non_strict_gangs_wait` is not Koordinator's: false lets members of NonStrict gangs lose their nodes at the end of a
    round without enough members, as in Koordinator."""

    default_timeout: Duration = Duration("600s")
    controller_workers: int = 1
    skip_check_schedule_cycle: bool = False
    enable_preemption: bool = False
    aware_network_topology: bool = False
    default_match_policy: str = "once-satisfied"
    non_strict_gangs_wait: bool = True


# Koordinator: resources


class PreAllocationConfig(Args, frozen=True):
    """The running pods that a reservation may take over."""

    enable_cluster_mode: bool = False
    cluster_label_key: str = "pod.koordinator.sh/is-pre-allocatable"
    cluster_priority_annotation_key: str = "pod.koordinator.sh/pre-allocatable-priority"
    prefer_no_pre_allocated_pods: bool = False


class ReservationSelectorIndex(Args, frozen=True):
    """Labels that index reservations, so that not all of them are examined."""

    enabled: bool = False
    key_prefixes: list[str] = []
    keys: list[str] = []


class ReservationArgs(Args, frozen=True):
    """0 seconds or workers mean the default."""

    enable_preemption: bool = False
    min_candidate_nodes_percentage: int = 10
    min_candidate_nodes_absolute: int = 100
    controller_workers: int = 1
    gc_duration_seconds: int = 86400
    gc_interval_seconds: int = 60
    disable_garbage_collection: bool = False
    resync_interval_seconds: int = 60
    pre_allocation_config: PreAllocationConfig = PreAllocationConfig()
    ignored_resources: list[str] = []
    ignored_resource_groups: list[str] = []
    reservation_selector_index: ReservationSelectorIndex = ReservationSelectorIndex()

    def __post_init__(self) -> None:
        for name, default in _RESERVATION_NUMBERS.items():
            if getattr(self, name) == 0:
                force_setattr(self, name, default)


_RESERVATION_NUMBERS: Final = {
    "controller_workers": 1,
    "gc_duration_seconds": 86400,
    "gc_interval_seconds": 60,
    "resync_interval_seconds": 60,
}
QUOTA_UNLIMITED: Final = (2**63 - 1) // 5
"""The maximum of the default and system quota groups."""


class HookPluginConf(Args, frozen=True):
    """A hook of ElasticQuota: the factory that creates it, and the factory's arguments."""

    key: str = ""
    factory_key: str = ""
    factory_args: str = ""


def _unlimited() -> dict[str, Quantity]:
    return {"cpu": Quantity.of(QUOTA_UNLIMITED), "memory": Quantity.of(QUOTA_UNLIMITED)}


class ElasticQuotaArgs(Args, frozen=True):
    """`…_max`: resource name -> amount."""

    delay_evict_time: Duration = Duration("120s")
    revoke_pod_interval: Duration = Duration("1s")
    default_quota_group_max: dict[str, Quantity] = msgspec.field(default_factory=_unlimited)
    system_quota_group_max: dict[str, Quantity] = msgspec.field(default_factory=_unlimited)
    quota_group_namespace: str = "koordinator-system"
    monitor_all_quotas: bool = False
    enable_check_parent_quota: bool = False
    enable_runtime_quota: bool = True
    enable_min_quota_scale: bool = True
    disable_default_quota_preemption: bool = True
    enable_queue_hint: bool = False
    quota_snapshot_update_interval: Duration = Duration("120s")
    hook_plugins: list[HookPluginConf] = []

    def __post_init__(self) -> None:
        for name in ("default_quota_group_max", "system_quota_group_max"):
            if not getattr(self, name):
                force_setattr(self, name, _unlimited())


def _least_of_cpu_and_memory() -> ScoringStrategy:
    return ScoringStrategy("LeastAllocated", weights(cpu=1, memory=1))


class NodeNUMAResourceArgs(Args, frozen=True):
    """`default_cpu_bind_policy`: for LSE and LSR pods that request none."""

    default_cpu_bind_policy: str = msgspec.field(default="FullPCPUs", name="defaultCPUBindPolicy")
    scoring_strategy: ScoringStrategy = msgspec.field(default_factory=_least_of_cpu_and_memory)
    numa_scoring_strategy: ScoringStrategy = msgspec.field(default_factory=_least_of_cpu_and_memory)


class GPUSharedResourceTemplatesConfig(Args, frozen=True):
    """The ConfigMap with the templates of shared GPUs, and the resources that the templates apply to."""

    config_map_namespace: str = "koordinator-system"
    config_map_name: str = "gpu-shared-resource-templates"
    matched_resources: list[str] = msgspec.field(default_factory=lambda: ["huawei.com/npu-core"])


class GPUShareUnsupportedModel(Args, frozen=True):
    """A GPU model that cannot be shared."""

    vendor: str = ""
    model: str = ""


_DEVICE_RESOURCES: Final = ("gpu-memory-ratio", "gpu-memory", "rdma", "fpga")


def _least_of_devices() -> ScoringStrategy:
    return ScoringStrategy(
        "LeastAllocated", [WeightedResource(f"koordinator.sh/{name}", 1) for name in _DEVICE_RESOURCES]
    )


class DeviceShareArgs(Args, frozen=True):
    """`allocator` is deprecated and has no effect."""

    allocator: str = ""
    scoring_strategy: ScoringStrategy = msgspec.field(default_factory=_least_of_devices)
    disable_device_numa_topology_alignment: bool = msgspec.field(
        default=False, name="disableDeviceNUMATopologyAlignment"
    )
    gpu_shared_resource_templates_config: GPUSharedResourceTemplatesConfig = msgspec.field(
        default_factory=GPUSharedResourceTemplatesConfig
    )
    gpu_share_unsupported_models: list[GPUShareUnsupportedModel] = []


# Koordinator: small plugins


class ResourcesType(Args, frozen=True):
    """The scoring of one resource (MostAllocated or LeastAllocated) and its weight."""

    type: str = ""
    weight: int = 0


class NodeResourcesFitPlusArgs(Args, frozen=True):
    """By resource name."""

    resources: dict[str, ResourcesType] = {}


class ScarceResourceAvoidanceArgs(Args, frozen=True):
    """Resources whose nodes are left to pods that request them."""

    resources: list[str] = []


class SchedulingHintArgs(Args, frozen=True):
    """`max_hint_nodes`: the number of nodes that a hint may name."""

    max_hint_nodes: int = 100


# This project


def _for_every_kind(amount: int) -> dict[str, int]:
    return dict.fromkeys(("cpu", "memory", "io", "network"), amount)


class InterferenceAwareArgs(Args, frozen=True):
    """By kind of interference (cpu, memory, io, network). A kind that is missing has 0, which disables it.

    `thresholds`: with this number of victim containers or more, a node takes no further best-effort pods. `weights`:
    points out of 100 that the score of such a node loses; proportionally less below the threshold.
    """

    report_expiration_seconds: int = 180
    min_confidence: float = 0.5
    thresholds: dict[str, int] = msgspec.field(default_factory=lambda: _for_every_kind(2))
    weights: dict[str, int] = msgspec.field(default_factory=lambda: _for_every_kind(50))


ARGS: Final[dict[str, type[Args]]] = {
    kind.__name__.removesuffix("Args"): kind
    for kind in (
        *(NodeResourcesFitArgs, NodeResourcesBalancedAllocationArgs, NodeAffinityArgs, PodTopologySpreadArgs),
        *(InterPodAffinityArgs, VolumeBindingArgs, DefaultPreemptionArgs, DynamicResourcesArgs),
        *(LoadAwareSchedulingArgs, CoschedulingArgs, ReservationArgs, ElasticQuotaArgs, NodeNUMAResourceArgs),
        *(DeviceShareArgs, NodeResourcesFitPlusArgs, ScarceResourceAvoidanceArgs, SchedulingHintArgs),
        *(InterferenceAwareArgs,),
    )
}
"""Plugin -> the type of its arguments, whose name is the `kind` in configuration files."""


def default_args(plugin: str) -> Any:
    """The default arguments of a plugin; None for a plugin that takes none."""
    kind = ARGS.get(plugin)
    return None if kind is None else kind()
