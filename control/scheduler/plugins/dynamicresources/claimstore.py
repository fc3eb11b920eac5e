"""Claims, device classes and devices from the caches, with the allocations that are being written.

The cache shows an allocation later than it was decided. Until then the devices are kept away from other pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final
from weakref import ReferenceType, WeakKeyDictionary, ref

from control.scheduler.framework.handle import Handle
from control.scheduler.plugins.dynamicresources.pools import DeviceId, Pools
from control.scheduler.state.table import NodeTable
from koordlet.api.core.claims import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice
from koordlet.kube import Informer

MAX_CHANGES: Final = 100_000


class DeviceChanges:
    """The nodes whose devices were taken or released, in order, so that results by node can be kept."""

    def __init__(self) -> None:
        self.epoch = 0
        """Raised when the devices of all nodes may have changed."""
        self._nodes: list[str] = []

    def node(self, name: str) -> None:
        self._nodes.append(name)
        if len(self._nodes) > MAX_CHANGES:
            self.everything()

    def everything(self) -> None:
        self.epoch += 1
        self._nodes.clear()

    @property
    def end(self) -> int:
        """The number of changes in this epoch."""
        return len(self._nodes)

    def since(self, position: int) -> list[str]:
        return self._nodes[position:]


class ClaimStore:
    """One per table, shared by all profiles: what a pod of one profile is getting is taken for pods of the others.
    Without `handle.objects` there are no claims."""

    _of: ClassVar[WeakKeyDictionary[NodeTable, ReferenceType[ClaimStore]]] = WeakKeyDictionary()
    """The plugins keep the store. It holds informers, whose handlers may hold the table."""

    @classmethod
    def of(cls, handle: Handle) -> ClaimStore:
        """The store of the handle's table."""
        known = cls._of.get(handle.table)
        store = None if known is None else known()
        if store is None:
            store = cls(handle)
            cls._of[handle.table] = ref(store)
        return store

    def __init__(self, handle: Handle) -> None:
        objects = handle.objects
        self._claims: Informer[ResourceClaim] | None = None
        self._classes: Informer[DeviceClass] | None = None
        self._slices: Informer[ResourceSlice] | None = None
        self._devices: dict[str, tuple[DeviceId, ...]] = {}
        """By uid of the claim: devices that the API server knows as allocated."""
        self._uses: Counter[DeviceId] = Counter()
        self._pools: Pools | None = None
        self._by_resource: dict[str, str] | None = None
        self.changes = DeviceChanges()
        self._assumed: dict[str, tuple[DeviceId, ...]] = {}
        """By uid of the claim: devices that this process allocated and the cache does not show yet."""
        if objects is None:
            return
        self._claims = objects.informer(ResourceClaim)
        self._classes = objects.informer(DeviceClass)
        self._slices = objects.informer(ResourceSlice)
        self._claims.add_handler(self._claim_seen, lambda _, new: self._claim_seen(new), self._claim_gone)
        self._classes.add_handler(*[lambda *_: self._classes_changed()] * 3)
        self._slices.add_handler(self._slices_changed, lambda _, new: self._slices_changed(new), self._slices_changed)

    def claim(self, key: str) -> ResourceClaim | None:
        return self._claims.get(key) if self._claims is not None else None

    def classes(self, names: Iterable[str]) -> Mapping[str, DeviceClass]:
        """Those of the classes that exist."""
        informer = self._classes
        if informer is None:
            return {}
        return {name: known for name in names if (known := informer.get(name)) is not None}

    def extended_resources(self) -> Mapping[str, str]:
        """Extended resource -> the class whose devices stand for it."""
        if self._by_resource is None:
            classes = sorted(
                self._classes.list() if self._classes is not None else (), key=lambda each: each.metadata.name
            )
            named = {each.spec.extended_resource_name: each.metadata.name for each in classes}
            named.pop("", None)
            self._by_resource = named
        return self._by_resource

    def pools(self) -> Pools:
        if self._pools is None:
            self._pools = Pools.of(self._slices.list() if self._slices is not None else ())
        return self._pools

    def taken(self, device: DeviceId) -> bool:
        """Whether the device is allocated."""
        return self._uses[device] > 0

    def allocating(self, claim: ResourceClaim) -> bool:
        """Whether an allocation of the claim is being written."""
        return claim.metadata.uid in self._assumed

    def assume(self, claim: ResourceClaim, allocation: AllocationResult) -> None:
        """The claim gets `allocation`, unless it is forgotten. The cache confirms it."""
        devices = self._assumed[claim.metadata.uid] = devices_of(allocation)
        self._count(1, devices)

    def forget(self, claim: ResourceClaim) -> None:
        """The allocation was not written."""
        self._count(-1, self._assumed.pop(claim.metadata.uid, ()))

    def _claim_seen(self, claim: ResourceClaim) -> None:
        self._count(-1, self._devices.pop(claim.metadata.uid, ()))
        if claim.status.allocation is not None:
            self.forget(claim)
            devices = self._devices[claim.metadata.uid] = devices_of(claim.status.allocation)
            self._count(1, devices)

    def _claim_gone(self, claim: ResourceClaim) -> None:
        self._count(-1, self._devices.pop(claim.metadata.uid, ()))
        self.forget(claim)

    def _classes_changed(self) -> None:
        self._by_resource = None
        self.changes.everything()

    def _slices_changed(self, _: ResourceSlice) -> None:
        self._pools = None
        self.changes.everything()

    def _count(self, sign: int, devices: Iterable[DeviceId]) -> None:
        for device in devices:
            self._uses[device] += sign
            if not self._uses[device]:
                del self._uses[device]
            if self._pools is None:
                continue  # no results are kept until the pools are known
            node = self._pools.nodes.get(device)
            if node:
                self.changes.node(node)
            elif node is not None:
                self.changes.everything()


def devices_of(allocation: AllocationResult) -> tuple[DeviceId, ...]:
    """The devices that no other claim can get."""
    return tuple(
        DeviceId(each.driver, each.pool, each.device) for each in allocation.devices.results if not each.admin_access
    )
