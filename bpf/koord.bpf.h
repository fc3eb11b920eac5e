/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * What every CO-RE program of this directory includes first: the kernel's types, libbpf's macros, the facts about tasks
 * that more than one program needs, and the definition of a table.
 */
#pragma once

#include "vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define TASK_RUNNING 0
#define PF_KTHREAD 0x00200000

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))

/* An array that user space maps. The size here is a placeholder; the loader sets it. */
#define TABLE(name, type_)                         \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);  \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__uint(max_entries, 1);            \
		__type(key, u32);                  \
		__type(value, type_);              \
	} name SEC(".maps")

/*
 * A kernel pointer as a number, to hash, compare and add. The verifier refuses arithmetic on pointers except the
 * distance to another pointer, so `number` is the distance to `base`, which may be any map value of the program.
 */
static __always_inline u64 pointer_number(const void *pointer, const volatile void *base)
{
	u64 number = (u64)pointer;

	asm volatile("%0 -= %1" : "+r"(number) : "r"(base));
	return number;
}
