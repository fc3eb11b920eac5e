"""A koordlet process on the real kernel: own pods in the kubelet's layout, a private view of the machine, own readings.

The pods are cgroups below one group of ours, which can outweigh whatever else the machine runs. koordlet sees that
group as its whole cgroup root through bind mounts in a mount namespace that a holder process keeps; its BPF file system
is mounted there too. When the holder ends nothing is left. What must be true is computed here from kernel files, by a
thread that reads them ten times a second, so that both sides speak of the same seconds whatever the load.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS, pod_dir
from koordlet.system.cgroup.tree import cgroup_id
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.koordlet.cgroupdirs import container_dir
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
HEAVY = 100
"""Weight of our groups against one of default weight where figures are compared: a busy machine hardly disturbs."""
PATIENCE = 240.0
"""Seconds to wait for what will come; an emulated guest needs most of it."""
POLL_S = 0.1
"""Between looks: many of them have koordlet render a page."""
SAMPLE_SECONDS = 0.1
HIERARCHIES = ("cpu", "cpuacct", "cpuset", "memory")
_serial = itertools.count()

BURN = "while True: pass"
SLEEP = "while True: time.sleep(0.02)"


def duty(busy: float, idle: float) -> str:
    """Work for `busy` seconds of CPU time, then sleep for `idle` seconds."""
    return (
        f"while True:\n end = time.thread_time() + {busy}\n while time.thread_time() < end: pass\n time.sleep({idle})\n"
    )


def touch(mebibytes: int) -> str:
    """Hold that much anonymous memory."""
    return f"held = b'x' * ({mebibytes} << 20)\nwhile True: time.sleep(1)"


def until(done: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The first true answer of `done`; fails after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        result = done()
        if result:
            return result
        if time.monotonic() > end:
            pytest.fail(f"did not come within {seconds:.0f} s: {what}")
        time.sleep(POLL_S)


def under_profile(profile: str, command: list[str]) -> list[str]:
    """The command under an AppArmor profile that is loaded."""
    return ["sh", "-c", 'printf "exec $0" >/proc/self/attr/exec && exec "$@"', profile, *command]


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# --- pods


@dataclass
class Container:
    """A container's cgroup and the processes in it."""

    tree: PodTree
    pod_uid: str
    hash: str
    dir: str
    """Relative to the view's root."""
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """As koordlet names it without a kubelet."""
        runtime = "containerd" if self.tree.driver is CgroupDriver.SYSTEMD else "unknown"
        return f"{runtime}://{self.hash}"

    @property
    def name(self) -> str:
        return self.hash[:12]

    def path(self, controller: str) -> Path:
        return self.tree.path(controller, self.dir)

    @property
    def cgroup_id(self) -> int:
        return cgroup_id(self.path("cpu"))

    def run(self, code: str, cpu: int | None = None) -> int:
        """Run Python code in here, pinned to `cpu`; returns the pid once it is about to begin."""
        pin = "" if cpu is None else f"os.sched_setaffinity(0, {{{cpu}}})\n"
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", f"import os, sys, time\nsys.stdin.readline()\n{pin}print(flush=True)\n{code}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        for root in self.tree.roots.values():
            (root / self.tree.top / self.dir / "cgroup.procs").write_text(str(process.pid))
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        process.stdout.readline()
        return process.pid

    def quota(self, share: float, period_us: int = 100_000) -> None:
        if self.tree.v2:
            (self.path("cpu") / "cpu.max").write_text(f"{int(share * period_us)} {period_us}")
        else:
            (self.path("cpu") / "cpu.cfs_period_us").write_text(str(period_us))
            (self.path("cpu") / "cpu.cfs_quota_us").write_text(str(int(share * period_us)))

    def end(self) -> None:
        """Kill and reap what runs in here."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()
        self.processes.clear()

    def remove(self) -> None:
        """End everything and remove the container's cgroup."""
        self.end()
        self.tree.rmdir(self.dir)

    def make(self) -> None:
        """Make it again under its old name."""
        self.tree.mkdir(self.dir)

    def nested(self, directory: str) -> Container:
        """A cgroup below the container's, as systemd or a container runtime in the container makes it."""
        inner = Container(self.tree, self.pod_uid, self.hash, f"{self.dir}/{directory}")
        inner.make()
        self.tree.containers.append(inner)
        return inner


