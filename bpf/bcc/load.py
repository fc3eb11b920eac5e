#!/usr/bin/python3
# SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
# Copyright The koordinator-py authors
"""Compiles sched_latency.bcc.c with bcc, attaches it, pins maps and links, and exits.

    load.py PINS CGROUP_V2 CGROUPS MATRIX STAMPS CPUS

Run by koordlet.probes.loading.bcc with the system's Python, where Debian installs bcc. It imports nothing of koordlet.
The last line on stderr is the error.
"""

import ctypes
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAPS = ("tags", "stats", "matrix", "cpus", "stamps")
TRACEPOINTS = ("sched_wakeup", "sched_wakeup_new", "sched_switch")


def pin(library, fd, path):
    if library.bpf_obj_pin(fd, os.fsencode(path)) != 0:
        raise OSError(ctypes.get_errno(), f"pin {path}: {os.strerror(ctypes.get_errno())}")


def main(pins, cgroup_v2, cgroups, matrix, stamps, cpus):
    try:
        from bcc import BPF
    except ImportError as error:
        sys.exit(f"bcc is not installed (Debian: python3-bpfcc): {error}")
    release = os.uname().release
    if not Path(f"/lib/modules/{release}/build").is_dir():
        sys.exit(f"no kernel headers: /lib/modules/{release}/build is missing (Debian: linux-headers-{release})")
    names = ("CGROUP_V2", "CGROUPS", "MATRIX", "STAMPS", "CPUS")
    numbers = (cgroup_v2, cgroups, matrix, stamps, cpus)
    defines = (f"-D{name}={int(number)}" for name, number in zip(names, numbers, strict=True))
    flags = [f"-I{HERE.parent}", "-DBCC", *defines]
    try:
        bpf = BPF(text=(HERE / "sched_latency.bcc.c").read_text(), cflags=flags)
    except Exception as error:  # noqa: BLE001 - bcc raises no narrower class; the compiler's messages are on stderr
        sys.exit(f"bcc could not compile or load the program: {error}")
    libbpf = ctypes.CDLL("libbpf.so.1", use_errno=True)
    directory = Path(pins)
    for name in MAPS:
        pin(libbpf, bpf[name].map_fd, directory / name)
    for name in TRACEPOINTS:  # RAW_TRACEPOINT_PROBE attached them by name
        pin(libbpf, bpf.raw_tracepoint_fds[name.encode()], directory / f"link_{name}")
    (directory / "ready").mkdir()


if __name__ == "__main__":
    main(*sys.argv[1:])
