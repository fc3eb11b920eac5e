"""How large the tables of sched_latency are (``bpf/sched_latency.h``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from koordlet.probes import layouts
from koordlet.probes.culprits.rows import set_rows, share
from koordlet.probes.culprits.slots import SPECIALS

MAX_CGROUPS = 16384
"""A slot must fit into 16 bits of a matrix key."""
PAIRS = 131072
"""Entries of the culprit matrix that all CPUs share: 3 MiB hold the pairs of 310 cgroups that all wait for each other
while three quarters are in use."""
OWN_ENTRIES = 65536
"""Entries that the CPUs have for themselves, together, within `MIN_MATRIX` and `MAX_MATRIX` of each."""
MIN_MATRIX, MAX_MATRIX = 4096, 16384
MAX_OWN_ENTRIES = 262144
"""However many CPUs there are: from 65 on, each has fewer than `MIN_MATRIX`."""
MAX_ROWS = 32
"""Rows of counters. From 33 CPUs on, CPUs share them; below, counting needs no atomic operation."""
MAX_OWN_COUNTERS = 131072
"""Slots of all rows together where CPUs cannot share rows: 64 MiB."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """All but `cpus` and `rows` are powers of two. The tables take
    ``8*cgroups + rows*512*(cgroups+16) + cpus*(24*matrix + 2120) + 24*shared + 64*stamps`` bytes of kernel memory."""

    cpus: int
    cgroups: int = 2048
    """All that run at times: 250 pods of four containers and the node's services are 1,100."""
    matrix: int = 0
    """Pairs per CPU, charged without atomic operations; 0 = an equal share of `OWN_ENTRIES`, within its limits."""
    shared: int = PAIRS
    """Pairs that found no entry in their CPU's part; 0: they are lost. Their number depends on the cgroups, not on the
    CPUs."""
    stamps: int = 32768
    rows: int = 0
    """0 = one for each CPU, at most `MAX_ROWS`."""

    def __post_init__(self) -> None:
        if self.cpus < 1:
            raise ValueError(f"cpus: {self.cpus}")
        if self.matrix == 0:
            own = min(MAX_MATRIX, max(MIN_MATRIX, share(OWN_ENTRIES, self.cpus)))
            object.__setattr__(self, "matrix", min(own, share(MAX_OWN_ENTRIES, self.cpus)))
        if self.rows == 0:
            object.__setattr__(self, "rows", min(self.cpus, MAX_ROWS))
        for name in ("cgroups", "matrix", "shared", "stamps"):
            value = getattr(self, name)
            if value & (value - 1) or (value < 2 and (name, value) != ("shared", 0)):
                raise ValueError(f"{name}: {value} is not a power of two")
        if self.cgroups > MAX_CGROUPS:
            raise ValueError(f"cgroups: {self.cgroups} is more than {MAX_CGROUPS}")

    @property
    def slots(self) -> int:
        """Slots of cgroups and special slots."""
        return self.cgroups + SPECIALS

    def without_shared(self) -> Sizes:
        """The same for a program in which CPUs share nothing: the shared entries are divided among the CPUs, and
        from 65 CPUs on there are fewer slots."""
        own = share(self.cpus * self.matrix + self.shared, self.cpus)
        cgroups = min(self.cgroups, share(MAX_OWN_COUNTERS, self.cpus))
        return replace(self, cgroups=cgroups, matrix=own, shared=0, rows=self.cpus)

    def entries(self) -> dict[str, int]:
        """Map name -> entries."""
        return {
            "tags": self.cgroups,
            "stats": self.rows * self.slots,
            "matrix": self.cpus * self.matrix + self.shared,
            "cpus": self.cpus,
            "stamps": self.stamps,
        }

    def settings(self, cgroup_v2: bool) -> bytes:
        """``struct sched_latency_config``"""
        config = np.zeros((), layouts.SCHED_LATENCY_CONFIG)
        config["slots"] = cgroup_v2, self.cgroups - 1
        set_rows(config, self.rows, self.cpus)
        config["matrix_mask"] = self.matrix - 1
        config["stamp_mask"] = self.stamps - 1
        config["cpus"] = self.cpus
        config["shared"] = self.shared
        return config.tobytes()
