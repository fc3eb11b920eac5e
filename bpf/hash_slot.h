/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * Open addressing in BPF arrays. Each entry begins with a u64 key; key 0 marks a free entry. The distance to the next
 * entry tried grows by one each time (triangular numbers): keys in sequence would form long runs of used entries.
 *
 * `key_at` returns a pointer to the key of entry i, or NULL beyond the table. It is always inlined, so no indirect call
 * remains. `base` is the index of the table's first entry (a CPU's part of a per-CPU table, else 0); `mask` is the
 * number of entries - 1, a power of two minus one. Both functions return the entry's index, or NO_SLOT.
 */
#pragma once

/* Entries that are tried before a key counts as lost. */
#define PROBES 8

#define NO_SLOT ((u32)-1)

/* The entry with this key. Goes on past free entries: one that stood in between may have been removed. */
static __always_inline u32 find_slot(u64 *(*key_at)(u32 i), u32 base, u32 hash, u32 mask, u32 probes, u64 key)
{
	u32 n;

	for (n = 0; n < probes; n++) {
		u32 slot = base + ((hash += n) & mask);
		u64 *entry = key_at(slot);

		if (!entry)
			break;
		if (READ_ONCE(*entry) == key)
			return slot;
	}
	return NO_SLOT;
}

/* The entry with this key, or the first free entry, which gets the key. Safe against other CPUs: compare-and-swap. */
static __always_inline u32 claim_slot(u64 *(*key_at)(u32 i), u32 base, u32 hash, u32 mask, u32 probes, u64 key)
{
	u32 n;

	for (n = 0; n < probes; n++) {
		u32 slot = base + ((hash += n) & mask);
		u64 *entry = key_at(slot);
		u64 seen;

		if (!entry)
			break;
		seen = READ_ONCE(*entry);
		if (seen == 0)
			seen = __sync_val_compare_and_swap(entry, 0, key);
		if (seen == 0 || seen == key)
			return slot;
	}
	return NO_SLOT;
}
