"""A cluster object that koordlet owns and that describes its node: one of each kind, with the node's name.

The object is watched and written when it differs: created if it is missing, else patched. A conflicting write by
another client, or a 429 of the API server, causes a retry with the object as it is then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from koordlet.api.core import Node
from koordlet.api.crs.device import Device
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.meta import ObjectMeta, OwnerReference
from koordlet.app.logging import get_logger
from koordlet.kube import Client, Conflict, NotFound, ObjectInformer, TooManyRequests
from koordlet.prometheus import Registries

log = get_logger(__name__)
T = TypeVar("T", Device, NodeResourceTopology)

RETRY_DELAYS_S = (0.01, 0.05, 0.25)
"""Delays between the four attempts to write."""


class OwnObject(Generic[T]):
    """Add the informer `stored` to the runner. Rounds are counted by outcome in the metric family `reports`."""

    def __init__(
        self, client: Client, kind: type[T], node_name: str, registries: Registries, *, reports: str, title: str
    ) -> None:
        self.stored: ObjectInformer[T] = ObjectInformer(client, kind, node_name)
        self._kind: type[T] = kind
        self._client = client
        self._name = node_name
        self._registries = registries
        self._reports = reports
        self._title = title

    def count_skipped(self) -> None:
        """Count a round that had nothing to report."""
        self._registries.count(self._reports, "skipped")

    async def update(self, new: Callable[[], T | None], patch: Callable[[T], dict[str, Any]]) -> None:
        """Write the difference. `new` returns the object to create (None: nothing). `patch` returns the merge patch for
        the stored object, with the resourceVersion it was made for (empty: nothing to write). Raises KubeError after
        counting it."""
        if not self.stored.synced.is_set():
            return  # it is unknown whether the object exists
        current = self.stored.object
        try:
            for delay in (*RETRY_DELAYS_S, None):
                try:
                    outcome = await self._write(current, new, patch)
                    break
                except (Conflict, TooManyRequests):
                    if delay is None:
                        raise
                    await asyncio.sleep(delay)
                except NotFound:
                    if delay is None or current is None:
                        raise
                current = await self._fetch()
        except Exception:
            self._registries.count(self._reports, "failed")
            raise
        if outcome:
            self._registries.count(self._reports, outcome)
            log.info("Reported to the API server", object=self._title, node=self._name, outcome=outcome)

    async def _write(
        self, current: T | None, new: Callable[[], T | None], patch: Callable[[T], dict[str, Any]]
    ) -> str | None:
        """The outcome for the counter; None if nothing was written."""
        if current is None:
            created = new()
            if created is None:
                return None
            await self._client.create(created, field_manager="koordlet")
            return "created"
        body = patch(current)
        if not body:
            return None
        await self._client.patch(self._kind, self._name, body=body, field_manager="koordlet")
        return "updated"

    async def _fetch(self) -> T | None:
        try:
            return await self._client.get(self._kind, self._name)
        except NotFound:
            return None


def owned_by(node: Node, *, labels: dict[str, str], annotations: dict[str, str]) -> ObjectMeta:
    """Metadata of an object that has the node's name and is garbage-collected with the Node."""
    meta = node.metadata
    owner = OwnerReference(
        api_version="v1", kind="Node", name=meta.name, uid=meta.uid, controller=True, block_owner_deletion=True
    )
    return ObjectMeta(name=meta.name, labels=labels, annotations=annotations, owner_references=[owner])
