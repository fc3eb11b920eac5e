"""`make soak`: the real koordlet with all features on a full node for an hour: CPU, memory and growth.

Run: `python tests/scale/soak.py [--duration 1h] [--pods 110]`, as root. The node is that of `bench_koordlet.py`; one
pod is replaced every half minute, so that state kept for dead containers would show. Every few seconds: CPU, resident
memory, descriptors and threads from /proc, and the fill level of the probes' tables from their pinned maps; /metrics
and /top are fetched periodically. Progress is printed; at the end figures go to build/bench/soak.json, all samples to
build/bench/soak-samples.json and a plot to --svg.

Flat: the growth over the second half, by the median of the slopes between all pairs of samples (Theil-Sen), is within
the noise: twice the samples' scatter about that line, and at least `FLOOR`.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.probes.loading import libbpf
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.processmemory import resident_mib
from tests.scale import bench_koordlet
from tests.scale.bench_koordlet import CPU_BUDGET, MEMORY_BUDGET, PORT, START_BUDGET, Pods
from tests.scale.figures import ROOT, Figure, calibration, report
from tests.scale.svgplot import Panel, chart

SAMPLE, WARM_UP, SCRAPE, CHURN, PROGRESS = 5.0, 90.0, 15.0, 30.0, 60.0
MINUTE = round(60 / SAMPLE)
"""Minimum number of samples; the shortest time in which all requests to koordlet are made."""
UNDISTURBED = 0.5
"""Percent of the CPUs' time that may be stolen in an undisturbed minute."""
FETCH = 10.0
FLOOR = {"resident_mb": 1.0, "open_files": 16.0}
"""Growth that is not significant: one allocation arena; descriptors of one pod come and go."""
GATES = "PSICollector=true,CPICollector=true,ColdPageCollector=true,ResctrlCollector=true,HugePageReport=true"
EVERYTHING = (
    f"--feature-gates={GATES}",
    "--enable-pagecache-collector=true",
    "--enable-resctrl-collector=true",
)


@dataclass(frozen=True)
class Sample:
    """Everything read at one time."""

    seconds: float
    cpu_percent: float
    """of a core, since the sample before"""
    resident_mb: float
    open_files: int
    threads: int
    slots: int
    """of cgroups in the fullest probe's table"""
    calibration: float
    """ms of a fixed piece of Python: the machine's present speed"""
    stolen_percent: float
    """share of all CPUs' time since the last sample that the hypervisor stole"""


class ChangingPods(Pods):
    """`Pods` with replacement of one at a time."""

    def replace_one(self, turn: int) -> None:
        pods = [path for path in self.dirs if path.rpartition("/")[2].startswith("pod")]
        old = pods[turn % len(pods)]
        gone = [path for path in self.containers if path.startswith(f"{old}/")]
        for path in gone:
            pid = self.children.pop(self.containers.index(path))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.containers.remove(path)
        for path in [*gone, old]:
            for root in dict.fromkeys(self.roots.values()):
                self._remove(root / self.parent / path)
            self.dirs.remove(path)
        new = f"{old.rpartition('/')[0]}/pod{uuid.uuid4()}"
        below = [f"{new}/{uuid.uuid4().hex}{uuid.uuid4().hex}" for _ in gone]
        self.dirs += [new, *below]
        self.make_dirs([new, *below])
        for path in below:
            self.containers.append(path)
            self.children.append(self.sleeper(path))

    def _remove(self, directory: Path) -> None:
        """A killed process leaves its group a moment after it was reaped."""
        for _ in range(200):
            with suppress(OSError):
                directory.rmdir()
                break
            time.sleep(0.01)
        self.made.remove(directory)


