"""Chosen pods: what each container uses, what holds it up, and who."""

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
    P,
    R,
    heat,
    percentiles,
    rate,
    sum_by,
)

_CULPRIT = "{{culprit_kind}} {{culprit_namespace}}/{{culprit_pod}} {{culprit}}"


def _batch(family: str, resource: str, factor: str = "") -> str:
    selector = f'{{{OF_POD},resource=~"kubernetes.io/(batch|mid)-{resource}"}}'
    return sum_by(BY_CONTAINER, f"{family}{selector}") + factor


POD_DASHBOARD = Dashboard(
    uid="koordlet-pod",
    title="koordlet / Pod",
    says="Use, throttling, waiting and stalls of the containers of the chosen pods, and who causes them.",
    variables=[NODE, NAMESPACE, PODS],
    rows=[
        Row(
            "Use",
            [
                Panel(
                    "CPU",
                    "Cores that each container uses.",
                    [Query(sum_by(BY_CONTAINER, f"koordlet_container_cpu_usage_cores{P}"), CONTAINER)],
                    unit="none", stack=True,
                ),
                Panel(
                    "Memory",
                    "Memory of each container without page cache.",
                    [Query(sum_by(BY_CONTAINER, f"koordlet_container_memory_usage_bytes{P}"), CONTAINER)],
                    unit="bytes", stack=True,
                ),
                Panel(
                    "Batch and mid CPU asked for",
                    "Requests and limits in extended resources, in cores; containers without any are not shown.",
                    [
                        Query(
                            _batch("koordlet_container_resource_requests", "cpu", " / 1000"), f"request {CONTAINER}"
                        ),
                        Query(_batch("koordlet_container_resource_limits", "cpu", " / 1000"), f"limit {CONTAINER}"),
                    ],
                    unit="none",
                ),
                Panel(
                    "Batch and mid memory asked for; cold memory",
                    "Requests and limits in extended resources, and the container's page cache at rest.",
                    [
                        Query(_batch("koordlet_container_resource_requests", "memory"), f"request {CONTAINER}"),
                        Query(_batch("koordlet_container_resource_limits", "memory"), f"limit {CONTAINER}"),
                        Query(
                            sum_by(BY_CONTAINER, f"koordlet_container_memory_cold_bytes{P}"), f"cold {CONTAINER}"
                        ),
                    ],
                    unit="bytes",
                ),
            ],
        ),
        Row(
            "Its own quota",
            [
                Panel(
                    "Throttled periods",
                    "Share of the last periods in which the container's quota ran out.",
                    [Query(f"max by ({BY_CONTAINER}) (koordlet_container_cpu_throttled_ratio{P})", CONTAINER)],
                    unit="percentunit", max=1,
                ),
                Panel(
                    "Time lost to the quota and to others",
                    "Seconds a second that tasks were runnable but did not run: throttled by the own quota, or waiting "
                    "because something else ran.",
                    [
                        Query(
                            sum_by(BY_CONTAINER, rate("koordlet_sched_latency_throttled_seconds_total", P)),
                            f"throttled {CONTAINER}",
                        ),
                        Query(
                            sum_by(BY_CONTAINER, rate("koordlet_sched_latency_wait_seconds_total", P)),
                            f"waited {CONTAINER}",
                        ),
                    ],
                ),
            ],
        ),
        Row(
            "Waiting for a CPU",
            [
                percentiles(
                    "Waits",
                    "Median and 99th percentile of the time from runnable to running.",
                    "koordlet_sched_latency_seconds", P, BY_CONTAINER, CONTAINER,
                ),
                heat("Waits over time", "The same as a heat map.", "koordlet_sched_latency_seconds", P),
                percentiles(
                    "Waits by reason",
                    "After a wake-up, and after losing the CPU while still wanting it (preempted).",
                    "koordlet_sched_latency_seconds", P, "reason", "{{reason}}",
                ),
                Panel(
                    "Who it waits for",
                    "Seconds a second that the chosen pods waited while the culprit held the CPU.",
                    [
                        Query(
                            f"topk(10, sum by (culprit_kind, culprit_namespace, culprit_pod, culprit) "
                            f"(rate(koordlet_sched_latency_culprit_wait_seconds_total{P}{R})))",
                            _CULPRIT,
                        )
                    ],
                    stack=True,
                ),
            ],
        ),
        Row(
            "Pressure",
            [
                Panel(
                    "Stalled",
                    "Percent of the last 10 s in which some tasks of a container were stalled, by resource.",
                    [
                        Query(
                            f"max by ({BY_CONTAINER}, psi_resource_type) "
                            f'(koordlet_container_psi{{{OF_POD},psi_precision="avg10",psi_degree="some"}})',
                            f"{{{{psi_resource_type}}}} {CONTAINER}",
                        )
                    ],
                    unit="percent", max=100,
                ),
                Panel(
                    "Wholly stalled",
                    "Seconds a second in which no task of a container got on.",
                    [
                        Query(
                            sum_by(
                                f"{BY_CONTAINER}, psi_resource_type",
                                f'rate(koordlet_container_psi_stall_seconds_total{{{OF_POD},psi_degree="full"}}{R})',
                            ),
                            f"{{{{psi_resource_type}}}} {CONTAINER}",
                        )
                    ],
                    unit="percentunit",
                ),
                Panel(
                    "Cycles per instruction",
                    "Higher than usual: cache or memory bandwidth are short. Needs hardware counters.",
                    [
                        Query(
                            f'sum by ({BY_CONTAINER}) (koordlet_container_cpi{{{OF_POD},cpi_field="cycles"}}) / '
                            f'sum by ({BY_CONTAINER}) (koordlet_container_cpi{{{OF_POD},cpi_field="instructions"}})',
                            CONTAINER,
                        )
                    ],
                    width=24,
                ),
            ],
        ),
        Row(
            "Short of memory",
            [
                percentiles(
                    "Memory stalls",
                    "Median and 99th percentile of the time that one task was held up for want of memory.",
                    "koordlet_mem_stall_seconds", P, BY_CONTAINER, CONTAINER,
                ),
                Panel(
                    "Time held up for want of memory",
                    "Seconds a second by kind: own_limit and throttle are the container's own doing; direct, "
                    "compaction, refault and swapin come from the node's shortage.",
                    [
                        Query(
                            sum_by(f"{BY_CONTAINER}, kind", rate("koordlet_mem_stall_kind_seconds_total", P)),
                            f"{{{{kind}}}} {CONTAINER}",
                        )
                    ],
                    stack=True,
                ),
                Panel(
                    "Whose allocations press",
                    "Share of the pressure under which the chosen pods reclaimed, by whose allocations pressed.",
                    [
                        Query(
                            f"sum by ({BY_CONTAINER}, culprit_kind, culprit_namespace, culprit_pod, culprit) "
                            f"(koordlet_mem_stall_culprit_share{P})",
                            f"{CONTAINER}: {_CULPRIT}",
                        )
                    ],
                    unit="percentunit", stack=True, width=24,
                ),
            ],
        ),
        Row(
            "Block I/O and network",
            [
                Panel(
                    "Block I/O",
                    "Bytes a second, by container and direction.",
                    [
                        Query(
                            sum_by(f"{BY_CONTAINER}, direction", rate("koordlet_block_io_bytes_total", P)),
                            f"{{{{direction}}}} {CONTAINER}",
                        )
                    ],
                    unit="Bps",
                ),
                percentiles(
                    "Block I/O latency",
                    "Median and 99th percentile of requests by stage: queue, device.",
                    "koordlet_block_io_seconds", P, f"{BY_CONTAINER}, stage", f"{{{{stage}}}} {CONTAINER}",
                ),
                Panel(
                    "Waiting for the disk",
                    "Seconds a second that requests waited for the disk, and were held back by the container's own "
                    "limit.",
                    [
                        Query(
                            sum_by(BY_CONTAINER, rate("koordlet_block_io_wait_seconds_total", P)),
                            f"waited {CONTAINER}",
                        ),
                        Query(
                            sum_by(BY_CONTAINER, rate("koordlet_block_io_throttled_seconds_total", P)),
                            f"throttled {CONTAINER}",
                        ),
                    ],
                ),
                Panel(
                    "Whose I/O was ahead",
                    "Seconds a second that the chosen pods' requests waited while the disk worked for the culprit.",
                    [
                        Query(
                            f"topk(10, sum by (culprit_kind, culprit_namespace, culprit_pod, culprit) "
                            f"(rate(koordlet_block_io_culprit_wait_seconds_total{P}{R})))",
                            _CULPRIT,
                        )
                    ],
                    stack=True,
                ),
                Panel(
                    "Network trouble",
                    "Segments sent again, and packets dropped because the container did not read.",
                    [
                        Query(
                            sum_by(BY_CONTAINER, rate("koordlet_net_retransmits_total", P)), f"sent again {CONTAINER}"
                        ),
                        Query(
                            sum_by(BY_CONTAINER, rate("koordlet_net_receive_queue_full_total", P)),
                            f"queue full {CONTAINER}",
                        ),
                    ],
                    unit="pps", width=8,
                ),
                Panel(
                    "Received and not read",
                    "Bytes that wait in sockets until the container reads them.",
                    [Query(sum_by(BY_CONTAINER, f"koordlet_net_backlog_bytes{P}"), CONTAINER)],
                    unit="bytes", width=8,
                ),
                Panel(
                    "Time taken by network softirqs",
                    "Seconds a second that softirqs took from the chosen pods for the culprit's packets.",
                    [
                        Query(
                            f"topk(10, sum by (culprit_kind, culprit_namespace, culprit_pod, culprit) "
                            f"(rate(koordlet_net_softirq_culprit_seconds_total{P}{R})))",
                            _CULPRIT,
                        )
                    ],
                    stack=True, width=8,
                ),
            ],
        ),
        Row(
            "Verdicts",
            [
                Panel(
                    "Interference",
                    "What the detector holds of each container and resource; cause says whether a neighbour or the "
                    "container itself is to blame.",
                    [
                        Query(
                            f"max by ({BY_CONTAINER}, resource, cause) (koordlet_interference_state{P})",
                            f"{CONTAINER} {{{{resource}}}} {{{{cause}}}}",
                        )
                    ],
                    kind="state-timeline", width=24, words=INTERFERENCE_WORDS,
                )
            ],
        ),
    ],
)  # fmt: skip
