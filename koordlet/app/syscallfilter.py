"""A seccomp filter that refuses system calls which koordlet never makes, permanently, for the process and its children.

A container runtime's default profile allows what the capabilities of a container can do: with SYS_ADMIN and SYS_PTRACE
that is entering other namespaces, and reading and changing the memory of other processes. koordlet needs both
capabilities for other reasons (`koordlet.system.capabilities`). The filter needs no file on the node, and holds in a
privileged container and without a container, too. A refused call fails with EPERM.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final, NamedTuple

from koordlet.app.logging import get_logger

log = get_logger(__name__)


class SyscallNumbers(NamedTuple):
    """Of one system call, None where the architecture does not have it."""

    x86_64: int | None
    aarch64: int | None


REFUSED: Final[dict[str, SyscallNumbers]] = {
    # other namespaces and roots
    "setns": SyscallNumbers(308, 268), "unshare": SyscallNumbers(272, 97), "chroot": SyscallNumbers(161, 51),
    "pivot_root": SyscallNumbers(155, 41),
    # mounts past the rules of AppArmor, which knows mount(2) only (Linux 6.1)
    "open_tree": SyscallNumbers(428, 428), "move_mount": SyscallNumbers(429, 429),
    "fsopen": SyscallNumbers(430, 430), "fsconfig": SyscallNumbers(431, 431), "fsmount": SyscallNumbers(432, 432),
    "fspick": SyscallNumbers(433, 433), "mount_setattr": SyscallNumbers(442, 442),
    # memory and descriptors of other processes
    "ptrace": SyscallNumbers(101, 117), "process_vm_readv": SyscallNumbers(310, 270),
    "process_vm_writev": SyscallNumbers(311, 271), "kcmp": SyscallNumbers(312, 272),
    "pidfd_getfd": SyscallNumbers(438, 438), "userfaultfd": SyscallNumbers(323, 282),
    # files past the mounts
    "open_by_handle_at": SyscallNumbers(304, 265), "fanotify_init": SyscallNumbers(300, 262),
    "quotactl": SyscallNumbers(179, 60), "acct": SyscallNumbers(163, 89),
    "swapon": SyscallNumbers(167, 224), "swapoff": SyscallNumbers(168, 225),
    # the kernel itself, its clock, names and keys
    "init_module": SyscallNumbers(175, 105), "finit_module": SyscallNumbers(313, 273),
    "delete_module": SyscallNumbers(176, 106), "kexec_load": SyscallNumbers(246, 104),
    "kexec_file_load": SyscallNumbers(320, 294), "reboot": SyscallNumbers(169, 142),
    "iopl": SyscallNumbers(172, None), "ioperm": SyscallNumbers(173, None),
    "settimeofday": SyscallNumbers(164, 170), "clock_settime": SyscallNumbers(227, 112),
    "sethostname": SyscallNumbers(170, 161), "setdomainname": SyscallNumbers(171, 162),
    "add_key": SyscallNumbers(248, 217), "request_key": SyscallNumbers(249, 218), "keyctl": SyscallNumbers(250, 219),
}  # fmt: skip
"""asm/unistd_64.h and asm-generic/unistd.h."""


class _Machine(NamedTuple):
    audit_arch: int
    seccomp: int
    """The number of seccomp(2)."""


_MACHINES: Final = {"x86_64": _Machine(0xC000003E, 317), "aarch64": _Machine(0xC00000B7, 277)}
_X32: Final = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCH_AT = 0, 4
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001
_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_PR_SET_NO_NEW_PRIVS: Final = 38


def program(machine: str) -> bytes:
    """The filter in classic BPF. Raises KeyError for an architecture without numbers."""
    numbers = [number for each in REFUSED.values() if (number := getattr(each, machine)) is not None]
    arch = _MACHINES[machine].audit_arch
    # A jump skips instructions; the last two are "allow" and "refuse".
    steps = [(_LOAD, 0, 0, _ARCH_AT), (_EQUAL, 0, len(numbers) + 3, arch), (_LOAD, 0, 0, _NUMBER_AT)]
    steps.append((_AT_LEAST, len(numbers) + 1, 0, _X32))
    steps += [(_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def refuse_unused() -> bool:
    """Install the filter for all threads. A kernel or an architecture without it is logged; whether it is installed."""
    machine = platform.machine()
    if machine not in _MACHINES:
        log.info("No system calls are refused on this architecture", machine=machine)
        return False
    code = program(machine)
    buffer = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        result = libc.syscall(_MACHINES[machine].seccomp, _SET_MODE_FILTER, _ALL_THREADS, head)
        if result == 0:
            return True
    log.warning("System calls that are not used cannot be refused", error=os.strerror(ctypes.get_errno()))
    return False
