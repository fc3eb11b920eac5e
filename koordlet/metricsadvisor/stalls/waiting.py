"""Everything charged so far as a table of victims by culprits, for the counters of a scrape.

A full node has a hundred thousand entries between two hundred parties: they are counted into the table a piece at a
time, which takes a tenth of what naming, sorting and summing whole columns takes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from koordlet.metricsadvisor.stalls.latency import Matrix, OwnerOf, Pairs, culprit_owner, identity
from koordlet.probes.culprits.charges import Waits
from koordlet.probes.loading.mapped import Ints
from koordlet.statesinformer.pods.cgroupindex import Owner


@dataclass(frozen=True, slots=True)
class Waiting:
    """`ns[v, c]` of waiting of `victims[v]` is `culprits[c]`'s."""

    victims: list[str]
    """Subject keys, each once."""
    culprits: list[Owner]
    """Each once, by `identity`."""
    ns: Ints

    @classmethod
    def of(cls, matrix: Matrix, owner: OwnerOf, only: Collection[str]) -> Waiting:
        """Of the victims named in *only*."""
        if not len(matrix.victim):
            return cls([], [], np.zeros((0, 0), dtype=np.int64))
        pairs = Pairs.of(matrix, owner, only)
        ns = np.zeros((len(pairs.victims), len(pairs.culprits)), dtype=np.int64)
        ns[pairs.victim, pairs.culprit] = pairs.ns
        return cls(pairs.victims, pairs.culprits, ns)

    @classmethod
    def of_waits(cls, waits: Waits, owner: OwnerOf, only: Collection[str]) -> Waiting:
        """The same of everything charged so far."""
        slots = np.flatnonzero(waits.slot_keys)
        victims: dict[str, int] = {}
        culprits: dict[str, int] = {}
        owners: list[Owner] = []
        rows, columns = [], []
        for key in waits.slot_keys[slots].tolist():
            who = culprit_owner(key, owner)
            column = culprits.setdefault(identity(who), len(owners))
            if column == len(owners):
                owners.append(who)
            columns.append(column)
            subject = who.subject if key > 0 else None
            if subject is None or subject.key not in only:
                rows.append(-1)
            else:
                rows.append(victims.setdefault(subject.key, len(victims)))
        # The last row and column take what is nobody's: free places, victims that are not asked for, and whom a slot
        # was given to since its keys were read.
        tall, wide = len(victims) + 1, len(owners) + 1
        # Both by slot + 1, as in an entry's key.
        begins = np.full(len(waits.slot_keys) + 1, (tall - 1) * wide, dtype=np.int64)
        places = np.full(len(waits.slot_keys) + 1, wide - 1, dtype=np.int64)
        begins[slots + 1] = np.array(rows, dtype=np.int64) % tall * wide
        places[slots + 1] = columns
        table = np.zeros(tall * wide, dtype=np.int64)
        for key, ns in waits.pieces:
            cells = begins.take(key >> 16)
            cells += places.take(key & 0xFFFF)
            np.add.at(table, cells, ns)
        return cls(list(victims), owners, np.ascontiguousarray(table.reshape(tall, wide)[:-1, :-1]))
