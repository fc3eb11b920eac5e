// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
// Copyright The koordinator-py authors
//
// sched_latency.bpf.c: how long the tasks of a cgroup wait for a CPU, and which cgroups had the CPU meanwhile.
//
// One program, at sched_switch, does nearly everything, because the kernel itself keeps what a wakeup hook would
// record: task->sched_info.last_queued is the run queue's clock at which the task began to wait (wakeup, preemption,
// fork or move), and sched_info.run_delay is the waiting before that. Both are still set at sched_switch, just before
// the task's arrival clears them. Nothing is allocated, and a wakeup costs nothing.
//
// At a switch on CPU C at its clock T, prev -> next:
//   - prev gets a stamp: its number of runs, its run_delay, and whether it was preempted.
//   - next is the victim. It waited T - last_queued here, plus the growth of run_delay since its stamp (on CPUs that
//     it was moved away from). Throttled time is subtracted; the rest is added to its cgroup's histogram and charged,
//     slice by slice of the ring of recent runners of C, to its culprits. The part before a move is charged by the ring
//     of the CPU that it left: the CPU of its stamp if it was preempted, else that which sched_migrate_task noted.
//   - the ring records that next's cgroup runs from T on; consecutive runs of one cgroup are one slice.
// The program does not run for every switch (it misses about one in a thousand on some virtual machines). A missed
// switch is detected when prev is not the task that the ring records as running. Its wait and its slice are then
// added from sched_info. So the sum of a cgroup equals the run_delay of its tasks to the nanosecond, whatever is
// missed.
//
// Throttling. A task that CFS bandwidth control throttles waits too, but because of its own limit.
//   - v6.18 on: each task is throttled by itself on its way to user space (task->throttled). The wait begins with it
//     and ends when its cfs_rq's throttled_clock_self is added to ..._self_time.
//   - before: the whole cfs_rq leaves the queue, with its tasks queued or woken into it. throttle_clock() grows exactly
//     while that lasts. It is read when a task is preempted and, only if the group was ever throttled on that CPU, when
//     it is woken; the difference at arrival is the throttled part. v6.6 to v6.17 keep it in nanoseconds of the queue's
//     clock, v5.19 to v6.5 in PELT's, which may tick slower, so it is scaled to the wait.
#include "koord.bpf.h"

int charge_shared(unsigned long long key, unsigned long long ns);
#define CHARGE_SHARED charge_shared
#include "sched_latency_core.h"
#include "slots.bpf.h"

const volatile struct sched_latency_config settings SEC(".rodata.config");

TABLE(stats, struct slot_stats);
TABLE(matrix, struct culprit_entry);
TABLE(cpus, struct cpu_state);
TABLE(stamps, struct stamp);

static __always_inline u32 cgroup_mask(void) { return settings.slots.cgroup_mask; }
static __always_inline u32 matrix_mask(void) { return settings.matrix_mask; }
static __always_inline bool shared_rows(void) { return settings.rows.shared; }
static __always_inline struct culprit_entry *culprit_at(u32 i) { return bpf_map_lookup_elem(&matrix, &i); }
static __always_inline struct cpu_state *cpu_at(u32 i) { return bpf_map_lookup_elem(&cpus, &i); }

// Entries that are tried in the shared part: enough until it is three quarters full.
#define SHARED_PROBES 64

// Any CPU may add to an entry of the shared part. 1: charged, 0: it is full. Not static: checked by the verifier once.
__noinline int charge_shared(u64 key, u64 ns)
{
	u32 base = settings.cpus * (matrix_mask() + 1);
	struct culprit_entry *entry;
	u32 i;

	if (!settings.shared)
		return 0;
	i = claim_slot(culprit_key_at, base, culprit_hash(key), settings.shared - 1, SHARED_PROBES, key);
	entry = i == NO_SLOT ? NULL : culprit_at(i);
	if (!entry)
		return 0;
	__sync_fetch_and_add(&entry->count, 1);
	__sync_fetch_and_add(&entry->ns, ns);
	return 1;
}

static __always_inline struct slot_stats *stats_of(u32 cpu_id, u32 slot)
{
	u32 i = row_of(&settings.rows, cpu_id) * (cgroup_mask() + 1 + SPECIALS) + slot;

	return bpf_map_lookup_elem(&stats, &i);
}

