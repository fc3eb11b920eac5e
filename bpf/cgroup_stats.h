/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The tables that cgroup_stats.bpf.c writes and koordlet/probes/cgroup_stats.py reads.
 *
 *   rows    [rows] one struct cgroup_stats_row per cgroup of the hierarchy that was walked last
 *   control [1]    how many of them are filled
 */
#pragma once

/* Which members of a row are set: bits of cgroup_stats_row.has. */
enum cgroup_has {
	CGROUP_HAS_CPU = 1,    /* nr_periods, nr_throttled, throttled_ns */
	CGROUP_HAS_USAGE = 2,  /* cpu_usage_ns */
	CGROUP_HAS_MEMORY = 4, /* memory_usage to unevictable */
	CGROUP_HAS_PSI = 8,    /* pressure */
};

/* One cgroup of one hierarchy, in the kernel's units: ns, pages. */
struct cgroup_stats_row {
	u64 id;
	u64 has;
	u64 cpu_usage_ns;
	u64 nr_periods;
	u64 nr_throttled;
	u64 throttled_ns;
	s64 memory_usage;
	s64 cache;
	s64 rss;
	s64 inactive_anon; /* this and the next four: the kernel's order */
	s64 active_anon;
	s64 inactive_file;
	s64 active_file;
	s64 unevictable;
	u64 pressure[6]; /* some and full of io, memory, cpu: the kernel's order */
};

struct cgroup_stats_control {
	u64 rows; /* filled so far; user space writes 0 to start a reading */
	u64 lost; /* cgroups that found no row */
};

/* Fixed at load. */
struct cgroup_stats_config {
	u32 cpus;     /* possible CPUs */
	u8 flush_css; /* 1: css_rstat_flush (v6.16), 0: cgroup_rstat_flush */
	u8 unified;   /* cgroup v2 */
	u8 reserved[2];
};
