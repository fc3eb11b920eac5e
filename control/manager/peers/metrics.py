"""The metric families of the comparison with peers, on the internal registry."""

from __future__ import annotations

from koordlet.app.metrics import MetricSet, counter, gauge


class PeerMetrics(MetricSet):
    """Metrics on the internal registry."""

    replicas = gauge("koord_manager_peer_replicas", "Containers that are compared with the replicas on other nodes.")
    slower = gauge(
        "koord_manager_peer_slower_ratio",
        "Figure of a container that is slower than its replicas on other nodes / median of those; absent otherwise.",
        "namespace",
        "pod",
        "container",
        "node",
        "figure",
    )
    begun = counter("koord_manager_peer_detections_total", "Containers found slower than their replicas.", "figure")
