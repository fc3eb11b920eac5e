// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
// Copyright The koordinator-py authors
//
// block_io.bpf.c: the requests of each cgroup to each disk, how long they wait, and whose requests the disk served
// first.
//
// A bio gets a stamp when it enters the block layer (block_bio_queue, or block_split for a part that was split off),
// after blk-throttle has released it. block_rq_issue finds the stamp through the request's first bio. Everything is
// counted at block_rq_complete, on the CPU that completes: queue time (arrival to issue), device time (issue to
// completion), bytes.
//
// Culprits. A disk is modelled as a server that works for one request at a time, each from the completion before it to
// its own. These slices of service are kept in a ring; adjacent slices of one owner are one slice. From its arrival to
// the beginning of its own slice a request waited for the owners of the slices in between; time in which the disk did
// nothing is charged to "idle". The parts add up to the wait. On a disk that serves many requests at once a slice is a
// share of its throughput.
//
// The owner of a bio. A bio of a user task belongs to the task's cgroup, whatever the kernel charges. Work of kernel
// threads (write-back, loop, released bios) and swapping belong to the bio's blkcg, else to the memory cgroup of its
// first page, else to the kind of thread. On v1 those ids are of other hierarchies; the tag names the hierarchy, and
// user space translates the ids.
//
// Throttling. No tracepoint fires when a bio is throttled. But when it is the next bio of its queue to be released,
// the throttle's timer is armed for it (timer_start): by its submitter, by a change of a limit, or by the timer
// itself, in an interrupt of an unrelated task. So the queue identifies the owner, not the task. From then on the
// group counts as throttled by its own limit for as long as the throttle queue of the group or of an ancestor holds a
// bio whenever one of its bios is released.
#include "koord.bpf.h"

#include "block_io.h"
#include "culprit_matrix.bpf.h"
#include "owners.h"
#include "slots.bpf.h"

const volatile struct io_config settings SEC(".rodata.config");

#define REQ_OP_MASK 0xff
#define FIBONACCI 0x9e3779b97f4a7c15ull

enum probe_limits {
	PAIR_PROBES = 2 * PROBES, /* pairs are hashed, so they collide more often than ids, which are in sequence */
	REQUEST_PROBES = 4,       /* requests leave within milliseconds, so the table is mostly empty */
	BLKCG_POLICIES = 6,       /* entries of blkcg_gq.pd that are searched: BLKCG_MAX_POLS of the kernel */
	THROTTLE_LEVELS = 6,      /* levels of cgroups whose throttle queues are counted */
	THROTTLE_DEPTH = 8,       /* levels of throttle queues up to the disk's own */
};

TABLE(stats, struct io_stats);
TABLE(held, u64);
TABLE(devices, struct io_device);
TABLE(bios, struct io_bio);
TABLE(requests, struct io_request);
TABLE(cpus, struct io_cpu);

static __always_inline struct io_cpu *this_cpu(u32 *cpu)
{
	*cpu = bpf_get_smp_processor_id();
	return bpf_map_lookup_elem(&cpus, cpu);
}

static __always_inline u64 number(const void *pointer)
{
	return pointer_number(pointer, &settings);
}

static __always_inline struct io_device *device_at(u32 i) { return bpf_map_lookup_elem(&devices, &i); }
static __always_inline struct io_stats *stats_of(u32 cpu, u32 slot)
{
	slot += row_of(&settings.rows, cpu) * (settings.slots.cgroup_mask + 1 + SPECIALS);
	return bpf_map_lookup_elem(&stats, &slot);
}

static __always_inline struct io_bio *bio_at(u64 bio)
{
	u32 i = (u32)((bio >> 6) * FIBONACCI >> 40) & settings.bio_mask;

	return bpf_map_lookup_elem(&bios, &i);
}

static __always_inline struct io_request *request_at(u32 i) { return bpf_map_lookup_elem(&requests, &i); }

static __always_inline u64 *request_key_at(u32 i)
{
	struct io_request *entry = request_at(i);

	return entry ? &entry->request : NULL;
}

static __always_inline u32 request_hash(u64 request)
{
	return (request >> 6) * FIBONACCI >> 40;
}

static __always_inline struct io_request *find_request(u64 request)
{
	u32 slot = find_slot(request_key_at, 0, request_hash(request), settings.request_mask, REQUEST_PROBES, request);

	return slot == NO_SLOT ? NULL : request_at(slot);
}

