"""What the kernel offers: BTF, PSI, capabilities of the process.

Every probe returns a `Feature`, which carries the reason when something is missing; none raises.
`koordlet.system.host` calls them once.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from koordlet.system import capabilities
from koordlet.system.roots import Roots

_CAP_EFFECTIVE = re.compile(r"^CapEff:\s*([0-9a-fA-F]+)$", re.MULTILINE)
_CAP_SYS_ADMIN, _CAP_PERFMON, _CAP_BPF = 21, 38, 39
"""The last two since Linux 5.8."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Whether the host has something; `reason` is empty when it does."""

    present: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.present

    @classmethod
    def when(cls, present: bool, reason: str) -> Feature:
        return cls(True) if present else cls(False, reason)


def read_text(path: Path) -> str | None:
    """The file's text, or None when it cannot be read for any reason."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


def boot_id(roots: Roots) -> str:
    """The id of the current boot. Raises OSError if procfs has none."""
    return (roots.proc_sys / "kernel/random/boot_id").read_text().strip()


def btf(roots: Roots) -> Feature:
    path = roots.sys / "kernel/btf/vmlinux"
    return Feature.when(path.exists(), f"{path} does not exist (kernel built without CONFIG_DEBUG_INFO_BTF)")


def psi(roots: Roots) -> Feature:
    """Whether pressure files exist and can be read: with `psi=0` they exist, but reading fails with EOPNOTSUPP."""
    path = roots.proc / "pressure/cpu"
    try:
        path.read_bytes()
    except OSError as error:
        return Feature(False, f"{path}: {error.strerror} (CONFIG_PSI off, or psi=1 missing on the command line)")
    return Feature(True)


def capability_features(roots: Roots) -> dict[str, Feature]:
    """`cap_sys_admin` etc.: whether this process has them effectively (root in a container often lacks some)."""
    effective = _effective(roots)
    names = capabilities.missing(0)
    if effective is None:
        reason = f"{roots.proc / 'self/status'} shows no CapEff"
        return {f"cap_{name.lower()}": Feature(False, reason) for name in names}
    reasons = capabilities.missing(effective)
    return {f"cap_{name.lower()}": Feature.when(name not in reasons, reasons.get(name, "")) for name in names}


def sysctls(roots: Roots) -> Feature:
    """Whether sysctls can be written: /proc/sys is read-only in a container that is not privileged."""
    path = roots.proc_sys / "vm/min_free_kbytes"
    return Feature.when(
        os.access(path, os.W_OK),
        f"{path} cannot be written: NodeSLO's settings of the node's memory have no effect. In a container, mount the "
        "node's /proc/sys and name it with --proc-sys-root-dir",
    )


def bpf_capabilities(roots: Roots) -> Feature:
    """Whether this process may load tracing programs: with CAP_BPF and CAP_PERFMON, on older kernels and in general
    with CAP_SYS_ADMIN."""
    effective = _effective(roots) or 0
    allowed = effective >> _CAP_SYS_ADMIN & 1 or (effective >> _CAP_BPF & 1 and effective >> _CAP_PERFMON & 1)
    return Feature.when(
        bool(allowed), "neither CAP_BPF and CAP_PERFMON nor CAP_SYS_ADMIN are effective in this process"
    )


def _effective(roots: Roots) -> int | None:
    """The effective capabilities as a mask, None if they cannot be read."""
    match = _CAP_EFFECTIVE.search(read_text(roots.proc / "self/status") or "")
    return None if match is None else int(match[1], 16)
