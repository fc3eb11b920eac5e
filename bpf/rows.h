/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * Rows of counters by CPU. Where a machine has more CPUs than rows, several CPUs count in one row, atomically, so that
 * the memory of a table does not grow with the number of CPUs (which is that of possible CPUs, often far above the
 * number that a virtual machine has). Independent of the kernel.
 */
#pragma once

struct row_config {
	u32 rows;
	u32 shared; /* 1: there are more CPUs than rows */
};

/* The row in which a CPU counts. CPU n and CPU n + rows are often the two threads of one core. */
static __always_inline u32 row_of(const volatile struct row_config *config, u32 cpu)
{
	return config->shared ? cpu % config->rows : cpu;
}

/* Adds to a counter of a row; a table's maximum is a plain store, so two CPUs at once may lose a larger one. */
#define COUNT(shared, counter, amount)                                \
	do {                                                          \
		if (shared)                                           \
			__sync_fetch_and_add(&(counter), (u64)(amount)); \
		else                                                  \
			(counter) += (amount);                        \
	} while (0)
