"""Cost of koordlet on full nodes of 110 pods x 2 and 250 pods x 4 containers, as a separate process.

Run: `python tests/scale/bench_koordlet.py [--pods 110 --containers 2] [--seconds 60]`, as root. The node is that of
`fullnode.py`: real cgroups with processes, an API server, the kubelet's /pods. koordlet runs with the flags of its
DaemonSet; its metrics are read every 15 s, as by Prometheus, and /top every 2 s, as by `koordctl top`. Nothing else on
the host changes. CPU is the process's own time; it depends on the other work of the machine, whose share is
printed. `Pods` is a smaller node, of cgroups alone, for other benchmarks.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.processmemory import resident_mib
from tests.scale.figures import ROOT, Figure, report
from tests.scale.fullnode import FullNode

PORT = 19377
CPU_BUDGET, MEMORY_BUDGET, START_BUDGET = 2.0, 110.0, 1.5
"""Of the soak."""
BUDGETS = {(110, 2): (1.0, 80.0), (250, 4): (2.0, 110.0)}
"""(pods, containers of each) -> (percent of a core, MB)."""
WAKEUPS_PER_SECOND = 10
SCRAPE_INTERVAL_S, TOP_INTERVAL_S = 15.0, 2.0
SETTLE_S = 30.0
TASK_CPU = "koord_periodic_task_cpu_seconds_total"


class Pods:
    """Cgroups in the kubelet's layout with a sleeping process per container."""

    def __init__(self, host: Host, pods: int) -> None:
        mounts = host.facts.cgroup_mounts
        controllers = ("cpu", "cpuacct", "cpuset", "memory")
        self.v2 = mounts.version == 2
        self.roots = {name: mounts.v1[name] for name in controllers if name in mounts.v1}
        if mounts.version == 2 and mounts.unified is not None:
            self.roots = {"": mounts.unified}
        self.parent = f"koord-bench-{os.getpid()}"
        self.made: list[Path] = []
        self.children: list[int] = []
        self.dirs = ["", "kubepods", "kubepods/burstable", "kubepods/besteffort"]
        self.containers: list[str] = []
        for number in range(pods):
            pod = f"kubepods/{'besteffort' if number % 2 else 'burstable'}/pod{uuid.uuid4()}"
            below = [f"{pod}/{uuid.uuid4().hex}{uuid.uuid4().hex}" for _ in range(2)]
            self.dirs += [pod, *below]
            self.containers += below

    def make(self) -> None:
        self.make_dirs(self.dirs)
        for path in self.containers:
            self.children.append(self.sleeper(path))

    def make_dirs(self, paths: list[str]) -> None:
        for root in dict.fromkeys(self.roots.values()):
            for path in paths:
                directory = root / self.parent / path
                directory.mkdir()
                self.made.append(directory)
                if self.v2:
                    (directory.parent / "cgroup.subtree_control").write_text("+cpu +memory +cpuset")
                elif root == self.roots.get("cpuset"):
                    for name in ("cpuset.cpus", "cpuset.mems"):
                        (directory / name).write_text((directory.parent / name).read_text())

    def sleeper(self, path: str) -> int:
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the benchmark
            for root in dict.fromkeys(self.roots.values()):
                (root / self.parent / path / "cgroup.procs").write_text(str(os.getpid()))
            while True:
                time.sleep(1 / WAKEUPS_PER_SECOND)
        return pid

    def remove(self) -> None:
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
        for pid in self.children:
            os.waitpid(pid, 0)
        for directory in reversed(self.made):
            directory.rmdir()

    def view(self, at: Path) -> list[str]:
        """Shell commands that show only these groups below `at`."""
        commands = ["mount --make-rprivate /"]
        for name, root in self.roots.items():
            target = at / name
            target.mkdir(parents=True, exist_ok=True)
            commands.append(f"mount --bind {root / self.parent} {target}")
        return commands


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def top() -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/top", timeout=5) as response:
        page: dict[str, Any] = json.load(response)
        return page


def wait_for_rows(process: subprocess.Popen[bytes], count: int, seconds: float = 60.0) -> float:
    """Seconds until /top has a sample of every container."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if process.poll() is not None:
            raise SystemExit(f"koordlet ended with status {process.returncode}")
        try:
            if sum(row.get("cpu") is not None for row in top().get("rows", [])) >= count:
                return time.monotonic() - began
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit("koordlet never showed all containers")


def wait_for_probes(seconds: float = 60.0) -> str:
    """Wait until each probe has been read, which follows the first sample; prints the data sources."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        probes = top()["probes"]
        if "starting" not in [probe.get("reason") for probe in probes]:
            return ", ".join(f"{probe['name']} {probe['source']}" for probe in probes)
        time.sleep(0.2)
    raise SystemExit("koordlet never opened all probes")


