/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * Histograms of durations with buckets a factor of two apart. Independent of the kernel: the CO-RE programs and the bcc
 * program include it.
 */
#pragma once

/* Bucket 0 holds durations below 2^10 ns, bucket b holds [2^(9+b), 2^(10+b)) ns, the last bucket is open (>= 17 s). */
#define BUCKETS 26
#define FIRST_BUCKET_BITS 10

/*
 * The bucket of a duration. Call it directly before the array access.
 *
 * The result is below BUCKETS by construction. Older verifiers (seen on v6.1) lose that bound when the compiler
 * spills the value to the stack, and then refuse the array access. The mask restores a bound of 31, which still lies
 * inside the structures that hold a histogram. It is inline assembly because the compiler would remove a mask that
 * changes nothing.
 */
static __always_inline u64 bucket_of(u64 ns)
{
	u64 units = ns >> FIRST_BUCKET_BITS;
	u64 bucket;
	u32 v, log, step;

	if (units == 0) {
		bucket = 0;
	} else if (units >> (BUCKETS - 2)) {
		bucket = BUCKETS - 1;
	} else {
		v = units;
		log = (v > 0xffff) << 4;
		v >>= log;
		step = (v > 0xff) << 3;
		v >>= step;
		log |= step;
		step = (v > 0xf) << 2;
		v >>= step;
		log |= step;
		step = (v > 0x3) << 1;
		v >>= step;
		log |= step;
		log |= v >> 1;
		bucket = log + 1;
	}
	asm volatile("%0 &= 31" : "+r"(bucket));
	return bucket;
}
