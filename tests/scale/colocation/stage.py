"""The node of the co-location demo: a service and batch pods in the kubelet's cgroups, hogs, the service's client, and
a koordlet that starts and stops. All of it is temporary.

The service and the batch pods run on one CPU; the client has the other one with the highest priority, in place of
another machine. A watcher on each CPU detects stops (stops.py). Memory pressure comes from a common limit of all pods,
in place of a full node.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.fleet import Need, PodSpec
from tests.koordlet.process.kernelfigures import keyed, process_cpu_seconds
from tests.koordlet.process.patience import until
from tests.scale.colocation import requests
from tests.scale.colocation.requests import Request, Stop
from tests.scale.colocation.testbed import HERE, Testbed, cpu_times, disk_below

BATCH_PODS = 2
DISTURBED, STOPPED, TRIES = 0.04, 0.0025, 4
"""A reading is repeated if foreign processes had more than that share of the CPU, or a CPU was stopped for a larger
share of the time: a queue delayed by 15 ms in 6 s is less than a hundredth of the requests."""
CLIENT_PRIORITY = 10
HEAD_START = 1.0
"""Seconds that hogs run before the measurement."""
SERVICE_MIB, HOG_MIB, NODE_MIB = 64, 512, 256
"""Sizes of the service's file, the hog's file, and the common limit of all pods in memory phases."""
DISK_RATE = 512 << 10
"""Bytes per second that a batch pod may read from the disk. A limit does not split reads: each of 1 MiB delays the
service's reads, so those of all pods together must be rarer than the service's slowest hundredth of requests."""
GATES = "BlkIOReconcile=true"
SERVICE = PodSpec("web", KubeQOS.BURSTABLE, "LS", (Need(cpu=(1000, None), memory=(96, None)),))
BATCH = Need(batch_cpu=(500, 1000), batch_memory=(32, 48))
ORDINARY = Need(cpu=(500, None), memory=(32, None))
"""The same work without Koordinator: pods with requests for what they get, as they would not be scheduled otherwise."""
BURN = ("-S", "-c", "while True: pass")
READ = (
    "-S", "-c",
    "import os, sys\nfd = os.open(sys.argv[1], os.O_RDONLY)\nwhile True:\n os.lseek(fd, 0, 0)\n"
    " while os.read(fd, 1 << 20): pass",
)  # fmt: skip
DIRECT = (
    "-S", "-c",
    "import mmap, os, random, sys\nfd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)\n"
    "area = mmap.mmap(-1, 1 << 20)\nend = os.lseek(fd, 0, 2) >> 20\n"
    "while True: os.preadv(fd, [area], random.randrange(end) << 20)",
)  # fmt: skip
HOGS = {"cpu": (BURN,), "memory": (READ,), "disk": (DIRECT,) * 4}
"""Programs of each batch pod, which get the name of a disk."""
ALONE, AS_ORDINARY, AS_BEST_EFFORT, ENFORCED = "alone", "ordinary", "best effort", "koordlet"


def spec(disk: str | None) -> dict[str, Any]:
    """NodeSLO: best effort yields the CPU and has a share of the disk."""
    block = {"name": disk, "type": "device", "ioCfg": {"readBPS": DISK_RATE}}
    best_effort = {"cpuQOS": {"enable": True}, "blkioQOS": {"enable": bool(disk), "blocks": [block] if disk else []}}
    return {
        "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 95},
        "resourceQOSStrategy": {"beClass": best_effort},
    }


@dataclass(frozen=True)
class Reading:
    """One reading of a phase. Requests are measured by the client; CPU seconds and refaults are the kernel's
    counters."""

    requests: tuple[Request, ...]
    seconds: float
    service_cpu: float
    batch_cpu: float
    refaults: int
    others: float = 0.0
    """Share of the contested CPU that the hypervisor took or, with CPU hogs, foreign processes."""

    enforcer_cpu: float = 0.0
    """koordlet's CPU seconds."""
    stops: tuple[Stop, ...] = ()
    """Spans in which one of the two CPUs was stopped."""

    def percentile(self, percent: float) -> float:
        """Quantile of all latencies, in seconds."""
        return requests.percentile((request.latency for request in self.requests), percent)

    @property
    def spared(self) -> list[Request]:
        """Requests that no stop delayed."""
        return requests.spared(self.requests, self.stops)

    @property
    def disturbance(self) -> float:
        """Above 1 if the reading should be repeated."""
        return max(self.others / DISTURBED, requests.seconds_of(self.stops) / self.seconds / STOPPED)

    @property
    def batch_share(self) -> float:
        """Share of the CPU that the service left idle."""
        return self.batch_cpu / max(self.seconds - self.service_cpu, 1e-9)


