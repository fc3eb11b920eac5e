"""The store anew from dockerd, before the first client is served; and without what went away behind our back."""

from __future__ import annotations

import asyncio

from koordlet.app.logging import get_logger
from runtimeproxy.docker import names
from runtimeproxy.docker.api import DockerError, Inspected
from runtimeproxy.docker.bodies import Undecodable
from runtimeproxy.docker.context import Context

log = get_logger(__name__)

AT_ONCE = 8
"""Questions to dockerd under way: a node has some hundred containers, and the first call waits for all."""


async def rebuild(context: Context) -> None:
    """Fill the store; a container that can't be read is left out and logged. Raises DockerError when none can."""
    listed = await context.api.containers()
    ours = [one.id for one in listed if any(names.parse_name(name) is not None for name in one.names or ())]
    turn = asyncio.Semaphore(AT_ONCE)
    async with context.api.kept():
        found = await asyncio.gather(*(_inspect(context, one, turn) for one in ours))
    entries = [one for one in found if one is not None]
    for entry in sorted(entries, key=_is_container):
        try:
            kind = context.remember(entry)
        except Undecodable as error:
            log.warning("A container can't be read; it is left to itself", container=entry.name, err=error)
            continue
        if kind is not None:
            context.metrics.recoveries.labels(kind).inc()
    log.info("Read what Docker runs", sandboxes=len(context.store.pods), containers=len(context.store.containers))


async def forget_gone(context: Context) -> int:
    """Drop what dockerd no longer has, because somebody removed it past the proxy; how many. Raises DockerError."""
    store = context.store
    known = {*store.pods, *store.containers}  # before asking: what is made meanwhile is in no older list
    gone = known - {one.id for one in await context.api.containers()}
    for one in gone:
        store.drop_container(one)
        store.drop_pod(one)
    return len(gone)


def _is_container(entry: Inspected) -> bool:
    return (entry.config.labels or {}).get(names.TYPE_LABEL) != names.SANDBOX_TYPE


async def _inspect(context: Context, container_id: str, turn: asyncio.Semaphore) -> Inspected | None:
    async with turn:
        try:
            return await context.api.inspect(container_id)
        except DockerError as error:
            log.warning("A container can't be inspected; it is left to itself", container=container_id, err=error)
            return None
