"""`koordctl down`: stop every part in reverse order, clean what a killed one left, prove that nothing is left.

Processes are stopped by pid and start time only. Cgroups removed are those that the stand-in kubelet wrote down as
made by it, with the processes in them; pins are those below the configured directory; the bpf file system is
unmounted only if a koordlet mounted it and nobody else has anything in it.
"""

from __future__ import annotations

import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from control.ctl.errors import CtlError
from control.ctl.node import bpffs, containers, preflight, processes
from control.ctl.node.parts import PARTS, Layout
from control.ctl.node.state import Lock, Settings
from control.ctl.node.supervisor import Supervisor
from control.ctl.progress import Progress
from control.standalone.kubelet.cgroups import ownermark
from control.standalone.kubelet.cgroups.directories import CgroupError, CgroupTree

CGROUP_ROUNDS = 250
ROUND_SECONDS = 0.02
MOUNTINFO = Path("/proc/self/mountinfo")


@dataclass
class Leftovers:
    """What was found after everything was stopped; empty lists are the good case."""

    processes: list[str] = field(default_factory=list)
    cgroups: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)
    pins: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """One line a kind: how many, and which."""
        return [
            f"{kind}: none" if not found else f"{kind}: {len(found)} left: {', '.join(found[:5])}"
            for kind, found in vars(self).items()
        ]

    def __bool__(self) -> bool:
        return any(vars(self).values())


def down(state_dir: Path, *, purge: bool = False, progress: Progress) -> Leftovers:
    """Take the node down and say what remains. Raises CtlError when it can't even look."""
    if not state_dir.exists():
        progress.good(f"nothing to do: {state_dir} does not exist")
        return Leftovers()
    layout = Layout(state_dir)
    with Lock(state_dir):
        supervisor = Supervisor(state_dir)
        settings = supervisor.state.settings
        made = _ours(preflight.made_by_kubelet(layout.kubelet_root), state_dir)  # before the kubelet forgets them
        for part in reversed(PARTS):
            if part.runtime and not supervisor.running(part.name):
                continue  # nobody asked for it, or it is gone: what it left is cleaned below
            with progress.step(part.name) as step:
                orderly = supervisor.stop(part.name, part.stop_seconds)
                step.done({None: "did not run", True: "stopped", False: "had to be killed"}[orderly])
        with progress.step("what killed parts left") as step:
            step.done(clean(state_dir, made, settings.bpf_pin_dir if settings is not None else ""))
        if purge:
            with progress.step(f"files in {state_dir}") as step:
                shutil.rmtree(state_dir)
                step.done("removed")
        return leftovers(state_dir, made, settings, purged=purge)


def clean(state_dir: Path, made: list[str], pin_dir: str) -> str:
    """Remove what orderly stops would have removed; says what there was. `pin_dir` may be empty: none."""
    done = []
    cleared = containers.clear(state_dir, _tree())
    if made and remove_cgroups(made):
        done.append("cgroups and their processes")
        _forget_cgroups(Layout(state_dir).kubelet_root)
    if cleared:
        done.append("containerd's mounts and shims")
    strays = _wait_strays(state_dir)
    for one in strays:
        processes.send(one.id, signal.SIGKILL)
        processes.wait_gone(one.id, 5.0)
    if strays:
        done.append(f"{len(strays)} processes")
    if pin_dir:
        directory = Path(pin_dir)
        if removed := bpffs.remove_pins(directory):
            done.append(f"{removed} pinned BPF objects")
        mount = bpffs.mount_point(directory)
        if bpffs.is_ours(mount) and bpffs.unmount(mount) is None:
            done.append(f"the mount {mount}")
    return ", ".join(done) + " removed" if done else "nothing"


def _wait_strays(state_dir: Path) -> list[processes.Marked]:
    """Marked processes that do not end by themselves: a container's shim does once its container is gone."""
    found: list[processes.Marked] = []
    for _ in range(100):
        found = processes.marked(state_dir)
        if not found:
            break
        time.sleep(ROUND_SECONDS)
    return found


def _tree() -> CgroupTree | None:
    try:
        return CgroupTree.discover(preflight.CGROUP_MOUNT)
    except CgroupError:
        return None


def _ours(made: list[str], state_dir: Path) -> list[str]:
    """Without groups that have meanwhile become another node's: it reclaimed them while we were dead."""
    tree = _tree()
    owners = {path: ownermark.read(tree, path) for path in made} if tree is not None else {}
    return [path for path in made if (owner := owners.get(path)) is None or owner.state_dir == str(state_dir)]


def remove_cgroups(made: list[str]) -> bool:
    """Kill and remove the groups in `made` (parents first); False when there were none any more."""
    tree = _tree()
    roots = [path for path in made if tree is not None and tree.exists(path)]
    if tree is None or not roots:
        return False
    for path in reversed(roots):
        for _ in range(CGROUP_ROUNDS):
            try:
                tree.kill(path)
                if tree.remove(path):
                    break
            except CgroupError as error:
                raise CtlError(f"cgroup {path}: {error.strerror}", "koordctl down needs root.") from error
            time.sleep(ROUND_SECONDS)
    return True


def _forget_cgroups(kubelet_root: Path) -> None:
    """The kubelet's own note of what it made is void; a group of that name made by others later is theirs."""
    tree, made = _tree(), preflight.made_by_kubelet(kubelet_root)
    if tree is not None and not any(tree.exists(path) for path in made):
        (kubelet_root / "cgroups.json").unlink(missing_ok=True)


def leftovers(state_dir: Path, made: list[str], settings: Settings | None, *, purged: bool) -> Leftovers:
    """Look everywhere."""
    found = Leftovers(processes=[one.title for one in processes.marked(state_dir)])
    tree = _tree()
    if tree is not None:
        found.cgroups = [path for path in made if tree.exists(path)]
        found.processes += [f"pid {pid} in {path}" for path in found.cgroups for pid in sorted(tree.pids(path))]
    found.mounts = [point for point in _mount_points() if Path(point).is_relative_to(state_dir)]
    if settings is not None and settings.bpf_pin_dir:
        directory = Path(settings.bpf_pin_dir)
        found.pins = [str(path) for path in bpffs.pins(directory)] or ([str(directory)] if directory.exists() else [])
        mount = bpffs.mount_point(directory)
        if bpffs.is_ours(mount) and not bpffs.others(mount):
            found.mounts.append(str(mount))
    if purged and state_dir.exists():
        found.files = [str(state_dir)]
    return found


def _mount_points() -> list[str]:
    return [line.split()[4] for line in MOUNTINFO.read_text().splitlines()]
