"""The metric cache: stores whole batches, returns windows (spec 02 §4.1-4.2).

A `Batch` has the samples of one collector at one tick. `commit` checks all of them before storing any, so that readers
never see half a tick. A query that fixes only some labels pools the points of all matching series.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from koordlet.metriccache.aggregate import Aggregation, AggregationError, Floats, aggregate_rows
from koordlet.metriccache.kinds import BY_NAME, MetricKind, SeriesError
from koordlet.metriccache.kv import KeyValue
from koordlet.metriccache.ring import Key, Ring

LONG_SECONDS = 30 * 60.0
SHORT_SECONDS = 5 * 60.0
MAX_SECONDS = 12 * 3600.0
MAX_BYTES = 100 << 20
SLACK_RATIO = 1.1
"""A window is read while new samples arrive; a tenth more columns keep its oldest points."""


@dataclass(slots=True)
class Batch:
    """Samples of one instant, by kind."""

    at: float
    """seconds of CLOCK_BOOTTIME"""
    samples: dict[str, tuple[list[Key], list[float]]] = field(default_factory=dict)

    def add(self, kind: str, value: float, *labels: str) -> None:
        """Add one sample; labels in the kind's order. A value that is not finite is a defect of the collector."""
        if not isfinite(value):
            raise SeriesError(f"{kind}{labels}: {value} is not a finite number")
        keys, values = self.samples.setdefault(kind, ([], []))
        keys.append(labels)
        values.append(value)

    def extend(self, kind: str, keys: Sequence[Key], values: Floats) -> None:
        """Add many samples of one kind: float[keys]."""
        if not np.isfinite(values).all():
            raise SeriesError(f"{kind}: not all of {len(keys)} values are finite numbers")
        if keys:
            all_keys, all_values = self.samples.setdefault(kind, ([], []))
            all_keys.extend(keys)
            all_values.extend(values.tolist())


@dataclass(frozen=True, slots=True)
class Points:
    """Pooled samples in order of time: seconds and values of equal length."""

    times: Floats
    values: Floats

    @property
    def covered(self) -> float:
        """Seconds from the first to the last sample; 0 with fewer than two."""
        return float(self.times.max() - self.times.min()) if len(self.times) else 0.0

    def since(self, start: float) -> Points:
        """The points not older than `start`."""
        first = int(np.searchsorted(self.times, start))
        return Points(self.times[first:], self.values[first:])

    def aggregate(self, kind: Aggregation) -> float:
        """Reduce; raises AggregationError without samples (`count` gives 0)."""
        return self.aggregates([kind])[kind]

    def aggregates(self, kinds: Sequence[Aggregation]) -> dict[Aggregation, float]:
        """Several reductions with one sort; raises AggregationError without samples (`count` alone gives 0)."""
        reduced = {kind: float(row[0]) for kind, row in aggregate_rows(self.values[np.newaxis, :], kinds).items()}
        if Aggregation.LAST in reduced and len(
            self.times
        ):  # of pooled series with a sample at the same time, the first counts
            reduced[Aggregation.LAST] = float(self.values[np.searchsorted(self.times, self.times[-1])])
        missing = [kind for kind, value in reduced.items() if np.isnan(value)]
        if missing:
            raise AggregationError(f"no samples to take {missing[0]} of")
        return reduced


@dataclass(frozen=True, slots=True)
class SeriesWindow:
    """All series of a kind over one window, one row each."""

    keys: list[Key]
    times: Floats
    values: Floats
    """float32[keys, times], NaN where a series has no sample."""

    def since(self, start: float) -> SeriesWindow:
        """The points not older than `start`."""
        first = int(np.searchsorted(self.times, start))
        return SeriesWindow(self.keys, self.times[first:], self.values[:, first:])

    def aggregate(self, kinds: Iterable[Aggregation]) -> dict[Aggregation, dict[Key, float]]:
        """Each reduction by labels; series without samples are left out."""
        rows = aggregate_rows(self.values, kinds)
        return {
            kind: {key: float(v) for key, v in zip(self.keys, column, strict=True) if not np.isnan(v)}
            for kind, column in rows.items()
        }


