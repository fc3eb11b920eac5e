"""koord-descheduler: evictions, dry runs, duration and failures of passes."""

from __future__ import annotations

from scripts.grafana.frame import Dashboard, Panel, Query, Row, Variable
from scripts.grafana.parts import R, quantile, rate, sum_by

_S = '{strategy=~"$strategy"}'
_PASS = "descheduler_loop_duration_seconds"
_STRATEGY = "descheduler_strategy_duration_seconds"

DESCHEDULER_DASHBOARD = Dashboard(
    uid="koord-descheduler",
    title="koordlet / Descheduler",
    description="Evictions, dry runs and passes of koord-descheduler.",
    variables=[Variable("strategy", "strategy", f"{_STRATEGY}_count", "Plugin")],
    rows=[
        Row(
            "Evictions",
            [
                Panel(
                    "Evictions by plugin",
                    "Evicted pods per second, by the plugin that decided.",
                    [Query(sum_by("strategy", rate("descheduler_pods_evicted", _S)), "{{strategy}}")],
                    unit="cps",
                    width=8,
                ),
                Panel(
                    "Evictions by result",
                    "Eviction calls per second, by result; error: a disruption budget or the API server refused.",
                    [Query(sum_by("result", rate("descheduler_pods_evicted", _S)), "{{result}}")],
                    unit="cps",
                    width=8,
                ),
                Panel(
                    "Dry runs",
                    "Evictions per second that dry runs would have made, by plugin.",
                    [Query(sum_by("strategy", rate("descheduler_dry_run_evictions_total", _S)), "{{strategy}}")],
                    unit="cps",
                    width=8,
                ),
            ],
        ),
        Row(
            "Drains",
            [
                Panel(
                    "Drains",
                    "DrainNodes by phase.",
                    [Query("sum by (phase) (descheduler_drain_nodes)", "{{phase}}")],
                ),
                Panel(
                    "Pods of drains",
                    "Pods of running drains, by phase; Unavailable: no other node has room.",
                    [Query("sum by (phase) (descheduler_drain_pods)", "{{phase}}")],
                ),
            ],
        ),
        Row(
            "Passes",
            [
                Panel(
                    "Duration of a pass",
                    "Time of one pass over all profiles.",
                    [Query(quantile(q, _PASS, ""), name) for q, name in ((0.99, "p99"), (0.5, "p50"))],
                    unit="s",
                    width=8,
                ),
                Panel(
                    "Failed plugins",
                    "Plugins that failed in a pass, per second; the log names the error.",
                    [Query(sum_by("strategy", rate("descheduler_strategy_failures_total", _S)), "{{strategy}}")],
                    unit="cps",
                    width=8,
                ),
                Panel(
                    "Time since the last pass",
                    "Seconds since the last pass ended; more than deschedulingInterval: no replica leads.",
                    [Query("time() - max(descheduler_last_pass_timestamp_seconds)", "last pass")],
                    unit="s",
                    width=8,
                ),
            ],
        ),
        Row(
            "Process",
            [
                Panel(
                    "Memory",
                    "Resident memory of each replica.",
                    [Query('process_resident_memory_bytes{job="koord-descheduler"}', "{{instance}}")],
                    unit="bytes",
                ),
                Panel(
                    "CPU",
                    "CPU of each replica, in cores.",
                    [Query(f'rate(process_cpu_seconds_total{{job="koord-descheduler"}}{R})', "{{instance}}")],
                ),
            ],
        ),
    ],
)
