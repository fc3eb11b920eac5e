"""Filter: which nodes can give a pod its CPUs and NUMA zones, for many rows at once (spec 06 §2.4).

The answers are exact: they are those of `decision.decide` for every row. In addition to the specification, nodes that
could not give the CPUs at Reserve are rejected already here, so that another node is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from control.numa.accumulator import NOT_ENOUGH_CPUS
from control.numa.hints import NO_ZONES, ZoneHint, merge, subsets
from control.numa.report import RESTRICTED, SINGLE_NUMA_NODE
from control.scheduler.framework.plugin import Reasons
from control.scheduler.framework.status import Code
from control.scheduler.plugins.nodenumaresource.book import NumaBook
from control.scheduler.plugins.nodenumaresource.columns import (
    ANY,
    BEST,
    BIND_CODES,
    FIRST,
    FULL,
    NUMA_CODES,
    ONE_ZONE,
    RESTRICT,
    WHOLE,
)
from control.scheduler.plugins.nodenumaresource.decision import RowDecisions
from control.scheduler.plugins.nodenumaresource.equalrows import equal_rows
from control.scheduler.plugins.nodenumaresource.needs import NumaNeed
from control.scheduler.plugins.nodenumaresource.ratios import UNIT
from control.scheduler.plugins.nodenumaresource.zonesets import ZoneSets
from control.scheduler.state.columns import IntArray, Mask, Reasons16, RowArray
from control.scheduler.state.table import CPU, NodeTable

POLICY_MISMATCH: Final = "node(s) NUMA Topology policy not match"
NOT_INTEGER: Final = "the requested CPUs must be integer"
TOO_LITTLE_AMPLIFIED: Final = "Insufficient amplified cpu"
BAD_RATIO: Final = "node(s) invalid CPU amplification ratio"
NO_LAYOUT: Final = "node(s) invalid CPU Topology"
CONFLICT: Final = "node(s) cpu bind policy conflicts with pod's required cpu bind policy"
NOT_MULTIPLE: Final = "node(s) requested cpus not multiple cpus per core"
MISSING_ZONES: Final = "node(s) missing NUMA resources"
UNALIGNED: Final = "Unaligned NUMA Hint"
MAX_TEXTS: Final = 4096
"""Distinct texts about hints; further ones are not spelled out."""
_POLICY_NAMES: Final = {RESTRICT: RESTRICTED, ONE_ZONE: SINGLE_NUMA_NODE}


class RowBinding:
    """How a pod's CPUs are bound on some rows. Arrays have the order of `rows`."""

    def __init__(self, book: NumaBook, need: NumaNeed, rows: RowArray) -> None:
        columns = book.columns
        self.node: IntArray = columns.bind_policy.data[rows]
        """Codes of the nodes' CPU bind policies."""
        self.bind: Mask = (self.node != 0) & (need.cpu > 0) | need.bind
        own = BIND_CODES.get(need.policy, 0)
        if need.bind and need.required:
            self.policy: IntArray = np.full(len(rows), own, np.int8)
            self.required: Mask = self.bind
        else:
            self.policy = np.where(self.node != 0, self.node, own)
            self.required = self.bind & (self.node != 0)
        self.required_policy: IntArray = np.where(self.required, self.policy, 0)
        self.kind: IntArray = np.where(self.required, np.where(self.policy == FULL, WHOLE, FIRST), ANY)
        """Index in `NumaColumns.cpus` of the CPUs that the pod can get."""
        pod = NUMA_CODES.get(need.numa_policy, 0)
        node_numa = columns.numa_policy.data[rows]
        self.mismatch: Mask = (node_numa != 0) & (node_numa != pod) & (pod != 0)
        self.numa: IntArray = np.where(node_numa != 0, node_numa, pod)
        """Codes of the effective NUMA topology policies."""