class MetricCache:
    """All series of the node.

    A kind keeps 30 or 5 minutes, as its readers need, and more after `retain`, up to `max_seconds`. Memory is
    bounded by `max_rows` series per kind and by `max_bytes` in total; samples of refused series are counted in `lost`,
    and `retain` returns the time that fits.
    """

    def __init__(
        self,
        *,
        tick: float = 1.0,
        short_seconds: float = SHORT_SECONDS,
        max_rows: int = 16384,
        max_seconds: float = MAX_SECONDS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.tick = tick
        self.short_seconds = short_seconds
        self.max_rows = max_rows
        self.max_seconds = max_seconds
        self.max_bytes = max_bytes
        self.facts = KeyValue()
        self._rings: dict[str, Ring] = {}
        self._retained: dict[str, float] = {}

    @property
    def nbytes(self) -> int:
        """Bytes used by the rings."""
        return sum(ring.nbytes for ring in self._rings.values())

    @property
    def lost(self) -> int:
        """Samples refused because a kind had `max_rows` series, or all rings together used `max_bytes`."""
        return sum(ring.lost for ring in self._rings.values())

    @property
    def rings(self) -> Mapping[str, Ring]:
        """Rings in use, by kind."""
        return self._rings

    def commit(self, batch: Batch) -> None:
        """Store the whole batch, or raise SeriesError and store nothing."""
        for name, (keys, values) in batch.samples.items():
            kind, ring = _kind(name), self.ring(name)
            for key in () if ring.same_series(keys) else keys:
                if len(key) != len(kind.labels):
                    raise SeriesError(f"{name} takes the labels {kind.labels}, not {key}")
            ring.check(batch.at, keys, values)
        for name, (keys, values) in batch.samples.items():
            self.ring(name).append(batch.at, keys, values)

    def query(self, kind: str, start: float, end: float, **labels: str) -> Points:
        """Pooled samples of all series with these labels, start <= t <= end."""
        keys = self._matching(_kind(kind), labels)
        times, values = self.ring(kind).window(start, end, keys)
        if len(keys) == 1:
            present = ~np.isnan(values[0])
            return Points(times[present], values[0][present])
        row, column = np.nonzero(~np.isnan(values).T)  # ordered by time
        return Points(times[row], values.T[row, column])

    def window(self, kind: str, start: float, end: float, keys: Sequence[Key] | None = None) -> SeriesWindow:
        """A row for each key (all known keys if None), to reduce many series together."""
        _kind(kind)
        ring = self.ring(kind)
        all_keys = list(ring.keys if keys is None else keys)
        times, values = ring.window(start, end, all_keys)
        return SeriesWindow(all_keys, times, values)

    def ring(self, name: str) -> Ring:
        """The ring of a kind, created at first use."""
        ring = self._rings.get(name)
        if ring is None:
            kind = _kind(name)
            default = LONG_SECONDS if kind.long else self.short_seconds
            seconds = max(default, self._retained.get(name, 0.0))
            max_rows = self.max_rows if kind.labels else 1
            ring = self._rings[name] = Ring(
                columns=self._columns(seconds), max_rows=max_rows, fits=self._fits, seconds=seconds * SLACK_RATIO
            )
        return ring

    def retain(self, kind: str, seconds: float) -> float:
        """Keep this kind's samples for `seconds` from now on, never less than before. Returns the seconds that will be
        kept: fewer if `max_seconds` or `max_bytes` prevents it. Overwritten samples stay lost."""
        _kind(kind)
        seconds = min(seconds, self.max_seconds)
        self._retained[kind] = max(self._retained.get(kind, 0.0), seconds)
        ring = self._rings.get(kind)
        if ring is not None and not ring.widen(self._columns(seconds), seconds * SLACK_RATIO):
            return ring.columns * self.tick / SLACK_RATIO
        return seconds

    def _columns(self, seconds: float) -> int:
        return max(int(seconds * SLACK_RATIO / self.tick), 2)

    def _fits(self, more: int) -> bool:
        return self.nbytes + more <= self.max_bytes

    def _matching(self, kind: MetricKind, labels: Mapping[str, str]) -> list[Key]:
        unknown = set(labels) - set(kind.labels)
        if unknown:
            raise SeriesError(f"{kind.name} has no label {', '.join(sorted(unknown))}; it has {kind.labels}")
        if len(labels) == len(kind.labels):
            return [tuple(labels[name] for name in kind.labels)]
        fixed = [(index, labels[name]) for index, name in enumerate(kind.labels) if name in labels]
        return [key for key in self.ring(kind.name).keys if all(key[index] == value for index, value in fixed)]


def _kind(name: str) -> MetricKind:
    kind = BY_NAME.get(name)
    if kind is None:
        raise SeriesError(f"there is no series kind {name!r}")
    return kind
