"""Accuracy of interference detection: randomised trials with real processes, evaluated by the kernel's own counters.

Run: `make bench-interference [SEED=n] [TRIALS=60]`, as root. Every trial creates pods in their own cgroups, observed by
one real koordlet process through a private view (tests/koordlet/process). The scenarios are drawn from the seed:

  quiet         the victim alone on its CPU; a best-effort burner on the other CPU is innocent
  self-quota    the victim's own quota throttles it
  self-threads  the victim's own threads wait for each other
  self-memory   the victim reads more than its own memory limit holds
  cpu           one other container on the victim's CPU
  cpu-two       two others, one of which takes clearly more
  memory        another container fills the common limit with page cache
  io            another container floods the victim's disk, a loop device
  crowd         many small ones together; any of them is right
  bursts        one other container that is active for 1.5 to 2.5 s in every 5 s
  partly        one other container, and the victim's own threads wait for each other as well
  fsync         another container writes to the victim's disk and syncs, again and again
  softirq       another container floods its own network, whose packets the kernel processes on the victim's CPU, in
                softirqs and in its thread; an alarm for the network counts, with the packets' owner or the kernel as
                the culprit
  flood         the same with large packets from several sockets, which a process of the container receives
  bandwidth     another container streams through memory on another CPU; only where the CPI collector has counters

An independent referee reads the victim's run delay (`/proc/<pid>/schedstat`). A quiet trial in which the victim lost
time was *disturbed* by a foreign process, as was a trial in which foreign processes got much of the relevant CPU, or
in which the victim lost time before the culprit started; a
trial with a culprit in which the victim lost nothing was *harmless*. Both are repeated with the next draw and counted.
The referee's limits are fixed and independent of koordlet. Figures, the table and every trial are written to
build/bench/interference*.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.api.encoding.wire import decode
from koordlet.api.pages.interference import PodInterferenceReport, VerdictReport
from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.koordlet.process.kernelfigures import keyed
from tests.koordlet.process.koordletprocess import Koordlet
from tests.koordlet.process.patience import until
from tests.koordlet.process.podtree import PodTree
from tests.koordlet.process.programs import BURN, duty
from tests.koordlet.process.view import View
from tests.scale.figures import ROOT, Figure, report

NOTHING, SELF, NEIGHBOUR = "nothing", "self", "neighbour"
WARM = (2.0, 4.0)
"""Seconds that the victim runs before the trial begins."""
PATIENCE = 12.0
"""Longest wait for an alarm in seconds; also the observation time of a trial without a culprit."""
BURST_PERIOD = 5.0
CROWD = 8
"""Culprits of a `crowd`; each works for about an eighth of its time."""
CULPRIT_KINDS = ("cpu", "cpu-two", "crowd", "bursts", "partly")
"""Kinds in which the neighbour's processes run on the victim's CPU."""
DISTURBED, HARMFUL = 0.12, 0.20
"""Share of its wanted time that a victim lost by its own run delay: a quiet trial with DISTURBED or more was disturbed,
a trial with a culprit below HARMFUL was harmless."""
STRANGERS = 0.25
"""Largest CPU share of foreign processes in trials with a culprit; with more they may be the worst culprit, or keep the
packets from arriving."""
ALLOWED = {
    **dict.fromkeys((*CULPRIT_KINDS, "softirq", "flood"), STRANGERS),
    "self-threads": DISTURBED,
}
"""Kind -> largest share of the victim's CPU for foreign processes; irrelevant for other kinds."""
JUDGED_SECONDS = 4.0
LEARN = 65.0
"""Seconds until koordlet knows a victim's usual value."""
HARDLY = 0.02
"""Seconds per second: a container that hardly runs loses hardly anything, whatever the share."""
REPEATS = 5
LIMIT = 128
"""Common memory limit of all pods in MiB in memory trials."""
HEAVY = 100
"""CPU weight of all pods of the trial, and of koordlet, relative to one foreign process."""
ALARMS = ("interfered", "recovering")


