"""Keeps the ResourceSlices of this node's devices up to date (gate ResourceSlices), and deletes them after the gate was
switched off.

The devices are those of the last round of the Device reporter. A file in the state directory records that slices may
exist: without it, a koordlet whose gate is off sends no request. The file is lost when the machine is booted; then the
kubelet deletes the slices of its node when it starts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from koordlet.api.core import Node
from koordlet.api.core.claims import ResourceSlice
from koordlet.app import atomicfile
from koordlet.app.logging import get_logger
from koordlet.kube import Client, Informer, InformerSettings, KubeError, NotFound
from koordlet.prometheus import Registries
from koordlet.statesinformer.devices.slices import DRIVER, SliceChanges, changes, offered
from koordlet.statesinformer.devices.status import NodeDevices

log = get_logger(__name__)

REPORTS_METRIC: Final = "resource_slice_reports_total"
PUBLISHED_FILE: Final = "resource-slices-published"


NOT_SERVED: Final = "the API server does not serve resourceslices.resource.k8s.io/v1: use Kubernetes 1.34 or later"


class NotServed(KubeError):
    """The API server lacks the kind."""


class SliceRemoval:
    """Deletes the slices of a node. `published`: the file that records that there may be some."""

    def __init__(self, client: Client, node_name: str, published: Path) -> None:
        self.problem: str | None = None
        self._client = client
        self._fields = {"spec.nodeName": node_name, "spec.driver": DRIVER}
        self._published = published

    async def slices(self) -> list[ResourceSlice]:
        """Those that the API server has. Raises KubeError."""
        try:
            return list(await self._client.list(ResourceSlice, field_selector=self._fields))
        except NotFound as error:
            raise NotServed(NOT_SERVED) from error

    def needed(self) -> bool:
        """Whether slices may exist."""
        return self._published.exists()

    async def remove(self) -> None:
        """Call periodically; does nothing once all are deleted. Raises KubeError."""
        if not self.needed():
            return
        self.problem = "ResourceSlices of this node are not deleted yet"
        try:
            for each in await self.slices():
                await self._client.delete(ResourceSlice, each.metadata.name, missing_ok=True)
                log.info("Deleted a ResourceSlice: the gate ResourceSlices is off", slice=each.metadata.name)
        except NotServed:
            pass  # then it has none
        self._published.unlink(missing_ok=True)
        self.problem = None


class SliceReporter:
    """Call `report` periodically. Add the informer `stored` to the runner."""

    def __init__(
        self,
        client: Client,
        node_name: str,
        *,
        node: Callable[[], Node | None],
        devices: Callable[[], NodeDevices | None],
        registries: Registries,
        published: Path,
    ) -> None:
        """`node` and `devices` return None while they are unknown."""
        self._live = SliceRemoval(client, node_name, published)
        self.stored: Informer[ResourceSlice] = Informer(
            client,
            ResourceSlice,
            field_selector={"spec.nodeName": node_name, "spec.driver": DRIVER},
            settings=InformerSettings(optional=True),
        )
        self.problem: str | None = "nothing reported yet"
        """Fits `Health.check`."""
        self._client = client
        self._node = node
        self._devices = devices
        self._registries = registries
        self._published = published

    async def report(self) -> None:
        """Compute and write; raises KubeError after counting it."""
        node, status = self._node(), self._devices()
        if node is None or status is None:
            self._registries.count(REPORTS_METRIC, "skipped")
            return
        if not self.stored.synced.is_set():
            return  # it is unknown whether slices exist
        if not self._changes(node, status, self.stored.list()):
            self.problem = None
            return
        try:
            present = await self._live.slices()  # the copy may be late
            outcome = await self._write(self._changes(node, status, present))
        except KubeError as error:
            self.problem = str(error)
            self._registries.count(REPORTS_METRIC, "failed")
            raise
        self.problem = None
        if outcome:
            self._registries.count(REPORTS_METRIC, outcome)
            log.info("Published ResourceSlices", node=node.metadata.name, outcome=outcome)

    @staticmethod
    def _changes(node: Node, status: NodeDevices, stored: list[ResourceSlice]) -> SliceChanges:
        def problem(text: str) -> None:
            log.once(f"resource-slice:{text}", "A device is not in the node's ResourceSlices", error=text)

        return changes(node, offered(status, stored, problem), stored)

    async def _write(self, difference: SliceChanges) -> str | None:
        """The outcome for the counter; None if nothing was written. Raises KubeError."""
        if difference.created and not self._published.exists():
            atomicfile.write(self._published, b"")
        for created in difference.created:
            await self._client.create(created, field_manager="koordlet")
        for name, body in difference.patches.items():
            await self._client.patch(ResourceSlice, name, body=body, field_manager="koordlet")
        for name in difference.deleted:
            await self._client.delete(ResourceSlice, name, missing_ok=True)
        if difference.patches or (difference.created and difference.deleted):
            return "updated"
        if difference.created:
            return "created"
        return "deleted" if difference.deleted else None
