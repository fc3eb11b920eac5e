"""koord-scheduler: throughput, queues, latency of cycles and plugins."""

from __future__ import annotations

from scripts.grafana.frame import Dashboard, Panel, Query, Row, Variable
from scripts.grafana.parts import R, percentiles, quantile, rate, sum_by

_S = '{profile=~"$profile"}'
_ATTEMPT = "scheduler_scheduling_attempt_duration_seconds"
_POINT = "scheduler_framework_extension_point_duration_seconds"
_PLUGIN = "scheduler_plugin_execution_duration_seconds"
_SLI = "scheduler_pod_scheduling_sli_duration_seconds"
_UNBOUNDED = 1e17
"""The default quota has a bound above this, in milli-cores and in bytes."""


def _mean(histogram: str, selector: str, by: str = "") -> str:
    """Average of a histogram's observations."""

    def summed(part: str) -> str:
        expr = rate(f"{histogram}_{part}", selector)
        return sum_by(by, expr) if by else f"sum({expr})"

    return f"{summed('sum')} / {summed('count')}"


def _quota(field: str, resource: str = "") -> str:
    """A figure of every quota; `resource`: only of that one."""
    chosen = f',resource="{resource}"' if resource else ""
    return f'max by (name, resource) (scheduler_elastic_quota_status{{field="{field}"{chosen}}})'


def _reservation(type: str) -> str:
    """A figure of every Reservation."""
    return f'max by (name, resource, unit) (scheduler_reservation_resource{{type="{type}"}})'


SCHEDULER_DASHBOARD = Dashboard(
    uid="koord-scheduler",
    title="koordlet / Scheduler",
    description="Scheduled and pending pods, attempts, plugins and preemption of koord-scheduler.",
    variables=[Variable("profile", "profile", "scheduler_schedule_attempts_total", "Profile")],
    rows=[
        Row(
            "Pods",
            [
                Panel(
                    "Attempts",
                    "Scheduling attempts per second by result; scheduled: the pod got a node.",
                    [Query(sum_by("result", rate("scheduler_schedule_attempts_total", _S)), "{{result}}")],
                    unit="cps",
                ),
                Panel(
                    "Pending",
                    "Pending pods by queue: active are next, unschedulable wait for an event, gated for their gates.",
                    [Query("max by (queue) (scheduler_pending_pods)", "{{queue}}")],
                    stack=True,
                ),
                Panel(
                    "Unschedulable by plugin",
                    "Unschedulable pods by rejecting plugin; a pod rejected by several plugins counts for each.",
                    [Query(f"max by (plugin) (scheduler_unschedulable_pods{_S})", "{{plugin}}")],
                ),
                Panel(
                    "Time to bind",
                    "Time from a pod's first attempt until it was bound, including waits in queues.",
                    [Query(quantile(q, _SLI, ""), name) for q, name in ((0.99, "p99"), (0.5, "p50"))],
                    unit="s",
                ),
                Panel(
                    "Queue arrivals",
                    "Pods per second added to a queue, by event.",
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
                    "Preemption attempts, victims and failed deletions per second.",
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
                    "Attempt latency", "Duration of an attempt, from the queue to the start of binding.",
                    _ATTEMPT, _S, "result", "{{result}}",
                ),
                Panel(
                    "Extension points",
                    "99th percentile of the duration of all plugins at an extension point; one cycle of ten is "
                    "measured.",
                    [Query(quantile(0.99, _POINT, _S, "extension_point"), "{{extension_point}}")],
                    unit="s",
                ),
                Panel(
                    "Slowest plugins",
                    "Average duration at an extension point; the ten slowest.",
                    [
                        Query(
                            f"topk(10, {_mean(_PLUGIN, '', 'plugin, extension_point')})",
                            "{{plugin}} {{extension_point}}",
                        )
                    ],
                    unit="s",
                ),
                Panel(
                    "Filter calls by plugin",
                    "Attempts per second in which the plugin's Filter was called.",
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
                    "Evaluated and feasible nodes",
                    "Average number of evaluated and of feasible nodes per scheduled pod.",
                    [
                        Query(_mean("scheduler_pod_scheduling_evaluated_nodes", ""), "evaluated"),
                        Query(_mean("scheduler_pod_scheduling_feasible_nodes", ""), "feasible"),
                    ],
                ),
                Panel(
                    "Event handling",
                    "Share of time spent on updating the queue after cluster events, by event.",
                    [Query(sum_by("event", rate("scheduler_event_handling_duration_seconds_sum", "")), "{{event}}")],
                    unit="percentunit",
                ),
            ],
        ),
        Row(
            "Quotas",
            [
                Panel(
                    "Use of runtime",
                    "Part of what each quota may use now that its pods use; above 1: others ask for what it borrowed.",
                    [Query(f"{_quota('used')} / ({_quota('runtime')} > 0 < {_UNBOUNDED})", "{{name}} {{resource}}")],
                    unit="percentunit", width=8,
                ),
                Panel(
                    "Waiting requests",
                    "Requests of pods that have no node yet, per quota; cores, Gi of memory.",
                    [
                        Query(
                            " or ".join(
                                f"({_quota('child-request', resource)} - {_quota('used', resource)}) / {divisor}"
                                for resource, divisor in (("cpu", 1000), ("memory", 2**30))
                            ),
                            "{{name}} {{resource}}",
                        )
                    ],
                    width=8,
                ),
                Panel(
                    "Use of max",
                    "Part of the upper bound of each quota that its pods use; quotas without a bound are left out.",
                    [Query(f"{_quota('used')} / ({_quota('max')} > 0 < {_UNBOUNDED})", "{{name}} {{resource}}")],
                    unit="percentunit", width=8,
                ),
            ],
        ),
        Row(
            "Reservations",
            [
                Panel(
                    "Phases",
                    "Reservations by phase; available ones hold room on a node.",
                    [
                        Query(
                            "sum by (phase) (max by (name, phase) (scheduler_reservation_status_phase))", "{{phase}}"
                        )
                    ],
                    width=8,
                ),
                Panel(
                    "Unused",
                    "What Reservations offer and no owner pod uses; cores, Gi of memory.",
                    [
                        Query(
                            f"sum by (resource, unit) ({_reservation('allocatable')} - {_reservation('allocated')})",
                            "{{resource}} {{unit}}",
                        )
                    ],
                    width=8,
                ),
                Panel(
                    "Utilization",
                    "Part of each Reservation that its owner pods use; the ten emptiest.",
                    [
                        Query(
                            'bottomk(10, max by (name, resource) (scheduler_reservation_resource{type="utilization"}))',
                            "{{name}} {{resource}}",
                        )
                    ],
                    unit="percentunit", width=8,
                ),
            ],
        ),
        Row(
            "Process",
            [
                Panel(
                    "Cache",
                    "Cached objects; assumed pods have a node that the API server does not have yet.",
                    [Query("max by (type) (scheduler_cache_size)", "{{type}}")],
                    width=8,
                ),
                Panel(
                    "Running bindings",
                    "Pods between node selection and the API server's response, including waits at Permit.",
                    [Query('sum(scheduler_goroutines{operation="binding"})', "bindings")],
                    width=8,
                ),
                Panel(
                    "Errors",
                    "Failed writes of pod conditions and attempts over the time limit, per second.",
                    [
                        Query(f"sum(rate(scheduler_pod_status_patch_failures_total{R}))", "condition writes"),
                        Query(f"sum(rate(scheduler_scheduling_timeout{R}))", "timeouts"),
                    ],
                    unit="cps", width=8,
                ),
            ],
        ),
    ],
)  # fmt: skip
