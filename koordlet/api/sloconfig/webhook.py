"""Validation of `slo-controller-config` by the ConfigMap webhook (spec 01 §6.6). Pure.

`validate` checks the changed keys in a fixed order and stops at the first error. The checks of a key are: JSON,
selectors, numbers, network sums, names, overlap between entries, nodes that match two entries.

Differences to Koordinator (spec 01 §9): a missing `system-config` counts as empty (A11), upper/lower pairs are compared
after merging (A12), sums of percentages and of quantities are compared separately (A13), and the overlap test uses all
combinations of values (A15). `strict_parity` disables A11 to A13: `system-config` must exist, pairs must be complete
and are compared before merging, sums treat percentages as bit/s. Misspelt reasons are part of the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from koordlet.api.encoding.wire import WireError, decode, encode, overlay
from koordlet.api.meta import SelectorError
from koordlet.api.sloconfig import colocation, defaults, documents, interference, overcommit, profile
from koordlet.api.sloconfig.bounds import Bound, broken, field_at
from koordlet.api.sloconfig.colocation import ColocationConfig, ColocationStrategy
from koordlet.api.sloconfig.merge import NodeEntry, selects
from koordlet.api.sloconfig.networkrules import network_problems
from koordlet.api.sloconfig.overlap import TooManyLabelSets, overlapping

PARSE_FAILED: Final = "ParseConfigFail"
PARAM_INVALID: Final = "ConfigParamInvalid"
STRATEGIES_OVERLAP: Final = "NodeStrategiesOverlap"
NODE_CONFLICT: Final = "ExistNodeConfict"  # sic

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Rejection:
    """The reason why the ConfigMap (or a node's labels) is refused."""

    reason: str
    message: str | dict[str, Any]

    def __str__(self) -> str:
        """The text of the admission response."""
        return f"___{encode({'reason': self.reason, 'message': self.message}).decode()}___"


class _ValidationFailed(Exception):
    def __init__(self, reason: str, message: str | dict[str, Any]) -> None:
        super().__init__(reason)
        self.rejection = Rejection(reason, message)


@dataclass(frozen=True)
class ConfigRule:
    """The checks of one key: type of its document, base of the merge, bounds of numbers.

    `pairs` are (lower, upper) fields; after merging the upper one must be greater.
    """

    type: type[msgspec.Struct]
    base: msgspec.Struct
    bounds: tuple[Bound, ...]
    pairs: tuple[tuple[str, str], ...] = ()


def _percent(*paths: str) -> tuple[Bound, ...]:
    return tuple(Bound(path, minimum=0, maximum=100) for path in paths)


_CLASSES = ("lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot")
_QOS_BOUNDS = (
    Bound("cpuQOS.groupIdentity", -1, 2),
    Bound("cpuQOS.schedIdle", 0, 1),
    *_percent(
        "memoryQOS.minLimitPercent",
        "memoryQOS.lowLimitPercent",
        "memoryQOS.throttlingPercent",
        "memoryQOS.wmarkRatio",
        "memoryQOS.pageCacheLimitPercent",
        "resctrlQOS.catRangeStartPercent",
        "resctrlQOS.catRangeEndPercent",
        "resctrlQOS.mbaPercent",
    ),
    Bound("memoryQOS.wmarkScalePermill", 1, 1000),
    Bound("memoryQOS.wmarkMinAdj", -25, 50),
    Bound("memoryQOS.priorityEnable", 0, 1),
    Bound("memoryQOS.priority", 0, 12),
    Bound("memoryQOS.oomKillGroup", 0, 1),
)

RULES: Final[dict[str, ConfigRule]] = {
    documents.COLOCATION_KEY: ConfigRule(
        ColocationConfig,
        colocation.DEFAULT,
        (
            Bound("metricAggregateDurationSeconds", minimum=1),
            Bound("metricReportIntervalSeconds", minimum=1),
            *colocation.PREDICT_BOUNDS,
            Bound("cpuReclaimThresholdPercent", minimum=0),
            Bound("memoryReclaimThresholdPercent", minimum=0),
            Bound("degradeTimeMinutes", minimum=1),
            Bound("updateTimeThresholdSeconds", minimum=1),
            Bound("resourceDiffThreshold", above=0, maximum=1),
            *_percent(
                "midCPUThresholdPercent",
                "midMemoryThresholdPercent",
                "midUnallocatedPercent",
                "midStaticCPUReservedPercent",
                "midStaticMemoryReservedPercent",
            ),
            Bound("batchCPUThresholdPercent", minimum=0),
            Bound("batchMemoryThresholdPercent", minimum=0),
        ),
    ),
    documents.THRESHOLD_KEY: ConfigRule(
        documents.ThresholdConfig,
        defaults.THRESHOLD,
        (
            *_percent(
                "cpuSuppressThresholdPercent",
                "cpuSuppressMinPercent",
                "memoryEvictThresholdPercent",
                "memoryEvictLowerPercent",
                "cpuEvictBESatisfactionUpperPercent",
                "cpuEvictBESatisfactionLowerPercent",
                "cpuEvictBEUsageThresholdPercent",
                "cpuEvictThresholdPercent",
                "cpuEvictLowerPercent",
            ),
            Bound("memoryAllocatableEvictThresholdPercent", minimum=0),
            Bound("memoryAllocatableEvictLowerPercent", minimum=0),
            Bound("cpuAllocatableEvictThresholdPercent", minimum=0),
            Bound("cpuAllocatableEvictLowerPercent", minimum=0),
            Bound("cpuEvictTimeWindowSeconds", above=0),
            Bound("allocatableEvictPriorityThreshold", minimum=0, maximum=7999),
        ),
        (
            ("memoryEvictLowerPercent", "memoryEvictThresholdPercent"),
            ("memoryAllocatableEvictLowerPercent", "memoryAllocatableEvictThresholdPercent"),
            ("cpuEvictBESatisfactionLowerPercent", "cpuEvictBESatisfactionUpperPercent"),
            ("cpuEvictLowerPercent", "cpuEvictThresholdPercent"),
            ("cpuAllocatableEvictLowerPercent", "cpuAllocatableEvictThresholdPercent"),
        ),
    ),
    documents.QOS_KEY: ConfigRule(
        documents.QOSConfig,
        defaults.KOORDLET_QOS,
        tuple(bound._replace(path=f"{name}.{bound.path}") for name in _CLASSES for bound in _QOS_BOUNDS),
        tuple(
            (f"{name}.resctrlQOS.catRangeStartPercent", f"{name}.resctrlQOS.catRangeEndPercent") for name in _CLASSES
        ),
    ),
    documents.CPU_BURST_KEY: ConfigRule(
        documents.CPUBurstDocument,
        defaults.CPU_BURST,
        (
            Bound("cpuBurstPercent", 1, 10000),
            Bound("cfsQuotaBurstPercent", minimum=100),
            Bound("cfsQuotaBurstPeriodSeconds", minimum=-1),
            *_percent("sharePoolThresholdPercent"),
        ),
    ),
    documents.SYSTEM_KEY: ConfigRule(
        documents.SystemConfigDocument,
        defaults.SYSTEM,
        (
            Bound("minFreeKbytesFactor", above=0),
            Bound("watermarkScaleFactor", 1, 400),
            Bound("memcgReapBackGround", 0, 1),
            Bound("pageCacheLimitEnabled", 0, 1),
        ),
    ),
    interference.CONFIG_KEY: ConfigRule(interference.InterferenceConfig, interference.DEFAULT, interference.BOUNDS),
}
"""The keys that are checked, in this order; the other three keys of the ConfigMap are not checked."""


def validate(
    new: Mapping[str, str],
    old: Mapping[str, str] | None = None,
    *,
    nodes: Mapping[str, Labels] | None = None,
    names_needed: bool = False,
    strict_parity: bool = False,
) -> Rejection | None:
    """The first error in the changed keys, or None.

    `old` is the old data (None on create), `nodes` the labels of the existing nodes by name, `names_needed` and
    `strict_parity` are the manager's flags `--node-strategy-name-need-check` and `--strict-parity`.
    """
    try:
        if new.get(profile.PROFILE_KEY, "") != (old or {}).get(profile.PROFILE_KEY, ""):
            _check_profile(new)
        for key, rule in RULES.items():
            text = new.get(key, "")
            if text and text != (old or {}).get(key):
                _check(key, rule, new, names_needed, nodes or {}, strict=strict_parity)
    except _ValidationFailed as error:
        return error.rejection
    return None


def node_conflict(data: Mapping[str, str], name: str, labels: Labels) -> Rejection | None:
    """The error if a node's new labels match two entries of one key. Keys that cannot be parsed are skipped."""
    for key, rule in RULES.items():
        try:
            entries = _entries(decode(data[key], rule.type)) if data.get(key) else []
            _check_nodes(key, entries, {name: labels})
        except WireError:
            continue
        except _ValidationFailed as error:
            return error.rejection
    return None


def _check(
    key: str,
    rule: ConfigRule,
    data: Mapping[str, str],
    names_needed: bool,
    nodes: Mapping[str, Labels],
    *,
    strict: bool,
) -> None:
    try:
        document: msgspec.Struct = decode(data[key], rule.type, where=key)
    except WireError as error:
        raise _ValidationFailed(PARSE_FAILED, str(error)) from error
    entries = _entries(document)
    _check_selectors(entries)
    cluster = document if key == documents.COLOCATION_KEY else field_at(document, "clusterStrategy")
    assert cluster is None or isinstance(cluster, msgspec.Struct)
    _check_numbers(rule, cluster, entries, strict=strict)
    if key == documents.QOS_KEY:
        assert isinstance(document, documents.QOSConfig)
        problems = network_problems(document, _system_config(data, strict=strict), strict_parity=strict)
        if problems:
            raise _ValidationFailed(PARAM_INVALID, dict(problems))
    if names_needed:
        _check_names(entries)
    _check_overlap(key, entries)
    _check_nodes(key, entries, nodes)


def _check_profile(data: Mapping[str, str]) -> None:
    try:
        profile.selected(data)
    except profile.UnknownProfile as error:
        raise _ValidationFailed(PARAM_INVALID, {f"{error.where}.{error.path}": error.reason}) from error
    except WireError as error:
        raise _ValidationFailed(PARSE_FAILED, str(error)) from error


def _system_config(data: Mapping[str, str], *, strict: bool) -> documents.SystemConfigDocument:
    text = data.get(documents.SYSTEM_KEY, "")
    if not text and not strict:
        return documents.SystemConfigDocument()
    try:
        return decode(text, documents.SystemConfigDocument, where=documents.SYSTEM_KEY)
    except WireError as error:
        raise _ValidationFailed(PARSE_FAILED, str(error)) from error


def _entries(document: msgspec.Struct) -> list[NodeEntry]:
    entries: list[NodeEntry] = getattr(document, "node_configs", None) or getattr(document, "node_strategies", [])
    return entries


def _label(index: int, entry: NodeEntry) -> str:
    inline = isinstance(
        entry, ColocationStrategy
    )  # in this document the cluster strategy's fields are at the top level
    return f"{'nodeConfigs' if inline else 'nodeStrategies'}[{entry.name or index}]"


def _check_selectors(entries: list[NodeEntry]) -> None:
    for index, entry in enumerate(entries):
        path = f"{_label(index, entry)}.nodeSelector"
        if entry.node_selector is None or entry.node_selector.is_empty():
            raise _ValidationFailed(PARAM_INVALID, {path: "must have at least one matchLabel or matchExpression"})
        try:
            entry.node_selector.matches({})
        except SelectorError as error:
            raise _ValidationFailed(PARAM_INVALID, {path: str(error)}) from error


def _check_numbers(rule: ConfigRule, cluster: msgspec.Struct | None, entries: list[NodeEntry], *, strict: bool) -> None:
    base = overlay(rule.base, cluster)
    inline = isinstance(cluster, ColocationStrategy)
    strategies = [("" if inline else "clusterStrategy.", cluster, base)] if cluster is not None else []
    for index, entry in enumerate(entries):
        assert isinstance(entry, msgspec.Struct)
        strategies.append((_label(index, entry) + ".", entry, overlay(base, entry)))
    for where, strategy, merged in strategies:
        problems = broken(strategy, rule.bounds)
        if isinstance(strategy, interference.InterferenceStrategy):
            problems = interference.problems(strategy)
        if isinstance(strategy, ColocationStrategy):
            problems |= _extension_problems(strategy)
        for lower, upper in rule.pairs:
            low, high = (field_at(strategy if strict else merged, field) for field in (lower, upper))
            if strict and (low is None) is not (high is None):
                missing, present = (lower, upper) if low is None else (upper, lower)
                problems[missing] = f"must be set if {present} is set"
            elif isinstance(low, int) and isinstance(high, int) and high <= low:
                problems[upper] = f"{high} is not greater than {lower} {low}"
        if problems:
            raise _ValidationFailed(PARAM_INVALID, {where + path: text for path, text in problems.items()})


def _extension_problems(strategy: ColocationStrategy) -> dict[str, str]:
    try:
        overcommit.policy_of(strategy)
    except overcommit.InterferencePolicyError as error:
        return error.problems
    return {}


def _check_names(entries: list[NodeEntry]) -> None:
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        if not entry.name:
            raise _ValidationFailed(PARAM_INVALID, {f"{_label(index, entry)}.name": "must not be empty"})
        if entry.name in seen:
            raise _ValidationFailed(PARAM_INVALID, {f"{_label(index, entry)}.name": "is used twice"})
        seen.add(entry.name)


def _check_overlap(key: str, entries: list[NodeEntry]) -> None:
    try:
        conflicting = overlapping([entry.node_selector for entry in entries])
    except TooManyLabelSets as error:
        raise _ValidationFailed(PARAM_INVALID, f"{key}: {error}") from error
    if conflicting:
        strategies = [_title(entries, index) for index in conflicting]
        raise _ValidationFailed(STRATEGIES_OVERLAP, {"config": key, "strategies": strategies})


def _check_nodes(key: str, entries: list[NodeEntry], nodes: Mapping[str, Labels]) -> None:
    if len(entries) < 2:
        return
    for name, labels in nodes.items():
        matching = [index for index, entry in enumerate(entries) if selects(entry.node_selector, labels)]
        if len(matching) > 1:
            strategies = [_title(entries, index) for index in matching]
            raise _ValidationFailed(NODE_CONFLICT, {"config": key, "strategies": strategies, "exampleNodes": [name]})


def _title(entries: Iterable[NodeEntry], index: int) -> str:
    return list(entries)[index].name or f"[{index}]"
