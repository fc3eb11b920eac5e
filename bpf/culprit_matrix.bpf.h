/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The tables of a culprit matrix, for CO-RE programs that keep their losses by CPU in a table of their own.
 */
#pragma once

#include "culprit_matrix.h"
#include "koord.bpf.h"

TABLE(matrix, struct culprit_entry);
TABLE(matrix_lost, struct culprit_lost);

static __always_inline struct culprit_entry *culprit_at(u32 i) { return bpf_map_lookup_elem(&matrix, &i); }

/*
 * `charge` on this CPU; mask: entries per CPU - 1. Not static: the verifier checks a global function once instead of at
 * every call, and this one is called in loops.
 */
__noinline int charge_culprit(u32 mask, u32 victim, u32 culprit, u64 ns)
{
	u32 cpu = bpf_get_smp_processor_id();

	charge(cpu * (mask + 1), mask, bpf_map_lookup_elem(&matrix_lost, &cpu), victim, culprit, ns);
	return 0;
}
