/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * Buckets and slots, for programs that define before including this
 *
 *   cgroup_mask()      slots for cgroups - 1
 *   tag_at(i)          a pointer into tags, or NULL
 *   claim(tag, id)     put id where 0 was; returns what was there
 *   OUT_OF_LINE        how to define a function off the common path
 *
 * CO-RE programs include slots.bpf.h, which does that.
 */
#pragma once

#define SPECIAL(which) (cgroup_mask() + 1 + (which))

static __always_inline u32 bucket_of(u64 ns)
{
	u64 units = ns >> FIRST_BUCKET_BITS;
	u32 v, log, step;

	if (units == 0)
		return 0;
	if (units >> (BUCKETS - 2))
		return BUCKETS - 1;
	v = units;
	log = (v > 0xffff) << 4;
	v >>= log;
	step = (v > 0xff) << 3;
	v >>= step;
	log |= step;
	step = (v > 0xf) << 2;
	v >>= step;
	log |= step;
	step = (v > 0x3) << 1;
	v >>= step;
	log |= step;
	log |= v >> 1;
	return log + 1;
}

/* The first sight of a cgroup, or a place that another one has. */
OUT_OF_LINE u32 cgroup_slot_probe(u64 id, u64 *lost)
{
	u32 mask = cgroup_mask();
	u32 i;

	for (i = 0; i < PROBES; i++) {
		u32 slot = ((u32)id + i) & mask;
		u64 *tag = tag_at(slot);
		u64 seen;

		if (!tag)
			break;
		seen = READ_ONCE(*tag);
		if (seen == id)
			return slot;
		if (seen == 0) {
			seen = claim(tag, id);
			if (seen == 0 || seen == id)
				return slot;
		}
	}
	if (lost)
		(*lost)++;
	return SPECIAL(SLOT_OVERFLOW);
}

/* A cgroup's slot is its id's place in tags; ids are handed out in sequence, so that collisions are rare. */
static __always_inline u32 cgroup_slot(u64 id, u64 *lost)
{
	u32 slot = (u32)id & cgroup_mask();
	u64 *tag = tag_at(slot);

	if (tag && READ_ONCE(*tag) == id)
		return slot;
	return cgroup_slot_probe(id, lost);
}

/* comm as a little-endian word, as much of it as tells the kinds of kernel threads apart. */
#define COMM4(a, b, c, d) ((u32)(a) | (u32)(b) << 8 | (u32)(c) << 16 | (u32)(d) << 24)

static __always_inline u32 kthread_slot(u32 comm)
{
	switch (comm) {
	case COMM4('k', 's', 'o', 'f'):
		return SPECIAL(SLOT_KSOFTIRQD);
	case COMM4('k', 'w', 'o', 'r'):
		return SPECIAL(SLOT_KWORKER);
	case COMM4('m', 'i', 'g', 'r'):
	case COMM4('s', 't', 'o', 'p'):
		return SPECIAL(SLOT_MIGRATION);
	case COMM4('r', 'c', 'u', '_'):
	case COMM4('r', 'c', 'u', 'o'):
	case COMM4('r', 'c', 'u', 'c'):
		return SPECIAL(SLOT_RCU);
	case COMM4('i', 'r', 'q', '/'):
		return SPECIAL(SLOT_IRQ);
	case COMM4('k', 's', 'w', 'a'):
	case COMM4('k', 'c', 'o', 'm'):
		return SPECIAL(SLOT_RECLAIM);
	}
	return SPECIAL(SLOT_KTHREAD);
}
