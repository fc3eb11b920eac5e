"""Why no node fits a pod: a code a row, counted into the message that kubectl users know (spec 05 §3.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from control.scheduler.framework.status import SUCCESS, Code, Status, unresolvable
from control.scheduler.state.columns import RowArray
from control.scheduler.state.pods import PodInfo

if TYPE_CHECKING:
    from control.scheduler.framework.profile import Framework

Codes: TypeAlias = NDArray[np.uint32]
"""[row]: PASS, or index of the first Filter plugin that rejects << 16 | number of its reason."""

PASS: Final = np.uint32(0xFFFFFFFF)
PASS_CODE: Final = int(PASS)
LEFT_OUT: Final = np.uint32(0xFFFF0000)
"""Left out by PreFilter."""


class FitError(Exception):
    """No node fits. Raised by `Cycle.place`; handed to PostFilter plugins.

    `pre_filter` is set when a PreFilter plugin rejected the pod altogether: then it speaks for every node.
    """

    def __init__(
        self, pod: PodInfo, framework: Framework, rows: RowArray, codes: Codes, pre_filter: Status | None = None
    ) -> None:
        super().__init__(pod.key)
        self.pod = pod
        self.rows = rows
        """Valid rows."""
        self.codes = codes
        """[len(rows)]"""
        self.pre_filter = pre_filter
        self.left_out: Status = unresolvable()
        """What a node says that PreFilter left out; no reason: it counts as nothing."""
        self.overrides: dict[int, Status] = {}
        """Rows whose status is not a Filter plugin's code (nominated pods stand in the way)."""
        self.post_filter: tuple[str, ...] = ()
        """What the PostFilter plugins said."""
        self.nominated: str | None = None
        """The nomination that PostFilter decided: a node, "" to clear, None to leave."""
        self._framework = framework
        self._plugins = [f.plugin for f in framework.filters]

    def of(self, code: int) -> Status:
        """The status that a code stands for."""
        if code == LEFT_OUT:
            return self.left_out
        if code == PASS:
            return SUCCESS
        plugin = self._plugins[code >> 16]
        return plugin.reasons.status(code & 0xFFFF).by(plugin.name)

    def statuses(self) -> Iterator[tuple[int, Status]]:
        """(row, why it does not fit)."""
        for row, code in zip(self.rows.tolist(), self.codes.tolist(), strict=True):
            yield row, self.pre_filter or self.overrides.get(row) or self.of(code)

    def status(self, row: int) -> Status:
        at = int(np.searchsorted(self.rows, row))
        return self.pre_filter or self.overrides.get(row) or self.of(int(self.codes[at]))

    def preemptible(self) -> RowArray:
        """Rows where removing pods may help: those whose status is exactly Unschedulable."""
        if self.pre_filter is not None:
            return self.rows if self.pre_filter.code is Code.UNSCHEDULABLE else self.rows[:0]
        kinds = {int(code): self.of(int(code)).code is Code.UNSCHEDULABLE for code in np.unique(self.codes)}
        chosen = np.fromiter((kinds[int(code)] for code in self.codes), np.bool_, len(self.codes))
        for row, status in self.overrides.items():
            chosen[np.searchsorted(self.rows, row)] = status.code is Code.UNSCHEDULABLE
        return self.rows[chosen]

    def plugins(self) -> set[str]:
        """Who rejected the pod: their events may wake it."""
        if self.pre_filter is not None:
            return {self.pre_filter.plugin} - {""}
        found = {self.of(int(code)).plugin for code in np.unique(self.codes)}
        found.update(status.plugin for status in self.overrides.values())
        return found - {""}

    def histogram(self) -> str:
        """`1 Insufficient cpu, 2 node(s) were unschedulable`."""
        counts: Counter[str] = Counter()
        numbers, times = np.unique(self.codes, return_counts=True)
        for code, count in zip(numbers.tolist(), times.tolist(), strict=True):
            for reason in self.of(code).reasons:
                counts[reason] += count
        for row, status in self.overrides.items():
            own = self.of(int(self.codes[np.searchsorted(self.rows, row)]))
            counts.subtract(own.reasons)
            counts.update(status.reasons)
        return ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items() if count > 0))

    def text(self, *, bare: bool = False) -> str:
        """The message; `bare` without what PreFilter and PostFilter say (spec 05 §9.7)."""
        head = f"0/{len(self.rows)} nodes are available:"
        if bare:
            said = "" if self.pre_filter is not None else self.histogram()
            return f"{head} {said}." if said else head
        said = self.pre_filter.message if self.pre_filter is not None else self.histogram()
        parts = [head, *([f"{said}."] if said else []), *(part for part in self.post_filter if part)]
        return " ".join(parts)
