"""Nodes that are equal for a decision about zones: with hints of another plugin one of each kind is decided."""

from __future__ import annotations

import numpy as np

from control.scheduler.plugins.nodenumaresource.book import NumaBook
from control.scheduler.state.columns import IntArray, RowArray


def equal_rows(book: NumaBook, rows: RowArray, keys: IntArray) -> tuple[IntArray, IntArray]:
    """(position of one row of each kind, [row]: number of its kind). Rows of a kind have equal zones, room in them,
    policies and `keys`."""
    columns, number = book.columns, len(rows)
    count = int(columns.zones.data[rows].max(initial=0))
    id_numbers: dict[tuple[int, ...], int] = {}
    ids = [id_numbers.setdefault(book.zone_ids[row], len(id_numbers)) for row in rows.tolist()]
    of_zones = (columns.zone_total, columns.zone_available, columns.zone_cpus, columns.zone_status)
    of_nodes = (columns.bind_policy, columns.numa_policy, columns.cpus_per_core, columns.ratio, columns.zones)
    parts = [matrix.data[:count, ..., rows].reshape(-1, number) for matrix in of_zones]
    parts += [column.data[rows].reshape(1, number) for column in of_nodes]
    parts += [np.array(ids, np.int64).reshape(1, number), keys.reshape(1, number)]
    signature = np.ascontiguousarray(np.concatenate([part.astype(np.int64) for part in parts]).T)
    whole_rows = signature.view(np.dtype((np.void, signature.itemsize * signature.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(whole_rows, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)
