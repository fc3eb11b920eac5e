"""What the node measured lately: columnar time series in memory, bounded, without a database.

Collectors append one batch a tick; NodeMetric, strategies and exporters read windows. A series kind (`kinds.py`)
owns one ring (`ring.py`): a row for each subject, a column for each tick, so that the p50...p99 of every container
over a window is one NumPy call (`aggregate.py`). `MetricCache` (`cache.py`) ties the rings together, `kv.py` holds
the few facts that are not series, `snapshot.py` carries the rings over a restart. Spec 02 §4.
"""

from koordlet.metriccache.aggregate import Aggregation, AggregationError, aggregate
from koordlet.metriccache.cache import Batch, MetricCache, Points, Window
from koordlet.metriccache.kinds import BY_NAME, Kind, SeriesError
from koordlet.metriccache.kv import KeyValue, Stamped

__all__ = [
    "BY_NAME",
    "Aggregation",
    "AggregationError",
    "Batch",
    "KeyValue",
    "Kind",
    "MetricCache",
    "Points",
    "SeriesError",
    "Stamped",
    "Window",
    "aggregate",
]
