// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
// Copyright The koordinator-py authors
//
// sched_latency for kernels without BTF, compiled on the node against kernel headers by bcc/load.py.
//
// It fills the same tables as sched_latency.bpf.c with less: run queues are private to the scheduler, so their clock
// cannot be read. Waits are stamped with bpf_ktime_get_ns() at wakeup and at preemption, and throttled time is
// counted as waiting. CGROUPS, MATRIX, STAMPS, CPUS, CGROUP_V2 and BCC are defined on the command line.
#include <linux/cgroup.h>
#include <linux/sched.h>
#include <linux/version.h>

#define BPF_F_MMAPABLE_ (1U << 10)
#ifndef READ_ONCE
#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#endif

#include "sched_latency_core.h"

BPF_F_TABLE("array", u32, u64, tags, CGROUPS, BPF_F_MMAPABLE_);
BPF_F_TABLE("array", u32, struct slot_stats, stats, CPUS * (CGROUPS + SPECIALS), BPF_F_MMAPABLE_);
BPF_F_TABLE("array", u32, struct culprit_entry, matrix, CPUS * MATRIX, BPF_F_MMAPABLE_);
BPF_F_TABLE("array", u32, struct cpu_state, cpus, CPUS, BPF_F_MMAPABLE_);
BPF_F_TABLE("array", u32, struct stamp, stamps, STAMPS, BPF_F_MMAPABLE_);

static __always_inline u32 cgroup_mask(void) { return CGROUPS - 1; }
static __always_inline u32 matrix_mask(void) { return MATRIX - 1; }
static __always_inline bool shared_rows(void) { return false; }
static __always_inline u64 *tag_at(u32 i) { return tags.lookup(&i); }
static __always_inline struct culprit_entry *culprit_at(u32 i) { return matrix.lookup(&i); }
static __always_inline struct cpu_state *cpu_at(u32 i) { return cpus.lookup(&i); }
static __always_inline struct stamp *stamp_at(u32 i) { return stamps.lookup(&i); }

static __always_inline struct slot_stats *stats_of(u32 cpu_id, u32 slot)
{
	u32 i = cpu_id * (CGROUPS + SPECIALS) + slot;

	return stats.lookup(&i);
}

#define FETCH(to, from) bpf_probe_read_kernel(&(to), sizeof(to), &(from))

static __always_inline u32 slot_of(struct task_struct *task, u32 pid, struct cpu_state *cpu)
{
	struct css_set *set;
	struct cgroup *cgroup;
	struct kernfs_node *node;
	u32 flags = 0, comm = 0;
	u64 id = 0;

	if (pid == 0)
		return special_slot(cgroup_mask(), SLOT_IDLE);
	FETCH(flags, task->flags);
	if (flags & PF_KTHREAD) {
		FETCH(comm, task->comm);
		return special_slot(cgroup_mask(), kthread_kind(comm));
	}
	FETCH(set, task->cgroups);
	if (CGROUP_V2) {
		FETCH(cgroup, set->dfl_cgrp);
	} else {
		struct cgroup_subsys_state *css;

		FETCH(css, set->subsys[cpu_cgrp_id]);
		FETCH(cgroup, css->cgroup);
	}
	FETCH(node, cgroup->kn);
	FETCH(id, node->id);
	return cgroup_slot(cgroup_mask(), id, &cpu->slot_lost);
}

static __always_inline u64 tag_of(struct task_struct *task, u32 pid)
{
	unsigned long runs = 0;

	FETCH(runs, task->sched_info.pcount);
	return (u64)pid << 32 | (u32)runs;
}

static __always_inline struct stamp *queue(struct task_struct *task, u32 pid, u64 now, u32 flags)
{
	struct stamp *stamp = stamp_at(pid & (STAMPS - 1));

	if (!stamp)
		return NULL;
	stamp->tag = tag_of(task, pid);
	FETCH(stamp->run_delay, task->sched_info.run_delay);
	stamp->clock_ns = now;
	stamp->flags = flags;
	return stamp;
}

static __always_inline int woken(struct task_struct *task)
{
	u64 now = bpf_ktime_get_ns();
	u32 pid = 0;
	struct stamp *stamp;

	FETCH(pid, task->pid);
	stamp = stamp_at(pid & (STAMPS - 1));
	if (!stamp || pid == 0)
		return 0;
	// Woken before it had left the queue: it has waited since it was preempted.
	if (stamp->tag == tag_of(task, pid) && stamp->flags & STAMP_QUEUED)
		return 0;
	queue(task, pid, now, STAMP_QUEUED);
	return 0;
}

RAW_TRACEPOINT_PROBE(sched_wakeup)
{
	return woken((struct task_struct *)ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(sched_wakeup_new)
{
	return woken((struct task_struct *)ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(sched_switch)
{
	bool preempt = ctx->args[0];
	struct task_struct *prev = (struct task_struct *)ctx->args[1];
	struct task_struct *next = (struct task_struct *)ctx->args[2];
	u32 cpu_id = bpf_get_smp_processor_id();
	struct cpu_state *cpu = cpu_at(cpu_id);
	u64 now = bpf_ktime_get_ns(), moved = 0, wait;
	u32 prev_pid = 0, pid = 0, slot;
	struct stamp *stamp;
	long state = 0;

	if (!cpu)
		return 0;
	FETCH(prev_pid, prev->pid);
	FETCH(pid, next->pid);
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 14, 0)
	bpf_probe_read_kernel(&state, sizeof(prev->__state), &prev->__state);
#else
	FETCH(state, prev->state);
#endif
	if (prev_pid && (preempt || state == TASK_RUNNING))
		queue(prev, prev_pid, now, STAMP_QUEUED | STAMP_PREEMPTED);
	slot = slot_of(next, pid, cpu);
	stamp = stamp_at(pid & (STAMPS - 1));
	if (pid && stamp) {
		if (!(stamp->flags & STAMP_QUEUED) || stamp->tag != tag_of(next, pid)) {
			cpu->unstamped++;
		} else if (stamp->clock_ns > now) {
			cpu->backwards++;
		} else {
			wait = now - stamp->clock_ns;
			FETCH(moved, next->sched_info.run_delay);
			moved -= stamp->run_delay;
			if (moved > wait)
				moved = wait;
			if (moved)
				charge_slice(cpu_id, cpu, slot, special_slot(cgroup_mask(), SLOT_MOVED), moved);
			count_wait(stats_of(cpu_id, slot), wait, stamp->flags & STAMP_PREEMPTED);
			if (wait > moved)
				charge_wait(cpu_id, cpu, slot, stamp->clock_ns + moved, now);
			stamp->flags = 0;
		}
	}
	note_runner(cpu, slot, 0, now);
	return 0;
}
