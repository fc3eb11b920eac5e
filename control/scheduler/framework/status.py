"""What a plugin says: a code, the reasons, and who said it (spec 05 §3.4)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final


class Code(IntEnum):
    """Outcome of a plugin. `UNRESOLVABLE` is upstream's UnschedulableAndUnresolvable: preemption can't help."""

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
class Status:
    """Immutable; `timeout` (seconds) belongs to WAIT alone."""

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
        """As upstream prints it, e.g. `UnschedulableAndUnresolvable`."""
        return _NAMES.get(self.code) or self.code.name.capitalize()

    def by(self, plugin: str) -> Status:
        """The same, said by `plugin`, unless somebody is named already."""
        return self if self.plugin else replace(self, plugin=plugin)


SUCCESS: Final = Status(Code.SUCCESS)
SKIP: Final = Status(Code.SKIP)


def unschedulable(*reasons: str, plugin: str = "") -> Status:
    """Rejected; removing pods may help."""
    return Status(Code.UNSCHEDULABLE, reasons, plugin)


def unresolvable(*reasons: str, plugin: str = "") -> Status:
    """Rejected; removing pods can't help."""
    return Status(Code.UNRESOLVABLE, reasons, plugin)


def error(*reasons: str, plugin: str = "") -> Status:
    """Something went wrong; the cycle ends."""
    return Status(Code.ERROR, reasons, plugin)


def wait(seconds: float) -> Status:
    """Park the pod at Permit for at most `seconds`."""
    return Status(Code.WAIT, timeout=seconds)