static __always_inline struct stamp *stamp_of(u32 pid)
{
	u32 i = pid & settings.stamp_mask;

	return bpf_map_lookup_elem(&stamps, &i);
}

// In task_struct.on_rq: load balancing, or a new affinity, moves the task.
#define TASK_ON_RQ_MIGRATING 2

// Fields that not every kernel has; each flavour declares only those.
struct task_struct___v618 {
	bool throttled;
} __attribute__((preserve_access_index));

struct cfs_rq___v66 {
	u64 throttled_clock_self;
	u64 throttled_clock_self_time;
} __attribute__((preserve_access_index));

struct cfs_rq___v519 {
	int throttle_count;
	u64 throttled_clock_pelt;
	u64 throttled_clock_pelt_time;
} __attribute__((preserve_access_index));

#define TASK_BASED_THROTTLE bpf_core_field_exists(struct task_struct___v618, throttled)
#define SELF_CLOCK bpf_core_field_exists(struct cfs_rq___v66, throttled_clock_self_time)
#define PELT_CLOCK bpf_core_field_exists(struct cfs_rq___v519, throttled_clock_pelt_time)

static __always_inline u64 pelt_clock(struct rq *rq)
{
	return rq->clock_pelt - rq->lost_idle_time;
}

// How long this cfs_rq (or a parent) has been throttled so far, in ns of the clock that throttle_now() reads.
static __always_inline u64 throttle_clock(struct cfs_rq *cfs_rq, struct rq *rq)
{
	if (SELF_CLOCK) {
		struct cfs_rq___v66 *q = (void *)cfs_rq;
		u64 since = q->throttled_clock_self;

		return q->throttled_clock_self_time + (since ? rq->clock - since : 0);
	}
	if (PELT_CLOCK) {
		struct cfs_rq___v519 *q = (void *)cfs_rq;

		return q->throttled_clock_pelt_time +
		       (q->throttle_count ? pelt_clock(rq) - q->throttled_clock_pelt : 0);
	}
	return 0;
}

static __always_inline u64 throttle_now(struct rq *rq)
{
	return !SELF_CLOCK && PELT_CLOCK ? pelt_clock(rq) : rq->clock;
}

static __always_inline void stamp_throttle(struct stamp *stamp, struct cfs_rq *cfs_rq, struct rq *rq)
{
	stamp->throttle_base = throttle_clock(cfs_rq, rq);
	stamp->pelt_base = throttle_now(rq);
	stamp->flags |= STAMP_THROTTLE;
}

// The throttled part of the wait that began at stamp->clock_ns.
static __always_inline u64 throttled_part(struct stamp *stamp, struct cfs_rq *cfs_rq, struct rq *rq, u64 wait)
{
	u64 part = throttle_clock(cfs_rq, rq) - stamp->throttle_base;
	u64 elapsed = throttle_now(rq) - stamp->pelt_base;

	if ((s64)part <= 0)
		return 0;
	if (!SELF_CLOCK) {
		// In units of 1.024 us, so that the product of two waits of up to an hour fits into 64 bits.
		elapsed >>= 10;
		if (elapsed)
			part = (part >> 10) * (wait >> 10) / elapsed << 10;
	}
	return part < wait ? part : wait;
}

// Core scheduling (v5.14, CONFIG_SCHED_CORE). Each flavour declares only its fields.
struct task_struct___core {
	unsigned long core_cookie;
} __attribute__((preserve_access_index));

struct rq___core {
	struct rq___core *core;
	unsigned int core_enabled;
	int cpu;
} __attribute__((preserve_access_index));

#define CORE_SCHEDULING bpf_core_field_exists(struct rq___core, core_enabled)

// The task's cookie, 0 = none: the address of an object of 8 bytes. The rest tells cookies within 32 GiB apart.
static __always_inline u32 short_cookie(struct task_struct *task)
{
	return CORE_SCHEDULING ? ((struct task_struct___core *)task)->core_cookie >> 3 : 0;
}

// Which CPUs share the core. rq->core is the run queue of one of them; the table has what the kernel has no field for.
static __always_inline void note_sibling(struct cpu_state *cpu, u32 cpu_id, struct rq___core *rq)
{
	u32 first = rq->core->cpu;
	struct cpu_state *other;

	if (first == cpu_id)
		return;
	other = cpu_at(first);
	if (!other)
		return;
	cpu->sibling = first + 1;
	other->sibling = cpu_id + 1;
}

