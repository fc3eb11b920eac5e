"""How many rows of counters, and how many pairs per CPU, a probe's tables have: see ``bpf/rows.h``. Pure.

The memory of the tables is bounded whatever the number of CPUs. It counts possible CPUs, of which virtual machines
often have far more than they use.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def set_rows(config: np.ndarray[Any, Any], rows: int, cpus: int) -> None:
    """Fill in ``struct row_config``."""
    config["rows"] = rows, rows < cpus


def share(total: int, cpus: int) -> int:
    """The largest power of two that `cpus` CPUs can have each of `total` entries; at least 1."""
    return 1 << max(total // cpus, 1).bit_length() - 1