// Its entry, or a new one. Searched first: requests leave, so a free entry may stand before the request's own.
static __always_inline struct io_request *claim_request(u64 request)
{
	struct io_request *entry = find_request(request);
	u32 slot;

	if (entry)
		return entry;
	slot = claim_slot(request_key_at, 0, request_hash(request), settings.request_mask, REQUEST_PROBES, request);
	entry = slot == NO_SLOT ? NULL : request_at(slot);
	if (entry)
		entry->bio = 0;
	return entry;
}

static __always_inline u64 *device_key_at(u32 i)
{
	struct io_device *device = device_at(i);

	return device ? &device->tag : NULL;
}

// The disk's index, DEVICES when all are taken.
static __always_inline u32 device_at_number(u32 major, u32 minor)
{
	u64 tag = ((u64)major << 20 | minor) + 1;
	u32 slot = claim_slot(device_key_at, 0, major * 31 + minor, DEVICES - 1, PROBES, tag);

	return slot == NO_SLOT ? DEVICES : slot;
}

static __always_inline u32 device_of(struct gendisk *disk)
{
	return device_at_number(disk->major, disk->first_minor);
}

static __always_inline u64 owner_tag(u32 space, u64 id)
{
	return (u64)space << TAG_SPACE_SHIFT | (id & ((1ull << TAG_DEVICE_SHIFT) - 1));
}

// The pair's slot.
static __always_inline u32 pair_slot(u64 owner, u32 device, u64 *lost)
{
	u64 tag = owner | (u64)device << TAG_DEVICE_SHIFT;
	u32 slot = claim_slot(tag_at, 0, tag * FIBONACCI >> 40, settings.slots.cgroup_mask, PAIR_PROBES, tag);

	if (slot != NO_SLOT)
		return slot;
	(*lost)++;
	return special_slot(settings.slots.cgroup_mask, SLOT_OVERFLOW);
}

static __always_inline u64 special_owner(struct task_struct *task)
{
	return owner_tag(SPACE_SPECIAL, task_kthread_kind(task));
}

// The memory cgroup that a bio's first page is charged to; 0 = none, or the root.
static __always_inline u64 page_owner(struct bio *bio)
{
	struct page *page = bio->bi_io_vec->bv_page;
	unsigned long head, data;
	struct mem_cgroup *memcg;

	head = BPF_CORE_READ(page, compound_head);
	if (head & 1)
		page = (void *)(head - 1);
	data = BPF_CORE_READ(page, memcg_data);
	if (!data || data & 3)
		return 0;
	memcg = (void *)data;
	if (!BPF_CORE_READ(memcg, css.parent))
		return 0;
	return owner_tag(settings.slots.cgroup_v2 ? SPACE_TASK : SPACE_MEMORY,
			 BPF_CORE_READ(memcg, css.cgroup, kn, id));
}

static __always_inline u64 blkcg_owner(u64 id)
{
	return owner_tag(settings.slots.cgroup_v2 ? SPACE_TASK : SPACE_BLKIO, id);
}

static __always_inline bool swaps(struct bio *bio)
{
	return bio->bi_opf >> bpf_core_enum_value(enum req_flag_bits, __REQ_SWAP) & 1;
}

static __always_inline u64 bio_owner(struct bio *bio, struct task_struct *task)
{
	struct blkcg_gq *blkg = bio->bi_blkg;
	u32 op = bio->bi_opf & REQ_OP_MASK;
	u64 id = 0;

	if (!(task->flags & PF_KTHREAD) && task->pid && !swaps(bio))
		return owner_tag(SPACE_TASK, task_cgroup_id(&settings.slots, task));
	if (blkg && blkg->parent)
		return blkcg_owner(blkg->blkcg->css.cgroup->kn->id);
	// Blocks of the journal belong to no cgroup, whatever cgroup their page was charged to first.
	if (op <= REQ_OP_WRITE && bio->bi_iter.bi_size &&
	    !(bio->bi_opf >> bpf_core_enum_value(enum req_flag_bits, __REQ_META) & 1))
		id = page_owner(bio);
	return id ?: special_owner(task);
}

struct throtl_service_queue___v617 {
	unsigned int nr_queued_bps[2];
	unsigned int nr_queued_iops[2];
} __attribute__((preserve_access_index));

struct throtl_service_queue___v616 {
	unsigned int nr_queued[2];
} __attribute__((preserve_access_index));

static __always_inline u32 queued_in(struct throtl_service_queue *queue)
{
	u32 n[4] = {};

	if (bpf_core_field_exists(struct throtl_service_queue___v617, nr_queued_bps)) {
		struct throtl_service_queue___v617 *q = (void *)queue;

		bpf_core_read(n, 8, &q->nr_queued_bps);
		bpf_core_read(n + 2, 8, &q->nr_queued_iops);
	} else {
		struct throtl_service_queue___v616 *q = (void *)queue;

		bpf_core_read(n, 8, &q->nr_queued);
	}
	return n[0] + n[1] + n[2] + n[3];
}

