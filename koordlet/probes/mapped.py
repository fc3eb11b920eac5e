"""A BPF array that user space maps (``BPF_F_MMAPABLE``), as a numpy array: reading it makes no system call.

The kernel goes on writing meanwhile; every number is a whole u64, but two of them can be one event apart.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from koordlet.probes.libbpf import map_info

Ints = npt.NDArray[np.int64]


class LayoutMismatch(Exception):
    """A map is not of the shape that Python expects; the message names map, size found and size expected."""


def map_array(fd: int, name: str, dtype: np.dtype[Any], entries: int) -> npt.NDArray[Any]:
    """The whole map; the array holds it open, so *fd* may be closed. Raises `LayoutMismatch`."""
    info = map_info(fd)
    found = (info.value_size, info.max_entries)
    if found != (dtype.itemsize, entries):
        raise LayoutMismatch(
            f"map {name}: {found[1]} values of {found[0]} bytes, expected {entries} of {dtype.itemsize}"
        )
    pages = -(-dtype.itemsize * entries // mmap.PAGESIZE) * mmap.PAGESIZE
    return np.frombuffer(mmap.mmap(fd, pages), dtype=dtype, count=entries)


def sum_by(group: npt.NDArray[np.intp], values: npt.NDArray[Any], groups: int) -> Ints:
    """Sum rows of *values* that have the same group number, 0 or more; a group without any is zero."""
    total = np.zeros((groups, *values.shape[1:]), dtype=np.int64)
    if not len(group):
        return total
    if (
        values.ndim == 1
    ):  # `bincount` adds floats: halves are exact up to two million rows; `add.at` takes six times as long
        whole = values.astype(np.int64)
        low, high = (np.bincount(group, half, groups).astype(np.int64) for half in (whole & 0xFFFFFFFF, whole >> 32))
        total += (high << 32) + low
    else:  # of whole rows `add.at` is slower still
        order = np.argsort(group, kind="stable")
        ordered = group[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        total[ordered[starts]] = np.add.reduceat(values[order], starts, axis=0, dtype=np.int64)
    return total
