// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
// Copyright The koordinator-py authors
//
// mem_stall.bpf.c: how long the tasks of a cgroup are stalled for lack of memory, by kind.
//
// Reclaim and compaction begin and end in the task that needs the page, with a tracepoint at both ends: the time in
// between is the stall as the task experiences it. The memory cgroup (or the node) that was short is in the
// scan_control that task->reclaim_state is a part of.
//
// Sleeps (for an evicted page of the working set that must be read again, for a page in swap, the delay for exceeding
// memory.high) have no tracepoint, but the kernel marks the task for PSI: task->in_memstall. Such a task is timed from
// leaving the CPU to running again. A function on its kernel stack shows which of the three it is. The stack is walked
// for marked tasks only; all others cost two loads per switch.
#include "koord.bpf.h"

#include "mem_stall.h"
#include "slots.bpf.h"

const volatile struct stall_config settings SEC(".rodata.config");

TABLE(stats, struct stall_stats);
TABLE(limits, struct limit_entry);
TABLE(tasks, struct stalled_task);
TABLE(lost, struct stall_lost);

#define FRAMES 24

// Since v6.0: a task that writes memory.reclaim reclaims on request and is not stalled.
struct scan_control___v60 {
	unsigned int proactive : 1;
} __attribute__((preserve_access_index));

static __always_inline struct stall_lost *lost_row(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&lost, &zero);
}

static __always_inline struct stalled_task *task_row(u32 pid)
{
	u32 i = pid & settings.task_mask;

	return bpf_map_lookup_elem(&tasks, &i);
}

static __always_inline void begin(struct task_struct *task, u32 kind, u64 limit)
{
	u32 pid = task->pid;
	u64 tag = task_tag(task, pid);
	struct stalled_task *row = task_row(pid);
	struct stall_lost *lost = lost_row();

	if (!row || !lost)
		return;
	if (row->tag && row->tag != tag)
		__sync_fetch_and_add(&lost->tasks, 1);
	row->tag = 0;
	row->start_ns = bpf_ktime_get_ns();
	row->kind = kind;
	row->limit = limit;
	row->tag = tag;
}

static __always_inline struct limit_entry *limit_at(u32 i) { return bpf_map_lookup_elem(&limits, &i); }

static __always_inline u64 *limit_key_at(u32 i)
{
	struct limit_entry *entry = limit_at(i);

	return entry ? &entry->key : NULL;
}

// Not static: the verifier checks a global function once instead of in every program that calls it.
__noinline int count_limit(u32 cgroup_slot, u64 limit, u64 ns)
{
	u64 key = limit << 16 | (cgroup_slot + 1);
	u32 hash = (u32)(key ^ key >> 29) * 0x9e3779b1u;
	u32 slot = claim_slot(limit_key_at, 0, hash ^ hash >> 15, settings.limit_mask, PROBES, key);
	struct limit_entry *entry = slot == NO_SLOT ? NULL : limit_at(slot);
	struct stall_lost *lost = lost_row();

	if (entry) {
		__sync_fetch_and_add(&entry->count, 1);
		__sync_fetch_and_add(&entry->sum_ns, ns);
	} else if (lost) {
		__sync_fetch_and_add(&lost->limits, 1);
	}
	return 0;
}

static __always_inline u32 counted_slot(struct task_struct *task)
{
	struct stall_lost *lost;
	u32 slot = slot_of(&settings.slots, task, task->pid, NULL);

	if (slot == special_slot(settings.slots.cgroup_mask, SLOT_OVERFLOW)) {
		lost = lost_row();
		if (lost)
			__sync_fetch_and_add(&lost->slots, 1);
	}
	return slot;
}

// Not static for the same reason as count_limit.
__noinline int count_stall(u32 slot, u32 kind, u64 ns, u64 pages)
{
	struct stall_stats *row = bpf_map_lookup_elem(&stats, &slot);
	struct stall_kind_stats *stat;
	u64 bucket;

	if (!row || kind >= STALLS)
		return 0;
	stat = &row->kind[kind];
	bucket = bucket_of(ns);
	if (bucket < BUCKETS)
		__sync_fetch_and_add(&stat->hist[bucket], 1);
	__sync_fetch_and_add(&stat->sum_ns, ns);
	if (ns > stat->max_ns)
		stat->max_ns = ns;
	if (kind == STALL_DIRECT)
		__sync_fetch_and_add(&row->direct_pages, pages);
	else if (kind <= STALL_ANCESTOR)
		__sync_fetch_and_add(&row->limit_pages, pages);
	return 0;
}

// Ends the stall that this task began; pages: the number it reclaimed.
OUT_OF_LINE int end(struct task_struct *task, struct stalled_task *row, u64 pages)
{
	u64 ns = bpf_ktime_get_ns() - row->start_ns;
	u32 kind = row->kind;
	u32 slot;

	row->tag = 0;
	if ((s64)ns < 0)
		return 0;
	slot = counted_slot(task);
	count_stall(slot, kind, ns, pages);
	if (kind <= STALL_ANCESTOR)
		count_limit(slot, row->limit, ns);
	return 0;
}

