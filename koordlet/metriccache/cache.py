"""The metric cache: appends whole batches, answers windows (spec 02 §4.1-4.2).

A `Batch` is what one collector measured in one tick. `commit` checks all of it before storing any of it, so that
readers never see half a tick. Queries that fix only some labels pool the points of every matching series.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from koordlet.metriccache.aggregate import Aggregation, AggregationError, Floats, aggregate_rows
from koordlet.metriccache.kinds import BY_NAME, Kind, SeriesError
from koordlet.metriccache.kv import KeyValue
from koordlet.metriccache.ring import Key, Ring

LONG_SECONDS = 30 * 60.0
SHORT_SECONDS = 5 * 60.0
BRIEF_SECONDS = 60.0
MAX_SECONDS = 12 * 3600.0
MAX_BYTES = 100 << 20
SLACK = 1.1
"""A window is read while the next samples come in; a tenth more columns keep its oldest points."""


@dataclass(slots=True)
class Batch:
    """Samples of one instant, by kind."""

    at: float
    """seconds of CLOCK_BOOTTIME"""
    samples: dict[str, tuple[list[Key], list[float]]] = field(default_factory=dict)

    def add(self, kind: str, value: float, *labels: str) -> None:
        """One sample; labels in the kind's order. A value that is not finite is a bug in the collector."""
        if not isfinite(value):
            raise SeriesError(f"{kind}{labels}: {value} is not a finite number")
        keys, values = self.samples.setdefault(kind, ([], []))
        keys.append(labels)
        values.append(value)

    def extend(self, kind: str, keys: Sequence[Key], values: Floats) -> None:
        """Many samples of one kind: float[keys]."""
        if not np.isfinite(values).all():
            raise SeriesError(f"{kind}: not all of {len(keys)} values are finite numbers")
        if keys:
            known = self.samples.setdefault(kind, ([], []))
            known[0].extend(keys)
            known[1].extend(values.tolist())


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
        """Those not older than `start`."""
        first = int(np.searchsorted(self.times, start))
        return Points(self.times[first:], self.values[first:])

    def aggregate(self, kind: Aggregation) -> float:
        """Reduce; raises AggregationError without samples (`count` gives 0)."""
        return self.aggregates([kind])[kind]

    def aggregates(self, kinds: Sequence[Aggregation]) -> dict[Aggregation, float]:
        """Several reductions with one sort; raises AggregationError without samples (`count` alone gives 0)."""
        reduced = {kind: float(row[0]) for kind, row in aggregate_rows(self.values[np.newaxis, :], kinds).items()}
        if Aggregation.LAST in reduced and len(self.times):  # of pooled series at one instant the first wins
            reduced[Aggregation.LAST] = float(self.values[np.searchsorted(self.times, self.times[-1])])
        missing = [kind for kind, value in reduced.items() if np.isnan(value)]
        if missing:
            raise AggregationError(f"no samples to take {missing[0]} of")
        return reduced


@dataclass(frozen=True, slots=True)
class Window:
    """Every series of a kind over one window: a row each."""

    keys: list[Key]
    times: Floats
    values: Floats
    """float32[keys, times], NaN where a series has no sample."""

    def since(self, start: float) -> Window:
        """Without what is older than `start`."""
        first = int(np.searchsorted(self.times, start))
        return Window(self.keys, self.times[first:], self.values[:, first:])

    def aggregate(self, kinds: Iterable[Aggregation]) -> dict[Aggregation, dict[Key, float]]:
        """Each reduction by label set; series without samples are left out."""
        rows = aggregate_rows(self.values, kinds)
        return {
            kind: {key: float(v) for key, v in zip(self.keys, column, strict=True) if not np.isnan(v)}
            for kind, column in rows.items()
        }


