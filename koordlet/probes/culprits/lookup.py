"""Looking up many cgroup ids in a table by their low bits, instead of by binary search. Pure.

Ids are handed out in sequence, so few of them share their low bits. Measured with 50,000 entries of 220 ids: a tenth of
the time of `np.searchsorted`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from koordlet.probes.columns import Ints

HASH_BUCKETS = 1 << 16
SORT_BELOW = 2000
"""Fewer keys than this are sorted: filling a table of `HASH_BUCKETS` would take longer."""


class KeyLookup:
    """Distinct `keys` (in any order) with a number each; `numbers_of` finds the numbers of many keys."""

    def __init__(self, keys: Ints, numbers: npt.NDArray[np.intp]) -> None:
        bucket = _bucket(keys)
        self._keys = np.zeros(HASH_BUCKETS, dtype=np.int64)
        self._keys[bucket] = keys
        self._numbers = np.full(HASH_BUCKETS, -1, dtype=np.intp)
        self._numbers[bucket] = numbers
        beaten = np.flatnonzero(self._keys[bucket] != keys)
        self._beaten = list(zip(keys[beaten].tolist(), numbers[beaten].tolist(), strict=True))
        """Keys whose bucket another key has; they are searched for one by one."""

    def numbers_of(self, keys: Ints) -> npt.NDArray[np.intp]:
        """The number of each key, -1 for an unknown one."""
        bucket = _bucket(keys)
        numbers: npt.NDArray[np.intp] = np.where(self._keys[bucket] == keys, self._numbers[bucket], -1)
        for key, number in self._beaten:
            numbers[keys == key] = number
        return numbers


def unique_inverse(keys: Ints) -> tuple[Ints, npt.NDArray[np.intp]]:
    """(the distinct keys, sorted; the index of each of `keys` among them): `np.unique`, fast for many repeated keys."""
    if len(keys) < SORT_BELOW:
        return np.unique(keys, return_inverse=True)
    bucket = _bucket(keys)
    table = np.zeros(HASH_BUCKETS, dtype=np.int64)
    table[bucket] = keys
    occupied = np.zeros(HASH_BUCKETS, dtype=bool)
    occupied[bucket] = True
    used = np.flatnonzero(occupied)
    beaten = np.flatnonzero(table[bucket] != keys)  # keys whose bucket another key has
    distinct = np.sort(np.concatenate([table[used], np.array(sorted(set(keys[beaten].tolist())), dtype=np.int64)]))
    index_of_bucket = np.empty(HASH_BUCKETS, dtype=np.intp)
    index_of_bucket[used] = np.searchsorted(distinct, table[used])
    index = index_of_bucket[bucket]
    index[beaten] = np.searchsorted(distinct, keys[beaten])
    return distinct, index


def _bucket(keys: Ints) -> Ints:
    return keys & (HASH_BUCKETS - 1)
