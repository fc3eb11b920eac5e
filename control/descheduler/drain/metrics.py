"""Metrics of drains, set after each round."""

from __future__ import annotations

from koordlet.app.metrics import MetricSet, gauge


class DrainMetrics(MetricSet):
    """The states of the drains and of their pods."""

    nodes = gauge("descheduler_drain_nodes", "DrainNodes by phase.", "phase")
    pods = gauge("descheduler_drain_pods", "Pods of drains that have not ended, by phase.", "phase")
