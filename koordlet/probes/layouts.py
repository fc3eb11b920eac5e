"""The layout of the probes' tables, generated from bpf/*.h by scripts/gen_layouts.py: do not edit.

A structure is a numpy type, an enumeration a dictionary of its members' numbers, a `#define` a number.
"""

from typing import Any, Final

import numpy as np

# bpf/histogram.h
BUCKETS: Final = 26
FIRST_BUCKET_BITS: Final = 10

# bpf/hash_slot.h
PROBES: Final = 8

# bpf/slots.h
SPECIAL_SLOT: Final = {
    "SLOT_IDLE": 0,
    "SLOT_KSOFTIRQD": 1,
    "SLOT_KWORKER": 2,
    "SLOT_MIGRATION": 3,
    "SLOT_RCU": 4,
    "SLOT_IRQ": 5,
    "SLOT_RECLAIM": 6,
    "SLOT_KTHREAD": 7,
    "SLOT_OVERFLOW": 8,
    "SLOT_OLDER": 9,
    "SLOT_MOVED": 10,
    "SPECIALS": 16,
}
SLOT_CONFIG: Final[np.dtype[Any]] = np.dtype([("cgroup_v2", "u4"), ("cgroup_mask", "u4")])

# bpf/owners.h
TAG_SPACE_SHIFT: Final = 60
OWNER_SPACE: Final = {
    "SPACE_TASK": 0,
    "SPACE_BLKIO": 1,
    "SPACE_MEMORY": 2,
    "SPACE_SPECIAL": 3,
    "SPACE_UNIFIED": 4,
    "SPACE_NETNS": 5,
}

# bpf/culprit_matrix.h
CULPRIT_ENTRY: Final[np.dtype[Any]] = np.dtype([("key", "u8"), ("count", "u8"), ("ns", "u8")])
CULPRIT_LOST: Final[np.dtype[Any]] = np.dtype([("count", "u8"), ("ns", "u8")])

# bpf/rows.h
ROW_CONFIG: Final[np.dtype[Any]] = np.dtype([("rows", "u4"), ("shared", "u4")])

# bpf/sched_latency.h
SCHED_LATENCY_VERSION: Final = 5
RING: Final = 128
SLOT_STATS: Final[np.dtype[Any]] = np.dtype(
    [
        ("wakeup_hist", "u8", 26),
        ("preempt_hist", "u8", 26),
        ("wakeup_sum_ns", "u8"),
        ("preempt_sum_ns", "u8"),
        ("wakeup_max_ns", "u8"),
        ("preempt_max_ns", "u8"),
        ("throttled_ns", "u8"),
        ("throttled_count", "u8"),
        ("reserved", "u8", 6),
    ]
)
SLICE: Final[np.dtype[Any]] = np.dtype([("start_ns", "u8"), ("slot", "u4"), ("cookie", "u4")])
CPU_STATE: Final[np.dtype[Any]] = np.dtype(
    [
        ("matrix_lost", CULPRIT_LOST),
        ("slot_lost", "u8"),
        ("unstamped", "u8"),
        ("backwards", "u8"),
        ("forgotten", "u8"),
        ("missed", "u8"),
        ("head", "u4"),
        ("pid", "u4"),
        ("sibling", "u4"),
        ("waiter", "u4"),
        ("ring", SLICE, 128),
    ]
)
STAMP_PREEMPTED: Final = 1
STAMP_THROTTLE: Final = 2
STAMP_QUEUED: Final = 4
STAMP_MOVED: Final = 8
STAMP: Final[np.dtype[Any]] = np.dtype(
    [
        ("tag", "u8"),
        ("run_delay", "u8"),
        ("clock_ns", "u8"),
        ("throttle_base", "u8"),
        ("pelt_base", "u8"),
        ("cpu", "u4"),
        ("flags", "u4"),
        ("runs", "u4"),
        ("reserved", "u4", 3),
    ]
)
SCHED_LATENCY_CONFIG: Final[np.dtype[Any]] = np.dtype(
    [
        ("slots", SLOT_CONFIG),
        ("rows", ROW_CONFIG),
        ("matrix_mask", "u4"),
        ("stamp_mask", "u4"),
        ("cpus", "u4"),
        ("shared", "u4"),
    ]
)

