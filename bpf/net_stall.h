/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The memory layout that net_stall.bpf.c writes and koordlet/probes/net_stall.py reads.
 *
 *   tags    [owners]                who owns sockets, is interrupted, or receives: see owners.h
 *   stats   [cpu][owners+SPECIALS]  one struct net_stats an owner
 *   matrix  [cpu][matrix]           (interrupted, to blame) -> softirq time, see blame.bpf.h
 *   cpus    [cpu]                   the softirq that runs now, and what was lost
 */
#pragma once

#define NET_STALL_LAYOUT 2

struct net_stats {
	u64 softirq_hist[BUCKETS]; /* how long each interruption took */
	u64 softirq_ns; /* its tasks were interrupted for this long, in NET_RX and NET_TX */
	u64 softirq_count;
	u64 caused_ns; /* softirqs worked this long on packets for it, whoever was interrupted */
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
	u64 start_ns; /* 0 = no softirq of ours runs */
	u64 mark_ns; /* since when it works for the owner */
	u64 owner; /* tag, 0 = nobody's packet yet */
	u32 owner_slot;
	u32 victim;
	u32 own; /* the victim raised it */
	u32 raised; /* RAISED_*, of the next one */
	u64 reserved[2];
};

/* Fixed at load. */
struct net_config {
	u32 cgroup_v2;
	u32 cgroup_mask; /* owners - 1 */
	u32 matrix_mask;
	s32 preempt_count; /* from a CPU's run queue to what holds its preemption count; 0 = unknown */
};
