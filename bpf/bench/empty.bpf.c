// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
// Copyright The koordinator-py authors
//
// The lower bound of every cost figure: calling a program that does nothing.
#include "koord.bpf.h"

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(sched_wakeup, struct task_struct *task)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
