"""Reservations that take over running pods: which ones on each row, and their room as a credit (spec 06 §4.9).

A pod that is taken over becomes an owner. So the reservation needs only the rest of its amounts from the node. The rule
for one row is in `control.reservation.preallocation`; it is applied when a row is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from control.quota.amounts import Amounts
from control.reservation import preallocation
from control.reservation.model import ReservationModel
from control.reservation.preallocation import CLUSTER, TakeOver
from control.scheduler.config.args import PreAllocationConfig
from control.scheduler.plugins.reservation.book import NO_PORTS, ReservationBook, ReservedRoom, holds_room
from control.scheduler.plugins.reservation.fitting import Fitting, by_node
from control.scheduler.plugins.reservation.match import NO_LABELS
from control.scheduler.state.columns import IntArray, Mask, RowArray, Rows
from control.scheduler.state.credit import NO_ROOM, Offer, Port, nonzero_key
from control.scheduler.state.pods import REPLICA_LABELS, PodInfo
from control.scheduler.state.table import CPU, MEMORY, PODS, selected

NO_CANDIDATES: Final = "node(s) no pod match reservation with pre allocation required"
NONE_FITS: Final = "node(s) no pod(s) to meet the pre-allocation requirements"


class PreAllocation:
    """For one reserve pod and one cycle. A `RowCredit`."""

    def __init__(
        self,
        book: ReservationBook,
        fitting: Fitting,
        config: PreAllocationConfig,
        pod: PodInfo,
        model: ReservationModel,
    ) -> None:
        self.model = model
        self._book = book
        self._table = book.table
        self._fitting = fitting
        self._config = config
        self._pod = pod
        self._named: dict[int, bool] = {}
        """By shape: whether its pods may be candidates at all."""
        self._position = -1
        self._rows: dict[int, tuple[list[PodInfo], TakeOver, bool]] = {}
        """Row -> (candidates, the choice among them, whether the reservation fits), up to `_position` of the log."""

    # One row

    def chosen(self, row: int) -> list[PodInfo] | None:
        """The pods that are taken over on a row; None: the reservation does not fit there."""
        candidates, choice, fits = self._row(row)
        return [candidates[at] for at in choice.chosen] if fits else None

    def reasons(self, row: int) -> tuple[bool, list[str]]:
        """Why the reservation does not fit: (whether removing pods may help, texts)."""
        candidates, choice, _ = self._row(row)
        if self.model.pre_allocation_required and not candidates:
            return False, [NO_CANDIDATES]
        texts = [short.text(figures=False) for short in choice.short]
        if not self.model.pre_allocation_required:
            texts += map(by_node, self._short(row, {}))
        return True, texts or [NONE_FITS]

    def _row(self, row: int) -> tuple[list[PodInfo], TakeOver, bool]:
        end = self._table.pod_log.end
        if self._position != end:
            self._position = end
            self._rows.clear()
        known = self._rows.get(row)
        if known is None:
            known = self._rows[row] = self._decide(row)
        return known

    def _decide(self, row: int) -> tuple[list[PodInfo], TakeOver, bool]:
        required = self.model.pre_allocation_required
        if self._config.prefer_no_pre_allocated_pods and not required and not self._short(row, {}):
            return [], TakeOver(), True
        candidates = self._candidates(row)
        choice = preallocation.choose(
            self.model, [pod.requests for pod in candidates], lambda used: not self._short(row, used)
        )
        fits = bool(choice.chosen) or (not required and not self._short(row, {}))
        return candidates, choice, fits

    def _candidates(self, row: int) -> list[PodInfo]:
        node, label = self._table.nodes[row], self._config.cluster_label_key
        labels = NO_LABELS if node is None else node.metadata.labels
        candidates = [
            pod
            for pod in self._table.pods[row].values()
            if self._is_free(pod)
            and self._may_be(pod)
            and preallocation.is_candidate(self.model, pod.pod, pod.requests, labels, label)
        ]
        if self.model.pre_allocation_mode == CLUSTER:
            key = self._config.cluster_priority_annotation_key
            return sorted(candidates, key=lambda pod: (-preallocation.priority_of(pod.pod, key), pod.uid))
        return sorted(candidates, key=lambda pod: pod.key)

    def _is_free(self, pod: PodInfo) -> bool:
        """Bound, staying, and of no other reservation. After a kill the pod may have this reservation's annotation."""
        if pod.assumed or pod.terminating or holds_room(pod):
            return False
        return self._book.owners.of(pod.uid) in (None, self._pod.uid)

    def _may_be(self, pod: PodInfo) -> bool:
        """Whether labels that all pods of the shape have allow it; the other labels are compared pod by pod."""
        shape = pod.shape
        known = self._named.get(shape.id)
        if known is None:
            if self.model.pre_allocation_mode == CLUSTER:
                known = self._config.cluster_label_key in shape.labels
            else:
                known = any(
                    owner.label_selector is not None
                    and (
                        owner.label_selector.match_labels.keys() & REPLICA_LABELS
                        or owner.label_selector.match_expressions
                        or owner.label_selector.match_labels.items() <= shape.labels.items()
                    )
                    for owner in self.model.owners
                )
            self._named[shape.id] = known
        return known

    def _short(self, row: int, used: Amounts) -> list[str]:
        """Resources of which the node has too little for the reservation, whose owners use this much of it."""
        table, pod = self._table, self._pod
        short = ["pods"] if table.requested.item(PODS, row) + 1 > table.allocatable.item(PODS, row) else []
        for name, amount in sorted(pod.requests.items()):
            if amount <= 0 or name == "pods" or not self._fitting.compares(name):
                continue
            column = table.resource(name)
            free = table.allocatable.item(column, row) - table.requested.item(column, row)
            if amount - min(used.get(name, 0), amount) > free:
                short.append(name)
        return short

    # RowCredit

    def at(self, row: int) -> Mapping[int, int]:
        """Everything where the reservation does not fit, so that this plugin's reason is reported."""
        chosen, table = self.chosen(row), self._table
        if chosen is None:
            return {PODS: 1, **dict(table.vector(self._pod.shape))}
        if not chosen:
            return NO_ROOM
        credit: dict[int, int] = {}
        for name in self.model.restricted:
            used = min(sum(pod.requests.get(name, 0) for pod in chosen), self._pod.requests.get(name, 0))
            credit[table.resource(name)] = used
        for column in (CPU, MEMORY):
            credit[nonzero_key(column)] = credit.get(column, 0)
        return credit

    def column(self, key: int, rows: Rows) -> IntArray:
        chosen = selected(rows, self._table.size)
        return np.fromiter((self.at(row).get(key, 0) for row in chosen.tolist()), np.int64, len(chosen))

    def mask(self, rows: RowArray) -> Mask:
        return np.fromiter((bool(self.chosen(row)) for row in rows.tolist()), np.bool_, len(rows))

    def offers(self, row: int) -> Sequence[Offer]:
        return ()

    def ports(self, row: int) -> Mapping[Port, int]:
        return NO_PORTS


def pre_allocating(room: ReservedRoom | None) -> ReservationModel | None:
    """The model of a reservation that takes over pods."""
    model = None if room is None else room.model
    return model if model is not None and model.pre_allocation else None
