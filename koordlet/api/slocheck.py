"""Validates a NodeSLO per section and field. Pure.

Checks the same bounds and pairs as the webhook of the ConfigMap (`sloconfig.webhook`), and the allowed values of every
policy. An unknown field is not a problem: it belongs to a newer release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from koordlet.api.crs.slo import NodeSLOSpec, extension_values
from koordlet.api.encoding.quoting import quoted
from koordlet.api.encoding.wire import overlay
from koordlet.api.qos import CLASSES
from koordlet.api.sloconfig import documents, interference
from koordlet.api.sloconfig.bounds import broken, field_at
from koordlet.api.sloconfig.networkrules import network_problems
from koordlet.api.sloconfig.node import (
    BURST_AUTO,
    BURST_CPU_ONLY,
    BURST_NONE,
    BURST_QUOTA_ONLY,
    CGROUP_ROOT,
    KUBEPODS,
    KUBEPODS_BEST_EFFORT,
    KUBEPODS_BURSTABLE,
    HostApplicationSpec,
)
from koordlet.api.sloconfig.resourceqos import (
    BLOCK_DEVICE,
    BLOCK_POD_VOLUME,
    BLOCK_VOLUME_GROUP,
    CPU_POLICY_CORE_SCHED,
    CPU_POLICY_GROUP_IDENTITY,
    NET_POLICY_TC,
    NET_POLICY_TERWAY,
    ResourceQOSStrategy,
)
from koordlet.api.sloconfig.threshold import (
    CFS_QUOTA_POLICY,
    CPU_SET_POLICY,
    EVICT_BY_ALLOCATABLE,
    EVICT_BY_REAL_LIMIT,
)
from koordlet.api.sloconfig.webhook import RULES, ConfigRule

Problems = Mapping[str, Mapping[str, str]]
"""Section of NodeSLO's spec -> field -> reason; only sections with problems."""

EXTENSION = f"extensions.{interference.EXTENSION_KEY}"
HOST_APPLICATIONS = "hostApplications"
BASES = (CGROUP_ROOT, KUBEPODS, KUBEPODS_BURSTABLE, KUBEPODS_BEST_EFFORT)
BLOCKS = (BLOCK_DEVICE, BLOCK_VOLUME_GROUP, BLOCK_POD_VOLUME)
MAX_PATH_CHARS = 1024
"""Of a host application's directory."""
_QOS_CLASSES = ("lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot")


@dataclass(frozen=True, slots=True)
class Section:
    """`attribute` of the spec, the webhook's rule for it, and the allowed values of its enumeration fields."""

    attribute: str
    rule: ConfigRule
    values: Mapping[str, tuple[str, ...]]


SECTIONS: Mapping[str, Section] = {
    "resourceUsedThresholdWithBE": Section(
        "resource_used_threshold_with_be",
        RULES[documents.THRESHOLD_KEY],
        {
            "cpuSuppressPolicy": (CPU_SET_POLICY, CFS_QUOTA_POLICY),
            "cpuEvictPolicy": (EVICT_BY_REAL_LIMIT, EVICT_BY_ALLOCATABLE),
        },
    ),
    "resourceQOSStrategy": Section(
        "resource_qos_strategy",
        RULES[documents.QOS_KEY],
        {
            "policies.cpuPolicy": (CPU_POLICY_GROUP_IDENTITY, CPU_POLICY_CORE_SCHED),
            "policies.netQOSPolicy": (NET_POLICY_TC, NET_POLICY_TERWAY),
        },
    ),
    "cpuBurstStrategy": Section(
        "cpu_burst_strategy",
        RULES[documents.CPU_BURST_KEY],
        {"policy": (BURST_NONE, BURST_CPU_ONLY, BURST_QUOTA_ONLY, BURST_AUTO)},
    ),
    "systemStrategy": Section("system_strategy", RULES[documents.SYSTEM_KEY], {}),
}


def problems(spec: NodeSLOSpec) -> dict[str, dict[str, str]]:
    """All problems of a NodeSLO; empty when it is valid."""
    by_section = {name: _of_section(section, getattr(spec, section.attribute)) for name, section in SECTIONS.items()}
    by_section["resourceQOSStrategy"] |= _of_qos(spec)
    by_section[HOST_APPLICATIONS] = _of_host_applications(spec.host_applications)
    try:
        interference.effective(extension_values(spec.extensions))
    except interference.InterferenceConfigError as error:
        by_section[EXTENSION] = {"": str(error).removeprefix(f"{EXTENSION}").lstrip(".: ")}
    return {name: fields for name, fields in by_section.items() if fields}