class PodTree:
    """kubepods below one group of ours, in every hierarchy that koordlet reads; `disks`: that of block I/O too."""

    def __init__(self, host: Host, driver: CgroupDriver, weight: int, *, disks: bool = False) -> None:
        self._controllers = "+cpu +memory +cpuset +io" if disks else "+cpu +memory +cpuset"
        mounts = host.facts.cgroup_mounts
        self.driver, self.v2 = driver, mounts.version == 2
        self.roots: dict[str, Path] = {}
        if mounts.version == 2:
            assert mounts.unified is not None
            self.roots[""] = mounts.unified
        else:
            controllers = (*HIERARCHIES, "blkio") if disks else HIERARCHIES
            self.roots = {name: mounts.v1[name] for name in controllers if name in mounts.v1}
            if mounts.unified is not None:  # hybrid: no controllers, but pressure
                self.roots["unified"] = mounts.unified
        self.top = f"koord-process-{os.getpid()}-{next(_serial)}"
        self.containers: list[Container] = []
        self.dirs: list[str] = []
        self.mkdir("")
        if self.v2:
            self.path("cpu", "").joinpath("cpu.weight").write_text(str(100 * weight))
        else:
            self.path("cpu", "").joinpath("cpu.shares").write_text(str(1024 * weight))

    def path(self, controller: str, directory: str) -> Path:
        return (self.roots[""] if self.v2 else self.roots[controller]) / self.top / directory

    def mkdir(self, directory: str) -> None:
        """With all parents."""
        if directory and directory.rpartition("/")[0] not in self.dirs:
            self.mkdir(directory.rpartition("/")[0])
        for root in dict.fromkeys(self.roots.values()):
            path = root / self.top / directory
            path.mkdir()
            if self.v2:
                (path.parent / "cgroup.subtree_control").write_text(self._controllers)
            elif root == self.roots.get("cpuset"):
                for name in ("cpuset.cpus", "cpuset.mems"):  # v1 refuses tasks while these are empty
                    (path / name).write_text((path.parent / name).read_text())
        self.dirs.append(directory)

    def rmdir(self, directory: str) -> None:
        for root in dict.fromkeys(self.roots.values()):
            path = root / self.top / directory
            for _ in range(250):  # the kernel takes a moment to let go of a killed process
                try:
                    path.rmdir()
                    break
                except OSError:
                    time.sleep(0.02)
            else:
                raise AssertionError(f"{path} cannot be removed: {(path / 'cgroup.procs').read_text()!r}")
        self.dirs.remove(directory)

    def pod(self, qos: KubeQOS, containers: int = 1) -> list[Container]:
        """A pod's cgroups; its containers."""
        uid = str(uuid.uuid4())
        created = []
        for _ in range(containers):
            digest = uuid.uuid4().hex + uuid.uuid4().hex
            runtime = "containerd"
            directory = container_dir(self.driver, qos, uid, f"{runtime}://{digest}")
            self.mkdir(directory)
            created.append(Container(self, uid, digest, directory))
        self.containers += created
        return created

    def remove_pod(self, uid: str, qos: KubeQOS) -> None:
        for container in [known_container for known_container in self.containers if known_container.pod_uid == uid]:
            container.remove()
            self.containers.remove(container)
        self.rmdir(pod_dir(self.driver, qos, uid))

    def remove(self) -> None:
        for container in self.containers:
            container.end()
        for directory in reversed(list(self.dirs)):
            self.rmdir(directory)


# --- a private view


