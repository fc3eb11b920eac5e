"""Flags of Koordinator's koordlet that have nothing to act on here (spec 02 §1.5).

They are accepted so that a DaemonSet written for Koordinator starts as it is; one that is given is said in the log with
the reason, since a flag that silently does nothing would lie. Numbers and bools are checked, texts are not.
"""

from __future__ import annotations

from dataclasses import dataclass

from koordlet.app.flags import flag
from koordlet.app.logging import LoggingOptions

_UNUSED = "Koordinator's koordlet does not use it either"
_NO_DATABASE = "series are kept in memory, see --tsdb-retention-duration and --tsdb-max-bytes"
_NO_RUNTIME = "the container runtime is not asked for anything"


@dataclass
class OldFlags(LoggingOptions):
    """None: not given."""

    configmap_name: str | None = flag("configmap-name", None, "no effect", deprecated=_UNUSED)
    configmap_namespace: str | None = flag("configmap-namespace", None, "no effect", deprecated=_UNUSED)
    containerd_endpoint: str | None = flag("containerd-endpoint", None, "no effect", deprecated=_NO_RUNTIME)
    docker_endpoint: str | None = flag("docker-endpoint", None, "no effect", deprecated=_NO_RUNTIME)
    pouch_endpoint: str | None = flag("pouch-endpoint", None, "no effect", deprecated=_NO_RUNTIME)
    report_interval: str | None = flag(
        "report-interval", None, "no effect", deprecated="NodeMetric's spec says how often to report"
    )
    tsdb_path: str | None = flag("tsdb-path", None, "no effect", deprecated=_NO_DATABASE)
    tsdb_min_block_duration: str | None = flag("tsdb-min-block-duration", None, "no effect", deprecated=_NO_DATABASE)
    tsdb_max_block_duration: str | None = flag("tsdb-max-block-duration", None, "no effect", deprecated=_NO_DATABASE)
    tsdb_stripe_size: int | None = flag("tsdb-stripe-size", None, "no effect", deprecated=_NO_DATABASE)
    tsdb_wal_segment_size: int | None = flag("tsdb-wal-segment-size", None, "no effect", deprecated=_NO_DATABASE)
    tsdb_max_block_chunk_segment_size: int | None = flag(
        "tsdb-max-block-chunk-segment-size", None, "no effect", deprecated=_NO_DATABASE
    )
    tsdb_head_chunks_write_buffer_size: int | None = flag(
        "tsdb-head-chunks-write-buffer-size", None, "no effect", deprecated=_NO_DATABASE
    )
    tsdb_enable_prometheus_metric: bool | None = flag(
        "tsdb-enable-prometheus-metric", None, "no effect", deprecated=_NO_DATABASE
    )
    metric_gc_interval_seconds: int | None = flag("metric-gc-interval-seconds", None, "no effect", deprecated=_UNUSED)
    metric_expire_seconds: int | None = flag("metric-expire-seconds", None, "no effect", deprecated=_UNUSED)
    only_evict_by_api: bool | None = flag(
        "only-evict-by-api", None, "no effect", deprecated="evictions always go through the API server"
    )
    qos_extension_plugins: dict[str, bool] | None = flag(
        "qos-extension-plugins", None, "no effect", deprecated="there are no plugins beside the strategies"
    )
