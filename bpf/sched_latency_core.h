/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The part of the probe that doesn't care how the kernel is reached: slots, histograms, slices and
 * the victim x culprit matrix. sched_latency.bpf.c (CO-RE) and bcc/sched_latency.bcc.c include it
 * after defining
 *
 *   cgroup_mask(), matrix_mask()
 *   tag_at(i), stats_at(i), matrix_at(i), cpu_at(i)   a pointer into the map, or NULL
 *   claim(tag, id)                                     put id where 0 was; returns what was there
 *   OUT_OF_LINE                                        how to define a function off the common path
 *
 * Tables of one CPU are written by that CPU only, with preemption off, from the scheduler: plain
 * stores suffice. The one shared table is tags, where a slot is claimed with a compare-and-swap at
 * the first sight of a cgroup.
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
OUT_OF_LINE u32 cgroup_slot_probe(u64 id, struct cpu_state *cpu)
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
	cpu->slot_lost++;
	return SPECIAL(SLOT_OVERFLOW);
}

/* A cgroup's slot is its id's place in tags; ids are handed out in sequence, so that collisions are rare. */
static __always_inline u32 cgroup_slot(u64 id, struct cpu_state *cpu)
{
	u32 slot = (u32)id & cgroup_mask();
	u64 *tag = tag_at(slot);

	if (tag && READ_ONCE(*tag) == id)
		return slot;
	return cgroup_slot_probe(id, cpu);
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

static __always_inline struct slot_stats *stats_of(u32 cpu_id, u32 slot)
{
	return stats_at(cpu_id * (cgroup_mask() + 1 + SPECIALS) + slot);
}

static __always_inline void count_throttled(u32 cpu_id, u32 slot, u64 ns)
{
	struct slot_stats *stats = stats_of(cpu_id, slot);

	if (stats) {
		stats->throttled_ns += ns;
		stats->throttled_count++;
	}
}

static __always_inline void count_wait(u32 cpu_id, u32 slot, u64 wait, bool preempted)
{
	struct slot_stats *stats = stats_of(cpu_id, slot);
	u64 b = bucket_of(wait);

	if (!stats)
		return;
	/* b < BUCKETS as it is; the mask keeps it in the struct for verifiers that lose the bound in a spill (v6.1). */
	asm volatile("%0 &= 31" : "+r"(b));
	if (preempted) {
		stats->preempt_hist[b]++;
		stats->preempt_sum_ns += wait;
		if (wait > stats->preempt_max_ns)
			stats->preempt_max_ns = wait;
	} else {
		stats->wakeup_hist[b]++;
		stats->wakeup_sum_ns += wait;
		if (wait > stats->wakeup_max_ns)
			stats->wakeup_max_ns = wait;
	}
}

/* A new pair, or a place that another one has. */
OUT_OF_LINE int charge_probe(u32 row, struct cpu_state *cpu, u32 key, u32 hash, u64 ns)
{
	u32 mask = matrix_mask();
	u32 i;

	for (i = 0; i < PROBES; i++) {
		struct matrix_entry *entry = matrix_at(row + ((hash + i) & mask));

		if (!entry)
			break;
		if (entry->key == 0)
			entry->key = key;
		if (entry->key == key) {
			entry->count++;
			entry->wait_ns += ns;
			return 0;
		}
	}
	cpu->matrix_lost_count++;
	cpu->matrix_lost_ns += ns;
	return 0;
}

/* Charge ns of a victim's waiting to a culprit. */
static __always_inline void charge(u32 cpu_id, struct cpu_state *cpu, u32 victim, u32 culprit, u64 ns)
{
	u32 key = (victim + 1) << 16 | (culprit + 1);
	u32 hash = (key ^ key >> 13) * 0x9e3779b1u;
	u32 row = cpu_id * (matrix_mask() + 1);
	struct matrix_entry *entry;

	hash ^= hash >> 15;
	entry = matrix_at(row + (hash & matrix_mask()));
	if (entry && entry->key == key) {
		entry->count++;
		entry->wait_ns += ns;
	} else {
		charge_probe(row, cpu, key, hash, ns);
	}
}

/* The slices before the one that just ended, newest first, as far back as the wait. */
OUT_OF_LINE int charge_older(u32 cpu_id, u32 victim, u64 from, u64 end)
{
	struct cpu_state *cpu = cpu_at(cpu_id);
	u32 i;

	if (!cpu)
		return 0;
	for (i = 1; i < RING; i++) {
		struct slice *slice = &cpu->ring[(cpu->head - i) & (RING - 1)];
		u64 start = slice->start_ns;

		if (start == 0 || start >= end)
			break;
		if (start < from)
			start = from;
		charge(cpu_id, cpu, victim, slice->slot, end - start);
		end = start;
		if (end <= from)
			return 0;
	}
	charge(cpu_id, cpu, victim, SPECIAL(SLOT_OLDER), end - from);
	return 0;
}

/* Blame those who ran on this CPU from `from` to now. */
static __always_inline void charge_wait(u32 cpu_id, struct cpu_state *cpu, u32 victim, u64 from, u64 now)
{
	struct slice *last = &cpu->ring[cpu->head & (RING - 1)];
	u64 start = last->start_ns;

	if (start && start <= from) {
		charge(cpu_id, cpu, victim, last->slot, now - from);
	} else if (start && start <= now) {
		charge(cpu_id, cpu, victim, last->slot, now - start);
		charge_older(cpu_id, victim, from, start);
	} else {
		charge(cpu_id, cpu, victim, SPECIAL(SLOT_OLDER), now - from);
	}
}

/* From now on this slot runs here; it may have run before, then the slice goes on. */
static __always_inline void note_runner(struct cpu_state *cpu, u32 slot, u64 now)
{
	u32 head = cpu->head & (RING - 1);

	if (cpu->ring[head].slot == slot && cpu->ring[head].start_ns)
		return;
	head = (head + 1) & (RING - 1);
	cpu->ring[head].start_ns = now;
	cpu->ring[head].slot = slot;
	cpu->head = head;
}
