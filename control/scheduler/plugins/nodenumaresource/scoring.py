"""Score: how full a node, or the zones that the pod would get, are with the pod (spec 06 §2.8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from control.numa.affinity import NodeRoom, NumaRequest
from control.numa.masks import numbers_of
from control.scheduler.config.args import ScoringStrategy, WeightedResource
from control.scheduler.plugins.nodenumaresource.book import NumaBook
from control.scheduler.plugins.nodenumaresource.columns import BEST, ONE_ZONE, UNPUBLISHED
from control.scheduler.plugins.nodenumaresource.decision import RowDecisions
from control.scheduler.plugins.nodenumaresource.equalrows import equal_rows
from control.scheduler.plugins.nodenumaresource.filtering import RowBinding, amplified, amplified_use, zone_sets
from control.scheduler.plugins.nodenumaresource.needs import NumaNeed
from control.scheduler.plugins.nodenumaresource.ratios import amplify
from control.scheduler.plugins.nodenumaresource.zonesets import ZoneSets
from control.scheduler.state.columns import IntArray, Mask, RowArray
from control.scheduler.state.table import CPU, NodeTable
from koordlet.api.resources import is_extended

MAX: Final = 100
MOST: Final = "MostAllocated"
WHOLE_NODE: Final = -1
"""Stands for the score of the node, where no zones were chosen."""

Amounts = Callable[[WeightedResource], "tuple[IntArray, IntArray] | None"]
"""Resource -> (requested with the pod, capacity), None if it does not count."""


def rated(strategy: ScoringStrategy, amounts: Amounts, length: int) -> IntArray:
    """[length]: 0..100."""
    total, weights = np.zeros(length, np.int64), np.zeros(length, np.int64)
    for resource in strategy.resources:
        columns = amounts(resource)
        if columns is None:
            continue
        requested, capacity = columns
        present, safe = capacity > 0, np.maximum(capacity, 1)
        if strategy.type == MOST:
            score = np.minimum(requested, capacity) * MAX // safe
        else:
            score = np.maximum(capacity - requested, 0) * MAX // safe
        weight = resource.weight or 1
        total += np.where(present, score, 0) * weight
        weights += (capacity >= 0) * weight
    result: IntArray = total // np.maximum(weights, 1)
    return result


def _rate(strategy: str, requested: int, capacity: int) -> int:
    """`rated` for one resource of one row."""
    if capacity <= 0:
        return 0
    used = min(requested, capacity)
    return (used if strategy == MOST else capacity - used) * MAX // capacity


def _set_score(strategy: ScoringStrategy, room: NodeRoom, amounts: Mapping[str, int], chosen: int) -> int:
    """`rated` for a set of zones of one node."""
    members = [room.zones[at] for at in numbers_of(chosen)]
    total = weights = 0
    for resource in strategy.resources:
        name = resource.name
        pod_request = amounts.get(name, 0)
        listed = [zone for zone in members if name in zone.total]
        if not listed or (not pod_request and is_extended(name)):
            continue
        capacity = sum([zone.total[name] for zone in listed])
        free = sum([max(0, zone.available[name]) for zone in listed])
        weight = resource.weight or 1
        total += _rate(strategy.type, max(capacity - free, 0) + pod_request, capacity) * weight
        weights += weight
    return total // (weights or 1)


class NumaScore:
    """`node`, `zones`: the strategies for nodes and for sets of zones."""

    def __init__(self, book: NumaBook, table: NodeTable, node: ScoringStrategy, zones: ScoringStrategy) -> None:
        self._book = book
        self._table = table
        self._node = node
        self._zones = zones

    def scores(self, need: NumaNeed, rows: RowArray, decisions: RowDecisions) -> IntArray:
        """[row]. `decisions`: for BestEffort, whose choice is not a matter of columns."""
        binding = RowBinding(self._book, need, rows)
        ratio = self._book.columns.ratio.data[rows]
        scores = self._of_nodes(need, rows, binding, ratio)
        numa = binding.numa
        zoned = np.flatnonzero(numa != 0)
        if len(zoned):
            if need.provider is not None:
                first, kinds = equal_rows(self._book, rows[zoned], need.provider.keys(rows[zoned]))
                chosen = [self._of_choice(need, int(row), decisions, WHOLE_NODE) for row in rows[zoned[first]]]
                of_rows = np.array(chosen, np.int64)[kinds]
                scores[zoned] = np.where(of_rows == WHOLE_NODE, scores[zoned], of_rows)
            elif need.designated is not None:
                for at in zoned.tolist():
                    scores[at] = self._of_choice(need, int(rows[at]), decisions, int(scores[at]))
            else:
                scores[zoned], unsettled = self._of_zones(need, rows, binding, zoned, scores[zoned])
                for at in zoned[unsettled].tolist():
                    scores[at] = self._of_choice(need, int(rows[at]), decisions, int(scores[at]))
        scores[binding.bind & (self._book.columns.cpus_per_core.data[rows] == 0)] = 0
        return scores

    def score_row(self, need: NumaNeed, row: int, decisions: RowDecisions) -> int | None:
        """`scores` for one row without columns; None if the row has a ratio."""
        columns, table = self._book.columns, self._table
        if columns.ratio.data.item(row):
            return None
        bind = need.bind or (need.cpu and columns.bind_policy.data.item(row))
        if bind and not columns.cpus_per_core.data.item(row):
            return 0
        total = weights = 0
        for resource in self._node.resources:
            pod_request = need.amounts.get(resource.name, 0)
            if not pod_request and is_extended(resource.name):
                continue
            column = table.resource(resource.name)
            capacity = table.allocatable.item(column, row)
            requested = table.requested.item(column, row) + pod_request
            weight = resource.weight or 1
            total += _rate(self._node.type, requested, capacity) * weight
            if capacity > 0 or column == CPU:
                weights += weight
        whole = total // (weights or 1)
        if need.numa_policy or columns.numa_policy.data.item(row):
            return self._of_choice(need, row, decisions, whole)
        return whole

    def _of_choice(self, need: NumaNeed, row: int, decisions: RowDecisions, whole: int) -> int:
        choice = decisions.choice(need, row)
        if choice.merged is None or choice.merged.reasons:
            return 0
        if choice.merged.zones is None:
            return whole
        ratio = self._book.columns.ratio.data.item(row)
        own = {"cpu": amplify(need.cpu, ratio)} if choice.request.cpus else {}
        return _set_score(self._node, choice.room, {**need.amounts, **own}, choice.merged.zones)

    def of_set(self, room: NodeRoom, request: NumaRequest, chosen: int) -> int:
        """The score of a set of zones of one node, for hints."""
        return _set_score(self._zones, room, request.amounts, chosen)

    def _of_nodes(self, need: NumaNeed, rows: RowArray, binding: RowBinding, ratio: IntArray) -> IntArray:
        table = self._table

        def amounts(resource: WeightedResource) -> tuple[IntArray, IntArray] | None:
            pod_request = need.amounts.get(resource.name, 0)
            if not pod_request and is_extended(resource.name):
                return None
            column = table.resource(resource.name)
            requested, capacity = table.requested[column, rows], table.allocatable[column, rows]
            if column != CPU:
                return requested + pod_request, np.where(capacity > 0, capacity, UNPUBLISHED)
            own = np.where(binding.bind, amplified(pod_request, ratio), pod_request)
            return amplified_use(self._book, rows, requested, ratio) + own, capacity

        return rated(self._node, amounts, len(rows))

    def _of_zones(
        self, need: NumaNeed, rows: RowArray, binding: RowBinding, at: RowArray, whole: IntArray
    ) -> tuple[IntArray, Mask]:
        """([row] scores, [row] whether the choice is no matter of columns) for the rows at the positions `at`, which
        Filter accepts. `whole`: the scores of the nodes."""
        sets = zone_sets(self._book, need, rows, binding, at)
        chosen_set = self._chosen_sets(need, sets, binding, at)
        numa, everything = binding.numa[at], sets.everything()
        unsettled = (chosen_set == 0) & (numa == BEST)
        whole_node = (chosen_set == 0) | ((numa == ONE_ZONE) & (chosen_set == everything))
        scores = whole.copy()
        for chosen in np.unique(chosen_set[~whole_node]).tolist():
            here = (chosen_set == chosen) & ~whole_node
            set_scores = self._of_columns(self._node, need, sets.rows, binding, at, chosen, amplify_own=True)
            scores[here] = set_scores[here]
        return scores, unsettled

    def _chosen_sets(self, need: NumaNeed, sets: ZoneSets, binding: RowBinding, at: RowArray) -> IntArray:
        """[row]: the set of zones that the pod would get; 0 if none serves all its resources.

        The smallest sets on which all resources agree count, of these the one with the highest score. BestEffort
        takes them only if no resource has a smaller hint."""
        numa, indifferent = binding.numa[at], sets.indifferent
        single, best_effort = numa == ONE_ZONE, numa == BEST
        best = np.full(len(at), -1, np.int64)
        chosen_set = np.where(indifferent & ~single, sets.everything(), 0)
        size, hinted = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
        for chosen in sets.sets(single=bool(single.all())):
            count = chosen.bit_count()
            allowed = ~indifferent & (~single | (count == 1)) & ((size == 0) | (size == count))
            if not allowed.any():
                continue
            if best_effort.any():
                served = sets.served(chosen)
                for resource in range(len(sets.resources)):
                    hinted = np.where((hinted == 0) & sets.hint(chosen, resource, served), count, hinted)
                allowed &= ~best_effort | (hinted == 0) | (hinted == count)
            allowed &= sets.agreed(chosen)
            if allowed.any():
                score = self._of_columns(self._zones, need, sets.rows, binding, at, chosen)
                better = allowed & (score > best)
                best[better], chosen_set[better] = score[better], chosen
                size[allowed] = count
        return chosen_set

    def _of_columns(
        self,
        strategy: ScoringStrategy,
        need: NumaNeed,
        rows: RowArray,
        binding: RowBinding,
        at: RowArray,
        chosen: int,
        *,
        amplify_own: bool = False,
    ) -> IntArray:
        """[row]: the score of a set of zones. `amplify_own`: the pod's own CPUs count amplified."""
        columns, zones = self._book.columns, list(numbers_of(chosen))

        def amounts(resource: WeightedResource) -> tuple[IntArray, IntArray] | None:
            index, pod_request = columns.resources.get(resource.name), need.amounts.get(resource.name, 0)
            if index is None or (not pod_request and is_extended(resource.name)):
                return None
            total = columns.zone_total.data[zones, index][:, rows]
            listed = total != UNPUBLISHED
            capacity = np.where(listed, total, 0).sum(axis=0)
            free = np.where(listed, columns.zone_available.data[zones, index][:, rows], 0).sum(axis=0)
            own: IntArray | int = pod_request
            if amplify_own and resource.name == "cpu":
                ratio = columns.ratio.data[rows]
                own = np.where(binding.bind[at], amplified(pod_request, ratio), pod_request)
            present = listed.any(axis=0)
            return np.maximum(capacity - free, 0) + own, np.where(present, capacity, UNPUBLISHED)

        return rated(strategy, amounts, len(rows))
