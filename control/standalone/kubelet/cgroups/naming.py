"""Names of the kubelet's cgroup directories, for both cgroup drivers (spec 03 §1.2).

Pure. Paths are relative to a hierarchy's root, without leading or trailing slash. `prefix` is the
stand-in's `--cgroup-root`: a plain parent directory of the whole layout, so that several kubelets (in tests)
can run on one machine. Unlike the real kubelet's, it does not become part of systemd slice names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class QosClass(StrEnum):
    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BESTEFFORT = "BestEffort"


class Driver(StrEnum):
    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


@dataclass(frozen=True, slots=True)
class CgroupNames:
    """The layout of one kubelet: `CgroupNames(Driver.SYSTEMD).pod(qos, uid)` and so on."""

    driver: Driver
    prefix: str = ""

    def _join(self, *parts: str) -> str:
        return "/".join(p for p in (self.prefix.strip("/"), *parts) if p)

    def root(self) -> str:
        return self._join("kubepods.slice" if self.driver is Driver.SYSTEMD else "kubepods")

    def qos(self, qos: QosClass) -> str:
        """Parent directory of the pods of one QoS class; Guaranteed pods are directly below the root."""
        if qos is QosClass.GUARANTEED:
            return self.root()
        lower = qos.value.lower()
        return f"{self.root()}/" + (f"kubepods-{lower}.slice" if self.driver is Driver.SYSTEMD else lower)

    def pod(self, qos: QosClass, uid: str) -> str:
        if self.driver is Driver.CGROUPFS:
            return f"{self.qos(qos)}/pod{uid}"
        middle = "" if qos is QosClass.GUARANTEED else f"-{qos.value.lower()}"
        # A dash in a slice name means nesting in systemd, so the UID's dashes become underscores.
        return f"{self.qos(qos)}/kubepods{middle}-pod{uid.replace('-', '_')}.slice"

    def container(self, qos: QosClass, uid: str, container_id: str) -> str:
        """`container_id` has 64 hex digits, without `containerd://`."""
        leaf = f"cri-containerd-{container_id}.scope" if self.driver is Driver.SYSTEMD else container_id
        return f"{self.pod(qos, uid)}/{leaf}"
