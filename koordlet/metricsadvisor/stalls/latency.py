"""Schedule latency by subject: percentiles, waiting and throttling of a window, and who was to blame. Pure.

A probe counts by cgroup id; here ids become subjects (a container's own sub-groups count as the container). Latency
figures come from the last `window` seconds because one tick of a quiet container holds too few waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordlet.probes.loading.mapped import Ints, numbered, sum_by, sum_pairs
from koordlet.probes.schedlatency.layout import BUCKETS, key_name
from koordlet.probes.schedlatency.snapshot import SchedLatencySnapshot, quantiles
from koordlet.statesinformer.pods.cgroupindex import Owner
from koordlet.statesinformer.pods.model import Subject

OwnerOf = Callable[[int], Owner]
UNTOLD = ("older", "moved", "overflow")
"""Runners nobody remembers: longer ago than the slices a CPU keeps, on a CPU the task was moved from, or of a cgroup
that got no slot."""


class SubjectLatency(msgspec.Struct, frozen=True):
    """One subject over the window: seconds, and task-seconds a second."""

    p50: float | None
    p99: float | None
    wait: float
    throttled: float
    count: int


@dataclass(frozen=True, slots=True)
class Blame:
    """How long a subject waited because of `owner`: number of waits, and seconds; for each second of wall time in what
    a collector keeps of its window, because windows differ."""

    owner: Owner
    seconds: float
    count: int


class Matrix(Protocol):
    """Whom somebody waited for: `wait_ns[i]` of waiting of `victim[i]` in `wait_count[i]` waits is `culprit[i]`'s."""

    @property
    def victim(self) -> Ints: ...
    @property
    def culprit(self) -> Ints: ...
    @property
    def wait_ns(self) -> Ints: ...
    @property
    def wait_count(self) -> Ints: ...


def group(keys: Ints, owner: OwnerOf) -> tuple[list[Subject], Ints]:
    """Subjects among the keys, and for each key its subject's number or -1."""
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


def by_subject(
    window: SchedLatencySnapshot, seconds: float, owner: OwnerOf, grouped: tuple[list[Subject], Ints] | None = None
) -> dict[str, SubjectLatency]:
    """Figures by subject key. *grouped*: what `group` says of the window's keys, if that is known."""
    subjects, rows = grouped or group(window.keys, owner)
    waits = window.hist
    hist = sum_rows(waits, rows, len(subjects)) if waits.size else np.zeros((len(subjects), BUCKETS))
    wait, throttled = (
        (sum_rows(column, rows, len(subjects)) / 1e9 / seconds).tolist()
        for column in (window.sum_ns, window.throttled_ns)
    )
    p50, p99 = ((quantiles(hist, q) / 1e9).tolist() for q in (0.5, 0.99))
    counts = hist.sum(axis=1).astype(np.int64).tolist()
    return {
        subject.key: SubjectLatency(*figures) if figures[4] else SubjectLatency(None, None, *figures[2:])
        for subject, *figures in zip(subjects, p50, p99, wait, throttled, counts, strict=True)
    }


def culprit_owner(key: int, owner: OwnerOf) -> Owner:
    """The runner behind a matrix key: a cgroup's owner, or a kind of kernel work."""
    name = key_name(key)
    if name is None:
        return owner(key)
    if name in UNTOLD:
        return Owner("unknown", name)
    return Owner("idle" if name == "idle" else "kernel", name)


def identity(who: Owner) -> str:
    """The same for all keys of one culprit."""
    return f"{who.kind} {who.subject.key if who.subject is not None else who.label}"


