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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS, kubepods_dir
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.koordlet.process import conftest as lab
from tests.koordlet.process.fleet import Fleet, Need, PodSpec
from tests.koordlet.process.scene import Scene
from tests.scale.colocation import requests
from tests.scale.colocation.requests import Request, Stop

HERE = Path(__file__).resolve().parent
HEAVY = 100
"""CPU weight of the demo's groups relative to one foreign process."""
BATCH_PODS = 2
DISTURBED, STOPPED, TRIES = 0.04, 0.0025, 4
"""A reading is repeated if foreign processes had more than that share of the CPU, or a CPU was stopped for a larger
share of the time: a queue delayed by 15 ms in 6 s is less than a hundredth of the requests."""
CLIENT_PRIORITY = 10
REALTIME_US = 300_000
"""Real-time budget per second of a group, where groups have such a limit."""
AT_EASE = ("--kubelet-sync-interval=2s", "--runtime-hooks-reconcile-interval=10s", "--psi-collector-interval=10s")
"""koordlet's default periods, in place of the tests' short ones."""
TICKS = os.sysconf("SC_CLK_TCK")
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


def disk_below(path: Path) -> str | None:
    """The device (`/dev/...`) of a file system; None for one without a device, such as an overlay."""
    number = path.stat().st_dev
    found = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    return f"/dev/{found.resolve().name}" if found.exists() else None


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


