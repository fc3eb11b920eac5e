"""Flags of Koordinator's koordlet that have no effect here (spec 02 §1.5).

They are accepted so that a DaemonSet written for Koordinator starts unchanged. A set flag is logged with the reason,
since a silently ignored flag would be misleading. Numbers and bools are validated, strings are not.
"""

from __future__ import annotations

from dataclasses import dataclass

from koordlet.app.flags import flag
from koordlet.app.logging import LoggingOptions

_UNUSED = "Koordinator's koordlet does not use it either"
_NO_DATABASE = "series are kept in memory, see --tsdb-retention-duration and --tsdb-max-bytes"
_NO_RUNTIME = "only runtimes with CRI are used, see --containerd-endpoint"


@dataclass
class IgnoredFlags(LoggingOptions):
    """None: not set."""

    configmap_name: str | None = flag(None, "no effect", deprecated=_UNUSED)
    configmap_namespace: str | None = flag(None, "no effect", deprecated=_UNUSED)
    docker_endpoint: str | None = flag(None, "no effect", deprecated=_NO_RUNTIME)
    pouch_endpoint: str | None = flag(None, "no effect", deprecated=_NO_RUNTIME)
    report_interval: str | None = flag(None, "no effect", deprecated="NodeMetric's spec has the report interval")
    tsdb_path: str | None = flag(None, "no effect", deprecated=_NO_DATABASE)
    tsdb_min_block_duration: str | None = flag(None, "no effect", deprecated=_NO_DATABASE)
    tsdb_max_block_duration: str | None = flag(None, "no effect", deprecated=_NO_DATABASE)
    tsdb_stripe_size: int | None = flag(None, "no effect", deprecated=_NO_DATABASE)
    tsdb_wal_segment_size: int | None = flag(None, "no effect", deprecated=_NO_DATABASE)
    tsdb_max_block_chunk_segment_size: int | None = flag(None, "no effect", deprecated=_NO_DATABASE)
    tsdb_head_chunks_write_buffer_size: int | None = flag(None, "no effect", deprecated=_NO_DATABASE)
    tsdb_enable_prometheus_metric: bool | None = flag(None, "no effect", deprecated=_NO_DATABASE)
    metric_gc_interval_seconds: int | None = flag(None, "no effect", deprecated=_UNUSED)
    metric_expire_seconds: int | None = flag(None, "no effect", deprecated=_UNUSED)
    qos_extension_plugins: dict[str, bool] | None = flag(
        None, "no effect", deprecated="there are no plugins besides the strategies"
    )
