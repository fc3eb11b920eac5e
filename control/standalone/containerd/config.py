"""What a containerd of ours is told: everything below one folder, no network, cgroups by path.

Pods must ask for the host's network: no CNI plugin is configured. `runc_wrapper` replaces runc for slice paths
(`slices`). Written for containerd 1.6, and read by 1.7 as well.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

BUSYBOX = Path("/usr/bin/busybox")
"""From Debian's busybox-static; that of plain `busybox` would need libraries, which an image has not."""
PAUSE_IMAGE = "localhost/pause:koord"
CAP_SYS_RESOURCE = 24
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")
_USELESS = (
    "io.containerd.internal.v1.opt",  # would make /opt/containerd
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
)


@dataclass(frozen=True, slots=True)
class Folder:
    """Where everything of one containerd is. A unix socket's path is limited to 107 bytes: keep `root` short."""

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
    """What of containerd is not installed here, in words; None when all is there."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if not BUSYBOX.exists():
        absent.append("busybox (busybox-static)")
    return f"not installed: {', '.join(absent)}" if absent else None


def may_protect(status: Path = Path("/proc/self/status")) -> bool:
    """May we lower oom_score_adj (CAP_SYS_RESOURCE)? runc fails on a sandbox's -998 where it is not allowed to."""
    bounds = next(line for line in status.read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(bounds.split()[1], 16) >> CAP_SYS_RESOURCE & 1)


def configuration(
    folder: Folder, runc_wrapper: Path | None = None, snapshotter: str = "overlayfs", *, protect: bool | None = None
) -> str:
    """The text of config.toml. Without `protect` oom_score_adj is never set below containerd's own; None looks."""
    protect = may_protect() if protect is None else protect
    disabled = ", ".join(f'"{name}"' for name in _USELESS)
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
        f'snapshotter = "{snapshotter}"',
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
