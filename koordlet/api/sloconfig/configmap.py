"""Loads `slo-controller-config` for the manager (spec 01 §6.2). Pure.

`SLOConfig` is the configuration in force. `load` computes the next one from the ConfigMap's data. Keys are independent:
an invalid key keeps its last good configuration and is returned as a `ConfigProblem` with the reason of the Warning
event. `None` for a key means that no valid configuration was loaded yet; then reconciles do nothing. The caller watches
the ConfigMap, sends events, and queues all nodes when the result differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from koordlet.api import names
from koordlet.api.encoding.quantity import Quantity, QuantityError
from koordlet.api.encoding.wire import WireError, decode
from koordlet.api.sloconfig import colocation, defaults, documents, normalization, profile
from koordlet.api.sloconfig.colocation import ColocationConfig, ColocationStrategy
from koordlet.api.sloconfig.merge import MergedStrategies, NodeStrategy
from koordlet.api.sloconfig.node import CPUBurstStrategy, HostApplicationSpec, SystemStrategy
from koordlet.api.sloconfig.normalization import (
    CPUNormalizationConfig,
    CPUNormalizationStrategy,
    ResourceAmplificationConfig,
    ResourceAmplificationStrategy,
)
from koordlet.api.sloconfig.profile import KOORDINATOR, PROFILES, ProfileStrategies
from koordlet.api.sloconfig.resourceqos import ResourceQOSStrategy
from koordlet.api.sloconfig.threshold import ResourceThresholdStrategy

EVENT_COLOCATION: Final = "ColocationCfgUnmarshalFailed"
EVENT_SLO: Final = "SLOCfgUnmarshalFailed"
EVENT_NORMALIZATION: Final = "CPUNormalizationCfgUnmarshalFailed"
EVENT_AMPLIFICATION: Final = "ResourceAmplificationCfgUnmarshalFailed"


@dataclass(frozen=True)
class ConfigProblem:
    """An invalid key, whose value is not in force. `event` is the reason of the Warning event, None for no event."""

    key: str
    event: str | None
    message: str


@dataclass(frozen=True)
class SLOConfig:
    """The configuration in force; the default instance is that of a manager that has not read the ConfigMap yet."""

    colocation: MergedStrategies[ColocationStrategy] | None = None
    colocation_error: bool = False
    """while set, an existing NodeMetric.spec is not changed"""
    threshold: MergedStrategies[ResourceThresholdStrategy] | None = None
    qos: MergedStrategies[ResourceQOSStrategy] | None = None
    cpu_burst: MergedStrategies[CPUBurstStrategy] | None = None
    system: MergedStrategies[SystemStrategy] | None = None
    host_applications: MergedStrategies[tuple[HostApplicationSpec, ...]] | None = None
    normalization: MergedStrategies[CPUNormalizationStrategy] | None = None
    amplification: MergedStrategies[ResourceAmplificationStrategy] | None = None
    profile: str = KOORDINATOR
    """a name of `profile.PROFILES`"""

    @property
    def node_slo_available(self) -> bool:
        """Whether NodeSLO objects may be computed."""
        return self.threshold is not None


UNREAD: Final = SLOConfig()
DEFAULTS: Final = SLOConfig(
    colocation=MergedStrategies(colocation.DEFAULT),
    threshold=MergedStrategies(defaults.THRESHOLD),
    qos=MergedStrategies(defaults.MANAGER_QOS),
    cpu_burst=MergedStrategies(defaults.CPU_BURST),
    system=MergedStrategies(defaults.SYSTEM),
    host_applications=MergedStrategies(()),
    normalization=MergedStrategies(normalization.DEFAULT_NORMALIZATION),
    amplification=MergedStrategies(normalization.DEFAULT_AMPLIFICATION),
)


def load(previous: SLOConfig, data: Mapping[str, str] | None) -> tuple[SLOConfig, tuple[ConfigProblem, ...]]:
    """The configuration after the ConfigMap's data was read; `data` None means that there is no ConfigMap.

    If it is absent at start-up, the defaults are in force with the colocation error state set. If it is deleted later,
    nothing changes.
    """
    if data is None:
        return (replace(DEFAULTS, colocation_error=True) if previous == UNREAD else previous), ()
    problems: list[ConfigProblem] = []
    name = _load_profile(previous, data, problems)
    merged, error = _load_colocation(previous, data, problems)
    result = replace(previous, colocation=merged, colocation_error=error, profile=name)
    for key in _KEYS:
        # NodeSLO keys start with their defaults, so that an invalid key does not block the others.
        last = getattr(previous, key.field)
        default = key.default(PROFILES[name])
        fallback = last if last is not None else default if key.starts_available else None
        try:
            value = key.merge(decode(data[key.key], key.type), PROFILES[name]) if key.key in data else default
        except WireError as wire_error:
            problems.append(ConfigProblem(key.key, key.event, str(wire_error)))
            value = fallback
        changed: dict[str, Any] = {key.field: value}
        result = replace(result, **changed)
    return result, tuple(problems)


def _load_profile(previous: SLOConfig, data: Mapping[str, str], problems: list[ConfigProblem]) -> str:
    try:
        return profile.selected(data)
    except WireError as error:
        problems.append(ConfigProblem(profile.PROFILE_KEY, EVENT_SLO, str(error)))
        return previous.profile


def _load_colocation(
    previous: SLOConfig, data: Mapping[str, str], problems: list[ConfigProblem]
) -> tuple[MergedStrategies[ColocationStrategy] | None, bool]:
    key = documents.COLOCATION_KEY
    text = data.get(key, "")
    if not text:
        return DEFAULTS.colocation, False
    try:
        merged = colocation.merge(decode(text, ColocationConfig))
    except WireError as error:
        problems.append(ConfigProblem(key, EVENT_COLOCATION, str(error)))
        return previous.colocation, True
    invalid = colocation.problems(merged.cluster)
    if invalid:
        problems.append(ConfigProblem(key, None, "; ".join(f"{path}: {reason}" for path, reason in invalid.items())))
        return previous.colocation, True
    return merged, False


_Merge = Callable[[Any, ProfileStrategies], MergedStrategies[Any]]


def _strategies(base: msgspec.Struct) -> _Merge:
    return lambda doc, _: MergedStrategies.build(base, doc.cluster_strategy, doc.node_strategies)


def _of_profile(base: Callable[[ProfileStrategies], msgspec.Struct]) -> _Merge:
    return lambda doc, chosen: MergedStrategies.build(base(chosen), doc.cluster_strategy, doc.node_strategies)


def _inline(base: msgspec.Struct) -> _Merge:
    return lambda doc, _: MergedStrategies.build(base, doc, doc.node_configs)


def _applications(
    doc: documents.HostApplicationConfig, _: ProfileStrategies
) -> MergedStrategies[tuple[HostApplicationSpec, ...]]:
    entries = (NodeStrategy(e.name, e.node_selector, tuple(e.applications)) for e in doc.node_configs)
    return MergedStrategies(tuple(doc.applications), tuple(entries))


@dataclass(frozen=True)
class _Key:
    key: str
    field: str
    type: type[msgspec.Struct]
    merge: _Merge
    event: str = EVENT_SLO
    starts_available: bool = True

    def default(self, chosen: ProfileStrategies) -> object:
        """The strategies without the key."""
        base: msgspec.Struct | None = getattr(chosen, self.field, None)
        return getattr(DEFAULTS, self.field) if base is None else MergedStrategies(base)


_KEYS: Final = (
    _Key(documents.THRESHOLD_KEY, "threshold", documents.ThresholdConfig, _of_profile(lambda chosen: chosen.threshold)),
    _Key(documents.QOS_KEY, "qos", documents.QOSConfig, _of_profile(lambda chosen: chosen.qos)),
    _Key(documents.CPU_BURST_KEY, "cpu_burst", documents.CPUBurstDocument, _strategies(defaults.CPU_BURST)),
    _Key(documents.SYSTEM_KEY, "system", documents.SystemConfigDocument, _strategies(defaults.SYSTEM)),
    _Key(documents.HOST_APPLICATION_KEY, "host_applications", documents.HostApplicationConfig, _applications),
    _Key(
        documents.NORMALIZATION_KEY,
        "normalization",
        CPUNormalizationConfig,
        _inline(normalization.DEFAULT_NORMALIZATION),
        EVENT_NORMALIZATION,
        starts_available=False,
    ),
    _Key(
        documents.AMPLIFICATION_KEY,
        "amplification",
        ResourceAmplificationConfig,
        _inline(normalization.DEFAULT_AMPLIFICATION),
        EVENT_AMPLIFICATION,
        starts_available=False,
    ),
)


def system_for_node(
    merged: MergedStrategies[SystemStrategy], labels: Mapping[str, str], annotations: Mapping[str, str]
) -> SystemStrategy | None:
    """The system strategy of a node; annotation `network-bandwidth` replaces the bandwidth.

    None when the annotation is not a quantity; in Koordinator the node's NodeSLO then has no systemStrategy (spec 01
    §5.3).
    """
    strategy = merged.for_node(labels)
    text = annotations.get(names.ANNOTATION_NETWORK_BANDWIDTH)
    if text is None:
        return strategy
    try:
        return msgspec.structs.replace(strategy, total_network_bandwidth=Quantity(text))
    except QuantityError:
        return None
