"""koordlet's own health: data sources, punctuality, cost."""

from __future__ import annotations

from scripts.grafana.frame import Dashboard, Panel, Query, Row
from scripts.grafana.parts import NODE, N, R, of_node, rate, sum_by

_TASK = "{{node}} {{task}}"


def _by_node(labels: str, expr: str) -> str:
    """A sum of series without a node label, by node."""
    return f"sum by (node, {labels}) ({of_node(expr)})" if labels else f"sum by (node) ({of_node(expr)})"


def _p99(histogram: str, label: str) -> str:
    buckets = f"sum by (le, {label}, job, instance) (rate({histogram}_bucket{R}))"
    return of_node(f"histogram_quantile(0.99, {buckets})")


HEALTH_DASHBOARD = Dashboard(
    uid="koordlet-health",
    title="koordlet / Health",
    description="Probes and collectors, punctuality, cost and reports of koordlet on the chosen nodes.",
    variables=[NODE],
    rows=[
        Row(
            "Data sources",
            [
                Panel(
                    "Probes",
                    "1: the probe is loaded; `source` is its data source, `reason` why it is not loaded.",
                    [Query(f"koordlet_probe_up{N}", instant=True)],
                    kind="table", width=8,
                ),
                Panel(
                    "Collectors",
                    "Optional collectors; 1: the collector provides figures.",
                    [Query(f"koordlet_collector_up{N}", instant=True)],
                    kind="table", width=8,
                ),
                Panel(
                    "Missing host features",
                    "Missing features of the kernel or the hardware, and the reason.",
                    [Query(f"koordlet_host_feature_supported{N} == 0", instant=True)],
                    kind="table", width=8, hide=["Value"],
                ),
                Panel(
                    "Collector failures",
                    "Collector runs without a result, by cause, and metric families missing in a scrape, per second.",
                    [
                        Query(
                            sum_by("node, collector, cause", rate("koordlet_collector_failures_total", N)),
                            "{{node}} {{collector}} {{cause}}",
                        ),
                        Query(
                            _by_node("family", f"rate(koordlet_metric_provider_failures_total{R})"),
                            "{{node}} family {{family}}",
                        ),
                    ],
                    unit="cps",
                ),
                Panel(
                    "Lost observations",
                    "Probe observations dropped because a map was full, and samples dropped because a cache ring was "
                    "full, per second.",
                    [
                        *(
                            Query(
                                sum_by("node, map", rate(f"koordlet_{probe}_lost_total", N)),
                                f"{{{{node}}}} {probe} {{{{map}}}}",
                            )
                            for probe in ("sched_latency", "mem_stall", "block_io", "net_stall")
                        ),
                        Query(
                            sum_by("node", rate("koordlet_metric_cache_lost_samples_total", N)), "{{node}} samples"
                        ),
                    ],
                    unit="cps",
                ),
            ],
        ),
        Row(
            "Punctuality",
            [
                Panel(
                    "Lateness",
                    "99th percentile of the delay between due time and start of each periodic task.",
                    [Query(_p99("koord_periodic_task_lateness_seconds", "task"), _TASK)],
                    unit="s",
                ),
                Panel(
                    "Duration",
                    "99th percentile of the duration of each periodic task.",
                    [Query(_p99("koord_periodic_task_duration_seconds", "task"), _TASK)],
                    unit="s",
                ),
                Panel(
                    "Time since last success",
                    "Time since the last success of each periodic task.",
                    [
                        Query(
                            of_node("time() - koord_periodic_task_last_success_timestamp_seconds"), _TASK
                        )
                    ],
                    unit="s",
                ),
                Panel(
                    "Failures",
                    "Periodic task runs per second that failed or missed their deadline.",
                    [Query(_by_node("task", f"rate(koord_periodic_task_failures_total{R})"), _TASK)],
                    unit="cps",
                ),
            ],
        ),
        Row(
            "Cost",
            [
                Panel(
                    "CPU",
                    "CPU use of koordlet in percent of a core; the budget is 2 %.",
                    [Query(_by_node("", f"rate(process_cpu_seconds_total{R})"), "{{node}}")],
                    unit="percentunit",
                ),
                Panel(
                    "Memory",
                    "Resident memory of koordlet, and memory of its metric cache; the budget is 110 MB.",
                    [
                        Query(_by_node("", "process_resident_memory_bytes"), "{{node}} resident"),
                        Query(sum_by("node", f"koordlet_metric_cache_bytes{N}"), "{{node}} metric cache"),
                    ],
                    unit="bytes",
                ),
                Panel(
                    "Series",
                    "Time series in the metric cache, by kind.",
                    [Query(sum_by("kind", f"koordlet_metric_cache_series{N}"), "{{kind}}")],
                    stack=True,
                ),
                Panel(
                    "Open files",
                    "Open file descriptors of the process, and those of kernel files.",
                    [
                        Query(_by_node("", "process_open_fds"), "{{node}} all"),
                        Query(sum_by("node", f"koordlet_cgroup_files_open{N}"), "{{node}} kernel files"),
                    ],
                ),
            ],
        ),
        Row(
            "Reports and the API server",
            [
                Panel(
                    "Reports",
                    "Writes of NodeMetric, NodeResourceTopology and Device in 5 minutes, by outcome.",
                    [
                        Query(
                            f"round(sum by (node, status) (increase(koordlet_node_metric_reports_total{N}[5m])))",
                            "{{node}} NodeMetric {{status}}",
                        ),
                        Query(
                            f"round(sum by (node, status) (increase(koordlet_node_topology_reports_total{N}[5m])))",
                            "{{node}} NodeResourceTopology {{status}}",
                        ),
                        Query(
                            f"round(sum by (node, status) (increase(koordlet_device_reports_total{N}[5m])))",
                            "{{node}} Device {{status}}",
                        ),
                    ],
                ),
                Panel(
                    "Requests",
                    "Requests per second to the API server and to the kubelet, by status code.",
                    [
                        Query(
                            _by_node("verb, code", f"rate(koord_kube_requests_total{R})"),
                            "{{node}} {{verb}} {{code}}",
                        ),
                        Query(
                            _by_node("path, code", f"rate(koordlet_kubelet_request_duration_seconds_count{R})"),
                            "{{node}} kubelet {{path}} {{code}}",
                        ),
                    ],
                    unit="reqps",
                ),
                Panel(
                    "Watch errors",
                    "Failed lists and watches of informers per second, by reason.",
                    [
                        Query(
                            _by_node("informer, reason", f"rate(koord_informer_watch_errors_total{R})"),
                            "{{node}} {{informer}} {{reason}}",
                        )
                    ],
                    unit="cps",
                ),
                Panel(
                    "Pod lifecycle events",
                    "Events of pod cgroup directories per second, and failed callbacks of state changes.",
                    [
                        Query(sum_by("kind", rate("koordlet_pleg_events_total", N)), "{{kind}}"),
                        Query(
                            sum_by("type, callback", rate("koordlet_state_callback_failures_total", N)),
                            "failed {{type}} {{callback}}",
                        ),
                        Query(sum_by("node", rate("koordlet_pleg_handler_failures_total", N)), "failed handlers"),
                    ],
                    unit="cps",
                ),
                Panel(
                    "Kernel settings",
                    "Kernel settings per second that could not be applied, by owner and resource.",
                    [
                        Query(
                            sum_by("owner, resource, kind", rate("koordlet_resource_update_problems_total", N)),
                            "{{owner}} {{resource}} {{kind}}",
                        )
                    ],
                    unit="cps",
                ),
                Panel(
                    "Audit",
                    "Audit log events per second, by outcome.",
                    [Query(sum_by("outcome", rate("koordlet_audit_events_total", N)), "{{outcome}}")],
                    unit="cps",
                ),
            ],
        ),
    ],
)  # fmt: skip
