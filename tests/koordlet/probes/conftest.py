"""Groups of pinned processes, a place in bpffs and the loaded probe, for the kernel tests of this folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from koordlet.probes.loading import bpffs
from koordlet.probes.loading.frame import ProbeEnvironment
from koordlet.probes.memstall.probe import MemStall
from koordlet.probes.memstall.probe import load_core as load_mem_stall
from koordlet.probes.oom import Oom
from koordlet.probes.oom import load_core as load_oom
from koordlet.probes.openprobes import ProbeSet
from koordlet.probes.schedlatency.sizes import Sizes
from koordlet.system.cgroup.tree import cgroup_id
from koordlet.system.cpu.possible import possible_cpus
from koordlet.system.host import Host
from tests.koordlet.probes.opening import loaded_sched_latency, open_probes

MOUNT_POINT = Path("/sys/fs/bpf")
PSI_PERIOD = 2.0
"""How often the kernel adds up, in seconds."""


@dataclass(frozen=True)
class Schedstat:
    """/proc/<pid>/schedstat of a single-threaded process: what the kernel itself keeps."""

    run_ns: int
    delay_ns: int
    arrivals: int

    @classmethod
    def of(cls, pid: int) -> Schedstat:
        return cls(*map(int, Path(f"/proc/{pid}/schedstat").read_text().split()))

    def __sub__(self, old: Schedstat) -> Schedstat:
        return Schedstat(self.run_ns - old.run_ns, self.delay_ns - old.delay_ns, self.arrivals - old.arrivals)


@dataclass
class Group:
    """A cgroup made for a test, and the processes in it."""

    cgroup: Any
    version: int
    spawn: Callable[..., subprocess.Popen[str]]
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def path(self) -> Path:
        result: Path = self.cgroup.path("cpu")
        return result

    @property
    def id(self) -> int:
        return cgroup_id(self.path)

    def run(self, code: str = "while True: pass", cpu: int = 0) -> int:
        """Run Python *code* pinned to *cpu*; returns the pid when the code is about to start."""
        begin = f"import os, time; os.sched_setaffinity(0, {{{cpu}}}); print(flush=True)\n"
        process = self.spawn([sys.executable, "-S", "-E", "-c", begin + code], self.cgroup)
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        self.processes.append(process)
        return process.pid

    def quota(self, quota_us: int, period_us: int) -> None:
        if self.version == 2:
            self.cgroup.write("cpu", "cpu.max", f"{quota_us} {period_us}")
        else:
            self.cgroup.write("cpu", "cpu.cfs_period_us", period_us)
            self.cgroup.write("cpu", "cpu.cfs_quota_us", quota_us)

    def weight(self, percent: int) -> None:
        """The group's weight in per cent of the default."""
        v2, v1 = ("cpu.weight", percent), ("cpu.shares", 1024 * percent // 100)
        self.cgroup.write("cpu", *(v2 if self.version == 2 else v1))

    def throttled_ns(self) -> int:
        stat = dict(line.split() for line in (self.path / "cpu.stat").read_text().splitlines())
        return int(stat["throttled_usec"]) * 1000 if self.version == 2 else int(stat["throttled_time"])

    def settle(self) -> None:
        """Stop all processes and wait until none runs, so that readings of two sources agree."""
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)
        for process in self.processes:
            while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TtZ":
                time.sleep(0.002)

    def resume(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)


@pytest.fixture
def group(
    kernel_host: Host, cgroup_child: Callable[..., Any], spawn: Callable[..., subprocess.Popen[str]]
) -> Callable[[str], Group]:
    """``group("name")``: an own cgroup to run pinned Python code in."""
    return lambda name: Group(cgroup_child(name), kernel_host.facts.cgroup_version, spawn)


@pytest.fixture
def schedstat() -> Callable[[int], Schedstat]:
    return Schedstat.of


@pytest.fixture
def until_arrivals() -> Callable[[int, int], int]:
    """``until_arrivals(pid, number)``: return when *pid* has waited for a CPU so often, with how often it has."""

    def wait(pid: int, number: int) -> int:
        end = time.monotonic() + 120
        while (arrivals := Schedstat.of(pid).arrivals) < number:
            assert time.monotonic() < end, f"{pid} waited {arrivals} times, not {number}"
            time.sleep(0.02)
        return arrivals

    return wait


