/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The part of the probe that doesn't care how the kernel is reached: slots, histograms, slices and
 * the victim x culprit matrix. sched_latency.bpf.c (CO-RE) and bcc/sched_latency.bcc.c include it
 * after defining
 *
 *   what slots_core.h asks for
 *   matrix_mask()
 *   stats_at(i), matrix_at(i), cpu_at(i)   a pointer into the map, or NULL
 *
 * Tables of one CPU are written by that CPU only, with preemption off, from the scheduler: plain
 * stores suffice. The one shared table is tags, where a slot is claimed with a compare-and-swap at
 * the first sight of a cgroup.
 */
#pragma once

#include "slots_core.h"

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