// A wait that ended at `end`: `here` ns on this CPU's queue, `before` ns elsewhere. stamp is NULL or the task's own.
static __always_inline void account(struct task_struct *task, u32 slot, struct stamp *stamp, struct cpu_state *cpu,
				    u32 cpu_id, struct rq *rq, u64 here, u64 before, u64 end)
{
	u64 throttled = 0;
	bool preempted = false, moved = false;

	cpu->waiter = short_cookie(task);
	if (stamp && stamp->runs == (u32)task->sched_info.pcount) {
		preempted = stamp->flags & STAMP_PREEMPTED;
		moved = stamp->flags & STAMP_MOVED;
		if (stamp->flags & STAMP_THROTTLE) {
			if (stamp->cpu == cpu_id) {
				throttled = throttled_part(stamp, task->se.cfs_rq, rq, here);
				here -= throttled;
			} else if (TASK_BASED_THROTTLE) {
				// Moved while throttled: no culprit for the time before.
				throttled = before;
				before = 0;
			}
		}
	}
	if (throttled)
		count_throttled(stats_of(cpu_id, slot), throttled);
	// A preempted task began to wait on the CPU that it left, any other on the CPU from which it was moved.
	if (before && preempted)
		charge_slices(cpu_id, stamp->cpu, slot, stamp->clock_ns, stamp->clock_ns + before);
	else if (before && moved)
		charge_slices(cpu_id, stamp->cpu, slot, stamp->clock_ns - before, stamp->clock_ns);
	else if (before)
		charge_slice(cpu_id, cpu, slot, special_slot(cgroup_mask(), SLOT_MOVED), before);
	count_wait(stats_of(cpu_id, slot), here + before, preempted);
	if (here)
		charge_wait(cpu_id, cpu, slot, end - here, end);
}

static __always_inline void arrive(struct task_struct *next, u32 pid, u32 slot, struct cpu_state *cpu, u32 cpu_id,
				   u64 now, struct rq *rq)
{
	struct stamp *stamp = stamp_of(pid);
	u64 tag = task_tag(next, pid);
	u64 queued = next->sched_info.last_queued;
	u64 run_delay = next->sched_info.run_delay;
	u64 here = queued ? now - queued : 0, before = 0;
	bool known, preempted_late = false;

	if (!stamp)
		return;
	known = stamp->tag == tag;
	if (known) {
		before = run_delay - stamp->run_delay;
		// Preempted on its way to sleep: the kernel did not mark it as queued.
		if (queued == 0 && stamp->flags & STAMP_PREEMPTED && stamp->cpu == cpu_id) {
			preempted_late = true;
			here = now - stamp->clock_ns;
		}
	} else if (next->sched_info.pcount == 0) {
		before = run_delay;
	} else {
		cpu->forgotten++;
	}
	if ((s64)here < 0 || (s64)before < 0)
		cpu->backwards++;
	else if (queued == 0 && before == 0 && !preempted_late)
		cpu->unstamped++;
	else
		account(next, slot, known ? stamp : NULL, cpu, cpu_id, rq, here, before, now);
	// The task's run_delay once it runs. It is the same when the task leaves, unless a switch was missed.
	stamp->tag = tag;
	stamp->run_delay = run_delay + (queued ? now - queued : 0);
}

// A switch that the program missed. The kernel still has the time at which prev arrived and how long it had waited.
OUT_OF_LINE int add_missed_switch(struct task_struct *prev, u32 pid, struct cpu_state *cpu, u32 cpu_id, struct rq *rq)
{
	struct stamp *stamp = stamp_of(pid);
	u64 arrived = prev->sched_info.last_arrival;
	u32 slot = slot_of(&settings.slots, prev, pid, &cpu->slot_lost);

	cpu->missed++;
	if (stamp && stamp->tag == task_tag(prev, pid)) {
		u64 wait = prev->sched_info.run_delay - stamp->run_delay;

		stamp->runs++; // account() expects the number of runs before the arrival plus one
		if ((s64)wait > 0)
			account(prev, slot, stamp, cpu, cpu_id, rq, wait, 0, arrived);
	}
	note_runner(cpu, slot, short_cookie(prev), arrived);
	return 0;
}

