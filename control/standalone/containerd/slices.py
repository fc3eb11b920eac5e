"""runc with slice paths on a machine without systemd: `slice:prefix:id` becomes the directory of systemd's scope.

When a pod's cgroup parent ends in `.slice`, containerd passes it to runc in systemd's notation, and runc would call
systemd over D-Bus. A wrapper around runc (`write_wrapper`) replaces the notation in the bundle's config.json for
`create` by the path (`kubepods-besteffort-podX.slice:cri-containerd:ID` ->
`/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podX.slice/cri-containerd-ID.scope`), then executes runc.
Each create costs one start of a bare Python, about 15 ms. `python -S -E slices.py RUNC ARGUMENTS…`
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def expand(path: str) -> str:
    """The directory for a cgroups path in systemd's notation; other paths unchanged."""
    parts = path.split(":")
    if len(parts) != 3 or not parts[0].endswith(".slice"):
        return path
    name, prefix, container = parts
    pieces = name.removesuffix(".slice").split("-")
    slices = ["-".join(pieces[: n + 1]) + ".slice" for n in range(len(pieces))]
    return "/" + "/".join([*slices, f"{prefix}-{container}.scope" if prefix else f"{container}.scope"])


def rewrite(bundle: str) -> None:
    """Expand the cgroups path in one bundle's config.json."""
    file = os.path.join(bundle, "config.json")  # noqa: PTH118 - pathlib would double this program's time
    with open(file) as handle:  # noqa: PTH123
        spec = json.load(handle)
    linux = spec.get("linux") or {}
    path = linux.get("cgroupsPath") or ""
    if expand(path) != path:
        linux["cgroupsPath"] = expand(path)
        with open(file, "w") as handle:  # noqa: PTH123
            json.dump(spec, handle)


def write_wrapper(file: Path, runc: str) -> None:
    """Write the wrapper script for containerd's BinaryName option."""
    words = [sys.executable, "-S", "-E", os.path.abspath(__file__), runc]  # noqa: PTH100
    file.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    file.chmod(0o755)


def main(argv: list[str]) -> None:
    """`argv`: runc and its arguments."""
    if "create" in argv and "--bundle" in argv:
        rewrite(argv[argv.index("--bundle") + 1])
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main(sys.argv[1:])
