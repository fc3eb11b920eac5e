"""Who suffers, how much, and because of whom."""

from __future__ import annotations

from scripts.grafana.frame import Dashboard, Panel, Query, Row
from scripts.grafana.parts import (
    BY_CONTAINER,
    CONTAINER,
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

_CULPRITS = "culprit_kind, culprit_namespace, culprit_pod, culprit"
_CULPRIT = "{{culprit_kind}} {{culprit_namespace}}/{{culprit_pod}} {{culprit}}"
_TRACK = f"{BY_CONTAINER}, resource, cause"
_OF_TRACK = f"{CONTAINER} {{{{resource}}}} {{{{cause}}}}"


def _culprits(title: str, says: str, family: str) -> Panel:
    """The ten worst, stacked."""
    return Panel(title, says, [Query(f"topk(10, sum by ({_CULPRITS}) (rate({family}{P}{R})))", _CULPRIT)], stack=True)


INTERFERENCE_DASHBOARD = Dashboard(
    uid="koordlet-interference",
    title="koordlet / Interference",
    says="Verdicts of the interference detector, and the waiting that they rest on.",
    variables=[NODE, NAMESPACE, PODS],
    rows=[
        Row(
            "Now",
            [
                Panel(
                    "Interfered containers",
                    "Containers with an alarm on, by resource; caused by a neighbour.",
                    [
                        Query(
                            sum_by(
                                "resource",
                                'koordlet_interference_containers{node=~"$node",cause="neighbour",state="interfered"}',
                            ),
                            "{{resource}}",
                        )
                    ],
                    kind="stat", width=8, height=5, steps=[(None, "green"), (1, "red")],
                ),
                Panel(
                    "Self-inflicted",
                    "Containers that their own quota, limit or I/O holds up, by resource.",
                    [
                        Query(
                            sum_by(
                                "resource",
                                'koordlet_interference_containers{node=~"$node",cause="self",state="interfered"}',
                            ),
                            "{{resource}}",
                        )
                    ],
                    kind="stat", width=8, height=5, steps=[(None, "green"), (1, "orange")],
                ),
                Panel(
                    "Alarms in the last hour",
                    "Alarms that began, by resource and cause.",
                    [
                        Query(
                            sum_by("resource, cause", f"increase(koordlet_interference_detections_total{N}[1h])"),
                            "{{resource}} {{cause}}",
                        )
                    ],
                    kind="stat", width=8, height=5,
                ),
            ],
        ),
        Row(
            "Verdicts",
            [
                Panel(
                    "States",
                    "Each container and resource over time: quiet, suspected, interfered, recovering.",
                    [Query(f"max by ({_TRACK}) (koordlet_interference_state{P}) > 0", _OF_TRACK)],
                    kind="state-timeline", width=24, height=10, words=INTERFERENCE_WORDS,
                ),
                Panel(
                    "Scores",
                    "How bad it is against the container's own baseline; 1 is the threshold.",
                    [Query(f"topk(20, max by ({_TRACK}) (koordlet_interference_score{P}))", _OF_TRACK)],
                    steps=[(None, "green"), (1, "red")],
                ),
                Panel(
                    "Time lost",
                    "Part of the time that a container wanted to get on and could not.",
                    [Query(f"topk(20, max by ({_TRACK}) (koordlet_interference_lost_ratio{P}))", _OF_TRACK)],
                    unit="percentunit",
                ),
                Panel(
                    "Culprits of the alarms",
                    "Part of the interfered containers' waiting that each culprit caused.",
                    [
                        Query(
                            f"sum by ({BY_CONTAINER}, resource, {_CULPRITS}) (koordlet_interference_culprit_share{P})",
                            f"{CONTAINER} {{{{resource}}}}: {_CULPRIT}",
                        )
                    ],
                    unit="percentunit", stack=True,
                ),
                Panel(
                    "Time with an alarm on",
                    "Seconds a second, summed over containers.",
                    [
                        Query(
                            sum_by("resource, cause", rate("koordlet_interference_seconds_total", N)),
                            "{{resource}} {{cause}}",
                        )
                    ],
                    stack=True,
                ),
            ],
        ),
        Row(
            "Who waits for whom",
            [
                _culprits(
                    "Culprits of CPU waiting",
                    "Seconds a second that the chosen pods waited while the culprit held the CPU.",
                    "koordlet_sched_latency_culprit_wait_seconds_total",
                ),
                Panel(
                    "Victims",
                    "Seconds a second that each container waited because something else ran; the worst ten.",
                    [
                        Query(
                            f"topk(10, {sum_by(BY_CONTAINER, rate('koordlet_sched_latency_wait_seconds_total', P))})",
                            CONTAINER,
                        )
                    ],
                    stack=True,
                ),
                _culprits(
                    "Culprits of disk waiting",
                    "Seconds a second that requests of the chosen pods waited while the disk worked for the culprit.",
                    "koordlet_block_io_culprit_wait_seconds_total",
                ),
                _culprits(
                    "Culprits of softirq time",
                    "Seconds a second that network softirqs took from the chosen pods for the culprit's packets.",
                    "koordlet_net_softirq_culprit_seconds_total",
                ),
                Panel(
                    "Pairs",
                    "Seconds in the last hour that a victim waited for a culprit; the worst thirty pairs.",
                    [
                        Query(
                            f"topk(30, sum by ({BY_CONTAINER}, qos, {_CULPRITS}) (increase("
                            f"koordlet_sched_latency_culprit_wait_seconds_total{P}[1h])))",
                            instant=True,
                        )
                    ],
                    kind="table", unit="s", width=24, height=10,
                ),
                Panel(
                    "Waiting against pressure",
                    "Share of time that pods were stalled on each resource (PSI), the worst of the chosen pods.",
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
