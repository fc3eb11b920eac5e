"""Who a cgroup id is: the index behind every figure that a probe gives by cgroup id.

Probes see only ids (the inode of a directory in the cpu hierarchy). The index maps each id to the closest subject at or
above that directory, so a cgroup that a container made inside itself is still the container, and what belongs to no
subject is named by its path. The tree is walked again when an unknown id turns up, at most every `min_interval`
seconds; an id that is unknown even then belongs to a cgroup that is gone (or out of sight), and causes no more walks.
A removed cgroup is remembered under the name it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.cgroup.owners import OwnerKind, classify

REMEMBERED = 4096
"""Ids of removed cgroups that keep their name."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom time is charged to."""

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
        """One word for tables: `namespace/pod/container` or the name."""
        return "/".join(part for part in (self.namespace, self.pod, self.name) if part)


def owner_of(subject: Subject) -> Owner:
    """A subject as an owner."""
    name = subject.name if subject.kind is not SubjectKind.POD else ""
    kind = "system" if subject.kind is SubjectKind.GROUP else subject.kind.value
    return Owner(kind, name, subject.namespace, subject.pod_name, subject.pod_uid, subject.qos, subject)


_OWN_WHAT_IS_BELOW = ("container", "pod", "host-application")


def _outside(path: str, above: Owner | None) -> Owner:
    """The owner of a directory that is no subject itself."""
    if above is not None and above.kind in _OWN_WHAT_IS_BELOW:
        return above
    found = classify(path)
    match found.kind:
        case OwnerKind.ROOT:
            return Owner("root", "/")
        case OwnerKind.POD | OwnerKind.CONTAINER:  # not, or no longer, among the known pods
            return Owner(found.kind.value, found.name, pod_uid=found.pod_uid)
        case OwnerKind.KUBE_QOS:
            return Owner("qos", found.name)
        case OwnerKind.OTHER if above is not None and above.subject is not None:  # a service's own sub-group
            return above
        case _:
            return Owner("system", found.name)


class CgroupIndex:
    """`owner(id)`; call `refresh` with the current subjects before a round of look-ups."""

    def __init__(self, walk: Callable[[], Iterable[tuple[str, int]]], *, min_interval: float = 2.0) -> None:
        self._walk, self._min_interval = walk, min_interval
        """`walk` yields (directory, cgroup id) for the whole cpu hierarchy, parents first."""
        self._owners: dict[int, Owner] = {}
        self._gone: dict[int, Owner] = {}
        self._unseen: set[int] = set()
        self._walked_at = -float("inf")
        self._version = -1
        self.walks = 0
        """So often the tree was walked; until the next time every id keeps its owner."""

    def refresh(self, workloads: Workloads, now: float, wanted: Iterable[int] = ()) -> None:
        """Walk again if the subjects changed or one of the `wanted` ids is unknown."""
        changed = workloads.version != self._version
        unknown = {i for i in wanted if i not in self._owners and i not in self._gone and i not in self._unseen}
        if not changed and not (unknown and now - self._walked_at >= self._min_interval):
            return
        by_dir = {subject.cgroup_dir: owner_of(subject) for subject in workloads.subjects}
        owners: dict[int, Owner] = {}
        found: dict[str, Owner] = {}
        for path, cgroup_id in self._walk():
            owner = by_dir.get(path)
            if owner is None:
                owner = _outside(path, found.get(path.rpartition("/")[0]) if path else None)
            found[path] = owners[cgroup_id] = owner
        self._gone.update((i, o) for i, o in self._owners.items() if i not in owners)
        self._unseen.difference_update(owners)
        for cgroup_id in owners.keys() & self._gone.keys():  # ids are reused
            del self._gone[cgroup_id]
        while len(self._gone) > REMEMBERED:
            self._gone.pop(next(iter(self._gone)))
        self._unseen.update(unknown.difference(owners))
        if len(self._unseen) > REMEMBERED:
            self._unseen.clear()
        self._owners = owners
        self.walks += 1
        self._version, self._walked_at = workloads.version, now

    def expire(self) -> None:
        """Walk at the next refresh in any case: a cgroup was made or removed."""
        self._version = -1

    def walk_ids(self) -> frozenset[int]:
        """Ids that exist right now."""
        return frozenset(cgroup_id for _, cgroup_id in self._walk())

    def owner(self, cgroup_id: int) -> Owner:
        """Never fails: an id nobody knows is a cgroup that came and went between two walks."""
        return self._owners.get(cgroup_id) or self._gone.get(cgroup_id) or Owner("gone", f"cgroup {cgroup_id}")
