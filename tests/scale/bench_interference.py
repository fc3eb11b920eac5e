"""Accuracy of interference detection: randomised trials with real processes, evaluated by the kernel's own counters.

Run: `make bench-interference [SEED=n] [TRIALS=40]`, as root. Every trial creates pods in their own cgroups, observed by
one real koordlet process through a private view (tests/koordlet/process). The scenarios are drawn from the seed:

  quiet         the victim alone on its CPU; a best-effort burner on the other CPU is innocent
  self-quota    the victim's own quota throttles it
  self-threads  the victim's own threads wait for each other
  self-memory   the victim reads more than its own memory limit holds
  cpu           one other container on the victim's CPU
  cpu-two       two others, one of which takes clearly more
  memory        another container fills the common limit with page cache
  io            another container floods the victim's disk, a loop device
  softirq       another container floods its own network, whose packets the kernel processes on the victim's CPU, in
                softirqs and in its thread; an alarm for the network counts, with the packets' owner or the kernel as
                the culprit

An independent referee reads the victim's run delay (`/proc/<pid>/schedstat`). A quiet trial in which the victim lost
time was *disturbed* by a foreign process, as was a trial in which foreign processes got much of the relevant CPU; a
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.api.encoding.wire import decode
from koordlet.api.pages.interference import PodInterferenceReport, VerdictReport
from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.koordlet.process import conftest as lab
from tests.scale.figures import ROOT, Figure, report

NOTHING, SELF, NEIGHBOUR = "nothing", "self", "neighbour"
WARM = (2.0, 4.0)
"""Seconds that the victim runs before the trial begins."""
PATIENCE = 10.0
"""Longest wait for an alarm in seconds; also the observation time of a trial without a culprit."""
DISTURBED, HARMFUL = 0.12, 0.20
"""Share of its wanted time that a victim lost by its own run delay: a quiet trial with DISTURBED or more was disturbed,
a trial with a culprit below HARMFUL was harmless."""
STRANGERS = 0.25
"""Largest CPU share of foreign processes in trials with a culprit; with more they may be the worst culprit, or keep the
packets from arriving."""
ALLOWED = {"cpu": STRANGERS, "cpu-two": STRANGERS, "softirq": STRANGERS, "self-threads": DISTURBED}
"""Kind -> largest share of the victim's CPU for foreign processes; irrelevant for other kinds."""
JUDGED_SECONDS = 4.0
HARDLY = 0.02
"""Seconds per second: a container that hardly runs loses hardly anything, whatever the share."""
REPEATS = 5
LIMIT = 128
"""Common memory limit of all pods in MiB in memory trials."""
HEAVY = 16
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
        )


