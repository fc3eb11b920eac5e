"""What a pass over all containers costs: files opened every time against descriptors kept open, in one run.

Run: ``python tests/scale/bench_cgroup_read.py [--containers 220] [--passes 30]``. Makes that many cgroups of its own,
as root, and removes them. Prints ``name value unit budget ok|over`` lines and writes the same to build/bench/ as JSON.
The budgets are ratios and a share of one core; times themselves depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from koordlet.system.cgroup import BatchReader, CgroupFS, ReadCache, Want  # noqa: E402
from koordlet.system.host import Host  # noqa: E402
from koordlet.system.roots import Roots  # noqa: E402

PARTS = {
    "cpu": Want.CPU_USAGE | Want.CPU_STAT,
    "memory": Want.MEMORY_STAT,
    "numa": Want.NUMA,
    "psi": Want.PRESSURE,
}
TICK = Want.CPU_USAGE | Want.CPU_STAT | Want.MEMORY_STAT | Want.NUMA
"""What the collectors read every second (pressure is read every ten)."""
COLLECTORS_SHARE = 1.0
"""Percent of one core this part may take of koordlet's 2 % at one pass a second."""


def median_us(call: Callable[[], object], passes: int, containers: int) -> float:
    """Microseconds of CPU a container, median over the passes; CPU time, since the machine may be shared."""
    costs = []
    for _ in range(passes):
        start = time.process_time_ns()
        call()
        costs.append((time.process_time_ns() - start) / 1000 / containers)
    return statistics.median(costs)


def open_read_close(paths: Sequence[str]) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.read(fd, 8192)
        os.close(fd)


def measure(host: Host, dirs: Sequence[str], passes: int) -> list[tuple[str, float, str, float | None]]:
    """(name, value, unit, budget) rows; a budget is an upper bound."""
    count = len(dirs)
    rows: list[tuple[str, float, str, float | None]] = []
    with ReadCache() as cache:
        fs = CgroupFS(host, cache)
        reader = BatchReader(fs)
        for name, want in {**PARTS, "tick": TICK}.items():
            reader.read(dirs, want)
            rows.append((f"{name}_pass", median_us(lambda want=want: reader.read(dirs, want), passes, count),
                         "us/container", None))  # fmt: skip
        tick = rows[-1][1]
        paths = sorted(path for path in cache._entries)
        rows.append(("files", len(paths) / count, "files/container", None))
        opened = median_us(lambda: open_read_close(paths), passes, count)
        kept = median_us(lambda: [cache.read(path) for path in paths], passes, count)
    rows.append(("raw_open_read_close", opened, "us/container", None))
    rows.append(("raw_kept_pread", kept, "us/container", None))
    rows.append(("raw_kept_over_opened", kept / opened, "ratio", 0.75))

    def reopening() -> None:
        with ReadCache(max_fds=0) as uncached:
            BatchReader(CgroupFS(host, uncached)).read(dirs, TICK)

    fresh = median_us(reopening, passes, count)
    rows.append(("tick_reopening", fresh, "us/container", None))
    rows.append(("tick_kept_over_reopening", tick / fresh, "ratio", 0.75))
    rows.append((f"tick_share_{count}_containers", tick * count / 1e6 * 100, "% of a core", COLLECTORS_SHARE))
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
    made: list[Path] = []
    try:
        for root in roots:
            for one in (parent, *dirs):
                (root / one).mkdir()
                made.append(root / one)
                if one == parent and mounts.version == 2:
                    for level in (root, root / parent):
                        (level / "cgroup.subtree_control").write_text("+cpu +memory")
        rows = measure(host, dirs, options.passes)
    finally:
        for path in reversed(made):
            path.rmdir()
    report = []
    for name, value, unit, budget in rows:
        state = "ok" if budget is None or value <= budget else "over"
        print(f"{name} {value:.3f} {unit.replace(' ', '_')} {'-' if budget is None else budget} {state}")
        report.append({"name": name, "value": value, "unit": unit, "budget": budget, "ok": state == "ok"})
    target = ROOT / "build/bench/cgroup_read.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(row["ok"] for row in report) else 1


if __name__ == "__main__":
    raise SystemExit(main())
