"""Koordinator's families by name, type, registry and labels (spec 02 §10): dashboards and alerts go by them."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from koordlet.app.flags import read
from koordlet.options import KoordletOptions
from koordlet.prometheus import CATALOGUE
from koordlet.wiring.context import WiringContext

POD = "pod_uid pod_name pod_namespace"
CONTAINER = f"{POD} container_id container_name"
PSI = "psi_resource_type psi_precision psi_degree cpu_full_supported"
FAMILIES = [
    ("start_time", "gauge", "internal", "node"),
    ("collect_node_cpu_info_status", "counter", "internal", "node status"),
    ("collect_node_numa_info_status", "counter", "internal", "node status"),
    ("collect_node_local_storage_info_status", "counter", "internal", "node status"),
    ("pod_eviction", "counter", "internal", "node reason"),
    ("pod_eviction_detail", "counter", "internal", "node pod_namespace pod_name reason"),
    ("node_used_cpu_cores", "gauge", "internal", "node"),
    ("node_used_memory_bytes", "gauge", "internal", "node"),
    ("be_suppress_cpu_cores", "gauge", "internal", "node type"),
    ("be_suppress_ls_used_cpu_cores", "gauge", "internal", "node"),
    ("be_suppress_be_used_cpu_cores", "gauge", "internal", "node"),
    ("container_scaled_cfs_burst_us", "gauge", "internal", "node pod_namespace pod_name container_id container_name"),
    ("container_scaled_cfs_quota_us", "gauge", "internal", "node pod_namespace pod_name container_id container_name"),
    ("cpuset_share_pool_cpu_cores", "gauge", "internal", "node"),
    ("cpuset_be_share_pool_cpu_cores", "gauge", "internal", "node"),
    ("cpuset_share_pool_info", "gauge", "internal", "node cpu"),
    ("cpuset_be_share_pool_info", "gauge", "internal", "node cpu"),
    ("node_predicted_resource_reclaimable", "gauge", "internal", "node predictor resource unit"),
    ("node_predicted_resource_peak", "gauge", "internal", "node predictor resource unit"),
    (
        "container_core_sched_cookie",
        "gauge",
        "internal",
        "node pod_name pod_namespace pod_uid container_name container_id core_sched_group core_sched_cookie",
    ),
    ("core_sched_cookie_manage_status", "counter", "internal", "node core_sched_group status"),
    ("node_metric_node_usage", "gauge", "internal", "node resource unit"),
    ("node_metric_system_usage", "gauge", "internal", "node resource unit"),
    ("node_metric_numa_node_usage", "gauge", "internal", "node numa_node_id resource unit"),
    ("node_metric_numa_system_usage", "gauge", "internal", "node numa_node_id resource unit"),
    ("container_oom_score_adj", "gauge", "internal", "node pod_name pod_namespace pod_uid container_name"),
    ("resource_update_duration_milliseconds", "histogram", "internal", "type status"),
    ("kubelet_request_duration_seconds", "histogram", "internal", "verb path code"),
    ("runtime_hook_invoked_duration_milliseconds", "histogram", "internal", "node hook stage status"),
    (
        "runtime_hook_reconciler_invoked_duration_milliseconds",
        "histogram",
        "internal",
        "node level resource_type status",
    ),
    ("host_application_resource_usage", "gauge", "internal", "node host_application_name resource priority_class qos"),
    ("node_resource_allocatable", "gauge", "external", "node resource unit"),
    ("node_priority_resource_reclaimable", "gauge", "external", "node priority resource unit"),
    ("node_resource_priority_reclaimable_status", "gauge", "external", "node priority"),
    ("container_resource_requests", "gauge", "external", f"node resource unit {CONTAINER}"),
    ("container_resource_limits", "gauge", "external", f"node resource unit {CONTAINER}"),
    ("container_cpi", "gauge", "external", f"node {CONTAINER} cpi_field"),
    ("container_psi", "gauge", "external", f"node {CONTAINER} {PSI}"),
    ("pod_psi", "gauge", "external", f"node {POD} {PSI}"),
    ("resctrl_llc_occupancy", "gauge", "external", "node cache_id qos"),
    ("resctrl_memory_bandwidth", "gauge", "external", "node cache_id qos mb_type"),
]


@pytest.mark.parametrize(("name", "type", "side", "labels"), FAMILIES, ids=[row[0] for row in FAMILIES])
def test_family(name: str, type: str, side: str, labels: str) -> None:
    family = CATALOGUE[name]
    assert (family.type, family.side) == (type, side)
    assert sorted(family.all_labels) == sorted(labels.split())


def test_only_the_start_time_is_exported_before_the_node_is_known() -> None:
    registries = WiringContext(read(KoordletOptions, ["--node-name=n1"])).registries
    registries.view("node_used_cpu_cores", lambda: [((), 1.0)])
    text = generate_latest(registries.internal).decode() + generate_latest(registries.external).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.name for sample in samples if "node" in sample.labels} == {"koordlet_start_time"}
    assert [sample.labels for sample in samples if sample.name == "koordlet_start_time"] == [{"node": "n1"}]
