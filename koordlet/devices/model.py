"""What is told of accelerators, whoever asked them."""

from __future__ import annotations

from dataclasses import dataclass

from koordlet.system.devices.pci import PciPlace


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU; its series carry the labels (str(minor), uuid)."""

    minor: int
    uuid: str
    memory_total: int
    """bytes"""
    model: str = ""
    """as NVML tells it: NVIDIA H100 80GB HBM3"""
    place: PciPlace | None = None


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """Why a device is unhealthy, as its condition says it."""

    code: str
    """a legal reason of a condition"""
    message: str
