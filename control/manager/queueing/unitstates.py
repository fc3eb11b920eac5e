"""The newest known versions of QueueUnits: the cache's, or what this process has read or written and the cache has not
seen. Versions are compared as numbers, which Kubernetes guarantees (KEP-5504)."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Final

import msgspec

from control.boundedpods import bounded_object
from koordlet.api.crs.queueing import QueueUnit
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Time, to_builtins
from koordlet.api.registry import resource_for
from koordlet.app.loopslice import yield_to_loop
from koordlet.kube import Client, Informer
from koordlet.kube.decode import ObjectDecoder

_RESOURCE: Final = resource_for(QueueUnit)
_DECODER: Final = ObjectDecoder(QueueUnit, _RESOURCE)


class UnitStates:
    """Reads and writes the statuses of units. Every write is conditional on the version that was read."""

    def __init__(self, client: Client, informer: Informer[QueueUnit]) -> None:
        self._client = client
        self._informer = informer
        self._newer: dict[str, QueueUnit] = {}
        """By uid: versions that the cache may not have."""

    def get(self, key: str) -> QueueUnit | None:
        unit = self._informer.get(key)
        return None if unit is None else self._newest(unit)

    def list(self) -> list[QueueUnit]:
        cached = self._informer.list()
        if self._newer:
            present = {unit.metadata.uid for unit in cached}
            self._newer = {uid: unit for uid, unit in self._newer.items() if uid in present}
        return [self._newest(unit) for unit in cached]

    def _newest(self, unit: QueueUnit) -> QueueUnit:
        newer = self._newer.get(unit.metadata.uid)
        if newer is None:
            return unit
        if _version(newer) > _version(unit):
            return newer
        del self._newer[unit.metadata.uid]
        return unit

    async def read(self, unit: QueueUnit) -> QueueUnit | None:
        """The unit as the API server has it now; None if it is gone. Raises KubeError."""
        meta = unit.metadata
        stored = await self._client.get(QueueUnit, meta.name, meta.namespace)
        return self._keep(stored) if stored.metadata.uid == meta.uid else None

    async def read_all(self) -> bool:
        """Read every unit from the API server. Returns whether the cache has them all. Raises KubeError."""
        complete = True
        async with aclosing(self._client.pages(_RESOURCE)) as pages:
            async for page in pages:
                for raw in page.items or () if page is not None else ():
                    complete &= self._take(raw)
                    await yield_to_loop()
        return complete

    def _take(self, raw: bytes | msgspec.Raw) -> bool:
        try:
            unit = _DECODER.decode(raw)
        except wire.WireError:
            return True  # the informer logs and counts it, and keeps the last valid version
        cached = self._informer.get(unit.metadata.key)
        if cached is None or cached.metadata.uid != unit.metadata.uid:
            return False  # the cache has not seen it, or has already seen its deletion
        self._keep(unit)
        return True

    def forget(self, unit: QueueUnit) -> None:
        """The unit was deleted."""
        self._newer.pop(unit.metadata.uid, None)

    async def patch(self, unit: QueueUnit, now: float, **fields: Any) -> QueueUnit:
        """Set fields of the status. Raises KubeError: Conflict if another writer was first."""
        if fields.get("phase", unit.status.phase) != unit.status.phase:
            fields["lastUpdateTime"] = Time.from_unix(now)
        meta = unit.metadata
        return self._keep(
            await self._client.patch(
                QueueUnit,
                meta.name,
                meta.namespace,
                body={"metadata": {"resourceVersion": meta.resource_version}, "status": to_builtins(fields)},
                subresource="status",
            )
        )

    def _keep(self, unit: QueueUnit) -> QueueUnit:
        try:
            bounded_object(unit)
        except wire.WireError:
            return unit  # the informer does not keep it either
        known = self._newer.get(unit.metadata.uid)
        if known is None or _version(unit) > _version(known):
            self._newer[unit.metadata.uid] = unit
        return unit


def _version(unit: QueueUnit) -> int:
    return int(unit.metadata.resource_version)