class NumaFilter:
    """Numbers its reasons in `reasons`, which belong to the plugin."""

    def __init__(self, book: NumaBook, table: NodeTable, reasons: Reasons, decisions: RowDecisions) -> None:
        self._book = book
        self._decisions = decisions
        self._table = table
        self._reasons = reasons
        self._texts: dict[tuple[str, ...], int] = {}
        """Reasons about hints -> number. A plugin's reasons are never freed."""
        self._by_hints: dict[tuple[object, ...], int] = {}
        """Hints -> number of their reasons."""

    def check(self, need: NumaNeed, rows: RowArray) -> Reasons16:
        """[row]: 0, or the number of the reason."""
        columns, number = self._book.columns, self._reasons.number
        binding = RowBinding(self._book, need, rows)
        bind, cpus = binding.bind, need.cpus
        out = np.zeros(len(rows), np.int16)

        def reject(mask: Mask, code: Code, text: str) -> None:
            if mask.any():
                out[mask & (out == 0)] = number(code, text)

        reject(binding.mismatch, Code.UNRESOLVABLE, POLICY_MISMATCH)
        if not need.whole:
            reject(bind, Code.UNRESOLVABLE, NOT_INTEGER)
        if need.cpu:
            ratio = columns.ratio.data[rows]
            if ratio.any():
                reject(ratio < 0, Code.UNRESOLVABLE, BAD_RATIO)
                reject(self._lacks_amplified(need, rows, bind, ratio), Code.UNSCHEDULABLE, TOO_LITTLE_AMPLIFIED)
        if bind.any():
            per_core = columns.cpus_per_core.data[rows]
            reject(bind & (per_core == 0), Code.UNRESOLVABLE, NO_LAYOUT)
            if need.bind and need.required:
                conflict = (binding.node != 0) & (binding.node != binding.policy)
                reject(bind & conflict, Code.UNRESOLVABLE, CONFLICT)
            odd = cpus % np.maximum(per_core, 1) != 0
            reject((binding.required_policy == FULL) & odd, Code.UNRESOLVABLE, NOT_MULTIPLE)
        if binding.numa.any():
            empty = columns.zones.data[rows] == 0
            reject((binding.numa > BEST) & empty, Code.UNRESOLVABLE, MISSING_ZONES)
            reject((binding.numa == BEST) & empty, Code.UNSCHEDULABLE, NO_ZONES)
            left = np.flatnonzero((binding.numa != 0) & (out == 0))
            if len(left) and need.provider is not None:
                first, kinds = equal_rows(self._book, rows[left], need.provider.keys(rows[left]))
                some = [(int(rows[at]), int(binding.numa[at])) for at in left[first]]
                out[left] = np.array([self._check_row_zones(need, row, numa) for row, numa in some], np.int16)[kinds]
            elif need.designated is not None:
                some = [(int(rows[at]), int(binding.numa[at])) for at in left]
                out[left] = [self._check_row_zones(need, row, numa) for row, numa in some]
            elif len(left):
                out[left] = self._check_zones(need, rows, binding, left)
        if bind.any():
            few = cpus > columns.cpus.data[binding.kind, rows]
            reject(bind & few, Code.UNSCHEDULABLE, NOT_ENOUGH_CPUS)
        return out

    def check_row(self, need: NumaNeed, row: int) -> int | None:
        """`check` for one row without columns; None if the row has a ratio."""
        columns = self._book.columns
        if need.cpu and columns.ratio.data.item(row):
            return None
        numa, pod = columns.numa_policy.data.item(row), NUMA_CODES.get(need.numa_policy, 0)
        if numa and pod and numa != pod:
            return self._reasons.number(Code.UNRESOLVABLE, POLICY_MISMATCH)
        if need.bind or (need.cpu and columns.bind_policy.data.item(row)):
            return self._check_binding(need, row, numa or pod)
        return self._check_row_zones(need, row, numa or pod) if numa or pod else 0

    def _check_binding(self, need: NumaNeed, row: int, numa: int) -> int:
        columns, number = self._book.columns, self._reasons.number
        node = columns.bind_policy.data.item(row)
        if not need.whole:
            return number(Code.UNRESOLVABLE, NOT_INTEGER)
        per_core = columns.cpus_per_core.data.item(row)
        if not per_core:
            return number(Code.UNRESOLVABLE, NO_LAYOUT)
        policy, required = BIND_CODES.get(need.policy, 0), need.bind and need.required
        if node and required and node != policy:
            return number(Code.UNRESOLVABLE, CONFLICT)
        if node and not required:
            policy, required = node, True
        if required and policy == FULL and need.cpus % per_core:
            return number(Code.UNRESOLVABLE, NOT_MULTIPLE)
        reason = self._check_row_zones(need, row, numa) if numa else 0
        kind = (WHOLE if policy == FULL else FIRST) if required else ANY
        if not reason and need.cpus > columns.cpus.data.item(kind, row):
            return number(Code.UNSCHEDULABLE, NOT_ENOUGH_CPUS)
        return reason

    def _check_row_zones(self, need: NumaNeed, row: int, numa: int) -> int:
        number = self._reasons.number
        if not self._book.columns.zones.data.item(row):
            if numa == BEST:
                return number(Code.UNSCHEDULABLE, NO_ZONES)
            return number(Code.UNRESOLVABLE, MISSING_ZONES)
        choice = self._decisions.choice(need, row)
        reasons = () if choice.merged is None else choice.merged.reasons
        name = choice.lacking() if numa == BEST and not reasons else ""
        if name:
            return number(Code.UNSCHEDULABLE, f"Insufficient NUMA {name}")
        return self._text(reasons) if reasons else 0

    def _lacks_amplified(self, need: NumaNeed, rows: RowArray, bind: Mask, ratio: IntArray) -> Mask:
        requested = self._table.requested[CPU, rows]
        cpu = np.where(bind, amplified(need.cpu, ratio), need.cpu)
        lacks: Mask = cpu > self._table.allocatable[CPU, rows] - amplified_use(self._book, rows, requested, ratio)
        return lacks & (ratio > UNIT)

    def _check_zones(self, need: NumaNeed, rows: RowArray, binding: RowBinding, left: RowArray) -> Reasons16:
        """For the rows at the positions `left`."""
        numa = binding.numa[left]
        sets = zone_sets(self._book, need, rows, binding, left)
        out = np.zeros(len(left), np.int16)
        best = numa == BEST
        if best.any():
            out[best] = self._short(need, sets)[best]
        strict = ~best
        if strict.any():
            ok = sets.indifferent & ~_violated_by_all(sets)
            for chosen in sets.sets(single=bool((numa != RESTRICT).all())):
                allowed = ~sets.indifferent if chosen.bit_count() == 1 else (numa == RESTRICT) & ~sets.indifferent
                ok |= allowed & sets.agreed(chosen)
            rejected = np.flatnonzero(strict & ~ok)
            if len(rejected):
                out[rejected] = self._unaligned(need, rows, binding, left[rejected])
        return out

    def _short(self, need: NumaNeed, sets: ZoneSets) -> Reasons16:
        """For BestEffort: the first resource of which all zones together have too little."""
        out = np.zeros(len(sets.rows), np.int16)
        for name, room, published in zip(sets.resources, sets.room, sets.published, strict=True):
            short = published & (room.sum(axis=0) < need.amounts[name]) & (out == 0)
            if short.any():
                out[short] = self._reasons.number(Code.UNSCHEDULABLE, f"Insufficient NUMA {name}")
        return out

    def _unaligned(self, need: NumaNeed, rows: RowArray, binding: RowBinding, at: RowArray) -> Reasons16:
        """The reasons with the hints of every resource. Rows with the same hints share a text."""
        sets = zone_sets(self._book, need, rows, binding, at)
        served = {chosen: sets.served(chosen) for chosen in subsets(sets.count)}
        bits = [
            np.array([sets.hint(chosen, resource, mask) for chosen, mask in served.items()])
            for resource in range(len(sets.resources))
        ]
        id_lists = [self._book.zone_ids[row] for row in sets.rows.tolist()]
        id_numbers: dict[tuple[int, ...], int] = {}
        ids = np.array([id_numbers.setdefault(zone_ids, len(id_numbers)) for zone_ids in id_lists], np.int64)
        parts = [*(part.astype(np.uint8) for part in bits), np.array(sets.published, np.uint8)]
        packed = np.packbits(np.concatenate(parts), axis=0).T
        signature = np.concatenate(
            (packed, ids[:, None].view(np.uint8), binding.numa[at][:, None]),
            axis=1,
        ).astype(np.uint8)
        _, first, inverse = np.unique(signature, axis=0, return_index=True, return_inverse=True)
        numbers = []
        for row in first.tolist():
            hints: dict[str, list[int]] = {
                name: [chosen for chosen, hint in zip(served, bits[resource][:, row], strict=True) if hint]
                for resource, name in enumerate(sets.resources)
                if sets.published[resource][row]
            }
            numbers.append(self._hints_text(hints, id_lists[row], _POLICY_NAMES[int(binding.numa[at][row])]))
        chosen_numbers: Reasons16 = np.array(numbers, np.int16)[inverse.reshape(-1)]
        return chosen_numbers

    def _hints_text(self, hints: Mapping[str, list[int]], ids: tuple[int, ...], policy: str) -> int:
        key = (tuple((name, *sets) for name, sets in hints.items()), ids, policy)
        number = self._by_hints.get(key)
        if number is None:
            if len(self._by_hints) >= MAX_TEXTS:
                self._by_hints.clear()
            listed = {name: _zone_hints(sets, policy) for name, sets in hints.items()}
            number = self._by_hints[key] = self._text(merge([listed], ids, policy, lambda zones: True).reasons)
        return number

    def _text(self, reasons: tuple[str, ...]) -> int:
        """The number of reasons about hints, of which there are at most `MAX_TEXTS`."""
        number = self._texts.get(reasons)
        if number is None:
            if len(self._texts) >= MAX_TEXTS:
                return self._reasons.number(Code.UNSCHEDULABLE, UNALIGNED)
            number = self._texts[reasons] = self._reasons.number(Code.UNSCHEDULABLE, *reasons)
        return number


