"""CustomPriorityArgs (spec 07 §2.3, §7.4)."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from control.component.errors import duplicate, invalid, required, unsupported
from control.descheduler.config.selectors import selector_errors
from control.descheduler.plugins.selectionargs import SelectionArgs
from koordlet.api.meta import LabelSelector

BEST_EFFORT: Final = "BestEffort"
DRAIN_NODE: Final = "DrainNode"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class EvictionClass(msgspec.Struct, rename="camel"):
    """A class of nodes. Thresholds are percentages of allocatable, by resource, compared with requests."""

    name: str = ""
    node_selector: LabelSelector | None = None
    keep_threshold: dict[str, float] = msgspec.field(default_factory=dict)
    """A source node below it in every listed resource keeps its pods."""
    reject_threshold: dict[str, float] = msgspec.field(default_factory=dict)
    """A target node that would exceed it in any listed resource takes no pod."""


class CustomPriorityArgs(SelectionArgs):
    """Arguments of CustomPriority."""

    auto_cordon: bool = False
    eviction_order: list[EvictionClass] = msgspec.field(default_factory=list)
    mode: str = BEST_EFFORT

    def check(self, path: str) -> list[str]:
        errors = super().check(path)
        errors += [
            required(f"{path}.podSelectors[{index}].name")
            for index, rule in enumerate(self.pod_selectors)
            if not rule.name
        ]
        if self.mode not in (BEST_EFFORT, DRAIN_NODE):
            errors.append(unsupported(f"{path}.mode", self.mode, [BEST_EFFORT, DRAIN_NODE]))
        if len(self.eviction_order) < 2:
            errors.append(invalid(f"{path}.evictionOrder", len(self.eviction_order), "must have at least two classes"))
        names: set[str] = set()
        for index, eviction_class in enumerate(self.eviction_order):
            errors += _class_errors(eviction_class, f"{path}.evictionOrder[{index}]", names)
        return errors


def _class_errors(eviction_class: EvictionClass, path: str, names: set[str]) -> list[str]:
    errors = []
    if not eviction_class.name:
        errors.append(required(f"{path}.name"))
    elif not _NAME.fullmatch(eviction_class.name):
        errors.append(invalid(f"{path}.name", eviction_class.name, "must be a DNS label"))
    elif eviction_class.name in names:
        errors.append(duplicate(f"{path}.name", eviction_class.name))
    names.add(eviction_class.name)
    if eviction_class.node_selector is None:
        errors.append(required(f"{path}.nodeSelector"))
    errors += selector_errors(eviction_class.node_selector, f"{path}.nodeSelector")
    for field, thresholds in (
        ("keepThreshold", eviction_class.keep_threshold),
        ("rejectThreshold", eviction_class.reject_threshold),
    ):
        errors += [
            invalid(f"{path}.{field}[{name}]", percent, "must be between 0 and 100")
            for name, percent in thresholds.items()
            if not 0 <= percent <= 100
        ]
    return errors