@dataclass
class Trial:
    """The result of a trial."""

    scenario: Scenario
    truth: str
    said: str = NOTHING
    seconds: float | None = None
    """Seconds from the culprit's start to the alarm."""
    culprit_right: bool | None = None
    worst: str = ""
    lost: float = 0.0
    """Measured by the referee."""
    strangers: float = 0.0
    """Share of the contested CPU used by foreign processes, by the kernel's count of the trial's groups."""
    resource: str = ""
    seen: dict[str, float] = field(default_factory=dict)
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
                        one = path.read_text().split()
                        ran, waited = ran + int(one[0]) / 1e9, waited + int(one[1]) / 1e9
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
        self.tree = lab.PodTree(host, CgroupDriver.CGROUPFS, HEAVY)
        self.view = lab.View(self.tree, scratch)
        self.koordlet = lab.Koordlet(self.view)
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
        for one in containers:
            lab.until(lambda one=one: self.explained(one) is not None, "koordlet to see the pods", 30.0)  # type: ignore[misc]

    def explained(self, container: Any) -> PodInterferenceReport | None:
        body = self.koordlet.answer(f"/interference?pod=/{container.pod_uid}")
        return None if body is None else decode(body, PodInterferenceReport)

    def used(self) -> float:
        """CPU seconds of all pods of the trial."""
        if self.tree.v2:
            return lab.keyed(self.tree.path("cpu", "") / "cpu.stat")["usage_usec"] / 1e6
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
            result: dict[str, str] = lab.until(
                lambda: found.sources if (found := self.explained(probe)) else None, "evidence", 30.0
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
    pods = ((victim, KubeQOS.BURSTABLE), (first, KubeQOS.BESTEFFORT), (second, KubeQOS.BURSTABLE))
    try:
        with Judge() as judge:
            if scenario.kind == "self-quota":
                victim.quota(scenario.quota)
                judge.follow(victim.run(lab.BURN, mine))
            elif scenario.kind == "self-threads":
                judge.follow(*(victim.run(lab.BURN, mine) for _ in range(2 + scenario.weight)))
            else:
                judge.follow(victim.run(lab.duty(scenario.busy, scenario.idle), mine))
            stage.known(victim, first, second)
            busy_before = judge.busy(mine)
            time.sleep(scenario.warm)
            began, used = time.monotonic(), stage.used()
            if trial.truth == NEIGHBOUR:
                for _ in range(scenario.weight):
                    first.run(lab.BURN, mine)
                if scenario.kind == "cpu-two":
                    busy = 0.01
                    second.run(lab.duty(busy, busy * (1 / scenario.share - 1)), mine)
            else:
                first.run(lab.duty(0.02, 0.02), other)
            watch(stage, trial, victim, began, {first.pod_uid})
            time.sleep(max(began + JUDGED_SECONDS + 1.0 - time.monotonic(), 0.0))
            trial.lost = judge.worst(began)
            trial.strangers = max(1.0 - (stage.used() - used) / (time.monotonic() - began), 0.0)
            if scenario.kind == "self-threads":
                trial.strangers = judge.strangers(mine, busy_before)
    finally:
        stage.remove(*pods)


def watch(stage: Stage, trial: Trial, victim: Any, began: float, guilty: set[str]) -> None:
    """Query koordlet until it reports the expected verdict or the time is up; quiet and own-trouble trials run to the
    end."""
    while time.monotonic() < began + PATIENCE:
        told = stage.explained(victim)
        alarms = [] if told is None else [v for c in told.containers for v in c.verdicts if v.state in ALARMS]
        for series in told.containers[0].series if told is not None and told.containers else ():
            trial.seen[f"{series.resource} {series.cause}"] = round(max(series.values), 3)
        if trial.truth == NEIGHBOUR or trial.scenario.kind in NEEDS:
            # One resource is loaded; other resources, and the kernel threads that serve it, use the CPU too.
            alarms = [v for v in alarms if v.resource == NEEDS.get(trial.scenario.kind, "cpu")]
        said = verdict_of(alarms)
        if said == NEIGHBOUR or trial.said == NOTHING:
            trial.said = said
        if said == NEIGHBOUR:
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
    """Both read a loop device with O_DIRECT; the culprit in large blocks and many at once."""
    mine, other = stage.cpus
    victim, neighbour = stage.pod(KubeQOS.BURSTABLE), stage.pod(KubeQOS.BESTEFFORT)
    disk = stage.disk()
    try:
        with Judge() as judge:
            judge.follow(victim.run(direct_reads(disk, 4096, scenario.idle / 4), mine))
            stage.known(victim, neighbour)
            time.sleep(scenario.warm)
            began = time.monotonic()
            for _ in range(3):
                neighbour.run(direct_reads(disk, 4 << 20, 0.0), other)
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
            judge.follow(victim.run(lab.duty(scenario.busy, scenario.idle), mine))
            stage.known(victim, neighbour)
            time.sleep(scenario.warm)
            began, before = time.monotonic(), judge.busy(mine)
            neighbour.run(packets(mine), other)
            watch(stage, trial, victim, began, {neighbour.pod_uid, "kernel"})
            trial.lost = judge.worst(began - JUDGED_SECONDS)
            trial.strangers = judge.strangers(mine, before)
    finally:
        stage.remove((victim, KubeQOS.BURSTABLE), (neighbour, KubeQOS.BESTEFFORT))


def packets(cpu: int) -> str:
    """Send small datagrams that no process reads, in a separate network namespace; `cpu` has to receive them."""
    return (
        "import ctypes, fcntl, socket, struct\nlibc = ctypes.CDLL(None)\n"
        "assert libc.unshare(0x40020000) == 0\n"  # CLONE_NEWNET | CLONE_NEWNS
        "assert libc.mount(b'none', b'/', None, 0x44000, None) == 0\n"  # MS_REC | MS_PRIVATE
        "assert libc.mount(b'none', b'/sys', b'sysfs', 0, None) == 0\n"
        f"open('/sys/class/net/lo/queues/rx-0/rps_cpus', 'w').write('{1 << cpu:x}')\n"
        "near, far = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))\n"
        "fcntl.ioctl(near, 0x8914, struct.pack('16sH14x', b'lo', 0x41))\n"  # SIOCSIFFLAGS: up and running
        "far.bind(('127.0.0.1', 9))\nnear.connect(('127.0.0.1', 9))\npiece = bytes(100)\n"
        "while True: near.send(piece)\n"
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
    "io": (NEIGHBOUR, run_io),
    "softirq": (NEIGHBOUR, run_softirq),
}
UNDISTURBED = ("quiet",)
"""Kinds in which no task of the trial, kernel threads included, is on the victim's CPU: its losses are caused by
foreign processes."""
NEEDS = {"memory": "memory", "self-memory": "memory", "io": "io", "softirq": "network"}
"""Kind -> the resource for which koordlet needs evidence from a probe."""
MIX = (
    *("quiet", "cpu", "self-quota", "cpu-two", "quiet", "memory"),
    *("cpu", "softirq", "self-threads", "io", "self-memory"),
)
"""Frequency of each kind; kinds for which koordlet has no probe here are omitted."""


def perform(stage: Stage, kind: str, rng: random.Random, repeats: Counter[str]) -> Trial | None:
    """One valid trial; invalid ones are counted separately. None when the machine allowed no valid one."""
    truth, run = RUNS[kind]
    for _ in range(REPEATS):
        trial = Trial(Scenario.draw(kind, rng), truth)
        run(stage, trial.scenario, trial)
        if trial.strangers > ALLOWED.get(kind, 1.0) or (kind in UNDISTURBED and trial.lost >= DISTURBED):
            repeats["disturbed"] += 1
        elif kind.startswith("cpu") and trial.lost < HARMFUL:
            repeats["harmless"] += 1
        else:
            return trial
    return None


def figures(trials: list[Trial]) -> list[Figure]:
    hurt = [trial for trial in trials if trial.truth == NEIGHBOUR]
    calm = [trial for trial in trials if trial.truth != NEIGHBOUR]
    own = [trial for trial in trials if trial.truth == SELF]
    found = [one for one in hurt if one.said == NEIGHBOUR]
    times = sorted(one.seconds for one in found if one.seconds is not None)
    percent = 100.0
    return [
        Figure("interference_trials", len(trials), "trials"),
        Figure("interference_detected", percent * len(found) / max(len(hurt), 1), "%", 95.0, at_least=True),
        Figure(
            "interference_false_alarms",
            percent * sum(one.said == NEIGHBOUR for one in calm) / max(len(calm), 1), "%", 2.0,
        ),
        Figure(
            "interference_culprit_right",
            percent * sum(bool(one.culprit_right) for one in found) / max(len(found), 1), "%", 95.0, at_least=True,
        ),
        Figure("interference_self_told", percent * sum(o.said == SELF for o in own) / max(len(own), 1), "%"),
        Figure("interference_detection_median", times[len(times) // 2] if times else 0.0, "s"),
        Figure("interference_detection_worst", times[-1] if times else 0.0, "s", 10.0),
    ]  # fmt: skip


def matrix(trials: list[Trial]) -> str:
    """Kinds and reported verdicts; for trials with a culprit also how often it was right and how long it took."""
    said = (NOTHING, SELF, NEIGHBOUR)
    heads = (*said, "culprit", "median s", "worst s")
    lines = [f"# {'scenario':<16}" + "".join(f"{name:>12}" for name in heads)]
    for kind in RUNS:
        mine = [trial for trial in trials if trial.scenario.kind == kind]
        if not mine:
            continue
        counts = Counter(one.said for one in mine)
        row: list[object] = [counts[name] or "." for name in said]
        times = sorted(one.seconds for one in mine if one.seconds is not None)
        if times:
            row += [sum(bool(one.culprit_right) for one in mine), f"{times[len(times) // 2]:.1f}", f"{times[-1]:.1f}"]
        lines.append(f"# {kind:<16}" + "".join(f"{cell:>12}" for cell in row))
    return "\n".join(lines)


def save(seed: int, trials: list[Trial], repeats: Counter[str], undecided: int) -> str:
    """Write the results so far below build/bench: every trial as JSON, and the table, which is returned."""
    rows = [
        {
            **trial.scenario.__dict__, "truth": trial.truth, "said": trial.said, "seconds": trial.seconds,
            "lost": trial.lost, "resource": trial.resource, "seen": trial.seen, "culprit": trial.worst,
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
    parser.add_argument("--trials", type=int, default=40)
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
            wanted = tuple(kind for kind in options.only.split(",") if kind)
            sources = stage.sources()
            kinds = tuple(k for k in wanted or MIX if k not in NEEDS or sources.get(NEEDS[k]) == "bpf")
            left_out = sorted(set(wanted or MIX) - set(kinds))
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
                good = "ok " if trial.said == trial.truth else "BAD"
                print(
                    f"# {number:>3}/{len(plan)} {good} {kind:<13} said {trial.said} {trial.resource}{took}{named}"
                    f" (lost {trial.lost * 100:.0f} %)",
                    flush=True,
                )
        finally:
            stage.close()
    print(save(options.seed, trials, repeats, undecided), flush=True)
    return report("interference", figures(trials))


if __name__ == "__main__":
    sys.exit(main())
