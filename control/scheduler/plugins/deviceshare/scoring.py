"""Score: how full the devices of a node are with the pod (spec 06 §3.8)."""

from __future__ import annotations

import numpy as np

from control.devices.needs import DeviceNeed
from control.devices.rating import MAX, DeviceStrategy
from control.devices.requests import TypeRequest
from control.scheduler.plugins.deviceshare.book import DeviceBook
from control.scheduler.plugins.deviceshare.columns import TypeColumns
from control.scheduler.state.columns import IntArray, RowArray
from koordlet.api.annotations.device import APPLY_FOR_ALL


class DeviceScore:
    """Raw scores: the sum over the requested types of 0..100 each. The request counts once per device."""

    def __init__(self, book: DeviceBook, strategy: DeviceStrategy) -> None:
        self._book = book
        self._strategy = strategy

    def scores(self, need: DeviceNeed, rows: RowArray) -> IntArray:
        """[row]; 0 for a node without Device object."""
        scores = np.zeros(len(rows), np.int64)
        for kind, request in need.requests.items():
            columns = self._book.columns.types[kind]
            count: IntArray | int = request.count
            if need.hint(kind).allocate_strategy == APPLY_FOR_ALL:
                count = columns.usable.data[rows]
            scores += self._of_type(request, columns, rows, count)
        return scores

    def _of_type(self, request: TypeRequest, columns: TypeColumns, rows: RowArray, count: IntArray | int) -> IntArray:
        score, weights = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        for name, weight in self._strategy.weights.items():
            index = columns.resources.get(name)
            if index is None:
                continue
            capacity = columns.total_sum.data[index, rows]
            used = capacity - columns.free_sum.data[index, rows] + request.amounts.get(name, 0) * count
            used = np.minimum(capacity, used)
            part = used if self._strategy.most else capacity - used
            score += part * MAX // np.maximum(capacity, 1) * weight
            weights += (capacity > 0) * weight
        result: IntArray = score // np.maximum(weights, 1)
        return result

    def score_row(self, need: DeviceNeed, row: int) -> int:
        """`scores` for one row without columns."""
        score = 0
        for kind, request in need.requests.items():
            columns = self._book.columns.types[kind]
            count = request.count
            if need.hint(kind).allocate_strategy == APPLY_FOR_ALL:
                count = columns.usable.data.item(row)
            total, free, requested = {}, {}, {}
            for name in self._strategy.weights:
                index = columns.resources.get(name)
                if index is not None:
                    total[name] = columns.total_sum.data.item(index, row)
                    free[name] = columns.free_sum.data.item(index, row)
                    requested[name] = request.amounts.get(name, 0) * count
            score += self._strategy.rate(requested, total, free)
        return score