def lines(by_section: Problems) -> dict[str, str]:
    """Path in the spec -> reason, for display."""
    return {
        f"{section}{'.' if path and not path.startswith('[') else ''}{path}": reason
        for section, fields in by_section.items()
        for path, reason in fields.items()
    }


def _of_section(section: Section, strategy: msgspec.Struct | None) -> dict[str, str]:
    if strategy is None:
        return {}
    reasons = broken(strategy, section.rule.bounds)
    merged = overlay(section.rule.base, strategy)
    for lower, upper in section.rule.pairs:
        low, high = field_at(merged, lower), field_at(merged, upper)
        if isinstance(low, int) and isinstance(high, int) and high <= low:
            reasons[upper] = f"{high} is not greater than {lower} {low}"
    for path, allowed in section.values.items():
        value = field_at(strategy, path)
        if value and value not in allowed:
            reasons[path] = _not_one_of(value, allowed)
    return reasons


def _of_qos(spec: NodeSLOSpec) -> dict[str, str]:
    strategy = spec.resource_qos_strategy
    if strategy is None:
        return {}
    system = documents.SystemConfigDocument(cluster_strategy=spec.system_strategy)
    network = network_problems(documents.QOSConfig(cluster_strategy=strategy), system)
    reasons = {path.removeprefix("clusterStrategy."): reason for path, reason in network.items()}
    return reasons | _of_blocks(strategy)


def _of_blocks(strategy: ResourceQOSStrategy) -> dict[str, str]:
    reasons = {}
    for name in _QOS_CLASSES:
        blocks = field_at(strategy, f"{name}.blkioQOS.blocks")
        for index, block in enumerate(blocks if isinstance(blocks, list) else ()):
            path = f"{name}.blkioQOS.blocks[{index}]"
            if block.type not in BLOCKS:
                reasons[f"{path}.type"] = _not_one_of(block.type, BLOCKS)
            weight = block.io_cfg.io_weight_percent
            if weight is not None and not 1 <= weight <= 100:
                reasons[f"{path}.ioCfg.ioWeightPercent"] = f"{weight} is not within 1 and 100"
    return reasons


def _of_host_applications(apps: list[HostApplicationSpec]) -> dict[str, str]:
    reasons, seen = {}, set()
    for index, app in enumerate(apps):
        path = f"[{index}]"
        if not app.name:
            reasons[f"{path}.name"] = "must not be empty"
        elif app.name in seen:
            reasons[f"{path}.name"] = f"{app.name} is used twice"
        seen.add(app.name)
        if app.qos and app.qos not in CLASSES:
            reasons[f"{path}.qos"] = _not_one_of(app.qos, CLASSES)
        base = "" if app.cgroup_path is None else app.cgroup_path.base
        if base and base not in BASES:
            reasons[f"{path}.cgroupPath.base"] = _not_one_of(base, BASES)
        reasons |= {f"{path}.{field}": reason for field, reason in _unsafe_paths(app)}
    return reasons


def _unsafe_paths(app: HostApplicationSpec) -> Iterator[tuple[str, str]]:
    """Fields from which the application's directory is made and that could lead elsewhere. Slashes at the ends are
    ignored, so that no path is absolute."""
    of = app.cgroup_path
    parts = {"name": app.name} if of is None else {
        "cgroupPath.parentDir": of.parent_dir, "cgroupPath.relativePath": of.relative_path
    }  # fmt: skip
    for field, text in parts.items():
        if len(text) > MAX_PATH_CHARS:
            yield field, f"has {len(text)} characters, at most {MAX_PATH_CHARS} are allowed"
        elif not text.isprintable():
            yield field, f"{quoted(text)} has control characters"
        elif not {".", ".."}.isdisjoint(text.split("/")):
            yield field, f"{quoted(text)} must not lead upwards or name the directory itself"
    if of is not None and of.base in ("", CGROUP_ROOT) and not any(text.strip("/") for text in parts.values()):
        yield "cgroupPath", "must not be the root of all cgroups"


def _not_one_of(value: object, allowed: tuple[str, ...]) -> str:
    return f"{quoted(str(value))} is not one of {', '.join(allowed)}"
