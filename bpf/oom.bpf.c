// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
// Copyright The koordinator-py authors
//
// oom.bpf.c: the victims of the kernel's OOM killer, the limit that was reached, and the task whose allocation failed.
//
// oom:mark_victim fires in the task whose allocation failed, so the trigger is the current task. It does not contain
// what was short. But a task requests a kill only after it has repeatedly tried to reclaim from exactly what is
// short. So the memory cgroup that each task last reclaimed from is recorded by two tracepoints at the beginning of
// reclaim.
//
// Since v6.9 the tracepoint passes the victim's task, before only its pid; there the victim is recorded one step
// earlier, when the kernel sends it SIGKILL. Load either mark_task, or mark_pid together with killing.
#include "koord.bpf.h"

#include "oom.h"
#include "slots.bpf.h"

const volatile struct oom_config settings SEC(".rodata.config");

TABLE(counts, struct oom_counts);
TABLE(events, struct oom_event);
TABLE(head, u64);
TABLE(reclaims, struct last_reclaim);
TABLE(pending, struct oom_event);

#define SIGKILL 9
#define FROM_KERNEL 1 /* SEND_SIG_PRIV */
#define MM_FILEPAGES 0
#define MM_ANONPAGES 1
#define MM_SHMEMPAGES 3
/* A kill belongs to the trigger's last reclaim if that was no longer ago. */
#define RECLAIM_MAX_AGE_NS (60ull * 1000 * 1000 * 1000)

struct mm_struct___v62 {
	struct percpu_counter rss_stat[4];
} __attribute__((preserve_access_index));

struct mm_rss_stat___v61 {
	atomic_long_t count[4];
} __attribute__((preserve_access_index));

struct mm_struct___v61 {
	struct mm_rss_stat___v61 rss_stat;
} __attribute__((preserve_access_index));

static __always_inline u64 rss(struct mm_struct *mm, u32 which)
{
	s64 pages;

	if (bpf_core_type_exists(struct mm_rss_stat___v61))
		pages = BPF_CORE_READ((struct mm_struct___v61 *)mm, rss_stat.count[which].counter);
	else
		pages = BPF_CORE_READ((struct mm_struct___v62 *)mm, rss_stat[which].count);
	return pages > 0 ? pages : 0;
}

static __always_inline void note_names(struct cgroup *cgroup, u8 *name, u8 *parent)
{
	const char *part = BPF_CORE_READ(cgroup, kn, name);
	struct cgroup *above = BPF_CORE_READ(cgroup, self.parent, cgroup);

	bpf_probe_read_kernel_str(name, OOM_NAME_SIZE, part);
	part = BPF_CORE_READ(above, kn, name);
	bpf_probe_read_kernel_str(parent, OOM_NAME_SIZE, part);
}

OUT_OF_LINE int note_victim(struct task_struct *task, struct oom_event *event)
{
	struct mm_struct *mm = task->mm;

	event->victim_cgroup = task_cgroup_id(&settings.slots, task);
	event->victim_pid = task->tgid;
	event->victim_thread = task->pid;
	event->score_adj = (s32)BPF_CORE_READ(task, signal, oom_score_adj);
	event->anon_pages = rss(mm, MM_ANONPAGES);
	event->file_pages = rss(mm, MM_FILEPAGES);
	event->shmem_pages = rss(mm, MM_SHMEMPAGES);
	event->total_vm_pages = BPF_CORE_READ(mm, total_vm);
	bpf_probe_read_kernel(event->victim_comm, OOM_COMM_SIZE, task->group_leader->comm);
	note_names(task_cgroup(&settings.slots, task), event->victim_name, event->victim_parent);
	return 0;
}

static __always_inline void note_limit(struct task_struct *trigger, struct oom_event *event)
{
	u32 i = (u32)trigger->pid & settings.task_mask;
	struct last_reclaim *last = bpf_map_lookup_elem(&reclaims, &i);
	struct mem_cgroup *memcg;

	event->scope = OOM_UNKNOWN;
	event->limit_cgroup = event->limit_pages = event->usage_pages = 0;
	event->limit_name[0] = event->limit_parent[0] = 0;
	if (!last || last->tag != task_tag(trigger, trigger->pid) ||
	    event->boot_ns - last->boot_ns > RECLAIM_MAX_AGE_NS)
		return;
	memcg = (void *)last->memcg;
	if (!memcg) {
		event->scope = OOM_NODE;
		return;
	}
	event->scope = OOM_LIMIT;
	event->limit_cgroup = last->id;
	if (BPF_CORE_READ(memcg, css.cgroup, kn, id) != last->id)
		return; // the cgroup was removed meanwhile
	event->limit_pages = BPF_CORE_READ(memcg, memory.max);
	event->usage_pages = BPF_CORE_READ(memcg, memory.usage.counter);
	note_names(BPF_CORE_READ(memcg, css.cgroup), event->limit_name, event->limit_parent);
}