static __always_inline void leave(struct task_struct *prev, u32 pid, bool preempt, u32 cpu_id, u64 now, struct rq *rq)
{
	struct stamp *stamp = stamp_of(pid);

	if (!stamp)
		return;
	stamp->tag = task_tag(prev, pid);
	stamp->runs = prev->sched_info.pcount;
	stamp->run_delay = prev->sched_info.run_delay;
	stamp->clock_ns = now;
	stamp->cpu = cpu_id;
	stamp->flags = 0;
	if (preempt || prev->__state == TASK_RUNNING) {
		stamp->flags = STAMP_PREEMPTED;
		if (!TASK_BASED_THROTTLE || ((struct task_struct___v618 *)prev)->throttled)
			stamp_throttle(stamp, prev->se.cfs_rq, rq);
	}
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u32 cpu_id = bpf_get_smp_processor_id();
	struct cpu_state *cpu = cpu_at(cpu_id);
	struct rq *rq = next->se.cfs_rq->rq;
	u64 now = rq->clock;
	u32 prev_pid = prev->pid;
	u32 pid = next->pid;
	u32 slot;

	if (!cpu)
		return 0;
	if (CORE_SCHEDULING && ((struct rq___core *)rq)->core_enabled && !cpu->sibling)
		note_sibling(cpu, cpu_id, (struct rq___core *)rq);
	if (prev_pid) {
		if (cpu->pid != prev_pid)
			add_missed_switch(prev, prev_pid, cpu, cpu_id, rq);
		leave(prev, prev_pid, preempt, cpu_id, now, rq);
	}
	slot = slot_of(&settings.slots, next, pid, &cpu->slot_lost);
	if (pid)
		arrive(next, pid, slot, cpu, cpu_id, now, rq);
	note_runner(cpu, slot, short_cookie(next), now);
	cpu->pid = pid;
	return 0;
}

// A task changes its CPU. If it waits, the kernel has just taken it off the queue that it waited in.
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(sched_migrate_task, struct task_struct *task)
{
	struct rq *rq = task->se.cfs_rq->rq;
	u32 pid = task->pid;
	struct stamp *stamp;

	if (task->on_rq != TASK_ON_RQ_MIGRATING)
		return 0; // it sleeps, and is about to be woken on the other CPU
	stamp = stamp_of(pid);
	if (!stamp)
		return 0;
	if (stamp->tag != task_tag(task, pid)) {
		if (task->sched_info.pcount)
			return 0;
		stamp->tag = task_tag(task, pid); // it has not run yet
		stamp->runs = 0;
		stamp->run_delay = 0;
		stamp->flags = 0;
	} else if (stamp->flags & STAMP_PREEMPTED || stamp->runs != (u32)task->sched_info.pcount) {
		return 0;
	}
	stamp->clock_ns = rq->clock;
	stamp->cpu = rq->cpu;
	stamp->flags |= STAMP_MOVED;
	return 0;
}

// Loaded only where whole queues are throttled (before v6.18).
static __always_inline int woken(struct task_struct *task)
{
	struct cfs_rq *cfs_rq = task->se.cfs_rq;
	struct rq *rq = cfs_rq->rq;
	u32 pid = task->pid;
	struct stamp *stamp;

	if (!throttle_clock(cfs_rq, rq) || !pid)
		return 0;
	stamp = stamp_of(pid);
	if (!stamp)
		return 0;
	if (stamp->tag != task_tag(task, pid)) {
		stamp->tag = task_tag(task, pid);
		stamp->run_delay = task->sched_info.run_delay;
	} else if (stamp->flags & STAMP_PREEMPTED && stamp->runs == (u32)task->sched_info.pcount) {
		return 0; // it did not leave the queue
	}
	stamp->runs = task->sched_info.pcount;
	stamp->clock_ns = rq->clock;
	stamp->cpu = rq->cpu;
	stamp->flags = 0;
	stamp_throttle(stamp, cfs_rq, rq);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(sched_wakeup, struct task_struct *task)
{
	return woken(task);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(sched_wakeup_new, struct task_struct *task)
{
	return woken(task);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
