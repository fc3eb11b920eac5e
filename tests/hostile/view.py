"""A part of the cgroup trees as the whole of them, for a command and its children.

Pods of this node are then below one group of ours, beside those of another kubelet on this machine, and all of them are
removed at the end.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
UNIFIED = "cgroup2"
CONTROLLERS = ("cpu", "cpuset", "memory", "io", "pids")


def run_in_own_cgroups(command: list[str], environment: dict[str, str]) -> int:
    """Run the command in a mount namespace; returns its status."""
    mounts = _mounts()
    groups = {mount: mount / f"koord-hostile-{os.getpid()}" for mount in mounts}
    try:
        for mount, group in groups.items():
            _make(group, unified=mounts[mount] == UNIFIED)
        binds = [f"mount --bind {group} {mount}" for mount, group in groups.items()]
        script = " && ".join(["mount --make-rprivate /", *binds, f"exec {shlex.join(command)}"])
        return subprocess.run(["unshare", "--mount", "sh", "-c", script], env=environment, check=False).returncode
    finally:
        for group in groups.values():
            _remove(group)


def _mounts() -> dict[Path, str]:
    """Mounted cgroup file systems at and below `ROOT`, with their type."""
    rows = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return {Path(row[1]): row[2] for row in rows if row[2] in ("cgroup", UNIFIED) and Path(row[1]).is_relative_to(ROOT)}


def _make(group: Path, *, unified: bool) -> None:
    group.mkdir()
    for name in ("cpuset.cpus", "cpuset.mems"):  # v1: a group without them accepts no process
        if not unified and (group / name).exists():
            (group / name).write_text((group.parent / name).read_text())
    if unified:
        offered = (group / "cgroup.controllers").read_text().split()
        enabled = " ".join(f"+{name}" for name in CONTROLLERS if name in offered)
        if enabled:
            (group / "cgroup.subtree_control").write_text(enabled)


def _remove(group: Path) -> None:
    """The group and those below it. Raises OSError if processes are left in one of them."""
    if not group.exists():
        return
    for path in [*sorted((each for each in group.rglob("*") if each.is_dir()), reverse=True), group]:
        for attempt in range(100):
            try:
                path.rmdir()
                break
            except OSError:  # the kernel takes a moment to forget a process that ended
                if attempt == 99:
                    raise
                time.sleep(0.05)
