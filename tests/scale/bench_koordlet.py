"""Cost of koordlet on a full node: 110 pods x 2 containers, 1 s ticks, probes loaded, as a separate process.

Run: `python tests/scale/bench_koordlet.py [--pods 110] [--seconds 60]`, as root. The pods are real cgroups with a
process each (waking ten times per second) below a separate group; koordlet sees them through bind mounts in its own
mount namespace, so nothing else on the host changes. CPU is the process's own time.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.scale.figures import ROOT, Figure, report

PORT = 19377
CPU_BUDGET, MEMORY_BUDGET, START_BUDGET = 2.0, 110.0, 1.5
WAKEUPS_PER_SECOND = 10


class Pods:
    """Cgroups in the kubelet's layout with a sleeping process per container."""

    def __init__(self, host: Host, pods: int) -> None:
        mounts = host.facts.cgroup_mounts
        wanted = ("cpu", "cpuacct", "cpuset", "memory")
        self.v2 = mounts.version == 2
        self.roots = {name: mounts.v1[name] for name in wanted if name in mounts.v1}
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


def resident_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def top() -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/top", timeout=5) as response:
        found: dict[str, Any] = json.load(response)
        return found


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=110)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    pods = Pods(Host(Roots.host()), options.pods)
    with tempfile.TemporaryDirectory(prefix="koord-bench-") as scratch:
        pods.make()
        koordlet = None
        try:
            koordlet = start(pods, Path(scratch), Path(f"/sys/fs/bpf/koordlet-bench-{os.getpid()}"))
            first = wait_for_rows(koordlet, len(pods.containers))
            source = wait_for_probes()
            time.sleep(5)
            used, began = cpu_seconds(koordlet.pid), time.monotonic()
            time.sleep(options.seconds)
            share = (cpu_seconds(koordlet.pid) - used) / (time.monotonic() - began) * 100
            resident = resident_mb(koordlet.pid)
        finally:
            stop(koordlet)
            pods.remove()
    containers = len(pods.containers)
    print(f"# {options.pods} pods x 2 containers, {source}, {options.seconds:.0f} s", flush=True)
    return report(
        "koordlet",
        [
            Figure("koordlet_cpu", share, "% of a core", CPU_BUDGET),
            Figure("koordlet_resident", resident, "MB", MEMORY_BUDGET),
            Figure("koordlet_first_sample", first, "s", START_BUDGET),
            Figure("koordlet_tick_per_container", share / 100 * 1e6 / containers, "us"),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
