/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The tables that block_io.bpf.c writes and koordlet/probes/blockio/probe.py reads.
 *
 *   tags        [pairs]               (owner, device) of a slot: a "pair"
 *   stats       [row][pairs+SPECIALS] one struct io_stats per pair; see rows.h
 *   held        [pairs]               since when the group's own limit throttles bios, 0 = it does not
 *   matrix      [cpu][matrix]         the culprit matrix of pairs, see culprit_matrix.h
 *   matrix_lost [cpu]                 charges that found no entry in matrix
 *   devices     [DEVICES]             the recent service of a disk
 *   bios        [bios]                arrival and owner of a bio, by its address
 *   requests    [requests]            the requests in service, by address
 *   cpus        [cpu]                 what was lost
 */
#pragma once

#include "culprit_matrix.h"
#include "rows.h"

#define BLOCK_IO_VERSION 4

#define DEVICES 128
/* Slices of service remembered per device: how far back a culprit can be named. */
#define IO_RING 32

enum io_direction {
	IO_READ = 0,
	IO_WRITE = 1,
	IO_DISCARD = 2,
	IO_FLUSH = 3,
	IO_DIRECTIONS = 4,
};
/* Histograms separate reads (0) from everything else (1). */
#define IO_HISTS 2

/* A tag: id (48 bits), index of the device (12 bits), id space (owners.h). */
#define TAG_DEVICE_SHIFT 48

struct io_stats {
	u64 queue_hist[IO_HISTS][BUCKETS];
	u64 device_hist[IO_HISTS][BUCKETS];
	u64 ops[IO_DIRECTIONS];
	u64 bytes[IO_DIRECTIONS];
	u64 queue_ns[IO_DIRECTIONS];
	u64 device_ns[IO_DIRECTIONS];
	u64 ahead_ns; /* from arrival until the device began to work for the request: the matrix splits it */
	u64 throttled_ns; /* time in which at least one bio was throttled by the group's own limit */
	u64 throttled_count; /* bios released from throttling */
	u64 reserved[5];
}; /* 1024 bytes */

struct io_slice {
	u64 start_ns;
	u64 end_ns;
	u32 slot;
	u32 reserved;
};

struct io_device {
	u64 tag; /* dev_t + 1; 0 = free */
	u64 last_ns; /* the latest completion */
	u64 flush_owner; /* of the latest bio that asked for a flush; 0 = none */
	u32 head; /* ring[head % IO_RING] is the latest slice */
	u32 reserved;
	struct io_slice ring[IO_RING];
}; /* 800 bytes */

struct io_bio {
	u64 bio;
	u64 arrival_ns;
	u64 owner;
};

struct io_request {
	u64 request; /* 0 = free */
	u64 bio;
	u64 arrival_ns;
	u64 issue_ns;
	u32 slot;
	u32 device;
};

struct io_cpu {
	u64 slot_lost;    /* look-ups of pairs that found no free slot */
	u64 device_lost;  /* requests of a device that found no entry: not counted at all */
	u64 request_lost; /* requests that found no entry while in service: not counted at all */
	u64 unstamped;    /* requests whose bio's arrival was overwritten: no queue time */
};

/* Fixed at load. */
struct io_config {
	struct slot_config slots; /* cgroup_mask: pairs - 1 */
	struct row_config rows;
	u32 matrix_mask; /* entries per CPU - 1 */
	u32 bio_mask;
	u32 request_mask;
	u32 reserved;
};
