"""One kind's samples: a row per label set, a column per time, the oldest column is overwritten first.

Bounds: `rows * columns * 4` bytes. Rows double up to `max_rows`, columns are added while the oldest is still needed,
and neither beyond what `fits`. A row becomes free once all its samples have aged out, before a new row is added, so the
row of a removed container is reused without further action. Values are float32 (24 bits: a precision of 64 bytes at a
gigabyte); times are float64 seconds of a clock that never steps (CLOCK_BOOTTIME): with the wall clock, all samples
after a step back would count as late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordlet.metriccache.kinds import SeriesError

Key = tuple[str, ...]
MAX_LATE_SECONDS = 60.0
MIN_COLUMNS = 32


class Ring:
    """Samples of one kind. Not thread-safe: one loop owns it."""

    def __init__(
        self,
        *,
        columns: int,
        max_rows: int,
        rows: int = 4,
        fits: Callable[[int], bool] = lambda _: True,
        seconds: float = np.inf,
    ) -> None:
        """`fits` returns whether that many more bytes may be used. Samples older than `seconds` are not needed: then
        only as many of the `columns` are allocated as are needed for that."""
        self.max_rows = max_rows
        self.seconds = seconds
        self._fits = fits
        self._max_columns = columns
        columns = columns if np.isinf(seconds) else min(columns, MIN_COLUMNS)
        self.lost = 0
        """Samples refused because all rows were in use."""
        self._times = np.full(columns, np.nan)
        self._data = np.full((min(rows, max_rows), columns), np.nan, dtype=np.float32)
        self._head = -1  # the newest column
        self._newest = -np.inf
        self._rows: dict[Key, int] = {}
        self._free = list(range(self._data.shape[0] - 1, -1, -1))
        self._last_seen = np.full(self._data.shape[0], -np.inf)
        self._last_batch: tuple[list[Key], NDArray[np.intp]] | None = None
        """Series of the last batch and their rows: most batches have the same series as the one before."""

    def same_series(self, keys: Sequence[Key]) -> bool:
        """Whether the last batch had the same series in the same order."""
        return self._last_batch is not None and self._last_batch[0] == keys

    @property
    def nbytes(self) -> int:
        """Bytes used."""
        return int(self._data.nbytes + self._times.nbytes + self._last_seen.nbytes)

    @property
    def columns(self) -> int:
        """Number of columns."""
        return len(self._times)

    @property
    def keys(self) -> Iterable[Key]:
        """Label sets that have a row."""
        return self._rows.keys()

    @property
    def newest(self) -> float:
        """Time of the newest column; -inf before the first."""
        return self._newest

    def check(self, at: float, keys: Sequence[Key], values: Sequence[float]) -> None:
        """Raise SeriesError if `append` must not be called with this, so that a batch over several rings is all or
        nothing."""
        if at < self.newest - MAX_LATE_SECONDS:
            raise SeriesError(f"sample at {at:.3f} is over a minute older than the newest ({self.newest:.3f})")
        if not self.same_series(keys) and len(set(keys)) != len(keys):
            raise SeriesError(f"one batch has the same series twice: {keys}")
        column = self._column_at(at)
        if column is None:
            return
        for key, value in zip(keys, values, strict=True):
            row = self._rows.get(key)
            if row is None:
                continue
            old = self._data[row, column]
            if not np.isnan(old) and old != np.float32(value):
                raise SeriesError(f"series {key} has another value ({old}) at {at:.3f}")

    def append(self, at: float, keys: Sequence[Key], values: Sequence[float]) -> None:
        """Add one sample per series at `at` (seconds). Call `check` first."""
        if not keys:
            return
        column = self._column_at(at)
        if column is None:
            column = self._open_column(at)
        if self._last_batch is not None and self._last_batch[0] == keys:
            known = self._last_batch[1]
            self._data[known, column] = values
            self._last_seen[known] = max(at, self.newest)
            return
        rows = [self._rows.get(key, -1) for key in keys]
        if -1 not in rows:
            self._last_batch = (list(keys), np.array(rows, dtype=np.intp))
        else:
            self._last_seen[[row for row in rows if row >= 0]] = at  # so that `_reclaim` does not free their rows
            self._reclaim()
            rows = [self._new_row(key, at) if row < 0 else row for key, row in zip(keys, rows, strict=True)]
            values = [value for row, value in zip(rows, values, strict=True) if row >= 0]
            self.lost += len(rows) - len(values)
            rows = [row for row in rows if row >= 0]
        self._data[rows, column] = values
        self._last_seen[rows] = max(at, self.newest)

    def window(self, start: float, end: float, keys: Sequence[Key]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Samples with start <= t <= end: times float64[points] ascending, values float32[keys, points] with NaN
        where a series has none. Keys without a row give a row of NaN."""
        order = self._order()
        times = self._times[order]
        inside = (times >= start) & (times <= end)
        columns = order[inside]
        values = np.full((len(keys), len(columns)), np.nan, dtype=np.float32)
        known = [(index, self._rows[key]) for index, key in enumerate(keys) if key in self._rows]
        if known and len(columns):
            target, source = map(list, zip(*known, strict=True))
            values[target] = self._data[np.ix_(source, columns)]
        return times[inside], values

    def widen(self, columns: int, seconds: float = 0.0) -> bool:
        """Keep this many columns, and samples for `seconds`; False if that does not fit. Never fewer than before."""
        rows, old = self._data.shape
        self._max_columns = max(self._max_columns, columns)
        self.seconds = max(self.seconds, seconds)
        if columns <= old:
            return True
        if not self._fits((columns - old) * (4 * rows + 8)):
            return False
        order = self._order()
        data, times = np.full((rows, columns), np.nan, dtype=np.float32), np.full(columns, np.nan)
        data[:, : len(order)], times[: len(order)] = self._data[:, order], self._times[order]
        self._data = data
        self._times = times
        self._head = len(order) - 1
        return True

    def drop(self, keys: Iterable[Key]) -> None:
        """Remove these series now, without waiting for them to age out."""
        self._last_batch = None
        for key in list(keys):
            row = self._rows.pop(key, None)
            if row is not None:
                self._clear(row)

    def dump(self) -> tuple[NDArray[Any], list[Key], NDArray[Any]]:
        """All samples, for a snapshot: times[points], keys, values[keys, points]."""
        keys = list(self._rows)
        times, values = self.window(-np.inf, np.inf, keys)
        return times, keys, values

    def load(self, times: NDArray[Any], keys: Sequence[Key], values: NDArray[Any]) -> None:
        """Append the result of `dump`."""
        for column, at in enumerate(times):
            present = [row for row in range(len(keys)) if not np.isnan(values[row, column])]
            self.append(float(at), [keys[row] for row in present], [float(values[row, column]) for row in present])

    def _order(self) -> NDArray[np.intp]:
        """Used columns from the oldest to the newest."""
        size = len(self._times)
        order = (np.arange(size) + self._head + 1) % size
        used: NDArray[np.intp] = order[~np.isnan(self._times[order])]
        return used

    def _column_at(self, at: float) -> int | None:
        if self._head >= 0 and self._times[self._head] == at:  # the common case
            return self._head
        if at > self.newest:
            return None
        columns = np.flatnonzero(self._times == at)
        return int(columns[0]) if len(columns) else None

    def _open_column(self, at: float) -> int:
        size = len(self._times)
        if size < self._max_columns and self._times[(self._head + 1) % size] >= at - self.seconds:
            self.widen(min(2 * size, self._max_columns))
            size = len(self._times)
        late = int((self._times > at).sum()) if at < self.newest else 0  # columns newer than this one
        self._head = (self._head + 1) % size
        column = self._head
        for _ in range(min(late, size - 1)):  # a late batch shifts the newer columns by one
            previous = (column - 1) % size
            self._times[column] = self._times[previous]
            self._data[:, column] = self._data[:, previous]
            column = previous
        self._times[column] = at
        self._newest = float(self._times[self._head])
        self._data[:, column] = np.nan
        return column

    def _new_row(self, key: Key, at: float) -> int:
        """A row for a new series; -1 if all are in use."""
        if not self._free:
            self._reclaim()
        if not self._free and not self._grow():
            return -1
        row = self._rows[key] = self._free.pop()
        self._last_seen[row] = at
        return row

    def _reclaim(self) -> None:
        oldest = max(float(np.nanmin(self._times)), self.newest - self.seconds)
        if np.count_nonzero(self._last_seen < oldest) > len(self._free):
            self.drop([key for key, row in self._rows.items() if self._last_seen[row] < oldest])

    def _grow(self) -> bool:
        old = self._data.shape[0]
        new = min(max(old * 2, 1), self.max_rows)
        if new == old or not self._fits((new - old) * (4 * len(self._times) + 8)):
            return False
        grown = np.full((new, len(self._times)), np.nan, dtype=np.float32)
        grown[:old] = self._data
        self._data = grown
        self._last_seen = np.concatenate([self._last_seen, np.full(new - old, -np.inf)])
        self._free.extend(range(new - 1, old - 1, -1))
        return True

    def _clear(self, row: int) -> None:
        self._data[row] = np.nan
        self._last_seen[row] = -np.inf
        self._free.append(row)
