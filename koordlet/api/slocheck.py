"""What in a NodeSLO can't be acted on: section by section, field by field, why. Pure.

The same numbers and pairs as the webhook of the ConfigMap (`sloconfig.webhook`), over what a NodeSLO says by itself,
and the words of every policy. A field that this release does not know is no problem: it is a newer one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from koordlet.api.crs.slo import NodeSLOSpec, extension_values
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
from koordlet.api.sloconfig.webhook import RULES, Rule

Problems = Mapping[str, Mapping[str, str]]
"""Section of NodeSLO's spec -> field -> reason; only sections with one."""

EXTENSION = f"extensions.{interference.EXTENSION_KEY}"
HOST_APPLICATIONS = "hostApplications"
BASES = (CGROUP_ROOT, KUBEPODS, KUBEPODS_BURSTABLE, KUBEPODS_BEST_EFFORT)
BLOCKS = (BLOCK_DEVICE, BLOCK_VOLUME_GROUP, BLOCK_POD_VOLUME)
_QOS_CLASSES = ("lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot")


@dataclass(frozen=True, slots=True)
class Section:
    """`attribute` of the spec, the webhook's rule for it, and fields that hold one of some words."""

    attribute: str
    rule: Rule
    words: Mapping[str, tuple[str, ...]]


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
    """Everything that is wrong; empty when all can be acted on."""
    found = {name: _of_section(section, getattr(spec, section.attribute)) for name, section in SECTIONS.items()}
    found["resourceQOSStrategy"] |= _of_qos(spec)
    found[HOST_APPLICATIONS] = _of_host_applications(spec.host_applications)
    try:
        interference.effective(extension_values(spec.extensions))
    except interference.InterferenceConfigError as error:
        found[EXTENSION] = {"": str(error).removeprefix(f"{EXTENSION}").lstrip(".: ")}
    return {name: fields for name, fields in found.items() if fields}


def lines(found: Problems) -> dict[str, str]:
    """Path from the spec -> reason, for people."""
    return {
        f"{section}{'.' if path and not path.startswith('[') else ''}{path}": reason
        for section, fields in found.items()
        for path, reason in fields.items()
    }


def _of_section(section: Section, given: msgspec.Struct | None) -> dict[str, str]:
    if given is None:
        return {}
    found = broken(given, section.rule.bounds)
    merged = overlay(section.rule.base, given)
    for lower, upper in section.rule.pairs:
        low, high = field_at(merged, lower), field_at(merged, upper)
        if isinstance(low, int) and isinstance(high, int) and high <= low:
            found[upper] = f"{high} is not greater than {lower} {low}"
    for path, words in section.words.items():
        value = field_at(given, path)
        if value and value not in words:
            found[path] = _none_of(value, words)
    return found


def _of_qos(spec: NodeSLOSpec) -> dict[str, str]:
    strategy = spec.resource_qos_strategy
    if strategy is None:
        return {}
    system = documents.SystemConfig(cluster_strategy=spec.system_strategy)
    network = network_problems(documents.QOSConfig(cluster_strategy=strategy), system)
    found = {path.removeprefix("clusterStrategy."): reason for path, reason in network.items()}
    return found | _of_blocks(strategy)


def _of_blocks(strategy: ResourceQOSStrategy) -> dict[str, str]:
    found = {}
    for name in _QOS_CLASSES:
        blocks = field_at(strategy, f"{name}.blkioQOS.blocks")
        for index, block in enumerate(blocks if isinstance(blocks, list) else ()):
            path = f"{name}.blkioQOS.blocks[{index}]"
            if block.type not in BLOCKS:
                found[f"{path}.type"] = _none_of(block.type, BLOCKS)
            weight = block.io_cfg.io_weight_percent
            if weight is not None and not 1 <= weight <= 100:
                found[f"{path}.ioCfg.ioWeightPercent"] = f"{weight} is not within 1 and 100"
    return found


def _of_host_applications(apps: list[HostApplicationSpec]) -> dict[str, str]:
    found, seen = {}, set()
    for index, app in enumerate(apps):
        path = f"[{index}]"
        if not app.name:
            found[f"{path}.name"] = "must not be empty"
        elif app.name in seen:
            found[f"{path}.name"] = f"{app.name} is used twice"
        seen.add(app.name)
        if app.qos and app.qos not in CLASSES:
            found[f"{path}.qos"] = _none_of(app.qos, CLASSES)
        base = "" if app.cgroup_path is None else app.cgroup_path.base
        if base and base not in BASES:
            found[f"{path}.cgroupPath.base"] = _none_of(base, BASES)
    return found


def _none_of(value: object, words: tuple[str, ...]) -> str:
    return f"{value!r} is none of {', '.join(words)}"
