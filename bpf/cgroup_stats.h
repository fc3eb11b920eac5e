/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * What cgroup_stats hands to user space; koordlet/probes/cgroup_stats.py has the same layout as numpy types.
 */
#pragma once

#define CGROUP_STATS_MAX 8192

/* Which members of a row mean something. */
#define CGROUP_HAS_CPU 1    /* nr_periods, nr_throttled, throttled_ns */
#define CGROUP_HAS_USAGE 2  /* cpu_usage_ns */
#define CGROUP_HAS_MEMORY 4 /* memory_usage to lru */
#define CGROUP_HAS_PSI 8    /* psi */

/* One cgroup of one hierarchy, in the kernel's units: ns, pages. */
struct cgroup_stats_row {
	__u64 id;
	__u64 has;
	__u64 cpu_usage_ns;
	__u64 nr_periods;
	__u64 nr_throttled;
	__u64 throttled_ns;
	__s64 memory_usage;
	__s64 cache;
	__s64 rss;
	__s64 lru[5]; /* inactive anon, active anon, inactive file, active file, unevictable: the kernel's order */
	__u64 psi[6]; /* some and full of io, memory, cpu: the kernel's order */
};

struct cgroup_stats_control {
	__u64 rows; /* filled so far; user space starts a reading by writing 0 */
	__u64 lost; /* cgroups that found no row */
};
