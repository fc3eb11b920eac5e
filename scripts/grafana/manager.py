"""koord-manager: what nodes lend and why not, how long admission takes and what it refuses, who leads."""

from __future__ import annotations

from scripts.grafana.frame import Dashboard, Panel, Query, Row, Variable
from scripts.grafana.parts import N, R, quantile, rate, sum_by

_AMOUNTS = "slo_controller_node_extended_resource_allocatable_internal"
_STEPS = "koord_manager_webhook_webhook_duration_milliseconds"
_REQUESTS = "controller_runtime_webhook_requests_total"
_LATENCY = "controller_runtime_webhook_latency_seconds"
_CPU, _MEMORY = "kubernetes.io/{}-cpu", "kubernetes.io/{}-memory"


def _lent(kind: str, by: str) -> str:
    """Amounts of one resource; `by` are labels, none for the sum of the chosen nodes."""
    chosen = f'{_AMOUNTS}{{node=~"$node",resource="{kind}"}}'
    return sum_by(by, chosen) if by else f"sum({chosen})"


def _amounts(title: str, says: str, name: str, unit: str, by: str) -> Panel:
    legend = "{{node}} " if by else ""
    return Panel(
        title,
        says,
        [Query(_lent(name.format(kind), by), f"{legend}{kind}") for kind in ("batch", "mid")],
        unit=unit,
        stack=not by,
    )


MANAGER_DASHBOARD = Dashboard(
    uid="koord-manager",
    title="koordlet / Manager",
    says="What the chosen nodes lend, why some lend nothing, webhooks, leader and controllers of koord-manager.",
    variables=[Variable("node", "node", _AMOUNTS, "Node")],
    rows=[
        Row(
            "Lending",
            [
                _amounts("CPU lent", "Cores that the chosen nodes lend, all together.", _CPU, "short", ""),
                _amounts("Memory lent", "The same of memory.", _MEMORY, "bytes", ""),
                _amounts("CPU lent by node", "Cores that each node lends.", _CPU, "short", "node"),
                _amounts("Memory lent by node", "The same of memory.", _MEMORY, "bytes", "node"),
                Panel(
                    "Why nodes lend what they lend",
                    "Nodes by reason: AsMeasured, InterferencePersists, and those that lend nothing.",
                    [Query("sum by (reason) (koord_manager_lending_nodes)", "{{reason}}")],
                    stack=True,
                ),
                Panel(
                    "Nodes that lend nothing",
                    "Each with its reason; the Node's condition ColocationLending and koordctl node say more.",
                    [Query(f"koord_manager_lending_degraded{N}", instant=True)],
                    kind="table", hide=["Value"],
                ),
                Panel(
                    "What interference leaves",
                    "Percent of the calculated amount, for nodes where neighbours keep hurting each other.",
                    [Query(f"koord_manager_lending_percent{N}", "{{node}} {{resource}}")],
                    unit="percent", max=100,
                ),
                Panel(
                    "Writes",
                    "Writes of Node status, Node metadata and NUMA zones a second.",
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
                    "Median and 99th percentile of the time to answer an admission request; the budget is 5 ms.",
                    [
                        Query(quantile(0.99, _LATENCY, "", "webhook"), "p99 {{webhook}}"),
                        Query(quantile(0.5, _LATENCY, "", "webhook"), "p50 {{webhook}}"),
                    ],
                    unit="s",
                ),
                Panel(
                    "Requests",
                    "Admission requests a second, by HTTP status.",
                    [Query(sum_by("webhook, code", rate(_REQUESTS, "")), "{{webhook}} {{code}}")],
                    unit="reqps",
                ),
                Panel(
                    "Refused",
                    "Refusals a second, by the step that refused.",
                    [
                        Query(
                            sum_by("object_type, plugin_name", rate(f"{_STEPS}_count", '{status="rejected"}')),
                            "{{object_type}} {{plugin_name}}",
                        )
                    ],
                    unit="cps",
                ),
                Panel(
                    "Time of steps",
                    "Milliseconds that a step of admission takes on average.",
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
            "The process",
            [
                Panel(
                    "Leader",
                    "1 for the replica that holds the lease; there should be one.",
                    [Query("koordinator_manager_is_leader", "{{instance}}")],
                    kind="state-timeline", width=8, words={"0": ("waits", "blue"), "1": ("leads", "green")},
                ),
                Panel(
                    "Configuration refused",
                    "Keys of slo-controller-config whose last good value is kept.",
                    [Query("max by (key) (koord_manager_config_key_bad) == 1", instant=True)],
                    kind="table", width=8, hide=["Value"],
                ),
                Panel(
                    "Reconciles that failed",
                    "A second, by controller; each is tried again.",
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
