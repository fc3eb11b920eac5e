"""The kernel's own measurement of BPF programs, for tests and benchmarks of their cost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from koordlet.probes.loading import libbpf

_BPF_STATS_RUN_TIME = 0


@contextmanager
def timed_programs() -> Iterator[None]:
    """While open, the kernel times every run of every program (kernel.bpf_stats_enabled, about 20 ns per run)."""
    fd = libbpf._call("enable statistics", "bpf_enable_stats", _BPF_STATS_RUN_TIME)
    try:
        yield
    finally:
        os.close(fd)
