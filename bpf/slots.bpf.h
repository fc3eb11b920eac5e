/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The tags table and the slot of a task, for CO-RE programs; koordlet/probes/culprits/slots.py reads the table.
 */
#pragma once

#include "koord.bpf.h"
#include "slots.h"

TABLE(tags, u64);

static __always_inline u64 *tag_at(u32 i) { return bpf_map_lookup_elem(&tags, &i); }

static __always_inline struct cgroup *task_cgroup(const volatile struct slot_config *config, struct task_struct *task)
{
	if (config->cgroup_v2)
		return task->cgroups->dfl_cgrp;
	return task->cgroups->subsys[bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id)]->cgroup;
}

/* The id that names a task's container: see slots.h. */
static __always_inline u64 task_cgroup_id(const volatile struct slot_config *config, struct task_struct *task)
{
	return task_cgroup(config, task)->kn->id;
}

static __always_inline u32 task_kthread_kind(struct task_struct *task)
{
	u32 comm = 0;

	bpf_probe_read_kernel(&comm, sizeof(comm), task->comm);
	return kthread_kind(comm);
}

/* *lost (may be NULL) counts cgroups that found no free slot. */
static __always_inline u32 slot_of(const volatile struct slot_config *config, struct task_struct *task, u32 pid,
				   u64 *lost)
{
	if (pid == 0)
		return special_slot(config->cgroup_mask, SLOT_IDLE);
	if (task->flags & PF_KTHREAD)
		return special_slot(config->cgroup_mask, task_kthread_kind(task));
	return cgroup_slot(config->cgroup_mask, task_cgroup_id(config, task), lost);
}

/* Identifies a task over the reuse of its pid: pid << 32 | low half of its start time. Never 0 for a real task. */
static __always_inline u64 task_tag(struct task_struct *task, u32 pid)
{
	return (u64)pid << 32 | (u32)task->start_time;
}