# bpf/block_io.h
BLOCK_IO_VERSION: Final = 4
DEVICES: Final = 128
IO_RING: Final = 32
IO_DIRECTION: Final = {"IO_READ": 0, "IO_WRITE": 1, "IO_DISCARD": 2, "IO_FLUSH": 3, "IO_DIRECTIONS": 4}
IO_HISTS: Final = 2
TAG_DEVICE_SHIFT: Final = 48
IO_STATS: Final[np.dtype[Any]] = np.dtype(
    [
        ("queue_hist", "u8", (2, 26)),
        ("device_hist", "u8", (2, 26)),
        ("ops", "u8", 4),
        ("bytes", "u8", 4),
        ("queue_ns", "u8", 4),
        ("device_ns", "u8", 4),
        ("ahead_ns", "u8"),
        ("throttled_ns", "u8"),
        ("throttled_count", "u8"),
        ("reserved", "u8", 5),
    ]
)
IO_SLICE: Final[np.dtype[Any]] = np.dtype([("start_ns", "u8"), ("end_ns", "u8"), ("slot", "u4"), ("reserved", "u4")])
IO_DEVICE: Final[np.dtype[Any]] = np.dtype(
    [
        ("tag", "u8"),
        ("last_ns", "u8"),
        ("flush_owner", "u8"),
        ("head", "u4"),
        ("reserved", "u4"),
        ("ring", IO_SLICE, 32),
    ]
)
IO_BIO: Final[np.dtype[Any]] = np.dtype([("bio", "u8"), ("arrival_ns", "u8"), ("owner", "u8")])
IO_REQUEST: Final[np.dtype[Any]] = np.dtype(
    [("request", "u8"), ("bio", "u8"), ("arrival_ns", "u8"), ("issue_ns", "u8"), ("slot", "u4"), ("device", "u4")]
)
IO_CPU: Final[np.dtype[Any]] = np.dtype(
    [("slot_lost", "u8"), ("device_lost", "u8"), ("request_lost", "u8"), ("unstamped", "u8")]
)
IO_CONFIG: Final[np.dtype[Any]] = np.dtype(
    [
        ("slots", SLOT_CONFIG),
        ("rows", ROW_CONFIG),
        ("matrix_mask", "u4"),
        ("bio_mask", "u4"),
        ("request_mask", "u4"),
        ("reserved", "u4"),
    ]
)

# bpf/net_stall.h
NET_STALL_VERSION: Final = 4
NET_STATS: Final[np.dtype[Any]] = np.dtype(
    [
        ("softirq_hist", "u8", 26),
        ("softirq_ns", "u8"),
        ("softirq_count", "u8"),
        ("caused_ns", "u8"),
        ("retransmits", "u8"),
        ("full", "u8"),
        ("backlog_sum", "u8"),
        ("backlog_count", "u8"),
        ("backlog_max", "u8"),
        ("reserved", "u8", 6),
    ]
)
RAISED_BY_TASK: Final = 1
RAISED_ELSEWHERE: Final = 2
NET_CPU: Final[np.dtype[Any]] = np.dtype(
    [
        ("slot_lost", "u8"),
        ("start_ns", "u8"),
        ("mark_ns", "u8"),
        ("owner", "u8"),
        ("owner_slot", "u4"),
        ("victim", "u4"),
        ("raised_by_victim", "u4"),
        ("raised", "u4"),
        ("reserved", "u8", 2),
    ]
)
NET_CONFIG: Final[np.dtype[Any]] = np.dtype(
    [("slots", SLOT_CONFIG), ("rows", ROW_CONFIG), ("matrix_mask", "u4"), ("preempt_count", "i4")]
)

