"""NodeVolumeLimits: limits the number of volumes of each CSI driver on a node (spec 05 §4).

The limits are in the node's CSINode object. A volume is counted once, however many pods on the node use it. A claim to
be provisioned counts for the driver of its storage class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import Code
from control.scheduler.plugins.results import PASS_ALL, SKIP_FILTER
from control.scheduler.plugins.volumes.claims import Storage, claim_names, claims_of
from control.scheduler.state.columns import IntArray, Reasons16, Rows
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import selected
from koordlet.api.core.storage import CSINode

_KEY = "NodeVolumeLimits"
_UNLIMITED: Final = np.iinfo(np.int64).max


class NodeVolumeLimits(Plugin):
    """See the module text. Only pods with claims of a CSI driver are filtered."""

    name: ClassVar[str] = "NodeVolumeLimits"
    reads: ClassVar[Reads] = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._storage = Storage(handle)
        self._claims = handle.counters.counter("claims", lambda shape: len(claim_names(shape.pod)))
        """[row]: claims of all drivers, counted once per pod; an upper bound of the volumes of each driver."""
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
            state.data[_KEY] = None  # other volume plugins report it at PreFilter if they are enabled
            return PASS_ALL
        requested = {volume: driver for key in keys for volume, driver in self._volume(key)}
        if not requested:
            return SKIP_FILTER
        state.data[_KEY] = requested
        return PASS_ALL

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        """Distinct volumes are counted only on nodes where the upper bound exceeds the limit."""
        requested: dict[str, str] | None = state.data[_KEY]
        chosen = selected(rows, self.table.size)
        reasons: Reasons16 = np.zeros(len(chosen), np.int16)
        if requested is None:
            reasons[:] = self._missing
            return reasons
        attached = self._claims.data[chosen]
        for driver, new in Counter(requested.values()).items():
            limits = self._limits(driver)
            if limits is not None:
                for at in np.flatnonzero(attached + new > limits[chosen]).tolist():
                    if not reasons[at] and self._exceeds(requested, driver, int(chosen[at]), int(limits[chosen[at]])):
                        reasons[at] = self._exceeded
        return reasons

    def _exceeds(self, requested: dict[str, str], driver: str, row: int, limit: int) -> bool:
        attached = {
            volume
            for other in self.table.pods[row].values()
            for key in claims_of(other)
            for volume, of in self._volume(key)
            if of == driver
        }
        new = {volume for volume, of in requested.items() if of == driver} - attached
        return bool(new) and len(new) + len(attached) > limit

    def _limits(self, driver: str) -> IntArray | None:
        """[row]: the limit of volumes of the driver; None if no node has a limit."""
        csi_nodes, end, table = self._storage.csi_nodes(), self.table.node_log.end, self.table
        if csi_nodes != self._csi_nodes or end != self._node_at:
            self._csi_nodes, self._node_at = csi_nodes, end
            self._by_driver.clear()
            for node in csi_nodes:
                row = table.rows.get(node.metadata.name)
                for driver_entry in node.spec.drivers if row is not None else ():
                    if driver_entry.allocatable is not None and driver_entry.allocatable.count is not None:
                        column = self._by_driver.setdefault(
                            driver_entry.name, np.full(table.size, _UNLIMITED, np.int64)
                        )
                        column[row] = driver_entry.allocatable.count
        limits = self._by_driver.get(driver)
        if limits is not None and len(limits) < table.size:  # rows of pods whose node does not exist yet
            limits = self._by_driver[driver] = np.pad(limits, (0, table.size - len(limits)), constant_values=_UNLIMITED)
        return limits

    def _volume(self, key: str) -> Sequence[tuple[str, str]]:
        """(identity of the volume, its driver) for a claim; empty without a CSI driver."""
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
