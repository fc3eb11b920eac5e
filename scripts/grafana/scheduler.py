"""koord-scheduler: how many pods get nodes and how fast, who waits and for what, what cycles and plugins take."""

from __future__ import annotations

from scripts.grafana.frame import Dashboard, Panel, Query, Row, Variable
from scripts.grafana.parts import R, percentiles, quantile, rate, sum_by

_S = '{profile=~"$profile"}'
_ATTEMPT = "scheduler_scheduling_attempt_duration_seconds"
_POINT = "scheduler_framework_extension_point_duration_seconds"
_PLUGIN = "scheduler_plugin_execution_duration_seconds"
_SLI = "scheduler_pod_scheduling_sli_duration_seconds"


def _mean(histogram: str, selector: str, by: str = "") -> str:
    """Average of a histogram's observations."""

    def summed(part: str) -> str:
        expr = rate(f"{histogram}_{part}", selector)
        return sum_by(by, expr) if by else f"sum({expr})"

    return f"{summed('sum')} / {summed('count')}"


SCHEDULER_DASHBOARD = Dashboard(
    uid="koord-scheduler",
    title="koordlet / Scheduler",
    says="Pods that koord-scheduler places and pods that wait, attempts, plugins and preemption.",
    variables=[Variable("profile", "profile", "scheduler_schedule_attempts_total", "Profile")],
    rows=[
        Row(
            "Pods",
            [
                Panel(
                    "Attempts",
                    "Attempts a second by outcome: scheduled are pods that got a node.",
                    [Query(sum_by("result", rate("scheduler_schedule_attempts_total", _S)), "{{result}}")],
                    unit="cps",
                ),
                Panel(
                    "Pending",
                    "Pods by queue: active are next, unschedulable wait for an event, gated for their gates.",
                    [Query("max by (queue) (scheduler_pending_pods)", "{{queue}}")],
                    stack=True,
                ),
                Panel(
                    "Unschedulable by plugin",
                    "Waiting pods by the plugin that rejected them; one that several rejected counts at each.",
                    [Query(f"max by (plugin) (scheduler_unschedulable_pods{_S})", "{{plugin}}")],
                ),
                Panel(
                    "Time until bound",
                    "From a pod's first attempt until it was bound, waits for room included.",
                    [Query(quantile(q, _SLI, ""), name) for q, name in ((0.99, "p99"), (0.5, "p50"))],
                    unit="s",
                ),
                Panel(
                    "Arrivals in queues",
                    "Pods a second that came into a queue, by what brought them there.",
                    [
                        Query(
                            sum_by("queue, event", rate("scheduler_queue_incoming_pods_total", "")),
                            "{{queue}} {{event}}",
                        )
                    ],
                    unit="cps",
                ),
                Panel(
                    "Preemption",
                    "Attempts to make room a second, pods that had to go for it, and deletions that failed.",
                    [
                        Query(f"sum(rate(scheduler_preemption_attempts_total{R}))", "attempts"),
                        Query(f"sum(rate(scheduler_preemption_victims_sum{R}))", "victims"),
                        Query(f"sum(rate(scheduler_preemption_failures_total{R}))", "failed"),
                    ],
                    unit="cps",
                ),
            ],
        ),
        Row(
            "Cycles",
            [
                percentiles(
                    "Attempt latency", "Time of an attempt, from the queue to the binding's start.",
                    _ATTEMPT, _S, "result", "{{result}}",
                ),
                Panel(
                    "Extension points",
                    "99th percentile of the time of all plugins at a point; one cycle of ten is measured.",
                    [Query(quantile(0.99, _POINT, _S, "extension_point"), "{{extension_point}}")],
                    unit="s",
                ),
                Panel(
                    "Slowest plugins",
                    "Average time at a point, of the ten that take longest.",
                    [
                        Query(
                            f"topk(10, {_mean(_PLUGIN, '', 'plugin, extension_point')})",
                            "{{plugin}} {{extension_point}}",
                        )
                    ],
                    unit="s",
                ),
                Panel(
                    "Plugins asked",
                    "Attempts a second for which a plugin was asked at Filter.",
                    [
                        Query(
                            sum_by(
                                "plugin",
                                rate(
                                    "scheduler_plugin_evaluation_total",
                                    '{profile=~"$profile",extension_point="Filter"}',
                                ),
                            ),
                            "{{plugin}}",
                        )
                    ],
                    unit="cps",
                ),
                Panel(
                    "Nodes for a pod",
                    "Nodes that were looked at for a pod that was placed, and those that fitted, on average.",
                    [
                        Query(_mean("scheduler_pod_scheduling_evaluated_nodes", ""), "looked at"),
                        Query(_mean("scheduler_pod_scheduling_feasible_nodes", ""), "fit"),
                    ],
                ),
                Panel(
                    "Events and hints",
                    "Time of telling the queue of events, in seconds a second, by event.",
                    [Query(sum_by("event", rate("scheduler_event_handling_duration_seconds_sum", "")), "{{event}}")],
                    unit="percentunit",
                ),
            ],
        ),
        Row(
            "The process",
            [
                Panel(
                    "Cache",
                    "Objects in memory; assumed pods have a node that the API server does not know yet.",
                    [Query("max by (type) (scheduler_cache_size)", "{{type}}")],
                    width=8,
                ),
                Panel(
                    "Bindings under way",
                    "Pods between their node and the API server's answer, waits at Permit included.",
                    [Query('sum(scheduler_goroutines{operation="binding"})', "bindings")],
                    width=8,
                ),
                Panel(
                    "Trouble",
                    "Attempts that took too long and conditions that could not be written, a second.",
                    [
                        Query(f"sum(rate(scheduler_pod_status_patch_failures_total{R}))", "conditions"),
                        Query(f"sum(rate(scheduler_scheduling_timeout{R}))", "too long"),
                    ],
                    unit="cps", width=8,
                ),
            ],
        ),
    ],
)  # fmt: skip
