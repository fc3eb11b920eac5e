"""Runs a program confined as by a systemd unit, on a machine without a running systemd.

Applied from the unit's text: system calls (groups expanded by systemd itself), address families, capabilities,
read-only file systems, /proc, writable and executable memory. Not applied: what needs a container or a cgroup (memory,
tasks, devices, IP addresses, /tmp). `python confine.py SETTINGS PROGRAM…` is the last step, in the process itself.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EQUAL, MASKED = 4, 7
SCRIPT = """
set -e
mount --make-rprivate /
for folder in $WRITABLE; do mount --bind "$folder" "$folder"; done
awk '{ print $5 }' /proc/self/mountinfo | sort -u | while read -r point; do
  case " $WRITABLE " in *" $point "*) continue ;; esac
  case $point in /proc | /proc/* | /sys | /sys/* | /dev | /dev/*) continue ;; esac
  mount -o remount,bind,ro "$point" 2>/dev/null || [ ! -d "$point" ] || mount -o remount,bind,ro "$point"
done
mount -t proc -o hidepid=invisible,subset=pid proc /proc
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all --ambient-caps=-all "$@"
"""


def settings(unit: str, name: str) -> list[str]:
    """Every value of a setting."""
    return [line.partition("=")[2] for line in unit.splitlines() if line.startswith(f"{name}=")]


def system_calls(words: Sequence[str]) -> set[str]:
    """System calls that `SystemCallFilter=` lines leave: names and groups, removed by those that begin with ~."""
    listed = subprocess.run(["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True).stdout
    groups: dict[str, list[str]] = {}
    for line in listed.splitlines():
        if line.startswith("@"):
            members = groups[line.strip()] = []
        elif line.startswith("    ") and not line.strip().startswith("#"):
            members.append(line.strip())

    def expanded(name: str) -> set[str]:
        return set().union(*(expanded(group) for group in groups[name])) if name.startswith("@") else {name}

    calls: set[str] = set()
    for value in words:
        names = set().union(*(expanded(word) for word in value.lstrip("~").split()))
        calls = calls - names if value.startswith("~") else calls | names
    return calls


def command(unit: str, writable: Sequence[Path], program: Sequence[str]) -> list[str]:
    """The command to execute; the pid stays."""
    assert settings(unit, "NoNewPrivileges") == ["yes"]
    assert settings(unit, "CapabilityBoundingSet") == [""]
    assert settings(unit, "ProtectSystem") == ["strict"]
    assert settings(unit, "MemoryDenyWriteExecute") == ["yes"]
    assert settings(unit, "SystemCallErrorNumber") == ["EPERM"]
    permissions = {
        "calls": sorted(system_calls(settings(unit, "SystemCallFilter"))),
        "families": settings(unit, "RestrictAddressFamilies")[0].split(),
    }
    last = [sys.executable, __file__, json.dumps(permissions), *program]
    folders = " ".join(str(path) for path in writable)
    return ["env", f"WRITABLE={folders}", "unshare", "--mount", "sh", "-c", SCRIPT, "sh", *last]


class _Compare(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


class _Filter:
    """One seccomp filter; systemd loads several."""

    def __init__(self, otherwise: int) -> None:
        self._lib = ctypes.CDLL("libseccomp.so.2")
        self._lib.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._lib.seccomp_init(otherwise))

    def add(self, action: int, call: str, *conditions: _Compare) -> None:
        number = self._lib.seccomp_syscall_resolve_name(call.encode())
        if number < 0:  # not on this architecture
            return
        array = (_Compare * len(conditions))(*conditions)
        self._check(self._lib.seccomp_rule_add_array(self._context, action, number, len(conditions), array), call)

    def load(self) -> None:
        self._check(self._lib.seccomp_load(self._context), "load")

    @staticmethod
    def _check(result: int, what: str) -> None:
        if result != 0:
            raise OSError(-result, f"seccomp: {what}: {os.strerror(-result)}")


def confine(permissions: dict[str, Any]) -> None:
    """Confine this process permanently."""
    families = _Filter(ALLOW)
    allowed = {int(getattr(socket, name)) for name in permissions["families"]}
    for family in set(range(1, 64)) - allowed:
        families.add(ERRNO | errno.EAFNOSUPPORT, "socket", _Compare(0, EQUAL, family, 0))
    memory = _Filter(ALLOW)
    both = mmap.PROT_WRITE | mmap.PROT_EXEC
    memory.add(ERRNO | errno.EPERM, "mmap", _Compare(2, MASKED, both, both))
    for call in ("mprotect", "pkey_mprotect"):
        memory.add(ERRNO | errno.EPERM, call, _Compare(2, MASKED, mmap.PROT_EXEC, mmap.PROT_EXEC))
    calls = _Filter(ERRNO | errno.EPERM)
    for call in permissions["calls"]:
        calls.add(ALLOW, call)
    for restriction in (families, memory, calls):
        restriction.load()


if __name__ == "__main__":
    confine(json.loads(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
