"""VolumeRestrictions: enforces exclusive use of claims and disks (spec 05 §4).

A ReadWriteOncePod claim is rejected on every node while another pod uses it; removing that pod helps. Disks that pods
name directly, without a claim (GCE, AWS, iSCSI, RBD), are rejected on nodes where another pod uses them, unless both
pods only read; AWS disks are always rejected. Users are counted when pods are added and removed, trials included.
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
from control.scheduler.plugins.results import PASS_ALL, SKIP_FILTER
from control.scheduler.plugins.volumes.claims import Storage, named_claims, not_found
from control.scheduler.state.columns import Reasons16, Rows
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import selected
from koordlet.api.core.pod import Volume

IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
NO_DISK = "node(s) had no available disk"
Disk: TypeAlias = tuple[str, ...]
"""Identifies a disk."""
_KEY = "VolumeRestrictions"


@dataclass(frozen=True, slots=True)
class _Used:
    """The claims and disks of a pod that may conflict with other pods."""

    claims: tuple[str, ...]
    disks: tuple[tuple[Disk, bool], ...]
    """(disk, whether it is mounted read-only)."""


_NOTHING = _Used((), ())


class VolumeRestrictions(Plugin):
    """See the module text."""

    name: ClassVar[str] = "VolumeRestrictions"
    reads: ClassVar[Reads] = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._storage = Storage(handle)
        self._users: Counter[str] = Counter()
        """Claim -> number of pods that use it."""
        self._disks: dict[Disk, Counter[tuple[int, bool]]] = {}
        """Disk -> (row, whether it is mounted read-only) -> number of users."""
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
        reasons: Reasons16 = np.zeros(len(chosen), np.int16)
        if any(self._users[key] for key in alone):
            reasons[:] = self._in_use
        taken = {
            row
            for disk, reads in _used(pod).disks
            for row, they_read in self._disks.get(disk, ())
            if not (reads and they_read)
        }
        if taken:
            reasons[np.isin(chosen, list(taken))] = self._no_disk
        return reasons


def _add(counts: Counter[Any], key: Any, sign: int) -> None:
    counts[key] += sign
    if not counts[key]:
        del counts[key]


def _used(pod: PodInfo) -> _Used:
    """The claims and disks of the pod, cached in its shape; usually `_NOTHING`."""
    used: _Used | None = pod.shape.memo.get(_KEY)
    if used is None:
        disks = [(disk, reads) for volume in pod.shape.pod.spec.volumes for disk, reads in _disks(volume)]
        used = _Used(named_claims(pod), tuple(dict.fromkeys(disks)))
        used = pod.shape.memo[_KEY] = used if used != _NOTHING else _NOTHING
    return used


def _disks(volume: Volume) -> list[tuple[Disk, bool]]:
    """(disk, read-only). An RBD image has one entry per monitor: images with a common monitor are the same."""
    if volume.gce_persistent_disk is not None:
        return [(("gce", volume.gce_persistent_disk.pd_name), volume.gce_persistent_disk.read_only)]
    if volume.aws_elastic_block_store is not None:
        return [(("aws", volume.aws_elastic_block_store.volume_id), False)]
    if volume.iscsi is not None:
        return [(("iscsi", volume.iscsi.iqn), volume.iscsi.read_only)]
    rbd = volume.rbd
    return [] if rbd is None else [(("rbd", monitor, rbd.pool, rbd.image), rbd.read_only) for monitor in rbd.monitors]


def _shares(pod: PodInfo, old: Any, new: Any) -> bool:
    """Whether the removed pod used a claim or disk of the waiting pod."""
    if not isinstance(old, PodInfo):
        return True
    used_before, used_by_pod = _used(old), _used(pod)
    return bool(set(used_before.claims) & set(used_by_pod.claims)) or bool(
        {disk for disk, _ in used_before.disks} & {disk for disk, _ in used_by_pod.disks}
    )
