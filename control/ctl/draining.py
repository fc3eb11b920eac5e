"""The steps of `koordctl drain` at the API server: find or create the DrainNode, confirm it, follow it, end it.

The descheduler does the work. A drain continues when koordctl ends.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable

from control.ctl.errors import CtlError
from control.ctl.views.drains import DrainPlan, owners_of, plan_of
from koordlet.api.core import Node, Pod
from koordlet.api.crs import drain as d
from koordlet.api.crs.drain import CordonPolicy, DrainMigrationPolicy, DrainNode, DrainNodeSpec
from koordlet.api.meta import ObjectMeta
from koordlet.api.names import ANNOTATION_DESCHEDULER_EVICT, TRUE
from koordlet.kube import Client, NotFound

POLL_S = 1.0
ANSWER_S = 20.0
"""Within this time a descheduler with drains takes a new DrainNode up."""
UNDO_S = 60.0
NODE_NAME_MAX = 200
OPEN = ("", d.PENDING, d.RUNNING)
INSTALL = "Set the descheduler's feature gate DrainController and grant its rights (docs/descheduler.md)."


class NodeDraining:
    """The drain of one node. All methods raise KubeError and CtlError."""

    def __init__(self, client: Client, node: str) -> None:
        self._client = client
        self.node = node
        self._owners: dict[str, str] = {}
        self.name = ""
        """of the DrainNode"""
        self.is_new = False
        """whether this program created it"""
        self.is_confirmed = False
        """whether its pods moved already when this program began"""

    async def begin(self, *, cordon: bool = True, force: bool = False) -> None:
        """Go on with the open drain of the node, else create one."""
        try:
            await self._client.get(Node, self.node)
        except NotFound as error:
            raise CtlError(f"there is no node {self.node}", "List all with `kubectl get nodes`.") from error
        pods = await self._client.list(Pod, field_selector={"spec.nodeName": self.node})
        self._owners = owners_of(pods)
        opened = [drain for drain in await self.drains() if drain.status.phase in OPEN]
        if opened:
            self.name = opened[0].metadata.name
            self.is_confirmed = opened[0].spec.confirm_state == d.CONFIRMED
            return
        created = await self._client.create(self._new(cordon=cordon, force=force))
        self.name, self.is_new = created.metadata.name, True

    def _new(self, *, cordon: bool, force: bool) -> DrainNode:
        name = f"{self.node[:NODE_NAME_MAX].rstrip('-.')}-{secrets.token_hex(3)}"
        return DrainNode(
            metadata=ObjectMeta(name=name, annotations={ANNOTATION_DESCHEDULER_EVICT: TRUE} if force else {}),
            spec=DrainNodeSpec(
                node_name=self.node,
                cordon_policy=CordonPolicy(mode=d.CORDON_TAINT) if cordon else None,
                migration_policy=DrainMigrationPolicy(mode=d.MIGRATE_DIRECTLY),
                confirm_state=d.WAIT_FOR_CONFIRM,
            ),
        )

    async def drains(self) -> list[DrainNode]:
        """The drains of the node, oldest first."""
        try:
            drains = await self._client.list(DrainNode)
        except NotFound as error:
            raise CtlError("the API server has no DrainNodes", "Install the CRDs of deploy/crds.") from error
        return sorted(
            (drain for drain in drains if drain.spec.node_name == self.node),
            key=lambda drain: drain.metadata.creation_timestamp.unix if drain.metadata.creation_timestamp else 0.0,
        )

    async def plan(self) -> DrainPlan:
        """The drain now."""
        try:
            return plan_of(await self._client.get(DrainNode, self.name), self._owners)
        except NotFound as error:
            raise CtlError(f"DrainNode {self.name} was deleted, so the drain has ended") from error

    async def wait(self, done: Callable[[DrainPlan], bool], timeout_s: float) -> DrainPlan:
        """Read the drain until `done` holds or `timeout_s` has passed; returns the last state."""
        last = await self.plan()
        async for last in self.looks(timeout_s):
            if done(last):
                break
        return last

    async def looks(self, timeout_s: float) -> AsyncIterator[DrainPlan]:
        """The drain every second, until `timeout_s` has passed."""
        clock = self._client.clock
        end, answer = clock.monotonic() + timeout_s, clock.monotonic() + ANSWER_S
        while True:
            last = await self.plan()
            yield last
            now = clock.monotonic()
            if not last.phase and now >= min(answer, end):
                raise CtlError(f"no koord-descheduler takes up DrainNode {self.name}", INSTALL)
            if now >= end:
                return
            await asyncio.sleep(POLL_S)

    async def confirm(self) -> None:
        """Let pods move."""
        await self._set(self.name, d.CONFIRMED)

    async def undo(self, names: list[str], state: str) -> None:
        """End drains, wait until the descheduler has undone them, and delete them."""
        for name in names:
            await self._set(name, state)
        clock = self._client.clock
        end = clock.monotonic() + UNDO_S
        for name in names:
            while (await self._client.get(DrainNode, name)).status.phase != d.ABORTED:
                if clock.monotonic() >= end:
                    raise CtlError(f"DrainNode {name} is not undone yet", "Is koord-descheduler running?")
                await asyncio.sleep(POLL_S)
            await self.delete(name)

    async def delete(self, name: str) -> None:
        """Delete a DrainNode; the descheduler undoes its cordon."""
        await self._client.delete(DrainNode, name, missing_ok=True)

    async def _set(self, name: str, state: str) -> None:
        await self._client.patch(DrainNode, name, body={"spec": {"confirmState": state}}, repeatable=True)
