"""NodeVolumeLimits: no more volumes of a CSI driver on a node than the driver allows there (spec 05 §4).

A driver's limit is in the node's CSINode object. Volumes are counted once however many pods on the node use them; a
claim that is to be provisioned counts for the driver of its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from control.scheduler.handle import Handle
from control.scheduler.plugin import CycleState, Interest, Plugin, PreFilterResult, Reads
from control.scheduler.plugins.answers import PASS_ALL, SKIP_FILTER
from control.scheduler.plugins.volumes.claims import Storage, claims_of
from control.scheduler.pods import PodInfo
from control.scheduler.status import Code, unresolvable

_KEY = "NodeVolumeLimits"


class NodeVolumeLimits(Plugin):
    """See the module text. A plugin by node: only pods with claims of a driver come this far."""

    name: ClassVar[str] = "NodeVolumeLimits"
    reads: ClassVar[Reads] = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._storage = Storage(handle)
        self._exceeded = self.reasons.number(Code.UNSCHEDULABLE, "node(s) exceed max volume count")

    def interests(self) -> Sequence[Interest]:
        return (
            Interest("CSINode", frozenset(("Add", "Update"))),
            Interest("AssignedPod", frozenset(("Delete",)), lambda pod, old, new: bool(claims_of(pod))),
            Interest("PersistentVolumeClaim", frozenset(("Add", "Update"))),
        )

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        keys = claims_of(pod)
        if not keys:
            return SKIP_FILTER
        missing = next((key for key in keys if self._storage.claim(key) is None), None)
        if missing is not None:
            return PreFilterResult(unresolvable(f'persistentvolumeclaim "{missing.partition("/")[2]}" not found'))
        wanted = {volume: driver for key in keys for volume, driver in self._volume(key)}
        if not wanted:
            return SKIP_FILTER
        state.data[_KEY] = wanted
        return PASS_ALL

    def filter_row(self, state: CycleState, pod: PodInfo, row: int) -> int:
        wanted: dict[str, str] = state.data[_KEY]
        csi_node = self._storage.csi_node(self.table.names[row])
        if csi_node is None:
            return 0
        limits = {
            driver.name: driver.allocatable.count
            for driver in csi_node.spec.drivers
            if driver.allocatable is not None and driver.allocatable.count is not None
        }
        if not limits.keys() & set(wanted.values()):
            return 0
        attached = {
            volume: driver
            for other in self.table.pods[row].values()
            for key in claims_of(other)
            for volume, driver in self._volume(key)
        }
        for driver, limit in limits.items():
            new = sum(1 for volume, of in wanted.items() if of == driver and volume not in attached)
            if new and new + sum(1 for of in attached.values() if of == driver) > limit:
                return self._exceeded
        return 0

    def _volume(self, key: str) -> Sequence[tuple[str, str]]:
        """(what is attached, its driver) for a claim; empty when no CSI driver has to do with it."""
        claim = self._storage.claim(key)
        if claim is None:
            return ()
        volume = self._storage.volume(claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None:
            csi = volume.spec.csi
            return () if csi is None else ((f"{csi.driver}/{csi.volume_handle}", csi.driver),)
        storage_class = self._storage.storage_class(claim)
        return () if storage_class is None else ((f"claim/{key}", storage_class.provisioner),)
