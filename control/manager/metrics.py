"""The manager's own metric families (spec 04 §19), on the internal registry."""

from __future__ import annotations

from koordlet.app.metrics import MetricSet, gauge, unsuffixed_counter

SUCCEEDED, FAILED = "succeeded", "failed"


class ManagerMetrics(MetricSet):
    """Counters by status (succeeded, failed) and reason (the step)."""

    is_leader = gauge("koordinator_manager_is_leader", "1 while this replica is the leader.")
    node_resource = unsuffixed_counter(
        "slo_controller_node_resource_reconcile_count", "Steps of the noderesource controller.", "status", "reason"
    )
    node_metric = unsuffixed_counter(
        "slo_controller_nodemetric_reconcile_count", "Steps of the nodemetric controller.", "status", "reason"
    )
    node_metric_parse = unsuffixed_counter(
        "slo_controller_nodemetric_spec_parse_count", "Collect policies computed.", "status", "reason"
    )
    node_slo = unsuffixed_counter(
        "slo_controller_nodeslo_reconcile_count", "Steps of the nodeslo controller.", "status", "reason"
    )
    node_slo_parse = unsuffixed_counter(
        "slo_controller_nodeslo_spec_parse_count", "Parts of NodeSLO computed.", "status", "reason"
    )
    plugins = unsuffixed_counter(
        "slo_controller_node_resource_run_plugin_status",
        "Stages run by noderesource plug-ins.",
        "plugin",
        "status",
        "reason",
    )
