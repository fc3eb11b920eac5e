"""The result of a plugin call: a code, the reasons and the plugin that returned it (spec 05 §3.4)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final


class Code(IntEnum):
    """`UNRESOLVABLE` is kube-scheduler's UnschedulableAndUnresolvable: preemption cannot help."""

    SUCCESS = 0
    ERROR = 1
    UNSCHEDULABLE = 2
    UNRESOLVABLE = 3
    WAIT = 4
    SKIP = 5
    PENDING = 6


_REJECTED = frozenset((Code.UNSCHEDULABLE, Code.UNRESOLVABLE, Code.PENDING))
_NAMES = {Code.UNRESOLVABLE: "UnschedulableAndUnresolvable"}


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """Immutable. `timeout`, in seconds, is used by WAIT only."""

    code: Code
    reasons: tuple[str, ...] = ()
    plugin: str = ""
    timeout: float = 0.0

    @property
    def ok(self) -> bool:
        return self.code is Code.SUCCESS

    @property
    def skipped(self) -> bool:
        return self.code is Code.SKIP

    @property
    def rejected(self) -> bool:
        return self.code in _REJECTED

    @property
    def message(self) -> str:
        return ", ".join(self.reasons)

    @property
    def code_name(self) -> str:
        """The name that kube-scheduler prints, e.g. `UnschedulableAndUnresolvable`."""
        return _NAMES.get(self.code) or self.code.name.capitalize()

    def by(self, plugin: str) -> PluginStatus:
        """The same status attributed to `plugin`, unless it names a plugin already."""
        return self if self.plugin else replace(self, plugin=plugin)


SUCCESS: Final = PluginStatus(Code.SUCCESS)
SKIP: Final = PluginStatus(Code.SKIP)


def unschedulable(*reasons: str, plugin: str = "") -> PluginStatus:
    """Rejected. Removing pods may help."""
    return PluginStatus(Code.UNSCHEDULABLE, reasons, plugin)


def unresolvable(*reasons: str, plugin: str = "") -> PluginStatus:
    """Rejected. Removing pods cannot help."""
    return PluginStatus(Code.UNRESOLVABLE, reasons, plugin)


def error(*reasons: str, plugin: str = "") -> PluginStatus:
    """An internal error. It ends the cycle."""
    return PluginStatus(Code.ERROR, reasons, plugin)


def wait(seconds: float) -> PluginStatus:
    """Hold the pod at Permit for at most `seconds`."""
    return PluginStatus(Code.WAIT, timeout=seconds)
