/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * Owner tags of the probes for which the running task is not always the owner of the work. The highest bits of a tag
 * name the id space of the rest. koordlet/probes/culprits/owners.py translates all tags into ids of the first space.
 */
#pragma once

#define TAG_SPACE_SHIFT 60

enum owner_space {
	SPACE_TASK = 0,    /* the hierarchy that names tasks: cpu on v1, the unified tree on v2 */
	SPACE_BLKIO = 1,   /* v1: the blkio hierarchy */
	SPACE_MEMORY = 2,  /* v1: the memory hierarchy */
	SPACE_SPECIAL = 3, /* enum special_slot */
	SPACE_UNIFIED = 4, /* v1: the unified tree beside the hierarchies */
	SPACE_NETNS = 5,   /* inode numbers of network namespaces */
};
