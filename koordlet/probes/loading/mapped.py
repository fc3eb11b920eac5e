"""A BPF array that user space maps (``BPF_F_MMAPABLE``), as a numpy array: reading it makes no system call.

The kernel keeps writing meanwhile. Every number is read whole, but two numbers can be one event apart.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from koordlet.probes.loading.libbpf import map_info


class LayoutMismatch(Exception):
    """A map does not have the expected shape; the message names the map, its size and the expected size."""


def map_array(fd: int, name: str, dtype: np.dtype[Any], entries: int) -> npt.NDArray[Any]:
    """The whole map. The array keeps the map open, so `fd` may be closed. Raises `LayoutMismatch`."""
    info = map_info(fd)
    if (info.value_size, info.max_entries) != (dtype.itemsize, entries):
        raise LayoutMismatch(
            f"map {name}: {info.max_entries} values of {info.value_size} bytes, expected {entries} of {dtype.itemsize}"
        )
    size = -(-dtype.itemsize * entries // mmap.PAGESIZE) * mmap.PAGESIZE
    return np.frombuffer(mmap.mmap(fd, size), dtype=dtype, count=entries)


def map_arrays(
    fds: Mapping[str, int], entries: Mapping[str, int], **dtypes: np.dtype[Any]
) -> Iterator[npt.NDArray[Any]]:
    """`map_array` of the maps that `dtypes` names, in that order."""
    return (map_array(fds[name], name, dtype, entries[name]) for name, dtype in dtypes.items())