static __always_inline int end_of(u32 first, u32 last, u64 pages)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 pid = task->pid;
	struct stalled_task *row = task_row(pid);

	if (row && row->tag == task_tag(task, pid) && row->kind >= first && row->kind <= last)
		end(task, row, pages);
	return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(direct_begin)
{
	begin(bpf_get_current_task_btf(), STALL_DIRECT, 0);
	return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int BPF_PROG(direct_end, unsigned long pages)
{
	return end_of(STALL_DIRECT, STALL_DIRECT, pages);
}

// Near the limits of one NUMA node (vm.zone_reclaim_mode).
SEC("tp_btf/mm_vmscan_node_reclaim_begin")
int BPF_PROG(node_begin)
{
	begin(bpf_get_current_task_btf(), STALL_DIRECT, 0);
	return 0;
}

SEC("tp_btf/mm_vmscan_node_reclaim_end")
int BPF_PROG(node_end, unsigned long pages)
{
	return end_of(STALL_DIRECT, STALL_DIRECT, pages);
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int BPF_PROG(memcg_begin)
{
	struct task_struct *task = bpf_get_current_task_btf();
	void *state = task->reclaim_state;
	struct scan_control *scan = state - bpf_core_field_offset(struct scan_control, reclaim_state);
	struct scan_control___v60 *flags = (void *)scan;
	struct cgroup_subsys_state *own =
		task->cgroups->subsys[bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id)];
	struct mem_cgroup *target;

	if (!state)
		return 0;
	if (bpf_core_field_exists(flags->proactive) && BPF_CORE_READ_BITFIELD_PROBED(flags, proactive))
		return 0;
	target = BPF_CORE_READ(scan, target_mem_cgroup);
	begin(task, (void *)own == (void *)&target->css ? STALL_OWN_LIMIT : STALL_ANCESTOR,
	      BPF_CORE_READ(target, css.cgroup, kn, id));
	return 0;
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int BPF_PROG(memcg_end, unsigned long pages)
{
	return end_of(STALL_OWN_LIMIT, STALL_ANCESTOR, pages);
}

// kcompactd and requests through /proc reach this too; neither is direct compaction.
SEC("tp_btf/mm_compaction_begin")
int BPF_PROG(compaction_begin, struct compact_control *cc)
{
	if (cc->direct_compaction)
		begin(bpf_get_current_task_btf(), STALL_COMPACTION, 0);
	return 0;
}

SEC("tp_btf/mm_compaction_end")
int BPF_PROG(compaction_end, struct compact_control *cc)
{
	return end_of(STALL_COMPACTION, STALL_COMPACTION, 0);
}

SEC("tp_btf/mm_vmscan_wakeup_kswapd")
int BPF_PROG(wakeup_kswapd)
{
	u32 slot = counted_slot(bpf_get_current_task_btf());
	struct stall_stats *row = bpf_map_lookup_elem(&stats, &slot);

	if (row)
		__sync_fetch_and_add(&row->wakeups, 1);
	return 0;
}

// 1 if the address is in the function. Without a branch: the verifier would follow both paths for each frame.
static __always_inline u64 within(u64 address, u32 function)
{
	u64 offset = address - settings.functions[function].begin;
	u64 size = settings.functions[function].end - settings.functions[function].begin;

	return ((offset - size) & ~offset) >> 63;
}

OUT_OF_LINE int sleep_kind(void *ctx, struct task_struct *task)
{
	u64 frames[FRAMES] = {};
	bool waits = BPF_CORE_READ_BITFIELD(task, in_iowait);
	u64 swapin = 0, throttle = 0;
	u32 i;

	if (!settings.functions[IN_THROTTLE].begin)
		return waits ? STALL_REFAULT : STALL_THROTTLE;
	bpf_get_stack(ctx, frames, sizeof(frames), 0);
	for (i = 0; i < FRAMES; i++) {
		swapin |= within(frames[i], IN_SWAPIN) | within(frames[i], IN_SHMEM_SWAPIN);
		throttle |= within(frames[i], IN_THROTTLE);
	}
	if (throttle)
		return STALL_THROTTLE;
	if (swapin)
		return STALL_SWAPIN;
	return waits ? STALL_REFAULT : STALL_OTHER;
}

// Attached only where the kernel keeps PSI; without it no task is ever marked.
SEC("tp_btf/sched_switch")
int BPF_PROG(stall_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	if (BPF_CORE_READ_BITFIELD(prev, in_memstall) && !preempt && prev->__state != TASK_RUNNING) {
		struct stalled_task *row = task_row(prev->pid);

		// A sleep during reclaim stays a part of that reclaim.
		if (row && (row->tag != task_tag(prev, prev->pid) || row->kind >= STALL_REFAULT) &&
		    !(prev->flags & PF_KTHREAD))
			begin(prev, sleep_kind(ctx, prev), 0);
	}
	if (BPF_CORE_READ_BITFIELD(next, in_memstall)) {
		struct stalled_task *row = task_row(next->pid);

		if (row && row->tag == task_tag(next, next->pid) && row->kind >= STALL_REFAULT)
			end(next, row, 0);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
