"""Nodes: capacity, usage, pressure, waiting."""

from __future__ import annotations

from scripts.grafana.frame import SECONDS_PER_SECOND, Dashboard, Panel, Query, Row
from scripts.grafana.parts import (
    CULPRIT,
    CULPRITS,
    NODE,
    POD,
    TOP,
    N,
    R,
    heat,
    percentiles,
    quantile,
    rate,
    sum_by,
)

_QOS = "{{qos}}"
_GPU = "{{node}} GPU {{gpu_minor}}"
_DEVICE_STAGE = '{node=~"$node",stage="device"}'


def _stalls(resource: str, title: str) -> Panel:
    selector = f'{{node=~"$node",psi_resource_type="{resource}",psi_precision="avg10",psi_degree="some"}}'
    return Panel(
        title,
        f"Percent of the last 10 s in which some task of a pod was stalled on {resource}; the {TOP} worst pods.",
        [Query(f"topk({TOP}, max by (pod_namespace, pod_name) (koordlet_pod_psi{selector}))", POD)],
        kind="status-history",
        unit="percent",
        width=8,
        height=10,
        max=100,
    )


NODE_DASHBOARD = Dashboard(
    uid="koordlet-node",
    title="koordlet / Node",
    description="Capacity and usage by QoS class, pressure and waiting on the chosen nodes.",
    variables=[NODE],
    rows=[
        Row(
            "Overview",
            [
                Panel(
                    "CPU in use",
                    "Busy CPU time over all online CPUs.",
                    [Query(f"sum(koordlet_node_used_cpu_cores{N}) / sum(koordlet_node_capacity_cpu_cores{N})")],
                    kind="stat", unit="percentunit", width=4, height=4, max=1,
                    steps=[(None, "green"), (0.8, "orange"), (0.95, "red")],
                ),
                Panel(
                    "Memory in use",
                    "Unavailable memory (page cache counts as available) over total memory.",
                    [Query(f"sum(koordlet_node_used_memory_bytes{N}) / sum(koordlet_node_capacity_memory_bytes{N})")],
                    kind="stat", unit="percentunit", width=4, height=4, max=1,
                    steps=[(None, "green"), (0.8, "orange"), (0.95, "red")],
                ),
                Panel(
                    "Pods",
                    "Pods on the node, by QoS class.",
                    [Query(sum_by("qos", f"koordlet_pods{N}"), _QOS)],
                    kind="stat", width=4, height=4,
                ),
                Panel(
                    "Interfered containers",
                    "Containers with interference from other containers, now.",
                    [
                        Query(
                            "sum(koordlet_interference_containers"
                            '{node=~"$node",cause="neighbour",state="interfered"})'
                        )
                    ],
                    kind="stat", width=4, height=4, steps=[(None, "green"), (1, "red")],
                ),
                Panel(
                    "CPU wait, p99",
                    "99th percentile of the waits for a CPU.",
                    [Query(quantile(0.99, "koordlet_sched_latency_seconds", N))],
                    kind="stat", unit="s", width=4, height=4,
                    steps=[(None, "green"), (0.01, "orange"), (0.1, "red")],
                ),
                Panel(
                    "koordlet uptime",
                    "Time since koordlet started.",
                    [Query(f"time() - koordlet_start_time{N}", "{{node}}")],
                    kind="stat", unit="s", width=4, height=4,
                ),
            ],
        ),
        Row(
            "CPU",
            [
                Panel(
                    "CPU by QoS class",
                    "Cores used by the pods of each class and by processes outside pods, with the node's capacity.",
                    [
                        Query(sum_by("qos", f"koordlet_qos_cpu_usage_cores{N}"), _QOS),
                        Query(f"sum(koordlet_system_cpu_usage_cores{N})", "system"),
                        Query(f"sum(koordlet_node_capacity_cpu_cores{N})", "capacity"),
                    ],
                    unit="none", stack=True, lines=["capacity"],
                ),
                Panel(
                    "Batch CPU",
                    "Cores for best-effort pods: batch allocatable, allowed by CPU suppression, and used.",
                    [
                        Query(
                            'sum(koordlet_node_resource_allocatable{node=~"$node",'
                            'resource="kubernetes.io/batch-cpu"}) / 1000',
                            "allocatable",
                        ),
                        Query(sum_by("type", f"koordlet_be_suppress_cpu_cores{N}"), "allowed by {{type}}"),
                        Query(f"sum(koordlet_be_suppress_be_used_cpu_cores{N})", "used"),
                    ],
                    unit="none",
                ),
                Panel(
                    "CPU share pools",
                    "CPUs shared by latency-sensitive and by best-effort pods, that is, not pinned to a pod.",
                    [
                        Query(f"sum(koordlet_cpuset_share_pool_cpu_cores{N})", "latency-sensitive"),
                        Query(f"sum(koordlet_cpuset_be_share_pool_cpu_cores{N})", "best-effort"),
                        Query(f"sum(koordlet_node_capacity_cpu_cores{N})", "capacity"),
                    ],
                    unit="none", lines=["capacity"],
                ),
                Panel(
                    "Predicted peaks",
                    "Predicted peak of Prod pods and system, reclaimable part of their requests, and present usage.",
                    [
                        Query(
                            sum_by(
                                "predictor",
                                'koordlet_node_predicted_resource_peak{node=~"$node",resource="cpu"}',
                            ),
                            "peak {{predictor}}",
                        ),
                        Query(
                            sum_by(
                                "predictor",
                                'koordlet_node_predicted_resource_reclaimable{node=~"$node",resource="cpu"}',
                            ),
                            "reclaimable {{predictor}}",
                        ),
                        Query(f"sum(koordlet_node_used_cpu_cores{N})", "used"),
                    ],
                    unit="none", lines=["used"],
                ),
            ],
        ),
        Row(
            "Memory",
            [
                Panel(
                    "Memory by QoS class",
                    "Memory without page cache used by the pods of each class and outside pods, with the node's "
                    "capacity.",
                    [
                        Query(sum_by("qos", f"koordlet_qos_memory_usage_bytes{N}"), _QOS),
                        Query(f"sum(koordlet_system_memory_usage_bytes{N})", "system"),
                        Query(f"sum(koordlet_node_capacity_memory_bytes{N})", "capacity"),
                    ],
                    unit="bytes", stack=True, lines=["capacity"],
                ),
                Panel(
                    "Batch memory and cold memory",
                    "Memory allocatable by best-effort pods, and cold page cache, which can be reclaimed cheaply.",
                    [
                        Query(
                            'sum(koordlet_node_resource_allocatable{node=~"$node",'
                            'resource="kubernetes.io/batch-memory"})',
                            "batch allocatable",
                        ),
                        Query(f"sum(koordlet_node_memory_cold_bytes{N})", "cold page cache"),
                    ],
                    unit="bytes",
                ),
            ],
        ),
        Row(
            "Pressure",
            [
                _stalls("cpu", "Stalled on CPU"),
                _stalls("mem", "Stalled on memory"),
                _stalls("io", "Stalled on I/O"),
                Panel(
                    "Stalled pods",
                    "Seconds per second in which some or all (full) tasks of a pod were stalled, summed over pods.",
                    [
                        Query(
                            sum_by("psi_resource_type, psi_degree", rate("koordlet_pod_psi_stall_seconds_total", N)),
                            "{{psi_resource_type}} {{psi_degree}}",
                        )
                    ],
                    unit=SECONDS_PER_SECOND, width=24,
                ),
            ],
        ),
        Row(
            "CPU waits",
            [
                heat(
                    "Waits",
                    "Time between runnable and running, over time.",
                    "koordlet_sched_latency_seconds",
                    N,
                ),
                percentiles(
                    "Waits by QoS class",
                    "Median and 99th percentile of the CPU waits of each class.",
                    "koordlet_sched_latency_seconds", N, "qos", _QOS,
                ),
                Panel(
                    "Wait time by QoS class",
                    "Seconds per second that tasks waited because other tasks ran, or were throttled by their own "
                    "quota.",
                    [
                        Query(sum_by("qos", rate("koordlet_sched_latency_wait_seconds_total", N)), f"waited {_QOS}"),
                        Query(
                            sum_by("qos", rate("koordlet_sched_latency_throttled_seconds_total", N)),
                            f"throttled {_QOS}",
                        ),
                    ],
                    unit=SECONDS_PER_SECOND,
                ),
                Panel(
                    "Culprits of CPU waits",
                    "Seconds per second that others waited while the culprit held the CPU; the worst ten.",
                    [
                        Query(
                            f"topk(10, sum by ({CULPRITS}) "
                            f"(rate(koordlet_sched_latency_culprit_wait_seconds_total{N}{R})))",
                            CULPRIT,
                        )
                    ],
                    unit=SECONDS_PER_SECOND, stack=True,
                ),
            ],
        ),
        Row(
            "Memory stalls",
            [
                heat(
                    "Memory stall duration",
                    "Duration of memory stalls of single tasks: reclaim, compaction, refaults, swap-in, throttling.",
                    "koordlet_mem_stall_seconds",
                    N,
                ),
                Panel(
                    "Stall time by kind",
                    "Seconds per second of memory stalls; own_limit: caused by the container's own limit, direct: by "
                    "the node.",
                    [Query(sum_by("kind", rate("koordlet_mem_stall_kind_seconds_total", N)), "{{kind}}")],
                    unit=SECONDS_PER_SECOND, stack=True,
                ),
                Panel(
                    "Stall time by QoS class",
                    "Seconds per second of memory stalls, by QoS class.",
                    [Query(sum_by("qos", rate("koordlet_mem_stall_kind_seconds_total", N)), _QOS)],
                    unit=SECONDS_PER_SECOND, stack=True,
                ),
                Panel(
                    "OOM kills",
                    "Tasks killed by the OOM killer in the last hour, by scope of the exceeded limit.",
                    [
                        Query(
                            "round(sum by (pod_namespace, pod_name, scope) "
                            f"(increase(koordlet_oom_kills_total{N}[1h])))",
                            f"{POD} {{{{scope}}}}",
                        )
                    ],
                ),
            ],
        ),
        Row(
            "Block I/O",
            [
                Panel(
                    "Bytes by device",
                    "Bytes per second read, written and discarded, by device.",
                    [
                        Query(
                            sum_by("device, direction", rate("koordlet_block_io_bytes_total", N)),
                            "{{device}} {{direction}}",
                        )
                    ],
                    unit="Bps",
                ),
                percentiles(
                    "Latency by stage",
                    "Median and 99th percentile of the time in the queue and in the device.",
                    "koordlet_block_io_seconds", N, "stage", "{{stage}}",
                ),
                heat("Device latency", "Time of requests in the device.", "koordlet_block_io_seconds", _DEVICE_STAGE),
                Panel(
                    "Culprits of disk waits",
                    "Seconds per second that others' requests waited while the disk served the culprit; the worst ten.",
                    [
                        Query(
                            f"topk(10, sum by ({CULPRITS}) "
                            f"(rate(koordlet_block_io_culprit_wait_seconds_total{N}{R})))",
                            CULPRIT,
                        )
                    ],
                    unit=SECONDS_PER_SECOND, stack=True,
                ),
            ],
        ),
        Row(
            "Network",
            [
                Panel(
                    "Network softirq time",
                    "Seconds per second that softirqs took from each class, and that each class' packets caused.",
                    [
                        Query(sum_by("qos", rate("koordlet_net_softirq_seconds_total", N)), f"taken from {_QOS}"),
                        Query(sum_by("qos", rate("koordlet_net_softirq_caused_seconds_total", N)), f"caused by {_QOS}"),
                    ],
                    unit=SECONDS_PER_SECOND,
                ),
                Panel(
                    "TCP retransmits and drops",
                    "Retransmitted TCP segments, and packets dropped because a receive queue was full, per second.",
                    [
                        Query(sum_by("qos", rate("koordlet_net_retransmits_total", N)), f"retransmits {_QOS}"),
                        Query(sum_by("qos", rate("koordlet_net_receive_queue_full_total", N)), f"drops {_QOS}"),
                    ],
                    unit="pps",
                ),
            ],
        ),
        Row(
            "GPUs",
            [
                Panel(
                    "GPU multiprocessor utilisation",
                    "Share of each GPU's multiprocessors used, summed over its processes.",
                    [Query(f"koordlet_node_gpu_used_core_ratio{N}", _GPU)],
                    unit="percentunit",
                ),
                Panel(
                    "GPU memory utilisation",
                    "Used share of each GPU's memory, as reported by the GPU.",
                    [Query(f"koordlet_node_gpu_used_memory_bytes{N} / koordlet_node_gpu_memory_bytes{N}", _GPU)],
                    unit="percentunit",
                ),
                Panel(
                    "GPU memory by pod",
                    f"The {TOP} pods with most GPU memory, over all GPUs.",
                    [
                        Query(
                            f"topk({TOP}, sum by (pod_namespace, pod_name) "
                            f"(koordlet_container_gpu_used_memory_bytes{N}))",
                            POD,
                        )
                    ],
                    unit="bytes",
                ),
                Panel(
                    "Xid errors",
                    "Xid errors per second, by number; 13, 31, 43, 45, 68 and 109 are application errors.",
                    [Query(sum_by("node, xid", rate("koordlet_gpu_xid_errors_total", N)), "{{node}} Xid {{xid}}")],
                    unit="cps",
                ),
            ],
        ),
    ],
)  # fmt: skip
