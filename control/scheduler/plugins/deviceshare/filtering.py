"""Filter: which nodes have the devices for a pod, for many rows at once (spec 06 §3.4).

The answers are exact: they are those of `decision.StateDecisions` for every row. A need without hints, partitions or a
required scope is a matter of counting devices with room, in columns. Anything else is decided once per state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from control.devices.allocate import NO_GPUS, NO_ISOLATION, NO_PRIMARY, insufficient
from control.devices.handoff import refused_by
from control.devices.needs import DeviceNeed
from control.devices.search import DevicesLacking
from control.scheduler.config.args import GPUShareUnsupportedModel
from control.scheduler.framework.plugin import Reasons
from control.scheduler.framework.status import Code
from control.scheduler.plugins.deviceshare.book import DeviceBook
from control.scheduler.plugins.deviceshare.decision import StateDecisions
from control.scheduler.state.columns import Mask, Reasons16, RowArray
from control.scheduler.state.credit import Offer
from koordlet.api.crs.device import GPU
from koordlet.api.encoding.quoting import quoted

_LACKING: Final = {True: Code.UNRESOLVABLE, False: Code.UNSCHEDULABLE}
"""By `DevicesLacking.final`."""


class DeviceFilter:
    """Numbers its reasons in `reasons`, which belong to the plugin."""

    def __init__(
        self,
        book: DeviceBook,
        reasons: Reasons,
        decisions: StateDecisions,
        unsupported: list[GPUShareUnsupportedModel],
        *,
        hands_off: bool,
    ) -> None:
        """`hands_off`: vendors' device plugins attach the devices; those that can't attach the chosen ones are
        refused."""
        self._hands_off = hands_off
        self._book = book
        self._reasons = reasons
        self._decisions = decisions
        self._unsupported = {(template.vendor, template.model) for template in unsupported}

    def check_row(self, need: DeviceNeed, row: int, numa: frozenset[int] | None, offer: Offer | None = None) -> int:
        """0, or the number of the reason. Without columns. `numa`: the NUMA nodes that devices must be on."""
        number = self._decisions.number(row, offer)
        if not number:
            return 0
        gpu = need.gpu
        if gpu is not None and gpu.shared and self._unsupported:
            traits = self._book.states[number].traits
            if (traits.vendor, traits.model) in self._unsupported:
                return self._reasons.number(Code.UNRESOLVABLE, _no_sharing(traits.vendor, traits.model))
        return self._by_state(need, number, numa)

    def _by_state(self, need: DeviceNeed, number: int, numa: frozenset[int] | None = None) -> int:
        verdict = self._decisions.verdict(need, number, numa)
        if isinstance(verdict, DevicesLacking):
            return self._reasons.number(_LACKING[verdict.final], str(verdict))
        reason = refused_by(self._book.states[number].inventory.vendor, verdict) if self._hands_off else ""
        return self._reasons.number(Code.UNRESOLVABLE, reason) if reason else 0

    def check(self, need: DeviceNeed, rows: RowArray) -> Reasons16:
        """[row]: 0, or the number of the reason."""
        columns, number = self._book.columns, self._reasons.number
        out = np.zeros(len(rows), np.int16)
        states = columns.state.data[rows]
        known = states != 0
        gpu = need.gpu
        if gpu is not None and gpu.shared:
            for vendor, model in self._unsupported:
                at = columns.models.get((vendor, model))
                if at is not None:
                    mask = known & (columns.model.data[rows] == at)
                    if mask.any():
                        out[mask] = number(Code.UNRESOLVABLE, _no_sharing(vendor, model))
        counted = known & (need.plain and not self._hands_off and not self._decisions.templates.needed(need))
        if gpu is not None and not gpu.shared:
            counted &= ~columns.honors.data[rows]
        if gpu is not None and gpu.shared and need.isolation:
            other = counted & (columns.isolation.data[rows] != columns.labels.get(need.isolation, -1)) & (out == 0)
            if other.any():
                out[other] = number(Code.UNRESOLVABLE, NO_ISOLATION)
        if counted.any():
            for mask, code, text in self._shortages(need, rows):
                mask = mask & counted & (out == 0)
                if mask.any():
                    out[mask] = number(code, text)
        left = np.flatnonzero(known & ~counted & (out == 0))
        if len(left):
            unique, inverse = np.unique(states[left], return_inverse=True)
            numbers = np.array([self._by_state(need, state) for state in unique.tolist()], np.int16)
            out[left] = numbers[inverse.reshape(-1)]
        return out

    def _shortages(self, need: DeviceNeed, rows: RowArray) -> Iterator[tuple[Mask, Code, str]]:
        """(rows, code, reason), in the order in which `allocate` looks for devices."""
        for kind in dict.fromkeys((*need.joint, *need.requests)):
            request, columns = need.requests[kind], self._book.columns.types[kind]
            few = columns.fitting(request, rows) < request.count
            absent = columns.listed.data[rows] == 0
            primary = kind in need.joint[:1]
            text = NO_PRIMARY if primary else insufficient(kind)
            yield absent, Code.UNRESOLVABLE, text
            if kind == GPU and not primary and not (request.shared and request.count > 1):
                tree = columns.tree.data[rows]
                yield few & tree, Code.UNSCHEDULABLE, NO_GPUS
                yield few & ~tree, Code.UNSCHEDULABLE, text
            else:
                yield few, Code.UNSCHEDULABLE, text


def _no_sharing(vendor: str, model: str) -> str:
    return f"model {quoted(model)} of vendor {quoted(vendor)} does not support GPU Share"
