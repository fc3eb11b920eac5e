"""Figures of a cgroup read key by key: a second source to compare the batch reader and other readers with."""

from __future__ import annotations

from koordlet.system.cgroup.readers import CgroupFS

MEMORY_KEYS = {
    "cache": "file",
    "rss": "anon",
    "inactive_file": "inactive_file",
    "active_file": "active_file",
    "inactive_anon": "inactive_anon",
    "active_anon": "active_anon",
    "unevictable": "unevictable",
}
"""Figure -> key on v2; on v1 the key is total_<figure>."""


def memory_stat(fs: CgroupFS, cgroup_dir: str) -> dict[str, int]:
    """Bytes by figure, with all descendants."""
    pairs = _pairs(fs, "memory.stat", cgroup_dir)
    return {figure: pairs[key if fs.version == 2 else f"total_{figure}"] for figure, key in MEMORY_KEYS.items()}


def memory_use(fs: CgroupFS, cgroup_dir: str) -> int:
    """Bytes without page cache."""
    figures = memory_stat(fs, cgroup_dir)
    return figures["inactive_anon"] + figures["active_anon"] + figures["unevictable"]


def cpu_stat(fs: CgroupFS, cgroup_dir: str) -> dict[str, int]:
    """`nr_periods`, `nr_throttled`, `throttled_ns`."""
    pairs = _pairs(fs, "cpu.stat", cgroup_dir)
    throttled_ns = pairs["throttled_usec"] * 1000 if fs.version == 2 else pairs["throttled_time"]
    return {"nr_periods": pairs["nr_periods"], "nr_throttled": pairs["nr_throttled"], "throttled_ns": throttled_ns}


def _pairs(fs: CgroupFS, resource: str, cgroup_dir: str) -> dict[str, int]:
    text = fs.text(resource, cgroup_dir)
    assert text is not None, f"{cgroup_dir} has no {resource}"
    return {key: int(value) for key, value in (line.split()[:2] for line in text.splitlines())}