class Stage(Testbed):
    """See the module. `mine`: the contested CPU."""

    def __init__(self, scratch: Path) -> None:
        usable = sorted(os.sched_getaffinity(0))
        self.mine, self.other = usable[-1], usable[0]
        super().__init__(scratch, gates=GATES)
        self._loops: list[str] = []
        (self.web,) = self.fleet.add(SERVICE)
        names = [f"batch-{place}" for place in range(BATCH_PODS)]
        batch = self.fleet.add(*(PodSpec(name, KubeQOS.BESTEFFORT, "BE", (BATCH,)) for name in names))
        names = [f"job-{place}" for place in range(BATCH_PODS)]
        ordinary = self.fleet.add(*(PodSpec(name, KubeQOS.BURSTABLE, "", (ORDINARY,)) for name in names))
        self.hogs = {ALONE: [], AS_ORDINARY: ordinary, AS_BEST_EFFORT: batch, ENFORCED: batch}
        self.socket = str(scratch / "web.sock")
        self.disk = disk_below(scratch)
        self.repeated = 0
        """Readings that did not count."""
        self.rates = {"memory": 200.0, "disk": 200.0}

    def open(self) -> None:
        pages, self._food = self._disk("pages", SERVICE_MIB), self._disk("food", HOG_MIB)
        self.open_node(spec(self.disk))
        self._run(self.web.container_dirs[0], str(HERE / "service.py"), self.socket, pages, str(self.scratch / "food"))
        until(lambda: Path(self.socket).exists(), "the service", 30.0)

    def calibrate(self, load: float) -> float:
        """Measure the CPU seconds of a request; the client then uses the rate for the wanted load of the service's
        CPU."""
        self.rates["cpu"] = 50.0
        reading = self.measure("cpu", ALONE, 2.0)
        cost = reading.service_cpu / (reading.seconds * self.rates["cpu"])
        self.rates["cpu"] = load / cost
        return cost

    def measure(self, kind: str, phase: str, seconds: float) -> Reading:
        """Measure the service for some seconds with the phase's hogs. A reading with too much foreign CPU use or
        stopped CPUs is repeated a few times; the least disturbed one counts, whatever its latencies are."""
        readings = [self._measure(kind, phase, seconds)]
        while readings[-1].disturbance > 1 and len(readings) < TRIES:
            readings.append(self._measure(kind, phase, seconds))
        self.repeated += len(readings) - 1
        return min(readings, key=lambda reading: reading.disturbance)

    def _measure(self, kind: str, phase: str, seconds: float) -> Reading:
        running: list[subprocess.Popen[bytes]] = []
        food = str(self.scratch / "food") if kind == "disk" else self._food
        with self._short_of_memory(kind == "memory"):
            try:
                self._ready(warm=kind == "memory")
                for pod in self.hogs[phase]:
                    running += [self._run(pod.container_dirs[0], *hog, food) for hog in HOGS[kind]]
                time.sleep(HEAD_START)
                before = self._counters(phase)
                sent, stops = self._ask(kind, seconds)
                after = self._counters(phase)
            finally:
                for process in running:
                    self.end(process)
        deltas = [b - a for a, b in zip(before, after, strict=True)]
        passed, service, batch, refaults, stolen, strange, enforcer = deltas
        other_share = (stolen + (strange if kind == "cpu" else 0.0)) / passed
        return Reading(sent, passed, service, batch, int(refaults), other_share, enforcer, stops)

    def close(self) -> None:
        super().close()
        for loop in self._loops:
            subprocess.run(["losetup", "--detach", loop], check=True)

    # Parts

    def _disk(self, name: str, mebibytes: int) -> str:
        """A filled temporary loop device: reads are charged to the reader."""
        path = self.scratch / name
        with path.open("wb") as file:
            for _ in range(mebibytes):
                file.write(os.urandom(1 << 20))
        command = ["losetup", "--find", "--show", "--direct-io=on", str(path)]
        self._loops.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        return self._loops[-1]

    def _run(self, directory: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Python in a container, on the contested CPU."""
        return self.start(self.groups(directory), (sys.executable, *arguments), cpu=self.mine)

    def _ask(self, kind: str, seconds: float) -> tuple[tuple[Request, ...], tuple[Stop, ...]]:
        """The client's measurements, and stops of the CPUs meanwhile."""
        script = str(HERE / "client.py")
        command = (sys.executable, script, self.socket, kind[0], str(self.rates[kind]), str(seconds))
        with self.watched((self.mine, self.other)) as stops:
            client = self.start(
                self.client_groups, command, cpu=self.other, priority=CLIENT_PRIORITY, stdout=subprocess.PIPE
            )
            try:
                out, _ = client.communicate(timeout=seconds * 10 + 60)
            finally:
                self.end(client)
        sent = tuple(Request(*load) for load in json.loads(out))
        first = sent[0].due if sent else 0.0
        return sent, tuple((begin, end) for begin, end in stops if end > first)

    def _ready(self, warm: bool) -> None:
        """Wait until the service has finished an earlier client's requests, and has its pages in memory if `warm`."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(self.socket)
            sock.send(b"w" if warm else b"n")
            sock.recv(64)

    def _counters(self, phase: str) -> tuple[float, ...]:
        """now; CPU seconds of the service and of the phase's hogs; refaults of the service; seconds of the contested
        CPU that were stolen, that foreign processes used; koordlet's CPU seconds."""
        stat = keyed(self.tree.path("memory", self.web.container_dirs[0]) / "memory.stat")
        refaults = sum(value for name, value in stat.items() if name.startswith("workingset_refault"))
        batch = sum(self.cpu_seconds(pod.dir) for pod in self.hogs[phase])
        busy, steal = cpu_times(self.mine)
        enforcer = self.scene.koordlet.process if phase == ENFORCED else None
        enforcing = process_cpu_seconds(enforcer.pid) if enforcer is not None else 0.0
        strangers = busy - self.cpu_seconds("") - enforcing
        return time.monotonic(), self.cpu_seconds(self.web.dir), batch, float(refaults), steal, strangers, enforcing

    @contextmanager
    def _short_of_memory(self, limited: bool) -> Iterator[None]:
        with self.memory_limited(NODE_MIB if limited else None):
            yield
        if limited:
            subprocess.run(["blockdev", "--flushbufs", self._food], check=True)
