// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
// Copyright The koordinator-py authors
//
// cgroup_stats.bpf.c: the values of the files of all cgroups of a hierarchy, in one read.
//
// An iterator over cgroups, started by user space once per hierarchy (one on v2, up to three on v1). It writes one
// row per cgroup into a table that user space maps. Nothing is written to the seq_file: its single buffer would end
// the iteration when it is full. Every number is taken from where the kernel's own file takes it. What a file sums
// over the CPUs before it shows it (rstat) is summed once, at the first cgroup, which is the root of the walk: CPU
// time of v2 here, memory by user space, which reads that cgroup's memory.stat first (the kernel lets no program
// trigger it). The totals of pressure are as of the kernel's last averaging, up to 2 s ago; only reading the files
// brings them up to date.
#include "koord.bpf.h"

#include "cgroup_stats.h"

// Since v6.11 the kernel keeps only the items that memory cgroups use, in the order of a list that BTF does not show.
// User space compares one cgroup per tick with its file, so another order would be detected.
#define PACKED_ANON 14
#define PACKED_FILE 16

const volatile struct cgroup_stats_config settings SEC(".rodata.config");

TABLE(rows, struct cgroup_stats_row);
TABLE(control, struct cgroup_stats_control);

// Exists to have an address on every CPU: that address minus the per-CPU pointer that the kernel holds is the CPU's
// offset, which turns any per-CPU pointer into an address.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} anchor SEC(".maps");

extern void css_rstat_flush(struct cgroup_subsys_state *css) __weak __ksym;
extern void cgroup_rstat_flush(struct cgroup *cgrp) __weak __ksym;

struct cpuacct___any {
	struct cgroup_subsys_state css;
	u64 *cpuusage;
} __attribute__((preserve_access_index));

struct cpu_sum {
	u64 percpu; // the kernel's per-CPU pointer whose values are summed
	u64 anchor;
	u64 total;
};

// The verifier tracks pointers and refuses to add them; a copy read from memory is a plain number.
static __always_inline u64 number(const void *pointer)
{
	u64 copy = 0;

	bpf_probe_read_kernel(&copy, sizeof(copy), &pointer);
	return copy;
}

static long add_cpu(u32 cpu, struct cpu_sum *sum)
{
	u32 zero = 0;
	u64 *here = bpf_map_lookup_percpu_elem(&anchor, &zero, cpu);
	u64 value = 0;

	if (!here)
		return 1;
	bpf_probe_read_kernel(&value, sizeof(value), (void *)(sum->percpu + number(here) - sum->anchor));
	sum->total += value;
	return 0;
}

static __always_inline u64 sum_of_cpus(const void *percpu)
{
	void *pointers = (void *)number(&anchor) + bpf_core_field_offset(((struct bpf_array *)0)->pptrs);
	struct cpu_sum sum = { .percpu = (u64)percpu };

	bpf_probe_read_kernel(&sum.anchor, sizeof(sum.anchor), pointers);
	bpf_loop(settings.cpus, add_cpu, &sum, 0);
	return sum.total;
}

static __always_inline void read_memory(struct cgroup_stats_row *row, struct mem_cgroup *memcg)
{
	struct memcg_vmstats *vmstats = BPF_CORE_READ(memcg, vmstats);
	long *state = (long *)((void *)vmstats + bpf_core_field_offset(vmstats->state));
	u64 known = bpf_core_enum_value(enum memcg_stat_item, MEMCG_NR_STAT);
	bool packed = bpf_core_field_size(vmstats->state) / sizeof(long) < known;

	row->memory_usage = BPF_CORE_READ(memcg, memory.usage.counter);
	bpf_probe_read_kernel(&row->inactive_anon, 5 * sizeof(row->inactive_anon), state);
	bpf_probe_read_kernel(&row->rss, sizeof(row->rss),
			      state + (packed ? PACKED_ANON
					      : bpf_core_enum_value(enum node_stat_item, NR_ANON_MAPPED)));
	bpf_probe_read_kernel(&row->cache, sizeof(row->cache),
			      state + (packed ? PACKED_FILE : bpf_core_enum_value(enum node_stat_item, NR_FILE_PAGES)));
}

static __always_inline void read_cpu(struct cgroup_stats_row *row, struct task_group *group)
{
	row->nr_periods = BPF_CORE_READ(group, cfs_bandwidth.nr_periods);
	row->nr_throttled = BPF_CORE_READ(group, cfs_bandwidth.nr_throttled);
	row->throttled_ns = BPF_CORE_READ(group, cfs_bandwidth.throttled_time);
}

static __always_inline void read_pressure(struct cgroup_stats_row *row, struct cgroup *cgrp)
{
	struct psi_group *psi = cgrp->psi;

	if (!settings.unified || !psi)
		return; // cgroups of a v1 hierarchy have the structure, but the kernel counts nothing in it
	row->has |= CGROUP_HAS_PSI;
	bpf_probe_read_kernel(row->pressure, sizeof(row->pressure), (void *)psi + bpf_core_field_offset(psi->total));
}

SEC("iter.s/cgroup")
int cgroup_stats(struct bpf_iter__cgroup *ctx)
{
	struct cgroup *cgrp = ctx->cgroup;
	struct cgroup_stats_control *progress;
	struct cgroup_subsys_state *cpu, *cpuacct, *memory;
	struct cgroup_stats_row *row;
	u32 zero = 0, at;

	progress = bpf_map_lookup_elem(&control, &zero);
	if (!cgrp || !progress)
		return 0;
	if (ctx->meta->seq_num == 0 && settings.unified) {
		if (settings.flush_css)
			css_rstat_flush(&cgrp->self);
		else
			cgroup_rstat_flush(cgrp);
	}
	at = progress->rows;
	row = bpf_map_lookup_elem(&rows, &at);
	if (!row) {
		progress->lost++;
		return 0;
	}
	progress->rows = at + 1;
	row->id = cgrp->kn->id;
	row->has = 0;
	cpu = cgrp->subsys[bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id)];
	cpuacct = cgrp->subsys[bpf_core_enum_value(enum cgroup_subsys_id, cpuacct_cgrp_id)];
	memory = cgrp->subsys[bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id)];
	if (cpu) {
		row->has |= CGROUP_HAS_CPU;
		read_cpu(row, (struct task_group *)cpu);
	}
	if (settings.unified && cgrp->level > 0) {
		row->has |= CGROUP_HAS_USAGE;
		row->cpu_usage_ns = cgrp->bstat.cputime.sum_exec_runtime;
	} else if (!settings.unified && cpuacct) {
		row->has |= CGROUP_HAS_USAGE;
		row->cpu_usage_ns = sum_of_cpus(BPF_CORE_READ((struct cpuacct___any *)cpuacct, cpuusage));
	}
	if (memory) {
		row->has |= CGROUP_HAS_MEMORY;
		read_memory(row, (struct mem_cgroup *)memory);
	}
	read_pressure(row, cgrp);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
