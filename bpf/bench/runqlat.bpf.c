// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
// Copyright The koordinator-py authors
//
// The reference of the cost figures: the same work as bcc's runqlat, done in the same way, without its compiler. Raw
// tracepoints, fields read by bpf_probe_read_kernel (bcc rewrites every dereference to that), a time stamp per pid in a
// preallocated hash of 10240, one log2 histogram for the whole machine with atomic increments. No cgroups, no culprits.
#include "koord.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10240);
	__type(key, u32);
	__type(value, u64);
} start SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u64);
} dist SEC(".maps");

static __always_inline u32 log2_of(u64 v)
{
	u32 log = 0, i;

#pragma unroll
	for (i = 32; i; i >>= 1) {
		if (v >> i) {
			v >>= i;
			log += i;
		}
	}
	return log + 1;
}

static __always_inline int enqueue(struct task_struct *task)
{
	u32 tgid = BPF_CORE_READ(task, tgid);
	u32 pid = BPF_CORE_READ(task, pid);
	u64 now;

	if (pid == 0 || tgid == 0)
		return 0;
	now = bpf_ktime_get_ns();
	bpf_map_update_elem(&start, &pid, &now, BPF_ANY);
	return 0;
}

SEC("raw_tp/sched_wakeup")
int BPF_PROG(sched_wakeup, struct task_struct *task)
{
	return enqueue(task);
}

SEC("raw_tp/sched_wakeup_new")
int BPF_PROG(sched_wakeup_new, struct task_struct *task)
{
	return enqueue(task);
}

SEC("raw_tp/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u32 pid, bucket;
	u64 *since, *count;

	if (BPF_CORE_READ(prev, __state) == TASK_RUNNING)
		enqueue(prev);
	BPF_CORE_READ_INTO(&bucket, next, tgid);
	pid = BPF_CORE_READ(next, pid);
	if (pid == 0)
		return 0;
	since = bpf_map_lookup_elem(&start, &pid);
	if (!since)
		return 0;
	bucket = log2_of((bpf_ktime_get_ns() - *since) / 1000) & 63;
	count = bpf_map_lookup_elem(&dist, &bucket);
	if (count)
		__sync_fetch_and_add(count, 1);
	bpf_map_delete_elem(&start, &pid);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
