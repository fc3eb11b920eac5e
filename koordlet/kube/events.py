"""Kubernetes Events (core/v1) that never block the caller and never flood the server.

`event()` only queues; background tasks send, all events of one object in order by the same task. A repeated event
increases the count of the existing one. More than ten messages of one kind in ten minutes become one "(combined from
similar events)". Per source and object at most 25 events are sent in a burst, then one every five minutes. Events that
do not fit into the bounded queue are dropped, counted, and logged once the queue accepts events again. The limits are
client-go's, so `kubectl describe` shows what users expect. Events of cluster-scoped objects are in the namespace
`default`.

With `limit_reasons`, the events of one reason about all objects are limited, too: one container can delay hundreds of
others, and new pods have not used up the limit by object. A reason does not take from the limit of another one.

With `series`, events have the form of client-go's events.k8s.io recorder (`koordlet.kube.eventseries`), as
kube-scheduler's have: there the limits by object and the combination of messages do not exist.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from koordlet.api.core import Event, EventSource
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import ObjectMeta, ObjectReference
from koordlet.api.registry import resource_for
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks
from koordlet.kube.client import Client
from koordlet.kube.decode import KubeObject
from koordlet.kube.errors import ApiError, Conflict, KubeError, NotFound
from koordlet.kube.eventseries import END_AFTER_S, EventSeriesWriter
from koordlet.kube.metrics import EventMetrics
from koordlet.kube.ratelimit import TokenBucket

log = get_logger(__name__)

NORMAL = "Normal"
WARNING = "Warning"
_MAX_QUEUED = 1000
_MAX_CACHED = 4096
_MAX_SIMILAR = 10
_SIMILAR_WINDOW_S = 600.0
_SPAM_BURST = 25
_SPAM_QPS = 1 / 300
REASON_BURST = 100
REASON_QPS = 1 / 5
_MAX_MESSAGE_CHARS = 1024
"""The API server rejects longer messages."""
_V = TypeVar("_V")


class _Cache(Generic[_V]):
    """A bounded dict that evicts the least recently used entry."""

    def __init__(self, make: Callable[[], _V]) -> None:
        self._make = make
        self._items: OrderedDict[tuple[str, ...], _V] = OrderedDict()

    def get(self, key: tuple[str, ...]) -> _V:
        value = self._items.pop(key, None)
        if value is None:
            value = self._make()
        self._items[key] = value
        if len(self._items) > _MAX_CACHED:
            self._items.popitem(last=False)
        return value


@dataclass
class _Similar:
    """The different messages seen of one kind of event."""

    messages: set[str] = field(default_factory=set)
    last: float = float("-inf")


@dataclass
class _Sent:
    """The event on the server; `name` is empty until it is created."""

    name: str = ""
    count: int = 0


@dataclass(frozen=True)
class _Report:
    about: ObjectReference
    type: str
    reason: str
    action: str
    message: str
    at: float
    combined: bool


class _Sender:
    """The queue of one sending task."""

    def __init__(self) -> None:
        self.reports: deque[_Report] = deque()
        self.wake = asyncio.Event()


def reference(obj: KubeObject | ObjectReference) -> ObjectReference:
    """The reference to an object, with kind and apiVersion of the object or of its type."""
    if isinstance(obj, ObjectReference):
        return obj
    kind = getattr(obj, "kind", "")
    version = getattr(obj, "api_version", "")
    if not kind or not version:
        resource = resource_for(type(obj))
        kind = resource.kind
        version = resource.api_version
    meta = obj.metadata
    return ObjectReference(
        api_version=version,
        kind=kind,
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )


class EventRecorder:
    """A service for `Runner`. Events recorded before `start` are sent after it; `stop` sends the remaining events."""

    def __init__(
        self,
        client: Client,
        component: str,
        host: str = "",
        *,
        queue: int = _MAX_QUEUED,
        senders: int = 1,
        series: bool = False,
        limit_reasons: bool = False,
    ) -> None:
        """`queue`: maximum number of waiting events; `senders`: sending tasks, each for a part of the objects.
        `limit_reasons`: `REASON_BURST` events of a reason at once, then `REASON_QPS` per second."""
        self.name = "events"
        self._client = client
        self._clock = client.clock
        self._source = EventSource(component=component, host=host)
        self._limit = queue
        self._waiting = 0
        self._dropped = 0
        self._senders = [_Sender() for _ in range(senders)]
        self._tasks: list[asyncio.Task[None]] = []
        self._similar: _Cache[_Similar] = _Cache(_Similar)
        self._sent: _Cache[_Sent] = _Cache(_Sent)
        self._spam: _Cache[TokenBucket] = _Cache(lambda: TokenBucket(_SPAM_QPS, _SPAM_BURST, clock=self._clock))
        reason_qps = REASON_QPS if limit_reasons else 0.0
        self._reasons: _Cache[TokenBucket] = _Cache(lambda: TokenBucket(reason_qps, REASON_BURST, clock=self._clock))
        self._metrics = EventMetrics.of(client.registry)
        self._series = EventSeriesWriter(client, component, host) if series else None

    async def start(self) -> None:
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._run(sender), name=f"events:{number}")
                for number, sender in enumerate(self._senders)
            ]
            if self._series is not None:
                self._tasks.append(asyncio.create_task(self._sweep(self._series), name="events:sweep"))

    async def stop(self) -> None:
        """Send waiting events for at most two seconds, then stop."""
        tasks = self._tasks
        self._tasks = []
        if not tasks:
            return
        try:
            async with self._clock.timeout(2.0):
                while self._waiting and not any(task.done() for task in tasks):
                    await self._clock.sleep(0.05)
        except TimeoutError:
            log.warning("Events not sent before stopping", left=self._waiting)
        await end_tasks(*tasks)

    def event(
        self, about: KubeObject | ObjectReference, type: str, reason: str, message: str, action: str = ""
    ) -> bool:
        """Queue an event; returns at once whether the limits allow it. `type` is NORMAL or WARNING, `reason` and
        `action` are CamelCase words. Without `action`, a series has the reason as action, and a core/v1 Event has
        none."""
        ref = reference(about)
        of_object = (ref.kind, ref.namespace, ref.name, ref.uid)
        combined = False
        if self._series is None:
            # First the object's limit: one object must not use up the limit of a reason.
            if not (self._spam.get(of_object).try_take() and self._reasons.get((reason,)).try_take()):
                self._metrics.events.labels("filtered").inc()
                return False
            combined = self._is_similar((*of_object, type, reason), message)
        if self._waiting >= self._limit:
            self._metrics.events.labels("dropped").inc()
            self._dropped += 1
            return False
        if self._dropped:
            log.warning("Events were dropped because the queue was full", dropped=self._dropped, limit=self._limit)
            self._dropped = 0
        self._waiting += 1
        sender = self._senders[hash(of_object) % len(self._senders)]
        report = _Report(ref, type, reason, action, message[:_MAX_MESSAGE_CHARS], self._clock.now(), combined)
        sender.reports.append(report)
        sender.wake.set()
        return True

    def normal(self, about: KubeObject | ObjectReference, reason: str, message: str, action: str = "") -> None:
        self.event(about, NORMAL, reason, message, action)

    def warning(self, about: KubeObject | ObjectReference, reason: str, message: str, action: str = "") -> None:
        self.event(about, WARNING, reason, message, action)

    def _is_similar(self, key: tuple[str, ...], message: str) -> bool:
        """Whether the number of different recent messages of this kind is over the limit from which they are
        combined."""
        similar = self._similar.get(key)
        now = self._clock.monotonic()
        if now - similar.last > _SIMILAR_WINDOW_S:
            similar.messages.clear()
        similar.last = now
        if len(similar.messages) < _MAX_SIMILAR:
            similar.messages.add(message)
            return False
        return message not in similar.messages

    async def _run(self, sender: _Sender) -> None:
        while True:
            await sender.wake.wait()
            sender.wake.clear()
            while sender.reports:
                report = sender.reports[0]
                try:
                    await self._send(report)
                except (ApiError, wire.WireError) as error:  # permanent: no permission, a message that is not text, …
                    self._metrics.events.labels("failed").inc()
                    log.warning("Event rejected", reason=report.reason, object=report.about.name, err=error)
                except KubeError as error:  # the server is unreachable: the event stays first in the queue
                    self._metrics.events.labels("failed").inc()
                    log.debug("Event not sent yet", reason=report.reason, err=error)
                    await self._clock.sleep(10.0)
                    continue
                sender.reports.popleft()
                self._waiting -= 1

    async def _sweep(self, series: EventSeriesWriter) -> None:
        while True:
            await self._clock.sleep(END_AFTER_S)
            try:
                await series.sweep(self._clock.now())
            except KubeError as error:
                log.debug("Event series not written", err=error)

    async def _send(self, report: _Report) -> None:
        if self._series is not None:
            is_new = await self._series.write(
                report.about, report.type, report.reason, report.action or report.reason, report.message, report.at
            )
            self._metrics.events.labels("sent" if is_new else "merged").inc()
            return
        ref = report.about
        source = self._source
        text = "" if report.combined else report.message
        key = (ref.kind, ref.namespace, ref.name, ref.uid, report.type, report.reason, text)
        sent = self._sent.get(key)
        namespace = ref.namespace or "default"
        message = f"(combined from similar events): {report.message}" if report.combined else report.message
        last = Time.from_unix(report.at)
        if sent.name:
            patch: dict[str, Any] = {"count": sent.count + 1, "lastTimestamp": str(last), "message": message}
            try:
                await self._client.patch(Event, sent.name, namespace, body=patch)
                sent.count += 1
                self._metrics.events.labels("merged").inc()
                return
            except NotFound:  # the server deletes events after an hour; create a new one
                sent.name = ""
        name = f"{ref.name}.{int(report.at * 1e9):x}"
        event = Event(
            metadata=ObjectMeta(name=name, namespace=namespace),
            involved_object=ref,
            reason=report.reason,
            message=message,
            source=source,
            first_timestamp=last,
            last_timestamp=last,
            count=1,
            type=report.type,
            action=report.action,
            reporting_component=source.component,
            reporting_instance=source.host,
        )
        try:
            await self._client.create_blind(event, namespace=namespace)
        except Conflict as error:
            if not error.already_exists:
                raise
            event.metadata.name = f"{name}x{self._waiting:x}"  # two events of one object within a nanosecond tick
            await self._client.create_blind(event, namespace=namespace)
        sent.name = event.metadata.name
        sent.count = 1
        self._metrics.events.labels("sent").inc()