class MetricCache:
    """All series of the node.

    A kind keeps what its readers look back: 30 minutes, 5 or 1, and more after `retain`, up to `max_seconds`. Memory is
    bounded by `max_rows` series a kind and by `max_bytes` in all; what does not fit is refused and counted in `lost`
    (series) or told by `retain` (time).
    """

    def __init__(
        self,
        *,
        tick: float = 1.0,
        long_seconds: float = LONG_SECONDS,
        short_seconds: float = SHORT_SECONDS,
        max_rows: int = 16384,
        max_seconds: float = MAX_SECONDS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.tick, self.long_seconds, self.short_seconds, self.max_rows = (
            tick,
            long_seconds,
            short_seconds,
            max_rows,
        )
        self.max_seconds, self.max_bytes = max_seconds, max_bytes
        self.facts = KeyValue()
        self._rings: dict[str, Ring] = {}
        self._retained: dict[str, float] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that the rings hold."""
        return sum(ring.nbytes for ring in self._rings.values())

    @property
    def lost(self) -> int:
        """Samples refused because a kind had `max_rows` series already, or all together `max_bytes`."""
        return sum(ring.lost for ring in self._rings.values())

    @property
    def rings(self) -> Mapping[str, Ring]:
        """Rings in use, by kind."""
        return self._rings

    def commit(self, batch: Batch) -> None:
        """Store the batch, or raise SeriesError and store nothing of it."""
        for name, (keys, values) in batch.samples.items():
            kind, ring = _kind(name), self.ring(name)
            for key in () if ring.usual(keys) else keys:
                if len(key) != len(kind.labels):
                    raise SeriesError(f"{name} takes the labels {kind.labels}, not {key}")
            ring.check(batch.at, keys, values)
        for name, (keys, values) in batch.samples.items():
            self.ring(name).append(batch.at, keys, values)

    def query(self, kind: str, start: float, end: float, **labels: str) -> Points:
        """Samples of every series that carries these labels, start <= t <= end, pooled."""
        keys = self._matching(_kind(kind), labels)
        times, values = self.ring(kind).window(start, end, keys)
        if len(keys) == 1:
            present = ~np.isnan(values[0])
            return Points(times[present], values[0][present])
        row, column = np.nonzero(~np.isnan(values).T)  # by time first
        return Points(times[row], values.T[row, column])

    def window(self, kind: str, start: float, end: float, keys: Sequence[Key] | None = None) -> Window:
        """A row for each key (all known ones if None): the way to reduce many series at once."""
        _kind(kind)
        ring = self.ring(kind)
        wanted = list(ring.keys if keys is None else keys)
        times, values = ring.window(start, end, wanted)
        return Window(wanted, times, values)

    def last(self, kind: str, start: float, end: float, **labels: str) -> float | None:
        """The newest value in the window, None if there is none."""
        points = self.query(kind, start, end, **labels)
        return points.aggregate(Aggregation.LAST) if len(points.values) else None

    def drop(self, kind: str, keys: Iterable[Key]) -> None:
        """Forget series at once."""
        self.ring(kind).drop(keys)

    def ring(self, name: str) -> Ring:
        """The ring of a kind, made at first use."""
        found = self._rings.get(name)
        if found is None:
            kind = _kind(name)
            usual = self.long_seconds if kind.long else self.short_seconds
            seconds = max(min(usual, BRIEF_SECONDS) if kind.brief else usual, self._retained.get(name, 0.0))
            max_rows = self.max_rows if kind.labels else 1
            found = self._rings[name] = Ring(
                columns=self._columns(seconds), max_rows=max_rows, room=self._room, seconds=seconds * SLACK
            )
        return found

    def retain(self, kind: str, seconds: float) -> float:
        """Keep this kind's samples for `seconds` from now on, never less than before; how many seconds it will be:
        fewer if `max_seconds` or `max_bytes` is in the way. What has been overwritten does not come back."""
        _kind(kind)
        seconds = min(seconds, self.max_seconds)
        self._retained[kind] = max(self._retained.get(kind, 0.0), seconds)
        ring = self._rings.get(kind)
        if ring is not None and not ring.widen(self._columns(seconds), seconds * SLACK):
            return ring.columns * self.tick / SLACK
        return seconds

    def _columns(self, seconds: float) -> int:
        return max(int(seconds * SLACK / self.tick), 2)

    def _room(self, more: int) -> bool:
        return self.nbytes + more <= self.max_bytes

    def _matching(self, kind: Kind, labels: Mapping[str, str]) -> list[Key]:
        unknown = set(labels) - set(kind.labels)
        if unknown:
            raise SeriesError(f"{kind.name} has no label {', '.join(sorted(unknown))}; it has {kind.labels}")
        if len(labels) == len(kind.labels):
            return [tuple(labels[name] for name in kind.labels)]
        wanted = [(index, labels[name]) for index, name in enumerate(kind.labels) if name in labels]
        return [key for key in self.ring(kind.name).keys if all(key[index] == value for index, value in wanted)]


def _kind(name: str) -> Kind:
    kind = BY_NAME.get(name)
    if kind is None:
        raise SeriesError(f"there is no series kind {name!r}")
    return kind
