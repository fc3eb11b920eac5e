"""An image without content for containers that run this host's programs, such as the demo pods.

Pods for the process runtime have the image `localhost/process:none` and run commands of this host. For a real
runtime the image has the host's top-level links (`/bin` -> `usr/bin`) and empty directories, and the kubelet mounts
the host's programs over them, read-only (`mounts`). Everything else, such as /tmp and /var, belongs to the container.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from control.standalone.containerd.archive import Image, tree_layer

HOST_IMAGE = "localhost/process:none"
TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr")
ETC = ("etc/alternatives", "etc/group", "etc/ld.so.cache", "etc/passwd")
"""The files of /etc that programs need to start."""
EMPTY = ("dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "var")
CHECKOUT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class HostMount:
    """A directory or file of the host at the same path in the container, read-only."""

    path: str


def image(root: Path = Path("/")) -> Image:
    """The image for a host whose file system is at `root`."""
    links = {name: str((root / name).readlink()) for name in TOP if (root / name).is_symlink()}
    directories = [name for name in TOP if name not in links and (root / name).is_dir()]
    return Image([HOST_IMAGE], tree_layer(sorted({*directories, *EMPTY}), {}, links))


def mounts(root: Path = Path("/"), extra: Sequence[Path] | None = None) -> Iterator[HostMount]:
    """The mounts: `TOP` without links, `ETC`, then this checkout and its Python, unless they are below those."""
    more = [CHECKOUT, Path(sys.prefix), Path(sys.base_prefix)] if extra is None else list(extra)
    mounted: list[Path] = []
    for path in [*(Path("/") / name for name in (*TOP, *ETC)), *sorted(set(more))]:
        host_path = root / path.relative_to("/")
        if host_path.is_symlink() or not host_path.exists() or any(path.is_relative_to(parent) for parent in mounted):
            continue
        mounted.append(path)
        yield HostMount(str(path))
