"""RDMA NICs in a sysfs tree of the test, with the links of the kernel."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.koordlet.roots import roots_under

ROOT_COMPLEX = "pci0000:1e"


class RdmaTree:
    """Creates and changes NICs below `base`/sys."""

    def __init__(self, base: Path) -> None:
        self.roots = roots_under(base)
        (self.roots.sys / "class/infiniband").mkdir(parents=True)
        (self.roots.sys / "bus/pci/devices").mkdir(parents=True)

    def function(self, address: str) -> Path:
        return self.roots.sys / "devices" / ROOT_COMPLEX / address

    def nic(
        self,
        address: str,
        name: str,
        *,
        kind: str = "0x020000",
        node: int = 0,
        ports: Sequence[str] | None = ("4: ACTIVE\n",),
        physfn: str = "",
        verbs: str = "",
    ) -> None:
        """A PCI function with one RDMA device; `ports` are the states of its ports; None: no ports directory."""
        function = self.function(address)
        function.mkdir(parents=True)
        (function / "class").write_text(f"{kind}\n")
        (function / "numa_node").write_text(f"{node}\n")
        if physfn:
            (function / "physfn").symlink_to(f"../{physfn}")
        if verbs:
            (function / "infiniband_verbs" / verbs).mkdir(parents=True)
        (self.roots.sys / "bus/pci/devices" / address).symlink_to(f"../../../devices/{ROOT_COMPLEX}/{address}")
        self.device(address, name, ports)

    def device(self, address: str, name: str, ports: Sequence[str] | None = ("4: ACTIVE\n",)) -> None:
        """Add another RDMA device to a function."""
        real = self.function(address) / "infiniband" / name
        real.mkdir(parents=True)
        (real / "device").symlink_to(f"../../../{address}")
        for number, state in enumerate(ports or ()):
            (real / "ports" / str(number + 1)).mkdir(parents=True)
            (real / "ports" / str(number + 1) / "state").write_text(state)
        if ports is not None:
            (real / "ports").mkdir(exist_ok=True)
        (self.roots.sys / "class/infiniband" / name).symlink_to(
            f"../../devices/{ROOT_COMPLEX}/{address}/infiniband/{name}"
        )

    def port(self, address: str, name: str, state: str) -> None:
        (self.function(address) / "infiniband" / name / "ports/1/state").write_text(state)

    def vfs(self, address: str, addresses: Sequence[str]) -> None:
        """Replace the virtual functions."""
        function = self.function(address)
        for link in function.glob("virtfn*"):
            link.unlink()
        for number, target in enumerate(addresses):
            (function / f"virtfn{number}").symlink_to(f"../{target}")
        (function / "sriov_numvfs").write_text(f"{len(addresses)}\n")

    def remove(self, address: str, name: str) -> None:
        (self.roots.sys / "class/infiniband" / name).unlink()
        (self.roots.sys / "bus/pci/devices" / address).unlink()
        shutil.rmtree(self.function(address))
