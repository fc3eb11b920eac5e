"""Cost of reading all containers' cgroup files: opened every time or through open descriptors, in one run.

Run: `python tests/scale/bench_cgroup_read.py [--containers 220] [--passes 30]`, as root. It creates that many cgroups
and removes them. Budgets are ratios and a share of one core; absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.system.cgroup.batch import BatchReader, Want
from koordlet.system.cgroup.cache import ReadCache
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.scale.figures import Figure, report

PARTS = {
    "cpu": Want.CPU_USAGE | Want.CPU_STAT,
    "memory": Want.MEMORY_STAT,
    "psi": Want.PRESSURE,
}
TICK = Want.CPU_USAGE | Want.CPU_STAT | Want.MEMORY_STAT
"""Files that the collectors read every second (pressure every ten)."""
COLLECTORS_SHARE = 1.0
"""Percent of one core for this part of koordlet's 2 %, at one pass per second."""


def best_us(call: Callable[[], object], passes: int, containers: int) -> float:
    """CPU microseconds per container in the fastest pass: other load can only increase it."""
    costs = []
    for _ in range(passes):
        start = time.process_time_ns()
        call()
        costs.append((time.process_time_ns() - start) / 1000 / containers)
    return min(costs)


def open_read_close(paths: Sequence[str]) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.read(fd, 8192)
        os.close(fd)


def measure(host: Host, dirs: Sequence[str], passes: int) -> list[Figure]:
    count = len(dirs)
    rows: list[Figure] = []
    with ReadCache() as cache:
        reader = BatchReader(CgroupFS(host, cache))
        for name, want in {**PARTS, "tick": TICK}.items():
            reader.read(dirs, want)  # opens the files and parses their layout
            cost = best_us(lambda want=want: reader.read(dirs, want), passes, count)  # type: ignore[misc]
            rows.append(Figure(f"{name}_pass", cost, "us/container"))
        tick = rows[-1].value
        paths = sorted(cache.paths())
        opened = best_us(lambda: open_read_close(paths), passes, count)
        kept = best_us(lambda: [cache.read(path) for path in paths], passes, count)
    rows.append(Figure("files", len(paths) / count, "files/container"))
    rows.append(Figure("raw_open_read_close", opened, "us/container"))
    rows.append(Figure("raw_kept_pread", kept, "us/container"))
    rows.append(Figure("raw_kept_over_opened", kept / opened, "ratio", 0.75))

    def reopening() -> None:
        with ReadCache(max_fds=0) as uncached:
            BatchReader(CgroupFS(host, uncached)).read(dirs, TICK)

    fresh = best_us(reopening, passes, count)
    rows.append(Figure("tick_reopening", fresh, "us/container"))
    rows.append(Figure("tick_kept_over_reopening", tick / fresh, "ratio", 0.75))
    rows.append(Figure(f"tick_share_{count}_containers", tick * count / 1e4, "% of a core", COLLECTORS_SHARE))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--containers", type=int, default=220, help="cgroups to make (110 pods x 2)")
    parser.add_argument("--passes", type=int, default=30)
    options = parser.parse_args()
    host = Host(Roots.host())
    mounts = host.facts.cgroup_mounts
    roots = sorted({*mounts.v1.values()} | ({mounts.unified} if mounts.unified else set()))
    parent = f"koord-bench-{os.getpid()}"
    dirs = [f"{parent}/c{index:04d}" for index in range(options.containers)]
    directories: list[Path] = []
    try:
        for root in roots:
            for name in (parent, *dirs):
                (root / name).mkdir()
                directories.append(root / name)
                if name == parent and mounts.version == 2:
                    for level in (root, root / parent):
                        (level / "cgroup.subtree_control").write_text("+cpu +memory")
        rows = measure(host, dirs, options.passes)
    finally:
        for path in reversed(directories):
            path.rmdir()
    return report("cgroup_read", rows)


if __name__ == "__main__":
    raise SystemExit(main())
