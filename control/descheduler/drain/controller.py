"""The drain controller: every three seconds one round over all DrainNodes (spec 07 §12.2).

A round observes, decides for each pod (`entries`), carries out (`effects`), and writes the status. It keeps nothing
that a restart would lose. Drains whose node another drain works on wait. Nodes whose DrainNode is gone are uncordoned.
Limits, disruption budgets and evictions are the matter of the PodMigrationJobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from control.component.informers import InformerSet
from control.descheduler.drain.book import DrainBook
from control.descheduler.drain.cordon import cordon, record_of, uncordon
from control.descheduler.drain.effects import DrainEffects
from control.descheduler.drain.entries import ObservedMove, advance, exchange, is_forced, moves_directly, new_entry
from control.descheduler.drain.groupcontroller import DrainGroups
from control.descheduler.drain.metrics import DrainMetrics
from control.descheduler.drain.reservation import is_owned, object_name
from control.descheduler.drain.summary import concluded
from control.descheduler.framework.handle import PluginHandle
from control.descheduler.migration.decide.lifetime import SCAVENGER_GRACE_S
from control.descheduler.migration.decide.reservations import ReservationImpossible
from control.descheduler.migration.migration import Migration
from control.descheduler.state.pods import PodRecord, is_daemon, is_mirror, is_static
from koordlet.api.core import Node, Pod
from koordlet.api.crs import drain as d
from koordlet.api.crs.drain import DrainNode, DrainNodeStatus, PodMigration
from koordlet.api.crs.migration import MODE_EVICT_DIRECTLY, PodMigrationJob
from koordlet.api.crs.reservation import Reservation
from koordlet.api.names import LABEL_DRAIN_PLANNING
from koordlet.app.logging import get_logger
from koordlet.app.loopslice import yield_to_loop
from koordlet.app.periodic import Periodic
from koordlet.kube import Conflict, KubeError
from koordlet.kube.events import NORMAL, WARNING

log = get_logger(__name__)

ROUND_S = 3.0
MAX_ENTRIES = 1000
"""Pods in the status of one drain; of more, those that are gone are dropped first."""


class DrainController:
    """See the module text. It runs on the leader only; `migration` runs its jobs."""

    def __init__(self, handle: PluginHandle, migration: Migration) -> None:
        self._client, self._clock, self._events = handle.client, handle.clock, handle.events
        self._state, self._migration = handle.state, migration
        self._dry_run = handle.dry_run or migration.args.dry_run
        self._reservations = handle.objects.informer(Reservation)
        self._effects = DrainEffects(handle.client, migration.book)
        self._metrics = DrainMetrics.of(handle.registry)
        self.book = DrainBook()
        self._created = CreatedObjects()
        migration.exempts = self._is_exempt
        self.groups = DrainGroups(handle, self.book)
        self._rounds = Periodic("drain", ROUND_S, self.round, clock=self._clock, registry=handle.registry)
        self._follow(handle.objects)

    def _follow(self, objects: InformerSet) -> None:
        def changed(drain: DrainNode) -> None:
            self.book.put(drain)
            self._rounds.trigger()

        objects.informer(DrainNode).add_handler(changed, lambda old, new: changed(new), self.book.remove)
        self._reservations.add_handler(None, lambda old, new: self._reservation_changed(new))

    def _reservation_changed(self, reservation: Reservation) -> None:
        if any(self.book.get(owner.uid) is not None for owner in reservation.metadata.owner_references):
            self._rounds.trigger()

    async def start(self) -> None:
        """This process leads. A dry run drains nothing."""
        if not self._dry_run:
            await self._migration.start()
            await self._rounds.start()

    async def stop(self) -> None:
        await self._rounds.stop()
        await self._migration.stop()

    def _is_exempt(self, job: PodMigrationJob) -> bool:
        """Whether the job belongs to a drain that moves pods which the filter refuses."""
        owners = (self.book.get(owner.uid) for owner in job.metadata.owner_references)
        return any(drain is not None and is_forced(drain) for drain in owners)

    # One round

    async def round(self) -> None:
        """Advance the groups, then every drain by one step, oldest first."""
        await self.groups.round()
        self._created = CreatedObjects(self._migration.book.active(), self._reservations.list())
        for drain in self.book.all():
            await yield_to_loop()
            try:
                await self._advance(drain)
            except Conflict:
                continue  # an object changed meanwhile; the next round sees it
            except KubeError as error:
                log.warning("Cannot advance a drain now", drain=drain.metadata.name, err=error)
        await self._sweep()
        self._show()

    async def _advance(self, drain: DrainNode) -> None:
        if drain.metadata.deletion_timestamp is not None:
            return  # `_sweep` uncordons, and the garbage collector deletes jobs and Reservations
        if _is_outdated(drain, self._clock.now()):
            await self._abort(drain, "its time to live is over")
            await self._client.delete(DrainNode, drain.metadata.name, uid=drain.metadata.uid, missing_ok=True)
        elif drain.status.phase == d.ABORTED:
            await self._clean(drain)
        elif drain.spec.confirm_state in (d.REJECTED, d.ABORT_REQUESTED):
            await self._abort(drain, drain.spec.confirm_state.lower())
        elif drain.status.phase in ("", d.PENDING):
            await self._begin(drain)
        elif self._node(drain) is None and drain.status.phase == d.RUNNING:
            await self._abort(drain, f"node {drain.spec.node_name} no longer exists")
        else:
            await self._write(drain, await self._progress(drain))

    async def _begin(self, drain: DrainNode) -> None:
        node, earlier = self._node(drain), self.book.earlier(drain)
        status = msgspec.structs.replace(drain.status, phase=d.PENDING)
        if node is None:
            status.message = f"waits for node {drain.spec.node_name}, which does not exist"
        elif earlier is not None:
            status.message = f"waits for DrainNode {earlier.metadata.name}, which drains the same node"
        else:
            body = cordon(node, drain)
            if body is not None:
                await self._client.patch(Node, node.metadata.name, body=body)
            status.phase, status.message = d.RUNNING, ""
        await self._write(drain, status)

    async def _progress(self, drain: DrainNode) -> DrainNodeStatus:
        """The status after the actions of a round."""
        if drain.status.phase == d.COMPLETE:
            await self._clean(drain)
        now, present = self._clock.now(), self._pods(drain)
        known = {entry.uid for entry in drain.status.pod_migrations}
        fresh = [record.pod for record in present if record.uid not in known]
        if drain.status.phase == d.COMPLETE:
            later = [f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in fresh]
            return concluded(drain, drain.status.pod_migrations, (), later, now)
        entries = [*drain.status.pod_migrations, *(new_entry(pod, drain, now) for pod in fresh)]
        entries, seen = exchange(*await self._observed(_bounded(entries), drain))
        advanced = [await self._advance_pod(entry, drain, seen.get(entry.uid)) for entry in entries]
        strange = [each.reservation_name for each in advanced if self._is_strange(each, drain)]
        return concluded(drain, advanced, strange, (), now)

    async def _observed(
        self, entries: Sequence[PodMigration], drain: DrainNode
    ) -> tuple[list[PodMigration], dict[str, ObservedMove]]:
        """The entries, and what was observed of them; an entry that could not be observed has the reason."""
        result, seen = [], {}
        for entry in entries:
            await yield_to_loop()
            try:
                seen[entry.uid] = await self._observe(entry, drain)
            except KubeError as error:
                entry = msgspec.structs.replace(entry, message=str(error))
            result.append(entry)
        return result, seen

    async def _advance_pod(self, entry: PodMigration, drain: DrainNode, seen: ObservedMove | None) -> PodMigration:
        if seen is None:
            return entry
        try:
            following, action = advance(entry, drain, seen)
            await self._effects.carry_out(action, following, drain, seen)
        except (KubeError, ReservationImpossible) as error:
            return msgspec.structs.replace(entry, message=str(error))
        return following

    async def _observe(self, entry: PodMigration, drain: DrainNode) -> ObservedMove:
        now, name = self._clock.now(), object_name(drain, entry.uid)
        record = self._state.pod_by_uid(entry.uid)
        pod = record.pod if record is not None and not record.terminated else None
        reservation, job = self._reservations.get(entry.reservation_name or name), self._migration.book.named(name)
        if pod is None or job is not None:
            return ObservedMove(now, pod, "", reservation, job, self._is_drained(reservation))
        problem, other = await self._problem(pod, drain), self._migration.moving().job_of(pod)
        return ObservedMove(now, pod, problem, reservation, None, self._is_drained(reservation), other)

    def _is_drained(self, reservation: Reservation | None) -> bool:
        record = self._state.nodes.get(reservation.status.node_name) if reservation is not None else None
        return record is not None and LABEL_DRAIN_PLANNING in record.labels

    async def _problem(self, pod: Pod, drain: DrainNode) -> str:
        """Why MigrationController would refuse a job of the pod."""
        rules, mode = self._migration.rules(), MODE_EVICT_DIRECTLY if moves_directly(drain, pod) else ""
        refusal = rules.unreservable(pod, mode)
        if refusal or is_forced(drain):
            return refusal
        await self._migration.view.resolve(pod)
        return rules.forbidden(pod, self._migration.view)

    def _is_strange(self, entry: PodMigration, drain: DrainNode) -> bool:
        reservation = self._reservations.get(entry.reservation_name) if entry.reservation_name else None
        return reservation is not None and not is_owned(reservation.metadata.owner_references, drain)

    def _node(self, drain: DrainNode) -> Node | None:
        record = self._state.nodes.get(drain.spec.node_name)
        return record.node if record is not None else None

    def _pods(self, drain: DrainNode) -> Sequence[PodRecord]:
        """The pods that have to leave: not of DaemonSets, not static, not ended."""
        record = self._state.nodes.get(drain.spec.node_name)
        pods = record.active_pods() if record is not None else []
        return [each for each in pods if not (is_daemon(each.pod) or is_mirror(each.pod) or is_static(each.pod))]

    # The end of a drain

    async def _abort(self, drain: DrainNode, why: str) -> None:
        """Delete what the drain created, undo its cordon, and report it."""
        await self._clean(drain)
        node = self._node(drain)
        if node is not None:
            await self._uncordon(node, drain.metadata.uid)
        status = msgspec.structs.replace(drain.status, phase=d.ABORTED, message=f"aborted: {why}")
        await self._write(drain, status)

    async def _clean(self, drain: DrainNode) -> None:
        """Delete the jobs and Reservations of a drain that has ended."""
        uid = drain.metadata.uid
        for job in self._created.jobs.get(uid, ()):
            await self._effects.end_job(job)
        for reservation in self._created.reservations.get(uid, ()):
            await self._effects.release(drain, reservation.metadata.name)

    async def _sweep(self) -> None:
        """Undo the cordons of drains that do not exist any more, or that now name another node."""
        for record in list(self._state.nodes.values()):
            cordoned = record_of(record.node) if record.node is not None else None
            if record.node is None or cordoned is None:
                continue
            drain = self.book.get(cordoned.uid)
            active = drain is not None and drain.metadata.deletion_timestamp is None and drain.status.phase != d.ABORTED
            if drain is not None and active and drain.spec.node_name == record.name:
                continue
            try:
                await self._uncordon(record.node, cordoned.uid)
            except Conflict:
                continue  # the cache is behind
            except KubeError as error:
                log.warning("Cannot undo the cordon of a drain now", node=record.name, err=error)

    async def _uncordon(self, node: Node, uid: str) -> None:
        record, body = record_of(node), uncordon(node)
        if record is not None and record.uid == uid and body is not None:
            await self._client.patch(Node, node.metadata.name, body=body)
            log.info("Undid the cordon of a drain", node=node.metadata.name, drain=record.drain_node)

    # Reports

    async def _write(self, drain: DrainNode, status: DrainNodeStatus) -> None:
        written = await self.book.write(self._client, drain, status)
        if not written:
            return
        if status.phase != drain.status.phase:
            log.info("A drain changed", drain=drain.metadata.name, phase=status.phase, why=status.message)
            self._events.event(drain, NORMAL, status.phase, status.message or f"the drain is {status.phase}")
        for condition in status.conditions:
            if condition.status == "True" and not drain.status.is_true(condition.type):
                kind = NORMAL if condition.type == d.ONCE_AVAILABLE else WARNING
                self._events.event(drain, kind, condition.type, condition.message or condition.type)

    def _show(self) -> None:
        drains = self.book.all()
        phases = Counter(drain.status.phase or d.PENDING for drain in drains)
        for phase in (d.PENDING, d.RUNNING, d.COMPLETE, d.ABORTED):
            self._metrics.nodes.labels(phase).set(phases[phase])
        running = [drain for drain in drains if drain.status.phase == d.RUNNING]
        pods = Counter(entry.phase for drain in running for entry in drain.status.pod_migrations)
        for phase in d.POD_PHASES:
            self._metrics.pods.labels(phase).set(pods[phase])


class CreatedObjects:
    """What drains created: jobs that have not ended and unused Reservations, by UID of the owner."""

    def __init__(self, jobs: Iterable[PodMigrationJob] = (), reservations: Iterable[Reservation] = ()) -> None:
        self.jobs: dict[str, list[PodMigrationJob]] = {}
        self.reservations: dict[str, list[Reservation]] = {}
        for job in jobs:
            for owner in job.metadata.owner_references:
                self.jobs.setdefault(owner.uid, []).append(job)
        for reservation in reservations:
            if not reservation.status.current_owners:
                for owner in reservation.metadata.owner_references:
                    self.reservations.setdefault(owner.uid, []).append(reservation)


def _is_outdated(drain: DrainNode, now: float) -> bool:
    """Whether the drain is deleted: five minutes after its time to live (spec 07 §12.2-7)."""
    ttl, created = drain.spec.ttl, drain.metadata.creation_timestamp
    return (
        ttl is not None
        and ttl.seconds > 0
        and created is not None
        and (now - created.unix >= ttl.seconds + SCAVENGER_GRACE_S)
    )


def _bounded(entries: list[PodMigration]) -> list[PodMigration]:
    surplus = len(entries) - MAX_ENTRIES
    if surplus <= 0:
        return entries
    gone = {entry.uid for entry in [each for each in entries if each.phase == d.SUCCEED][:surplus]}
    return [entry for entry in entries if entry.uid not in gone][:MAX_ENTRIES]
