"""The newest known versions of QueueUnits: the cache's, or what this process has written and the cache has not seen."""

from __future__ import annotations

from typing import Any

from koordlet.api.crs.queueing import QueueUnit
from koordlet.api.encoding.wire import Time, to_builtins
from koordlet.kube import Client, Informer


class UnitStates:
    """Reads and writes the statuses of units. Every write is conditional on the version that was read."""

    def __init__(self, client: Client, informer: Informer[QueueUnit]) -> None:
        self._client = client
        self._informer = informer
        self._written: dict[str, tuple[str, QueueUnit]] = {}
        """uid -> (version that was patched, result)."""

    def get(self, key: str) -> QueueUnit | None:
        unit = self._informer.get(key)
        return None if unit is None else self._newest(unit)

    def list(self) -> list[QueueUnit]:
        cached = self._informer.list()
        if self._written:
            present = {unit.metadata.uid for unit in cached}
            self._written = {uid: pair for uid, pair in self._written.items() if uid in present}
        return [self._newest(unit) for unit in cached]

    def _newest(self, unit: QueueUnit) -> QueueUnit:
        base, written = self._written.get(unit.metadata.uid, ("", unit))
        if unit.metadata.resource_version == base:
            return written
        self._written.pop(unit.metadata.uid, None)
        return unit

    async def patch(self, unit: QueueUnit, now: float, **fields: Any) -> QueueUnit:
        """Set fields of the status. Raises KubeError: Conflict if another writer was first."""
        if fields.get("phase", unit.status.phase) != unit.status.phase:
            fields["lastUpdateTime"] = Time.from_unix(now)
        meta = unit.metadata
        result = await self._client.patch(
            QueueUnit,
            meta.name,
            meta.namespace,
            body={"metadata": {"resourceVersion": meta.resource_version}, "status": to_builtins(fields)},
            subresource="status",
        )
        cached = self._informer.get(meta.key)
        if cached is not None and cached.metadata.uid == meta.uid:
            self._written[meta.uid] = (cached.metadata.resource_version, result)
        return result
