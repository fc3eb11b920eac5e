"""VolumeZone: a node must match the zone and region labels of the pod's volumes (spec 05 §4)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import Code, unresolvable
from control.scheduler.plugins.results import PASS_ALL, SKIP_FILTER
from control.scheduler.plugins.volumes.claims import Storage, class_name, named_claims, not_found
from control.scheduler.state.columns import Mask, Reasons16, Rows, count
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import PersistentVolumeClaim

CURRENT_NAMES: Final = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Deprecated label -> its current name."""
LABELS: Final = (*CURRENT_NAMES, *CURRENT_NAMES.values())
_KEY = "VolumeZone"


class VolumeZone(Plugin):
    """See the module text. Nodes without zone and region labels accept every volume."""

    name: ClassVar[str] = "VolumeZone"
    reads: ClassVar[Reads] = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._storage = Storage(handle)
        self._elsewhere = self.reasons.number(Code.UNRESOLVABLE, "node(s) had no available volume zone")

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("StorageClass", frozenset(("Add",))),
            EventInterest("Node", frozenset(("Add", "Label"))),
            EventInterest("PersistentVolumeClaim", frozenset(("Add", "Update"))),
            EventInterest("PersistentVolume", frozenset(("Add", "Update"))),
        )

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        required: list[tuple[str, frozenset[str]]] = []
        for key in named_claims(pod):
            claim = self._storage.claim(key)
            if claim is None:
                return PreFilterResult(unresolvable(not_found(key)))
            if not claim.spec.volume_name:
                problem = self._unbound(claim)
                if problem:
                    return PreFilterResult(unresolvable(problem))
                continue
            volume = self._storage.volume(claim.spec.volume_name)
            if volume is None:
                return PreFilterResult(unresolvable(f'persistentvolume "{claim.spec.volume_name}" not found'))
            labels = volume.metadata.labels
            for label in LABELS:
                values = _zones(labels[label]) if label in labels else None
                if values:
                    required.append((label, values))
        if not required:
            return SKIP_FILTER
        state.data[_KEY] = required
        return PASS_ALL

    def _unbound(self, claim: PersistentVolumeClaim) -> str:
        """The problem of a claim without a volume; empty if it is bound for the node of its pod."""
        name = class_name(claim)
        if not name:
            return "PersistentVolumeClaim had no pv name and storageClass name"
        storage_class = self._storage.storage_class(claim)
        if storage_class is None:
            return f'storageclass.storage.k8s.io "{name}" not found'
        if storage_class.volume_binding_mode is None:
            return f'VolumeBindingMode not set for StorageClass "{name}"'
        return "" if storage_class.volume_binding_mode == "WaitForFirstConsumer" else "PersistentVolume had no name"

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        required: list[tuple[str, frozenset[str]]] = state.data[_KEY]
        labels = self.table.labels
        unlabelled: Mask = np.ones(count(rows, self.table.size), np.bool_)
        for label in LABELS:
            unlabelled &= labels.column(label).ids.data[rows] == 0
        refused: Mask = np.zeros(len(unlabelled), np.bool_)
        for label, values in required:
            in_zone = partial(_among, values)
            own = labels.column(label)
            matches = own.select(rows, in_zone)
            if label in CURRENT_NAMES:  # nodes may have only the current name
                matches |= (own.ids.data[rows] == 0) & labels.column(CURRENT_NAMES[label]).select(rows, in_zone)
            refused |= ~matches
        reasons: Reasons16 = (refused & ~unlabelled).astype(np.int16)
        return reasons * np.int16(self._elsewhere)


def _zones(value: str) -> frozenset[str] | None:
    """The zones in a label value; None for a list with an empty element, which is ignored."""
    zones = frozenset(part.strip() for part in value.split("__"))
    return None if "" in zones else zones


def _among(values: frozenset[str], value: str | None) -> bool:
    return value in values
