"""The manager's own families (spec 04 §19), on the internal registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from koordlet.app.metrics import MetricSet

SUCCEEDED, FAILED = "succeeded", "failed"


class ManagerMetrics(MetricSet):
    """Counters by status (succeeded, failed) and reason (which step)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["status", "reason"]
        self.is_leader = Gauge("koordinator_manager_is_leader", "1 while this replica leads.", registry=registry)
        self.node_resource = Counter(
            "slo_controller_node_resource_reconcile_count", "Steps of noderesource.", labels, registry=registry
        )
        self.node_metric = Counter(
            "slo_controller_nodemetric_reconcile_count", "Steps of nodemetric.", labels, registry=registry
        )
        self.node_metric_parse = Counter(
            "slo_controller_nodemetric_spec_parse_count", "Collect policies computed.", labels, registry=registry
        )
        self.node_slo = Counter(
            "slo_controller_nodeslo_reconcile_count", "Steps of nodeslo.", labels, registry=registry
        )
        self.node_slo_parse = Counter(
            "slo_controller_nodeslo_spec_parse_count", "Parts of NodeSLO computed.", labels, registry=registry
        )
        self.plugins = Counter(
            "slo_controller_node_resource_run_plugin_status", "Stages of noderesource plug-ins.",
            ["plugin", "status", "reason"], registry=registry,
        )  # fmt: skip
