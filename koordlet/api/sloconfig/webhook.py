"""What the ConfigMap webhook refuses in `slo-controller-config` (spec 01 §6.6).

`validate` checks the keys that changed, in a fixed order, and stops at the first that fails: JSON, selectors,
numbers, network sums, names, overlap between entries, nodes that two entries would take. Differences to the
reference, all of spec 01 §9: a missing `system-config` is an empty one (A11), upper/lower pairs are judged
after merging (A12), sums of percentages and of quantities are each compared with their own kind (A13), the
overlap test takes the true product of values (A15). `strict_parity` takes A11 to A13 back: `system-config` must be
there, pairs must be given whole and as they are written, sums take percentages for bit/s. Misspelt reasons are on the
wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from koordlet.api.encoding.wire import WireError, decode, encode, overlay
from koordlet.api.meta import SelectorError
from koordlet.api.sloconfig import colocation, defaults, documents, interference, overcommit
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
    """Why the ConfigMap (or a node's labels) is refused."""

    reason: str
    message: str | dict[str, Any]

    def __str__(self) -> str:
        """The text of the admission response."""
        return f"___{encode({'reason': self.reason, 'message': self.message}).decode()}___"


class _Refused(Exception):
    def __init__(self, reason: str, message: str | dict[str, Any]) -> None:
        super().__init__(reason)
        self.rejection = Rejection(reason, message)


@dataclass(frozen=True)
class Rule:
    """How one key is checked: its document, what it is merged over, and its numbers.

    `pairs` are (lower, upper) fields of which the upper must be greater once everything is merged.
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

RULES: Final[dict[str, Rule]] = {
    documents.COLOCATION_KEY: Rule(
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
    documents.THRESHOLD_KEY: Rule(
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
    documents.QOS_KEY: Rule(
        documents.QOSConfig,
        defaults.KOORDLET_QOS,
        tuple(bound._replace(path=f"{name}.{bound.path}") for name in _CLASSES for bound in _QOS_BOUNDS),
        tuple(
            (f"{name}.resctrlQOS.catRangeStartPercent", f"{name}.resctrlQOS.catRangeEndPercent") for name in _CLASSES
        ),
    ),
    documents.CPU_BURST_KEY: Rule(
        documents.CPUBurstDocument,
        defaults.CPU_BURST,
        (
            Bound("cpuBurstPercent", 1, 10000),
            Bound("cfsQuotaBurstPercent", minimum=100),
            Bound("cfsQuotaBurstPeriodSeconds", minimum=-1),
            *_percent("sharePoolThresholdPercent"),
        ),
    ),
    documents.SYSTEM_KEY: Rule(
        documents.SystemConfig,
        defaults.SYSTEM,
        (
            Bound("minFreeKbytesFactor", above=0),
            Bound("watermarkScaleFactor", 1, 400),
            Bound("memcgReapBackGround", 0, 1),
            Bound("pageCacheLimitEnabled", 0, 1),
        ),
    ),
    interference.CONFIG_KEY: Rule(interference.InterferenceConfig, interference.DEFAULT, interference.BOUNDS),
}
"""The keys that are checked, in order; the other three keys of the ConfigMap are not."""


def validate(
    new: Mapping[str, str],
    old: Mapping[str, str] | None = None,
    *,
    nodes: Mapping[str, Labels] | None = None,
    names_needed: bool = False,
    strict_parity: bool = False,
) -> Rejection | None:
    """The first thing wrong with the changed keys, or None.

    `old` is the data before (None on create), `nodes` the labels of the existing nodes by name, `names_needed` and
    `strict_parity` the manager's flags `--node-strategy-name-need-check` and `--strict-parity`.
    """
    try:
        for key, rule in RULES.items():
            text = new.get(key, "")
            if text and text != (old or {}).get(key):
                _check(key, rule, new, names_needed, nodes or {}, strict=strict_parity)
    except _Refused as refused:
        return refused.rejection
    return None


def node_conflict(data: Mapping[str, str], name: str, labels: Labels) -> Rejection | None:
    """Whether a node's new labels would let two entries of one key take it. Keys that do not parse are skipped."""
    for key, rule in RULES.items():
        try:
            entries = _entries(decode(data[key], rule.type)) if data.get(key) else []
            _check_nodes(key, entries, {name: labels})
        except WireError:
            continue
        except _Refused as refused:
            return refused.rejection
    return None


def _check(
    key: str, rule: Rule, data: Mapping[str, str], names_needed: bool, nodes: Mapping[str, Labels], *, strict: bool
) -> None:
    try:
        document: msgspec.Struct = decode(data[key], rule.type, where=key)
    except WireError as error:
        raise _Refused(PARSE_FAILED, str(error)) from error
    entries = _entries(document)
    _check_selectors(entries)
    cluster = document if key == documents.COLOCATION_KEY else field_at(document, "clusterStrategy")
    assert cluster is None or isinstance(cluster, msgspec.Struct)
    _check_numbers(rule, cluster, entries, strict=strict)
    if key == documents.QOS_KEY:
        assert isinstance(document, documents.QOSConfig)
        problems = network_problems(document, _system_config(data, strict=strict), strict_parity=strict)
        if problems:
            raise _Refused(PARAM_INVALID, dict(problems))
    if names_needed:
        _check_names(entries)
    _check_overlap(key, entries)
    _check_nodes(key, entries, nodes)


def _system_config(data: Mapping[str, str], *, strict: bool) -> documents.SystemConfig:
    text = data.get(documents.SYSTEM_KEY, "")
    if not text and not strict:
        return documents.SystemConfig()
    try:
        return decode(text, documents.SystemConfig, where=documents.SYSTEM_KEY)
    except WireError as error:
        raise _Refused(PARSE_FAILED, str(error)) from error


def _entries(document: msgspec.Struct) -> list[NodeEntry]:
    found: list[NodeEntry] = getattr(document, "node_configs", None) or getattr(document, "node_strategies", [])
    return found


def _label(index: int, entry: NodeEntry) -> str:
    inline = isinstance(entry, ColocationStrategy)  # this document has its strategy beside its node entries
    return f"{'nodeConfigs' if inline else 'nodeStrategies'}[{entry.name or index}]"


def _check_selectors(entries: list[NodeEntry]) -> None:
    for index, entry in enumerate(entries):
        path = f"{_label(index, entry)}.nodeSelector"
        if entry.node_selector is None or entry.node_selector.is_empty():
            raise _Refused(PARAM_INVALID, {path: "needs at least one matchLabel or matchExpression"})
        try:
            entry.node_selector.matches({})
        except SelectorError as error:
            raise _Refused(PARAM_INVALID, {path: str(error)}) from error


def _check_numbers(rule: Rule, cluster: msgspec.Struct | None, entries: list[NodeEntry], *, strict: bool) -> None:
    base = overlay(rule.base, cluster)
    inline = isinstance(cluster, ColocationStrategy)
    strategies = [("" if inline else "clusterStrategy.", cluster, base)] if cluster is not None else []
    for index, entry in enumerate(entries):
        assert isinstance(entry, msgspec.Struct)
        strategies.append((_label(index, entry) + ".", entry, overlay(base, entry)))
    for where, given, merged in strategies:
        problems = broken(given, rule.bounds)
        if isinstance(given, interference.InterferenceStrategy):
            problems = interference.problems(given)
        if isinstance(given, ColocationStrategy):
            problems |= _extension_problems(given)
        for lower, upper in rule.pairs:
            low, high = (field_at(given if strict else merged, field) for field in (lower, upper))
            if strict and (low is None) is not (high is None):
                missing, there = (lower, upper) if low is None else (upper, lower)
                problems[missing] = f"must be given where {there} is"
            elif isinstance(low, int) and isinstance(high, int) and high <= low:
                problems[upper] = f"{high} is not greater than {lower} {low}"
        if problems:
            raise _Refused(PARAM_INVALID, {where + path: text for path, text in problems.items()})


def _extension_problems(given: ColocationStrategy) -> dict[str, str]:
    try:
        overcommit.policy_of(given)
    except overcommit.InterferencePolicyError as error:
        return error.problems
    return {}


def _check_names(entries: list[NodeEntry]) -> None:
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        if not entry.name:
            raise _Refused(PARAM_INVALID, {f"{_label(index, entry)}.name": "must not be empty"})
        if entry.name in seen:
            raise _Refused(PARAM_INVALID, {f"{_label(index, entry)}.name": "is used twice"})
        seen.add(entry.name)


def _check_overlap(key: str, entries: list[NodeEntry]) -> None:
    try:
        clash = overlapping([entry.node_selector for entry in entries])
    except TooManyLabelSets as error:
        raise _Refused(PARAM_INVALID, f"{key}: {error}") from error
    if clash:
        raise _Refused(STRATEGIES_OVERLAP, {"config": key, "strategies": [_title(entries, i) for i in clash]})


def _check_nodes(key: str, entries: list[NodeEntry], nodes: Mapping[str, Labels]) -> None:
    if len(entries) < 2:
        return
    for name, labels in nodes.items():
        taken = [i for i, entry in enumerate(entries) if selects(entry.node_selector, labels)]
        if len(taken) > 1:
            strategies = [_title(entries, i) for i in taken]
            raise _Refused(NODE_CONFLICT, {"config": key, "strategies": strategies, "exampleNodes": [name]})


def _title(entries: Iterable[NodeEntry], index: int) -> str:
    return list(entries)[index].name or f"[{index}]"
