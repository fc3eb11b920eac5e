"""The node of co-location benchmarks: cgroups of a kubelet that outweigh the machine's other processes, a group for
clients, a koordlet that starts and stops, and watchers that detect stopped CPUs. All of it is temporary.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from koordlet.system.cgroup.naming import CgroupDriver, kubepods_dir
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.koordlet.process.fleet import Fleet
from tests.koordlet.process.kernelfigures import keyed
from tests.koordlet.process.podtree import PodTree
from tests.koordlet.process.scene import Scene
from tests.koordlet.process.view import View
from tests.scale.colocation.requests import Stop

HERE = Path(__file__).resolve().parent
HEAVY = 100
"""CPU weight of the benchmark's groups relative to one foreign process."""
REALTIME_US = 300_000
"""Real-time budget per second of a group, where groups have such a limit."""
AT_EASE = ("--kubelet-sync-interval=2s", "--runtime-hooks-reconcile-interval=10s", "--psi-collector-interval=10s")
"""koordlet's default periods, in place of the tests' short ones."""
TICKS = os.sysconf("SC_CLK_TCK")


def disk_below(path: Path) -> str | None:
    """The device (`/dev/...`) of a file system; None for one without a device, such as an overlay."""
    number = path.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    return f"/dev/{device.resolve().name}" if device.exists() else None


class Testbed:
    """See the module. Subclasses add pods to `fleet` before `open`."""

    __test__ = False

    def __init__(self, scratch: Path, *, gates: str, probes: bool = False, weight: int = HEAVY) -> None:
        self.scratch = scratch
        self.tree = PodTree(Host(Roots.host()), CgroupDriver.CGROUPFS, weight, disks=True)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.fleet = Fleet(self.tree)
        self.view = View(self.tree, scratch / "view", bpffs=probes)
        self.scene = Scene(self.fleet, self.view, scratch, gates=gates)
        self.client_groups = [root / f"{self.tree.top}-client" for root in self.controllers("cpu")]
        for group in self.client_groups:
            group.mkdir()
            name, weight = ("cpu.weight", 100 * HEAVY) if self.tree.v2 else ("cpu.shares", 1024 * HEAVY)
            (group / name).write_text(str(weight))

    def open_node(self, spec: dict[str, Any]) -> None:
        """Real-time budgets, and the API server with the node and its NodeSLO."""
        for limit in (group / "cpu.rt_runtime_us" for group in self.client_groups):
            if limit.exists():
                limit.write_text(str(REALTIME_US))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
        self.scene.open(spec, cpus=os.cpu_count() or 1, memory_mib=memory)

    @contextmanager
    def koordlet(self, *flags: str) -> Iterator[Any]:
        """Run koordlet with enforcement; at the end all its settings are restored."""
        koordlet = self.scene.start(*AT_EASE, *flags)
        try:
            self.scene.settle()
            yield koordlet
        finally:
            status = self.scene.stop()
        if status:
            raise RuntimeError(f"koordlet ended with {status}: {koordlet.log[-2000:]}")

    def close(self) -> None:
        for process in list(self.processes):
            self.end(process)
        self.scene.close()
        self.view.close()
        self.tree.remove()
        for group in self.client_groups:
            group.rmdir()

    def controllers(self, *names: str) -> list[Path]:
        """Roots of these hierarchies."""
        roots = self.tree.roots
        return [roots[""]] if self.tree.v2 else [roots[name] for name in names if name in roots]

    def groups(self, directory: str) -> list[Path]:
        """A container's group in every hierarchy."""
        return [root / self.tree.top / directory for root in dict.fromkeys(self.tree.roots.values())]

    def start(
        self, groups: Sequence[Path], command: Sequence[str], *, cpu: int | None = None, priority: int = 0, **how: Any
    ) -> subprocess.Popen[bytes]:
        """A command in these groups, on that CPU or on any; with a priority it precedes all other tasks there."""
        enter = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in groups)
        first = f"chrt --fifo {priority} " if priority else ""
        pinned = "" if cpu is None else f"taskset -c {cpu} "
        script = f'{enter}; exec {first}{pinned}"$0" "$@"'
        process = subprocess.Popen(["sh", "-c", script, *command], start_new_session=True, **how)
        self.processes.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.communicate()
        self.processes.remove(process)

    @contextmanager
    def watched(self, cpus: Sequence[int]) -> Iterator[list[Stop]]:
        """A list that is filled at the end with stops of any of the CPUs."""
        stops: list[Stop] = []
        watchers: list[subprocess.Popen[bytes]] = []
        try:
            for cpu in cpus:
                command = (sys.executable, str(HERE / "stops.py"), str(cpu))
                watchers.append(self.start(self.client_groups, command, cpu=cpu, stdout=subprocess.PIPE))
            for watcher in watchers:
                assert watcher.stdout is not None
                if watcher.stdout.readline() != b"ready\n":
                    raise RuntimeError("a watcher of the CPUs did not start")
            yield stops
            for watcher in watchers:
                watcher.terminate()
                out, _ = watcher.communicate(timeout=60)
                stops += [(begin, end) for begin, end in json.loads(out)]
        finally:
            for watcher in watchers:
                self.end(watcher)

    def cpu_seconds(self, directory: str) -> float:
        """CPU seconds used by a group since its creation."""
        if self.tree.v2:
            return keyed(self.tree.path("cpu", directory) / "cpu.stat")["usage_usec"] / 1e6
        return int((self.tree.path("cpuacct", directory) / "cpuacct.usage").read_text()) / 1e9

    @contextmanager
    def memory_limited(self, mebibytes: int | None) -> Iterator[None]:
        """A common memory limit of all pods, in place of a full node; None for no limit."""
        if mebibytes is None:
            yield
            return
        self.fleet.write(kubepods_dir(self.tree.driver), "memory.limit_in_bytes", mebibytes << 20)
        try:
            yield
        finally:
            self.fleet.write(kubepods_dir(self.tree.driver), "memory.limit_in_bytes", -1)


def cpu_times(cpu: int | None = None) -> tuple[float, float]:
    """(busy seconds without stolen ones, stolen seconds) of a CPU, or of all."""
    name = "cpu " if cpu is None else f"cpu{cpu} "
    line = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(name))
    user, nice, system, _, _, irq, softirq, steal = (int(text) / TICKS for text in line.split()[1:9])
    return user + nice + system + irq + softirq, steal
