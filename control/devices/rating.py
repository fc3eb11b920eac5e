"""Scores of devices: how full they are with the pod (spec 06 §3.8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from control.devices.room import TypeRoom

MAX: Final = 100


@dataclass(frozen=True)
class DeviceStrategy:
    """`most`: full devices are better (MostAllocated), else empty ones; `weights`: by resource."""

    most: bool
    weights: Mapping[str, int]

    def rate(self, request: Mapping[str, int], total: Mapping[str, int], free: Mapping[str, int]) -> int:
        """0..100. Resources that the device lacks do not count."""
        score = weights = 0
        for name, weight in self.weights.items():
            capacity = total.get(name, 0)
            if capacity <= 0:
                continue
            used = min(capacity, max(0, capacity - free.get(name, 0)) + request.get(name, 0))
            score += (used if self.most else capacity - used) * MAX // capacity * weight
            weights += weight
        return score // weights if weights else 0

    def of_device(self, room: TypeRoom, minor: int, request: Mapping[str, int]) -> int:
        return self.rate(request, room.units[minor].total, room.free[minor])
