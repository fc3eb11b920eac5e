/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The memory layout that sched_latency.bpf.c and bcc/sched_latency.bcc.c write and
 * koordlet/probes/schedlatency/layout.py reads. Nothing here depends on the kernel; a test holds the three together.
 *
 * All tables are plain arrays that user space maps (BPF_F_MMAPABLE), so that reading costs no system
 * call and updating costs no helper call:
 *
 *   tags    [cgroups]              cgroup id that owns a slot, 0 = free; shared by all CPUs
 *   stats   [cpu][cgroups+SPECIALS] one struct slot_stats per slot
 *   matrix  [cpu][matrix]          open-addressed (victim slot, culprit slot) -> wait
 *   cpus    [cpu]                  who ran here lately, and what was lost
 *   stamps  [stamps]               what a task's next run needs from its last, by pid
 *
 * The first index is the CPU wherever a row is written on the hot path: nothing there is atomic.
 */
#pragma once

#include "slots.h"

#define LAYOUT_VERSION 1

/* Slices of run time remembered per CPU: how far back a culprit can be named. */
#define RING 32

struct slot_stats {
	u64 wakeup_hist[BUCKETS];
	u64 preempt_hist[BUCKETS];
	u64 wakeup_sum_ns;
	u64 preempt_sum_ns;
	u64 wakeup_max_ns;
	u64 preempt_max_ns;
	u64 throttled_ns;
	u64 throttled_count;
	u64 reserved[6];
}; /* 512 bytes */

struct matrix_entry {
	u32 key; /* (victim slot + 1) << 16 | (culprit slot + 1); 0 = free */
	u32 reserved;
	u64 count; /* waits in which this culprit held the CPU for some time */
	u64 wait_ns;
}; /* 24 bytes */

struct slice {
	u64 start_ns;
	u32 slot;
	u32 reserved;
};

struct cpu_state {
	u64 matrix_lost_count; /* charges that found no free entry ... */
	u64 matrix_lost_ns;    /* ... and how much waiting they were worth */
	u64 slot_lost;         /* runs of a cgroup that found no free slot */
	u64 unstamped;         /* arrivals that nobody had queued: no wait counted */
	u64 backwards;         /* waits dropped because the clock ran back */
	u64 forgotten;         /* arrivals of tasks without a stamp: seen first, or overwritten by another */
	u64 missed;            /* switches nobody told us of, made up for at the next one */
	u32 head; /* ring[head] is the slice that runs now */
	u32 pid;  /* who runs now */
	struct slice ring[RING];
}; /* 576 bytes */

#define STAMP_PREEMPTED 1 /* left the CPU while it still wanted it */
#define STAMP_THROTTLE 2  /* throttle_base and pelt_base are set, for stamp.cpu */
#define STAMP_QUEUED 4    /* bcc: clock_ns is when it began to wait */

struct stamp {
	u64 tag;       /* pid << 32 | low half of the start time: never another task */
	u64 run_delay; /* its waiting so far that has been counted */
	u64 clock_ns;  /* when the task left the CPU, or was woken */
	u64 throttle_base;
	u64 pelt_base;
	u32 cpu;
	u32 flags;
	u32 runs; /* when it left the CPU or was woken */
	u32 reserved[3];
}; /* 64 bytes */

/* Fixed at load. */
struct probe_config {
	u32 cgroup_v2;    /* 1: ids of the default hierarchy; 0: of the v1 cpu hierarchy */
	u32 cgroup_mask;  /* slots for cgroups - 1 (power of two, at most 16384) */
	u32 matrix_mask;  /* entries per CPU - 1 */
	u32 stamp_mask;   /* entries - 1 */
	u32 cpus;         /* possible CPUs */
	u32 reserved[3];
};