def zone_sets(book: NumaBook, need: NumaNeed, rows: RowArray, binding: RowBinding, at: RowArray) -> ZoneSets:
    """The sets of zones of the rows at the positions `at`."""
    return ZoneSets(book.columns, need, rows[at], binding.bind[at], binding.kind[at], binding.required_policy[at])


def amplified(amount: IntArray | int, ratio: IntArray) -> IntArray:
    """`ratios.amplify` for columns."""
    return np.where(ratio > UNIT, -(-amount * ratio // UNIT), amount)


def amplified_use(book: NumaBook, rows: RowArray, requested: IntArray, ratio: IntArray) -> IntArray:
    """[row]: requested cpu, in which CPUs of their own count amplified."""
    bound = 1000 * book.columns.bound.data[rows]
    return np.where((requested >= bound) & (bound > 0), requested - bound + amplified(bound, ratio), requested)


def _violated_by_all(sets: ZoneSets) -> Mask:
    """[row]: the set of all zones of the node violates exclusivity."""
    everything = sets.everything()
    violated = np.zeros(len(sets.rows), np.bool_)
    for chosen in np.unique(everything).tolist():
        violated |= (everything == chosen) & sets.violated(chosen)
    return violated


def _zone_hints(sets: list[int], policy: str) -> list[ZoneHint]:
    smallest = min((zones.bit_count() for zones in sets), default=0)
    return [ZoneHint(zones, policy == RESTRICTED or zones.bit_count() == smallest) for zones in sets]
