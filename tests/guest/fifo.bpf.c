// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
// Copyright The koordinator-py authors
//
// fifo.bpf.c: a scheduler for sched_ext (v6.12): all tasks wait in one queue of the whole machine, first come, first
// served. A CPU that becomes free takes the first task that may run there. It knows no weights, quotas or idle groups.
#include "vmlinux.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

void scx_bpf_dispatch(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __ksym;

SEC("struct_ops/fifo_enqueue")
void BPF_PROG(fifo_enqueue, struct task_struct *task, u64 flags)
{
	scx_bpf_dispatch(task, SCX_DSQ_GLOBAL, SCX_SLICE_DFL, flags);
}

SEC(".struct_ops")
struct sched_ext_ops fifo = {
	.enqueue = (void *)fifo_enqueue,
	.name = "fifo",
};

char LICENSE[] SEC("license") = "Dual BSD/GPL";
