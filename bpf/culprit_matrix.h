/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The culprit matrix: (victim slot, culprit slot) -> how long and how often the victim waited because of the culprit.
 * Independent of the kernel: the CO-RE programs and the bcc program include it. koordlet/probes/culprits/reader.py
 * reads the table.
 *
 * Each CPU has its own part of an open-addressed table and is its only writer, with preemption off: plain additions
 * suffice. A pair that finds no entry there within PROBES goes to the part that all CPUs share, where the program has
 * one (CHARGE_SHARED), and counts as lost otherwise.
 */
#pragma once

#include "slots.h"

struct culprit_entry {
	u64 key; /* (victim slot + 1) << 16 | (culprit slot + 1); 0 = free */
	u64 count;
	u64 ns;
}; /* 24 bytes */

struct culprit_lost {
	u64 count; /* charges that found no entry ... */
	u64 ns;    /* ... and the time they stood for */
};

/* A pointer to matrix[i], or NULL. Each program defines it beside its table. */
static struct culprit_entry *culprit_at(u32 i);

static __always_inline u64 *culprit_key_at(u32 i)
{
	struct culprit_entry *entry = culprit_at(i);

	return entry ? &entry->key : NULL;
}

static __always_inline u32 culprit_hash(u64 key)
{
	u32 hash = ((u32)key ^ (u32)key >> 13) * 0x9e3779b1u;

	return hash ^ hash >> 15;
}

/* Charges a pair in the shared part; false if there is none or it is full. */
#ifndef CHARGE_SHARED
#define CHARGE_SHARED(key, ns) false
#endif

/* A new pair, or an entry that another pair holds. */
OUT_OF_LINE int charge_probe(u32 base, u32 mask, struct culprit_lost *lost, u64 key, u64 ns)
{
	u32 slot = claim_slot(culprit_key_at, base, culprit_hash(key), mask, PROBES, key);
	struct culprit_entry *entry = slot == NO_SLOT ? NULL : culprit_at(slot);

	if (entry) {
		entry->count++;
		entry->ns += ns;
	} else if (!CHARGE_SHARED(key, ns) && lost) {
		lost->count++;
		lost->ns += ns;
	}
	return 0;
}

/* Charge ns of a victim's waiting to a culprit, in the part of the table that begins at `base`. */
static __always_inline void charge(u32 base, u32 mask, struct culprit_lost *lost, u32 victim, u32 culprit, u64 ns)
{
	u64 key = (u64)(victim + 1) << 16 | (culprit + 1);
	struct culprit_entry *entry = culprit_at(base + (culprit_hash(key) & mask));

	if (entry && entry->key == key) {
		entry->count++;
		entry->ns += ns;
	} else {
		charge_probe(base, mask, lost, key, ns);
	}
}
