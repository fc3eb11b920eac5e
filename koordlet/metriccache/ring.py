"""One kind's samples: a row for each label set, a column for each instant, oldest column overwritten first.

Bounds: `rows * columns * 4` bytes, rows growing by doubling up to `max_rows`, columns as long as the oldest is still
wanted, and neither without `room`. A row is given back once all its samples have aged out, before a new one is taken,
so a container that is gone frees its place by itself. Values are float32 (24 bits: 16 bytes on a
gigabyte); times are float64 seconds of a clock that never steps (CLOCK_BOOTTIME): with the wall clock, a step back
would make every new sample look late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordlet.metriccache.kinds import SeriesError

Key = tuple[str, ...]
OUT_OF_ORDER_SECONDS = 60.0
FEWEST_COLUMNS = 32


class Ring:
    """Samples of one kind. Not thread-safe: one loop owns it."""

    def __init__(
        self,
        *,
        columns: int,
        max_rows: int,
        rows: int = 4,
        room: Callable[[int], bool] = lambda _: True,
        seconds: float = np.inf,
    ) -> None:
        """`room` is asked whether so many more bytes may be taken. Samples older than `seconds` are not needed: with
        it, there are only as many of the `columns` as it takes."""
        self.max_rows, self._room, self.seconds = max_rows, room, seconds
        self._most, columns = columns, columns if np.isinf(seconds) else min(columns, FEWEST_COLUMNS)
        self.lost = 0
        """Samples refused because every row was taken."""
        self._times = np.full(columns, np.nan)
        self._data = np.full((min(rows, max_rows), columns), np.nan, dtype=np.float32)
        self._head = -1  # the newest column
        self._rows: dict[Key, int] = {}
        self._free = list(range(self._data.shape[0] - 1, -1, -1))
        self._last_seen = np.full(self._data.shape[0], -np.inf)
        self._usual: tuple[list[Key], NDArray[np.intp]] | None = None
        """Series of a batch and their rows: the next one mostly has the same."""

    def usual(self, keys: Sequence[Key]) -> bool:
        """Whether the same series in the same order were taken last."""
        return self._usual is not None and self._usual[0] == keys

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self._data.nbytes + self._times.nbytes + self._last_seen.nbytes)

    @property
    def columns(self) -> int:
        """How many instants are kept."""
        return len(self._times)

    @property
    def keys(self) -> Iterable[Key]:
        """Label sets that have a row."""
        return self._rows.keys()

    @property
    def newest(self) -> float:
        """Time of the newest column; -inf before the first."""
        return -np.inf if self._head < 0 else float(self._times[self._head])

    def check(self, at: float, keys: Sequence[Key], values: Sequence[float]) -> None:
        """Raise SeriesError if `append` would refuse this; lets a batch over several rings be all or nothing."""
        if at < self.newest - OUT_OF_ORDER_SECONDS:
            raise SeriesError(f"sample at {at:.3f} is over a minute older than the newest ({self.newest:.3f})")
        if not self.usual(keys) and len(set(keys)) != len(keys):
            raise SeriesError(f"one batch holds the same series twice: {keys}")
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
        """Add one sample a series at `at` (seconds). Call `check` first."""
        if not keys:
            return
        column = self._column_at(at)
        if column is None:
            column = self._open_column(at)
        if self._usual is not None and self._usual[0] == keys:
            known = self._usual[1]
            self._data[known, column] = values
            self._last_seen[known] = max(at, self.newest)
            return
        rows = [self._rows.get(key, -1) for key in keys]
        if -1 not in rows:
            self._usual = (list(keys), np.array(rows, dtype=np.intp))
        else:
            self._last_seen[[row for row in rows if row >= 0]] = at  # lest making room for the new ones takes theirs
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
        """Keep this many instants, and samples for `seconds`; False if there is no room. Never fewer than before."""
        rows, old = self._data.shape
        self._most, self.seconds = max(self._most, columns), max(self.seconds, seconds)
        if columns <= old:
            return True
        if not self._room((columns - old) * (4 * rows + 8)):
            return False
        order = self._order()
        data, times = np.full((rows, columns), np.nan, dtype=np.float32), np.full(columns, np.nan)
        data[:, : len(order)], times[: len(order)] = self._data[:, order], self._times[order]
        self._data, self._times, self._head = data, times, len(order) - 1
        return True

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget these series now, without waiting for them to age out."""
        self._usual = None
        for key in list(keys):
            row = self._rows.pop(key, None)
            if row is not None:
                self._clear(row)

    def dump(self) -> tuple[NDArray[Any], list[Key], NDArray[Any]]:
        """Everything held, for a snapshot: times[points], keys, values[keys, points]."""
        keys = list(self._rows)
        times, values = self.window(-np.inf, np.inf, keys)
        return times, keys, values

    def load(self, times: NDArray[Any], keys: Sequence[Key], values: NDArray[Any]) -> None:
        """Append what `dump` gave."""
        for column, at in enumerate(times):
            present = [row for row in range(len(keys)) if not np.isnan(values[row, column])]
            self.append(float(at), [keys[row] for row in present], [float(values[row, column]) for row in present])

    def _order(self) -> NDArray[np.intp]:
        """Columns from the oldest to the newest."""
        size = len(self._times)
        order = (np.arange(size) + self._head + 1) % size
        taken: NDArray[np.intp] = order[~np.isnan(self._times[order])]
        return taken

    def _column_at(self, at: float) -> int | None:
        if self._head >= 0 and self._times[self._head] == at:  # the usual case
            return self._head
        if at > self.newest:
            return None
        found = np.flatnonzero(self._times == at)
        return int(found[0]) if len(found) else None

    def _open_column(self, at: float) -> int:
        size = len(self._times)
        if size < self._most and self._times[(self._head + 1) % size] >= at - self.seconds:
            self.widen(min(2 * size, self._most))
            size = len(self._times)
        late = int((self._times > at).sum()) if at < self.newest else 0  # columns that stay newer than this one
        self._head = (self._head + 1) % size
        column = self._head
        for _ in range(min(late, size - 1)):  # a late batch moves the newer columns up by one
            previous = (column - 1) % size
            self._times[column] = self._times[previous]
            self._data[:, column] = self._data[:, previous]
            column = previous
        self._times[column] = at
        self._data[:, column] = np.nan
        return column

    def _new_row(self, key: Key, at: float) -> int:
        """A row for a series at first sight; -1 if all are taken."""
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
        if new == old or not self._room((new - old) * (4 * len(self._times) + 8)):
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
