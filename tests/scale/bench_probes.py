"""Cost of sched_latency: nanoseconds per run, and what it adds to a pipe ping-pong, compared with bcc's runqlat.

Run: `python tests/scale/bench_probes.py [--rounds 15]`, as root. In every round the same ping-pong on one CPU runs in
turn without a program, with empty ones (the minimum of every figure), with sched_latency and with runqlat, so that all
four have the same conditions. The ping-pong is measured in CPU time of its two processes. Nanoseconds per run are the
kernel's mean (bpf stats, whose cost is included; they are off during the ping-pong). The lower quartile of the rounds
counts: other work empties caches and can only increase it.

bpf/bench/runqlat.bpf.c stands for bcc's tool and works in the same way (raw tracepoints, probe reads, a preallocated
hash of time stamps, an atomic histogram), because bcc needs kernel headers that may be missing. It has no cgroups and
no culprits; sched_latency has both. On kernels that throttle tasks individually (6.18) sched_latency has no program at
wakeup: the figure is 0 then.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.probes.loading import libbpf
from koordlet.probes.loading.libbpf import ProgramStats
from koordlet.probes.schedlatency.loader import load_core
from koordlet.probes.schedlatency.sizes import Sizes
from koordlet.system.cpu.possible import possible_cpus
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.koordlet.probes.bpfstats import timed_programs
from tests.scale.figures import ROOT, Figure, report

RUN_BUDGET_NS = 90
EMPTY_BUDGET = 1.5
"""Times an empty program."""
RUNQLAT_SHARE_BUDGET = 0.5
PINGPONGS = 60_000
PROGRAMS = ("sched_switch", "sched_wakeup")


class Loaded(Protocol):
    def programs(self) -> list[ProgramStats]: ...

    def end(self) -> None: ...


class Ours:
    def __init__(self, host: Host) -> None:
        sizes = Sizes(cpus=possible_cpus(host.roots))
        self._probe = load_core(sizes, host.facts.cgroup_version == 2, pin_dir=None)
        self.programs = self._probe.programs

    def end(self) -> None:
        self._probe.close(keep=False)


class Yardstick:
    """An object of bpf/bench with all programs attached."""

    def __init__(self, name: str, *programs: str) -> None:
        self._object = libbpf.BpfObject(ROOT / "build/bpf" / f"{name}.bpf.o")
        self._object.load()
        self._links = [self._object.attach(program) for program in programs]

    def programs(self) -> list[ProgramStats]:
        return [libbpf.link_stats(link) for link in self._links]

    def end(self) -> None:
        self._object.close()


def build_pingpong(directory: Path) -> Path:
    binary = directory / "pingpong"
    subprocess.run(["gcc", "-O2", "-Wall", "-o", binary, ROOT / "tests/scale/pingpong.c"], check=True)
    return binary


def pingpong(binary: Path, cpu: int = 0) -> float:
    """CPU nanoseconds per round trip, both ends on one CPU: every message is a wakeup and a switch."""
    command = [str(binary), str(PINGPONGS), str(cpu), str(cpu)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def ns_per_run(before: list[ProgramStats], after: list[ProgramStats]) -> dict[str, float]:
    old = {stats.name: stats for stats in before}
    return {
        stats.name: (stats.run_ns - old[stats.name].run_ns) / (stats.runs - old[stats.name].runs)
        for stats in after
        if stats.runs > old[stats.name].runs
    }


def quartile(values: list[float]) -> float:
    return statistics.quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else values[0]


def measure(host: Host, binary: Path, rounds: int) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Lower quartiles: ping-pong per variant, and nanoseconds per run per variant and program."""
    contestants: dict[str, Callable[[], Loaded] | None] = {
        "none": None,
        "empty": lambda: Yardstick("empty", *PROGRAMS),
        "ours": lambda: Ours(host),
        "runqlat": lambda: Yardstick("runqlat", *PROGRAMS, "sched_wakeup_new"),
    }
    trips: dict[str, list[float]] = defaultdict(list)
    runs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    pingpong(binary)
    for _ in range(rounds):
        for name, load in contestants.items():
            loaded = load() if load else None
            trips[name].append(pingpong(binary))
            if loaded is None:
                continue
            before = loaded.programs()
            with timed_programs():
                pingpong(binary)
            for program, ns in ns_per_run(before, loaded.programs()).items():
                runs[name][program].append(ns)
            loaded.end()
    return (
        {name: quartile(values) for name, values in trips.items()},
        {name: {program: quartile(values) for program, values in programs.items()} for name, programs in runs.items()},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(ROOT / "bpf"), "all", "bench"], check=True)
    with tempfile.TemporaryDirectory() as directory:
        trips, runs = measure(Host(Roots.host()), build_pingpong(Path(directory)), options.rounds)
    added = {name: trip - trips["none"] for name, trip in trips.items()}
    switch = runs["ours"].get("sched_switch", 0.0)
    figures = [
        Figure("probe_switch", switch, "ns", RUN_BUDGET_NS),
        Figure("probe_wakeup", runs["ours"].get("sched_wakeup", 0.0), "ns", RUN_BUDGET_NS),
        Figure("empty_switch", runs["empty"]["sched_switch"], "ns"),
        Figure("probe_switch_of_empty", switch / runs["empty"]["sched_switch"], "ratio", EMPTY_BUDGET),
        Figure("empty_wakeup", runs["empty"]["sched_wakeup"], "ns"),
        Figure("runqlat_switch", runs["runqlat"]["sched_switch"], "ns"),
        Figure("runqlat_wakeup", runs["runqlat"]["sched_wakeup"], "ns"),
        Figure("pingpong_alone", trips["none"], "ns"),
        Figure("pingpong_probe_adds", added["ours"], "ns"),
        Figure("pingpong_runqlat_adds", added["runqlat"], "ns"),
        Figure("pingpong_share_of_runqlat", added["ours"] / added["runqlat"], "ratio", RUNQLAT_SHARE_BUDGET),
    ]
    return report("probes", figures)


if __name__ == "__main__":
    sys.exit(main())