class View:
    """A mount namespace in which /sys/fs/cgroup is the tree; `also` are more shell commands to run in it."""

    def __init__(self, tree: PodTree, scratch: Path, *, bpffs: bool = True, also: tuple[str, ...] = ()) -> None:
        self.scratch, self.cgroup = scratch, scratch / "cgroup"
        self.sys_fs, self.state = scratch / "sys_fs", scratch / "state"
        (self.sys_fs / "bpf").mkdir(parents=True)
        self.state.mkdir()
        commands = ["mount --make-rprivate /"]
        for name, root in tree.roots.items():
            (self.cgroup / name).mkdir(parents=True, exist_ok=True)
            commands.append(f"mount --bind {root / tree.top} {self.cgroup / name}")
        if bpffs:
            commands.append(f"mount -t bpf bpf {self.sys_fs / 'bpf'}")
        script = " && ".join([*commands, *also, "echo ready && exec sleep infinity"])
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == "ready\n", "the view could not be mounted"

    def from_outside(self, path: Path) -> Path:
        """The same path as processes within see it."""
        return Path(f"/proc/{self.holder.pid}/root") / path.relative_to("/")

    @property
    def pins(self) -> Path:
        return self.from_outside(self.sys_fs / "bpf")

    def flags(self) -> list[str]:
        return [
            f"--cgroup-root-dir={self.cgroup}",
            f"--sys-fs-root-dir={self.sys_fs}",
            f"--bpf-pin-dir={self.sys_fs / 'bpf/koordlet'}",
            f"--state-dir={self.state}",
            f"--runtime-hooks-addr={self.state / 'koordlet.sock'}",
            f"--runtime-hooks-config-path={self.scratch / 'hookserver.d'}",
            f"--pod-resources-proxy-path={self.state / 'pod-resources'}",
            f"--prediction-checkpoint-filepath={self.state / 'predictions'}",
        ]

    def enter(self, command: list[str], user: int | None = None) -> list[str]:
        """`command` as it runs in this view, at last as `user`; the pid stays the one of the first process."""
        if user is not None:
            command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]
        if profile := os.environ.get("KOORD_TEST_APPARMOR"):
            command = under_profile(profile, command)
        inside = ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt"]
        return [*inside, "sh", "-c", 'cd "$0" && exec "$@"', str(ROOT), *command]

    def close(self) -> None:
        self.holder.kill()
        self.holder.communicate()


# --- the process


class Koordlet:
    """One `python -m koordlet` with quick cadences."""

    def __init__(
        self,
        view: View,
        *flags: str,
        user: int | None = None,
        standalone: bool = True,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`environ` is added to this process's."""
        self.port = free_port()
        self.log_path = view.scratch / f"koordlet-{next(_serial)}.log"
        mode = ["--standalone"] if standalone else []
        command = [
            sys.executable, "-m", "koordlet", *mode, f"--addr=127.0.0.1:{self.port}", "--node-name=own-node",
            "--snapshot-interval=1s", "--psi-collector-interval=1s", *view.flags(), *flags,
        ]  # fmt: skip
        environment = {**os.environ, "agent_mode": "hostMode", "PYTHONDONTWRITEBYTECODE": "1", **(environ or {})}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(view.enter(command, user), stderr=log, stdout=log, env=environment)
        self.view = view

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def get(self, path: str) -> bytes:
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=120) as response:
            body: bytes = response.read()
        return body

    def answer(self, path: str) -> bytes | None:
        """None while it does not listen."""
        try:
            return self.get(path)
        except (urllib.error.URLError, OSError):
            assert self.process.poll() is None, f"koordlet ended with {self.process.returncode}: {self.log[-3000:]}"
            return None

    def wait(self) -> Koordlet:
        """Until the first figures are there, and every probe had its turn."""
        self.wait_for_figures()
        until(lambda: "starting" not in [probe.get("reason") for probe in self.top()["probes"]], "the probes")
        return self

    def wait_for_figures(self) -> Koordlet:
        """Until the first figures are there."""

        def figures() -> bool:
            answer = self.answer("/top")
            return answer is not None and json.loads(answer).get("cpu") is not None

        until(figures, f"first figures in /top (log: {self.log_path})")
        return self

    def top(self) -> dict[str, Any]:
        page: dict[str, Any] = json.loads(self.get("/top"))
        return page

    def row(self, container: Container) -> dict[str, Any]:
        """The container's row in /top."""
        return next((row for row in self.top().get("rows", []) if row.get("id") == container.key), {})

    def families(self, path: str = "/metrics", start: str = "") -> dict[str, Any]:
        """By name. `start`: only those whose names begin so, because parsing all costs a poll much."""
        lines = self.get(path).decode().split("\n")
        kept = (start, f"# HELP {start}", f"# TYPE {start}")
        text = "\n".join(line for line in lines if not start or line.startswith(kept))
        return {family.name: family for family in text_string_to_metric_families(text)}

    def values(self, family: str, **labels: str) -> list[float]:
        """Values of one sample name whose labels include these."""
        families = self.families(start=family.removesuffix("_total"))
        owner = families.get(family) or families.get(family.removesuffix("_total"))
        samples = owner.samples if owner is not None else []
        return [s.value for s in samples if s.name == family and labels.items() <= s.labels.items()]

    def value(self, family: str, **labels: str) -> float:
        values = self.values(family, **labels)
        assert len(values) == 1, f"{family}{labels}: {values}"
        return values[0]

    def series(self, after: float = 0.0) -> Series:
        """The samples of the metric cache, out of a snapshot taken after `after` (CLOCK_BOOTTIME)."""
        path = self.view.state / "metrics.npz"

        def taken() -> Series | None:
            series = Series.read(path) if path.exists() else None
            return series if series is not None and series.at > after else None

        series: Series = until(taken, "a snapshot of the metric cache")
        return series

    def terminate(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)


