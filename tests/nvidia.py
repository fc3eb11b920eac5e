"""A machine with NVIDIA GPUs for tests: a library with NVML's C ABI (nvidia.c), what it tells, and sysfs beside it.

The real pynvml runs against the library: a process finds it by LD_LIBRARY_PATH, a test's own process by its name once
`load` has loaded it. The machine is described in a file that every call reads again.
"""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("nvidia.c")
NAME = "libnvidia-ml.so.1"
STATE, CALLS = "KOORD_NVML_STATE", "KOORD_NVML_CALLS"
GIB = 1 << 30
XID = 8


def build(directory: Path) -> Path:
    """Compile the library; returns its path."""
    target = directory / NAME
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{NAME}"]
    subprocess.run(["gcc", *flags, "-o", target, SOURCE, "-lpthread"], check=True)
    return target


def load(library: Path) -> None:
    """Into this process, where pynvml finds it by its name from then on."""
    ctypes.CDLL(str(library))


@dataclass
class Gpu:
    """What NVML tells of one; bytes. `bound`: whether the driver holds its PCI function, as far as sysfs says."""

    address: str
    uuid: str
    minor: int
    total: int = 80 * GIB
    reserved: int = 480 << 20
    used: int = 0
    name: str = "NVIDIA H100 80GB HBM3"
    numa_node: int = 0
    bound: bool = True


@dataclass
class Machine:
    """Below `base`: sys/bus/pci/, the state file and a list of calls. `tell` after every change."""

    base: Path
    gpus: list[Gpu] = field(default_factory=list)
    driver: str = "535.129.03"
    processes: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    """Address, list (C or G), pid, bytes, GPU instance."""
    samples: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Address, pid, microseconds, percent."""
    errors: dict[tuple[str, str], int] = field(default_factory=dict)
    """(call, address or "-") -> status."""
    hangs: set[str] = field(default_factory=set)
    events: list[tuple[str, int, int]] = field(default_factory=list)
    """Address or "?", type, data; each is told once."""

    @property
    def state(self) -> Path:
        return self.base / "nvml"

    @property
    def environment(self) -> dict[str, str]:
        return {STATE: str(self.state), CALLS: str(self.base / "calls")}

    def calls(self, name: str) -> int:
        """How often a call was made."""
        path = self.base / "calls"
        return path.read_text().split().count(name) if path.exists() else 0

    def tell(self) -> None:
        """Write it all; in one step, as calls may read meanwhile."""
        lines = [f"driver {self.driver}"]
        for gpu in self.gpus:
            amounts = f"{gpu.total} {gpu.reserved} {gpu.used}"
            lines.append(f"device {gpu.address} {gpu.uuid} {gpu.minor} {amounts} {gpu.name}")
            self._bind(gpu)
        lines += [f"process {' '.join(map(str, process))}" for process in self.processes]
        lines += [f"sample {' '.join(map(str, sample))}" for sample in self.samples]
        lines += [f"error {call} {status} {whose}" for (call, whose), status in self.errors.items()]
        lines += [f"hang {call}" for call in self.hangs]
        lines += [f"event {number} {' '.join(map(str, event))}" for number, event in enumerate(self.events, 1)]
        fresh = self.state.with_suffix(".new")
        fresh.write_text("\n".join([*lines, ""]))
        fresh.replace(self.state)

    def _bind(self, gpu: Gpu) -> None:
        link = self.base / "sys/bus/pci/drivers/nvidia" / gpu.address
        if not gpu.bound:
            link.unlink(missing_ok=True)
            return
        real = self.base / f"pci/pci{gpu.address[:7]}/{gpu.address}"
        real.mkdir(parents=True, exist_ok=True)
        (real / "numa_node").write_text(f"{gpu.numa_node}\n")
        for place in (link, self.base / "sys/bus/pci/devices" / gpu.address):
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.is_symlink():
                place.symlink_to(real)
