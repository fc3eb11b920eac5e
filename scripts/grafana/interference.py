"""Interference: victims, severity, culprits."""

from __future__ import annotations

from scripts.grafana.frame import SECONDS_PER_SECOND, Dashboard, Panel, Query, Row
from scripts.grafana.parts import (
    BY_CONTAINER,
    CONTAINER,
    CULPRIT,
    CULPRITS,
    INTERFERENCE_WORDS,
    NAMESPACE,
    NODE,
    OF_POD,
    PODS,
    N,
    P,
    R,
    rate,
    sum_by,
)

_TRACK = f"{BY_CONTAINER}, resource, cause"
_OF_TRACK = f"{CONTAINER} {{{{resource}}}} {{{{cause}}}}"


def _culprits(title: str, description: str, family: str) -> Panel:
    """The ten worst culprits, stacked."""
    query = Query(f"topk(10, sum by ({CULPRITS}) (rate({family}{P}{R})))", CULPRIT)
    return Panel(title, description, [query], unit=SECONDS_PER_SECOND, stack=True)


INTERFERENCE_DASHBOARD = Dashboard(
    uid="koordlet-interference",
    title="koordlet / Interference",
    description="Verdicts of the interference detector, and the waiting times on which they are based.",
    variables=[NODE, NAMESPACE, PODS],
    rows=[
        Row(
            "Now",
            [
                Panel(
                    "Interfered containers",
                    "Containers with an active alarm caused by other containers, by resource.",
                    [
                        Query(
                            sum_by(
                                "resource",
                                'koordlet_interference_containers{node=~"$node",cause="neighbour",state="interfered"}',
                            ),
                            "{{resource}}",
                        )
                    ],
                    kind="stat", width=5, height=5, steps=[(None, "green"), (1, "red")],
                ),
                Panel(
                    "Own trouble",
                    "Containers delayed by their own quota, limit or I/O, by resource.",
                    [
                        Query(
                            sum_by(
                                "resource",
                                'koordlet_interference_containers{node=~"$node",cause="self",state="interfered"}',
                            ),
                            "{{resource}}",
                        )
                    ],
                    kind="stat", width=5, height=5, steps=[(None, "green"), (1, "orange")],
                ),
                Panel(
                    "Alarms in the last hour",
                    "Alarms that began in the last hour, by resource and cause.",
                    [
                        Query(
                            "round(sum by (resource, cause) "
                            f"(increase(koordlet_interference_detections_total{N}[1h])))",
                            "{{resource}} {{cause}}",
                        )
                    ],
                    kind="stat", width=14, height=5,
                ),
            ],
        ),
        Row(
            "Verdicts",
            [
                Panel(
                    "States",
                    "State of each container and resource: quiet, suspected, interfered, recovering.",
                    [Query(f"max by ({_TRACK}) (koordlet_interference_state{P}) > 0", _OF_TRACK)],
                    kind="state-timeline", width=24, height=10, words=INTERFERENCE_WORDS,
                ),
                Panel(
                    "Scores",
                    "Severity relative to the container's own baseline; 1 is the alarm threshold.",
                    [Query(f"topk(20, max by ({_TRACK}) (koordlet_interference_score{P}))", _OF_TRACK)],
                    steps=[(None, "green"), (1, "red")],
                ),
                Panel(
                    "Time lost",
                    "Share of its time in which a container was ready to run and was delayed.",
                    [Query(f"topk(20, max by ({_TRACK}) (koordlet_interference_lost_ratio{P}))", _OF_TRACK)],
                    unit="percentunit",
                ),
                Panel(
                    "Culprits of alarms",
                    "Share of the victims' waiting caused by each culprit.",
                    [
                        Query(
                            f"sum by ({BY_CONTAINER}, resource, {CULPRITS}) (koordlet_interference_culprit_share{P})",
                            f"{CONTAINER} {{{{resource}}}}: {CULPRIT}",
                        )
                    ],
                    unit="percentunit", max=1,
                ),
                Panel(
                    "Time with an active alarm",
                    "Seconds per second with an active alarm, summed over containers.",
                    [
                        Query(
                            sum_by("resource, cause", rate("koordlet_interference_seconds_total", N)),
                            "{{resource}} {{cause}}",
                        )
                    ],
                    unit=SECONDS_PER_SECOND, stack=True,
                ),
            ],
        ),
        Row(
            "Victims and culprits",
            [
                _culprits(
                    "Culprits of CPU waits",
                    "Seconds per second that the chosen pods waited while the culprit held the CPU.",
                    "koordlet_sched_latency_culprit_wait_seconds_total",
                ),
                Panel(
                    "Victims",
                    "Seconds per second that each container waited because another task ran; the worst ten.",
                    [
                        Query(
                            f"topk(10, {sum_by(BY_CONTAINER, rate('koordlet_sched_latency_wait_seconds_total', P))})",
                            CONTAINER,
                        )
                    ],
                    unit=SECONDS_PER_SECOND, stack=True,
                ),
                _culprits(
                    "Culprits of disk waits",
                    "Seconds per second that requests of the chosen pods waited while the disk served the culprit.",
                    "koordlet_block_io_culprit_wait_seconds_total",
                ),
                _culprits(
                    "Culprits of softirq time",
                    "Seconds per second that network softirqs for the culprit's packets took from the chosen pods.",
                    "koordlet_net_softirq_culprit_seconds_total",
                ),
                Panel(
                    "Victim-culprit pairs",
                    "Seconds in the last hour that a victim waited for a culprit; the worst 30 pairs.",
                    [
                        Query(
                            f"topk(30, sum by ({BY_CONTAINER}, qos, {CULPRITS}) (increase("
                            f"koordlet_sched_latency_culprit_wait_seconds_total{P}[1h])))",
                            instant=True,
                        )
                    ],
                    kind="table", unit="s", width=24, height=10,
                    columns=f"{BY_CONTAINER}, qos, {CULPRITS}".split(", "),
                ),
                Panel(
                    "Pressure",
                    "Share of time in which tasks were stalled on each resource (PSI), maximum of the chosen pods.",
                    [
                        Query(
                            "max by (psi_resource_type) "
                            f'(koordlet_pod_psi{{{OF_POD},psi_precision="avg10",psi_degree="some"}})',
                            "{{psi_resource_type}}",
                        )
                    ],
                    unit="percent", width=24, max=100,
                ),
            ],
        ),
    ],
)  # fmt: skip
