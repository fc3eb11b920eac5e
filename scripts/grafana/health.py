"""koordlet itself: what it can see, whether it keeps time, what it costs."""

from __future__ import annotations

from scripts.grafana.frame import Dashboard, Panel, Query, Row
from scripts.grafana.parts import NODE, N, R, of_node, rate, sum_by

_TASK = "{{node}} {{task}}"


def _by_node(labels: str, expr: str) -> str:
    """A sum of series without a node, by node."""
    return f"sum by (node, {labels}) ({of_node(expr)})" if labels else f"sum by (node) ({of_node(expr)})"


def _p99(histogram: str, label: str) -> str:
    buckets = f"sum by (le, {label}, job, instance) (rate({histogram}_bucket{R}))"
    return of_node(f"histogram_quantile(0.99, {buckets})")


HEALTH_DASHBOARD = Dashboard(
    uid="koordlet-health",
    title="koordlet / Health",
    says="Probes and collectors, punctuality, cost and reports of koordlet on the chosen nodes.",
    variables=[NODE],
    rows=[
        Row(
            "What it sees",
            [
                Panel(
                    "Probes",
                    "1 where a probe is loaded; source says what feeds it, reason why not.",
                    [Query(f"koordlet_probe_up{N}", instant=True)],
                    kind="table", width=8,
                ),
                Panel(
                    "Collectors",
                    "Optional collectors: 1 where they give figures.",
                    [Query(f"koordlet_collector_up{N}", instant=True)],
                    kind="table", width=8,
                ),
                Panel(
                    "Missing on the host",
                    "Features of the kernel or the hardware that are not there, and why.",
                    [Query(f"koordlet_host_feature_supported{N} == 0", instant=True)],
                    kind="table", width=8, hide=["Value"],
                ),
                Panel(
                    "Figures that could not be had",
                    "Runs of collectors without a figure, by cause, and families left out of a scrape.",
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
                    "Observations lost",
                    "Observations of probes that fitted no map, and samples that fitted no ring of the cache.",
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
                    "99th percentile of how long after its due time each periodic task began.",
                    [Query(_p99("koord_periodic_task_lateness_seconds", "task"), _TASK)],
                    unit="s",
                ),
                Panel(
                    "Duration",
                    "99th percentile of the time that a run of each periodic task took.",
                    [Query(_p99("koord_periodic_task_duration_seconds", "task"), _TASK)],
                    unit="s",
                ),
                Panel(
                    "Since the last success",
                    "Seconds since each task last succeeded.",
                    [
                        Query(
                            of_node("time() - koord_periodic_task_last_success_timestamp_seconds"), _TASK
                        )
                    ],
                    unit="s",
                ),
                Panel(
                    "Failures",
                    "Runs of periodic tasks that raised or missed their deadline, a second.",
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
                    "Cores that koordlet itself uses; the budget is 0.02.",
                    [Query(_by_node("", f"rate(process_cpu_seconds_total{R})"), "{{node}}")],
                    unit="percentunit",
                ),
                Panel(
                    "Memory",
                    "Resident memory of koordlet, and of its metric cache; the budget is 110 MB.",
                    [
                        Query(_by_node("", "process_resident_memory_bytes"), "{{node}} resident"),
                        Query(sum_by("node", f"koordlet_metric_cache_bytes{N}"), "{{node}} metric cache"),
                    ],
                    unit="bytes",
                ),
                Panel(
                    "Series",
                    "Series in the metric cache, by kind.",
                    [Query(sum_by("kind", f"koordlet_metric_cache_series{N}"), "{{kind}}")],
                    stack=True,
                ),
                Panel(
                    "Open files",
                    "Descriptors of the process, and of kernel files kept open.",
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
                    "NodeMetric, NodeResourceTopology and Device writes, by outcome.",
                    [
                        Query(
                            sum_by("node, status", f"increase(koordlet_node_metric_reports_total{N}[5m])"),
                            "{{node}} NodeMetric {{status}}",
                        ),
                        Query(
                            sum_by("node, status", f"increase(koordlet_node_topology_reports_total{N}[5m])"),
                            "{{node}} NodeResourceTopology {{status}}",
                        ),
                        Query(
                            sum_by("node, status", f"increase(koordlet_device_reports_total{N}[5m])"),
                            "{{node}} Device {{status}}",
                        ),
                    ],
                ),
                Panel(
                    "Requests",
                    "Requests to the API server and to the kubelet, by code.",
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
                    "Watches lost",
                    "Lists and watches of informers that failed, by reason.",
                    [
                        Query(
                            _by_node("informer, reason", f"rate(koord_informer_watch_errors_total{R})"),
                            "{{node}} {{informer}} {{reason}}",
                        )
                    ],
                    unit="cps",
                ),
                Panel(
                    "Pods and containers coming and going",
                    "What the kernel told of pod directories, and reactions to changed state that failed.",
                    [
                        Query(sum_by("kind", rate("koordlet_pleg_events_total", N)), "{{kind}}"),
                        Query(
                            sum_by("type, callback", rate("koordlet_state_callback_failures_total", N)),
                            "failed {{type}} {{callback}}",
                        ),
                    ],
                    unit="cps",
                ),
                Panel(
                    "Kernel settings",
                    "Settings that could not be applied, by owner and resource.",
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
                    "Events of the audit log by outcome.",
                    [Query(sum_by("outcome", rate("koordlet_audit_events_total", N)), "{{outcome}}")],
                    unit="cps",
                ),
            ],
        ),
    ],
)  # fmt: skip
