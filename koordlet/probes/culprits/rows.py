"""How many rows of counters, and how many pairs per CPU, a probe's tables have: see ``bpf/rows.h``. Pure.

The memory of the tables is bounded whatever the number of CPUs. It counts possible CPUs, of which virtual machines
often have far more than they use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

_S = TypeVar("_S", bound="CulpritSizes")

MAX_ROWS, MAX_PAIRS = 8, 131072
"""Rows of counters, and pairs of the culprit matrix of all CPUs together: on larger machines too, where CPUs share
rows, because an atomic addition costs little beside a packet or a request."""


@dataclass(frozen=True, slots=True)
class CulpritSizes:
    """How large the tables of a probe of packets or requests are; all but `cpus` and `rows` powers of two."""

    cpus: int
    matrix: int = 4096
    """Entries of the culprit matrix per CPU."""
    rows: int = 0
    """0 = one for each CPU, at most `MAX_ROWS`."""

    def __post_init__(self) -> None:
        if self.rows == 0:
            object.__setattr__(self, "rows", min(self.cpus, MAX_ROWS))

    @classmethod
    def of(cls: type[_S], cpus: int) -> _S:
        return cls(cpus, matrix=min(4096, share(MAX_PAIRS, cpus)))


def set_rows(config: np.ndarray[Any, Any], rows: int, cpus: int) -> None:
    """Fill in ``struct row_config``."""
    config["rows"] = rows, rows < cpus


def share(total: int, cpus: int) -> int:
    """The largest power of two that `cpus` CPUs can have each of `total` entries; at least 1."""
    return 1 << max(total // cpus, 1).bit_length() - 1