@dataclass(frozen=True)
class Scenario:
    """One drawn trial."""

    kind: str
    busy: float
    """Seconds of the victim's work in one burst."""
    idle: float
    warm: float
    quota: float
    share: float
    """Share of its time that the smaller of two culprits works."""
    weight: int
    """Processes of the main culprit."""
    burst: float
    """Seconds in every BURST_PERIOD in which a culprit in bursts is active."""

    @classmethod
    def draw(cls, kind: str, rng: random.Random) -> Scenario:
        busy = rng.uniform(0.002, 0.008)
        return cls(
            kind=kind,
            busy=busy,
            idle=busy * rng.uniform(1.0, 4.0),
            warm=rng.uniform(*WARM),
            quota=rng.uniform(0.1, 0.4),
            share=rng.uniform(0.1, 0.3),
            weight=rng.choice((1, 1, 2)),
            burst=rng.uniform(1.5, 2.5),
        )


@dataclass
class Trial:
    """The result of a trial."""

    scenario: Scenario
    truth: str
    reported: str = NOTHING
    seconds: float | None = None
    """Seconds from the culprit's start to the alarm."""
    culprit_right: bool | None = None
    worst: str = ""
    lost: float = 0.0
    """Measured by the referee."""
    before: float = 0.0
    """The same just before the culprit starts."""
    strangers: float = 0.0
    """Share of the contested CPU used by foreign processes, by the kernel's count of the trial's groups."""
    resource: str = ""
    peaks: dict[str, float] = field(default_factory=dict)
    """`resource cause` -> koordlet's largest symptom in the trial."""


