"""koord-manager: overcommitted resources, webhooks, leader election."""

from __future__ import annotations

from scripts.grafana.frame import Dashboard, Panel, Query, Row, Variable
from scripts.grafana.parts import N, R, quantile, rate, sum_by

_AMOUNTS = "slo_controller_node_extended_resource_allocatable_internal"
_STEPS = "koord_manager_webhook_webhook_duration_milliseconds"
_REQUESTS = "controller_runtime_webhook_requests_total"
_LATENCY = "controller_runtime_webhook_latency_seconds"
_CPU, _MEMORY = "kubernetes.io/{}-cpu", "kubernetes.io/{}-memory"


def _overcommitted(kind: str, by: str) -> str:
    """Amounts of one resource; `by`: labels, empty for the sum of the chosen nodes."""
    chosen = f'{_AMOUNTS}{{node=~"$node",resource="{kind}"}}'
    return sum_by(by, chosen) if by else f"sum({chosen})"


def _amounts(title: str, description: str, name: str, unit: str, by: str) -> Panel:
    legend = "{{node}} " if by else ""
    return Panel(
        title,
        description,
        [Query(_overcommitted(name.format(kind), by), f"{legend}{kind}") for kind in ("batch", "mid")],
        unit=unit,
        stack=not by,
    )


MANAGER_DASHBOARD = Dashboard(
    uid="koord-manager",
    title="koordlet / Manager",
    description="Overcommitted resources of the chosen nodes, webhooks, leader and controllers of koord-manager.",
    variables=[Variable("node", "node", _AMOUNTS, "Node")],
    rows=[
        Row(
            "Overcommitted resources",
            [
                _amounts("Overcommitted CPU", "Batch and mid CPU in cores, total.", _CPU, "short", ""),
                _amounts("Overcommitted memory", "Batch and mid memory, total.", _MEMORY, "bytes", ""),
                _amounts("Overcommitted CPU by node", "Batch and mid CPU in cores, per node.", _CPU, "short", "node"),
                _amounts("Overcommitted memory by node", "Batch and mid memory, per node.", _MEMORY, "bytes", "node"),
                Panel(
                    "Nodes by reason",
                    "Nodes by reason of their amounts: AsMeasured, InterferencePersists, and reasons for no "
                    "overcommit.",
                    [Query("sum by (reason) (koord_manager_lending_nodes)", "{{reason}}")],
                    stack=True,
                ),
                Panel(
                    "Nodes without overcommit",
                    "Each with its reason; details: the Node's condition ColocationLending and `koordctl node`.",
                    [Query(f"koord_manager_lending_degraded{N}", instant=True)],
                    kind="table", hide=["Value"],
                ),
                Panel(
                    "Offered part under interference",
                    "Percent of the calculated amount that a node with persistent interference offers.",
                    [Query(f"koord_manager_lending_percent{N}", "{{node}} {{resource}}")],
                    unit="percent", max=100,
                ),
                Panel(
                    "Writes",
                    "Writes per second of Node status, Node metadata and NUMA zones.",
                    [Query(sum_by("what", rate("koord_manager_lending_writes_total", "")), "{{what}}")],
                    unit="cps",
                ),
            ],
        ),
        Row(
            "Webhooks",
            [
                Panel(
                    "Latency",
                    "Median and 99th percentile of the duration of admission requests; the budget is 5 ms.",
                    [
                        Query(quantile(0.99, _LATENCY, "", "webhook"), "p99 {{webhook}}"),
                        Query(quantile(0.5, _LATENCY, "", "webhook"), "p50 {{webhook}}"),
                    ],
                    unit="s",
                ),
                Panel(
                    "Requests",
                    "Admission requests per second, by HTTP status.",
                    [Query(sum_by("webhook, code", rate(_REQUESTS, "")), "{{webhook}} {{code}}")],
                    unit="reqps",
                ),
                Panel(
                    "Rejections",
                    "Rejections per second, by rejecting step.",
                    [
                        Query(
                            sum_by("object_type, plugin_name", rate(f"{_STEPS}_count", '{status="rejected"}')),
                            "{{object_type}} {{plugin_name}}",
                        )
                    ],
                    unit="cps",
                ),
                Panel(
                    "Duration of steps",
                    "Average duration of each admission step.",
                    [
                        Query(
                            f"{sum_by('object_type, plugin_name', rate(f'{_STEPS}_sum', ''))}"
                            f" / {sum_by('object_type, plugin_name', rate(f'{_STEPS}_count', ''))}",
                            "{{object_type}} {{plugin_name}}",
                        )
                    ],
                    unit="ms",
                ),
            ],
        ),
        Row(
            "Job queueing",
            [
                Panel(
                    "QueueUnits",
                    "Jobs by phase (gate JobQueueing).",
                    [Query("sum by (queue, phase) (koord_manager_queue_units)", "{{queue}} {{phase}}")],
                    stack=True,
                ),
                Panel(
                    "Admissions and timeouts",
                    "Jobs per second that a quota admitted, and that were not running in time.",
                    [
                        Query(sum_by("queue", rate("koord_manager_queue_admissions_total", "")), "{{queue}}"),
                        Query(f"sum({rate('koord_manager_queue_timeouts_total', '')})", "timeouts"),
                    ],
                    unit="cps",
                ),
            ],
        ),
        Row(
            "Process",
            [
                Panel(
                    "Leader",
                    "The replica that holds the lease; there should be one.",
                    [Query("koordinator_manager_is_leader", "{{instance}}")],
                    kind="state-timeline", width=8, words={"0": ("standby", "blue"), "1": ("leader", "green")},
                ),
                Panel(
                    "Invalid configuration",
                    "Keys of slo-controller-config whose last valid value is kept.",
                    [Query("max by (key) (koord_manager_config_key_bad) == 1", instant=True)],
                    kind="table", width=8, hide=["Value"],
                ),
                Panel(
                    "Failed reconciles",
                    "Failed reconciles per second, by controller; each is retried.",
                    [
                        Query(
                            sum_by("controller", f"rate(controller_runtime_reconcile_errors_total{R})"),
                            "{{controller}}",
                        )
                    ],
                    unit="cps", width=8,
                ),
            ],
        ),
    ],
)  # fmt: skip
