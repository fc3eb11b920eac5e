"""A tick's figures of all pods and containers: one BPF walk of the cgroups compared with reading files, in one run.

Run: `python tests/scale/bench_cgroup_stats.py [--pods 110 --pods 250] [--passes 40]`, as root. It creates that many
pods with two containers and a process each (waking ten times per second). CPU is this process's; of the alternating
passes the fastest counts, because other load can only increase it. Budgets are ratios and a share of a core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.metricsadvisor.usage.allgroups import AllGroups
from koordlet.metricsadvisor.usage.reader import USE, TickReader
from koordlet.probes.cgroup_stats import CgroupStats, open_cgroup_stats
from koordlet.probes.loading.frame import ProbeEnvironment
from koordlet.statesinformer.states import LocalStates
from koordlet.system.cgroup import tree
from koordlet.system.cgroup.batch import BatchReader
from koordlet.system.cgroup.cache import ReadCache
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cpu.possible import possible_cpus
from koordlet.system.host import Host
from koordlet.system.proc import procfs
from koordlet.system.proc.nodefiles import NodeFiles
from koordlet.system.roots import Roots
from tests.scale.bench_koordlet import Pods
from tests.scale.figures import Figure, report

RATIO, NODE_RATIO, TICK_SHARE = 0.5, 0.75, 1.0
"""Ratio of walk to files; percent of a core for all reading at one tick per second, half of koordlet's budget."""


def in_turns(calls: Sequence[Callable[[], object]], passes: int) -> list[float]:
    """CPU milliseconds of each call in the fastest pass."""
    best = [float("inf")] * len(calls)
    for _ in range(passes):
        for at, call in enumerate(calls):
            began = time.process_time_ns()
            call()
            best[at] = min(best[at], (time.process_time_ns() - began) / 1e6)
    return best


def read_node(node: NodeFiles) -> object:
    return node.cpu_ticks(), node.memory(), node.numa_memory()


def read_node_anew(roots: Roots) -> object:
    ticks = procfs.parse_cpu_ticks((roots.proc / "stat").read_text())
    return ticks, procfs.read_meminfo(roots), procfs.read_numa_meminfo(roots)


def measure(host: Host, stats: CgroupStats, count: int, passes: int) -> list[Figure]:
    pods = Pods(host, count)
    try:
        pods.make()
        states = LocalStates(lambda: tree.walk(f"{CgroupFS(host).hierarchy('cpu')}/{pods.parent}"))
        states.refresh()
        subjects = tuple(
            replace(subject, cgroup_dir=f"{pods.parent}/{subject.cgroup_dir}") for subject in states.workloads.subjects
        )
        workloads = replace(states.workloads, subjects=subjects)
        dirs = [subject.cgroup_dir for subject in subjects]
        with ReadCache() as first_cache, ReadCache() as two:
            walk, files = AllGroups(stats), BatchReader(CgroupFS(host, first_cache))
            by_walk = TickReader(host, CgroupFS(host, two), AllGroups(stats))
            by_files = TickReader(host, CgroupFS(host, first_cache))
            calls = (
                lambda: walk.read(dirs),
                lambda: files.read(dirs, USE),
                lambda: by_walk.read(workloads, 0.0),
                lambda: by_files.read(workloads, 0.0),
            )
            for call in calls:
                call()  # opens files, parses layouts and ids
            table_walk, table_files, tick_walk, tick_files = in_turns(calls, passes)
            opened = [len(first_cache.paths()), len(two.paths())]
    finally:
        pods.remove()
    with ReadCache() as cache:
        node = NodeFiles(host.roots, cache)
        kept, opened_anew = in_turns((lambda: read_node(node), lambda: read_node_anew(host.roots)), passes)
    return [
        Figure(f"node_files_kept_over_opened_{count}x2", kept / opened_anew, "ratio", NODE_RATIO),
        Figure(f"table_walk_{count}x2", table_walk, "ms"),
        Figure(f"table_files_{count}x2", table_files, "ms"),
        Figure(f"table_walk_over_files_{count}x2", table_walk / table_files, "ratio", RATIO),
        Figure(f"tick_walk_{count}x2", tick_walk, "ms"),
        Figure(f"tick_files_{count}x2", tick_files, "ms"),
        Figure(f"tick_walk_over_files_{count}x2", tick_walk / tick_files, "ratio", RATIO),
        Figure(f"tick_walk_share_{count}x2", tick_walk / 10, "% of a core", TICK_SHARE),
        Figure(f"open_files_walk_{count}x2", opened[1], "descriptors"),
        Figure(f"open_files_files_{count}x2", opened[0], "descriptors"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, action="append", help="pods with two containers each")
    parser.add_argument("--passes", type=int, default=40)
    options = parser.parse_args()
    host = Host(Roots.host())
    stats, status = open_cgroup_stats(ProbeEnvironment(host, possible_cpus(host.roots), None))
    if stats is None:
        print(f"cgroup_stats: {status.reason}")
        return 1
    try:
        rows = [
            figure for count in options.pods or (110, 250) for figure in measure(host, stats, count, options.passes)
        ]
    finally:
        stats.close()
    return report("cgroup_stats", rows)


if __name__ == "__main__":
    sys.exit(main())
