"""The newest value in a window of the metric cache."""

from __future__ import annotations

from koordlet.metriccache import Aggregation, MetricCache


def last(cache: MetricCache, kind: str, start: float, end: float, **labels: str) -> float | None:
    """None if the window has no value."""
    points = cache.query(kind, start, end, **labels)
    return points.aggregate(Aggregation.LAST) if len(points.values) else None
