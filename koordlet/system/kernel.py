"""Which kernel this is: release, build configuration, BTF, capabilities of the process.

Every probe answers with a :class:`Feature`, so that a missing thing comes with the reason an operator needs; none of
them raises. Probed once by :mod:`koordlet.system.host`.
"""

from __future__ import annotations

import gzip
import os
import re
from dataclasses import dataclass
from pathlib import Path

from koordlet.system.roots import Roots

_CAP_EFFECTIVE = re.compile(r"^CapEff:\s*([0-9a-fA-F]+)$", re.MULTILINE)
_RELEASE = re.compile(r"^(\d+)\.(\d+)(?:\.(\d+))?")
CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True)
class Feature:
    """Whether something is there; ``reason`` is empty when it is."""

    present: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.present

    @classmethod
    def when(cls, present: bool, reason: str) -> Feature:
        return cls(True) if present else cls(False, reason)


def read_text(path: Path) -> str | None:
    """The file's text, or None when it cannot be read for whatever reason of the kernel's."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


def release(roots: Roots) -> str:
    """``<proc>/sys/kernel/osrelease``, else uname."""
    text = read_text(roots.proc_sys / "kernel/osrelease")
    return text.strip() if text else os.uname().release


def parse_release(text: str) -> tuple[int, int, int]:
    """``6.1.0-21-amd64`` -> (6, 1, 0); (0, 0, 0) when it is no version at all."""
    match = _RELEASE.match(text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)


def config_options(roots: Roots, kernel_release: str) -> dict[str, str] | None:
    """The kernel's build options (``CONFIG_PSI`` -> ``y``), None when this host does not publish them.

    Looked for in ``<proc>/config.gz`` and, through the host's root, ``/boot/config-<release>``.
    """
    packed = roots.proc / "config.gz"
    try:
        text: str | None = gzip.decompress(packed.read_bytes()).decode()
    except (OSError, EOFError, UnicodeDecodeError):
        text = read_text(roots.proc / "1/root/boot" / f"config-{kernel_release}")
    if text is None:
        return None
    pairs = (line.partition("=") for line in text.splitlines() if line.startswith("CONFIG_"))
    return {name: value.strip('"') for name, _, value in pairs}


def btf(roots: Roots) -> Feature:
    path = roots.sys / "kernel/btf/vmlinux"
    return Feature.when(path.exists(), f"{path} does not exist (kernel built without CONFIG_DEBUG_INFO_BTF)")


def psi(roots: Roots) -> Feature:
    """Whether pressure files exist *and* answer: with ``psi=0`` they exist and reading gives EOPNOTSUPP."""
    path = roots.proc / "pressure/cpu"
    try:
        path.read_bytes()
    except OSError as error:
        return Feature(False, f"{path}: {error.strerror} (CONFIG_PSI off, or psi=1 missing on the command line)")
    return Feature(True)


def capability(roots: Roots, number: int, name: str) -> Feature:
    """Whether this process has an effective capability (root in a container often lacks them)."""
    match = _CAP_EFFECTIVE.search(read_text(roots.proc / "self/status") or "")
    if match is None:
        return Feature(False, f"{roots.proc / 'self/status'} shows no CapEff")
    return Feature.when(bool(int(match[1], 16) >> number & 1), f"{name} is not effective in this process")
