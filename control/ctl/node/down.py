"""`koordctl down`: stop every part in reverse order, clean up after killed ones, and verify that nothing is left.

Processes are identified by pid and start time. Removed are: the cgroups that the stand-in kubelet recorded as its own,
with the processes in them; pins below the configured directory; the bpf file system's mount only if a koordlet mounted
it and it holds nothing else; directories outside the state directory that `up` created.
"""

from __future__ import annotations

import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from control.ctl.errors import CtlError
from control.ctl.node import bpffs, containers, hostfolders, preflight, processes
from control.ctl.node.parts import PARTS, Layout
from control.ctl.node.state import Lock, NodeSettings
from control.ctl.node.supervisor import Supervisor
from control.ctl.progress import TerminalProgress
from control.standalone.kubelet.cgroups import ownermark
from control.standalone.kubelet.cgroups.directories import CgroupError, CgroupTree

MAX_CGROUP_POLLS = 250
POLL_S = 0.02
MOUNTINFO = Path("/proc/self/mountinfo")


@dataclass
class Leftovers:
    """What is left after everything was stopped; normally all lists are empty."""

    processes: list[str] = field(default_factory=list)
    cgroups: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)
    pins: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """One line per kind: how many, and which."""
        return [
            f"{kind}: none" if not left else f"{kind}: {len(left)} left: {', '.join(left[:5])}"
            for kind, left in vars(self).items()
        ]

    def __bool__(self) -> bool:
        return any(vars(self).values())


def down(state_dir: Path, *, purge: bool = False, progress: TerminalProgress) -> Leftovers:
    """Take the node down; returns what remains. Raises CtlError when that cannot be determined."""
    if not state_dir.exists():
        progress.good(f"nothing to do: {state_dir} does not exist")
        return Leftovers()
    layout = Layout(state_dir)
    with Lock(state_dir):
        supervisor = Supervisor(state_dir)
        settings = supervisor.state.settings
        recorded = [path for root in layout.kubelet_roots for path in preflight.made_by_kubelet(root)]
        own = _own_cgroups(recorded, state_dir)  # before the kubelets remove their records
        for part in reversed(PARTS):
            if (part.runtime or part.second) and not supervisor.running(part.name):
                continue  # not used, or already gone; its leftovers are removed below
            with progress.step(part.name) as step:
                orderly = supervisor.stop(part.name, part.stop_seconds)
                step.done({None: "did not run", True: "stopped", False: "had to be killed"}[orderly])
        with progress.step("leftovers of killed parts") as step:
            step.done(clean(state_dir, own, settings.bpf_pin_dir if settings is not None else ""))
        if purge:
            with progress.step(f"files in {state_dir}") as step:
                shutil.rmtree(state_dir)
                step.done("removed")
        return leftovers(state_dir, own, settings, purged=purge)


def clean(state_dir: Path, groups: list[str], pin_dir: str) -> str:
    """Remove what orderly stops would have removed; returns a description. `pin_dir`: empty for none."""
    done = []
    cleared = containers.clear(state_dir, _tree())
    if groups and remove_cgroups(groups):
        done.append("cgroups and their processes")
        for root in Layout(state_dir).kubelet_roots:
            _forget_cgroups(root)
    if cleared:
        done.append("containerd's mounts and shims")
    strays = _wait_strays(state_dir)
    for stray in strays:
        processes.send(stray.id, signal.SIGKILL)
        processes.wait_gone(stray.id, 5.0)
    if strays:
        done.append(f"{len(strays)} processes")
    done += hostfolders.remove(state_dir, containers.REGISTRATION)
    if pin_dir:
        directory = Path(pin_dir)
        if removed := bpffs.remove_pins(directory):
            done.append(f"{removed} pinned BPF objects")
        mount = bpffs.mount_point(directory)
        if bpffs.is_koordlet_mount(mount) and bpffs.unmount(mount) is None:
            done.append(f"the mount {mount}")
    return ", ".join(done) + " removed" if done else "nothing"


def _wait_strays(state_dir: Path) -> list[processes.MarkedProcess]:
    """Marked processes that do not end by themselves; a container's shim ends soon after its container."""
    strays: list[processes.MarkedProcess] = []
    for _ in range(100):
        strays = processes.marked(state_dir)
        if not strays:
            break
        time.sleep(POLL_S)
    return strays


def _tree() -> CgroupTree | None:
    try:
        return CgroupTree.discover(preflight.CGROUP_MOUNT)
    except CgroupError:
        return None


def _own_cgroups(paths: list[str], state_dir: Path) -> list[str]:
    """Without groups that another node has taken over since, while this one was dead."""
    tree = _tree()
    owners = {path: ownermark.read(tree, path) for path in paths} if tree is not None else {}
    return [path for path in paths if (owner := owners.get(path)) is None or owner.state_dir == str(state_dir)]


def remove_cgroups(groups: list[str]) -> bool:
    """Kill and remove the groups (parents first); False when none existed."""
    tree = _tree()
    roots = [path for path in groups if tree is not None and tree.exists(path)]
    if tree is None or not roots:
        return False
    for path in reversed(roots):
        for _ in range(MAX_CGROUP_POLLS):
            try:
                tree.kill(path)
                if tree.remove(path):
                    break
            except CgroupError as error:
                raise CtlError(f"cgroup {path}: {error.strerror}", "koordctl down needs root.") from error
            time.sleep(POLL_S)
    return True


def _forget_cgroups(kubelet_root: Path) -> None:
    """Remove the kubelet's record of its cgroups: a group of that name created later is not its own."""
    tree, groups = _tree(), preflight.made_by_kubelet(kubelet_root)
    if tree is not None and not any(tree.exists(path) for path in groups):
        (kubelet_root / "cgroups.json").unlink(missing_ok=True)


def leftovers(state_dir: Path, groups: list[str], settings: NodeSettings | None, *, purged: bool) -> Leftovers:
    """Check for everything that may be left."""
    remaining = Leftovers(processes=[process.title for process in processes.marked(state_dir)])
    tree = _tree()
    if tree is not None:
        remaining.cgroups = [path for path in groups if tree.exists(path)]
        remaining.processes += [f"pid {pid} in {path}" for path in remaining.cgroups for pid in sorted(tree.pids(path))]
    remaining.mounts = [point for point in _mount_points() if Path(point).is_relative_to(state_dir)]
    if settings is not None and settings.bpf_pin_dir:
        directory = Path(settings.bpf_pin_dir)
        remaining.pins = [str(path) for path in bpffs.pins(directory)] or (
            [str(directory)] if directory.exists() else []
        )
        mount = bpffs.mount_point(directory)
        if bpffs.is_koordlet_mount(mount) and not bpffs.foreign_entries(mount):
            remaining.mounts.append(str(mount))
    if purged and state_dir.exists():
        remaining.files = [str(state_dir)]
    return remaining


def _mount_points() -> list[str]:
    return [line.split()[4] for line in MOUNTINFO.read_text().splitlines()]