@dataclass(frozen=True)
class Series:
    """What a snapshot of the metric cache holds."""

    at: float
    samples: dict[tuple[str, ...], tuple[np.ndarray, np.ndarray]]
    """(kind, *labels) -> times and values"""

    @classmethod
    def read(cls, path: Path) -> Series:
        with np.load(path) as stored:
            header = json.loads(stored["header"].tobytes())
            samples = {}
            for kind, keys in header["series"].items():
                times, values = stored[f"{kind}.times"], stored[f"{kind}.values"]
                for row, key in enumerate(keys):
                    known = ~np.isnan(values[row])
                    samples[(kind, *key)] = (times[known], values[row][known].astype(float))
        return cls(header["at"], samples)

    def mean(self, kind: str, *labels: str, start: float, end: float) -> tuple[float, float, float]:
        """(begin, end, mean) of the rates whose intervals lie within start..end: a sample at t_i is the mean since
        t_(i-1)."""
        times, values = self.samples[(kind, *labels)]
        inside = np.flatnonzero((times >= start) & (times <= end))
        assert len(inside) >= 3, f"{kind}{labels}: {len(inside)} samples between {start:.1f} and {end:.1f}"
        times, values = times[inside], values[inside]
        spans = np.diff(times)
        return float(times[0]), float(times[-1]), float((values[1:] * spans).sum() / spans.sum())

    def average(self, kind: str, *labels: str, start: float, end: float) -> float:
        """Plain mean of a level."""
        times, values = self.samples[(kind, *labels)]
        return float(values[(times >= start) & (times <= end)].mean())


# --- what the kernel says


