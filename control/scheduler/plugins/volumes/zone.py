"""VolumeZone: a volume's zone and region labels hold for the nodes that use it (spec 05 §4)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np

from control.scheduler.columns import Mask, Reasons16, Rows, count
from control.scheduler.handle import Handle
from control.scheduler.plugin import CycleState, Interest, Plugin, PreFilterResult, Reads
from control.scheduler.plugins.answers import PASS_ALL, SKIP_FILTER
from control.scheduler.plugins.volumes.claims import Storage, claims_of
from control.scheduler.pods import PodInfo
from control.scheduler.status import Code, unresolvable

ZONE_LABELS: Final = {
    "topology.kubernetes.io/zone": "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region": "failure-domain.beta.kubernetes.io/region",
}
"""Label -> its old name."""
_MODERN: Final = {old: new for new, old in ZONE_LABELS.items()}
_KEY = "VolumeZone"


class VolumeZone(Plugin):
    """See the module text. Nodes without any zone or region label take every volume."""

    name: ClassVar[str] = "VolumeZone"
    reads: ClassVar[Reads] = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._storage = Storage(handle)
        self._elsewhere = self.reasons.number(Code.UNRESOLVABLE, "node(s) had no available volume zone")

    def interests(self) -> Sequence[Interest]:
        return (
            Interest("StorageClass", frozenset(("Add",))),
            Interest("Node", frozenset(("Add", "Label"))),
            Interest("PersistentVolumeClaim", frozenset(("Add", "Update"))),
            Interest("PersistentVolume", frozenset(("Add", "Update"))),
        )

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        required: list[tuple[str, frozenset[str]]] = []
        for key in claims_of(pod):
            name = key.partition("/")[2]
            claim = self._storage.claim(key)
            if claim is None:
                return PreFilterResult(unresolvable(f'persistentvolumeclaim "{name}" not found'))
            if not claim.spec.volume_name:
                if self._storage.waits_for_consumer(claim):
                    continue
                return PreFilterResult(unresolvable("PersistentVolumeClaim had no pv name and storageClass name"))
            volume = self._storage.volume(claim.spec.volume_name)
            if volume is None:
                return PreFilterResult(unresolvable(f'persistentvolume "{claim.spec.volume_name}" not found'))
            labels = volume.metadata.labels
            required += [
                (_MODERN.get(label, label), frozenset(value.split("__")))
                for label, value in labels.items()
                if label in ZONE_LABELS or label in _MODERN
            ]
        if not required:
            return SKIP_FILTER
        state.data[_KEY] = required
        return PASS_ALL

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        required: list[tuple[str, frozenset[str]]] = state.data[_KEY]
        labels = self.table.labels
        anywhere: Mask = np.ones(count(rows, self.table.size), np.bool_)
        for label in (*ZONE_LABELS, *_MODERN):
            anywhere &= labels.column(label).ids.data[rows] == 0
        refused: Mask = np.zeros(len(anywhere), np.bool_)
        for label, values in required:
            old, new = labels.column(ZONE_LABELS[label]), labels.column(label)
            wanted = partial(_among, values)
            there = new.select(rows, wanted) | ((new.ids.data[rows] == 0) & old.select(rows, wanted))
            refused |= ~there
        answer: Reasons16 = (refused & ~anywhere).astype(np.int16)
        return answer * np.int16(self._elsewhere)


def _among(values: frozenset[str], value: str | None) -> bool:
    return value in values
