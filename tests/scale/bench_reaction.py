"""How soon a culprit is limited, and what that costs batch work: a real koordlet with actions on the CPU, real cgroups.

Run: `make bench BENCH=reaction`, as root; `--trials 6`, `--seed 1`. A service that wants 30 to 60 % of a CPU runs on
the machine's last CPU. Its neighbours are pods of class BE:

  steady   the neighbour computes on the service's CPU for 20 s, with the same weight and without group identity, so
           that the service really loses time. Measured: from the neighbour's start to the first limit in the kernel's
           file, and the changes of this limit per minute
  blip     the same for 1.5 s, then it sleeps: how long it stays limited after it has stopped
  bursts   the same for 1 s in every 5 s, for a minute: changes of the limit per minute
  innocent the neighbour computes on the other CPU: it must not be limited
  idle     the recommended settings (best effort is idle, `beClass.cpuQOS`): which part of the CPU time that the service
           leaves its neighbour gets at loads of 30, 45 and 60 %, and what the service loses

The kernel's files are read twenty times a second. Time lost is the run delay of the service's threads
(/proc/<pid>/schedstat); time that a hypervisor took is no idle time. The time series of every
trial is written to build/bench/reaction_series.json, that of the first steady trial is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS, qos_dir
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.koordlet.process.fleet import Fleet, Need, Pod, PodSpec
from tests.koordlet.process.kernelfigures import keyed
from tests.koordlet.process.podtree import Container, PodTree
from tests.koordlet.process.programs import BURN, duty
from tests.koordlet.process.scene import Scene
from tests.koordlet.process.view import View
from tests.koordlet.process.witness import boot_time
from tests.scale.figures import ROOT, Figure, report
from tests.scale.lookcost import simulated_percent

SAMPLE_SECONDS = 0.05
BURST_SECONDS = 0.005
"""CPU time of the service's work in one burst."""
LOADS = (0.3, 0.45, 0.6)
WARM_SECONDS, STEADY_SECONDS, BLIP_SECONDS, INNOCENT_SECONDS, IDLE_SECONDS = 5.0, 20.0, 1.5, 20.0, 12.0
BURSTS, BURST_PERIOD_SECONDS = 12, 5.0
HEAVY = 100
"""CPU weight of all pods, and of koordlet, relative to one foreign process."""
PATIENCE_SECONDS = 90.0
ACTIONS = {"actions": {"cpu": {"enable": True}}}
UNEQUAL = {
    "extensions": {"interferenceStrategy": ACTIONS},
    "resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": False}}},
}
RECOMMENDED = {"resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True}}}}
FLAGS = ("--probes=auto", "--runtime-hooks-reconcile-interval=1s")


@dataclass(frozen=True)
class Sample:
    """Cumulative seconds at one moment."""

    at: float
    ran: float
    waited: float
    """By the service."""
    batch: float
    """CPU time of the neighbour."""
    stolen: float
    """Of the contested CPU, by a hypervisor."""
    quota: int
    """Of the neighbour's pod, microseconds; -1 for none."""


@dataclass
class Trial:
    """One trial and its samples."""

    kind: str
    load: float
    began: float = 0.0
    """When the neighbour started."""
    ended: float = 0.0
    """When it stopped."""
    samples: list[Sample] = field(default_factory=list)

    def between(self, start: float, end: float) -> list[Sample]:
        return [sample for sample in self.samples if start <= sample.at <= end]

    def changes(self) -> list[float]:
        """Times at which the limit changed."""
        pairs = zip(self.samples, self.samples[1:], strict=False)
        return [after.at for before, after in pairs if before.quota != after.quota]

    @property
    def limited_after(self) -> float | None:
        """Seconds from the neighbour's start to its first limit."""
        return next((sample.at - self.began for sample in self.samples if sample.quota >= 0), None)

    @property
    def released_after(self) -> float | None:
        """Seconds from the neighbour's end to the end of all limits."""
        limited = [sample.at for sample in self.samples if sample.quota >= 0]
        last = self.samples[-1]
        return max(limited[-1] - self.ended, 0.0) if limited and last.quota < 0 else None

    def lost(self, start: float, end: float) -> float:
        """Fraction of the wanted time that the service waited."""
        first, *_, last = self.between(start, end)
        ran, waited = last.ran - first.ran, last.waited - first.waited
        return waited / max(ran + waited, 1e-9)

    def idle_share(self) -> float:
        """Fraction of the CPU time that the service left which the neighbour got; what foreign processes used counts as
        missing."""
        first, *_, last = self.between(self.began, self.ended)
        ran, batch, stolen = last.ran - first.ran, last.batch - first.batch, last.stolen - first.stolen
        return batch / max(last.at - first.at - ran - stolen, 1e-9)

    def series(self, step: float = 0.5) -> Iterator[tuple[float, float, float, float, int]]:
        """(seconds since the neighbour's start, lost, service's cores, neighbour's cores, quota) per step."""
        at = self.samples[0].at
        while at + step <= self.samples[-1].at:
            rows = self.between(at, at + step)
            if len(rows) > 1:
                first, last = rows[0], rows[-1]
                seconds, ran, waited = last.at - first.at, last.ran - first.ran, last.waited - first.waited
                lost = waited / max(ran + waited, 1e-9)
                yield at - self.began, lost, ran / seconds, (last.batch - first.batch) / seconds, last.quota
            at += step


class Stage:
    """One cluster of one node, one koordlet, a service, and a neighbour for each trial."""

    def __init__(self, scratch: Path, neighbours: int) -> None:
        usable = sorted(os.sched_getaffinity(0))
        self.mine, self.other = usable[-1], usable[0]
        self.tree = PodTree(Host(Roots.host()), CgroupDriver.CGROUPFS, HEAVY)
        self.fleet = Fleet(self.tree)
        (self.web,) = self.fleet.add(PodSpec("web", KubeQOS.BURSTABLE, "LS", (Need(cpu=(1000, None)),)))
        specs = (PodSpec(f"batch-{place}", KubeQOS.BESTEFFORT, "BE") for place in range(neighbours))
        self.neighbours = self.fleet.add(*specs)
        for directory in (qos_dir(self.tree.driver, KubeQOS.BESTEFFORT), *(pod.dir for pod in self.neighbours)):
            self.fleet.write(directory, "cpu.shares", 1024)
        self.view = View(self.tree, scratch / "view")
        self.scene = Scene(self.fleet, self.view, scratch)
        self._own = self.tree.roots["" if self.tree.v2 else "cpu"] / f"{self.tree.top}-koordlet"

    def open(self) -> None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
        self.scene.open(UNEQUAL, cpus=os.cpu_count() or 1, memory_mib=memory)
        koordlet = self.scene.start(*FLAGS)
        self._own.mkdir()
        name, weight = ("cpu.weight", 100 * HEAVY) if self.tree.v2 else ("cpu.shares", 1024 * HEAVY)
        (self._own / name).write_text(str(weight))
        (self._own / "cgroup.procs").write_text(str(koordlet.process.pid))
        self.scene.settle()
        probes = {probe["name"]: probe.get("source") for probe in koordlet.wait().top()["probes"]}
        print(f"# probes: {probes}", flush=True)

    def close(self) -> None:
        self.scene.close()
        if self._own.exists():
            self._own.rmdir()
        self.view.close()
        self.tree.remove()

    def box(self, pod: Pod) -> Any:
        """The pod's container, to run programs in."""
        return Container(self.tree, pod.uid, pod.hashes[0], pod.container_dirs[0])

    @contextmanager
    def watched(self, trial: Trial, pid: int, pod: Pod) -> Iterator[None]:
        end = threading.Event()

        def watch() -> None:
            while not end.wait(SAMPLE_SECONDS):
                trial.samples.append(self._sample(pid, pod))

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()

    def quota(self, pod: Pod) -> int:
        path = self.tree.path("cpu", pod.dir) / ("cpu.max" if self.tree.v2 else "cpu.cfs_quota_us")
        text = path.read_text().split()[0]
        return -1 if text == "max" else int(text)

    def look_cpu(self) -> float:
        """CPU seconds that koordlet spent on short evidence so far."""
        text = self.scene.koordlet.get("/internal-metrics").decode()
        sample = re.search(r'^koord_periodic_task_cpu_seconds_total{task="interference-look"} (\S+)', text, re.M)
        assert sample is not None, "koordlet has no task interference-look"
        return float(sample[1])

    def _sample(self, pid: int, pod: Pod) -> Sample:
        ran, waited = (int(text) / 1e9 for text in Path(f"/proc/{pid}/schedstat").read_text().split()[:2])
        lines = Path("/proc/stat").read_text().splitlines()
        ticks = [int(text) for text in next(line for line in lines if line.startswith(f"cpu{self.mine} ")).split()[1:]]
        stolen = ticks[7] / os.sysconf("SC_CLK_TCK")
        return Sample(boot_time(), ran, waited, self._used(pod), stolen, self.quota(pod))

    def _used(self, pod: Pod) -> float:
        if self.tree.v2:
            return keyed(self.tree.path("cpu", pod.dir) / "cpu.stat")["usage_usec"] / 1e6
        return int((self.tree.path("cpuacct", pod.dir) / "cpuacct.usage").read_text()) / 1e9


def play(stage: Stage, kind: str, load: float, pod: Pod) -> Trial:
    """One trial: the service alone, then with its neighbour."""
    trial, service, batch = Trial(kind, load), stage.box(stage.web), stage.box(pod)
    try:
        pid = service.run(duty(BURST_SECONDS, BURST_SECONDS * (1 / load - 1)), stage.mine)
        with stage.watched(trial, pid, pod):
            time.sleep(WARM_SECONDS)
            trial.began = boot_time()
            if kind == "bursts":
                batch.run(bursts(1.0, BURST_PERIOD_SECONDS - 1.0), stage.mine)
                time.sleep(BURSTS * BURST_PERIOD_SECONDS)
            else:
                batch.run(BURN, stage.other if kind == "innocent" else stage.mine)
                seconds = {"blip": BLIP_SECONDS, "innocent": INNOCENT_SECONDS, "idle": IDLE_SECONDS}
                time.sleep(seconds.get(kind, STEADY_SECONDS))
            batch.end()
            trial.ended = boot_time()
            end = time.monotonic() + PATIENCE_SECONDS
            while kind == "blip" and stage.quota(pod) >= 0 and time.monotonic() < end:
                time.sleep(SAMPLE_SECONDS)
            time.sleep(4 * SAMPLE_SECONDS)
    finally:
        service.end()
        batch.end()
    return trial


def bursts(busy: float, idle: float) -> str:
    """Compute for `busy` seconds of wall time, then sleep."""
    return f"while True:\n end = time.monotonic() + {busy}\n while time.monotonic() < end: pass\n time.sleep({idle})\n"


def words(trial: Trial) -> str:
    limited, released = trial.limited_after, trial.released_after
    changes = [round(at - trial.began, 1) for at in trial.changes()]
    return (
        f"# {trial.kind:<8} load {trial.load:.0%}: limited after {'-' if limited is None else f'{limited:.2f} s'}, "
        f"released {'-' if released is None else f'{released:.1f} s'} after its end, "
        f"lost {trial.lost(trial.began - 3.0, trial.began):.0%} before, "
        f"{trial.lost(trial.began, min(trial.began + 1.0, trial.ended)):.0%} in the first second, "
        f"{trial.lost(trial.ended - 3.0, trial.ended):.0%} at the end; idle share {trial.idle_share():.0%}; "
        f"changes at {changes}"
    )


def show(trial: Trial) -> None:
    print("# seconds  lost  service  neighbour  quota us", flush=True)
    for at, lost, service, batch, quota in trial.series():
        print(f"# {at:7.1f} {lost:5.0%} {service:8.2f} {batch:10.2f} {quota:9d}", flush=True)


def per_minute(trials: list[Trial]) -> float:
    """The largest number of changes in a minute, or in a whole trial that is shorter."""
    most = 0
    for trial in trials:
        changes = trial.changes()
        most = max([most, *(sum(at <= other < at + 60.0 for other in changes) for at in changes)])
    return float(most)


def figures(trials: list[Trial], look_percent: dict[str, float]) -> list[Figure]:
    by_kind: dict[str, list[Trial]] = {}
    for trial in trials:
        by_kind.setdefault(trial.kind, []).append(trial)
    hurt = [*by_kind.get("steady", []), *by_kind.get("blip", [])]
    limited = sorted(seconds for trial in by_kind.get("steady", []) if (seconds := trial.limited_after) is not None)
    released = [seconds for trial in by_kind.get("blip", []) if (seconds := trial.released_after) is not None]
    steady = len(by_kind.get("steady", []))
    rows = [
        Figure("reaction_trials", len(hurt), "trials"),
        Figure("reaction_limited", 100.0 * len(limited) / max(steady, 1), "%", 97.0, at_least=True),
        Figure("reaction_to_limit_median", median(limited) if limited else float("inf"), "s"),
        Figure("reaction_to_limit_worst", limited[-1] if limited else float("inf"), "s", 2.0),
        Figure("reaction_release_worst", max(released, default=0.0), "s", 5.0),
        Figure("reaction_changes_steady", per_minute(by_kind.get("steady", [])), "per minute", 12.0),
        Figure("reaction_changes_bursts", per_minute(by_kind.get("bursts", [])), "per minute", 12.0),
        Figure(
            "reaction_innocent_limited",
            sum(trial.limited_after is not None for trial in by_kind.get("innocent", [])), "trials", 0.0,
        ),
        Figure("reaction_look_simulated_64_cpus_220_containers", simulated_percent(64, 220), "% of a core", 0.3),
        *(
            Figure(f"reaction_look_cpu_{name}", percent, "% of a core", 0.3 if name == "quiet" else 1.0)
            for name, percent in look_percent.items()
        ),
    ]  # fmt: skip
    for trial in by_kind.get("idle", []):
        name = f"{trial.load * 100:.0f}"
        rows.append(Figure(f"reaction_idle_share_{name}", 100.0 * trial.idle_share(), "%", 90.0, at_least=True))
        rows.append(Figure(f"reaction_idle_lost_{name}", 100.0 * trial.lost(trial.began, trial.ended), "%"))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=6, help="steady trials; two thirds as many blips")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="kinds, with commas")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rng = random.Random(options.seed)
    plan = [("steady", rng.uniform(LOADS[0], LOADS[-1])) for _ in range(options.trials)]
    plan += [("blip", rng.uniform(LOADS[0], LOADS[-1])) for _ in range(options.trials * 2 // 3)]
    plan += [("bursts", 0.45), ("innocent", 0.3), ("innocent", 0.6), *(("idle", load) for load in LOADS)]
    plan = [(kind, load) for kind, load in plan if not options.only or kind in options.only.split(",")]
    trials: list[Trial] = []
    look_percent: dict[str, float] = {}
    print(f"# load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs", flush=True)
    with tempfile.TemporaryDirectory(prefix="koord-reaction-") as scratch:
        stage = Stage(Path(scratch), len(plan))
        try:
            stage.open()
            for (kind, load), pod in zip(plan, stage.neighbours, strict=True):
                if kind == "idle":
                    stage.scene.ask(RECOMMENDED)
                    stage.scene.settle()
                begun, spent = time.monotonic(), stage.look_cpu()
                trials.append(play(stage, kind, load, pod))
                percent = 100 * (stage.look_cpu() - spent) / (time.monotonic() - begun)
                name = "quiet" if kind in ("innocent", "idle") else "delayed"
                look_percent[name] = max(look_percent.get(name, 0.0), percent)
                print(words(trials[-1]), flush=True)
                if len(trials) == 1:
                    show(trials[-1])
        finally:
            if trials:
                target = ROOT / "build/bench"
                target.mkdir(parents=True, exist_ok=True)
                (target / "reaction_series.json").write_text(json.dumps([asdict(trial) for trial in trials]) + "\n")
            stage.close()
    print(f"# load {os.getloadavg()[0]:.1f}", flush=True)
    return report("reaction", figures(trials, look_percent))


if __name__ == "__main__":
    sys.exit(main())
