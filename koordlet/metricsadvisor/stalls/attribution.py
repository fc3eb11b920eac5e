"""From the keys of a probe to subjects, and from its culprit matrix to named culprits. Pure.

A probe counts by cgroup id; several ids can be one subject, since a container's own sub-groups count as the container.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec
import numpy as np

from koordlet.probes.columns import Ints, sum_by
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.culprits.slots import key_name
from koordlet.statesinformer.pods.cgroupindex import Owner
from koordlet.statesinformer.pods.model import Subject

OwnerOf = Callable[[int], Owner]
UNATTRIBUTED = ("older", "moved", "overflow")
"""Special keys whose runner is not recorded: it ran before the remembered slices, on a CPU that the task was moved
from, or in a cgroup that got no slot."""


class CulpritTime(msgspec.Struct, frozen=True):
    """How long a subject waited because of `owner`. A struct, because a round makes thousands of them."""

    owner: Owner
    seconds: float
    """Per second of wall time where a collector keeps it, because windows differ in length."""
    count: int
    """Number of waits."""


def group(keys: Ints, owner: OwnerOf) -> tuple[list[Subject], Ints]:
    """(the subjects among the keys; for each key the index of its subject, or -1)."""
    numbers: dict[str, int] = {}
    subjects: list[Subject] = []
    rows = np.full(len(keys), -1, dtype=np.int64)
    for index, key in enumerate(keys.tolist()):
        subject = owner(key).subject if key > 0 else None
        if subject is None:
            continue
        if subject.key not in numbers:
            numbers[subject.key] = len(subjects)
            subjects.append(subject)
        rows[index] = numbers[subject.key]
    return subjects, rows


def sum_rows(values: Ints, rows: Ints, count: int) -> Ints:
    """Sums by row; rows of -1 are left out."""
    known = rows >= 0
    return sum_by(rows[known], values[known], count)


def culprit_owner(key: int, owner: OwnerOf) -> Owner:
    """The culprit behind a matrix key: the owner of a cgroup, or a kind of kernel work."""
    name = key_name(key)
    if name is None:
        return owner(key)
    if name in UNATTRIBUTED:
        return Owner("unknown", name)
    return Owner("idle" if name == "idle" else "kernel", name)


def identity(owner: Owner) -> str:
    """Equal for all keys of one culprit."""
    return f"{owner.kind} {owner.subject.key if owner.subject is not None else owner.label}"


@dataclass(frozen=True, slots=True)
class SubjectNaming:
    """`Naming` of a culprit matrix: victims are subjects, culprits are owners."""

    owner: OwnerOf
    only: Collection[str] | None = None
    """Subject keys that may be victims; None = all."""

    def victim(self, key: int) -> str | None:
        """See `Naming.victim`."""
        subject = self.owner(key).subject if key > 0 else None
        if subject is None or (self.only is not None and subject.key not in self.only):
            return None
        return subject.key

    def culprit(self, key: int) -> tuple[str, Owner]:
        """See `Naming.culprit`."""
        owner = culprit_owner(key, self.owner)
        return identity(owner), owner


def culprits_by_subject(matrix: CulpritMatrix, owner: OwnerOf, seconds: float = 1.0) -> dict[str, list[CulpritTime]]:
    """By the victim's subject key: its culprits, longest first, per second of a matrix over `seconds`.

    Waiting whose runner is not recorded is spread over the victim's known culprits: what ran recently also ran then.
    """
    named = top_culprits(matrix, owner, seconds=seconds)
    return {subject: culprits for subject, (culprits, _) in named.items()}


def top_culprits(
    matrix: CulpritMatrix, owner: OwnerOf, limit: int | None = None, seconds: float = 1.0
) -> dict[str, tuple[list[CulpritTime], float]]:
    """As `culprits_by_subject`, with only the `limit` longest of each victim, and the seconds of all of its
    culprits."""
    subjects = matrix.by_subject(SubjectNaming(owner))
    pairs, victims = subjects.pairs, len(subjects.victims)
    known = np.array([culprit.kind != "unknown" for culprit in subjects.culprits], dtype=bool)[pairs.culprit]
    ns = pairs.ns.astype(np.float64)
    total, attributed = (np.bincount(pairs.victim, column, victims) for column in (ns, ns * known))
    scale = np.where(attributed > 0, total / np.maximum(attributed, 1.0), 1.0) / 1e9 / seconds
    top = pairs.where(known | (attributed[pairs.victim] == 0)).top(limit)
    named: list[list[CulpritTime]] = [[] for _ in subjects.victims]
    columns = (top.victim, top.culprit, top.ns * scale[top.victim], top.count)
    for victim, culprit, waited, count in zip(*(column.tolist() for column in columns), strict=True):
        named[victim].append(CulpritTime(subjects.culprits[culprit], waited, count))
    totals = (total / 1e9 / seconds).tolist()
    return {
        subject: (culprits, waited)
        for subject, culprits, waited in zip(subjects.victims, named, totals, strict=True)
        if culprits
    }
