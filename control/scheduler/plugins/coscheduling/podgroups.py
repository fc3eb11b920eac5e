"""PodGroupController: updates the status of PodGroups (spec 05 §9.9)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

import msgspec

from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.crs.podgroup import PodGroup, PodGroupStatus
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Time
from koordlet.app.clock import Clock
from koordlet.app.tasks import end_tasks
from koordlet.kube import Client, Informer, NotFound, WorkQueue, merge_diff

PENDING, PRE_SCHEDULING, SCHEDULING, SCHEDULED = "Pending", "PreScheduling", "Scheduling", "Scheduled"
RUNNING, FINISHED, FAILED = "Running", "Finished", "Failed"
ENDED: Final = (FINISHED, FAILED)
MAX_SCHEDULE_DELAY_S: Final = 48 * 3600.0


def is_over(group: PodGroup) -> bool:
    """Whether the status of the group is final."""
    status, created = group.status, group.metadata.creation_timestamp
    if status.phase in ENDED:
        return True
    if status.scheduled != group.spec.min_member or status.running or status.schedule_start_time is None:
        return False
    return created is not None and status.schedule_start_time.unix - created.unix > MAX_SCHEDULE_DELAY_S


def next_status(group: PodGroup, members: Collection[Pod], bound: int, now: float) -> PodGroupStatus:
    """The status that results from the members. `bound`: number of members with a node. Pure."""
    status, minimum = group.status, group.spec.min_member
    if not status.phase:
        return msgspec.structs.replace(status, phase=PENDING)
    if status.phase == PENDING:
        if not 0 < minimum <= len(members):
            return status
        first = min(members, key=lambda pod: pod.metadata.key)
        return msgspec.structs.replace(status, phase=PRE_SCHEDULING, occupied_by=owners(first))
    if not members:
        return msgspec.structs.replace(status, phase=PENDING)
    phases = [pod.status.phase for pod in members]
    running, succeeded, failed = (phases.count(phase) for phase in (RUNNING, "Succeeded", FAILED))
    started = status.schedule_start_time
    if bound < minimum:
        phase, started = SCHEDULING, started or Time.from_unix(now)
    else:
        phase = SCHEDULED
        if succeeded + running >= minimum:
            phase = RUNNING
    if failed and failed + running + succeeded >= minimum:
        phase = FAILED
    if succeeded >= minimum:
        phase = FINISHED
    return msgspec.structs.replace(
        status,
        phase=phase,
        scheduled=bound,
        running=running,
        succeeded=succeeded,
        failed=failed,
        schedule_start_time=started,
    )


def owners(pod: Pod) -> str:
    """`namespace/name` of each owner, sorted, joined by commas."""
    meta = pod.metadata
    return ",".join(sorted(f"{meta.namespace}/{ref.name}" for ref in meta.owner_references))


class PodGroupController:
    """Processes the keys that are added; failures are retried with growing delays (spec 05 §17, D10).

    Members are listed at the API server: the scheduler's own cache lacks terminated pods.
    """

    def __init__(self, client: Client, groups: Informer[PodGroup], *, workers: int, clock: Clock) -> None:
        self._client = client
        self._groups = groups
        self._workers = workers
        self._clock = clock
        self._queue: WorkQueue[str] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, key: str) -> None:
        """The PodGroup `namespace/name` or one of its members changed."""
        if self._queue is not None:
            self._queue.add(key)

    async def start(self) -> None:
        self._queue = WorkQueue("PodGroupController", clock=self._clock, registry=self._client.registry)
        self._tasks = [asyncio.create_task(self._queue.work(self.sync)) for _ in range(max(1, self._workers))]
        for group in self._groups.list():
            self.add(f"{group.metadata.namespace}/{group.metadata.name}")

    async def stop(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            await queue.shutdown()
        await end_tasks(*self._tasks)
        self._tasks = []

    async def sync(self, key: str) -> float | None:
        """Write the status of one PodGroup if it changed."""
        group = self._groups.get(key)
        if group is None or is_over(group):
            return None
        selector = {names.LABEL_POD_GROUP: group.metadata.name}
        members = await self._client.list(Pod, group.metadata.namespace, label_selector=selector)
        bound = sum(bool(pod.spec.node_name) for pod in members)
        status = next_status(group, members, bound, self._clock.now())
        change = merge_diff(wire.to_builtins(group.status), wire.to_builtins(status))
        if not change:
            return None
        try:
            await self._client.patch(PodGroup, group.metadata.name, group.metadata.namespace, body={"status": change})
        except NotFound:
            return None
        return None