class Witness:
    """Reads cumulative counters in a thread; answers what they were at any moment since the block began."""

    def __init__(self, sources: dict[str, Callable[[], float]]) -> None:
        self._sources = sources
        self._seen: dict[str, list[tuple[float, float]]] = {name: [] for name in sources}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.error: Exception | None = None

    def _watch(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            for name, read in self._sources.items():
                try:
                    before = boot_time()
                    value = read()
                    self._seen[name].append(((before + boot_time()) / 2, value))
                except Exception as error:  # noqa: BLE001 - told by the test's thread
                    self.error = error
                    return

    def __enter__(self) -> Witness:
        self._thread.start()
        until(lambda: self.error or all(self._seen.values()), "the witness's first look")
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        assert self.error is None, self.error

    def at(self, name: str, moment: float) -> float:
        until(lambda: not self._thread.is_alive() or self._seen[name][-1][0] >= moment, f"a look at {name}")
        times, values = np.array(self._seen[name]).T
        assert times[0] <= moment <= times[-1], f"{name} was not watched at {moment}"
        return float(np.interp(moment, times, values))

    def delta(self, name: str, start: float, end: float) -> float:
        return self.at(name, end) - self.at(name, start)

    def lowest(self, name: str) -> float:
        return min(value for _, value in self._seen[name])

    def average(self, name: str, start: float, end: float) -> float:
        times, values = np.array(self._seen[name]).T
        return float(values[(times >= start) & (times <= end)].mean())


def process_cpu_seconds(pid: int) -> float:
    """utime + stime."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_delay_seconds(*pids: int) -> float:
    """Waiting of every thread of these processes."""
    files = [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(path.read_text().split()[1]) for path in files) / 1e9


def is_stopped(pid: int) -> bool:
    """Whether the process has acted on SIGSTOP (state T); one that waits for a CPU acts on it later."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def keyed(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split()[:2] for line in path.read_text().splitlines() if line)}


def throttling(container: Container) -> tuple[int, int, float]:
    """Periods, throttled periods, throttled seconds by cpu.stat."""
    stat = keyed(container.path("cpu") / "cpu.stat")
    seconds = stat["throttled_usec"] / 1e6 if container.tree.v2 else stat["throttled_time"] / 1e9
    return stat["nr_periods"], stat["nr_throttled"], seconds


def anonymous_bytes(path: Path) -> int:
    """Memory without page cache, the kernel's own per-cgroup figure."""
    stat = keyed(path / "memory.stat")
    prefix = "total_" if "total_rss" in stat else ""
    return sum(stat[f"{prefix}{name}"] for name in ("inactive_anon", "active_anon", "unevictable"))


def node_busy_seconds() -> float:
    """user, nice, system, irq and softirq of /proc/stat."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]]
    return (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) / os.sysconf("SC_CLK_TCK")


def node_memory_used() -> float:
    """MemTotal - MemAvailable."""
    info = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in Path("/proc/meminfo").read_text().splitlines()}
    return info["MemTotal"] - info["MemAvailable"]


# --- fixtures


@pytest.fixture(scope="session")
def own_host() -> Host:
    host = Host(Roots.host())
    assert host.facts.root, "these tests need root"
    return host


@pytest.fixture(scope="session")
def cpus() -> tuple[int, int]:
    """Two CPUs to pin to; the same one twice on a machine with one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


@pytest.fixture(scope="module")
def trees(own_host: Host) -> Iterator[Callable[..., PodTree]]:
    created: list[PodTree] = []

    def make(driver: CgroupDriver = CgroupDriver.CGROUPFS, weight: int = 1, *, disks: bool = False) -> PodTree:
        created.append(PodTree(own_host, driver, weight, disks=disks))
        return created[-1]

    yield make
    for tree in created:
        tree.remove()


@pytest.fixture(scope="module")
def views(trees: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., View]]:
    created: list[View] = []

    def make(tree: PodTree, **how: Any) -> View:
        created.append(View(tree, tmp_path_factory.mktemp("view"), **how))
        return created[-1]

    yield make
    for view in created:
        view.close()


@pytest.fixture(scope="module")
def koordlets(views: Any) -> Iterator[Callable[..., Koordlet]]:
    """Start a koordlet; it is killed at the end of the module."""
    started: list[Koordlet] = []

    def start(view: View, *flags: str, **how: Any) -> Koordlet:
        started.append(Koordlet(view, *flags, **how))
        return started[-1]

    yield start
    for koordlet in started:
        koordlet.kill()


@pytest.fixture(scope="session")
def tools() -> Any:
    """What the tests of this folder share; conftest modules cannot be imported by name."""
    return sys.modules[__name__]