class Judge:
    """Reads run time and run delay of processes, five times per second."""

    def __init__(self) -> None:
        self._pids: list[int] = []
        self._seen: list[tuple[float, float, float]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Judge:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def follow(self, *pids: int) -> None:
        self._pids += pids

    def _watch(self) -> None:
        while not self._end.wait(0.2):
            ran = waited = 0.0
            try:
                for pid in self._pids:
                    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                        fields = path.read_text().split()
                        ran, waited = ran + int(fields[0]) / 1e9, waited + int(fields[1]) / 1e9
            except OSError:  # it ended
                continue
            self._seen.append((time.monotonic(), ran, waited))

    def strangers(self, cpu: int, since: tuple[float, float]) -> float:
        """Share of a CPU used by foreign tasks since `busy`; softirq time belongs to no task."""
        at, used = self.busy(cpu)
        return max((used - since[1]) / max(at - since[0], 1e-9), 0.0)

    def busy(self, cpu: int) -> tuple[float, float]:
        """(now, CPU seconds of foreign tasks)."""
        lines = Path("/proc/stat").read_text().splitlines()
        row = next(line.split() for line in lines if line.startswith(f"cpu{cpu} "))
        ran = self._seen[-1][1] if self._seen else 0.0
        return time.monotonic(), sum(map(int, row[1:4])) / os.sysconf("SC_CLK_TCK") - ran

    def recent(self, seconds: float) -> float:
        """The share of wanted time lost in the last `seconds`."""
        rows = [row for row in self._seen if row[0] >= time.monotonic() - seconds]
        if len(rows) < 2:
            return 0.0
        ran, waited = rows[-1][1] - rows[0][1], rows[-1][2] - rows[0][2]
        return waited / (ran + waited + HARDLY * (rows[-1][0] - rows[0][0]))

    def worst(self, since: float) -> float:
        """The largest share of wanted time lost in any JUDGED_SECONDS that begin after `since`."""
        rows = [row for row in self._seen if row[0] >= since]
        worst = 0.0
        for first in rows:
            last = next((row for row in rows if row[0] >= first[0] + JUDGED_SECONDS), None)
            if last is not None:
                ran, waited = last[1] - first[1], last[2] - first[2]
                worst = max(worst, waited / (ran + waited + HARDLY * (last[0] - first[0])))
        return worst


class Stage:
    """One koordlet and one tree of pods for all trials."""

    def __init__(self, scratch: Path, cpus: tuple[int, int]) -> None:
        self.cpus, self.scratch, self._loop = cpus, scratch, ""
        host = Host(Roots.host())
        self.tree = PodTree(host, CgroupDriver.CGROUPFS, HEAVY)
        self.view = View(self.tree, scratch)
        self.koordlet = Koordlet(self.view, "--feature-gates=CPICollector=true")
        self._own = self.tree.roots["" if self.tree.v2 else "cpu"] / f"{self.tree.top}-koordlet"
        self._own.mkdir()
        name, weight = ("cpu.weight", 100 * HEAVY) if self.tree.v2 else ("cpu.shares", 1024 * HEAVY)
        (self._own / name).write_text(str(weight))
        (self._own / "cgroup.procs").write_text(str(self.koordlet.process.pid))

    def pod(self, qos: KubeQOS) -> Any:
        (container,) = self.tree.pod(qos)
        return container

    def known(self, *containers: Any) -> None:
        """Wait until koordlet observes the pods."""
        for container in containers:
            until(partial(self._is_explained, container), "koordlet to see the pods", 30.0)

    def _is_explained(self, container: Any) -> bool:
        return self.explained(container) is not None

    def explained(self, container: Any) -> PodInterferenceReport | None:
        body = self.koordlet.answer(f"/interference?pod=/{container.pod_uid}")
        return None if body is None else decode(body, PodInterferenceReport)

    def used(self) -> float:
        """CPU seconds of all pods of the trial."""
        if self.tree.v2:
            return keyed(self.tree.path("cpu", "") / "cpu.stat")["usage_usec"] / 1e6
        return int((self.tree.path("cpuacct", "") / "cpuacct.usage").read_text()) / 1e9

    def remove(self, *pods: tuple[Any, KubeQOS]) -> None:
        for container, qos in pods:
            self.tree.remove_pod(container.pod_uid, qos)

    def limit(self, group: Path, mebibytes: int | None) -> None:
        """Set a memory limit on a group; None removes it."""
        if self.tree.v2:
            (group / "memory.max").write_text("max" if mebibytes is None else str(mebibytes << 20))
        else:
            (group / "memory.limit_in_bytes").write_text("-1" if mebibytes is None else str(mebibytes << 20))

    def file(self, name: str, mebibytes: int) -> Path:
        """A file that is on disk and not in the page cache."""
        path = self.scratch / name
        if not path.exists():
            with path.open("wb") as file:
                for _ in range(mebibytes):
                    file.write(os.urandom(1 << 20))
                file.flush()
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return path

    def disk(self) -> str:
        """A temporary loop device."""
        if not self._loop:
            command = ["losetup", "--find", "--show", "--direct-io=on", str(self.file("disk", 256))]
            self._loop = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        return self._loop

    def sources(self) -> dict[str, str]:
        """koordlet's evidence sources."""
        probe = self.pod(KubeQOS.BURSTABLE)
        try:
            self.known(probe)
            time.sleep(WARM[1])  # each collector provides evidence at its second reading
            result: dict[str, str] = until(
                lambda: explanation.sources if (explanation := self.explained(probe)) else None, "evidence", 30.0
            )
            return result
        finally:
            self.remove((probe, KubeQOS.BURSTABLE))

    def close(self) -> None:
        self.koordlet.kill()
        self._own.rmdir()
        self.tree.remove()
        self.view.close()
        if self._loop:
            subprocess.run(["losetup", "--detach", self._loop], check=True)


def verdict_of(alarms: list[VerdictReport]) -> str:
    causes = {verdict.cause for verdict in alarms}
    return NEIGHBOUR if "neighbour" in causes else SELF if "self" in causes else NOTHING


def run_cpu(stage: Stage, scenario: Scenario, trial: Trial) -> None:
    """All kinds that need only CPUs."""
    mine, other = stage.cpus
    victim, first, second = stage.pod(KubeQOS.BURSTABLE), stage.pod(KubeQOS.BESTEFFORT), stage.pod(KubeQOS.BURSTABLE)
    crowd = [stage.pod(KubeQOS.BESTEFFORT) for _ in range(CROWD if scenario.kind == "crowd" else 0)]
    pods = (
        (victim, KubeQOS.BURSTABLE),
        (first, KubeQOS.BESTEFFORT),
        (second, KubeQOS.BURSTABLE),
        *((pod, KubeQOS.BESTEFFORT) for pod in crowd),
    )
    try:
        with Judge() as judge:
            if scenario.kind == "self-quota":
                victim.quota(scenario.quota)
                judge.follow(victim.run(BURN, mine))
            elif scenario.kind == "self-threads":
                judge.follow(*(victim.run(BURN, mine) for _ in range(2 + scenario.weight)))
            elif scenario.kind == "partly":
                judge.follow(*(victim.run(duty(scenario.busy, scenario.busy), mine) for _ in range(2)))
            else:
                judge.follow(victim.run(duty(scenario.busy, scenario.idle), mine))
            stage.known(victim, first, second, *crowd)
            busy_before = judge.busy(mine)
            time.sleep(scenario.warm)
            if trial.truth == NEIGHBOUR and scenario.kind != "partly":  # other victims wait for their own threads
                trial.before = judge.recent(WARM[0])
            began, used = time.monotonic(), stage.used()
            if trial.truth == NEIGHBOUR:
                for pod in crowd:
                    pod.run(duty(0.01, 0.01 * (CROWD - 1)), mine)
                code = in_bursts(scenario.burst) if scenario.kind == "bursts" else BURN
                for _ in range(0 if crowd else scenario.weight):
                    first.run(code, mine)
                if scenario.kind == "cpu-two":
                    busy = 0.01
                    second.run(duty(busy, busy * (1 / scenario.share - 1)), mine)
            else:
                first.run(duty(0.02, 0.02), other)
            watch(stage, trial, victim, began, {pod.pod_uid for pod in crowd} or {first.pod_uid})
            time.sleep(max(began + JUDGED_SECONDS + 1.0 - time.monotonic(), 0.0))
            trial.lost = judge.worst(began)
            idle = 1.0 - scenario.burst / BURST_PERIOD if scenario.kind == "bursts" else 0.0
            if scenario.kind == "crowd":
                idle = 1.0 - DISTURBED  # what the crowd leaves is not known; the victim's loss decides
            trial.strangers = max(1.0 - idle - (stage.used() - used) / (time.monotonic() - began), 0.0)
            if scenario.kind == "self-threads":
                trial.strangers = judge.strangers(mine, busy_before)
    finally:
        stage.remove(*pods)


def watch(stage: Stage, trial: Trial, victim: Any, began: float, guilty: set[str]) -> None:
    """Query koordlet until it reports the expected verdict or the time is up; quiet and own-trouble trials run to the
    end."""
    while time.monotonic() < began + PATIENCE:
        report = stage.explained(victim)
        alarms = [] if report is None else [v for c in report.containers for v in c.verdicts if v.state in ALARMS]
        for series in report.containers[0].series if report is not None and report.containers else ():
            trial.peaks[f"{series.resource} {series.cause}"] = round(max(series.values), 3)
        if trial.truth == NEIGHBOUR or trial.scenario.kind in NEEDS:
            # One resource is loaded; other resources, and the kernel threads that serve it, use the CPU too.
            alarms = [v for v in alarms if v.resource == NEEDS.get(trial.scenario.kind, "cpu")]
        state = verdict_of(alarms)
        if state == NEIGHBOUR or trial.reported == NOTHING:
            trial.reported = state
        if state == NEIGHBOUR:
            (worst, *_) = sorted((v for v in alarms if v.cause == "neighbour"), key=lambda v: -v.score)
            trial.seconds, trial.resource = time.monotonic() - began, worst.resource
            if worst.culprits:
                culprit = worst.culprits[0]
                trial.worst = culprit.label
                trial.culprit_right = culprit.pod in guilty or culprit.kind in guilty
            else:
                trial.culprit_right = False
            return
        time.sleep(0.2)


def run_memory(stage: Stage, scenario: Scenario, trial: Trial) -> None:
    """Dirty page cache fills a limit, and allocations below it wait for writeback. Either the limit is that of all pods
    and the culprit fills it, or the limit and the pages are the victim's own."""
    mine, other = stage.cpus
    victim, neighbour = stage.pod(KubeQOS.BURSTABLE), stage.pod(KubeQOS.BESTEFFORT)
    dirt = stage.scratch / "dirt"
    above = stage.tree.path("memory", "kubepods")
    try:
        with Judge() as judge:
            if scenario.kind == "self-memory":
                stage.limit(victim.path("memory"), LIMIT // 4)
                judge.follow(victim.run(write_on(dirt), mine))
            else:
                judge.follow(victim.run(take_and_give(scenario.idle / 2), mine))
            stage.known(victim, neighbour)
            time.sleep(scenario.warm)
            began = time.monotonic()
            if scenario.kind == "memory":
                stage.limit(above, LIMIT)
                neighbour.run(write_on(dirt), other)
            watch(stage, trial, victim, began, {neighbour.pod_uid})
            trial.lost = judge.worst(began - JUDGED_SECONDS)
    finally:
        stage.remove((victim, KubeQOS.BURSTABLE), (neighbour, KubeQOS.BESTEFFORT))
        stage.limit(above, None)


def run_io(stage: Stage, scenario: Scenario, trial: Trial) -> None:
    """The victim reads a loop device with O_DIRECT. The culprit reads it in large blocks and many at once, or writes to
    it and syncs."""
    mine, other = stage.cpus
    victim, neighbour = stage.pod(KubeQOS.BURSTABLE), stage.pod(KubeQOS.BESTEFFORT)
    disk = stage.disk()
    try:
        with Judge() as judge:
            judge.follow(victim.run(direct_reads(disk, 4096, scenario.idle / 4), mine))
            stage.known(victim, neighbour)
            time.sleep(scenario.warm)
            began = time.monotonic()
            code = syncs(disk) if scenario.kind == "fsync" else direct_reads(disk, 4 << 20, 0.0)
            for _ in range(3):
                neighbour.run(code, other)
            watch(stage, trial, victim, began, {neighbour.pod_uid})
            trial.lost = judge.worst(began - JUDGED_SECONDS)
    finally:
        stage.remove((victim, KubeQOS.BURSTABLE), (neighbour, KubeQOS.BESTEFFORT))


def run_softirq(stage: Stage, scenario: Scenario, trial: Trial) -> None:
    """A flood over a loopback device whose packets are steered to the victim's CPU."""
    mine, other = stage.cpus
    victim, neighbour = stage.pod(KubeQOS.BURSTABLE), stage.pod(KubeQOS.BESTEFFORT)
    try:
        with Judge() as judge:
            judge.follow(victim.run(duty(scenario.busy, scenario.idle), mine))
            stage.known(victim, neighbour)
            time.sleep(scenario.warm)
            began, before = time.monotonic(), judge.busy(mine)
            neighbour.run(
                packets(mine, sockets=1, size=100, received=False)
                if scenario.kind == "softirq"
                else packets(mine, sockets=4, size=1400, received=True),
                other,
            )
            watch(stage, trial, victim, began, {neighbour.pod_uid, "kernel"})
            trial.lost = judge.worst(began - JUDGED_SECONDS)
            trial.strangers = judge.strangers(mine, before)
    finally:
        stage.remove((victim, KubeQOS.BURSTABLE), (neighbour, KubeQOS.BESTEFFORT))


def run_bandwidth(stage: Stage, scenario: Scenario, trial: Trial) -> None:
    """Both go through more memory than the caches hold, on two CPUs."""
    mine, other = stage.cpus
    victim, neighbour = stage.pod(KubeQOS.BURSTABLE), stage.pod(KubeQOS.BESTEFFORT)
    try:
        with Judge() as judge:
            judge.follow(victim.run(stream(64), mine))
            stage.known(victim, neighbour)
            time.sleep(LEARN + scenario.warm)  # cycles per instruction are only compared with what is usual
            began = time.monotonic()
            for _ in range(scenario.weight):
                neighbour.run(stream(512), other)
            watch(stage, trial, victim, began, {neighbour.pod_uid})
            trial.lost = judge.worst(began - JUDGED_SECONDS)
    finally:
        stage.remove((victim, KubeQOS.BURSTABLE), (neighbour, KubeQOS.BESTEFFORT))


def stream(mebibytes: int) -> str:
    """Copy memory from one end to the other."""
    return (
        f"area, half = bytearray({mebibytes} << 20), {mebibytes} << 19\nview = memoryview(area)\n"
        "while True: view[:half] = view[half:]\n"
    )


def in_bursts(active: float) -> str:
    """Compute for `active` seconds of wall time in every BURST_PERIOD."""
    return (
        f"while True:\n end = time.monotonic() + {active}\n while time.monotonic() < end: pass\n"
        f" time.sleep({BURST_PERIOD - active})\n"
    )


def syncs(disk: str) -> str:
    """Write a block at a random place of a disk and sync it, again and again."""
    return (
        f"import random\nfd = os.open({disk!r}, os.O_RDWR)\npiece = os.urandom(256 << 10)\n"
        "end = os.lseek(fd, 0, 2) // len(piece)\nwhile True:\n"
        " for _ in range(8): os.pwrite(fd, piece, random.randrange(end) * len(piece))\n os.fsync(fd)\n"
    )


def packets(cpu: int, *, sockets: int, size: int, received: bool) -> str:
    """Send datagrams in a separate network namespace; `cpu` has to receive them. `received`: a process reads them,
    which ends with its parent."""
    receive = "if os.fork() == 0:\n libc.prctl(1, 9)\n while True: far.recv(65536)\n" if received else ""
    return (
        "import ctypes, fcntl, socket, struct\nlibc = ctypes.CDLL(None)\n"
        "assert libc.unshare(0x40020000) == 0\n"  # CLONE_NEWNET | CLONE_NEWNS
        "assert libc.mount(b'none', b'/', None, 0x44000, None) == 0\n"  # MS_REC | MS_PRIVATE
        "assert libc.mount(b'none', b'/sys', b'sysfs', 0, None) == 0\n"
        f"open('/sys/class/net/lo/queues/rx-0/rps_cpus', 'w').write('{1 << cpu:x}')\n"
        f"far, *near = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range({sockets} + 1))\n"
        "fcntl.ioctl(far, 0x8914, struct.pack('16sH14x', b'lo', 0x41))\n"  # SIOCSIFFLAGS: up and running
        f"far.bind(('127.0.0.1', 9))\n{receive}piece = bytes({size})\n"
        "for one in near: one.connect(('127.0.0.1', 9))\n"
        "while True:\n for one in near: one.send(piece)\n"
    )


def write_on(path: Path) -> str:
    """Write a file repeatedly."""
    return (
        f"fd = os.open({str(path)!r}, os.O_RDWR | os.O_CREAT)\npiece = os.urandom(1 << 20)\nwhile True:\n"
        " os.lseek(fd, 0, 0)\n for _ in range(256): os.write(fd, piece)\n"
    )


def take_and_give(idle: float) -> str:
    """Map 8 MiB, touch it, unmap it, pause."""
    return (
        "import mmap\nwhile True:\n area = mmap.mmap(-1, 8 << 20)\n"
        " for at in range(0, 8 << 20, 4096): area[at] = 1\n"
        f" area.close()\n time.sleep({idle})\n"
    )


def direct_reads(disk: str, size: int, idle: float) -> str:
    """Read blocks at random offsets with O_DIRECT."""
    return (
        f"import mmap, random\nfd = os.open({disk!r}, os.O_RDONLY | os.O_DIRECT)\narea = mmap.mmap(-1, {size})\n"
        f"end = os.lseek(fd, 0, 2) // {size}\nwhile True:\n os.preadv(fd, [area], random.randrange(end) * {size})\n"
        f" time.sleep({idle})\n"
    )


RUNS: dict[str, tuple[str, Callable[[Stage, Scenario, Trial], None]]] = {
    "quiet": (NOTHING, run_cpu),
    "self-quota": (SELF, run_cpu),
    "self-threads": (SELF, run_cpu),
    "self-memory": (SELF, run_memory),
    "cpu": (NEIGHBOUR, run_cpu),
    "cpu-two": (NEIGHBOUR, run_cpu),
    "memory": (NEIGHBOUR, run_memory),
    "crowd": (NEIGHBOUR, run_cpu),
    "bursts": (NEIGHBOUR, run_cpu),
    "partly": (NEIGHBOUR, run_cpu),
    "io": (NEIGHBOUR, run_io),
    "fsync": (NEIGHBOUR, run_io),
    "softirq": (NEIGHBOUR, run_softirq),
    "flood": (NEIGHBOUR, run_softirq),
    "bandwidth": (NEIGHBOUR, run_bandwidth),
}
UNDISTURBED = ("quiet",)
"""Kinds in which no task of the trial, kernel threads included, is on the victim's CPU: its losses are caused by
foreign processes."""
NEEDS = {
    "memory": "memory", "self-memory": "memory", "io": "io", "fsync": "io", "softirq": "network", "flood": "network",
    "bandwidth": "cache",
}  # fmt: skip
"""Kind -> the resource for which koordlet needs evidence from a probe, or from counters for the cache."""
MEASURED = ("bpf", "counters")
MIX = (
    *("quiet", "cpu", "bursts", "self-quota", "crowd", "memory", "quiet", "partly", "fsync", "flood"),
    *("self-threads", "cpu-two", "softirq", "io", "self-memory", "bandwidth"),
)
"""Frequency of each kind; kinds for which koordlet has no probe here are omitted."""


def perform(stage: Stage, kind: str, rng: random.Random, repeats: Counter[str]) -> Trial | None:
    """One valid trial; invalid ones are counted separately. None when the machine allowed no valid one."""
    truth, run = RUNS[kind]
    for _ in range(REPEATS):
        trial = Trial(Scenario.draw(kind, rng), truth)
        run(stage, trial.scenario, trial)
        if (
            trial.before >= DISTURBED
            or trial.strangers > ALLOWED.get(kind, 1.0)
            or (kind in UNDISTURBED and trial.lost >= DISTURBED)
        ):
            repeats["disturbed"] += 1
        elif kind in CULPRIT_KINDS and trial.lost < HARMFUL:
            repeats["harmless"] += 1
        else:
            return trial
    return None


def figures(trials: list[Trial]) -> list[Figure]:
    hurt = [trial for trial in trials if trial.truth == NEIGHBOUR]
    calm = [trial for trial in trials if trial.truth != NEIGHBOUR]
    own = [trial for trial in trials if trial.truth == SELF]
    detected = [trial for trial in hurt if trial.reported == NEIGHBOUR]
    times = sorted(trial.seconds for trial in detected if trial.seconds is not None)
    percent = 100.0
    return [
        Figure("interference_trials", len(trials), "trials"),
        Figure("interference_detected", percent * len(detected) / max(len(hurt), 1), "%", 97.0, at_least=True),
        Figure(
            "interference_false_alarms",
            percent * sum(trial.reported == NEIGHBOUR for trial in calm) / max(len(calm), 1), "%", 1.0,
        ),
        Figure(
            "interference_culprit_right",
            percent * sum(bool(trial.culprit_right) for trial in detected) / max(len(detected), 1), "%", 97.0,
            at_least=True,
        ),
        Figure("interference_self_told", percent * sum(o.reported == SELF for o in own) / max(len(own), 1), "%"),
        Figure("interference_detection_median", times[len(times) // 2] if times else 0.0, "s"),
        Figure("interference_detection_worst", times[-1] if times else 0.0, "s", 10.0),
    ]  # fmt: skip


def matrix(trials: list[Trial]) -> str:
    """Kinds and reported verdicts; for trials with a culprit also how often it was right and how long it took."""
    states = (NOTHING, SELF, NEIGHBOUR)
    heads = (*states, "culprit", "median s", "worst s")
    lines = [f"# {'scenario':<16}" + "".join(f"{name:>12}" for name in heads)]
    for kind in RUNS:
        mine = [trial for trial in trials if trial.scenario.kind == kind]
        if not mine:
            continue
        counts = Counter(trial.reported for trial in mine)
        row: list[object] = [counts[name] or "." for name in states]
        times = sorted(trial.seconds for trial in mine if trial.seconds is not None)
        if times:
            row += [
                sum(bool(trial.culprit_right) for trial in mine),
                f"{times[len(times) // 2]:.1f}",
                f"{times[-1]:.1f}",
            ]
        lines.append(f"# {kind:<16}" + "".join(f"{cell:>12}" for cell in row))
    return "\n".join(lines)


def save(seed: int, trials: list[Trial], repeats: Counter[str], undecided: int) -> str:
    """Write the results so far below build/bench: every trial as JSON, and the table, which is returned."""
    rows = [
        {
            **trial.scenario.__dict__, "truth": trial.truth, "reported": trial.reported, "seconds": trial.seconds,
            "lost": trial.lost, "resource": trial.resource, "seen": trial.peaks, "culprit": trial.worst,
            "culprit_right": trial.culprit_right,
        }
        for trial in trials
    ]  # fmt: skip
    document = {"seed": seed, "repeated": dict(repeats), "undecided": undecided, "trials": rows}
    table = "\n".join(
        (
            f"# seed {seed}, {len(trials)} trials",
            matrix(trials),
            f"# repeated: {repeats['disturbed']} disturbed by strangers, {repeats['harmless']} harmless",
            f"# left out after {REPEATS} draws each: {undecided}",
        )
    )
    target = ROOT / "build/bench"
    target.mkdir(parents=True, exist_ok=True)
    (target / "interference_trials.json").write_text(json.dumps(document, indent=1) + "\n")
    (target / "interference_table.txt").write_text(table + "\n")
    return table


def schedule(rng: random.Random, trials: int, kinds: tuple[str, ...]) -> list[str]:
    """`count` kinds, in about the proportions of the mix, in random order."""
    drawn = (list(kinds) * (trials // len(kinds) + 1))[:trials]
    rng.shuffle(drawn)
    return drawn


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--only", default="", help="kinds, with commas")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # created objects are removed in any case
    rng = random.Random(options.seed)
    usable = sorted(os.sched_getaffinity(0))
    repeats: Counter[str] = Counter()
    trials: list[Trial] = []
    undecided = 0
    with tempfile.TemporaryDirectory(prefix="koord-interference-") as scratch:
        stage = Stage(Path(scratch), (usable[-1], usable[0]))
        try:
            stage.koordlet.wait()
            selected = tuple(kind for kind in options.only.split(",") if kind)
            sources = stage.sources()
            kinds = tuple(k for k in selected or MIX if k not in NEEDS or sources.get(NEEDS[k]) in MEASURED)
            left_out = sorted(set(selected or MIX) - set(kinds))
            if left_out:
                print(f"# no probe here for: {', '.join(left_out)} ({sources})", flush=True)
            plan = schedule(rng, options.trials, kinds)
            print(f"# seed {options.seed}, {len(plan)} trials: {dict(sorted(Counter(plan).items()))}", flush=True)
            for number, kind in enumerate(plan, 1):
                trial = perform(stage, kind, random.Random(f"{options.seed}/{number}"), repeats)
                if trial is None:
                    undecided += 1
                    print(
                        f"# {number:>3}/{len(plan)} --  {kind:<13} could not be judged: strangers in the way",
                        flush=True,
                    )
                    continue
                trials.append(trial)
                save(options.seed, trials, repeats, undecided)  # an interrupted run keeps its results
                took = "" if trial.seconds is None else f" after {trial.seconds:.1f} s"
                named = (
                    "" if trial.culprit_right is None else f", culprit {'right' if trial.culprit_right else 'WRONG'}"
                )
                good = "ok " if trial.reported == trial.truth else "BAD"
                print(
                    f"# {number:>3}/{len(plan)} {good} {kind:<13} {trial.reported} {trial.resource}{took}{named}"
                    f" (lost {trial.lost * 100:.0f} %)",
                    flush=True,
                )
        finally:
            stage.close()
    print(save(options.seed, trials, repeats, undecided), flush=True)
    return report("interference", figures(trials))


if __name__ == "__main__":
    sys.exit(main())
