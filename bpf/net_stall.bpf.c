// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
// Copyright The koordinator-py authors
//
// net_stall.bpf.c: the network cost of each cgroup: segments sent again, CPU time taken by network softirqs, and
// received data that is not read.
//
// The owner of a socket: on v2 the cgroup that created it (sk_cgrp_data). On v1 the same field names a group of the
// unified tree; containers have one if their runtime mirrors them there. Otherwise the socket's network namespace
// stands for its pod. Accepted connections inherit from the listener's.
//
// Softirqs. From softirq_entry to softirq_exit (NET_RX, NET_TX) the task on the CPU is the victim. Each packet
// meanwhile identifies the owner that the time from then on is spent for: first its device's network namespace
// (netif_receive_skb), then, for established TCP, its socket's owner (tcp_probe). The time before the first packet is
// the kernel's own work. The culprit is the receiver, unless the victim itself raised the softirq: a task that sends
// a packet runs the packet's way through the machine at once. ksoftirqd is a victim too, so that the time it delays
// others has receivers.
#include "koord.bpf.h"

#include "culprit_matrix.bpf.h"
#include "net_stall.h"
#include "owners.h"
#include "slots.bpf.h"

const volatile struct net_config settings SEC(".rodata.config");

#define NET_TX_SOFTIRQ 2
#define NET_RX_SOFTIRQ 3

#define SERVING_SOFTIRQ 0x100
#define HARDIRQ_MASK 0xf0000

// x86 keeps the preemption count per CPU, from v6.2 to v6.14 in this structure.
struct pcpu_hot___v62 {
	int preempt_count;
} __attribute__((preserve_access_index));

// arm64 keeps it in each task. Its lower half is the count.
struct thread_info___arm64 {
	u64 preempt_count;
} __attribute__((preserve_access_index));

struct task_struct___arm64 {
	struct thread_info___arm64 thread_info;
} __attribute__((preserve_access_index));

TABLE(stats, struct net_stats);
TABLE(cpus, struct net_cpu);

static __always_inline struct net_cpu *this_cpu(u32 *cpu)
{
	*cpu = bpf_get_smp_processor_id();
	return bpf_map_lookup_elem(&cpus, cpu);
}

static __always_inline struct net_stats *stats_of(u32 cpu, u32 slot)
{
	slot += row_of(&settings.rows, cpu) * (settings.slots.cgroup_mask + 1 + SPECIALS);
	return bpf_map_lookup_elem(&stats, &slot);
}

// The preemption count of this CPU. On x86 no helper gives its address, but it is in the same per-CPU area as the run queue.
static __always_inline u32 preempt_count(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 count = 0;
	u64 at;

	if (bpf_core_field_exists(struct thread_info___arm64, preempt_count))
		return BPF_CORE_READ((struct task_struct___arm64 *)task, thread_info.preempt_count);
	at = (u64)task->se.cfs_rq->rq + (s64)settings.preempt_count;
	if (bpf_core_type_exists(struct pcpu_hot___v62))
		at += bpf_core_field_offset(struct pcpu_hot___v62, preempt_count);
	bpf_probe_read_kernel(&count, sizeof(count), (void *)at);
	return count;
}

static __always_inline u64 tag_of(u32 space, u64 id)
{
	return (u64)space << TAG_SPACE_SHIFT | id;
}

static __always_inline u64 socket_owner(const struct sock *sk)
{
	struct cgroup *cgroup = sk->sk_cgrp_data.cgroup;

	if (cgroup && settings.slots.cgroup_v2)
		return tag_of(SPACE_TASK, cgroup->kn->id);
	if (cgroup && cgroup->level)
		return tag_of(SPACE_UNIFIED, cgroup->kn->id);
	return tag_of(SPACE_NETNS, sk->__sk_common.skc_net.net->ns.inum);
}

static __always_inline u32 owner_slot(u64 owner, u64 *lost)
{
	return cgroup_slot(settings.slots.cgroup_mask, owner, lost);
}

static __always_inline struct net_stats *socket_stats(const struct sock *sk)
{
	u32 cpu;
	struct net_cpu *state = this_cpu(&cpu);

	return state ? stats_of(cpu, owner_slot(socket_owner(sk), &state->slot_lost)) : NULL;
}

// Charges the time since the mark to the present owner.
static __always_inline void charge_since_mark(struct net_cpu *state, u32 cpu, u64 now)
{
	struct net_stats *row = stats_of(cpu, state->owner_slot);
	u32 culprit = state->raised_by_victim ? state->victim : state->owner_slot;
	u64 spent = now - state->mark_ns;

	if (row)
		COUNT(settings.rows.shared, row->caused_ns, spent);
	if (state->victim <= settings.slots.cgroup_mask ||
	    state->victim == special_slot(settings.slots.cgroup_mask, SLOT_KSOFTIRQD))
		charge_culprit(settings.matrix_mask, state->victim, culprit, spent);
	state->mark_ns = now;
}