def start(pods: Pods, scratch: Path, pins: Path, more: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """A koordlet for these pods only, with its state below `scratch`; its log is in build/."""
    command = [
        sys.executable, "-m", "koordlet", "--standalone", f"--addr=127.0.0.1:{PORT}",
        f"--cgroup-root-dir={scratch}/cgroup", f"--state-dir={scratch}/state",
        f"--bpf-pin-dir={pins}", "--node-name=bench", *more,
    ]  # fmt: skip
    script = " && ".join([*pods.view(scratch / "cgroup"), "exec " + " ".join(command)])
    with (ROOT / "build/bench-koordlet.log").open("w") as log:
        return subprocess.Popen(["unshare", "-m", "sh", "-c", script], cwd=ROOT, stderr=log)


def stop(koordlet: subprocess.Popen[bytes] | None) -> None:
    """Stop it, by force if needed: the groups must be removable."""
    if koordlet is None:
        return
    koordlet.terminate()
    try:
        koordlet.wait(60)
    except subprocess.TimeoutExpired:
        print("# koordlet did not stop within a minute and was killed", flush=True)
        koordlet.kill()
        koordlet.wait()


def busy_share(before: str, after: str) -> float:
    """Percent of all CPUs' time that was used between two readings of /proc/stat."""
    old, new = ([int(word) for word in text.split("\n", 1)[0].split()[1:]] for text in (before, after))
    spent = [now - was for was, now in zip(old, new, strict=True)]
    return 100 * (1 - (spent[3] + spent[4]) / sum(spent))


def task_cpu(page: str) -> dict[str, float]:
    """CPU seconds of each periodic task since the start; coroutines are not measured."""
    return {name: float(used) for name, used in re.findall(rf'^{TASK_CPU}{{task="(.*)"}} (\S+)$', page, re.MULTILINE)}


def measure(get: Callable[[str], str], pid: int, seconds: float, *, top: bool) -> float:
    """koordlet's CPU use in percent of a core while it is scraped and, with `top`, /top is read."""
    used, begun = cpu_seconds(pid), time.monotonic()
    next_scrape = next_top = begun
    while (now := time.monotonic()) < begun + seconds:
        if now >= next_scrape:
            get("/metrics")
            next_scrape += SCRAPE_INTERVAL_S
        if top and now >= next_top:
            get("/top")
            next_top += TOP_INTERVAL_S
        time.sleep(1.0)
    return 100 * (cpu_seconds(pid) - used) / (time.monotonic() - begun)


def measure_node(pods: int, containers: int, seconds: float) -> list[Figure]:
    """The figures of one size of a node; the CPU of each task is printed."""
    cpu_budget, memory_budget = BUDGETS.get((pods, containers), (None, None))
    name = f"{pods}x{containers}"
    with tempfile.TemporaryDirectory(prefix="koord-bench-") as scratch:
        node = FullNode(Host(Roots.host()), pods, containers, Path(scratch))
        try:
            node.open()
            pid = node.start()
            node.wait()
            time.sleep(SETTLE_S)
            ticks, tasks = Path("/proc/stat").read_text(), task_cpu(node.get("/internal-metrics"))
            scraped = measure(node.get, pid, seconds, top=False)
            gained = {task: total - tasks.get(task, 0.0) for task, total in task_cpu(node.get("/metrics")).items()}
            watched = measure(node.get, pid, seconds, top=True)
            busy = busy_share(ticks, Path("/proc/stat").read_text())
            resident = resident_mib(pid)
        finally:
            node.close()
    for task, used in sorted(gained.items(), key=lambda item: -item[1])[:10]:
        print(f"# {name} task {task:24} {100 * used / seconds:5.2f} % of a core", flush=True)
    print(f"# {name}: all CPUs of the machine were {busy:.0f} % busy", flush=True)
    return [
        Figure(f"koordlet_cpu_{name}", scraped, "% of a core"),
        Figure(f"koordlet_cpu_with_top_{name}", watched, "% of a core", cpu_budget),
        Figure(f"koordlet_resident_{name}", resident, "MB", memory_budget),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int)
    parser.add_argument("--containers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    sizes = list(BUDGETS) if options.pods is None else [(options.pods, options.containers)]
    figures = [figure for pods, each in sizes for figure in measure_node(pods, each, options.seconds)]
    return report("koordlet", figures)


if __name__ == "__main__":
    sys.exit(main())