@dataclass(frozen=True, slots=True)
class Pairs:
    """A matrix by subject: `ns[i]` of waiting in `count[i]` waits of `victims[victim[i]]` is `culprits[culprit[i]]`'s.
    Sorted by victim, then culprit, each pair once."""

    victims: list[str]
    """Subject keys."""
    culprits: list[Owner]
    victim: Ints
    culprit: Ints
    ns: Ints
    count: Ints

    @classmethod
    def of(cls, matrix: Matrix, owner: OwnerOf, only: Collection[str] | None = None) -> Pairs:
        """A container's own other tasks count as the container itself. `only` limits the victims."""
        names, victim = _victims(matrix.victim, owner, only)
        owners, culprit = _runners(matrix.culprit, owner)
        taken = np.flatnonzero((victim >= 0) & (matrix.wait_ns > 0))
        wide = max(len(owners), 1)
        pairs, ns, count = sum_pairs(
            victim[taken] * wide + culprit[taken], matrix.wait_ns[taken], matrix.wait_count[taken], len(names) * wide
        )
        return cls(names, owners, pairs // wide, pairs % wide, ns, count)


def blame(matrix: Matrix, owner: OwnerOf, seconds: float = 1.0) -> dict[str, list[Blame]]:
    """By victim's subject key: who held the CPU (or the disk) while it waited, longest first. Of a matrix of so many
    *seconds*, for each of them.

    Waiting whose runner is not remembered is spread over the victim's known culprits: who ran lately, ran then.
    """
    return {name: blames for name, (blames, _) in longest(matrix, owner, seconds=seconds).items()}


def longest(
    matrix: Matrix, owner: OwnerOf, most: int | None = None, seconds: float = 1.0
) -> dict[str, tuple[list[Blame], float]]:
    """`blame` of which only the *most* longest of each victim are made, and the seconds of all of them together."""
    pairs = Pairs.of(matrix, owner)
    whose, ns = pairs.victim, pairs.ns.astype(np.float64)
    known = np.array([who.kind != "unknown" for who in pairs.culprits], dtype=bool)[pairs.culprit]
    whole, seen = (np.bincount(whose, column, len(pairs.victims)) for column in (ns, ns * known))
    scale = np.where(seen > 0, whole / np.maximum(seen, 1.0), 1.0) / 1e9 / seconds
    taken = np.flatnonzero(known | (seen[whose] == 0))
    taken = taken[np.argsort(-ns[taken], kind="stable")]  # equal ones stay in the pairs' order
    taken = taken[np.argsort(_narrow(whose[taken], len(pairs.victims)), kind="stable")]
    begins = np.searchsorted(whose[taken], np.arange(len(pairs.victims)))
    if most is not None:
        taken = taken[np.arange(len(taken)) - begins[whose[taken]] < most]
    told: list[list[Blame]] = [[] for _ in pairs.victims]
    lasted = ns[taken] * scale[whose[taken]]
    columns = (whose[taken], pairs.culprit[taken], lasted, pairs.count[taken])
    for victim, who, waited, waits in zip(*(column.tolist() for column in columns), strict=True):
        told[victim].append(Blame(pairs.culprits[who], waited, waits))
    total = (whole / 1e9 / seconds).tolist()
    return {name: (blames, all_) for name, blames, all_ in zip(pairs.victims, told, total, strict=True) if blames}


def _narrow(numbers: Ints, count: int) -> NDArray[np.integer[Any]]:
    """Numbers below *count* in as few bits as they need: a stable sort of short ones takes a tenth of the time."""
    return numbers.astype(np.int16) if count < 1 << 15 else numbers


def _victims(keys: Ints, owner: OwnerOf, only: Collection[str] | None) -> tuple[list[str], Ints]:
    """Keys of victims' subjects, and for each of *keys* its subject's number or -1."""
    unique, at = numbered(keys)
    numbers: dict[str, int] = {}
    rows = np.full(len(unique), -1, dtype=np.int64)
    for row, key in enumerate(unique.tolist()):
        subject = owner(key).subject if key > 0 else None
        if subject is not None and (only is None or subject.key in only):
            rows[row] = numbers.setdefault(subject.key, len(numbers))
    return list(numbers), rows[at]


def _runners(keys: Ints, owner: OwnerOf) -> tuple[list[Owner], Ints]:
    """Culprits, and for each of *keys* the number of its culprit."""
    unique, at = numbered(keys)
    numbers: dict[str, int] = {}
    owners: list[Owner] = []
    rows = np.zeros(len(unique), dtype=np.int64)
    for row, key in enumerate(unique.tolist()):
        who = culprit_owner(key, owner)
        name = identity(who)
        if name not in numbers:
            numbers[name] = len(owners)
            owners.append(who)
        rows[row] = numbers[name]
    return owners, rows[at]