def _clear(path: Path) -> None:
    for probe in list(path.iterdir()) if path.exists() else []:
        bpffs.remove_other_pins(probe, "")
        bpffs.remove_empty(probe, path)


@contextmanager
def own_pins(name: str) -> Iterator[Path]:
    """A place in bpffs that leaves nothing behind, mounted for the time if need be."""
    path = MOUNT_POINT / f"koordlet-test-{os.getpid()}-{name}"
    _clear(path)  # a test that was killed had our pid
    bpffs.ensure(path, MOUNT_POINT, may_mount=True)
    try:
        yield path
    finally:
        _clear(path)
        bpffs.remove_empty(path, MOUNT_POINT)
    bpffs.unmount_if_ours(MOUNT_POINT)
    assert not path.exists(), "pins left behind"


@pytest.fixture
def pin_dir() -> Iterator[Path]:
    with own_pins("single") as path:
        yield path


@pytest.fixture(scope="session")
def variant() -> str:
    """The rung that the kernel tests stand on; the guest runs them with KOORD_TEST_PROBES=bcc, too."""
    return os.environ.get("KOORD_TEST_PROBES", "core")


@pytest.fixture
def tells_throttling(variant: str) -> bool:
    """The bcc variant cannot: it counts throttled time as waiting."""
    return variant != "bcc"


@pytest.fixture
def clock_error_ns(variant: str) -> int:
    """By which a wait may differ from the kernel's. The bcc variant has a clock of its own, read later at a switch than
    the run queue's; in the emulated guest that is a fifth of a millisecond."""
    return 400_000 if variant == "bcc" else 0


@pytest.fixture(scope="session")
def sizes(kernel_host: Host, request: pytest.FixtureRequest) -> Sizes:
    """The parameter is the number of rows of counters; without one, each CPU has its own."""
    return Sizes(cpus=possible_cpus(kernel_host.roots), rows=getattr(request, "param", 0))


@pytest.fixture(scope="session")
def probes(kernel_host: Host, variant: str, sizes: Sizes) -> Iterator[ProbeSet]:
    """Loaded once for all tests that only read it: compiling the bcc variant in the guest takes minutes."""
    with own_pins("session") as path:
        opened = open_probes(kernel_host, variant, path, sizes=sizes)
        assert loaded_sched_latency(opened) is not None, opened.status
        yield opened
        opened.close()


@pytest.fixture
def place(kernel_host: Host, pin_dir: Path) -> ProbeEnvironment:
    return ProbeEnvironment(kernel_host, possible_cpus(kernel_host.roots), pin_dir)


@pytest.fixture
def stalls(place: ProbeEnvironment) -> Iterator[MemStall]:
    probe = load_mem_stall(place)
    yield probe
    probe.close(keep=False)


@pytest.fixture
def kills(place: ProbeEnvironment) -> Iterator[Oom]:
    probe = load_oom(place)
    yield probe
    probe.close(keep=False)


@pytest.fixture
def run_in() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``run_in(group, code, *arguments)``: Python in *group* from its first instruction on, so that all its memory is
    charged there. Killed at the end of the test."""
    running: list[subprocess.Popen[str]] = []

    def run(group: Any, code: str, *arguments: str) -> subprocess.Popen[str]:
        paths = [os.fspath(path) for path in group.paths]
        join = f"import os\nfor path in {paths!r}:\n    open(path + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        command = [sys.executable, "-S", "-E", "-c", join + code, *arguments]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def pressure_total(kernel_host: Host) -> Callable[[Any], float]:
    """Seconds in which some task of a group was stalled for memory, once the kernel has added up the last of it."""
    unified = kernel_host.facts.cgroup_mounts.unified
    assert unified is not None

    def total(group: Any) -> int:
        text = (unified / group.dir / "memory.pressure").read_text()
        return int(text.splitlines()[0].rpartition("total=")[2])

    def settled(group: Any) -> float:
        before, now = -1, total(group)
        while now != before:
            time.sleep(PSI_PERIOD + 0.2)
            before, now = now, total(group)
        return now / 1e6

    return settled
