/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * What every program of this directory includes first: the kernel's types, libbpf's macros and the
 * few facts about tasks that more than one program needs.
 */
#pragma once

#include "vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define TASK_RUNNING 0
#define PF_KTHREAD 0x00200000

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
