"""Descriptions of accelerators, independent of their source."""

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
    """as reported by NVML: NVIDIA H100 80GB HBM3"""
    place: PciPlace | None = None


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """Why a device is unhealthy, for its condition."""

    code: str
    """a valid reason of a condition"""
    message: str
