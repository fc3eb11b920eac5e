"""Cost of mem_stall and oom: per context switch without stalls, and during reclaim.

Run: `python tests/scale/bench_mem_stall.py [--rounds 9]`, as root. The ping-pong of bench_probes.py runs in turn
without a program, with an empty one and with mem_stall; the lower quartile of the rounds counts. Then a group exceeds
twice its memory limit: nanoseconds of all programs per reclaim, and their share of its duration. All nanoseconds
include the cost of the kernel's statistics (an empty program shows it).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.probes import oom
from koordlet.probes.loading.frame import ProbeEnvironment
from koordlet.probes.memstall import probe as memstall
from koordlet.probes.memstall.snapshot import diff
from koordlet.system.cpu.possible import possible_cpus
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.koordlet.probes.bpfstats import timed_programs
from tests.scale.bench_probes import RUN_BUDGET_NS, Yardstick, build_pingpong, ns_per_run, pingpong, quartile
from tests.scale.figures import ROOT, Figure, report

RECLAIM_SHARE_BUDGET = 0.01
LIMIT = 24 << 20
CYCLE = """
import mmap, os
for path in {paths!r}:
    open(path + "/cgroup.procs", "w").write(str(os.getpid()))
memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for _ in range(4):
    for begin in range(0, len(memory), 1 << 20):
        for i in range(begin, begin + (1 << 20), 4096):
            memory[i] = 1
        memory.madvise(mmap.MADV_FREE, begin, 1 << 20)
"""


def at_switch(place: ProbeEnvironment, rounds: int, binary: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Lower quartiles per variant: CPU nanoseconds per round trip, and nanoseconds per run at a switch."""
    trips: dict[str, list[float]] = defaultdict(list)
    runs: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        trips["none"].append(pingpong(binary))
        for name in ("empty", "mem_stall"):
            loaded = Yardstick("empty", "sched_switch") if name == "empty" else memstall.load_core(place)
            trips[name].append(pingpong(binary))
            before = loaded.programs()
            with timed_programs():
                pingpong(binary)
            ns_by_program = ns_per_run(before, loaded.programs())
            runs[name].append(ns_by_program["stall_switch" if name == "mem_stall" else "sched_switch"])
            loaded.end() if isinstance(loaded, Yardstick) else loaded.close(keep=False)
    return (
        {name: quartile(all_) for name, all_ in trips.items()},
        {name: quartile(all_) for name, all_ in runs.items()},
    )


def at_reclaim(place: ProbeEnvironment) -> dict[str, float]:
    """For one group at its limit: reclaims, microseconds each, and the programs' share of that time."""
    mounts = place.host.facts.cgroup_mounts
    name = f"koord-bench-{os.getpid()}"
    roots = {mounts.hierarchy("memory"), mounts.hierarchy("cpu")}
    paths = [root / name for root in roots if root is not None]
    for path in paths:
        path.mkdir()
    stalls, kills = memstall.load_core(place), oom.load_core(place)
    try:
        memory = next(path for path in paths if (path / "memory.stat").exists())
        (memory / ("memory.max" if place.cgroup_v2 else "memory.limit_in_bytes")).write_text(str(LIMIT))
        before = [*stalls.programs(), *kills.programs()]
        start = stalls.read()
        with timed_programs():
            code = CYCLE.format(paths=[os.fspath(path) for path in paths])
            subprocess.run([sys.executable, "-S", "-c", code], check=True)
        window = diff(start, stalls.read())
        after = [*stalls.programs(), *kills.programs()]
    finally:
        stalls.close(keep=False)
        kills.close(keep=False)
        for path in paths:
            path.rmdir()
    spent = sum(new.run_ns - old.run_ns for old, new in zip(before, after, strict=True) if "switch" not in new.name)
    reclaims, seconds = int(window.limits.count.sum()), float(window.limits.ns.sum())
    return {"count": reclaims, "us": seconds / reclaims / 1e3, "ns": spent / reclaims, "share": spent / seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(ROOT / "bpf"), "all", "bench"], check=True)
    host = Host(Roots.host())
    place = ProbeEnvironment(host, possible_cpus(host.roots), None)
    with tempfile.TemporaryDirectory() as directory:
        trips, runs = at_switch(place, options.rounds, build_pingpong(Path(directory)))
    reclaim = at_reclaim(place)
    figures = [
        Figure("mem_stall_switch", runs["mem_stall"], "ns", RUN_BUDGET_NS),
        Figure("empty_switch", runs["empty"], "ns"),
        Figure("pingpong_alone", trips["none"], "ns"),
        Figure("pingpong_empty_adds", trips["empty"] - trips["none"], "ns"),
        Figure("pingpong_mem_stall_adds", trips["mem_stall"] - trips["none"], "ns"),
        Figure("reclaims", reclaim["count"], "count"),
        Figure("reclaim", reclaim["us"], "us"),
        Figure("reclaim_programs", reclaim["ns"], "ns"),
        Figure("reclaim_share", reclaim["share"], "ratio", RECLAIM_SHARE_BUDGET),
    ]
    return report("mem_stall", figures)


if __name__ == "__main__":
    sys.exit(main())