static __always_inline void set_owner(struct net_cpu *state, u32 cpu, u64 owner)
{
	if (state->start_ns == 0 || state->owner == owner)
		return;
	charge_since_mark(state, cpu, bpf_ktime_get_ns());
	state->owner = owner;
	state->owner_slot = owner_slot(owner, &state->slot_lost);
}

// The origin of the next softirq of this CPU. Loaded only where the preemption count is known; without it no softirq
// counts as raised by a task.
SEC("tp_btf/softirq_raise")
int BPF_PROG(softirq_raise, unsigned int vector)
{
	struct net_cpu *state;
	u32 cpu, count;

	if (vector != NET_RX_SOFTIRQ && vector != NET_TX_SOFTIRQ)
		return 0;
	state = this_cpu(&cpu);
	if (!state)
		return 0;
	count = preempt_count();
	if (count & HARDIRQ_MASK)
		state->raised |= RAISED_ELSEWHERE;
	else if (count & SERVING_SOFTIRQ) // the running softirq continues, or another kind of softirq sends
		state->raised |= state->start_ns && state->raised_by_victim ? RAISED_BY_TASK : RAISED_ELSEWHERE;
	else
		state->raised |= RAISED_BY_TASK;
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_entry, unsigned int vector)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct net_cpu *state;
	u32 cpu;

	if (vector != NET_RX_SOFTIRQ && vector != NET_TX_SOFTIRQ)
		return 0;
	state = this_cpu(&cpu);
	if (!state)
		return 0;
	state->victim = slot_of(&settings.slots, task, task->pid, &state->slot_lost);
	state->raised_by_victim = state->raised == RAISED_BY_TASK && state->victim <= settings.slots.cgroup_mask;
	state->raised = 0;
	state->owner = 0;
	state->owner_slot = special_slot(settings.slots.cgroup_mask, SLOT_KTHREAD);
	state->mark_ns = state->start_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_exit, unsigned int vector)
{
	struct net_stats *row;
	struct net_cpu *state;
	u64 now, spent;
	u32 cpu;

	if (vector != NET_RX_SOFTIRQ && vector != NET_TX_SOFTIRQ)
		return 0;
	state = this_cpu(&cpu);
	if (!state || state->start_ns == 0)
		return 0;
	now = bpf_ktime_get_ns();
	spent = now - state->start_ns;
	charge_since_mark(state, cpu, now);
	state->start_ns = 0;
	row = stats_of(cpu, state->victim);
	if (!row)
		return 0;
	COUNT(settings.rows.shared, row->softirq_hist[bucket_of(spent)], 1);
	COUNT(settings.rows.shared, row->softirq_ns, spent);
	COUNT(settings.rows.shared, row->softirq_count, 1);
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(netif_receive_skb, struct sk_buff *skb)
{
	u32 cpu;
	struct net_cpu *state = this_cpu(&cpu);

	if (state)
		set_owner(state, cpu, tag_of(SPACE_NETNS, skb->dev->nd_net.net->ns.inum));
	return 0;
}

SEC("tp_btf/tcp_probe")
int BPF_PROG(tcp_probe, struct sock *sk)
{
	u64 unread = sk->sk_backlog.rmem_alloc.counter + sk->sk_backlog.len;
	u64 owner = socket_owner(sk);
	u32 cpu;
	struct net_cpu *state = this_cpu(&cpu);
	struct net_stats *row;

	if (!state)
		return 0;
	set_owner(state, cpu, owner);
	row = stats_of(cpu, state->owner == owner ? state->owner_slot : owner_slot(owner, &state->slot_lost));
	if (!row)
		return 0;
	COUNT(settings.rows.shared, row->backlog_sum, unread);
	COUNT(settings.rows.shared, row->backlog_count, 1);
	if (unread > row->backlog_max)
		row->backlog_max = unread;
	return 0;
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(tcp_retransmit_skb, const struct sock *sk, const struct sk_buff *skb)
{
	struct net_stats *row = socket_stats(sk);
	const struct tcp_skb_cb *cb = (const void *)skb->cb;

	if (row)
		COUNT(settings.rows.shared, row->retransmits, BPF_CORE_READ(cb, tcp_gso_segs));
	return 0;
}

SEC("tp_btf/tcp_retransmit_synack")
int BPF_PROG(tcp_retransmit_synack, const struct sock *sk)
{
	struct net_stats *row = socket_stats(sk);

	if (row)
		COUNT(settings.rows.shared, row->retransmits, 1);
	return 0;
}

static __always_inline int queue_full(const struct sock *sk)
{
	struct net_stats *row = socket_stats(sk);

	if (row)
		COUNT(settings.rows.shared, row->full, 1);
	return 0;
}

SEC("tp_btf/sock_rcvqueue_full")
int BPF_PROG(sock_rcvqueue_full, struct sock *sk)
{
	return queue_full(sk);
}

SEC("tp_btf/udp_fail_queue_rcv_skb")
int BPF_PROG(udp_fail_queue_rcv_skb, int error, struct sock *sk)
{
	return queue_full(sk);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
