// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
// Copyright The koordinator-py authors
//
// net_stall.bpf.c: what the network costs each cgroup: segments sent again, CPU time taken by network softirqs, and
// received data that nobody reads.
//
// Whose a socket is: on v2 the cgroup of who made it (sk_cgrp_data). The same field names a group of the unified tree on
// v1, where containers have one if their runtime mirrors them there; otherwise the socket's network namespace stands for
// its pod. Accepted connections inherit from the listener's.
//
// Softirqs. From softirq_entry to softirq_exit (NET_RX, NET_TX) the task on the CPU is the victim. Meanwhile each packet
// tells for whom the time from now on is spent: first its device's network namespace (netif_receive_skb), then, for
// established TCP, its socket's owner (tcp_probe). What comes before the first packet is the kernel's own work.
// To blame is the receiver, unless the victim itself raised the softirq: who sends a packet works off its way through the
// machine at once. ksoftirqd is a victim, too, so that waiting for it has receivers.
#include "koord.bpf.h"
#include "slots.h"

#include "net_stall.h"
#include "owners.h"

const volatile struct net_config settings SEC(".rodata.config");

#include "slots.bpf.h"

#include "blame.bpf.h"

#define NET_TX_SOFTIRQ 2
#define NET_RX_SOFTIRQ 3

#define SERVING_SOFTIRQ 0x100
#define HARDIRQ_MASK 0xf0000

// x86 keeps the count of what forbids preemption per CPU, v6.2 to v6.14 in here.
struct pcpu_hot___v62 {
	int preempt_count;
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
	slot += cpu * (cgroup_mask() + 1 + SPECIALS);
	return bpf_map_lookup_elem(&stats, &slot);
}

// What this CPU does besides running a task. It has no address that a program could ask for, but lies in the same area
// as the run queue.
static __always_inline u32 preempt_count(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 at = (u64)task->se.cfs_rq->rq + (s64)settings.preempt_count;
	u32 count = 0;

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

	if (cgroup && settings.cgroup_v2)
		return tag_of(SPACE_TASK, cgroup->kn->id);
	if (cgroup && cgroup->level)
		return tag_of(SPACE_UNIFIED, cgroup->kn->id);
	return tag_of(SPACE_NETNS, sk->__sk_common.skc_net.net->ns.inum);
}

static __always_inline struct net_stats *socket_stats(const struct sock *sk)
{
	u32 cpu;
	struct net_cpu *own = this_cpu(&cpu);

	return own ? stats_of(cpu, cgroup_slot(socket_owner(sk), &own->slot_lost)) : NULL;
}

// The time since the mark belongs to the present owner.
static __always_inline void settle(struct net_cpu *own, u32 cpu, u64 now)
{
	struct net_stats *row = stats_of(cpu, own->owner_slot);
	u64 spent = now - own->mark_ns;

	if (row)
		row->caused_ns += spent;
	if (own->victim <= cgroup_mask() || own->victim == SPECIAL(SLOT_KSOFTIRQD))
		charge(own->victim, own->own ? own->victim : own->owner_slot, spent);
	own->mark_ns = now;
}

static __always_inline void works_for(struct net_cpu *own, u32 cpu, u64 owner)
{
	if (own->start_ns == 0 || own->owner == owner)
		return;
	settle(own, cpu, bpf_ktime_get_ns());
	own->owner = owner;
	own->owner_slot = cgroup_slot(owner, &own->slot_lost);
}

// Who wants the next softirq of this CPU. Loaded only where the count is known; without it that is never a task.
SEC("tp_btf/softirq_raise")
int BPF_PROG(softirq_raise, unsigned int vector)
{
	struct net_cpu *own;
	u32 cpu, count;

	if (vector != NET_RX_SOFTIRQ && vector != NET_TX_SOFTIRQ)
		return 0;
	own = this_cpu(&cpu);
	if (!own)
		return 0;
	count = preempt_count();
	if (count & HARDIRQ_MASK)
		own->raised |= RAISED_ELSEWHERE;
	else if (count & SERVING_SOFTIRQ) // what runs goes on, or another kind of softirq sends
		own->raised |= own->start_ns && own->own ? RAISED_BY_TASK : RAISED_ELSEWHERE;
	else
		own->raised |= RAISED_BY_TASK;
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_entry, unsigned int vector)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct net_cpu *own;
	u32 cpu;

	if (vector != NET_RX_SOFTIRQ && vector != NET_TX_SOFTIRQ)
		return 0;
	own = this_cpu(&cpu);
	if (!own)
		return 0;
	own->victim = slot_of(task, task->pid, &own->slot_lost);
	own->own = own->raised == RAISED_BY_TASK && own->victim <= cgroup_mask();
	own->raised = 0;
	own->owner = 0;
	own->owner_slot = SPECIAL(SLOT_KTHREAD);
	own->mark_ns = own->start_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_exit, unsigned int vector)
{
	struct net_stats *row;
	struct net_cpu *own;
	u64 now, spent, b;
	u32 cpu;

	if (vector != NET_RX_SOFTIRQ && vector != NET_TX_SOFTIRQ)
		return 0;
	own = this_cpu(&cpu);
	if (!own || own->start_ns == 0)
		return 0;
	now = bpf_ktime_get_ns();
	spent = now - own->start_ns;
	settle(own, cpu, now);
	own->start_ns = 0;
	row = stats_of(cpu, own->victim);
	if (!row)
		return 0;
	b = bucket_of(spent);
	asm volatile("%0 &= 31" : "+r"(b));
	row->softirq_hist[b]++;
	row->softirq_ns += spent;
	row->softirq_count++;
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(netif_receive_skb, struct sk_buff *skb)
{
	u32 cpu;
	struct net_cpu *own = this_cpu(&cpu);

	if (own)
		works_for(own, cpu, tag_of(SPACE_NETNS, skb->dev->nd_net.net->ns.inum));
	return 0;
}

SEC("tp_btf/tcp_probe")
int BPF_PROG(tcp_probe, struct sock *sk)
{
	u64 unread = sk->sk_backlog.rmem_alloc.counter + sk->sk_backlog.len;
	u64 owner = socket_owner(sk);
	u32 cpu;
	struct net_cpu *own = this_cpu(&cpu);
	struct net_stats *row;

	if (!own)
		return 0;
	works_for(own, cpu, owner);
	row = stats_of(cpu, own->owner == owner ? own->owner_slot : cgroup_slot(owner, &own->slot_lost));
	if (!row)
		return 0;
	row->backlog_sum += unread;
	row->backlog_count++;
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
		row->retransmits += BPF_CORE_READ(cb, tcp_gso_segs);
	return 0;
}

SEC("tp_btf/tcp_retransmit_synack")
int BPF_PROG(tcp_retransmit_synack, const struct sock *sk)
{
	struct net_stats *row = socket_stats(sk);

	if (row)
		row->retransmits++;
	return 0;
}

static __always_inline int queue_full(const struct sock *sk)
{
	struct net_stats *row = socket_stats(sk);

	if (row)
		row->full++;
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
