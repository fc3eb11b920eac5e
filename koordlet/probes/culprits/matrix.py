"""The culprit matrix: how long, and how often, each victim waited because of each culprit. Pure.

A probe counts by key: a cgroup id, or a negative number for a runner that is no cgroup (`special.SPECIAL_KEYS`).
`CulpritMatrix` holds one entry per pair of keys; `by_subject` merges the keys of one container or culprit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from koordlet.probes.columns import Ints, align_pairs, subtract, sum_by
from koordlet.probes.culprits.lookup import unique_inverse

DENSE_RATIO = 8
"""Pairs are summed in a dense table while the number of possible pairs is at most this many times the number of
entries. Measured with 50,000 entries of 48,000 possible pairs: a third of the time of sorting them."""
C_co = TypeVar("C_co", covariant=True)
C = TypeVar("C")


class Naming(Protocol[C_co]):
    """Names for the keys of a matrix."""

    def victim(self, key: int) -> str | None:
        """The subject key of a victim; None excludes its entries."""

    def culprit(self, key: int) -> tuple[str, C_co]:
        """(identity, culprit): keys of equal identity are one culprit."""


@dataclass(frozen=True, slots=True)
class CulpritMatrix:
    """Entry i: `victim[i]` waited `ns[i]` nanoseconds because of `culprit[i]`, in `count[i]` pieces.

    Sorted by victim, then by culprit, each pair once; only `concatenate` and `top` return other orders."""

    victim: Ints
    culprit: Ints
    ns: Ints
    count: Ints

    @classmethod
    def empty(cls) -> CulpritMatrix:
        """A matrix without entries."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, none, none)

    @classmethod
    def summed(cls, codes: Ints, ns: Ints, count: Ints, names: Ints) -> CulpritMatrix:
        """Entries merged by pair. A pair's code is the index of its victim in `names` (sorted) times the length of
        `names`, plus the index of its culprit."""
        pairs, ns, count = sum_by_code(codes, ns, count, len(names) ** 2)
        width = max(len(names), 1)
        return cls(names[pairs // width], names[pairs % width], ns, count)

    @classmethod
    def concatenate(cls, parts: Sequence[CulpritMatrix]) -> CulpritMatrix:
        """All entries of several matrices; a pair may occur several times."""
        if len(parts) == 1:
            return parts[0]
        victim, culprit, ns, count = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("victim", "culprit", "ns", "count")
        )
        return cls(victim, culprit, ns, count)

    def minus(self, older: CulpritMatrix) -> CulpritMatrix:
        """What was added since `older`. A pair that `older` does not have, or whose figures went back, counts from
        zero."""
        index = align_pairs((older.victim, older.culprit), (self.victim, self.culprit))
        deltas = subtract({"ns": older.ns, "count": older.count}, {"ns": self.ns, "count": self.count}, index)
        return CulpritMatrix(self.victim, self.culprit, deltas["ns"], deltas["count"])

    def where(self, mask: npt.NDArray[np.bool_]) -> CulpritMatrix:
        """The entries that `mask` selects."""
        return CulpritMatrix(self.victim[mask], self.culprit[mask], self.ns[mask], self.count[mask])

    def top(self, limit: int | None = None) -> CulpritMatrix:
        """The `limit` longest entries of each victim (all for None), by victim, longest first."""
        order = np.argsort(-self.ns, kind="stable")
        order = order[np.argsort(_narrow(self.victim[order]), kind="stable")]
        if limit is not None:
            victim = self.victim[order]
            new = np.flatnonzero(np.diff(victim, prepend=victim[:1] - 1))
            begins = np.repeat(new, np.diff(np.append(new, len(victim))))
            order = order[np.arange(len(order)) - begins < limit]
        return CulpritMatrix(self.victim[order], self.culprit[order], self.ns[order], self.count[order])

    def by_subject(self, naming: Naming[C]) -> SubjectMatrix[C]:
        """The matrix by subject and culprit; entries without time and of excluded victims are left out."""
        victims, rows = _victims(self.victim, naming)
        culprits, columns = _culprits(self.culprit, naming)
        kept = np.flatnonzero((rows >= 0) & (self.ns > 0))
        width = max(len(culprits), 1)
        codes = rows[kept] * width + columns[kept]
        pairs, ns, count = sum_by_code(codes, self.ns[kept], self.count[kept], len(victims) * width)
        return SubjectMatrix(victims, culprits, CulpritMatrix(pairs // width, pairs % width, ns, count))


@dataclass(frozen=True, slots=True)
class SubjectMatrix(Generic[C]):
    """A matrix by subject: `pairs.victim` are indices in `victims`, `pairs.culprit` in `culprits`."""

    victims: list[str]
    """Subject keys, each once."""
    culprits: list[C]
    """Each once, by identity."""
    pairs: CulpritMatrix

    def dense(self) -> SubjectTable[C]:
        """The same as a table; without the counts."""
        ns = np.zeros((len(self.victims), len(self.culprits)), dtype=np.int64)
        ns[self.pairs.victim, self.pairs.culprit] = self.pairs.ns
        return SubjectTable(self.victims, self.culprits, ns)


@dataclass(frozen=True, slots=True)
class SubjectTable(Generic[C]):
    """`ns[v, c]`: how long `victims[v]` waited because of `culprits[c]`. For counters that look at all pairs."""

    victims: list[str]
    """Subject keys, each once."""
    culprits: list[C]
    """Each once, by identity."""
    ns: Ints

    @classmethod
    def of_entries(
        cls, slot_keys: Ints, pieces: Iterable[tuple[npt.NDArray[Any], Ints]], naming: Naming[C]
    ) -> SubjectTable[C]:
        """From the entries of a probe's table: `pieces` are arrays of (entry key, ns), `slot_keys` the key of each
        slot.

        Measured on a full node (100,000 entries of 200 subjects): a tenth of the time of `CulpritMatrix.by_subject`,
        because no column is copied, sorted or named as a whole."""
        slots = np.flatnonzero(slot_keys)
        victims: dict[str, int] = {}
        columns_of: dict[str, int] = {}
        culprits: list[C] = []
        rows, columns = [], []
        for key in slot_keys[slots].tolist():
            identity, culprit = naming.culprit(key)
            column = columns_of.setdefault(identity, len(culprits))
            if column == len(culprits):
                culprits.append(culprit)
            columns.append(column)
            subject = naming.victim(key)
            rows.append(-1 if subject is None else victims.setdefault(subject, len(victims)))
        # The last row and column collect what is attributed to nothing: free entries, excluded victims, and slots that
        # were claimed after `slot_keys` was read.
        height, width = len(victims) + 1, len(culprits) + 1
        # Both are indexed by slot + 1, as in an entry's key.
        row_begins = np.full(len(slot_keys) + 1, (height - 1) * width, dtype=np.int64)
        column_of = np.full(len(slot_keys) + 1, width - 1, dtype=np.int64)
        row_begins[slots + 1] = np.array(rows, dtype=np.int64) % height * width
        column_of[slots + 1] = columns
        table = np.zeros(height * width, dtype=np.int64)
        for keys, ns in pieces:
            cells = row_begins.take(keys >> 16)
            cells += column_of.take(keys & 0xFFFF)
            np.add.at(table, cells, ns)
        return cls(list(victims), culprits, np.ascontiguousarray(table.reshape(height, width)[:-1, :-1]))


def sum_by_code(codes: Ints, ns: Ints, count: Ints, size: int) -> tuple[Ints, Ints, Ints]:
    """(distinct codes, sorted; sums of `ns`; sums of `count`) by code; codes are 0 or more and below `size`."""
    if size <= DENSE_RATIO * len(codes):
        present = np.zeros(size, dtype=bool)
        present[codes] = True
        distinct = np.flatnonzero(present)
        index_of = np.empty(size, dtype=np.intp)
        index_of[distinct] = np.arange(len(distinct))
        index: npt.NDArray[np.intp] = index_of[codes]
    else:
        distinct, index = np.unique(codes, return_inverse=True)
    return distinct, sum_by(index, ns, len(distinct)), sum_by(index, count, len(distinct))


def _narrow(numbers: Ints) -> npt.NDArray[np.integer[Any]]:
    """Small numbers as 16 bits: a stable sort of those takes a tenth of the time (radix sort)."""
    small = not len(numbers) or (int(numbers.min()) >= 0 and int(numbers.max()) < 1 << 15)
    return numbers.astype(np.int16) if small else numbers


def _victims(keys: Ints, naming: Naming[Any]) -> tuple[list[str], Ints]:
    """(subject keys of the victims; for each of `keys` the index of its subject, or -1)."""
    distinct, index = unique_inverse(keys)
    numbers: dict[str, int] = {}
    rows = np.full(len(distinct), -1, dtype=np.int64)
    for row, key in enumerate(distinct.tolist()):
        subject = naming.victim(key)
        if subject is not None:
            rows[row] = numbers.setdefault(subject, len(numbers))
    return list(numbers), rows[index]


def _culprits(keys: Ints, naming: Naming[C]) -> tuple[list[C], Ints]:
    """(culprits; for each of `keys` the index of its culprit)."""
    distinct, index = unique_inverse(keys)
    numbers: dict[str, int] = {}
    culprits: list[C] = []
    rows = np.zeros(len(distinct), dtype=np.int64)
    for row, key in enumerate(distinct.tolist()):
        identity, culprit = naming.culprit(key)
        rows[row] = numbers.setdefault(identity, len(culprits))
        if rows[row] == len(culprits):
            culprits.append(culprit)
    return culprits, rows[index]
