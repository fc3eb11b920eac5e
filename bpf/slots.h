/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * Slots: the row numbers of all probes that count by cgroup. Independent of the kernel.
 *
 * tags[slot] is the id of the cgroup that owns the slot, 0 = free. Behind the slots of the cgroups come SPECIALS rows
 * for runners that belong to no cgroup. Ids are those of the default hierarchy on v2, and of the v1 cpu hierarchy
 * otherwise, whatever the resource: a container has the same path in all hierarchies.
 */
#pragma once

#include "hash_slot.h"
#include "histogram.h"

/* Off the common path, so that the common path stays short. bcc inlines every function (bcc/load.py defines BCC). */
#ifdef BCC
#define OUT_OF_LINE static __always_inline
#else
#define OUT_OF_LINE static __noinline
#endif

/* Slots behind those of the cgroups. The last two occur in sched_latency and as culprits only. */
enum special_slot {
	SLOT_IDLE = 0,      /* the CPU was idle: time of wake-up and of leaving idle */
	SLOT_KSOFTIRQD = 1,
	SLOT_KWORKER = 2,
	SLOT_MIGRATION = 3, /* stopper and migration threads */
	SLOT_RCU = 4,
	SLOT_IRQ = 5,       /* threaded interrupt handlers */
	SLOT_RECLAIM = 6,   /* kswapd, kcompactd */
	SLOT_KTHREAD = 7,   /* any other kernel thread */
	SLOT_OVERFLOW = 8,  /* a cgroup that got no slot */
	SLOT_OLDER = 9,     /* culprit only: the wait began before the remembered slices */
	SLOT_MOVED = 10,    /* culprit only: the task waited on another CPU before it was moved here */
	SPECIALS = 16,
};

/* Fixed at load; the first member of every probe's configuration. */
struct slot_config {
	u32 cgroup_v2;   /* 1: ids of the default hierarchy; 0: of the v1 cpu hierarchy */
	u32 cgroup_mask; /* slots for cgroups - 1 (power of two, at most 16384) */
};

/* A pointer to tags[i], or NULL. Each program defines it beside its table. */
static u64 *tag_at(u32 i);

static __always_inline u32 special_slot(u32 cgroup_mask, u32 which)
{
	return cgroup_mask + 1 + which;
}

/* The first sight of a cgroup, or an index that another cgroup holds. */
OUT_OF_LINE u32 claim_tag(u32 cgroup_mask, u64 id, u64 *lost)
{
	u32 slot = claim_slot(tag_at, 0, (u32)id, cgroup_mask, PROBES, id);

	if (slot != NO_SLOT)
		return slot;
	if (lost)
		(*lost)++;
	return special_slot(cgroup_mask, SLOT_OVERFLOW);
}

/*
 * The slot of a cgroup: its id modulo the table's size. Ids are handed out in sequence, so collisions are rare. *lost
 * (may be NULL) counts look-ups that found no free slot.
 */
static __always_inline u32 cgroup_slot(u32 cgroup_mask, u64 id, u64 *lost)
{
	u32 slot = (u32)id & cgroup_mask;
	u64 *tag = tag_at(slot);

	if (tag && READ_ONCE(*tag) == id)
		return slot;
	return claim_tag(cgroup_mask, id, lost);
}

/* The first four characters of a thread's name as a little-endian word: enough to distinguish kernel threads. */
#define COMM4(a, b, c, d) ((u32)(a) | (u32)(b) << 8 | (u32)(c) << 16 | (u32)(d) << 24)

static __always_inline u32 kthread_kind(u32 comm)
{
	switch (comm) {
	case COMM4('k', 's', 'o', 'f'):
		return SLOT_KSOFTIRQD;
	case COMM4('k', 'w', 'o', 'r'):
		return SLOT_KWORKER;
	case COMM4('m', 'i', 'g', 'r'):
	case COMM4('s', 't', 'o', 'p'):
		return SLOT_MIGRATION;
	case COMM4('r', 'c', 'u', '_'):
	case COMM4('r', 'c', 'u', 'o'):
	case COMM4('r', 'c', 'u', 'c'):
		return SLOT_RCU;
	case COMM4('i', 'r', 'q', '/'):
		return SLOT_IRQ;
	case COMM4('k', 's', 'w', 'a'):
	case COMM4('k', 'c', 'o', 'm'):
		return SLOT_RECLAIM;
	}
	return SLOT_KTHREAD;
}
