/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * What all probes of this directory that count by cgroup share: slots and histograms. Nothing here depends on the
 * kernel; koordlet/probes/schedlatency/layout.py says the same and a test holds the two together.
 *
 * A slot is a row of a table. tags[slot] is the id of the cgroup that owns it, 0 = free; behind the cgroups' own come
 * SPECIALS rows for what belongs to no cgroup. Ids are those of the default hierarchy on v2 and of the v1 cpu
 * hierarchy otherwise, whatever the resource: all hierarchies of a container have the same path.
 */
#pragma once

/* Bucket 0 holds waits below 2^10 ns, bucket b holds [2^(9+b), 2^(10+b)) ns, the last is open (>= 17 s). */
#define BUCKETS 26
#define FIRST_BUCKET_BITS 10

/* Linear probes in the open-addressed tables before an entry counts as lost. */
#define PROBES 8

/* Slots behind the cgroups' own: who belongs to no container. The last two are sched_latency's alone. */
enum special_slot {
	SLOT_IDLE = 0,      /* the CPU was idle: wake-up and idle-exit time */
	SLOT_KSOFTIRQD = 1,
	SLOT_KWORKER = 2,
	SLOT_MIGRATION = 3, /* stopper and migration threads */
	SLOT_RCU = 4,
	SLOT_IRQ = 5,       /* threaded interrupt handlers */
	SLOT_RECLAIM = 6,   /* kswapd, kcompactd */
	SLOT_KTHREAD = 7,   /* any other kernel thread */
	SLOT_OVERFLOW = 8,  /* a cgroup that got no slot */
	SLOT_OLDER = 9,     /* culprit only: the wait began before the remembered slices */
	SLOT_MOVED = 10,    /* culprit only: waited on another CPU before being moved here */
	SPECIALS = 16,
};
