"""Facts about this machine, read once at start: CPUs, memory, huge pages, disk, kernel and OS names."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

_ARCH = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "ppc64le": "ppc64le", "s390x": "s390x"}


class MachineError(RuntimeError):
    """A fact without which the node cannot be registered could not be read."""


@dataclass(frozen=True, slots=True)
class MachineCapacity:
    """Amounts are in bytes; `hugepages` maps the page size to the bytes reserved for pages of that size."""

    cpus: int
    memory: int
    disk: int
    hugepages: dict[int, int]
    hostname: str
    kernel: str
    os_image: str
    arch: str
    machine_id: str
    system_uuid: str
    boot_id: str


def read_machine(
    root_dir: Path, proc: Path = Path("/proc"), sys: Path = Path("/sys"), etc: Path = Path("/etc")
) -> MachineCapacity:
    """The size of the file system of `root_dir` is the node's ephemeral storage."""
    return MachineCapacity(
        cpus=_cpus(sys),
        memory=_memory(proc),
        disk=shutil.disk_usage(root_dir).total,
        hugepages=_hugepages(sys),
        hostname=socket.gethostname().lower(),
        kernel=platform.release(),
        os_image=_os_image(etc),
        arch=_ARCH.get(platform.machine(), platform.machine()),
        machine_id=_line(etc / "machine-id"),
        system_uuid=_line(sys / "class/dmi/id/product_uuid").lower(),
        boot_id=_line(proc / "sys/kernel/random/boot_id"),
    )


def _line(path: Path) -> str:
    """The text of a file that may be missing (then ""): only for informational names."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _cpus(sys: Path) -> int:
    """Number of online CPUs of the machine, regardless of this process's affinity."""
    text = _line(sys / "devices/system/cpu/online")
    if not text:
        return os.cpu_count() or 1
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _memory(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) * 1024
    raise MachineError(f"{proc / 'meminfo'}: no MemTotal")


def _hugepages(sys: Path) -> dict[int, int]:
    out: dict[int, int] = {}
    for folder in sorted((sys / "kernel/mm/hugepages").glob("hugepages-*kB")):
        size = int(folder.name.removeprefix("hugepages-").removesuffix("kB")) * 1024
        out[size] = int(_line(folder / "nr_hugepages") or 0) * size
    return out


def _os_image(etc: Path) -> str:
    for line in _line(etc / "os-release").splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip('"')
    return "Linux"
