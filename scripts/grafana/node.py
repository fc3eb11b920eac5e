"""One node, or several: what there is, who uses it, who waits."""

from __future__ import annotations

from scripts.grafana.frame import Dashboard, Panel, Query, Row
from scripts.grafana.parts import (
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
    says="Capacity and use by QoS class, pressure, and waiting on the chosen nodes.",
    variables=[NODE],
    rows=[
        Row(
            "At a glance",
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
                    "Memory that is not available (page cache counts as available) over all memory.",
                    [Query(f"sum(koordlet_node_used_memory_bytes{N}) / sum(koordlet_node_capacity_memory_bytes{N})")],
                    kind="stat", unit="percentunit", width=4, height=4, max=1,
                    steps=[(None, "green"), (0.8, "orange"), (0.95, "red")],
                ),
                Panel(
                    "Pods",
                    "Pods that koordlet watches, by QoS class.",
                    [Query(sum_by("qos", f"koordlet_pods{N}"), _QOS)],
                    kind="stat", width=4, height=4,
                ),
                Panel(
                    "Interfered containers",
                    "Containers that a neighbour keeps from getting on, now.",
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
                    "99 of 100 waits for a CPU are shorter than this.",
                    [Query(quantile(0.99, "koordlet_sched_latency_seconds", N))],
                    kind="stat", unit="s", width=4, height=4,
                    steps=[(None, "green"), (0.01, "orange"), (0.1, "red")],
                ),
                Panel(
                    "koordlet up",
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
                    "Cores used by the pods of each class and by everything outside pods, against the node's CPUs.",
                    [
                        Query(sum_by("qos", f"koordlet_qos_cpu_usage_cores{N}"), _QOS),
                        Query(f"sum(koordlet_system_cpu_usage_cores{N})", "system"),
                        Query(f"sum(koordlet_node_capacity_cpu_cores{N})", "capacity"),
                    ],
                    unit="none", stack=True, lines=["capacity"],
                ),
                Panel(
                    "Batch CPU",
                    "Cores that best-effort pods may have (batch allocatable), those that the suppressor leaves them, "
                    "and those that they use.",
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
                    "CPUs that latency-sensitive and best-effort pods share: those that no pod has to itself.",
                    [
                        Query(f"sum(koordlet_cpuset_share_pool_cpu_cores{N})", "latency-sensitive"),
                        Query(f"sum(koordlet_cpuset_be_share_pool_cpu_cores{N})", "best-effort"),
                        Query(f"sum(koordlet_node_capacity_cpu_cores{N})", "capacity"),
                    ],
                    unit="none", lines=["capacity"],
                ),
                Panel(
                    "Predicted peaks",
                    "Peak of Prod pods and system that is to be expected, and what of their requests can be lent; "
                    "compare with use.",
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
                    "Memory without page cache used by the pods of each class and outside pods, against the node's.",
                    [
                        Query(sum_by("qos", f"koordlet_qos_memory_usage_bytes{N}"), _QOS),
                        Query(f"sum(koordlet_system_memory_usage_bytes{N})", "system"),
                        Query(f"sum(koordlet_node_capacity_memory_bytes{N})", "capacity"),
                    ],
                    unit="bytes", stack=True, lines=["capacity"],
                ),
                Panel(
                    "Batch memory and cold memory",
                    "Memory that best-effort pods may have, and page cache at rest, which can be taken without pain.",
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
                    "Seconds a second in which some (or all: full) tasks of a pod were stalled, summed over pods.",
                    [
                        Query(
                            sum_by("psi_resource_type, psi_degree", rate("koordlet_pod_psi_stall_seconds_total", N)),
                            "{{psi_resource_type}} {{psi_degree}}",
                        )
                    ],
                    width=24,
                ),
            ],
        ),
        Row(
            "Waiting for a CPU",
            [
                heat(
                    "Waits",
                    "How long tasks were runnable before they ran; each column is the waits of its time.",
                    "koordlet_sched_latency_seconds",
                    N,
                ),
                percentiles(
                    "Waits by QoS class",
                    "Median and 99th percentile of the waits of each class.",
                    "koordlet_sched_latency_seconds", N, "qos", _QOS,
                ),
                Panel(
                    "Time waited by QoS class",
                    "Seconds a second that tasks waited because something else ran, and (throttled) because their own "
                    "quota had run out.",
                    [
                        Query(sum_by("qos", rate("koordlet_sched_latency_wait_seconds_total", N)), f"waited {_QOS}"),
                        Query(
                            sum_by("qos", rate("koordlet_sched_latency_throttled_seconds_total", N)),
                            f"throttled {_QOS}",
                        ),
                    ],
                ),
                Panel(
                    "Who makes others wait",
                    "Seconds a second that others waited while this one held the CPU; the worst ten.",
                    [
                        Query(
                            f"topk(10, sum by (culprit_kind, culprit_namespace, culprit_pod, culprit) "
                            f"(rate(koordlet_sched_latency_culprit_wait_seconds_total{N}{R})))",
                            "{{culprit_kind}} {{culprit_namespace}}/{{culprit_pod}} {{culprit}}",
                        )
                    ],
                    stack=True,
                ),
            ],
        ),
        Row(
            "Short of memory",
            [
                heat(
                    "Memory stalls",
                    "How long single tasks were held up for want of memory: reclaim, compaction, refaults, swap-in, "
                    "throttling.",
                    "koordlet_mem_stall_seconds",
                    N,
                ),
                Panel(
                    "Time held up by kind",
                    "Seconds a second that tasks were held up for want of memory: own_limit is the container's own "
                    "doing, direct the node's.",
                    [Query(sum_by("kind", rate("koordlet_mem_stall_kind_seconds_total", N)), "{{kind}}")],
                    stack=True,
                ),
                Panel(
                    "Time held up by QoS class",
                    "The same by class.",
                    [Query(sum_by("qos", rate("koordlet_mem_stall_kind_seconds_total", N)), _QOS)],
                    stack=True,
                ),
                Panel(
                    "Killed for want of memory",
                    "Tasks killed in the last hour, by whose limit was reached.",
                    [
                        Query(
                            sum_by("pod_namespace, pod_name, scope", f"increase(koordlet_oom_kills_total{N}[1h])"),
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
                    "Bytes a second read, written and discarded, by device.",
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
                    "Median and 99th percentile of requests: waiting in the queue, and in the device.",
                    "koordlet_block_io_seconds", N, "stage", "{{stage}}",
                ),
                heat("Device latency", "How long the devices took.", "koordlet_block_io_seconds", _DEVICE_STAGE),
                Panel(
                    "Who keeps the disks from others",
                    "Seconds a second that others' requests waited while the disk worked for this one; the worst ten.",
                    [
                        Query(
                            f"topk(10, sum by (culprit_kind, culprit_namespace, culprit_pod, culprit) "
                            f"(rate(koordlet_block_io_culprit_wait_seconds_total{N}{R})))",
                            "{{culprit_kind}} {{culprit_namespace}}/{{culprit_pod}} {{culprit}}",
                        )
                    ],
                    stack=True,
                ),
            ],
        ),
        Row(
            "Network",
            [
                Panel(
                    "Time of network softirqs",
                    "Seconds a second that softirqs took from each class, and that each class' own packets caused.",
                    [
                        Query(sum_by("qos", rate("koordlet_net_softirq_seconds_total", N)), f"taken from {_QOS}"),
                        Query(sum_by("qos", rate("koordlet_net_softirq_caused_seconds_total", N)), f"caused by {_QOS}"),
                    ],
                ),
                Panel(
                    "Sent again, and dropped",
                    "TCP segments sent again, and packets dropped because nobody read the socket.",
                    [
                        Query(sum_by("qos", rate("koordlet_net_retransmits_total", N)), f"sent again {_QOS}"),
                        Query(sum_by("qos", rate("koordlet_net_receive_queue_full_total", N)), f"queue full {_QOS}"),
                    ],
                    unit="pps",
                ),
            ],
        ),
        Row(
            "GPUs",
            [
                Panel(
                    "Multiprocessors in use",
                    "Part of each GPU's multiprocessors that its processes had, summed over them.",
                    [Query(f"koordlet_node_gpu_used_core_ratio{N}", _GPU)],
                    unit="percentunit",
                ),
                Panel(
                    "GPU memory in use",
                    "Part of each GPU's memory, by its own count.",
                    [Query(f"koordlet_node_gpu_used_memory_bytes{N} / koordlet_node_gpu_memory_bytes{N}", _GPU)],
                    unit="percentunit",
                ),
                Panel(
                    "Who holds GPU memory",
                    f"The {TOP} pods that hold most, over all GPUs.",
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
                    "Errors a second that the driver told of, by number; 13, 31, 43, 45, 68 and 109 are programs' own.",
                    [Query(sum_by("node, xid", rate("koordlet_gpu_xid_errors_total", N)), "{{node}} Xid {{xid}}")],
                ),
            ],
        ),
    ],
)  # fmt: skip
