/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * A bounded victim x culprit matrix per CPU: open-addressed (victim slot, culprit slot) -> time. Include it after
 * slots.bpf.h; `settings` has matrix_mask (entries per CPU - 1). Rows are written by their own CPU only. What finds no
 * place within PROBES is counted as lost. koordlet/probes/culprits/blame.py reads it.
 */
#pragma once

struct blame {
	u32 key; /* (victim slot + 1) << 16 | (culprit slot + 1); 0 = free */
	u32 reserved;
	u64 count;
	u64 ns;
}; /* 24 bytes */

struct blame_lost {
	u64 count; /* charges that found no place, and how much time they were worth */
	u64 ns;
};

TABLE(matrix, struct blame);
TABLE(blame_lost, struct blame_lost);

// Not static: the verifier looks at it once, not at every call in a loop.
__noinline int charge(u32 victim, u32 culprit, u64 ns)
{
	u32 key = (victim + 1) << 16 | (culprit + 1);
	u32 hash = (key ^ key >> 13) * 0x9e3779b1u;
	u32 cpu = bpf_get_smp_processor_id();
	u32 row = cpu * (settings.matrix_mask + 1);
	struct blame_lost *lost;
	u32 i;

	hash ^= hash >> 15;
	for (i = 0; i < PROBES; i++) {
		u32 at = row + ((hash + i) & settings.matrix_mask);
		struct blame *entry = bpf_map_lookup_elem(&matrix, &at);

		if (!entry)
			break;
		if (entry->key == 0)
			entry->key = key;
		if (entry->key == key) {
			entry->count++;
			entry->ns += ns;
			return 0;
		}
	}
	lost = bpf_map_lookup_elem(&blame_lost, &cpu);
	if (lost) {
		lost->count++;
		lost->ns += ns;
	}
	return 0;
}
