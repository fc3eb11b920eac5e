"""Amounts of CPU and memory as integers in columns, exact where clients can observe a difference. Pure.

An amount is a pair (cpu, memory): nano-cores and milli-bytes, both int64. Nano-cores represent every CPU quantity that
Kubernetes can express; memory is rounded up to milli-bytes, as `MilliValue()` does. One "unit" is a milli-core or a
byte: ratios multiply units, and the Node shows units. Amounts are clamped to +-2**60 (a billion cores, a petabyte), so
that no sum in a formula overflows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from koordlet.api.encoding.quantity import BINARY_SI, Quantity

Amounts: TypeAlias = tuple[int, int]
"""(nano-cores, milli-bytes)"""
Ints: TypeAlias = npt.NDArray[np.int64]
"""Shape (rows, 2): cpu, memory."""
Floats: TypeAlias = npt.NDArray[np.float64]

ZERO: Final[Amounts] = (0, 0)
UNIT: Final[Ints] = np.array([10**6, 10**3], dtype=np.int64)
"""One unit as an amount: one milli-core, one byte."""
LIMIT: Final = 2**60


def clamp(amount: int) -> int:
    """The amount within +-LIMIT."""
    return min(max(amount, -LIMIT), LIMIT)


def amounts(resources: Mapping[str, Quantity]) -> Amounts:
    """cpu and memory of a resource list; 0 where it has none."""
    cpu, memory = resources.get("cpu"), resources.get("memory")
    return (
        clamp(cpu.nano) if cpu is not None else 0,
        clamp(memory.milli_value()) if memory is not None else 0,
    )


def plus(a: Amounts, b: Amounts) -> Amounts:
    return a[0] + b[0], a[1] + b[1]


def larger(a: Amounts, b: Amounts) -> Amounts:
    return max(a[0], b[0]), max(a[1], b[1])


def divided(amount: Amounts, parts: int) -> Amounts:
    """One of `parts` equal parts, rounded up to milli-cores and milli-bytes (spec 04 §6.4)."""
    milli_cores = -(-amount[0] // 10**6)
    return -(-milli_cores // parts) * 10**6, -(-amount[1] // parts)


def scaled(amount: Ints, factor: Floats) -> Ints:
    """`amount` in whole units (rounded up) times `factor`, truncated: `mulMilli` and `mul` of spec 04 §2."""
    units = ceil_units(amount).astype(np.float64) * factor
    bound = (LIMIT // UNIT).astype(np.float64)
    cut: Ints = np.trunc(np.clip(units, -bound, bound)).astype(np.int64) * UNIT
    return cut


def ceil_units(amount: Ints) -> Ints:
    """Milli-cores and bytes, rounded up."""
    whole: Ints = -(-amount // UNIT)
    return whole


def column(rows: Sequence[object], width: int) -> npt.NDArray[np.int64]:
    """Rows of `width` amounts or settings as int64 of shape (rows, width, 2); `rows` may be empty."""
    return np.array(rows, dtype=np.int64).reshape(len(rows), width, 2)


def cpu_quantity(milli_cores: int) -> Quantity:
    """The quantity of `batch-cpu` or `mid-cpu`, whose unit is milli-cores."""
    return Quantity.of(milli_cores)


def memory_quantity(count: int) -> Quantity:
    """Bytes as a quantity with binary suffix."""
    return Quantity.of(count, BINARY_SI)


def milli_ratio(milli: int, ratio: float) -> int:
    """`mulMilli` of spec 04 §2 for a number of thousandths: multiplied as binary double, truncated."""
    return int(float(milli) * ratio)
