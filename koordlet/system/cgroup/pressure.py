"""Total stall time of single cgroup directories, for readers that walk a tree without a `CgroupFS`."""

from __future__ import annotations

from pathlib import Path

from koordlet.system.cgroup import tree
from koordlet.system.errors import MalformedFile
from koordlet.system.proc.psi import parse_pressure

NS_PER_US = 1000


def stalled_ns(directory: Path | str, resource: str) -> int | None:
    """``some total`` of ``<resource>.pressure``: nanoseconds in which at least one task was stalled, since the cgroup
    was made. None when the cgroup was removed or has no such file, or when its text is malformed."""
    path = Path(directory, f"{resource}.pressure")
    try:
        return parse_pressure(path.read_text(), str(path)).some.total * NS_PER_US
    except (OSError, MalformedFile):  # psi=0 makes read(2) fail with EOPNOTSUPP
        return None


def any_pressure_file(root: Path, resource: str) -> bool:
    """Whether any cgroup of the tree has the resource's pressure file."""
    return any((root / path / f"{resource}.pressure").exists() for path in tree.walk(root))