class Stage:
    """See the module. `mine`: the contested CPU."""

    def __init__(self, scratch: Path) -> None:
        usable = sorted(os.sched_getaffinity(0))
        self.mine, self.other = usable[-1], usable[0]
        self.scratch = scratch
        self.tree = lab.PodTree(Host(Roots.host()), CgroupDriver.CGROUPFS, HEAVY, disks=True)
        self._loops: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self.fleet = Fleet(self.tree)
        (self.web,) = self.fleet.add(SERVICE)
        names = [f"batch-{place}" for place in range(BATCH_PODS)]
        batch = self.fleet.add(*(PodSpec(name, KubeQOS.BESTEFFORT, "BE", (BATCH,)) for name in names))
        names = [f"job-{place}" for place in range(BATCH_PODS)]
        ordinary = self.fleet.add(*(PodSpec(name, KubeQOS.BURSTABLE, "", (ORDINARY,)) for name in names))
        self.hogs = {ALONE: [], AS_ORDINARY: ordinary, AS_BEST_EFFORT: batch, ENFORCED: batch}
        self.view = lab.View(self.tree, scratch / "view", bpffs=False)
        self.scene = Scene(lab, self.fleet, self.view, scratch, gates=GATES)
        self._client = [root / f"{self.tree.top}-client" for root in self._roots("cpu")]
        for group in self._client:
            group.mkdir()
            name, weight = ("cpu.weight", 100 * HEAVY) if self.tree.v2 else ("cpu.shares", 1024 * HEAVY)
            (group / name).write_text(str(weight))
        self.socket = str(scratch / "web.sock")
        self.disk = disk_below(scratch)
        self.repeated = 0
        """Readings that did not count."""
        self.rates = {"memory": 200.0, "disk": 200.0}

    def open(self) -> None:
        for limit in (group / "cpu.rt_runtime_us" for group in self._client):
            if limit.exists():
                limit.write_text(str(REALTIME_US))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
        pages, self._food = self._disk("pages", SERVICE_MIB), self._disk("food", HOG_MIB)
        self.scene.open(spec(self.disk), cpus=os.cpu_count() or 1, memory_mib=memory)
        self._run(self.web.container_dirs[0], str(HERE / "service.py"), self.socket, pages, str(self.scratch / "food"))
        lab.until(lambda: Path(self.socket).exists(), "the service", 30.0)

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
        found = [self._measure(kind, phase, seconds)]
        while found[-1].disturbance > 1 and len(found) < TRIES:
            found.append(self._measure(kind, phase, seconds))
        self.repeated += len(found) - 1
        return min(found, key=lambda reading: reading.disturbance)

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
                asked, stops = self._ask(kind, seconds)
                after = self._counters(phase)
            finally:
                for process in running:
                    self._end(process)
        deltas = [b - a for a, b in zip(before, after, strict=True)]
        passed, service, batch, refaults, stolen, strange, enforcer = deltas
        others = (stolen + (strange if kind == "cpu" else 0.0)) / passed
        return Reading(asked, passed, service, batch, int(refaults), others, enforcer, stops)

    @contextmanager
    def koordlet(self) -> Iterator[Any]:
        """Run koordlet with enforcement; at the end all its settings are restored."""
        koordlet = self.scene.start(*AT_EASE)
        try:
            self.scene.settle()
            yield koordlet
        finally:
            status = self.scene.stop()
        if status:
            raise RuntimeError(f"koordlet ended with {status}: {koordlet.log[-2000:]}")

    def close(self) -> None:
        for process in list(self._processes):
            self._end(process)
        self.scene.close()
        self.view.close()
        self.tree.remove()
        for group in self._client:
            group.rmdir()
        for loop in self._loops:
            subprocess.run(["losetup", "--detach", loop], check=True)

    # Parts

    def _roots(self, *controllers: str) -> list[Path]:
        roots = self.tree.roots
        return [roots[""]] if self.tree.v2 else [roots[name] for name in controllers if name in roots]

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
        places = [root / self.tree.top / directory for root in dict.fromkeys(self.tree.roots.values())]
        return self._start(places, self.mine, arguments)

    def _start(
        self, groups: Sequence[Path], cpu: int, arguments: Sequence[str], *, priority: int = 0, **how: Any
    ) -> subprocess.Popen[bytes]:
        """Python in these groups, on that CPU; with a priority it precedes all other tasks there."""
        enter = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in groups)
        first = f"chrt --fifo {priority} " if priority else ""
        script = f'{enter}; exec {first}taskset -c {cpu} "$0" "$@"'
        process = subprocess.Popen(["sh", "-c", script, sys.executable, *arguments], start_new_session=True, **how)
        self._processes.append(process)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.communicate()
        self._processes.remove(process)

    def _ask(self, kind: str, seconds: float) -> tuple[tuple[Request, ...], tuple[Stop, ...]]:
        """The client's measurements, and stops of the CPUs meanwhile."""
        arguments = (str(HERE / "client.py"), self.socket, kind[0], str(self.rates[kind]), str(seconds))
        with self._watched() as stops:
            client = self._start(self._client, self.other, arguments, priority=CLIENT_PRIORITY, stdout=subprocess.PIPE)
            try:
                out, _ = client.communicate(timeout=seconds * 10 + 60)
            finally:
                self._end(client)
        asked = tuple(Request(*load) for load in json.loads(out))
        first = asked[0].due if asked else 0.0
        return asked, tuple((begin, end) for begin, end in stops if end > first)

    @contextmanager
    def _watched(self) -> Iterator[list[Stop]]:
        """A list that is filled at the end with stops of either CPU."""
        found: list[Stop] = []
        watchers: list[subprocess.Popen[bytes]] = []
        try:
            for cpu in (self.mine, self.other):
                arguments = (str(HERE / "stops.py"), str(cpu))
                watchers.append(self._start(self._client, cpu, arguments, stdout=subprocess.PIPE))
            for watcher in watchers:
                assert watcher.stdout is not None
                if watcher.stdout.readline() != b"ready\n":
                    raise RuntimeError("a watcher of the CPUs did not start")
            yield found
            for watcher in watchers:
                watcher.terminate()
                out, _ = watcher.communicate(timeout=60)
                found += [(begin, end) for begin, end in json.loads(out)]
        finally:
            for watcher in watchers:
                self._end(watcher)

    def _ready(self, warm: bool) -> None:
        """Wait until the service has finished an earlier client's requests, and has its pages in memory if `warm`."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(self.socket)
            sock.send(b"w" if warm else b"n")
            sock.recv(64)

    def _counters(self, phase: str) -> tuple[float, ...]:
        """now; CPU seconds of the service and of the phase's hogs; refaults of the service; seconds of the contested
        CPU that were stolen, that foreign processes used; koordlet's CPU seconds."""
        stat = lab.keyed(self.tree.path("memory", self.web.container_dirs[0]) / "memory.stat")
        refaults = sum(value for name, value in stat.items() if name.startswith("workingset_refault"))
        batch = sum(self._cpu(pod.dir) for pod in self.hogs[phase])
        line = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{self.mine} "))
        user, nice, system, _, _, irq, softirq, steal = (int(text) / TICKS for text in line.split()[1:9])
        enforcer = self.scene.koordlet.process if phase == ENFORCED else None
        enforcing = lab.process_cpu_seconds(enforcer.pid) if enforcer is not None else 0.0
        strangers = user + nice + system + irq + softirq - self._cpu("") - enforcing
        return time.monotonic(), self._cpu(self.web.dir), batch, float(refaults), steal, strangers, enforcing

    def _cpu(self, directory: str) -> float:
        if self.tree.v2:
            return lab.keyed(self.tree.path("cpu", directory) / "cpu.stat")["usage_usec"] / 1e6
        return int((self.tree.path("cpuacct", directory) / "cpuacct.usage").read_text()) / 1e9

    @contextmanager
    def _short_of_memory(self, wanted: bool) -> Iterator[None]:
        if not wanted:
            yield
            return
        self.fleet.write(kubepods_dir(self.tree.driver), "memory.limit_in_bytes", NODE_MIB << 20)
        try:
            yield
        finally:
            self.fleet.write(kubepods_dir(self.tree.driver), "memory.limit_in_bytes", -1)
            subprocess.run(["blockdev", "--flushbufs", self._food], check=True)
