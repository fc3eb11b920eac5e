"""NodeVolumeLimits: no more volumes of a CSI driver on a node than the driver allows there (spec 05 §4).

A driver's limit is in the node's CSINode object. Volumes are counted once however many pods on the node use them; a
claim that is to be provisioned counts for the driver of its class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import Code
from control.scheduler.plugins.answers import PASS_ALL, SKIP_FILTER
from control.scheduler.plugins.volumes.claims import Storage, claim_names, claims_of
from control.scheduler.state.columns import IntArray, Reasons16, Rows
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import selected
from koordlet.api.core.storage import CSINode

_KEY = "NodeVolumeLimits"
_UNLIMITED: Final = np.iinfo(np.int64).max


class NodeVolumeLimits(Plugin):
    """See the module text. Only pods with claims of a driver are asked about."""

    name: ClassVar[str] = "NodeVolumeLimits"
    reads: ClassVar[Reads] = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._storage = Storage(handle)
        self._claims = handle.counters.counter("claims", lambda shape: len(claim_names(shape.pod)))
        """By row: of all drivers, as often as pods name them, so never less than a driver's volumes."""
        self._csi_nodes: list[CSINode] = []
        self._node_at = -1
        self._by_driver: dict[str, IntArray] = {}
        self._exceeded = self.reasons.number(Code.UNSCHEDULABLE, "node(s) exceed max volume count")
        self._missing = self.reasons.number(Code.UNRESOLVABLE, "a persistentvolumeclaim of the pod was not found")

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("CSINode", frozenset(("Add", "Update"))),
            EventInterest("AssignedPod", frozenset(("Delete",)), lambda pod, old, new: bool(claims_of(pod))),
            EventInterest("PersistentVolumeClaim", frozenset(("Add", "Update"))),
        )

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        keys = claims_of(pod)
        if not keys:
            return SKIP_FILTER
        if any(self._storage.claim(key) is None for key in keys):
            state.data[_KEY] = None  # others name it, at PreFilter, if they are enabled
            return PASS_ALL
        wanted = {volume: driver for key in keys for volume, driver in self._volume(key)}
        if not wanted:
            return SKIP_FILTER
        state.data[_KEY] = wanted
        return PASS_ALL

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        """Volumes are told apart only on nodes where as many claims as there are would be too much."""
        wanted: dict[str, str] | None = state.data[_KEY]
        chosen = selected(rows, self.table.size)
        answer: Reasons16 = np.zeros(len(chosen), np.int16)
        if wanted is None:
            answer[:] = self._missing
            return answer
        there = self._claims.data[chosen]
        for driver, new in Counter(wanted.values()).items():
            limits = self._limits(driver)
            if limits is not None:
                for at in np.flatnonzero(there + new > limits[chosen]).tolist():
                    if not answer[at] and self._exceeds(wanted, driver, int(chosen[at]), int(limits[chosen[at]])):
                        answer[at] = self._exceeded
        return answer

    def _exceeds(self, wanted: dict[str, str], driver: str, row: int, limit: int) -> bool:
        attached = {
            volume
            for other in self.table.pods[row].values()
            for key in claims_of(other)
            for volume, of in self._volume(key)
            if of == driver
        }
        new = {volume for volume, of in wanted.items() if of == driver} - attached
        return bool(new) and len(new) + len(attached) > limit

    def _limits(self, driver: str) -> IntArray | None:
        """[row]: how many volumes of the driver a node takes; None: no node says."""
        found, end, table = self._storage.csi_nodes(), self.table.node_log.end, self.table
        if found != self._csi_nodes or end != self._node_at:
            self._csi_nodes, self._node_at = found, end
            self._by_driver.clear()
            for one in found:
                row = table.rows.get(one.metadata.name)
                for said in one.spec.drivers if row is not None else ():
                    if said.allocatable is not None and said.allocatable.count is not None:
                        column = self._by_driver.setdefault(said.name, np.full(table.size, _UNLIMITED, np.int64))
                        column[row] = said.allocatable.count
        limits = self._by_driver.get(driver)
        if limits is not None and len(limits) < table.size:  # rows of pods whose node is not known yet
            limits = self._by_driver[driver] = np.pad(limits, (0, table.size - len(limits)), constant_values=_UNLIMITED)
        return limits

    def _volume(self, key: str) -> Sequence[tuple[str, str]]:
        """(what is attached, its driver) for a claim; empty when no CSI driver has to do with it."""
        claim = self._storage.claim(key)
        if claim is None:
            return ()
        volume = self._storage.volume(claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None:
            csi = volume.spec.csi
            if csi is None or not csi.driver or not csi.volume_handle:
                return ()
            return ((f"{csi.driver}/{csi.volume_handle}", csi.driver),)
        storage_class = self._storage.storage_class(claim)
        if storage_class is None or not storage_class.provisioner:
            return ()
        return ((f"claim/{key}", storage_class.provisioner),)
