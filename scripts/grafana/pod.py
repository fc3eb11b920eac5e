"""Pods: usage, throttling, waiting and culprits of each container."""

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
    P,
    R,
    heat,
    percentiles,
    rate,
    sum_by,
)


def _batch(family: str, resource: str, factor: str = "") -> str:
    selector = f'{{{OF_POD},resource=~"kubernetes.io/(batch|mid)-{resource}"}}'
    return sum_by(BY_CONTAINER, f"{family}{selector}") + factor


POD_DASHBOARD = Dashboard(
    uid="koordlet-pod",
    title="koordlet / Pod",
    description="Usage, throttling, waiting and stalls of the containers of the chosen pods, and their culprits.",
    variables=[NODE, NAMESPACE, PODS],
    rows=[
        Row(
            "Usage",
            [
                Panel(
                    "CPU",
                    "Cores used by each container.",
                    [Query(sum_by(BY_CONTAINER, f"koordlet_container_cpu_usage_cores{P}"), CONTAINER)],
                    unit="none", stack=True,
                ),
                Panel(
                    "Memory",
                    "Memory used by each container, without page cache.",
                    [Query(sum_by(BY_CONTAINER, f"koordlet_container_memory_usage_bytes{P}"), CONTAINER)],
                    unit="bytes", stack=True,
                ),
                Panel(
                    "Batch and mid CPU requests and limits",
                    "Requests and limits of extended resources in cores; containers without any are not shown.",
                    [
                        Query(
                            _batch("koordlet_container_resource_requests", "cpu", " / 1000"), f"request {CONTAINER}"
                        ),
                        Query(_batch("koordlet_container_resource_limits", "cpu", " / 1000"), f"limit {CONTAINER}"),
                    ],
                    unit="none",
                ),
                Panel(
                    "Batch and mid memory requests and limits; cold memory",
                    "Requests and limits of extended resources, and the container's cold page cache.",
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
            "CPU throttling",
            [
                Panel(
                    "Throttled periods",
                    "Share of recent CFS periods in which the container was throttled.",
                    [Query(f"max by ({BY_CONTAINER}) (koordlet_container_cpu_throttled_ratio{P})", CONTAINER)],
                    unit="percentunit", max=1,
                ),
                Panel(
                    "Time lost to throttling and to others",
                    "Seconds per second that tasks were throttled by their own quota, or waited because other tasks "
                    "ran.",
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
                    unit=SECONDS_PER_SECOND,
                ),
            ],
        ),
        Row(
            "CPU waits",
            [
                percentiles(
                    "Waits",
                    "Median and 99th percentile of the time between runnable and running.",
                    "koordlet_sched_latency_seconds", P, BY_CONTAINER, CONTAINER,
                ),
                heat("Waits over time", "Distribution of the CPU waits.", "koordlet_sched_latency_seconds", P),
                percentiles(
                    "Waits by reason",
                    "CPU waits after a wake-up, and after a preemption.",
                    "koordlet_sched_latency_seconds", P, "reason", "{{reason}}",
                ),
                Panel(
                    "Culprits of CPU waits",
                    "Seconds per second that the chosen pods waited while the culprit held the CPU.",
                    [
                        Query(
                            f"topk(10, sum by ({CULPRITS}) "
                            f"(rate(koordlet_sched_latency_culprit_wait_seconds_total{P}{R})))",
                            CULPRIT,
                        )
                    ],
                    unit=SECONDS_PER_SECOND, stack=True,
                ),
            ],
        ),
        Row(
            "Pressure",
            [
                Panel(
                    "Partial stalls",
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
                    "Full stalls",
                    "Share of time in which all tasks of a container were stalled.",
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
                    "An increase indicates contention for cache or memory bandwidth. Needs hardware counters.",
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
            "Memory stalls",
            [
                percentiles(
                    "Memory stall duration",
                    "Median and 99th percentile of the duration of memory stalls of single tasks.",
                    "koordlet_mem_stall_seconds", P, BY_CONTAINER, CONTAINER,
                ),
                Panel(
                    "Stall time by kind",
                    "Seconds per second of memory stalls; own_limit and throttle: caused by its own limits; "
                    "direct, compaction, refault and swapin: by the node's memory pressure.",
                    [
                        Query(
                            sum_by(f"{BY_CONTAINER}, kind", rate("koordlet_mem_stall_kind_seconds_total", P)),
                            f"{{{{kind}}}} {CONTAINER}",
                        )
                    ],
                    unit=SECONDS_PER_SECOND, stack=True,
                ),
                Panel(
                    "Culprits of memory pressure",
                    "Share of the memory pressure on the chosen pods caused by each culprit's allocations.",
                    [
                        Query(
                            f"sum by ({BY_CONTAINER}, {CULPRITS}) "
                            f"(koordlet_mem_stall_culprit_share{P})",
                            f"{CONTAINER}: {CULPRIT}",
                        )
                    ],
                    unit="percentunit", max=1, width=24,
                ),
            ],
        ),
        Row(
            "Block I/O and network",
            [
                Panel(
                    "Block I/O",
                    "Bytes per second, by container and direction.",
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
                    "Median and 99th percentile of requests' time by stage: queue, device.",
                    "koordlet_block_io_seconds", P, f"{BY_CONTAINER}, stage", f"{{{{stage}}}} {CONTAINER}",
                ),
                Panel(
                    "Disk wait time",
                    "Seconds per second that requests waited for the disk, or were throttled by the container's own "
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
                    unit=SECONDS_PER_SECOND,
                ),
                Panel(
                    "Culprits of disk waits",
                    "Seconds per second that the chosen pods' requests waited while the disk served the culprit.",
                    [
                        Query(
                            f"topk(10, sum by ({CULPRITS}) "
                            f"(rate(koordlet_block_io_culprit_wait_seconds_total{P}{R})))",
                            CULPRIT,
                        )
                    ],
                    unit=SECONDS_PER_SECOND, stack=True,
                ),
                Panel(
                    "TCP retransmits and drops",
                    "Retransmitted TCP segments, and packets dropped because a receive queue was full, per second.",
                    [
                        Query(
                            sum_by(BY_CONTAINER, rate("koordlet_net_retransmits_total", P)), f"retransmits {CONTAINER}"
                        ),
                        Query(
                            sum_by(BY_CONTAINER, rate("koordlet_net_receive_queue_full_total", P)),
                            f"drops {CONTAINER}",
                        ),
                    ],
                    unit="pps", width=8,
                ),
                Panel(
                    "Unread received bytes",
                    "Bytes in receive queues that the container has not read.",
                    [Query(sum_by(BY_CONTAINER, f"koordlet_net_backlog_bytes{P}"), CONTAINER)],
                    unit="bytes", width=8,
                ),
                Panel(
                    "Culprits of softirq time",
                    "Seconds per second that softirqs for the culprit's packets took from the chosen pods.",
                    [
                        Query(
                            f"topk(10, sum by ({CULPRITS}) "
                            f"(rate(koordlet_net_softirq_culprit_seconds_total{P}{R})))",
                            CULPRIT,
                        )
                    ],
                    unit=SECONDS_PER_SECOND, stack=True, width=8,
                ),
            ],
        ),
        Row(
            "Verdicts",
            [
                Panel(
                    "Interference",
                    "State of each container and resource; `cause`: neighbour (interference) or self (own trouble).",
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
