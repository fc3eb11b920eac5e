"""Why a panel has no data in the recorded run of the demo: the first metric that its queries contain."""

from __future__ import annotations

_GPU = "koordlet read no GPU"
_FAILURES = "no failure was counted"
_EVICTIONS = "no pod was evicted"
_SAMPLED = "one cycle of ten is measured, too few for a rate"
_NO_DRAIN = "no node was drained"
_GATE = "the feature gate JobQueueing was off"
REASONS = {
    "koordlet_(?:node_gpu|container_gpu|gpu)_": _GPU,
    "koordlet_container_cpi": "the virtual machine has no hardware counters",
    "koordlet_collector_failures_total": _FAILURES,
    "koordlet_resource_update_problems_total": _FAILURES,
    "koord_informer_watch_errors_total": _FAILURES,
    "koord_periodic_task_failures_total": _FAILURES,
    "koordlet_oom_kills_total": "no task was killed",
    "koordlet_audit_events_total": "the feature gate AuditEvents was off",
    "koordlet_device_reports_total": "there was no device to report",
    "koordlet_resource_slice_reports_total": "the feature gate ResourceSlices was off",
    "koordlet_pod_eviction": _EVICTIONS,
    "koordlet_be_suppress_": "CPU suppress was off",
    "koord_manager_webhook_webhook_duration_milliseconds_count.*rejected": "no object was rejected",
    "koord_manager_queue_units": _GATE,
    "koord_manager_config_key_bad": "no key was invalid",
    "koord_manager_lending_degraded": "every node had overcommitted resources",
    "koord_manager_lending_percent": "no node had persistent interference",
    "controller_runtime_reconcile_errors_total": _FAILURES,
    "koord_runtime_proxy_hook_failures_total": _FAILURES,
    "koord_runtime_proxy_unhooked_total": "every call reached its hooks",
    "koord_runtime_proxy_recoveries_total": "no pod ran when the proxy started",
    "scheduler_framework_extension_point_duration_seconds": _SAMPLED,
    "scheduler_plugin_execution_duration_seconds": _SAMPLED,
    "descheduler_drain_": _NO_DRAIN,
    "descheduler_pods_evicted": _EVICTIONS,
    "descheduler_dry_run_evictions_total": "no plugin ran dry",
    "descheduler_strategy_failures_total": _FAILURES,
}