// The number of bios in the throttle queues of this group and its ancestors.
OUT_OF_LINE u32 throttled_bios(struct blkcg_gq *blkg)
{
	struct request_queue *q = BPF_CORE_READ(blkg, q);
	struct throtl_service_queue *queue = NULL;
	u32 i, total = 0;

	for (i = 0; i < BLKCG_POLICIES; i++) {
		struct throtl_grp *group = NULL;

		// The index of the throttling policy is not stable. Only its groups point back to the disk's queue.
		bpf_core_read(&group, sizeof(group), &blkg->pd[i]);
		if (group && BPF_CORE_READ(group, td, queue) == q) {
			queue = &group->service_queue;
			break;
		}
	}
	for (i = 0; queue && i < THROTTLE_LEVELS; i++) {
		struct throtl_service_queue *parent = BPF_CORE_READ(queue, parent_sq);

		if (!parent) // the disk's own queue
			break;
		total += queued_in(queue);
		queue = parent;
	}
	return total;
}

// A bio of this owner was released. Account for its throttling, and note whether another one is still throttled.
static __always_inline void released(struct bio *bio, u64 owner, u64 now)
{
	u32 cpu, device, slot, left;
	struct io_cpu *lost = this_cpu(&cpu);
	struct blkcg_gq *blkg = bio->bi_blkg;
	struct io_stats *row;
	u64 *since;

	device = device_of(bio->bi_bdev->bd_disk);
	if (!lost || device == DEVICES)
		return;
	left = throttled_bios(blkg);
	slot = pair_slot(owner, device, &lost->slot_lost);
	since = bpf_map_lookup_elem(&held, &slot);
	if (!since)
		return;
	if (*since && *since < now) {
		row = stats_of(cpu, slot);
		if (row) {
			COUNT(settings.rows.shared, row->throttled_ns, now - *since);
			COUNT(settings.rows.shared, row->throttled_count, 1);
		}
	}
	*since = left ? now : 0;
}

// The disk's own flush has no bio, and serves all that asked for one since the last. The disk works for the latest of
// them; requests, times and bytes count for the kernel thread, because each empty flush is counted for itself.
static __always_inline void note_flush(struct bio *bio, u64 owner)
{
	struct io_device *device;
	u32 i;

	if (!(bio->bi_opf >> bpf_core_enum_value(enum req_flag_bits, __REQ_PREFLUSH) & 1))
		return;
	i = device_of(bio->bi_bdev->bd_disk);
	device = i == DEVICES ? NULL : device_at(i);
	if (device)
		device->flush_owner = owner;
}

static __always_inline int arrived(struct bio *bio)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct io_bio *stamp = bio_at(number(bio));
	u64 now = bpf_ktime_get_ns();

	if (!stamp)
		return 0;
	stamp->bio = number(bio);
	stamp->arrival_ns = now;
	stamp->owner = bio_owner(bio, task);
	note_flush(bio, stamp->owner);
	if (task->flags & PF_KTHREAD && bio->bi_blkg && bio->bi_blkg->parent)
		released(bio, stamp->owner, now);
	return 0;
}

SEC("tp_btf/block_bio_queue")
int BPF_PROG(block_bio_queue, struct bio *bio)
{
	return arrived(bio);
}

SEC("tp_btf/block_split")
int BPF_PROG(block_split, struct bio *bio)
{
	return arrived(bio);
}

struct throtl_qnode___v617 {
	struct bio_list bios_bps;
	struct bio_list bios_iops;
} __attribute__((preserve_access_index));

struct throtl_qnode___v616 {
	struct bio_list bios;
} __attribute__((preserve_access_index));

// The first bio in a throttle group's list of throttled bios, NULL = none.
static __always_inline struct bio *first_throttled(struct list_head *queued)
{
	struct list_head *first = BPF_CORE_READ(queued, next);
	void *node = (void *)first - bpf_core_field_offset(struct throtl_qnode, node);

	if (!first || (u64)first == (u64)queued)
		return NULL;
	if (bpf_core_field_exists(struct throtl_qnode___v617, bios_bps)) {
		struct throtl_qnode___v617 *n = node;

		return BPF_CORE_READ(n, bios_bps.head) ?: BPF_CORE_READ(n, bios_iops.head);
	}
	return BPF_CORE_READ((struct throtl_qnode___v616 *)node, bios.head);
}

