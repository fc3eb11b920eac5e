"""Validation of plugin arguments (spec 05 §2.3), with kube-scheduler's error texts. Pure: each check yields texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from control.component.errors import duplicate, invalid, required, unsupported, unusable_name
from control.scheduler.config import args as a
from control.scheduler.config import hookfactories
from koordlet.api.core.selectors import NodeAffinity, NodeSelectorTerm
from koordlet.api.resources import is_extended

MAX_WEIGHT: Final = 100
_FIT_TYPES: Final = ("LeastAllocated", "MostAllocated", "RequestedToCapacityRatio")
_KOORDINATOR_TYPES: Final = ("BalancedAllocation", "LeastAllocated", "MostAllocated")
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

Errors = Iterator[str]


def check(args: a.Args, path: str) -> list[str]:
    """The errors in the arguments of a plugin. `path`: their place in the configuration."""
    checks = _CHECKS.get(type(args))
    return list(checks(args, path)) if checks is not None else []


def _within(path: str, value: int, low: int, high: int | None) -> Errors:
    if value < low or (high is not None and value > high):
        limit = f"{high}]" if high is not None else "inf)"
        yield invalid(path, value, f"not in valid range [{low}, {limit}")


def _weighted(path: str, resources: Sequence[a.WeightedResource], *, only: int | None = None) -> Errors:
    seen: set[str] = set()
    for index, resource in enumerate(resources):
        where = f"{path}[{index}]"
        if not resource.name:
            yield required(f"{where}.name")
        if resource.name in seen:
            yield duplicate(f"{where}.name", resource.name)
        seen.add(resource.name)
        if only is not None and resource.weight != only:
            yield invalid(f"{where}.weight", resource.weight, f"must be {only}")
        elif not 1 <= resource.weight <= MAX_WEIGHT:
            text = f"resource weight of {resource.name} not in valid range [1, {MAX_WEIGHT}]"
            yield invalid(f"{where}.weight", resource.weight, text)


def _strategy(path: str, strategy: a.ScoringStrategy, types: Sequence[str]) -> Errors:
    if strategy.type not in types:
        yield unsupported(f"{path}.type", strategy.type, types)
    if not strategy.resources:
        yield required(f"{path}.resources")
    yield from _weighted(f"{path}.resources", strategy.resources)


def _shape(path: str, shape: Sequence[a.UtilizationShapePoint]) -> Errors:
    if not shape:
        yield required(path, "at least one point must be specified")
    for index, point in enumerate(shape):
        where = f"{path}[{index}]"
        if not 0 <= point.utilization <= 100:
            yield invalid(f"{where}.utilization", point.utilization, "not in valid range [0, 100]")
        if not 0 <= point.score <= 10:
            yield invalid(f"{where}.score", point.score, "not in valid range [0, 10]")
        if index and point.utilization <= shape[index - 1].utilization:
            text = "utilization values must be sorted in increasing order"
            yield invalid(f"{where}.utilization", point.utilization, text)


def _ignored(path: str, args: a.NodeResourcesFitArgs | a.ReservationArgs, *, extended: bool) -> Errors:
    for index, name in enumerate(args.ignored_resources):
        where = f"{path}.ignoredResources[{index}]"
        if not _qualified(name):
            yield invalid(where, name, "name part must consist of alphanumeric characters, '-', '_' or '.'")
        elif extended and not is_extended(name):
            yield invalid(where, name, "must be an extended resource")
    for index, group in enumerate(args.ignored_resource_groups):
        where = f"{path}.ignoredResourceGroups[{index}]"
        if "/" in group:
            yield invalid(where, group, "resource group name can't contain '/'")
        elif not _SUBDOMAIN.fullmatch(group) or len(group) > 253:
            yield invalid(where, group, "must be a DNS subdomain")
        elif extended and group == "kubernetes.io":
            yield invalid(where, group, "must not be kubernetes.io")


def _qualified(name: str) -> bool:
    prefix, slash, rest = name.rpartition("/")
    return bool(_LABEL.fullmatch(rest)) and (not slash or bool(_SUBDOMAIN.fullmatch(prefix)))


# kube-scheduler


def _fit(args: a.NodeResourcesFitArgs, path: str) -> Errors:
    yield from _ignored(path, args, extended=False)
    strategy, where = args.scoring_strategy, f"{path}.scoringStrategy"
    yield from _strategy(where, strategy, _FIT_TYPES)
    if strategy.type == "RequestedToCapacityRatio":
        if strategy.requested_to_capacity_ratio is None:
            yield required(f"{where}.requestedToCapacityRatio")
        else:
            yield from _shape(f"{where}.requestedToCapacityRatio.shape", strategy.requested_to_capacity_ratio.shape)


def _balanced(args: a.NodeResourcesBalancedAllocationArgs, path: str) -> Errors:
    yield from _weighted(f"{path}.resources", args.resources, only=1)


def _node_affinity(args: a.NodeAffinityArgs, path: str) -> Errors:
    if args.added_affinity is not None:
        for where, term in _terms(args.added_affinity, f"{path}.addedAffinity"):
            for name, expressions in (("matchExpressions", term.match_expressions), ("matchFields", term.match_fields)):
                for index, expression in enumerate(expressions):
                    at = f"{where}.{name}[{index}]"
                    if not expression.key:
                        yield required(f"{at}.key")
                    if expression.operator not in _OPERATORS:
                        yield unsupported(f"{at}.operator", expression.operator, _OPERATORS)
                    elif expression.operator in ("In", "NotIn") and not expression.values:
                        yield required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
                    elif expression.operator in ("Exists", "DoesNotExist") and expression.values:
                        text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                        yield f"{at}.values: Forbidden: {text}"
                    elif expression.operator in ("Gt", "Lt") and len(expression.values) != 1:
                        yield required(f"{at}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")


def _terms(affinity: NodeAffinity, path: str) -> Iterator[tuple[str, NodeSelectorTerm]]:
    required_terms = affinity.required_during_scheduling_ignored_during_execution
    if required_terms is not None:
        where = f"{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        yield from ((f"{where}[{i}]", term) for i, term in enumerate(required_terms.node_selector_terms))
    where = f"{path}.preferredDuringSchedulingIgnoredDuringExecution"
    for i, preference in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        yield f"{where}[{i}].preference", preference.preference


def _spread(args: a.PodTopologySpreadArgs, path: str) -> Errors:
    if args.defaulting_type not in ("List", "System"):
        yield unsupported(f"{path}.defaultingType", args.defaulting_type, ("List", "System"))
    elif args.defaulting_type == "System" and args.default_constraints:
        yield invalid(f"{path}.defaultingType", "System", "when .defaultConstraints are not empty")
    seen: set[tuple[str, str]] = set()
    for index, constraint in enumerate(args.default_constraints):
        where = f"{path}.defaultConstraints[{index}]"
        if constraint.max_skew <= 0:
            yield invalid(f"{where}.maxSkew", constraint.max_skew, "not in valid range (0, inf)")
        if not constraint.topology_key:
            yield required(f"{where}.topologyKey", "can not be empty")
        if constraint.when_unsatisfiable not in ("DoNotSchedule", "ScheduleAnyway"):
            known = ("DoNotSchedule", "ScheduleAnyway")
            yield unsupported(f"{where}.whenUnsatisfiable", constraint.when_unsatisfiable, known)
        if constraint.label_selector is not None:
            text = "constraint must not define a selector, as they deduced for each pod"
            yield f"{where}.labelSelector: Forbidden: {text}"
        key = (constraint.topology_key, constraint.when_unsatisfiable)
        if key in seen:
            yield duplicate(where, f"{{{key[0]}, {key[1]}}}")
        seen.add(key)


def _inter_pod(args: a.InterPodAffinityArgs, path: str) -> Errors:
    yield from _within(f"{path}.hardPodAffinityWeight", args.hard_pod_affinity_weight, 0, MAX_WEIGHT)


def _volume_binding(args: a.VolumeBindingArgs, path: str) -> Errors:
    if args.bind_timeout_seconds < 0:
        text = "invalid BindTimeoutSeconds, should not be a negative value"
        yield invalid(f"{path}.bindTimeoutSeconds", args.bind_timeout_seconds, text)
    if args.shape:
        yield from _shape(f"{path}.shape", args.shape)


def _candidates(args: a.DefaultPreemptionArgs | a.ReservationArgs, path: str, *, preempts: bool = True) -> Errors:
    share, number = args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute
    yield from _within(f"{path}.minCandidateNodesPercentage", share, 0, 100)
    yield from _within(f"{path}.minCandidateNodesAbsolute", number, 0, None)
    if preempts and share == 0 and number == 0:
        text = "cannot be zero at the same time as minCandidateNodesAbsolute"
        yield invalid(f"{path}.minCandidateNodesPercentage", share, text)


# Koordinator


def _percentages(path: str, values: Mapping[str, int], low: int) -> Errors:
    for name, value in values.items():
        if not low <= value <= 100:
            yield invalid(f"{path}[{name}]", value, f"not in valid range [{low}, 100]")


def _load_aware(args: a.LoadAwareSchedulingArgs, path: str) -> Errors:
    if args.node_metric_expiration_seconds <= 0:
        text = "nodeMetricExpirationSeconds should be a positive value"
        yield invalid(f"{path}.nodeMetricExpirationSeconds", args.node_metric_expiration_seconds, text)
    yield from _percentages(f"{path}.resourceWeights", args.resource_weights, 1)
    yield from _within(f"{path}.dominantResourceWeight", args.dominant_resource_weight, 0, 100)
    yield from _percentages(f"{path}.usageThresholds", args.usage_thresholds, 0)
    yield from _percentages(f"{path}.prodUsageThresholds", args.prod_usage_thresholds, 0)
    yield from _percentages(f"{path}.estimatedScalingFactors", args.estimated_scaling_factors, 1)
    for name in args.resource_weights:
        if name not in args.estimated_scaling_factors:
            yield f'{path}.estimatedScalingFactors: Not found: "{name}"'
    aggregated, where = args.aggregated, f"{path}.aggregated"
    if aggregated is not None:
        yield from _percentages(f"{where}.usageThresholds", aggregated.usage_thresholds, 0)
        for name, kind in (
            ("usageAggregationType", aggregated.usage_aggregation_type),
            ("scoreAggregationType", aggregated.score_aggregation_type),
        ):
            if kind and kind not in a.AGGREGATIONS:
                yield unsupported(f"{where}.{name}", kind, a.AGGREGATIONS)
        for name, duration in (
            ("usageAggregatedDuration", aggregated.usage_aggregated_duration),
            ("scoreAggregatedDuration", aggregated.score_aggregated_duration),
        ):
            yield from _not_negative(f"{where}.{name}", duration)


def _not_negative(path: str, value: Any) -> Errors:
    if (value if isinstance(value, int) else value.nanoseconds) < 0:
        yield invalid(path, value, "must be greater than or equal to 0")


def _coscheduling(args: a.CoschedulingArgs, path: str) -> Errors:
    yield from _not_negative(f"{path}.defaultTimeout", args.default_timeout)
    if args.controller_workers < 1:
        yield invalid(f"{path}.controllerWorkers", args.controller_workers, "must be greater than 0")


def _reservation(args: a.ReservationArgs, path: str) -> Errors:
    yield from _candidates(args, path, preempts=args.enable_preemption)
    for name, value in (
        ("controllerWorkers", args.controller_workers),
        ("gcDurationSeconds", args.gc_duration_seconds),
        ("gcIntervalSeconds", args.gc_interval_seconds),
        ("resyncIntervalSeconds", args.resync_interval_seconds),
    ):
        yield from _not_negative(f"{path}.{name}", value)
    yield from _ignored(path, args, extended=True)


def _quota(args: a.ElasticQuotaArgs, path: str) -> Errors:
    yield from _not_negative(f"{path}.delayEvictTime", args.delay_evict_time)
    yield from _not_negative(f"{path}.revokePodInterval", args.revoke_pod_interval)
    yield from _not_negative(f"{path}.quotaSnapshotUpdateInterval", args.quota_snapshot_update_interval)
    for field, amounts in (
        ("defaultQuotaGroupMax", args.default_quota_group_max),
        ("systemQuotaGroupMax", args.system_quota_group_max),
    ):
        for name, amount in amounts.items():
            if amount.value() < 0:
                yield invalid(f"{path}.{field}[{name}]", amount, "must be greater than or equal to 0")
    if args.hook_plugins:
        yield from _hooks(f"{path}.hookPlugins", args.hook_plugins)


def _hooks(path: str, hooks: Sequence[a.HookPluginConf]) -> Errors:
    factories = sorted(hookfactories.known())
    keys: set[str] = set()
    for index, hook in enumerate(hooks):
        where = f"{path}[{index}]"
        yield from unusable_name(f"{where}.key", hook.key, keys)
        if not hook.factory_key:
            yield required(f"{where}.factoryKey")
        elif hook.factory_key not in factories:
            yield unsupported(f"{where}.factoryKey", hook.factory_key, factories)


def _numa(args: a.NodeNUMAResourceArgs, path: str) -> Errors:
    policies = ("", "FullPCPUs", "SpreadByPCPUs")
    if args.default_cpu_bind_policy not in policies:
        yield unsupported(f"{path}.defaultCPUBindPolicy", args.default_cpu_bind_policy, policies)
    yield from _strategy(f"{path}.scoringStrategy", args.scoring_strategy, _KOORDINATOR_TYPES)
    yield from _strategy(f"{path}.numaScoringStrategy", args.numa_scoring_strategy, _KOORDINATOR_TYPES)


def _device(args: a.DeviceShareArgs, path: str) -> Errors:
    yield from _strategy(f"{path}.scoringStrategy", args.scoring_strategy, _KOORDINATOR_TYPES)


def _hint(args: a.SchedulingHintArgs, path: str) -> Errors:
    if args.max_hint_nodes <= 0:
        yield invalid(f"{path}.maxHintNodes", args.max_hint_nodes, "must be greater than 0")


def _interference(args: a.InterferenceAwareArgs, path: str) -> Errors:
    if args.report_expiration_seconds <= 0:
        yield invalid(f"{path}.reportExpirationSeconds", args.report_expiration_seconds, "must be greater than 0")
    if not 0 <= args.min_confidence <= 1:
        yield invalid(f"{path}.minConfidence", args.min_confidence, "must be between 0 and 1")
    for field, amounts in (("thresholds", args.thresholds), ("weights", args.weights)):
        for kind, amount in amounts.items():
            if kind not in ("cpu", "memory", "io", "network"):
                yield unsupported(f"{path}.{field}", kind, ("cpu", "memory", "io", "network"))
            elif amount < 0:
                yield invalid(f"{path}.{field}[{kind}]", amount, "must not be negative")


_CHECKS: Final[dict[type[a.Args], Callable[[Any, str], Iterable[str]]]] = {
    a.NodeResourcesFitArgs: _fit,
    a.NodeResourcesBalancedAllocationArgs: _balanced,
    a.NodeAffinityArgs: _node_affinity,
    a.PodTopologySpreadArgs: _spread,
    a.InterPodAffinityArgs: _inter_pod,
    a.VolumeBindingArgs: _volume_binding,
    a.DefaultPreemptionArgs: _candidates,
    a.LoadAwareSchedulingArgs: _load_aware,
    a.CoschedulingArgs: _coscheduling,
    a.ReservationArgs: _reservation,
    a.ElasticQuotaArgs: _quota,
    a.NodeNUMAResourceArgs: _numa,
    a.DeviceShareArgs: _device,
    a.SchedulingHintArgs: _hint,
    a.InterferenceAwareArgs: _interference,
}
