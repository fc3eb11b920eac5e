"""VolumeRestrictions: what only one may use at a time is used by no other (spec 05 §4).

A claim for one pod alone (ReadWriteOncePod) is refused on every node while another pod uses it; removing that pod
helps. Disks that pods name directly, without a claim (GCE, AWS, iSCSI, RBD), are refused where another pod uses them,
unless both only read; AWS disks always. Users are counted as pods come and go, trials included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import Code, unresolvable
from control.scheduler.plugins.answers import PASS_ALL, SKIP_FILTER
from control.scheduler.plugins.volumes.claims import Storage, named_claims, not_found
from control.scheduler.state.columns import Reasons16, Rows
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import selected
from koordlet.api.core.pod import Volume

IN_USE = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
NO_DISK = "node(s) had no available disk"
Disk: TypeAlias = tuple[str, ...]
"""What makes two volumes the same disk."""
_KEY = "VolumeRestrictions"


@dataclass(frozen=True, slots=True)
class _Used:
    """What a pod uses that may be refused to others."""

    claims: tuple[str, ...]
    disks: tuple[tuple[Disk, bool], ...]
    """(disk, whether it is only read)"""


_NOTHING = _Used((), ())


class VolumeRestrictions(Plugin):
    """See the module text."""

    name: ClassVar[str] = "VolumeRestrictions"
    reads: ClassVar[Reads] = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._storage = Storage(handle)
        self._users: Counter[str] = Counter()
        """By claim."""
        self._disks: dict[Disk, Counter[tuple[int, bool]]] = {}
        """Disk -> (row, whether it is only read) -> users."""
        self._no_disk = self.reasons.number(Code.UNSCHEDULABLE, NO_DISK)
        self._in_use = self.reasons.number(Code.UNSCHEDULABLE, IN_USE)
        self.table.listen(self)

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("AssignedPod", frozenset(("Delete",)), _shares),
            EventInterest("PersistentVolumeClaim", frozenset(("Add", "Update"))),
        )

    def pod_added(self, row: int, pod: PodInfo) -> None:
        self._count(row, pod, 1)

    def pod_removed(self, row: int, pod: PodInfo) -> None:
        self._count(row, pod, -1)

    def _count(self, row: int, pod: PodInfo, sign: int) -> None:
        used = _used(pod)
        if used is _NOTHING:
            return
        for key in used.claims:
            _add(self._users, key, sign)
        for disk, reads in used.disks:
            users = self._disks.setdefault(disk, Counter())
            _add(users, (row, reads), sign)
            if not users:
                del self._disks[disk]

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        used = _used(pod)
        if used is _NOTHING:
            return SKIP_FILTER
        alone: list[str] = []
        for key in used.claims:
            claim = self._storage.claim(key)
            if claim is None:
                return PreFilterResult(unresolvable(not_found(key)))
            if "ReadWriteOncePod" in claim.spec.access_modes:
                alone.append(key)
        if not used.disks and not any(self._users[key] for key in alone):
            return SKIP_FILTER
        state.data[_KEY] = alone
        return PASS_ALL

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        alone: list[str] = state.data[_KEY]
        chosen = selected(rows, self.table.size)
        answer: Reasons16 = np.zeros(len(chosen), np.int16)
        if any(self._users[key] for key in alone):
            answer[:] = self._in_use
        taken = {
            row
            for disk, reads in _used(pod).disks
            for row, they_read in self._disks.get(disk, ())
            if not (reads and they_read)
        }
        if taken:
            answer[np.isin(chosen, list(taken))] = self._no_disk
        return answer


def _add(counts: Counter[Any], key: Any, sign: int) -> None:
    counts[key] += sign
    if not counts[key]:
        del counts[key]


def _used(pod: PodInfo) -> _Used:
    """Nothing, mostly."""
    found: _Used | None = pod.shape.memo.get(_KEY)
    if found is None:
        disks = [(disk, reads) for one in pod.shape.pod.spec.volumes for disk, reads in _disks(one)]
        found = _Used(named_claims(pod), tuple(dict.fromkeys(disks)))
        found = pod.shape.memo[_KEY] = found if found != _NOTHING else _NOTHING
    return found


def _disks(volume: Volume) -> list[tuple[Disk, bool]]:
    """An RBD image counts once for each of its monitors: two are the same when they have one in common."""
    if volume.gce_persistent_disk is not None:
        return [(("gce", volume.gce_persistent_disk.pd_name), volume.gce_persistent_disk.read_only)]
    if volume.aws_elastic_block_store is not None:
        return [(("aws", volume.aws_elastic_block_store.volume_id), False)]
    if volume.iscsi is not None:
        return [(("iscsi", volume.iscsi.iqn), volume.iscsi.read_only)]
    rbd = volume.rbd
    return [] if rbd is None else [(("rbd", one, rbd.pool, rbd.image), rbd.read_only) for one in rbd.monitors]


def _shares(pod: PodInfo, old: Any, new: Any) -> bool:
    """Whether a pod that is gone used one of the waiting pod's claims or disks."""
    if not isinstance(old, PodInfo):
        return True
    theirs, ours = _used(old), _used(pod)
    return bool(set(theirs.claims) & set(ours.claims)) or bool(
        {disk for disk, _ in theirs.disks} & {disk for disk, _ in ours.disks}
    )
