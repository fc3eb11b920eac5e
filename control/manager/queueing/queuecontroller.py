"""The controller `queue`: admits queued jobs when their ElasticQuota has room (spec 05 §14).

A pass runs at most once a second, if a quota, a pod, a node, a queue or a unit changed. It writes Enqueued, Reserved
and Dequeued; the job extension writes the other phases. Nothing is kept in memory that the objects do not contain.

Every write is conditional on the version of its unit only, but the verdict depends on all units. So the units are read
from the API server before the first pass of a leader, whose cache may lack what the last leader wrote, and after a pass
that failed, because a request without an answer may have had its effect.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, Final

from control.manager.context import ManagerContext
from control.manager.controller import ManagerController
from control.manager.queueing.admit import QueueOrder, QueueVerdict, WaitingJob, admit, virtual_pod
from control.manager.queueing.demand import QueueDemand
from control.manager.queueing.metrics import QueueingMetrics
from control.manager.queueing.permitted import NotPermitted, permitted
from control.manager.queueing.unitstates import UnitStates
from control.quota.amounts import Amounts, add_to, from_list
from koordlet.api.core import Namespace, Node, Pod, PriorityClass
from koordlet.api.crs.queueing import (
    ADMITTED,
    CHECK_READY,
    DEQUEUED,
    ENQUEUED,
    PRIORITY,
    RESERVED,
    TIMEOUT_BACKOFF,
    Queue,
    QueueItem,
    QueueStatus,
    QueueUnit,
    QueueUnitAdmission,
    QueueUnitCheck,
)
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.wire import Time, to_builtins
from koordlet.api.meta import SelectorError
from koordlet.app.logging import get_logger
from koordlet.app.loopslice import yield_to_loop
from koordlet.kube import ApiError, Conflict, KubeError, NotFound
from koordlet.kube.turns import Turns

log = get_logger(__name__)

GATE: Final = "JobQueueing"
PASS: Final = "pass"
PASS_INTERVAL_S: Final = 1.0
BEHIND_S: Final = 0.2
"""Until units that the cache lacks are looked for again."""
MAX_LISTED: Final = 1000
"""Units in the status of a Queue."""
MAX_MESSAGES: Final = 50
"""Messages of waiting units that one pass writes: they change with every admission. Namespaces take turns."""
MAX_ADMISSIONS: Final = 50
"""Jobs of one queue that a pass admits: a queue of many small jobs must not keep the next queues waiting."""
NOT_STORED: Final = (400, 413, 422, 500)
"""HTTP codes of answers that concern one unit: malformed, too large or invalid. Kubernetes answers 500 to an object
that is larger than etcd takes."""
REFUSED_RETRY_S: Final = 300.0
"""Until a unit is tried again whose status the API server did not store."""


class QueueController(ManagerController):
    """See the module docstring."""

    name = "queue"

    def __init__(self, context: ManagerContext) -> None:
        super().__init__(context)
        self._enabled = context.gates.enabled(GATE)
        self._counters = QueueingMetrics.of(context.internal)
        self._counted: set[str] = set()
        """uids of the units in the forest."""
        self._refused: dict[str, tuple[str, float]] = {}
        """uid -> (version, time of the next attempt) of units whose status the API server does not store: as invalid or
        too large, because tenants choose the size of their units, or as changed. They are skipped until they change."""
        self._is_current = False
        """Whether all units are known as they are, or as this process has written them."""
        if self._enabled:
            self._demand = QueueDemand(context.gates)
            self._queues = context.caches.informer(Queue)
            self._units = context.caches.informer(QueueUnit)
            self._quotas = context.caches.informer(ElasticQuota)
            self._pods = context.caches.informer(Pod)
            self._nodes = context.caches.informer(Node)
            self._namespaces = context.caches.informer(Namespace)
            self._classes = context.caches.informer(PriorityClass)
            self._states = UnitStates(context.client, self._units)

    def watch(self) -> None:
        if not self._enabled:
            return
        demand = self._demand
        self._nodes.add_handler(demand.node_seen, lambda _, new: demand.node_seen(new), demand.node_gone)
        self._quotas.add_handler(demand.quota_seen, lambda _, new: demand.quota_seen(new), demand.quota_gone)
        self._pods.add_handler(demand.pod_seen, demand.pod_changed, demand.pod_gone)
        for informer in (self._queues, self._units, self._namespaces, self._classes):
            informer.add_handler(self._touched, lambda _, new: self._touched(new), self._touched)
        self.queue.add(PASS)

    def _touched(self, _: object) -> None:
        self._demand.changed = True

    async def reconcile(self, key: str) -> float | None:
        now = self.context.clock.monotonic()
        if self._demand.changed or any(at <= now for _, at in self._refused.values()):
            if not self._is_current:
                self._is_current = await self._states.read_all()
            if not self._is_current:
                return BEHIND_S
            self._demand.changed = False
            try:
                await self._pass()
            except BaseException:
                self._demand.changed, self._is_current = True, False
                raise
        return PASS_INTERVAL_S

    async def _pass(self) -> None:
        units = self._states.list()
        queues = {
            queue.metadata.name: queue
            for queue in self._queues.list()
            if queue.metadata.namespace == self.context.namespace
        }
        versions = {unit.metadata.uid: unit.metadata.resource_version for unit in units}
        now = self.context.clock.monotonic()
        self._refused = {
            uid: (version, at)
            for uid, (version, at) in self._refused.items()
            if versions.get(uid) == version and at > now
        }
        self._demand.count_as_whole({_consumer(unit) for unit in units if unit.status.phase in ADMITTED} - {""})
        waiting = await self._waiting(units, queues)
        await self._count(units, waiting)
        by_key = {unit.metadata.key: unit for unit in units}
        messages = Turns[tuple[QueueUnit, str]](lambda each: each[0].metadata.namespace)
        orders = {name: _order(name, queues.get(name)) for name in waiting}
        for name in sorted(waiting, key=lambda each: (-orders[each].priority, each)):
            items, admitted = [], 0
            for verdict in admit(self._demand.forest, orders[name], waiting[name]):
                unit = by_key[verdict.job.key]
                if verdict.quota:
                    await self._admit(unit, queues.get(name), verdict)
                    admitted += 1
                else:
                    items.append(verdict)
                    if (unit.status.phase, unit.status.message) != (ENQUEUED, verdict.message):
                        messages.push((unit, verdict.message))
                if admitted == MAX_ADMISSIONS:
                    self._demand.changed = True  # the rest follows in the next pass
                    break
                await yield_to_loop()
            if name in queues and admitted < MAX_ADMISSIONS:
                await self._list(queues[name], items, units)
        for name in queues.keys() - waiting.keys():
            await self._list(queues[name], [], units)
        for unit in units:
            if unit.status.phase == RESERVED and unit.metadata.uid not in self._refused:
                await self._check(unit, queues)
        for number in range(len(messages)):
            unit, message = messages.pop()
            if number < MAX_MESSAGES:
                await self._write(unit, phase=ENQUEUED, message=message, admissions=[], admissionChecks=[], quota="")
            else:
                self._demand.changed |= unit.status.phase != ENQUEUED  # written in a later pass
        self._measure(queues)

    # Reading

    async def _waiting(self, units: list[QueueUnit], queues: dict[str, Queue]) -> dict[str, list[WaitingJob]]:
        """The enqueued units by queue."""
        waiting: dict[str, list[WaitingJob]] = defaultdict(list)
        for unit in units:
            await yield_to_loop()
            if unit.status.phase not in ("", ENQUEUED) or unit.metadata.uid in self._refused:
                continue
            meta, queue = unit.metadata, queues.get(unit.spec.queue)
            namespace = self._namespaces.get(meta.namespace)
            quotas: tuple[str, ...] = ()
            problem = ""
            try:
                quotas = permitted(
                    unit.spec.queue,
                    queue.metadata.annotations if queue is not None else None,
                    namespace.metadata.annotations if namespace is not None else {},
                )
            except NotPermitted as error:
                problem = str(error)
            created = meta.creation_timestamp.unix if meta.creation_timestamp is not None else 0.0
            waiting[unit.spec.queue].append(
                WaitingJob(meta.uid, meta.key, created, self._priority(unit, queue), _asked(unit), quotas, problem)
            )
        return waiting

    def _priority(self, unit: QueueUnit, queue: Queue | None) -> int:
        if unit.spec.priority is not None:
            return unit.spec.priority
        name = unit.spec.priority_class_name or (queue.spec.priority_class_name if queue is not None else "")
        priority_class = self._classes.get(name) if name else None
        return priority_class.value if priority_class is not None else 0

    async def _count(self, units: list[QueueUnit], waiting: dict[str, list[WaitingJob]]) -> None:
        """Bring the jobs in the forest to the state of the objects."""
        forest = self._demand.forest
        desired_jobs = {
            unit.metadata.uid: (unit.metadata.key, unit.status.quota, self._used(unit), True)
            for unit in units
            if unit.status.phase in ADMITTED
        }
        for jobs in waiting.values():
            desired_jobs.update({job.uid: (job.key, job.quotas[0], job.request, False) for job in jobs if job.quotas})
        for uid in self._counted - desired_jobs.keys():
            forest.drop_pod(f"job:{uid}")
        self._counted &= desired_jobs.keys()
        for uid, (key, quota, request, admitted) in desired_jobs.items():
            self._counted.add(uid)
            forest.set_pod(virtual_pod(uid, key, quota, request))
            forest.assign(f"job:{uid}", admitted)
            await yield_to_loop()

    def _used(self, unit: QueueUnit) -> Amounts:
        """An admitted unit counts with what it was admitted with, whatever its spec is now, but at least with its
        pods that have a node: `parallelism` of a running job may grow."""
        admitted, pods = _total(unit.status.admissions), self._demand.requested_by_pods(_consumer(unit))
        return {name: max(admitted.get(name, 0), pods.get(name, 0)) for name in {*admitted, *pods}}

    # Writing

    async def _admit(self, unit: QueueUnit, queue: Queue | None, verdict: QueueVerdict) -> None:
        now = self.context.clock.now()
        checks = _checks(unit, queue)
        phase = RESERVED if checks else DEQUEUED
        written = await self._write(
            unit,
            phase=phase,
            message="",
            quota=verdict.quota,
            lastAllocateTime=Time.from_unix(now),
            admissions=_admissions(unit),
            admissionChecks=[QueueUnitCheck(name=name, state="Pending") for name in checks],
        )
        if written:
            self._counters.admissions.labels(self._label(unit)).inc()
            self._counters.wait_seconds.observe(max(now - verdict.job.created, 0.0))
            log.info("Admitted a queued job", unit=verdict.job.key, queue=unit.spec.queue, quota=verdict.quota)

    async def _check(self, unit: QueueUnit, queues: Mapping[str, Queue]) -> None:
        """Dequeue a reserved unit whose checks have all passed: those that it needs now, and those that it needed when
        it was admitted, unless no queue has them any more. A change of its queue or labels avoids none."""
        ready = {check.name for check in unit.status.admission_checks if check.state == CHECK_READY}
        existing = {check.name for queue in queues.values() for check in queue.spec.admission_checks}
        recorded = {check.name for check in unit.status.admission_checks} & existing
        if recorded.union(_checks(unit, queues.get(unit.spec.queue))) <= ready:
            await self._write(unit, phase=DEQUEUED)

    async def _write(self, unit: QueueUnit, **fields: Any) -> bool:
        try:
            await self._states.patch(unit, self.context.clock.now(), **fields)
        except (Conflict, NotFound):
            # Another writer was first, or the unit is gone. It is left out until the cache has seen that: a version
            # that the cache cannot keep would otherwise be the first of its queue in every pass.
            self._refuse(unit)
            return False
        except ApiError as error:
            if error.status not in NOT_STORED:
                raise
            self._refuse(unit)
            if error.status < 500:
                self._demand.forest.drop_pod(f"job:{unit.metadata.uid}")
            else:  # it may have had its effect: the unit counts in this pass, and all are read before the next one
                self._is_current = False
            log.warning("The status of a QueueUnit is refused", unit=unit.metadata.key, err=error)
            return False
        return True

    def _refuse(self, unit: QueueUnit) -> None:
        """Leave the unit out until it changes."""
        retry_at = self.context.clock.monotonic() + REFUSED_RETRY_S
        self._refused[unit.metadata.uid] = (unit.metadata.resource_version, retry_at)
        self._demand.changed = True  # the next pass is without it

    async def _list(self, queue: Queue, waiting: list[QueueVerdict], units: list[QueueUnit]) -> None:
        """The waiting units of a queue in its status."""
        active = [_item(verdict.job.key, verdict.job.priority, verdict.position) for verdict in waiting[:MAX_LISTED]]
        backoff = [
            _item(unit.metadata.key, self._priority(unit, queue), 0)
            for unit in units
            if unit.spec.queue == queue.metadata.name and unit.status.phase == TIMEOUT_BACKOFF
        ][:MAX_LISTED]
        desired = QueueStatus(queue_item_details={"active": active, "backoff": backoff})
        if queue.status == desired or (not active and not backoff and not queue.status.queue_item_details):
            return
        meta = queue.metadata
        body = {"status": to_builtins(desired)}
        try:
            await self.context.client.patch(Queue, meta.name, meta.namespace, body=body, subresource="status")
        except NotFound:
            return  # the queue was deleted in the meantime
        except KubeError as error:
            log.warning("Cannot write the status of a Queue", queue=meta.key, err=error)

    def _measure(self, queues: dict[str, Queue]) -> None:
        counts = Counter((self._label(unit), unit.status.phase or ENQUEUED) for unit in self._states.list())
        self._counters.units.clear()
        for labels, number in counts.items():
            self._counters.units.labels(*labels).set(number)

    def _label(self, unit: QueueUnit) -> str:
        name = unit.spec.queue
        known = self._queues.get(f"{self.context.namespace}/{name}") or self._demand.forest.info(name)
        return name if known is not None else "unknown"


def _order(name: str, queue: Queue | None) -> QueueOrder:
    if queue is None:
        return QueueOrder(name)
    by_priority = queue.spec.queue_policy == PRIORITY
    return QueueOrder(
        name, by_priority, blocking=not by_priority or queue.spec.blocking is not False,
        priority=queue.spec.priority or 0,
    )  # fmt: skip


def _consumer(unit: QueueUnit) -> str:
    """`namespace/uid` of the job; empty if the unit does not state a uid."""
    reference = unit.spec.consumer_ref
    return f"{unit.metadata.namespace}/{reference.uid}" if reference is not None and reference.uid else ""


def _asked(unit: QueueUnit) -> Amounts:
    """What the unit requests: `request`, or the sum of its pod sets."""
    return from_list(unit.spec.request) or _total(_admissions(unit))


def _total(admissions: list[QueueUnitAdmission]) -> Amounts:
    total: Amounts = {}
    for admission in admissions:
        add_to(total, from_list(admission.resources))
    return total


def _admissions(unit: QueueUnit) -> list[QueueUnitAdmission]:
    """All pods of all sets. A unit that states its request only as a whole is one set."""
    if unit.spec.request:
        count = sum(pods.count for pods in unit.spec.pod_sets)
        return [QueueUnitAdmission(name="all", replicas=count, resources=unit.spec.request)]
    return [
        QueueUnitAdmission(
            name=pods.name,
            replicas=pods.count,
            resources={name: amount * pods.count for name, amount in pods.request.items()},
        )
        for pods in unit.spec.pod_sets
    ]


def _checks(unit: QueueUnit, queue: Queue | None) -> list[str]:
    """The checks of the queue that the unit needs. A malformed selector selects every unit."""
    needed = []
    for check in queue.spec.admission_checks if queue is not None else ():
        try:
            if check.label_selector is None or check.label_selector.matches(unit.metadata.labels):
                needed.append(check.name)
        except SelectorError:
            needed.append(check.name)
    return needed


def _item(key: str, priority: int, position: int) -> QueueItem:
    namespace, _, name = key.partition("/")
    return QueueItem(name=name, namespace=namespace, priority=priority, position=position)
