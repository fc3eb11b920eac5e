"""An object of the API server that says what koordlet knows of its node: one of each kind, named like the node.

It is watched, and written when it differs: made if it is missing, else patched. Somebody else's write in between makes
another try with what they left; so does a server that is busy.
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

RETRY_SECONDS = (0.01, 0.05, 0.25)
"""Waits between the four tries to write."""


class OwnObject(Generic[T]):
    """`stored` must run as a service of its own. Rounds are counted by outcome in the family `reports`."""

    def __init__(
        self, client: Client, kind: type[T], node_name: str, registries: Registries, *, reports: str, title: str
    ) -> None:
        self.stored: ObjectInformer[T] = ObjectInformer(client, kind, node_name)
        self._kind: type[T] = kind
        self._client, self._name, self._registries = client, node_name, registries
        self._reports, self._title = reports, title

    def skipped(self) -> None:
        """Count a round that had nothing to say."""
        self._registries.count(self._reports, "skipped")

    async def bring_up_to_date(self, new: Callable[[], T | None], patch: Callable[[T], dict[str, Any]]) -> None:
        """Write the difference: `new` is what to create (None: nothing), `patch` the merge patch for what is stored
        (empty: nothing to write), with the resourceVersion it was made for. Raises KubeError, after counting it."""
        if not self.stored.synced.is_set():
            return  # whether the object exists is not known
        current = self.stored.object
        try:
            for wait in (*RETRY_SECONDS, None):
                try:
                    outcome = await self._write(current, new, patch)
                    break
                except (Conflict, TooManyRequests):
                    if wait is None:
                        raise
                    await asyncio.sleep(wait)
                except NotFound:
                    if wait is None or current is None:
                        raise
                current = await self._fetch()
        except Exception:
            self._registries.count(self._reports, "failed")
            raise
        if outcome:
            self._registries.count(self._reports, outcome)
            log.info("reported", what=self._title, node=self._name, outcome=outcome)

    async def _write(
        self, current: T | None, new: Callable[[], T | None], patch: Callable[[T], dict[str, Any]]
    ) -> str | None:
        """What was done; None: nothing."""
        if current is None:
            made = new()
            if made is None:
                return None
            await self._client.create(made, field_manager="koordlet")
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
    """Metadata of an object that is named like the node and goes with it."""
    meta = node.metadata
    owner = OwnerReference(
        api_version="v1", kind="Node", name=meta.name, uid=meta.uid, controller=True, block_owner_deletion=True
    )
    return ObjectMeta(name=meta.name, labels=labels, annotations=annotations, owner_references=[owner])
