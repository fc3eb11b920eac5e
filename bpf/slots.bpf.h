/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The tags table and a task's way to its slot, for CO-RE programs. Include it after koord.bpf.h and after defining
 * `settings` with at least cgroup_v2 and cgroup_mask in .rodata.config; koordlet/probes/culprits/slots.py reads the table.
 */
#pragma once

#include "slots.h"

// Sizes here are placeholders; the loader sets them.
#define TABLE(name, type_)                        \
	struct {                                  \
		__uint(type, BPF_MAP_TYPE_ARRAY); \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__uint(max_entries, 1);           \
		__type(key, u32);                 \
		__type(value, type_);             \
	} name SEC(".maps")

TABLE(tags, u64);

static __always_inline u32 cgroup_mask(void) { return settings.cgroup_mask; }
static __always_inline u64 *tag_at(u32 i) { return bpf_map_lookup_elem(&tags, &i); }
static __always_inline u64 claim(u64 *tag, u64 id) { return __sync_val_compare_and_swap(tag, 0, id); }

// Keeps the common path short.
#define OUT_OF_LINE static __noinline

#include "slots_core.h"

// The id that names a task's container: see slots.h.
static __always_inline u64 task_cgroup_id(struct task_struct *task)
{
	if (settings.cgroup_v2)
		return task->cgroups->dfl_cgrp->kn->id;
	return task->cgroups->subsys[bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id)]->cgroup->kn->id;
}

// *lost (may be NULL) counts cgroups that found no free slot.
static __always_inline u32 slot_of(struct task_struct *task, u32 pid, u64 *lost)
{
	if (pid == 0)
		return SPECIAL(SLOT_IDLE);
	if (task->flags & PF_KTHREAD) {
		u32 comm = 0;

		bpf_probe_read_kernel(&comm, sizeof(comm), task->comm);
		return kthread_slot(comm);
	}
	return cgroup_slot(task_cgroup_id(task), lost);
}