def seconds_of(text: str) -> float:
    """`1h`, `90m`, `600s`, `600`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([hms]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 1h, 10m or 600s")
    return float(match[1]) * {"h": 3600, "m": 60, "s": 1, "": 1}[match[2]]


def cpu_seconds(kind: str) -> float:
    """Time of all CPUs since boot, by column of /proc/stat."""
    columns = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(words[1 + columns.index(kind)]) / os.sysconf("SC_CLK_TCK")


def undisturbed(samples: Sequence[Sample]) -> list[float]:
    """CPU use in each whole minute with hardly any stolen time, percent of a core."""
    minutes = [samples[at : at + MINUTE] for at in range(0, len(samples) - MINUTE + 1, MINUTE)]
    return [
        float(np.mean([sample.cpu_percent for sample in minute]))
        for minute in minutes
        if np.mean([sample.stolen_percent for sample in minute]) <= UNDISTURBED
    ]


def table_fill(pins: Path) -> int:
    """Used slots of the fullest table of cgroups among all pinned probes."""
    used = 0
    for path in pins.glob("*/*/tags"):
        fd = libbpf.open_pinned(path)
        try:
            size = libbpf.map_info(fd).max_entries * 8
            tags = np.frombuffer(mmap.mmap(fd, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE), np.uint64, size // 8)
        finally:
            os.close(fd)
        used = max(used, int(np.count_nonzero(tags)))
    return used


def theil_sen(times: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """(growth over the whole span, scatter about the line: 1.4826 times the median distance)."""
    x, y = np.asarray(times, dtype=float), np.asarray(values, dtype=float)
    earlier, other = np.triu_indices(len(x), 1)
    slope = float(np.median((y[other] - y[earlier]) / (x[other] - x[earlier])))
    rest = y - slope * x
    return slope * float(x[-1] - x[0]), 1.4826 * float(np.median(np.abs(rest - np.median(rest))))


def flat(name: str, samples: Sequence[Sample]) -> tuple[float, float]:
    """(growth over the second half, how much may be noise)."""
    half = samples[len(samples) // 2 :]
    growth, scatter = theil_sen([sample.seconds for sample in half], [float(getattr(sample, name)) for sample in half])
    return growth, max(2 * scatter, FLOOR[name])


class Soak:
    """One run with a started koordlet."""

    def __init__(self, koordlet: subprocess.Popen[bytes], pods: ChangingPods, pins: Path) -> None:
        self._koordlet, self._pods, self._pins = koordlet, pods, pins
        self.samples: list[Sample] = []
        self.failed = 0
        """fetches without a response in time"""
        self._stolen = cpu_seconds("steal")

    def run(self, duration: float) -> None:
        """Sample until *duration* is over; raises SystemExit when koordlet ended."""
        began = last = time.monotonic()
        used = bench_koordlet.cpu_seconds(self._koordlet.pid)
        due = {"scrape": began + SCRAPE, "churn": began + CHURN, "progress": began + PROGRESS}
        turn = 0
        while (now := time.monotonic()) - began < duration:
            time.sleep(max(last + SAMPLE - now, 0.0))
            if self._koordlet.poll() is not None:
                raise SystemExit(f"koordlet ended with status {self._koordlet.returncode}")
            now, spent = time.monotonic(), bench_koordlet.cpu_seconds(self._koordlet.pid)
            self.samples.append(self._sample(now - began, (spent - used) / (now - last) * 100))
            last, used = now, spent
            if now >= due["scrape"]:
                due["scrape"] += SCRAPE
                self._fetch("/metrics")
            if now >= due["churn"]:
                due["churn"] += CHURN
                self._pods.replace_one(turn)
                self._fetch("/top")
                turn += 1
            if now >= due["progress"]:
                due["progress"] += PROGRESS
                newest = self.samples[-1]
                print(
                    f"# {newest.seconds / 60:5.1f} min: "
                    f"{np.mean([s.cpu_percent for s in self.samples]):.2f} % of a core, "
                    f"{newest.resident_mb:.1f} MB, {newest.open_files} files, {newest.slots} slots, "
                    f"calibration {newest.calibration:.1f} ms",
                    flush=True,
                )

    def _sample(self, seconds: float, cpu: float) -> Sample:
        before, self._stolen = self._stolen, cpu_seconds("steal")
        proc = Path(f"/proc/{self._koordlet.pid}")
        return Sample(
            seconds=round(seconds, 2),
            cpu_percent=round(cpu, 3),
            resident_mb=round(resident_mib(self._koordlet.pid), 3),
            open_files=len(list((proc / "fd").iterdir())),
            threads=len(list((proc / "task").iterdir())),
            slots=table_fill(proc / "root" / self._pins.relative_to("/")),
            calibration=round(calibration(), 3),
            stolen_percent=round((self._stolen - before) / SAMPLE / (os.cpu_count() or 1) * 100, 2),
        )

    def _fetch(self, path: str) -> None:
        """Fetch as Prometheus does: give up on a timeout, retry at the next interval."""
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", headers={"Accept-Encoding": "gzip"})
            with urllib.request.urlopen(request, timeout=FETCH) as response:
                response.read()
        except OSError as error:
            self.failed += 1
            print(f"# {path}: {error}", flush=True)


def figures(samples: Sequence[Sample], first: float, failed: int) -> list[Figure]:
    warm = [sample for sample in samples if sample.seconds >= WARM_UP] or list(samples)
    grown, noise = flat("resident_mb", warm)
    files, files_noise = flat("open_files", warm)
    quiet = undisturbed(warm)
    return [
        Figure("soak_minutes", samples[-1].seconds / 60, "min"),
        Figure("soak_first_sample", first, "s", START_BUDGET),
        Figure("soak_cpu", float(np.mean([sample.cpu_percent for sample in warm])), "% of a core", CPU_BUDGET),
        Figure("soak_undisturbed_minutes", len(quiet), "min"),
        *([Figure("soak_cpu_undisturbed", float(np.mean(quiet)), "% of a core")] if quiet else []),
        Figure("soak_resident_max", max(sample.resident_mb for sample in samples), "MB", MEMORY_BUDGET),
        Figure("soak_resident_growth_second_half", grown, "MB", noise),
        Figure("soak_open_files_growth_second_half", files, "descriptors", files_noise),
        Figure("soak_open_files_max", max(sample.open_files for sample in samples), "descriptors"),
        Figure("soak_threads_max", max(sample.threads for sample in samples), "threads"),
        Figure("soak_failed_fetches", failed, "fetches", 0),
        Figure("soak_calibration", float(np.median([sample.calibration for sample in samples])), "ms"),
        Figure("soak_probe_slots_max", max(sample.slots for sample in samples), "slots"),
    ]


def plot(samples: Sequence[Sample], pods: int, probes: str) -> str:
    note = (
        f"{pods} pods x 2 containers, one replaced every {CHURN:.0f} s; 1 s ticks; probes: {probes}; "
        f"kernel {platform.release().partition('-')[0]}, {os.cpu_count()} CPUs; a sample every {SAMPLE:.0f} s"
    )
    return chart(
        f"koordlet for {samples[-1].seconds / 60:.0f} minutes, everything on",
        note,
        [sample.seconds / 60 for sample in samples],
        [
            Panel("CPU, % of one core", [sample.cpu_percent for sample in samples], CPU_BUDGET),
            Panel("resident memory, MB", [sample.resident_mb for sample in samples], MEMORY_BUDGET),
            Panel("open descriptors", [sample.open_files for sample in samples]),
            Panel("CPU time stolen by the hypervisor, %", [sample.stolen_percent for sample in samples]),
            Panel("a fixed piece of Python on the same machine, ms", [sample.calibration for sample in samples]),
            Panel("slots in use in the fullest probe", [sample.slots for sample in samples]),
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=seconds_of, default=3600.0)
    parser.add_argument("--pods", type=int, default=110)
    parser.add_argument("--svg", type=Path, default=ROOT / "docs/soak.svg")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # created objects are removed in any case
    host = Host(Roots.host())
    pods = ChangingPods(host, options.pods)
    pins = Path(f"/sys/fs/bpf/koordlet-soak-{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix="koord-soak-") as scratch:
        pods.make()
        koordlet = None
        try:
            koordlet = bench_koordlet.start(pods, Path(scratch), pins, EVERYTHING)
            first = bench_koordlet.wait_for_rows(koordlet, len(pods.containers))
            probes = bench_koordlet.wait_for_probes()
            print(f"# {options.pods} pods x 2 containers; {probes}; {options.duration / 60:.0f} min", flush=True)
            soak = Soak(koordlet, pods, pins)
            soak.run(options.duration)
        finally:
            bench_koordlet.stop(koordlet)
            pods.remove()
    target = ROOT / "build/bench/soak-samples.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps([asdict(sample) for sample in soak.samples], indent=0) + "\n")
    options.svg.write_text(plot(soak.samples, options.pods, probes))
    return report("soak", figures(soak.samples, first, soak.failed))


if __name__ == "__main__":
    sys.exit(main())
