"""A BPF array that user space maps (``BPF_F_MMAPABLE``), as a numpy array: reading it makes no system call.

The kernel goes on writing meanwhile; every number is a whole u64, but two of them can be one event apart.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from koordlet.probes.loading.libbpf import map_info

Ints = npt.NDArray[np.int64]

CROWDED = 8
"""Pairs are summed in a table of all that could be while there are fewer of these an entry than so many."""
FEW = 2000
"""Keys that are sorted sooner than a table is made of them."""
PLACES = 1 << 16
"""Of a table of ids by their last bits: what was numbered one after the other does not meet there."""


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
    if values.ndim > 1 and (group[1:] > group[:-1]).all():  # a row each, the usual case
        total[group] = values
        return total
    if values.ndim > 1:  # `add.at` of numbers takes half as long as sorting the rows, and a third of `add.at` of rows
        group = np.arange(total.size).reshape(total.shape)[group].reshape(-1)
    whole = values.astype(np.int64, copy=False)  # `add` of signed and unsigned numbers would be one of floats
    np.add.at(total.reshape(-1), group, whole.reshape(-1))
    return total


def place_of(keys: Ints) -> Ints:
    """Each key's place in a table by the last bits."""
    return keys & (PLACES - 1)


def by_last_bits(keys: Ints) -> tuple[Ints, Ints, npt.NDArray[np.intp]]:
    """(the table of *keys* by their last bits, where each has its place there, which of them met another there and are
    not in it). Ten times as fast as a search."""
    at = place_of(keys)
    table = np.zeros(PLACES, dtype=np.int64)
    table[at] = keys
    return table, at, np.flatnonzero(table[at] != keys)


def numbered(keys: Ints) -> tuple[Ints, npt.NDArray[np.intp]]:
    """(*keys* sorted, each once; place of each of *keys* among them). For many entries of few keys: they are told apart
    in a table, and only those that meet others there are searched for."""
    if len(keys) < FEW:
        return np.unique(keys, return_inverse=True)
    table, at, beaten = by_last_bits(keys)
    there = np.zeros(PLACES, dtype=bool)
    there[at] = True
    used = np.flatnonzero(there)
    found = np.sort(np.concatenate([table[used], np.array(sorted(set(keys[beaten].tolist())), dtype=np.int64)]))
    number = np.empty(PLACES, dtype=np.intp)
    number[used] = np.searchsorted(found, table[used])
    places = number[at]
    places[beaten] = np.searchsorted(found, keys[beaten])
    return found, places


def sum_pairs(codes: Ints, ns: Ints, count: Ints, size: int) -> tuple[Ints, Ints, Ints]:
    """(codes that occur, sorted; sums of *ns* and of *count* for each); codes are 0 or more and below *size*. Counted
    in a table of all that could be where that is small enough beside what there is, else sorted."""
    if size <= CROWDED * len(codes):
        there = np.zeros(size, dtype=bool)
        there[codes] = True
        pairs = np.flatnonzero(there)
        number = np.empty(size, dtype=np.intp)  # as above
        number[pairs] = np.arange(len(pairs))
        group: npt.NDArray[np.intp] = number[codes]
    else:
        pairs, group = np.unique(codes, return_inverse=True)
    return pairs, sum_by(group, ns, len(pairs)), sum_by(group, count, len(pairs))
