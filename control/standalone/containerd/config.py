"""The configuration of the own containerd: all files below one directory, no network, cgroups by path.

Pods must use the host's network, because no CNI plugin is configured. `runc_wrapper` replaces runc for slice paths
(`slices`). For containerd 1.6 and 1.7.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

BUSYBOX = Path("/usr/bin/busybox")
"""From Debian's busybox-static; the one of `busybox` is dynamically linked, and the image has no libraries."""
PAUSE_IMAGE = "localhost/pause:koord"
CAP_SYS_RESOURCE = 24
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")
_DISABLED_PLUGINS = (
    "io.containerd.internal.v1.opt",  # would create /opt/containerd
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
)


@dataclass(frozen=True, slots=True)
class Folder:
    """The paths of one containerd. A unix socket's path is limited to 107 bytes: keep `root` short."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def socket(self) -> Path:
        return self.root / "containerd.sock"

    @property
    def content(self) -> Path:
        return self.root / "root"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def images(self) -> Path:
        return self.root / "images.tar"


def missing() -> str | None:
    """A message that lists the missing programs; None when all are installed."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if not BUSYBOX.exists():
        absent.append("busybox (busybox-static)")
    return f"not installed: {', '.join(absent)}" if absent else None


def may_protect() -> bool:
    """Whether this process may lower oom_score_adj (CAP_SYS_RESOURCE). Without it runc fails on a sandbox's -998."""
    status = Path("/proc/self/status").read_text()
    capabilities = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(capabilities.split()[1], 16) >> CAP_SYS_RESOURCE & 1)


def configuration(folder: Folder, runc_wrapper: Path | None = None) -> str:
    """The text of config.toml. Without the right to lower it, oom_score_adj is never set below containerd's own."""
    protect = may_protect()
    disabled = ", ".join(f'"{name}"' for name in _DISABLED_PLUGINS)
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    lines = [
        "version = 2",
        f'root = "{folder.content}"',
        f'state = "{folder.state}"',
        f"oom_score = {-999 if protect else 0}",
        f"disabled_plugins = [{disabled}]",
        "[grpc]",
        f'address = "{folder.socket}"',
        f"[{cri}]",
        f'sandbox_image = "{PAUSE_IMAGE}"',
        'stream_server_address = "127.0.0.1"',
        "disable_apparmor = true",
        f"restrict_oom_score_adj = {'false' if protect else 'true'}",
        f"[{cri}.containerd]",
        'snapshotter = "overlayfs"',
        f"[{cri}.containerd.runtimes.runc]",
        'runtime_type = "io.containerd.runc.v2"',
        f"[{cri}.containerd.runtimes.runc.options]",
        "SystemdCgroup = false",
        f'Root = "{folder.root / "runc"}"',
        *([f'BinaryName = "{runc_wrapper}"'] if runc_wrapper is not None else []),
        f"[{cri}.cni]",
        f'conf_dir = "{folder.root / "cni"}"',
        f'bin_dir = "{folder.root / "cni"}"',
    ]
    return "\n".join(lines) + "\n"
