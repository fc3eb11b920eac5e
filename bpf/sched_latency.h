/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The tables that sched_latency.bpf.c and bcc/sched_latency.bcc.c write and koordlet/probes/schedlatency/tables.py
 * reads. Independent of the kernel.
 *
 * All tables are plain arrays that user space maps (BPF_F_MMAPABLE): reading costs no system call, updating no helper
 * call.
 *
 *   tags    [cgroups]               cgroup id that owns a slot, 0 = free; shared by all CPUs
 *   stats   [row][cgroups+SPECIALS] one struct slot_stats per slot; see rows.h
 *   matrix  [cpu][matrix], [shared] the culprit matrix, see culprit_matrix.h
 *   cpus    [cpu]                   the recent runners of a CPU, and what was lost
 *   stamps  [stamps]                by pid: what a task's next run needs to know of its last one
 *
 * The first index is the CPU wherever an entry is written on the hot path, and nothing there is atomic, except where
 * CPUs share rows. A pair that has no entry in the CPU's part of the matrix is charged in the shared part, atomically.
 */
#pragma once

#include "culprit_matrix.h"
#include "rows.h"

#define SCHED_LATENCY_VERSION 5

/* Slices of run time remembered per CPU: how far back a culprit can be named. More than the tasks that wait for one CPU
 * at a load of 200 on two CPUs. */
#define RING 128

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

struct slice {
	u64 start_ns;
	u32 slot;
	u32 cookie; /* of core scheduling: see short_cookie() */
};

struct cpu_state {
	struct culprit_lost matrix_lost;
	u64 slot_lost; /* runs of a cgroup that found no free slot */
	u64 unstamped; /* arrivals of tasks that were never seen to be queued: no wait counted */
	u64 backwards; /* waits dropped because the clock went back */
	u64 forgotten; /* arrivals of tasks without a stamp: first sight, or overwritten by another task's */
	u64 missed;    /* switches for which the program did not run; the next switch accounts for them */
	u32 head;      /* ring[head] is the slice that runs now */
	u32 pid;       /* the task that runs now */
	u32 sibling;   /* the other hardware thread of the core + 1; 0: there is none, or no core scheduling so far */
	u32 waiter;    /* the cookie of the task whose wait is being charged */
	struct slice ring[RING];
}; /* 2120 bytes */

#define STAMP_PREEMPTED 1 /* the task left the CPU while it was runnable */
#define STAMP_THROTTLE 2  /* throttle_base and pelt_base are set, for stamp.cpu */
#define STAMP_QUEUED 4    /* bcc: clock_ns is when it began to wait */
#define STAMP_MOVED 8     /* it was moved from stamp.cpu at clock_ns, while it waited */

struct stamp {
	u64 tag;       /* pid << 32 | low half of the start time: never another task */
	u64 run_delay; /* its waiting so far that has been counted */
	u64 clock_ns;  /* when the task left the CPU, or was woken */
	u64 throttle_base;
	u64 pelt_base;
	u32 cpu;
	u32 flags;
	u32 runs; /* its number of runs when it left the CPU or was woken */
	u32 reserved[3];
}; /* 64 bytes */

/* Fixed at load. */
struct sched_latency_config {
	struct slot_config slots;
	struct row_config rows;
	u32 matrix_mask; /* entries per CPU - 1 */
	u32 stamp_mask;  /* entries - 1 */
	u32 cpus;        /* possible CPUs */
	u32 shared;      /* entries of the matrix that all CPUs share (power of two), or 0 */
};
