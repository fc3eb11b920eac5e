"""Why no node fits a pod: a code per row, counted into the message that kubectl users know (spec 05 §3.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from control.scheduler.framework.status import SUCCESS, Code, PluginStatus, unresolvable
from control.scheduler.framework.suggestion import Suggestion
from control.scheduler.state.columns import RowArray
from control.scheduler.state.pods import PodInfo

if TYPE_CHECKING:
    from control.scheduler.framework.profile import Framework

Codes: TypeAlias = NDArray[np.uint32]
"""[row]: PASS, or (index of the first Filter plugin that rejects the row) << 16 | (number of its reason)."""

PASS: Final = np.uint32(0xFFFFFFFF)
PASS_CODE: Final = int(PASS)
LEFT_OUT: Final = np.uint32(0xFFFF0000)
"""The row was excluded by PreFilter."""


class FitError(Exception):
    """No node fits. Raised by `Cycle.place` and passed to the PostFilter plugins.

    `pre_filter` is set when a plugin rejected the pod before Filter; then it is the status of every node.
    """

    def __init__(
        self, pod: PodInfo, framework: Framework, rows: RowArray, codes: Codes, pre_filter: PluginStatus | None = None
    ) -> None:
        super().__init__(pod.key)
        self.pod = pod
        self.rows = rows
        """The valid rows."""
        self.codes = codes
        """[len(rows)]"""
        self.pre_filter = pre_filter
        self.left_out: PluginStatus = unresolvable()
        """The status of rows that PreFilter excluded. Without a reason they are not counted in the message."""
        self.narrowed_by: frozenset[str] = frozenset()
        """The PreFilter plugins that restricted the rows. Their events may help, too."""
        self.overrides: dict[int, PluginStatus] = {}
        """Status by row, where it is not the code of a Filter plugin: nominated pods or extenders prevent the fit."""
        self.suggestion: Suggestion | None = None
        self.post_filter: tuple[str, ...] = ()
        """The messages of the PostFilter plugins."""
        self.nominated: str | None = None
        """The nomination that PostFilter decided: a node, "" to remove it, None to keep it."""
        self._plugins = [filter_plugin.plugin for filter_plugin in framework.filters]

    def of(self, code: int) -> PluginStatus:
        """The status that a code stands for."""
        if code == LEFT_OUT:
            return self.left_out
        if code == PASS:
            return SUCCESS
        plugin = self._plugins[code >> 16]
        return plugin.reasons.status(code & 0xFFFF).by(plugin.name)

    def statuses(self) -> Iterator[tuple[int, PluginStatus]]:
        """(row, why it does not fit)."""
        for row, code in zip(self.rows.tolist(), self.codes.tolist(), strict=True):
            yield row, self.pre_filter or self.overrides.get(row) or self.of(code)

    def status(self, row: int) -> PluginStatus:
        at = int(np.searchsorted(self.rows, row))
        return self.pre_filter or self.overrides.get(row) or self.of(int(self.codes[at]))

    def preemptible(self) -> RowArray:
        """Rows where removing pods may help: those whose status is exactly Unschedulable."""
        if self.pre_filter is not None:
            return self.rows if self.pre_filter.code is Code.UNSCHEDULABLE else self.rows[:0]
        unschedulable = {int(code): self.of(int(code)).code is Code.UNSCHEDULABLE for code in np.unique(self.codes)}
        chosen = np.fromiter((unschedulable[int(code)] for code in self.codes), np.bool_, len(self.codes))
        for row, status in self.overrides.items():
            chosen[np.searchsorted(self.rows, row)] = status.code is Code.UNSCHEDULABLE
        return self.rows[chosen]

    def plugins(self) -> set[str]:
        """The plugins that rejected the pod. Their events may wake it."""
        if self.pre_filter is not None:
            return {self.pre_filter.plugin, *self.narrowed_by} - {""}
        names = {self.of(int(code)).plugin for code in np.unique(self.codes)}
        names.update(status.plugin for status in self.overrides.values())
        return (names | self.narrowed_by) - {""}

    def histogram(self) -> str:
        """`1 Insufficient cpu, 2 node(s) were unschedulable`."""
        counts: Counter[str] = Counter()
        if self.pre_filter is not None:
            counts.update({reason: len(self.rows) for reason in self.pre_filter.reasons})
            return _listed(counts)
        codes, times = np.unique(self.codes, return_counts=True)
        for code, count in zip(codes.tolist(), times.tolist(), strict=True):
            for reason in self.of(code).reasons:
                counts[reason] += count
        for row, status in self.overrides.items():
            replaced = self.of(int(self.codes[np.searchsorted(self.rows, row)]))
            counts.subtract(replaced.reasons)
            counts.update(status.reasons)
        return _listed(counts)

    def text(self, *, bare: bool = False) -> str:
        """The message. `bare` omits the messages of PreFilter and PostFilter (spec 05 §9.7): a rejection at PreFilter
        is then counted for every node."""
        head = f"0/{len(self.rows)} nodes are available:"
        if bare:
            reasons = self.histogram()
            return f"{head} {reasons}." if reasons else head
        reasons = self.pre_filter.message if self.pre_filter is not None else self.histogram()
        parts = [head, *([f"{reasons}."] if reasons else []), ", ".join(part for part in self.post_filter if part)]
        return " ".join(part for part in parts if part)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items() if count > 0))
