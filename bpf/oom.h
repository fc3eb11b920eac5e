/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The tables that oom.bpf.c writes and koordlet/probes/oom.py reads.
 *
 *   tags     [cgroups]           see slots.h
 *   counts   [cgroups+SPECIALS]  one struct oom_counts per slot
 *   events   [OOM_EVENTS]        the last kills, event number n in events[n % OOM_EVENTS]
 *   head     [1]                 the number of events so far
 *   reclaims [tasks]             by pid: the memory cgroup that a task last reclaimed from
 *   pending  [OOM_PENDING]       by pid of the killing task: the victim it has just chosen (before v6.9 only)
 */
#pragma once

#include "slots.h"

#define OOM_VERSION 1
#define OOM_EVENTS 64
#define OOM_PENDING 64
#define OOM_NAME_SIZE 72
#define OOM_COMM_SIZE 16

enum oom_scope {
	OOM_UNKNOWN = 0, /* not known: the kill was requested by hand (SysRq) */
	OOM_LIMIT = 1,   /* a memory cgroup was at its limit */
	OOM_NODE = 2,    /* the node, or the NUMA nodes that the task may use, had no memory left */
};

struct oom_counts {
	u64 killed_limit;
	u64 killed_node;
	u64 killed_unknown;
	u64 triggered; /* kills of any task for an allocation of this cgroup's tasks */
};

struct oom_event {
	u64 number;  /* 1, 2, ...; 0 while the rest is being written */
	u64 boot_ns; /* CLOCK_BOOTTIME */
	u64 victim_cgroup;
	u64 trigger_cgroup;
	u64 limit_cgroup; /* of the hierarchy with the memory controller; 0 unless scope is OOM_LIMIT */
	u64 limit_pages;
	u64 usage_pages;
	u64 anon_pages;
	u64 file_pages;
	u64 shmem_pages;
	u64 total_vm_pages;
	u32 victim_pid;
	u32 victim_thread;
	u32 trigger_pid;
	u32 scope;
	u32 score_adj; /* two's complement */
	u32 reserved;
	u8 victim_comm[OOM_COMM_SIZE];
	u8 trigger_comm[OOM_COMM_SIZE];
	u8 victim_name[OOM_NAME_SIZE];   /* last part of the cgroup's path ... */
	u8 victim_parent[OOM_NAME_SIZE]; /* ... and the one before */
	u8 limit_name[OOM_NAME_SIZE];
	u8 limit_parent[OOM_NAME_SIZE];
}; /* 432 bytes */

struct last_reclaim {
	u64 tag; /* pid << 32 | low half of the start time; 0 = free */
	u64 boot_ns;
	u64 memcg; /* address of the memory cgroup, 0 = the node */
	u64 id;
};

/* Fixed at load. */
struct oom_config {
	struct slot_config slots;
	u32 task_mask; /* entries of reclaims - 1 */
	u32 reserved;
};
