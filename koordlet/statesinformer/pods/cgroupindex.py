"""Maps cgroup ids to owners, for all figures that a probe reports by cgroup id.

Probes report only ids (the inode of a directory in the cpu hierarchy). The index maps each id to the closest subject at
or above that directory, so a cgroup that a container created inside itself counts as the container. A cgroup without a
subject is named by its path. The tree is walked again when an unknown id occurs, at most every `MIN_INTERVAL_S`; an id
that is unknown after a walk belongs to a cgroup that was removed (or is not visible) and causes no more walks. The
owner of a removed cgroup is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.cgroup.owners import OwnerKind, classify

MIN_INTERVAL_S = 2.0
"""Between two walks for unknown ids."""

MAX_REMOVED_IDS = 4096
"""Ids of removed cgroups whose owner is kept."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The workload or kernel part to which CPU time, waiting or I/O is attributed."""

    kind: str
    """container, pod, qos, host-application, system, root, kernel, idle, hypervisor, gone, unknown."""
    name: str
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    qos: str = ""
    subject: Subject | None = None

    @property
    def label(self) -> str:
        """For tables: `namespace/pod/container`, or the name."""
        return "/".join(part for part in (self.namespace, self.pod, self.name) if part)


def owner_of(subject: Subject) -> Owner:
    """A subject as an owner."""
    name = subject.name if subject.kind is not SubjectKind.POD else ""
    kind = "system" if subject.kind is SubjectKind.GROUP else subject.kind.value
    return Owner(kind, name, subject.namespace, subject.pod_name, subject.pod_uid, subject.qos, subject)


_KINDS_OWNING_DESCENDANTS = ("container", "pod", "host-application")


def _owner_by_path(path: str, parent: Owner | None) -> Owner:
    """The owner of a directory that is not a subject itself; `parent`: the owner of its parent directory."""
    if parent is not None and parent.kind in _KINDS_OWNING_DESCENDANTS:
        return parent
    classified = classify(path)
    match classified.kind:
        case OwnerKind.ROOT:
            return Owner("root", "/")
        case OwnerKind.POD | OwnerKind.CONTAINER:  # of a pod that is not listed (yet, or any more)
            return Owner(classified.kind.value, classified.name, pod_uid=classified.pod_uid)
        case OwnerKind.KUBE_QOS:
            return Owner("qos", classified.name)
        case OwnerKind.OTHER if parent is not None and parent.subject is not None:  # a cgroup inside a service's
            return parent
        case _:
            return Owner("system", classified.name)


class CgroupIndex:
    """Call `refresh` with the current subjects before a series of `owner` calls."""

    def __init__(self, walk: Callable[[], Iterable[tuple[str, int]]]) -> None:
        """`walk` yields (directory, cgroup id) for the whole cpu hierarchy, parents first."""
        self._walk = walk
        self._owners: dict[int, Owner] = {}
        self._removed: dict[int, Owner] = {}
        self._never_seen: set[int] = set()
        self._walked_at = -float("inf")
        self._version = -1
        self.walks = 0
        """Number of walks of the tree. Between two walks each id keeps its owner."""

    def refresh(self, workloads: Workloads, now: float, ids: Iterable[int] = ()) -> None:
        """Walk again if the subjects changed or one of these ids is unknown."""
        changed = workloads.version != self._version
        unknown = {i for i in ids if i not in self._owners and i not in self._removed and i not in self._never_seen}
        if not changed and not (unknown and now - self._walked_at >= MIN_INTERVAL_S):
            return
        owners = self._walk_owners(workloads)
        self._removed.update((i, owner) for i, owner in self._owners.items() if i not in owners)
        self._never_seen.difference_update(owners)
        for cgroup_id in owners.keys() & self._removed.keys():  # the kernel reuses ids
            del self._removed[cgroup_id]
        while len(self._removed) > MAX_REMOVED_IDS:
            self._removed.pop(next(iter(self._removed)))
        self._never_seen.update(unknown.difference(owners))
        if len(self._never_seen) > MAX_REMOVED_IDS:
            self._never_seen.clear()
        self._owners = owners
        self.walks += 1
        self._version = workloads.version
        self._walked_at = now

    def _walk_owners(self, workloads: Workloads) -> dict[int, Owner]:
        by_dir = {subject.cgroup_dir: owner_of(subject) for subject in workloads.subjects}
        by_id: dict[int, Owner] = {}
        by_path: dict[str, Owner] = {}
        for path, cgroup_id in self._walk():
            owner = by_dir.get(path)
            if owner is None:
                owner = _owner_by_path(path, by_path.get(path.rpartition("/")[0]) if path else None)
            by_path[path] = by_id[cgroup_id] = owner
        return by_id

    def expire(self) -> None:
        """Walk at the next refresh in any case, because a cgroup was created or removed."""
        self._version = -1

    def walk_ids(self) -> frozenset[int]:
        """Walk the tree for the ids that exist now."""
        return frozenset(cgroup_id for _, cgroup_id in self._walk())

    def owner(self, cgroup_id: int) -> Owner:
        """Never raises: an unknown id is a cgroup that was created and removed between two walks."""
        return self._owners.get(cgroup_id) or self._removed.get(cgroup_id) or Owner("gone", f"cgroup {cgroup_id}")
