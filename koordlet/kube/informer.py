"""A typed, indexed copy of one resource, kept current by list and watch.

    pods = Informer(client, Pod, field_selector={"spec.nodeName": node}, indexes={"uid": lambda p: [p.metadata.uid]})
    pods.add_handler(on_add=…, on_update=…, on_delete=…)
    await pods.start(); await pods.synced.wait()

The store follows the server through dropped connections (resume at the last resourceVersion), expired versions
(410: list again, the difference becomes events), refused requests (back-off with jitter) and silence. While the
server is unreachable the last known state stays readable. Handlers are plain functions called in order, one event at a
time. They see the changed store and should only add the key to a queue (see `WorkQueue`). A handler that raises is
logged and counted, and the next handlers are called. An object that cannot be decoded is counted and logged, and the
last valid version stays. Memory use depends on `type`: pass a trimmed struct type with `resource=`, and `trim`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from koordlet.api.encoding import wire
from koordlet.api.registry import ApiResource
from koordlet.app.logging import get_logger
from koordlet.app.loopslice import yield_to_loop
from koordlet.app.periodic import Periodic
from koordlet.app.tasks import end_tasks
from koordlet.kube.advice import advice, with_advice
from koordlet.kube.client import PAGE_SIZE, Client
from koordlet.kube.decode import KubeObject, ObjectDecoder, decode_meta, resource_of
from koordlet.kube.errors import VERSION_TOO_LARGE, ApiError, ConnectionFailed, Gone, KubeError, NotFound
from koordlet.kube.metrics import InformerMetrics
from koordlet.kube.ratelimit import ExponentialBackoff
from koordlet.kube.selectors import Selector, by_name
from koordlet.kube.store import IndexFn, InformerStore
from koordlet.kube.watch import WatchEvent, watch

log = get_logger(__name__)
T = TypeVar("T", bound=KubeObject)

_BATCH = 100
"""Objects decoded or delivered between two yields to the loop: a few milliseconds."""
_OPTIONAL_RETRY_S = 300.0
"""How often an optional resource that the server lacks is tried again."""
_HEALTHY_AFTER_S = 5.0
"""A watch that lasted this long, or delivered an event, resets the back-off."""
_WATCH_DURATION_S = (240, 480)
"""The server is requested to end the stream after a random time in this range, as in client-go."""


@dataclass(frozen=True, slots=True)
class InformerSettings:
    """How an informer lists and watches."""

    page_size: int = PAGE_SIZE
    """Objects per page of a list; 0: no pages."""
    optional: bool = False
    """Whether the server may lack the resource, for example because it is older: the store is empty then."""
    resync_period_s: float | None = None
    """Call the update handlers for all objects this often; None: never."""


@dataclass(frozen=True)
class _Handler(Generic[T]):
    on_add: Callable[[T], object] | None
    on_update: Callable[[T, T], object] | None
    on_delete: Callable[[T], object] | None


class Informer(Generic[T]):
    """See the module's docstring. A service for `Runner`: `start` returns at once, wait for `synced` where needed."""

    def __init__(
        self,
        client: Client,
        type: type[T],
        namespace: str | None = None,
        *,
        field_selector: str | Mapping[str, str] | None = None,
        label_selector: Selector = None,
        trim: Callable[[T], T] | None = None,
        indexes: Mapping[str, IndexFn[T]] | None = None,
        resource: ApiResource | type | None = None,
        name: str | None = None,
        settings: InformerSettings = InformerSettings(),
    ) -> None:
        self._client = client
        self._type = type
        self._resource = resource_of(type, resource)
        self._namespace = namespace
        self._fields = field_selector
        self._labels = label_selector
        self._trim = trim
        self._settings = settings
        self._decoder: ObjectDecoder[T] = ObjectDecoder(type, self._resource)
        self.name = name or self._resource.plural
        self.store: InformerStore[T] = InformerStore(indexes)
        self.synced = asyncio.Event()
        """Set once the first complete list is in the store and its handlers have run."""
        self.problem: str | None = "not synced yet"
        """Why the copy is not up to date; None while a watch runs. Fits `HealthChecks.check`."""
        self.undecoded: dict[str, str] = {}
        """Key -> error of objects whose latest version is malformed; the store has an older version or none."""
        self._handlers: list[_Handler[T]] = []
        self._version: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._metrics = InformerMetrics.of(client.registry)
        self._backoff = ExponentialBackoff(0.8, 30.0)
        self._logged_reason = ""
        self._resync: Periodic | None = None
        if settings.resync_period_s:
            self._resync = Periodic(
                f"resync:{self.name}",
                settings.resync_period_s,
                self._resync_all,
                immediate=False,
                clock=client.clock,
                registry=client.registry,
            )

    async def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"informer:{self.name}")
            if self._resync is not None:
                await self._resync.start()

    async def stop(self) -> None:
        """End the watch; the store stays readable."""
        if self._resync is not None:
            await self._resync.stop()
        task = self._task
        self._task = None
        if task is not None:
            await end_tasks(task)
            self.problem = "stopped"

    def add_handler(
        self,
        on_add: Callable[[T], object] | None = None,
        on_update: Callable[[T, T], object] | None = None,
        on_delete: Callable[[T], object] | None = None,
    ) -> None:
        """Call these functions for events: on_add(new), on_update(old, new), on_delete(last known).

        `on_add` is called at once for objects already in the store, so the time of registration does not matter.
        """
        handler = _Handler(on_add, on_update, on_delete)
        self._handlers.append(handler)
        for obj in self.store.list():
            self._call(handler.on_add, obj)

    def get(self, key: str) -> T | None:
        """The object `namespace/name` (`name` if cluster-scoped). It is shared and must not be modified."""
        return self.store.get(key)

    def list(self) -> list[T]:
        return self.store.list()

    def by_index(self, name: str, value: str) -> Sequence[T]:
        return self.store.by_index(name, value)

    async def _run(self) -> None:
        while True:
            clock = self._client.clock
            started_at = clock.monotonic()
            delay = 0.0
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
                if clock.monotonic() - started_at < 1.0:  # no busy loop if the server closes the stream at once
                    delay = self._backoff.next()
            except Gone as error:
                # The version is too old, which is normal: list again, without delay unless it repeats.
                first = self._version is not None and self._backoff.failures == 0
                delay = 0.0 if first else self._backoff.next()
                self._backoff.expected_failure()
                self._version = None
                self._failed("gone", error, delay)
            except ApiError as error:
                if self._settings.optional and self._version is None and isinstance(error, NotFound):
                    self.problem = None
                    self.synced.set()
                    await clock.sleep(_OPTIONAL_RETRY_S)
                    continue
                if error.has_cause(VERSION_TOO_LARGE):
                    self._version = None  # the server lost history; waiting would not bring the version back
                delay = max(self._backoff.next(), min(error.retry_after or 0.0, 60.0))
                self._failed(str(error.status), error, delay)
            except ConnectionFailed as error:
                delay = self._backoff.next()
                self._failed("connection", error, delay)
            except (KubeError, wire.WireError) as error:
                self._version = None
                delay = self._backoff.next()
                self._failed("malformed", error, delay)
            except Exception as error:
                self._version = None
                delay = self._backoff.next()
                log.exception("Informer failed, listing again", informer=self.name, err=error)
                self._failed("internal", error, delay)
            await clock.sleep(delay)

    def _failed(self, reason: str, error: Exception, delay: float) -> None:
        self._metrics.watch_errors.labels(self.name, reason).inc()
        self.problem = with_advice(error, self._resource) or reason
        failures = self._backoff.failures
        other, self._logged_reason = reason != self._logged_reason, reason
        if reason == "gone":
            log.info("Informer lists again", informer=self.name, err=error)
        elif other or failures & (failures - 1) == 0:  # logs failures 1, 2, 4, 8 … of a series, and new reasons
            log.warning(
                "Informer lost the server",
                informer=self.name,
                failures=failures,
                retry=round(delay, 1),
                err=error,
                advice=advice(error, self._resource),
            )

    def _on_contact(self) -> None:
        """Record an answer or event of the server."""
        self._metrics.last_event.labels(self.name).set(self._client.clock.now())

    def _on_open(self) -> None:
        """The server accepted the watch. The back-off is reset later, by its first event or its age."""
        self.problem = None
        self._on_contact()

    async def _list(self) -> None:
        self._metrics.relists.labels(self.name).inc()
        fresh: dict[str, T | None] = {}  # None: the object exists but is malformed
        version = ""
        pages = self._client.pages(
            self._resource,
            self._namespace,
            label_selector=self._labels,
            field_selector=self._fields,
            limit=self._settings.page_size,
        )
        async with aclosing(pages):
            async for page in pages:
                if page is None:
                    fresh.clear()
                    continue
                version = page.metadata.resource_version
                for count, raw in enumerate(page.items or ()):
                    try:
                        obj = self._decoder.decode(raw)
                        fresh[obj.metadata.key] = self._kept(obj)
                    except wire.WireError as error:
                        meta = decode_meta(raw)
                        self._malformed(error, "" if meta is None else meta.key)
                        if meta is not None:
                            fresh[meta.key] = None
                    await self._pause(count)
        await self._replace(fresh)
        self._version = version
        self._on_contact()
        self.synced.set()

    async def _replace(self, fresh: Mapping[str, T | None]) -> None:
        """Make the store equal to the list and deliver the differences as events."""
        for key in sorted({*self.store.keys(), *self.undecoded} - fresh.keys()):
            self._delete(key)
        for count, (key, obj) in enumerate(fresh.items()):
            if obj is not None:
                self._upsert(key, obj)
            await self._pause(count)
        self._metrics.objects.labels(self.name).set(len(self.store))

    async def _pause(self, count: int) -> None:
        """Between two objects of a list. Start-up waits for the first list; later lists share the loop."""
        if self.synced.is_set():
            await yield_to_loop()
        elif count % _BATCH == _BATCH - 1:
            await asyncio.sleep(0)

    async def _watch(self) -> None:
        started_at = self._client.clock.monotonic()
        stream = watch(
            self._client,
            self._type,
            self._resource,
            self._namespace,
            resource_version=self._version or "",
            label_selector=self._labels,
            field_selector=self._fields,
            server_seconds=random.randint(*_WATCH_DURATION_S),
            on_open=self._on_open,
        )
        try:
            async with aclosing(stream):
                async for event in stream:
                    self._apply(event)
                    self._backoff.reset()
                    self._on_contact()
                    await yield_to_loop()
        finally:
            if self._client.clock.monotonic() - started_at >= _HEALTHY_AFTER_S:
                self._backoff.reset()

    def _apply(self, event: WatchEvent[T]) -> None:
        self._metrics.events.labels(self.name, event.type).inc()
        key = event.meta.key
        if event.type == "DELETED":
            self._delete(key, event.object)
        elif event.object is not None:
            self._take(event.object)
        elif event.error is not None:
            self._malformed(event.error, key)
        if event.meta.resource_version:
            self._version = event.meta.resource_version
        self._metrics.objects.labels(self.name).set(len(self.store))

    def _take(self, obj: T) -> None:
        """Keep a new object or version."""
        key, kept = obj.metadata.key, self._kept(obj)
        if kept is not None:
            self._upsert(key, kept)

    def _kept(self, obj: T) -> T | None:
        """The object as the store keeps it; None if it cannot be kept. Objects of a list are trimmed one at a time:
        a list of untrimmed ones would take the memory that trimming saves."""
        key = obj.metadata.key
        old = self.store.get(key)
        if old is not None and _is_version(old, obj):
            return old
        try:
            return self._trim(obj) if self._trim is not None else obj
        except wire.WireError as error:
            self._malformed(error, key)
        except Exception as error:
            self._metrics.decode_errors.labels(self.name).inc()
            log.exception("Cannot keep object", informer=self.name, object=key, err=error)
        if old is not None and old.metadata.uid != obj.metadata.uid:
            self._delete(key)  # the older object of this name is gone, whatever replaced it
        return None

    def _upsert(self, key: str, new: T) -> None:
        self.undecoded.pop(key, None)
        old = self.store.get(key)
        if old is not None and "" != old.metadata.uid != new.metadata.uid:
            self._delete(key)  # another object of the same name: handlers must get the deletion of the old one
            old = None
        if old is not None and _is_version(old, new):
            return  # already known, for example a list after a watch
        try:
            self.store.put(key, new)
        except Exception as error:
            self._metrics.decode_errors.labels(self.name).inc()
            log.exception("Cannot keep object", informer=self.name, object=key, err=error)
            return
        for handler in self._handlers:
            if old is None:
                self._call(handler.on_add, new)
            else:
                self._call(handler.on_update, old, new)

    def _delete(self, key: str, last: T | None = None) -> None:
        self.undecoded.pop(key, None)
        old = self.store.pop(key)
        if old is None:
            return
        # With `trim` the final state has fields that handlers do not expect: they get the last stored object.
        deleted = last if last is not None and self._trim is None else old
        for handler in self._handlers:
            self._call(handler.on_delete, deleted)

    def _call(self, fn: Callable[..., object] | None, *objects: T) -> None:
        if fn is None:
            return
        try:
            fn(*objects)
        except Exception as error:
            self._metrics.handler_errors.labels(self.name).inc()
            log.exception("Handler failed", informer=self.name, object=objects[-1].metadata.key, err=error)

    def _malformed(self, error: wire.WireError, key: str) -> None:
        if key:
            self.undecoded[key] = str(error)
        self._metrics.decode_errors.labels(self.name).inc()
        log.error("Malformed object, keeping the last valid version", informer=self.name, err=error)

    async def _resync_all(self) -> None:
        """Call the update handlers with each object as old and new, to repair what they missed or failed."""
        for count, obj in enumerate(self.store.list()):
            if self.store.get(obj.metadata.key) is obj:  # else it was updated or deleted meanwhile
                for handler in self._handlers:
                    self._call(handler.on_update, obj, obj)
            await self._pause(count)


def _is_version(old: KubeObject, new: KubeObject) -> bool:
    """Whether the two are the same version of the same object."""
    before, after = old.metadata, new.metadata
    return before.uid in ("", after.uid) and before.resource_version == after.resource_version != ""


class ObjectInformer(Informer[T]):
    """An informer of one named object: its Node, its NodeSLO."""

    def __init__(
        self,
        client: Client,
        type: type[T],
        object_name: str,
        namespace: str | None = None,
        *,
        resource: ApiResource | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(client, type, namespace, field_selector=by_name(object_name), resource=resource, name=name)
        self.object_name = object_name
        self._key = f"{namespace}/{object_name}" if namespace else object_name

    @property
    def malformed(self) -> str:
        """Why the latest version cannot be decoded; empty if it can."""
        return self.undecoded.get(self._key, "")

    @property
    def object(self) -> T | None:
        """The last known version; None if the object does not exist or is not known yet (see `synced`)."""
        return self.store.get(self._key)
