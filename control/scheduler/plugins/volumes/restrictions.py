"""VolumeRestrictions: a claim that one pod alone may use (ReadWriteOncePod) is used by no other (spec 05 §4).

The disks of GCE, AWS, iSCSI and RBD that pods name directly, without a claim, are not looked at: Kubernetes has moved
them to CSI.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from control.scheduler.handle import Handle
from control.scheduler.plugin import CycleState, Interest, Plugin, PreFilterResult
from control.scheduler.plugins.answers import SKIP_FILTER
from control.scheduler.plugins.volumes.claims import Storage, claims_of
from control.scheduler.pods import PodInfo
from control.scheduler.status import unresolvable, unschedulable

IN_USE = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"


class VolumeRestrictions(Plugin):
    """See the module text. Whoever uses a claim is counted as pods come and go."""

    name: ClassVar[str] = "VolumeRestrictions"

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._storage = Storage(handle)
        self._users: dict[str, int] = {}
        self.table.listen(self)

    def interests(self) -> Sequence[Interest]:
        return (
            Interest("AssignedPod", frozenset(("Delete",)), _shares_a_claim),
            Interest("PersistentVolumeClaim", frozenset(("Add", "Update"))),
        )

    def pod_added(self, row: int, pod: PodInfo) -> None:
        for key in claims_of(pod):
            self._users[key] = self._users.get(key, 0) + 1

    def pod_removed(self, row: int, pod: PodInfo) -> None:
        for key in claims_of(pod):
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        for key in claims_of(pod):
            claim = self._storage.claim(key)
            if claim is None:
                name = key.partition("/")[2]
                return PreFilterResult(unresolvable(f'persistentvolumeclaim "{name}" not found'))
            if "ReadWriteOncePod" in claim.spec.access_modes and self._users.get(key):
                return PreFilterResult(unschedulable(IN_USE))
        return SKIP_FILTER


def _shares_a_claim(pod: PodInfo, old: Any, new: Any) -> bool:
    """Whether a pod that is gone used one of the waiting pod's claims."""
    return not isinstance(old, PodInfo) or bool(set(claims_of(old)) & set(claims_of(pod)))
