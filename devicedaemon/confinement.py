"""What the daemon's process gives up before it runs vendors' programs (capabilities(7), mount_setattr(2)).

Its container is privileged, because only privileged containers may open devices of any number. Nothing else of that is
needed: the capabilities are reduced to those of `--keep-capabilities`, programs gain none by files, and in a mount
namespace of the process the host's file system is made read-only with all mounts in it. Its /tmp is a file system of
the process, so that a user of the node cannot put links there.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from koordlet.app.logging import get_logger

log = get_logger(__name__)

NAMES: Final = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip
"""By the kernel's number (linux/capability.h)."""
KEPT: Final = ("SYS_CHROOT", "DAC_OVERRIDE")
"""To run programs below the host's root, and to open devices that belong to a vendor's user."""
_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_READ, _PR_CAPBSET_DROP = 38, 23, 24
_SYS_MOUNT_SETATTR: Final = 442
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY, _CLONE_NEWNS = -100, 0x8000, 0x1, 0x20000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 0x2, 0x4, 0x4000, 0x80000
_TMP_OPTIONS: Final = b"size=16m,mode=1777"
_CAPABILITY_VERSION_3: Final = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


def numbers(names: Iterable[str]) -> frozenset[int]:
    """Raises ValueError for a name that the kernel does not have."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ValueError(f"unknown capabilities: {', '.join(unknown)}")
    return frozenset(map(NAMES.index, names))


def confine(keep: frozenset[int], host: Path) -> None:
    """Make `host` read-only and drop all other capabilities, for this process and its children, permanently."""
    mask = _permitted()
    if host != Path("/") and mask >> NAMES.index("SYS_ADMIN") & 1:
        _make_read_only(host)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if mask >> NAMES.index("SETPCAP") & 1:
        for number in range(64):
            if number not in keep and _libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1:
                _check(_libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))
    kept = mask & sum(1 << number for number in keep)
    data = struct.pack("=6I", kept & 0xFFFFFFFF, kept & 0xFFFFFFFF, 0, kept >> 32, kept >> 32, 0)
    _check(_libc.capset(_header(), data))


def _permitted() -> int:
    data = ctypes.create_string_buffer(24)
    _check(_libc.capget(_header(), data))
    _, low, _, _, high, _ = struct.unpack("=6I", data.raw)
    return int(high << 32 | low)


def _header() -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))


def _make_read_only(host: Path) -> None:
    """`host` must be a mount, as in a container. Linux before 5.12 cannot do this for all mounts at once; there only
    the mount of `host` is read-only, if the container has it so."""
    attributes = struct.pack("=4Q", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    arguments = (_AT_FDCWD, os.fsencode(host), _AT_RECURSIVE, attributes, len(attributes))
    try:
        _check(_libc.unshare(_CLONE_NEWNS))
        _check(_libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None))
        _check(_libc.syscall(_SYS_MOUNT_SETATTR, *arguments))
        flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
        _check(_libc.mount(b"tmpfs", os.fsencode(host / "tmp"), b"tmpfs", flags, _TMP_OPTIONS))
    except OSError as error:
        log.warning("The mounts of the host stay writable for vendors' tools", host=str(host), error=str(error))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
