"""How large the tables of sched_latency are (``bpf/sched_latency.h``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from koordlet.probes import layouts
from koordlet.probes.culprits.slots import SPECIALS

MAX_CGROUPS = 16384
"""A slot must fit into 16 bits of a matrix key."""
MATRIX_ENTRIES_SHARED = 131072
"""24-byte entries in 3 MiB, shared by the CPUs."""
MIN_MATRIX, MAX_MATRIX = 8192, 65536


@dataclass(frozen=True, slots=True)
class Sizes:
    """All but `cpus` are powers of two. The tables take
    ``8*cgroups + cpus*(512*(cgroups+16) + 24*matrix + 576) + 64*stamps`` bytes of kernel memory."""

    cpus: int
    cgroups: int = 1024
    matrix: int = 0
    """Pairs per CPU; 0 = an equal share of 3 MiB, at least 8192 and at most 65536 (two CPUs and 220 containers that all
    wait for each other need 50,000)."""
    stamps: int = 32768

    def __post_init__(self) -> None:
        if self.matrix == 0:
            share = 1 << (MATRIX_ENTRIES_SHARED // max(1, self.cpus)).bit_length() - 1
            object.__setattr__(self, "matrix", min(MAX_MATRIX, max(MIN_MATRIX, share)))
        for name in ("cgroups", "matrix", "stamps"):
            value = getattr(self, name)
            if value < 2 or value & (value - 1):
                raise ValueError(f"{name}: {value} is not a power of two")
        if self.cgroups > MAX_CGROUPS:
            raise ValueError(f"cgroups: {self.cgroups} is more than {MAX_CGROUPS}")
        if self.cpus < 1:
            raise ValueError(f"cpus: {self.cpus}")

    @property
    def slots(self) -> int:
        """Slots of cgroups and special slots."""
        return self.cgroups + SPECIALS

    def entries(self) -> dict[str, int]:
        """Map name -> entries."""
        return {
            "tags": self.cgroups,
            "stats": self.cpus * self.slots,
            "matrix": self.cpus * self.matrix,
            "cpus": self.cpus,
            "stamps": self.stamps,
        }

    def settings(self, cgroup_v2: bool) -> bytes:
        """``struct sched_latency_config``"""
        config = np.zeros((), layouts.SCHED_LATENCY_CONFIG)
        config["slots"] = cgroup_v2, self.cgroups - 1
        config["matrix_mask"] = self.matrix - 1
        config["stamp_mask"] = self.stamps - 1
        config["cpus"] = self.cpus
        return config.tobytes()
