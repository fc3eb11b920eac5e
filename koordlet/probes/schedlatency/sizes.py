"""How large the tables of sched_latency are (``bpf/sched_latency.h``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from koordlet.probes import layouts
from koordlet.probes.culprits.slots import SPECIALS

MAX_CGROUPS = 16384
"""A slot must fit into 16 bits of a matrix key."""
PAIRS = 131072
"""Entries of the culprit matrix that all CPUs share: 3 MiB hold the pairs of 310 cgroups that all wait for each other
while three quarters are in use."""
OWN_ENTRIES = 65536
"""Entries that the CPUs have for themselves, together."""
MIN_MATRIX, MAX_MATRIX = 4096, 16384


@dataclass(frozen=True, slots=True)
class Sizes:
    """All but `cpus` are powers of two. The tables take
    ``8*cgroups + cpus*(512*(cgroups+16) + 24*matrix + 2112) + 24*shared + 64*stamps`` bytes of kernel memory."""

    cpus: int
    cgroups: int = 1024
    matrix: int = 0
    """Pairs per CPU, charged without atomic operations; 0 = an equal share of `OWN_ENTRIES`, within `MIN_MATRIX` and
    `MAX_MATRIX`."""
    shared: int = PAIRS
    """Pairs that found no entry in their CPU's part; 0: they are lost. Their number depends on the cgroups, not on the
    CPUs."""
    stamps: int = 32768

    def __post_init__(self) -> None:
        if self.matrix == 0:
            share = 1 << (OWN_ENTRIES // max(1, self.cpus)).bit_length() - 1
            object.__setattr__(self, "matrix", min(MAX_MATRIX, max(MIN_MATRIX, share)))
        for name in ("cgroups", "matrix", "shared", "stamps"):
            value = getattr(self, name)
            if value & (value - 1) or (value < 2 and (name, value) != ("shared", 0)):
                raise ValueError(f"{name}: {value} is not a power of two")
        if self.cgroups > MAX_CGROUPS:
            raise ValueError(f"cgroups: {self.cgroups} is more than {MAX_CGROUPS}")
        if self.cpus < 1:
            raise ValueError(f"cpus: {self.cpus}")

    @property
    def slots(self) -> int:
        """Slots of cgroups and special slots."""
        return self.cgroups + SPECIALS

    def without_shared(self) -> Sizes:
        """The same for a program without a shared part: its entries are divided among the CPUs."""
        share = 1 << (self.matrix + self.shared // self.cpus).bit_length() - 1
        return replace(self, matrix=share, shared=0)

    def entries(self) -> dict[str, int]:
        """Map name -> entries."""
        return {
            "tags": self.cgroups,
            "stats": self.cpus * self.slots,
            "matrix": self.cpus * self.matrix + self.shared,
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
        config["shared"] = self.shared
        return config.tobytes()