# bpf/mem_stall.h
MEM_STALL_VERSION: Final = 1
STALL_KIND: Final = {
    "STALL_DIRECT": 0,
    "STALL_OWN_LIMIT": 1,
    "STALL_ANCESTOR": 2,
    "STALL_COMPACTION": 3,
    "STALL_REFAULT": 4,
    "STALL_SWAPIN": 5,
    "STALL_THROTTLE": 6,
    "STALL_OTHER": 7,
    "STALLS": 8,
}
STALL_KIND_STATS: Final[np.dtype[Any]] = np.dtype([("hist", "u8", 26), ("sum_ns", "u8"), ("max_ns", "u8")])
STALL_STATS: Final[np.dtype[Any]] = np.dtype(
    [
        ("kind", STALL_KIND_STATS, 8),
        ("wakeups", "u8"),
        ("direct_pages", "u8"),
        ("limit_pages", "u8"),
        ("reserved", "u8", 5),
    ]
)
LIMIT_ENTRY: Final[np.dtype[Any]] = np.dtype([("key", "u8"), ("count", "u8"), ("sum_ns", "u8")])
STALLED_TASK: Final[np.dtype[Any]] = np.dtype(
    [("tag", "u8"), ("start_ns", "u8"), ("limit", "u8"), ("kind", "u4"), ("reserved", "u4")]
)
STALL_LOST: Final[np.dtype[Any]] = np.dtype([("slots", "u8"), ("limits", "u8"), ("tasks", "u8"), ("reserved", "u8")])
STALL_FUNCTION: Final = {"IN_SWAPIN": 0, "IN_SHMEM_SWAPIN": 1, "IN_THROTTLE": 2, "STALL_FUNCTIONS": 4}
ADDRESS_RANGE: Final[np.dtype[Any]] = np.dtype([("begin", "u8"), ("end", "u8")])
STALL_CONFIG: Final[np.dtype[Any]] = np.dtype(
    [("slots", SLOT_CONFIG), ("limit_mask", "u4"), ("task_mask", "u4"), ("functions", ADDRESS_RANGE, 4)]
)

# bpf/oom.h
OOM_VERSION: Final = 1
OOM_EVENTS: Final = 64
OOM_PENDING: Final = 64
OOM_NAME_SIZE: Final = 72
OOM_COMM_SIZE: Final = 16
OOM_SCOPE: Final = {"OOM_UNKNOWN": 0, "OOM_LIMIT": 1, "OOM_NODE": 2}
OOM_COUNTS: Final[np.dtype[Any]] = np.dtype(
    [("killed_limit", "u8"), ("killed_node", "u8"), ("killed_unknown", "u8"), ("triggered", "u8")]
)
OOM_EVENT: Final[np.dtype[Any]] = np.dtype(
    [
        ("number", "u8"),
        ("boot_ns", "u8"),
        ("victim_cgroup", "u8"),
        ("trigger_cgroup", "u8"),
        ("limit_cgroup", "u8"),
        ("limit_pages", "u8"),
        ("usage_pages", "u8"),
        ("anon_pages", "u8"),
        ("file_pages", "u8"),
        ("shmem_pages", "u8"),
        ("total_vm_pages", "u8"),
        ("victim_pid", "u4"),
        ("victim_thread", "u4"),
        ("trigger_pid", "u4"),
        ("scope", "u4"),
        ("score_adj", "u4"),
        ("reserved", "u4"),
        ("victim_comm", "u1", 16),
        ("trigger_comm", "u1", 16),
        ("victim_name", "u1", 72),
        ("victim_parent", "u1", 72),
        ("limit_name", "u1", 72),
        ("limit_parent", "u1", 72),
    ]
)
LAST_RECLAIM: Final[np.dtype[Any]] = np.dtype([("tag", "u8"), ("boot_ns", "u8"), ("memcg", "u8"), ("id", "u8")])
OOM_CONFIG: Final[np.dtype[Any]] = np.dtype([("slots", SLOT_CONFIG), ("task_mask", "u4"), ("reserved", "u4")])

# bpf/cgroup_stats.h
CGROUP_HAS: Final = {"CGROUP_HAS_CPU": 1, "CGROUP_HAS_USAGE": 2, "CGROUP_HAS_MEMORY": 4, "CGROUP_HAS_PSI": 8}
CGROUP_STATS_ROW: Final[np.dtype[Any]] = np.dtype(
    [
        ("id", "u8"),
        ("has", "u8"),
        ("cpu_usage_ns", "u8"),
        ("nr_periods", "u8"),
        ("nr_throttled", "u8"),
        ("throttled_ns", "u8"),
        ("memory_usage", "i8"),
        ("cache", "i8"),
        ("rss", "i8"),
        ("inactive_anon", "i8"),
        ("active_anon", "i8"),
        ("inactive_file", "i8"),
        ("active_file", "i8"),
        ("unevictable", "i8"),
        ("pressure", "u8", 6),
    ]
)
CGROUP_STATS_CONTROL: Final[np.dtype[Any]] = np.dtype([("rows", "u8"), ("lost", "u8")])
CGROUP_STATS_CONFIG: Final[np.dtype[Any]] = np.dtype(
    [("cpus", "u4"), ("flush_css", "u1"), ("unified", "u1"), ("reserved", "u1", 2)]
)
