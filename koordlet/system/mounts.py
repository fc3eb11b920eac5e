"""Mount points from `mountinfo`, and where each cgroup hierarchy is.

There are three layouts: unified (cgroup2 on the root), v1 (one mount per controller, some joint, such as `cpu,cpuacct`)
and hybrid (v1 with a cgroup2 mount at `unified` beside it, with or without controllers). A hybrid host counts as v1, as
for the kubelet; its unified tree still has the PSI files. Source: proc_pid_mountinfo(5), cgroups(7).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from koordlet.system.errors import MalformedFile

V1_CONTROLLERS = (
    "cpu", "cpuacct", "cpuset", "memory", "blkio", "devices", "freezer",
    "net_cls", "net_prio", "perf_event", "hugetlb", "pids", "rdma", "misc",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo; `point` as this process sees it, `root` the part of the file system that is mounted."""

    id: int
    device: str
    root: str
    point: Path
    options: tuple[str, ...]
    fs_type: str
    source: str
    super_options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CgroupMounts:
    """`version` 1 or 2; `v1` maps a controller to its hierarchy's mount point; `unified` is the cgroup2
    mount, also on hybrid hosts, or None."""

    version: int
    v1: Mapping[str, Path] = field(default_factory=dict)
    unified: Path | None = None

    def hierarchy(self, controller: str) -> Path | None:
        """Root directory of the hierarchy with the files of `controller`, None when it is not mounted."""
        return self.unified if self.version == 2 else self.v1.get(controller)

    @property
    def naming(self) -> Path | None:
        """The tree whose directories identify containers."""
        return self.hierarchy("cpu") or self.unified


def parse_mountinfo(text: str, path: str = "mountinfo") -> list[Mount]:
    """All mounts in file order; raises `MalformedFile` naming the line."""
    return [_parse_line(line, path) for line in text.splitlines() if line]


def _parse_line(line: str, path: str) -> Mount:
    left, separator, right = line.partition(" - ")
    before, after = left.split(" "), right.split(" ")
    if not separator or len(before) < 6 or len(after) < 3 or not before[0].isdigit():
        raise MalformedFile(path, line, "expected at least six fields, ' - ' and three fields")
    return Mount(
        id=int(before[0]),
        device=before[2],
        root=_unescape(before[3]),
        point=Path(_unescape(before[4])),
        options=tuple(before[5].split(",")),
        fs_type=after[0],
        source=_unescape(after[1]),
        super_options=tuple(after[2].split(",")),
    )


def _unescape(text: str) -> str:
    """The kernel escapes space, tab, newline and backslash as three octal digits."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def find_cgroup_mounts(mounts: Iterable[Mount], cgroup_root: Path) -> CgroupMounts:
    """Where the hierarchies below `cgroup_root` are.

    The version is 2 if and only if `cgroup_root` itself is a cgroup2 directory. Every such directory has a
    `cgroup.controllers` file, so the result is the same as by the file-system magic of spec 03 §1.2. Controllers come
    from mountinfo. Where mountinfo has none, a directory named after the controller counts (a test tree, or symbolic
    links such as `cpu -> cpu,cpuacct`).
    """
    if (cgroup_root / "cgroup.controllers").exists():
        return CgroupMounts(version=2, unified=cgroup_root)
    v1: dict[str, Path] = {}
    unified: Path | None = None
    for mount in mounts:
        if not mount.point.is_relative_to(cgroup_root):
            continue
        if mount.fs_type == "cgroup2":
            unified = mount.point
        elif mount.fs_type == "cgroup":
            for controller in V1_CONTROLLERS:
                if controller in mount.super_options:
                    v1[controller] = mount.point
    for controller in V1_CONTROLLERS:
        if controller not in v1 and (cgroup_root / controller).is_dir():
            v1[controller] = cgroup_root / controller
    if unified is None and (cgroup_root / "unified/cgroup.controllers").exists():
        unified = cgroup_root / "unified"
    return CgroupMounts(version=1, v1=MappingProxyType(v1), unified=unified)
