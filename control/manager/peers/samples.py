"""What koordlets reported about the replicas of each workload in the last minutes. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from control.manager.peers.settings import PeerSettings

GroupKey = tuple[str, str, str, str]
"""Namespace, kind and name of the workload, container."""


@dataclass(frozen=True, slots=True)
class ReplicaSample:
    """One report about one container."""

    at: float
    """Unix time of the report."""
    cores: float
    figures: Mapping[str, float]


@dataclass(slots=True)
class Replica:
    """One container of one pod, with its reports, oldest first."""

    pod: str
    """`namespace/name`"""
    uid: str
    node: str
    has_neighbour: bool = False
    """koordlet names a neighbour on the node that delays it."""
    samples: deque[ReplicaSample] = field(default_factory=deque)


class PeerGroups:
    """Replicas by workload and container; bounded by the pods that exist and `settings.reports` reports of each."""

    def __init__(self, settings: PeerSettings) -> None:
        self._settings = settings
        self._groups: dict[GroupKey, dict[str, Replica]] = {}
        """group -> pod UID -> replica"""

    def add(self, group: GroupKey, replica: Replica, sample: ReplicaSample) -> None:
        """A report. One that is not newer than the last one of the pod is ignored."""
        kept = self._groups.setdefault(group, {}).setdefault(replica.uid, replica)
        kept.node, kept.has_neighbour = replica.node, replica.has_neighbour
        if not kept.samples or sample.at > kept.samples[-1].at:
            kept.samples.append(sample)
            if len(kept.samples) > self._settings.reports:
                kept.samples.popleft()

    def retain(self, uids: Iterable[str], now: float) -> None:
        """Forget all other pods, and reports that are too old."""
        present = set(uids)
        for group, replicas in list(self._groups.items()):
            for uid, replica in list(replicas.items()):
                while replica.samples and now - replica.samples[0].at > self._settings.window_seconds:
                    replica.samples.popleft()
                if uid not in present or not replica.samples:
                    del replicas[uid]
            if not replicas:
                del self._groups[group]

    def __iter__(self) -> Iterator[tuple[GroupKey, list[Replica]]]:
        for group, replicas in self._groups.items():
            yield group, list(replicas.values())

    def __len__(self) -> int:
        return sum(len(replicas) for replicas in self._groups.values())
