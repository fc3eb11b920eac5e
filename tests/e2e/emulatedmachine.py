"""sysfs, /dev and NVML of a machine with 2 sockets, 4 NUMA nodes, 8 GPUs and 4 RDMA NICs, for koordlet's flags.

Everything else is this machine's: cgroups, /proc and the rest of /sys. The kernel accepts only its own CPUs in a
cpuset, so CPU 0 is put on NUMA node 1 and CPU 1 on NUMA node 3, and the other CPUs, `RESERVED`, which may not exist,
have to be reserved on the Node. Distances, caches and the memory that a NUMA node really has cannot be shown this way.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from tests.nvidia import Gpu, Machine

NUMA_NODES = 4
CPUS_OF_NODE = {0: (2, 3, 4, 5), 1: (0, 6, 7, 8), 2: (9, 10, 11, 12), 3: (1, 13, 14, 15)}
REAL = {1: 0, 3: 1}
"""NUMA node -> its CPU that this machine has."""
RESERVED = "2-15"
ZONE_KIB = 8 << 20
UVERBS_MAJOR = 231
"""Documentation/admin-guide/devices.txt; the nodes are only looked at, so no driver is needed."""
UVERBS_MINOR = 192
LIBRARY = "what the container loads"


def gpu_address(minor: int) -> str:
    return f"0000:{minor // 2 + 1}0:0{minor % 2}.0"


def nic_address(number: int) -> str:
    return f"0000:{number + 1}0:02.0"


def function_address(number: int) -> str:
    """Of the NIC's virtual function."""
    return f"0000:{number + 1}0:02.1"


class EmulatedMachine:
    """The trees below `base`; `library` is a file in the place of HAMi-core."""

    def __init__(self, base: Path) -> None:
        self.sys, self.dev = base / "sys", base / "dev"
        self.library = base / "vgpu/libvgpu.so"
        gpus = [Gpu(gpu_address(minor), f"GPU-{minor}", minor, numa_node=minor // 2) for minor in range(8)]
        self.nvidia = Machine(base, gpus)
        self._base = base

    def build(self) -> None:
        self._link(Path("/sys"), self.sys, {"bus", "class", "devices"})
        self._link(Path("/sys/class"), self.sys / "class", {"infiniband"})
        self._link(Path("/sys/devices"), self.sys / "devices", {"system"})
        self._link(Path("/sys/devices/system"), self.sys / "devices/system", {"cpu", "node"})
        self._link(Path("/dev"), self.dev, {"infiniband"})
        for node, cpus in CPUS_OF_NODE.items():
            self._zone(node, cpus)
        (self.sys / "devices/system/cpu/online").write_text("0-15\n")
        (self.sys / "devices/system/cpu/possible").write_text("0-15\n")
        self.nvidia.tell()
        (self.dev / "infiniband").mkdir()
        self._node("rdma_cm", UVERBS_MINOR - 1)
        for number in range(NUMA_NODES):
            self._nic(number)
        self.library.parent.mkdir()
        self.library.write_text(LIBRARY)

    @property
    def flags(self) -> list[str]:
        """koordlet's."""
        return [
            f"--sys-root-dir={self.sys}",
            f"--dev-root-dir={self.dev}",
            f"--hami-core-library-directory-path={self.library}",
        ]

    @staticmethod
    def _link(real: Path, target: Path, without: Collection[str]) -> None:
        target.mkdir()
        for entry in real.iterdir():
            if entry.name not in without:
                (target / entry.name).symlink_to(entry)

    def _zone(self, node: int, cpus: Collection[int]) -> None:
        zone = self.sys / f"devices/system/node/node{node}"
        zone.mkdir(parents=True)
        (zone / "cpulist").write_text(f"{','.join(map(str, cpus))}\n")
        lines = [f"Node {node} MemTotal: {ZONE_KIB} kB", f"Node {node} MemFree: {ZONE_KIB // 2} kB"]
        (zone / "meminfo").write_text("\n".join([*lines, ""]))
        for core, cpu in enumerate(cpus):
            topology = self.sys / f"devices/system/cpu/cpu{cpu}/topology"
            topology.mkdir(parents=True)
            (topology / "core_id").write_text(f"{node * len(cpus) + core}\n")
            (topology / "physical_package_id").write_text(f"{node // 2}\n")

    def _nic(self, number: int) -> None:
        """A NIC beside the GPUs of its NUMA node, with one virtual function."""
        address, virtual = nic_address(number), function_address(number)
        for where, verbs in ((address, number), (virtual, NUMA_NODES + number)):
            function = self._base / f"pci/pci{address[:7]}/{where}"
            (function / f"infiniband_verbs/uverbs{verbs}").mkdir(parents=True)
            (function / "class").write_text("0x020000\n")
            (function / "numa_node").write_text(f"{number}\n")
            (self.sys / "bus/pci/devices" / where).symlink_to(function)
            self._node(f"uverbs{verbs}", UVERBS_MINOR + verbs)
        function = self._base / f"pci/pci{address[:7]}/{address}"
        (function / "sriov_numvfs").write_text("1\n")
        (function / "virtfn0").symlink_to(f"../{virtual}")
        (function.parent / virtual / "physfn").symlink_to(f"../{address}")
        device = function / f"infiniband/mlx5_{number}"
        (device / "ports/1").mkdir(parents=True)
        (device / "ports/1/state").write_text("4: ACTIVE\n")
        (device / "device").symlink_to(function)
        (self.sys / "class/infiniband").mkdir(exist_ok=True)
        (self.sys / "class/infiniband" / device.name).symlink_to(device)

    def _node(self, name: str, minor: int) -> None:
        os.mknod(self.dev / "infiniband" / name, stat.S_IFCHR | 0o666, os.makedev(UVERBS_MAJOR, minor))
