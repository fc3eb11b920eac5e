"""Recent measurements of the node: columnar time series in memory, bounded, without a database (spec 02 §4).

Collectors append one batch per tick; NodeMetric, strategies and exporters read windows. A metric kind (`kinds`) has one
ring (`ring`): a row per subject and a column per tick, so that p50 to p99 of every container over a window are one
NumPy call (`aggregate`). `cache` has `MetricCache`, all rings together; `kv` the few facts that are not series, `facts`
their names and types; `snapshot` saves the rings for a restart.
"""

from koordlet.metriccache.aggregate import Aggregation, AggregationError
from koordlet.metriccache.cache import Batch, MetricCache, Points, SeriesWindow
from koordlet.metriccache.kinds import BY_NAME, MetricKind, SeriesError
from koordlet.metriccache.kv import KeyValue, Stamped

__all__ = [
    "BY_NAME",
    "Aggregation",
    "AggregationError",
    "Batch",
    "KeyValue",
    "MetricCache",
    "MetricKind",
    "Points",
    "SeriesError",
    "SeriesWindow",
    "Stamped",
]
