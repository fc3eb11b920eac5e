/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The part of sched_latency that is the same for CO-RE (sched_latency.bpf.c) and bcc (bcc/sched_latency.bcc.c):
 * counting waits, splitting a wait among the slices of a CPU, and remembering the slices.
 *
 * The tables of a CPU are written by that CPU only, with preemption off, from the scheduler: plain stores suffice.
 * Shared are tags, where a slot is claimed with a compare-and-swap at the first sight of a cgroup, and rows of stats
 * on machines with many CPUs.
 */
#pragma once

#include "sched_latency.h"

/* A function that the verifier checks once instead of at every call. bcc inlines every function, and its loops grow. */
#ifdef BCC
#define GLOBAL static __always_inline
#define LOOK_BACK 32
#else
#define GLOBAL __noinline
#define LOOK_BACK RING
#endif

/* Whether CPUs share rows of stats. Each program defines it. */
static bool shared_rows(void);

static __always_inline void count_throttled(struct slot_stats *stats, u64 ns)
{
	if (stats) {
		COUNT(shared_rows(), stats->throttled_ns, ns);
		COUNT(shared_rows(), stats->throttled_count, 1);
	}
}

static __always_inline void count_wait(struct slot_stats *stats, u64 wait, bool preempted)
{
	u64 bucket;

	if (!stats)
		return;
	bucket = bucket_of(wait);
	if (preempted) {
		COUNT(shared_rows(), stats->preempt_hist[bucket], 1);
		COUNT(shared_rows(), stats->preempt_sum_ns, wait);
		if (wait > stats->preempt_max_ns)
			stats->preempt_max_ns = wait;
	} else {
		COUNT(shared_rows(), stats->wakeup_hist[bucket], 1);
		COUNT(shared_rows(), stats->wakeup_sum_ns, wait);
		if (wait > stats->wakeup_max_ns)
			stats->wakeup_max_ns = wait;
	}
}

/* Slots for cgroups - 1, and entries per CPU of the matrix - 1. Each program defines them. */
static u32 cgroup_mask(void);
static u32 matrix_mask(void);

static __always_inline void charge_slice(u32 cpu_id, struct cpu_state *cpu, u32 victim, u32 culprit, u64 ns)
{
	u32 mask = matrix_mask();

	charge(cpu_id * (mask + 1), mask, &cpu->matrix_lost, victim, culprit, ns);
}

static struct cpu_state *cpu_at(u32 i);

/* charge_slice for loops: inlined there, it exceeds what the verifier of 6.1 processes. */
GLOBAL int charge_part(u32 cpu_id, u32 victim, u32 culprit, u64 ns)
{
	struct cpu_state *cpu = cpu_at(cpu_id);

	if (cpu)
		charge_slice(cpu_id, cpu, victim, culprit, ns);
	return 0;
}

/*
 * Core scheduling. While a task runs, the kernel keeps the other thread of its core idle rather than let a task with
 * another cookie run there ("forced idle"). A task that waits on that idle CPU waits for the runner of the other thread,
 * unless both have the same cookie: then it is only on its way. bcc cannot read cookies, and has no siblings.
 */
#ifdef BCC
#define SIBLING_OF(cpu) 0
static __always_inline int charge_idle(u32 cpu_id, u32 sibling, u32 victim, u64 from, u64 end) { return 0; }
#else
#define SIBLING_OF(cpu) (cpu)->sibling

/* Charge a part of a wait in which the CPU was idle: to the slices of its sibling that forced it, the rest to idle. */
GLOBAL int charge_idle(u32 cpu_id, u32 sibling, u32 victim, u64 from, u64 end)
{
	struct cpu_state *cpu = cpu_at(cpu_id), *runners = cpu_at(sibling - 1);
	u32 idle = special_slot(cgroup_mask(), SLOT_IDLE);
	u32 i;

	if (!cpu)
		return 0;
	for (i = 0; i < LOOK_BACK && runners; i++) {
		struct slice *slice = &runners->ring[(runners->head - i) & (RING - 1)];
		u64 start = slice->start_ns;
		bool forced = slice->slot != idle && slice->cookie != cpu->waiter;

		if (start == 0)
			break;
		if (start >= end)
			continue;
		if (start < from)
			start = from;
		charge_part(cpu_id, victim, forced ? slice->slot : idle, end - start);
		end = start;
		if (end <= from)
			return 0;
	}
	return charge_part(cpu_id, victim, special_slot(cgroup_mask(), SLOT_OLDER), end - from);
}
#endif

/*
 * Charge the part of a wait from `from` to `end` to the slices that `runner_cpu` had then, newest first. Another CPU
 * may be writing its ring meanwhile: a slice that it overwrites may then be charged to the wrong slot.
 */
GLOBAL int charge_slices(u32 cpu_id, u32 runner_cpu, u32 victim, u64 from, u64 end)
{
	struct cpu_state *runners = cpu_at(runner_cpu);
	u32 i;

	if (!runners)
		return 0;
	for (i = 0; i < LOOK_BACK; i++) {
		struct slice *slice = &runners->ring[(runners->head - i) & (RING - 1)];
		u64 start = slice->start_ns;

		if (start == 0)
			break;
		if (start >= end)
			continue;
		if (start < from)
			start = from;
		if (SIBLING_OF(runners) && slice->slot == special_slot(cgroup_mask(), SLOT_IDLE))
			charge_idle(cpu_id, SIBLING_OF(runners), victim, start, end);
		else
			charge_part(cpu_id, victim, slice->slot, end - start);
		end = start;
		if (end <= from)
			return 0;
	}
	return charge_part(cpu_id, victim, special_slot(cgroup_mask(), SLOT_OLDER), end - from);
}

/* Charge a wait to the runners that this CPU had from `from` to now. */
static __always_inline void charge_wait(u32 cpu_id, struct cpu_state *cpu, u32 victim, u64 from, u64 now)
{
	struct slice *last = &cpu->ring[cpu->head & (RING - 1)];
	u64 start = last->start_ns;

	if (start && start <= from && !SIBLING_OF(cpu))
		charge_slice(cpu_id, cpu, victim, last->slot, now - from);
	else
		charge_slices(cpu_id, cpu_id, victim, from, now);
}

/* From now on this slot runs here. If it ran before, with the same cookie, its slice continues. */
static __always_inline void note_runner(struct cpu_state *cpu, u32 slot, u32 cookie, u64 now)
{
	u32 head = cpu->head & (RING - 1);

	if (cpu->ring[head].slot == slot && cpu->ring[head].cookie == cookie && cpu->ring[head].start_ns)
		return;
	head = (head + 1) & (RING - 1);
	cpu->ring[head].start_ns = now;
	cpu->ring[head].slot = slot;
	cpu->ring[head].cookie = cookie;
	cpu->head = head;
}