static __always_inline struct oom_counts *counts_of(u32 slot)
{
	return bpf_map_lookup_elem(&counts, &slot);
}

OUT_OF_LINE int record(struct oom_event *from, struct task_struct *victim)
{
	struct task_struct *trigger = bpf_get_current_task_btf();
	u32 zero = 0, at, slot;
	u64 *next = bpf_map_lookup_elem(&head, &zero);
	struct oom_event *event;
	struct oom_counts *row;
	u64 number;

	if (!next)
		return 0;
	number = __sync_fetch_and_add(next, 1);
	at = number % OOM_EVENTS;
	event = bpf_map_lookup_elem(&events, &at);
	if (!event)
		return 0;
	event->number = 0;
	if (from)
		bpf_probe_read_kernel(event, sizeof(*event), from);
	else
		note_victim(victim, event);
	event->number = 0;
	event->boot_ns = bpf_ktime_get_boot_ns();
	event->trigger_pid = trigger->tgid;
	event->trigger_cgroup = trigger->flags & PF_KTHREAD ? 0 : task_cgroup_id(&settings.slots, trigger);
	bpf_probe_read_kernel(event->trigger_comm, OOM_COMM_SIZE, trigger->group_leader->comm);
	note_limit(trigger, event);
	slot = cgroup_slot(settings.slots.cgroup_mask, event->victim_cgroup, NULL);
	row = counts_of(slot);
	if (row) {
		if (event->scope == OOM_LIMIT)
			__sync_fetch_and_add(&row->killed_limit, 1);
		else if (event->scope == OOM_NODE)
			__sync_fetch_and_add(&row->killed_node, 1);
		else
			__sync_fetch_and_add(&row->killed_unknown, 1);
	}
	row = counts_of(slot_of(&settings.slots, trigger, trigger->pid, NULL));
	if (row)
		__sync_fetch_and_add(&row->triggered, 1);
	event->number = number + 1;
	return 0;
}

SEC("tp_btf/mark_victim")
int BPF_PROG(mark_task, struct task_struct *victim)
{
	return record(NULL, victim);
}

static __always_inline struct oom_event *pending_row(u32 pid)
{
	u32 i = pid % OOM_PENDING;

	return bpf_map_lookup_elem(&pending, &i);
}

SEC("tp_btf/signal_generate")
int BPF_PROG(killing, int sig, struct kernel_siginfo *info, struct task_struct *victim)
{
	struct oom_event *row;

	if (sig != SIGKILL || (u64)info != FROM_KERNEL)
		return 0;
	row = pending_row(bpf_get_current_pid_tgid());
	if (!row)
		return 0;
	note_victim(victim, row);
	row->trigger_pid = bpf_get_current_pid_tgid();
	return 0;
}

SEC("tp_btf/mark_victim")
int BPF_PROG(mark_pid, int pid)
{
	struct task_struct *trigger = bpf_get_current_task_btf();
	struct oom_event *row;

	if (trigger->pid == pid) // it was exiting already: no signal was sent
		return record(NULL, trigger);
	row = pending_row(trigger->pid);
	if (row && row->trigger_pid == (u32)trigger->pid && row->victim_thread == (u32)pid)
		record(row, trigger);
	return 0;
}

static __always_inline void reclaiming(struct task_struct *task, struct mem_cgroup *memcg)
{
	u32 i = (u32)task->pid & settings.task_mask;
	struct last_reclaim *last = bpf_map_lookup_elem(&reclaims, &i);

	if (!last)
		return;
	last->tag = task_tag(task, task->pid);
	last->boot_ns = bpf_ktime_get_boot_ns();
	last->memcg = (u64)memcg;
	last->id = memcg ? BPF_CORE_READ(memcg, css.cgroup, kn, id) : 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(direct_begin)
{
	reclaiming(bpf_get_current_task_btf(), NULL);
	return 0;
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int BPF_PROG(memcg_begin)
{
	struct task_struct *task = bpf_get_current_task_btf();
	void *state = task->reclaim_state;
	struct scan_control *scan = state - bpf_core_field_offset(struct scan_control, reclaim_state);

	if (state)
		reclaiming(task, BPF_CORE_READ(scan, target_mem_cgroup));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