// If this list holds a bio, its owner counts as throttled from now on, unless it already does.
OUT_OF_LINE int note_throttled(struct list_head *queued, u32 device)
{
	struct bio *bio = first_throttled(queued);
	struct blkcg_gq *blkg = bio ? BPF_CORE_READ(bio, bi_blkg) : NULL;
	u32 cpu, slot;
	struct io_cpu *lost = this_cpu(&cpu);
	u64 *since;

	if (!lost || !blkg || !BPF_CORE_READ(blkg, parent))
		return 0;
	slot = pair_slot(blkcg_owner(BPF_CORE_READ(blkg, blkcg, css.cgroup, kn, id)), device, &lost->slot_lost);
	since = bpf_map_lookup_elem(&held, &slot);
	if (since && *since == 0)
		*since = bpf_ktime_get_ns();
	return 0;
}

extern const void throtl_pending_timer_fn __ksym __weak;

// Not loaded on kernels without blk-throttle.
SEC("tp_btf/timer_start")
int BPF_PROG(timer_start, struct timer_list *timer)
{
	struct throtl_service_queue *queue;
	struct throtl_grp *group;
	struct throtl_data *data;
	struct rb_node *next;
	struct gendisk *disk;
	u32 i, device;

	if ((u64)timer->function != (u64)&throtl_pending_timer_fn)
		return 0;
	queue = (void *)timer - bpf_core_field_offset(struct throtl_service_queue, pending_timer);
	// The group below this queue whose bio is released next: the timer is armed for it.
	next = BPF_CORE_READ(queue, pending_tree.rb_leftmost);
	if (!next)
		return 0;
	group = (void *)next - bpf_core_field_offset(struct throtl_grp, rb_node);
	for (i = 0; i < THROTTLE_DEPTH; i++) {
		struct throtl_service_queue *parent = BPF_CORE_READ(queue, parent_sq);

		if (!parent)
			break;
		queue = parent;
	}
	data = (void *)queue - bpf_core_field_offset(struct throtl_data, service_queue);
	disk = BPF_CORE_READ(data, queue, disk);
	device = device_at_number(BPF_CORE_READ(disk, major), BPF_CORE_READ(disk, first_minor));
	if (device == DEVICES)
		return 0;
	note_throttled(&group->service_queue.queued[0], device);
	note_throttled(&group->service_queue.queued[1], device);
	return 0;
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(block_rq_issue, struct request *rq)
{
	u64 now = bpf_ktime_get_ns(), arrival = now, owner, id;
	struct gendisk *disk = rq->q->disk;
	u32 op = rq->cmd_flags & REQ_OP_MASK;
	struct bio *bio = rq->bio;
	struct io_request *entry;
	struct io_bio *stamp;
	u32 cpu, device;
	struct io_cpu *lost = this_cpu(&cpu);

	if (!lost || !disk || (!bio && op != REQ_OP_FLUSH))
		return 0; // a command of the driver itself
	device = device_of(disk);
	if (device == DEVICES) {
		lost->device_lost++;
		return 0;
	}
	entry = claim_request(number(rq));
	if (!entry) {
		lost->request_lost++;
		return 0;
	}
	id = number(bio);
	stamp = bio_at(id);
	if (!bio) {
		owner = owner_tag(SPACE_SPECIAL, SLOT_KTHREAD); // a flush of the disk
	} else if (stamp && stamp->bio == id) {
		owner = stamp->owner;
		arrival = stamp->arrival_ns;
		stamp->bio = 0;
	} else if (entry->bio == id) { // issued again because the disk was busy the first time
		entry->issue_ns = now;
		return 0;
	} else {
		owner = bio_owner(bio, bpf_get_current_task_btf());
		lost->unstamped++;
	}
	entry->bio = id;
	entry->arrival_ns = arrival < now ? arrival : now;
	entry->issue_ns = now;
	entry->device = device;
	entry->slot = pair_slot(owner, device, &lost->slot_lost);
	return 0;
}

// Charges the time from `from` until `end` to the owners that the disk served meanwhile, the latest slice first.
OUT_OF_LINE int split(struct io_device *device, u32 victim, u64 from, u64 end)
{
	u32 head = device->head;
	u64 idle = 0;
	u32 i;

	for (i = 0; i < IO_RING && end > from; i++) {
		struct io_slice *slice = &device->ring[(head - i) & (IO_RING - 1)];
		u64 start = slice->start_ns, stop = slice->end_ns;

		if (stop == 0 || start > stop)
			break;
		if (start >= end) // written after this request began to be served
			continue;
		if (start < from)
			start = from;
		if (stop < from)
			stop = from;
		if (stop < end) {
			idle += end - stop;
			end = stop;
		}
		if (start < end) {
			charge_culprit(settings.matrix_mask, victim, slice->slot, end - start);
			end = start;
		}
	}
	if (idle)
		charge_culprit(settings.matrix_mask, victim, special_slot(settings.slots.cgroup_mask, SLOT_IDLE), idle);
	if (end > from)
		charge_culprit(settings.matrix_mask, victim, special_slot(settings.slots.cgroup_mask, SLOT_OLDER),
			       end - from);
	return 0;
}

// Record that the disk worked for this slot from `start` to `now`.
static __always_inline void note_service(struct io_device *device, u32 slot, u64 start, u64 now)
{
	u32 head = device->head;
	struct io_slice *latest = &device->ring[head & (IO_RING - 1)];

	if (latest->slot == slot && latest->end_ns >= start && latest->end_ns) {
		latest->end_ns = now;
		return;
	}
	head = __sync_fetch_and_add(&device->head, 1) + 1;
	latest = &device->ring[head & (IO_RING - 1)];
	latest->end_ns = 0;
	latest->start_ns = start;
	latest->slot = slot;
	latest->end_ns = now;
}

static __always_inline u32 direction_of(u32 op)
{
	switch (op) {
	case REQ_OP_READ:
		return IO_READ;
	case REQ_OP_FLUSH:
		return IO_FLUSH;
	case REQ_OP_DISCARD:
	case REQ_OP_SECURE_ERASE:
		return IO_DISCARD;
	}
	return IO_WRITE;
}

// An empty flush completes without being in service itself.
static __always_inline void count_flush(struct request *rq, struct io_cpu *lost, u32 cpu, u64 now)
{
	struct bio *bio = rq->bio;
	u64 id = number(bio), queued;
	struct io_bio *stamp = bio_at(id);
	struct io_stats *row;
	u32 device;

	if (!bio || rq->__data_len || !stamp || stamp->bio != id)
		return;
	device = device_of(rq->q->disk);
	if (device == DEVICES)
		return;
	row = stats_of(cpu, pair_slot(stamp->owner, device, &lost->slot_lost));
	if (!row)
		return;
	stamp->bio = 0;
	queued = now - stamp->arrival_ns;
	COUNT(settings.rows.shared, row->queue_hist[1][bucket_of(queued)], 1);
	COUNT(settings.rows.shared, row->ops[IO_FLUSH], 1);
	COUNT(settings.rows.shared, row->queue_ns[IO_FLUSH], queued);
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(block_rq_complete, struct request *rq, int error, unsigned int bytes)
{
	u64 now = bpf_ktime_get_ns(), arrival, issue, start, hist, flush_owner;
	struct io_request *entry;
	struct io_device *device;
	struct io_stats *row;
	u32 cpu, slot, direction;
	struct io_cpu *lost = this_cpu(&cpu);

	if (!lost)
		return 0;
	entry = find_request(number(rq));
	if (!entry) {
		count_flush(rq, lost, cpu, now);
		return 0;
	}
	slot = entry->slot;
	direction = direction_of(rq->cmd_flags & REQ_OP_MASK) & 3;
	row = stats_of(cpu, slot);
	if (!row)
		return 0;
	COUNT(settings.rows.shared, row->bytes[direction], bytes);
	if (bytes < rq->__data_len)
		return 0; // a part of the request; the rest follows
	arrival = entry->arrival_ns;
	issue = entry->issue_ns;
	device = device_at(entry->device);
	flush_owner = device && direction == IO_FLUSH ? device->flush_owner : 0;
	entry->request = 0;
	if (!device || issue > now)
		return 0;
	hist = direction != IO_READ;
	COUNT(settings.rows.shared, row->queue_hist[hist][bucket_of(issue - arrival)], 1);
	COUNT(settings.rows.shared, row->device_hist[hist][bucket_of(now - issue)], 1);
	COUNT(settings.rows.shared, row->ops[direction], 1);
	COUNT(settings.rows.shared, row->queue_ns[direction], issue - arrival);
	COUNT(settings.rows.shared, row->device_ns[direction], now - issue);

	start = __sync_lock_test_and_set(&device->last_ns, now);
	if (start < issue)
		start = issue;
	if (start > now)
		start = now;
	if (start > arrival) {
		COUNT(settings.rows.shared, row->ahead_ns, start - arrival);
		split(device, slot, arrival, start);
	}
	if (flush_owner)
		slot = pair_slot(flush_owner, device_of(rq->q->disk), &lost->slot_lost);
	note_service(device, slot, start, now);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
