"""What the BPF probes measure: scheduling latency, memory stalls, OOM kills, block I/O, network."""

from __future__ import annotations

from koordlet.prometheus.family import CONTAINER, CULPRIT, external, internal

FAMILIES = (
    external(
        "sched_latency_seconds",
        "Time from runnable to running: reason=wakeup (after a wake-up) or preempted (after losing the CPU).",
        (*CONTAINER, "qos", "reason"),
        type="histogram",
    ),
    external(
        "sched_latency_wait_seconds_total",
        "Time that tasks were runnable but not running because other tasks ran.",
        (*CONTAINER, "qos"),
    ),
    external(
        "sched_latency_throttled_seconds_total",
        "Time that tasks were runnable but not running because their own CFS quota was used up.",
        (*CONTAINER, "qos"),
    ),
    external(
        "sched_latency_culprit_wait_seconds_total",
        "Time that the container waited while the culprit ran on the CPU.",
        (*CONTAINER, "qos", *CULPRIT),
    ),
    internal(
        "sched_latency_lost_total",
        "Observations lost, by map: matrix=parts of waits without a culprit, as all pairs were taken; cgroups=runs of "
        "a cgroup without a slot, counted together; stamps=tasks without a stamp (first sight), no time is lost.",
        ("map",),
    ),
    external(
        "mem_stall_seconds",
        "Time that one task was stalled on memory, all kinds of stall together.",
        (*CONTAINER, "qos"),
        type="histogram",
    ),
    external(
        "mem_stall_kind_seconds_total",
        "Memory stalls: kind=direct, own_limit, ancestor (reclaim), compaction, refault, swapin, throttle, other.",
        (*CONTAINER, "qos", "kind"),
    ),
    external(
        "mem_stall_culprit_share",
        "Share of the memory pressure that made the container reclaim, by allocating culprit; of the last window.",
        (*CONTAINER, "qos", *CULPRIT),
    ),
    internal("mem_stall_lost_total", "Stalls lost because a BPF map was full, by map.", ("map",)),
    external(
        "oom_kills_total",
        "Tasks of the container killed by the OOM killer: scope=limit (of a memory cgroup), node, unknown.",
        (*CONTAINER, "qos", "scope"),
    ),
    internal("oom_events_missed_total", "Kills overwritten in the kernel's ring buffer before they were read."),
    external(
        "block_io_bytes_total",
        "Bytes read, written or discarded by completed requests: direction=read, write, discard.",
        (*CONTAINER, "qos", "device", "direction"),
    ),
    external(
        "block_io_operations_total",
        "Completed requests: direction=read, write, discard, flush.",
        (*CONTAINER, "qos", "device", "direction"),
    ),
    external(
        "block_io_seconds",
        "Duration of requests: stage=queue (arrival until issued to the disk) or device (issued until completed).",
        (*CONTAINER, "qos", "device", "stage"),
        type="histogram",
    ),
    external(
        "block_io_wait_seconds_total",
        "Time from the arrival of requests until the disk started to process them.",
        (*CONTAINER, "qos"),
    ),
    external(
        "block_io_throttled_seconds_total",
        "Time that I/O was throttled by the container's own limit.",
        (*CONTAINER, "qos"),
    ),
    external(
        "block_io_culprit_wait_seconds_total",
        "Time that the container's requests waited while the disk processed the culprit's.",
        (*CONTAINER, "qos", *CULPRIT),
    ),
    internal("block_io_lost_total", "Observations lost because a BPF map was full, by map.", ("map",)),
    external(
        "net_retransmits_total",
        "Retransmitted TCP segments; of the whole pod if its containers share a network namespace.",
        (*CONTAINER, "qos"),
    ),
    external(
        "net_receive_queue_full_total",
        "Packets dropped because a socket's receive queue was full.",
        (*CONTAINER, "qos"),
    ),
    external(
        "net_softirq_seconds_total", "Time of network softirqs that interrupted the container.", (*CONTAINER, "qos")
    ),
    external(
        "net_softirq_caused_seconds_total",
        "Time of network softirqs for packets of the container or pod, on any CPU.",
        (*CONTAINER, "qos"),
    ),
    external(
        "net_softirq_culprit_seconds_total",
        "Time of network softirqs for the culprit's packets that interrupted the container.",
        (*CONTAINER, "qos", *CULPRIT),
    ),
    external(
        "net_backlog_bytes",
        "Received but unread bytes; mean over the TCP segments that arrived in the last window.",
        (*CONTAINER, "qos"),
    ),
    internal("net_stall_lost_total", "Observations lost because a BPF map was full, by map.", ("map",)),
)
