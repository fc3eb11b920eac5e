"""The kernel's own figures, read without koordlet's code, to compare with its report.

A `Sampler` thread records twice a second the CPU seconds and bytes of the node and each pod; `average` returns averages
over the period of a report.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

SAMPLE_PERIOD_S = 0.5
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class PodFiles:
    """Directories of one pod's counters, for CPU and for memory (the same on cgroup v2)."""

    cpu: Path
    memory: Path


@dataclass(frozen=True, slots=True)
class UsageSample:
    """CPU seconds used so far and bytes in use, of the node and of existing pods."""

    at: float
    cpu: float
    memory: float
    pods: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AverageUsage:
    """Averages: cores and bytes."""

    cores: float
    memory: float


def busy_seconds(stat: str) -> float:
    """Busy CPU seconds of the node: user, nice, system, irq, softirq of the first line of /proc/stat."""
    user, nice, system, _idle, _iowait, irq, softirq = (int(word) for word in stat.split("\n", 1)[0].split()[1:8])
    return (user + nice + system + irq + softirq) / _TICK


def used_memory(meminfo: str) -> float:
    """Bytes in use that the kernel cannot reclaim: MemTotal - MemAvailable."""
    values = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in meminfo.splitlines())}
    return float((values["MemTotal"] - values["MemAvailable"]) * 1024)


def keyed(text: str) -> dict[str, int]:
    """Lines of `name value`."""
    return {name: int(value) for name, _, value in (line.partition(" ") for line in text.splitlines())}


def find_group(uid: str, controller: str, root: Path = Path("/sys/fs/cgroup")) -> Path | None:
    """The pod's directory of a controller (one for all on cgroup v2), with any driver; None while it does not exist."""
    names = {f"pod{uid}", uid.replace("-", "_")}
    base = root if (root / "cgroup.controllers").exists() else root / controller
    for top in ("kubepods", "kubepods.slice"):
        for path in (base / top).glob("**/"):
            if path.name in names or any(path.name.endswith(f"-pod{name}.slice") for name in names):
                return path
    return None


def find_pod(uid: str, root: Path = Path("/sys/fs/cgroup")) -> PodFiles | None:
    """The directories of the pod's counters; None while they do not exist."""
    cpu, memory = (find_group(uid, name, root) for name in ("cpuacct", "memory"))
    return None if cpu is None or memory is None else PodFiles(cpu, memory)


def pod_cpu_seconds(files: PodFiles) -> float:
    """CPU seconds that the pod has used."""
    if (files.cpu / "cpuacct.usage").exists():
        return int((files.cpu / "cpuacct.usage").read_text()) / 1e9
    return keyed((files.cpu / "cpu.stat").read_text())["usage_usec"] / 1e6


def pod_memory(files: PodFiles) -> float:
    """Bytes of anonymous and unevictable memory of the pod with its children."""
    values = keyed((files.memory / "memory.stat").read_text())
    prefix = "total_" if "total_inactive_anon" in values else ""
    return float(sum(values[prefix + name] for name in ("inactive_anon", "active_anon", "unevictable")))


def take(pods: dict[str, PodFiles]) -> UsageSample:
    """Read everything once."""
    usage = {}
    for name, files in pods.items():
        try:
            usage[name] = (pod_cpu_seconds(files), pod_memory(files))
        except (FileNotFoundError, OSError):
            continue  # the pod has ended
    return UsageSample(
        time.monotonic(),
        busy_seconds(Path("/proc/stat").read_text()),
        used_memory(Path("/proc/meminfo").read_text()),
        usage,
    )


def average(samples: list[UsageSample], start: float, end: float, pod: str | None = None) -> AverageUsage | None:
    """Average usage between two times on the samples' clock; None when they do not cover it."""
    first = bisect_left(samples, start, key=lambda sample: sample.at)
    last = bisect_left(samples, end, key=lambda sample: sample.at)
    inside = samples[first : last + 1]
    if pod is not None:
        inside = [sample for sample in inside if pod in sample.pods]
    if len(inside) < 2:
        return None
    values = [(s.at, s.cpu, s.memory) if pod is None else (s.at, *s.pods[pod]) for s in inside]
    seconds = values[-1][0] - values[0][0]
    return AverageUsage((values[-1][1] - values[0][1]) / seconds, sum(memory for _, _, memory in values) / len(values))


class Sampler:
    """Takes samples in its own thread, because the demo's main thread waits for commands."""

    def __init__(self, pods: dict[str, PodFiles]) -> None:
        self.pods = pods
        self.samples = [take(pods)]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_PERIOD_S):
            self.samples.append(take(self.pods))

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
