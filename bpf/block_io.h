/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Copyright The koordinator-py authors */
/*
 * The memory layout that block_io.bpf.c writes and koordlet/probes/block_io.py reads.
 *
 *   tags     [pairs]                 who does I/O to which device
 *   stats    [cpu][pairs+SPECIALS]   one struct io_stats a pair
 *   held     [pairs]                 since when the group's own limit holds bios back, 0 = it doesn't
 *   matrix   [cpu][matrix]           (victim pair, culprit pair) -> time, see blame.bpf.h
 *   devices  [DEVICES]               what a disk did lately
 *   bios     [bios]                  when a bio arrived and whose it is, by address
 *   requests [requests]              what is in service
 *   cpus     [cpu]                   what was lost
 */
#pragma once

#define BLOCK_IO_LAYOUT 1

#define DEVICES 128
/* Slices of service that a device remembers: how far back a culprit can be named. */
#define IO_RING 32

enum io_direction { IO_READ, IO_WRITE, IO_DISCARD, IO_FLUSH, IO_DIRECTIONS };
/* Histograms tell reads (0) from everything else (1). */
#define IO_HISTS 2

/* A tag: id (48 bits), the device's place (12 bits), whose ids these are (owners.h). */
#define TAG_DEVICE_SHIFT 48

struct io_stats {
	u64 queue_hist[IO_HISTS][BUCKETS];
	u64 device_hist[IO_HISTS][BUCKETS];
	u64 ops[IO_DIRECTIONS];
	u64 bytes[IO_DIRECTIONS];
	u64 queue_ns[IO_DIRECTIONS];
	u64 device_ns[IO_DIRECTIONS];
	u64 ahead_ns; /* from arrival until the device turned to the request: what the matrix splits */
	u64 throttled_ns; /* at least one bio was held back by the group's own limit */
	u64 throttled_count; /* bios that came out of throttling */
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
	u32 head; /* ring[head % IO_RING] is the latest slice */
	u32 reserved;
	struct io_slice ring[IO_RING];
}; /* 792 bytes */

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
	u64 slot_lost; /* pairs that found no place */
	u64 device_lost; /* requests of a device that found no place: not counted at all */
	u64 request_lost; /* requests that found no place while in service: not counted at all */
	u64 unstamped; /* requests whose bio's arrival was overwritten: no queue time */
};

/* Fixed at load. */
struct io_config {
	u32 cgroup_v2;
	u32 cgroup_mask; /* pairs - 1 */
	u32 matrix_mask;
	u32 bio_mask;
	u32 request_mask;
	u32 reserved[3];
};
