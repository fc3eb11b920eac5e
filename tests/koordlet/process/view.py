"""A private view of the machine, in which a koordlet process sees a tree of the test as its whole cgroup root.

Bind mounts and a BPF file system are in a mount namespace that a holder process keeps. When it ends nothing is left.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[3]
APPARMOR = "KOORD_TEST_APPARMOR"
"""The environment may name a profile, which is loaded, for all koordlets."""


def under_profile(profile: str, command: list[str]) -> list[str]:
    """The command under an AppArmor profile that is loaded."""
    return ["sh", "-c", 'printf "exec $0" >/proc/self/attr/exec && exec "$@"', profile, *command]


class Rooted(Protocol):
    """A tree of cgroups: a group `top` in each of the hierarchies."""

    roots: dict[str, Path]
    top: str


class View:
    """A mount namespace in which /sys/fs/cgroup is the tree; `also` are more shell commands to run in it."""

    def __init__(self, tree: Rooted, scratch: Path, *, bpffs: bool = True, also: tuple[str, ...] = ()) -> None:
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
        if profile := os.environ.get(APPARMOR):
            command = under_profile(profile, command)
        inside = ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt"]
        return [*inside, "sh", "-c", 'cd "$0" && exec "$@"', str(ROOT), *command]

    def close(self) -> None:
        self.holder.kill()
        self.holder.communicate()
