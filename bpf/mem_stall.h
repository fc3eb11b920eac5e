/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The tables that mem_stall.bpf.c writes and koordlet/probes/memstall/probe.py reads.
 *
 *   tags    [cgroups]           see slots.h
 *   stats   [cgroups+SPECIALS]  one struct stall_stats per slot
 *   limits  [limits]            open-addressed (slot, memory cgroup at its limit) -> reclaims and their time
 *   tasks   [tasks]             the stall that a task is in, by pid
 *   lost    [1]                 what found no entry
 *
 * Nothing here is per CPU: stalls are rare and long, so the cost of atomic additions does not matter.
 */
#pragma once

#include "slots.h"

#define MEM_STALL_VERSION 1

enum stall_kind {
	STALL_DIRECT = 0,     /* reclaim because the node (or a NUMA node) is short of memory */
	STALL_OWN_LIMIT = 1,  /* reclaim because the task's own memory cgroup is at its limit, or over memory.high */
	STALL_ANCESTOR = 2,   /* the same for a cgroup above it */
	STALL_COMPACTION = 3, /* direct compaction for an allocation of several pages */
	STALL_REFAULT = 4,    /* waiting for an evicted page of the working set */
	STALL_SWAPIN = 5,     /* the same, for a page in swap */
	STALL_THROTTLE = 6,   /* put to sleep because memory.high is exceeded */
	STALL_OTHER = 7,      /* any other sleep that the kernel marks as a memory stall */
	STALLS = 8,
};

struct stall_kind_stats {
	u64 hist[BUCKETS];
	u64 sum_ns;
	u64 max_ns;
};

struct stall_stats {
	struct stall_kind_stats kind[STALLS];
	u64 wakeups;      /* of kswapd: allocations that found the node below its low watermark */
	u64 direct_pages; /* reclaimed by STALL_DIRECT */
	u64 limit_pages;  /* reclaimed by STALL_OWN_LIMIT and STALL_ANCESTOR */
	u64 reserved[5];
};

/* key = id of the memory cgroup at its limit << 16 | slot + 1; the id is 0 for the node. 0 = free. */
struct limit_entry {
	u64 key;
	u64 count;
	u64 sum_ns;
};

struct stalled_task {
	u64 tag; /* pid << 32 | low half of the start time; 0 = free */
	u64 start_ns;
	u64 limit;
	u32 kind;
	u32 reserved;
};

struct stall_lost {
	u64 slots;  /* stalls of a cgroup that found no slot; counted as SLOT_OVERFLOW */
	u64 limits; /* reclaims that found no entry in limits; their time is in stats nevertheless */
	u64 tasks;  /* stalls whose beginning another task overwrote: not counted */
	u64 reserved;
};

/* Kernel functions whose frame on the stack shows the kind of a sleep; [begin, end), 0 = unknown. */
enum stall_function {
	IN_SWAPIN = 0,
	IN_SHMEM_SWAPIN = 1,
	IN_THROTTLE = 2,
	STALL_FUNCTIONS = 4,
};

struct address_range {
	u64 begin;
	u64 end;
};

/* Fixed at load. */
struct stall_config {
	struct slot_config slots;
	u32 limit_mask; /* entries of limits - 1 */
	u32 task_mask;  /* entries of tasks - 1 */
	struct address_range functions[STALL_FUNCTIONS];
};
