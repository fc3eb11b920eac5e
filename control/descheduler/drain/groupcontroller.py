"""Carries out the steps of DrainNodeGroups, one round after the other (spec 07 §12.3)."""

from __future__ import annotations

import msgspec

from control.descheduler.drain.book import DrainBook
from control.descheduler.drain.groups import (
    COMPARED,
    ENDED,
    DrainableNode,
    GroupStep,
    aborted_group,
    advance_group,
)
from control.descheduler.drain.reservation import LABEL_VALUE_MAX
from control.descheduler.framework.handle import PluginHandle
from control.descheduler.migration.decide.lifetime import SCAVENGER_GRACE_S
from control.descheduler.migration.decide.reservations import API_VERSION
from koordlet.api.crs import drain as d
from koordlet.api.crs.drain import (
    DrainMigrationPolicy,
    DrainNode,
    DrainNodeGroup,
    DrainNodeGroupStatus,
    DrainNodeSpec,
)
from koordlet.api.meta import ObjectMeta, OwnerReference, SelectorError
from koordlet.api.names import ANNOTATION_DESCHEDULER_EVICT, LABEL_DRAIN_GROUP, LABEL_DRAIN_NODE_NAME
from koordlet.app.logging import get_logger
from koordlet.kube import Conflict, KubeError, merge_diff
from koordlet.kube.events import NORMAL

log = get_logger(__name__)

NAME_MAX = 253


class DrainGroups:
    """See the module text. `round` is called before each round over the drains."""

    def __init__(self, handle: PluginHandle, book: DrainBook) -> None:
        self._client, self._clock, self._events = handle.client, handle.clock, handle.events
        self._state, self._book = handle.state, book
        self._groups = handle.objects.informer(DrainNodeGroup)

    async def round(self) -> None:
        """Advance the oldest group that has not ended; later ones wait."""
        active: DrainNodeGroup | None = None
        for group in sorted(self._groups.list(), key=_age_order):
            ended = group.status.phase in ENDED
            try:
                if active is not None and not ended:
                    await self._wait(group, active)
                else:
                    await self._advance(group)
            except Conflict:
                pass  # the cache is not up to date; the next round continues
            except (KubeError, SelectorError) as error:
                log.warning("Cannot advance a drain group now", group=group.metadata.name, err=error)
            active = active if ended or active is not None else group

    async def _wait(self, group: DrainNodeGroup, active: DrainNodeGroup) -> None:
        message = f"waits for DrainNodeGroup {active.metadata.name}"
        await self._write(group, GroupStep(_with_message(group, message)))

    async def _advance(self, group: DrainNodeGroup) -> None:
        if group.metadata.deletion_timestamp is not None:
            return
        uid = group.metadata.uid
        drains = [
            each for each in self._book.all() if any(owner.uid == uid for owner in each.metadata.owner_references)
        ]
        if _is_outdated(group, self._clock.now()):
            step = aborted_group(GroupStep(_with_message(group, "")), drains, "its time to live is over")
            await self._carry_out(group, step)
            if step.status.phase == d.ABORTED:
                await self._client.delete(DrainNodeGroup, group.metadata.name, uid=uid, missing_ok=True)
            return
        await self._carry_out(group, advance_group(group, drains, self._rooms(group)))

    def _rooms(self, group: DrainNodeGroup) -> list[DrainableNode]:
        nodes = self._state.ready_nodes(group.spec.node_selector)
        return [
            DrainableNode(
                node.name,
                {name: node.allocatable.get(name, 0) for name in COMPARED},
                {name: node.free(name) for name in COMPARED},
            )
            for node in nodes
        ]

    async def _carry_out(self, group: DrainNodeGroup, step: GroupStep) -> None:
        if step.plan:
            try:
                self._book.put(await self._client.create(drain_of(group, step.plan)))
            except Conflict as error:
                if not error.already_exists:
                    raise
        for drain, state in step.confirm:
            body = {
                "metadata": {"resourceVersion": drain.metadata.resource_version},
                "spec": {"confirmState": state},
            }
            self._book.put(await self._client.patch(DrainNode, drain.metadata.name, body=body))
        await self._write(group, step)

    async def _write(self, group: DrainNodeGroup, step: GroupStep) -> None:
        body, meta = merge_diff(group.status, step.status), group.metadata
        if not body:
            return
        await self._client.update_status(DrainNodeGroup, meta.name, status=body, resource_version=meta.resource_version)
        if step.status.phase != group.status.phase:
            self._events.event(group, NORMAL, step.status.phase, step.status.message or f"phase {step.status.phase}")


def drain_of(group: DrainNodeGroup, node: str) -> DrainNode:
    """The DrainNode of one node of the group."""
    meta = group.metadata
    owner = OwnerReference(api_version=API_VERSION, kind="DrainNodeGroup", name=meta.name, uid=meta.uid)
    texts = {LABEL_DRAIN_GROUP: meta.name, LABEL_DRAIN_NODE_NAME: node}
    return DrainNode(
        metadata=ObjectMeta(
            name=f"{meta.name}-{node}"[:NAME_MAX],
            labels={key: text[:LABEL_VALUE_MAX].rstrip("-.") for key, text in texts.items()},
            annotations={key: value for key, value in meta.annotations.items() if key == ANNOTATION_DESCHEDULER_EVICT},
            owner_references=[owner],
        ),
        spec=DrainNodeSpec(
            node_name=node,
            cordon_policy=group.spec.cordon_node_policy,
            migration_policy=DrainMigrationPolicy(mode=d.MIGRATE_DIRECTLY),
            confirm_state=d.WAIT_FOR_CONFIRM,
        ),
    )


def _with_message(group: DrainNodeGroup, message: str) -> DrainNodeGroupStatus:
    return msgspec.structs.replace(group.status, phase=group.status.phase or d.PENDING, message=message)


def _is_outdated(group: DrainNodeGroup, now: float) -> bool:
    ttl, created = group.spec.ttl, group.metadata.creation_timestamp
    if ttl is None or ttl.seconds <= 0 or created is None:
        return False
    return now - created.unix >= ttl.seconds + SCAVENGER_GRACE_S


def _age_order(group: DrainNodeGroup) -> tuple[float, str]:
    created = group.metadata.creation_timestamp
    return (created.unix if created is not None else 0.0), group.metadata.name
