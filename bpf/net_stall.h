/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The tables that net_stall.bpf.c writes and koordlet/probes/netstall/probe.py reads.
 *
 *   tags        [owners]               owners of sockets, interrupted tasks and receivers: see owners.h
 *   stats       [row][owners+SPECIALS] one struct net_stats per owner; see rows.h
 *   matrix      [cpu][matrix]          the culprit matrix of softirq time, see culprit_matrix.h
 *   matrix_lost [cpu]                  charges that found no entry in matrix
 *   cpus        [cpu]                  the softirq that runs now, and what was lost
 */
#pragma once

#include "culprit_matrix.h"
#include "rows.h"

#define NET_STALL_VERSION 4

struct net_stats {
	u64 softirq_hist[BUCKETS]; /* how long each interruption took */
	u64 softirq_ns; /* how long NET_RX and NET_TX interrupted its tasks */
	u64 softirq_count;
	u64 caused_ns; /* how long softirqs worked on packets for it, whatever task was interrupted */
	u64 retransmits; /* segments sent again, SYN-ACKs too: RetransSegs */
	u64 full; /* packets dropped because a socket's receive queue was full */
	u64 backlog_sum; /* bytes received and not yet read, added up over arriving TCP segments ... */
	u64 backlog_count; /* ... and how many these were */
	u64 backlog_max;
	u64 reserved[6];
}; /* 320 bytes */

#define RAISED_BY_TASK 1
#define RAISED_ELSEWHERE 2 /* in an interrupt or a softirq */

struct net_cpu {
	u64 slot_lost;
	u64 start_ns; /* 0 = no network softirq runs */
	u64 mark_ns;  /* since when it works for the owner */
	u64 owner;    /* tag of the packet's receiver, 0 = no packet yet */
	u32 owner_slot;
	u32 victim;
	u32 raised_by_victim;
	u32 raised; /* RAISED_* bits of the next softirq */
	u64 reserved[2];
};

/* Fixed at load. */
struct net_config {
	struct slot_config slots; /* cgroup_mask: owners - 1 */
	struct row_config rows;
	u32 matrix_mask;          /* entries per CPU - 1 */
	s32 preempt_count;        /* bytes from a CPU's run queue to its preemption count; 0 = not per CPU */
};
