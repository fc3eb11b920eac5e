"""A typed, indexed copy of one resource, kept current by list and watch.

    pods = Informer(client, Pod, field_selector={"spec.nodeName": node}, indexes={"uid": lambda p: [p.metadata.uid]})
    pods.add_handler(on_add=…, on_update=…, on_delete=…)
    await pods.start(); await pods.synced.wait()

The store follows the server through dropped connections (resume at the last resourceVersion), expired versions
(410: list again, the difference becomes events), refused requests (back-off with jitter) and silence. While the
server is away the last known state stays readable. Handlers are plain functions called in order, one event at a
time; they see the store already changed, should only note the key (see `WorkQueue`), and one that raises is logged
and counted and stops nobody. An object that does not decode is counted, logged and otherwise as it was: the last
good version stays. Memory is what `type` keeps: pass a trimmed struct type with `resource=`, and `trim` for the rest.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from koordlet.api.encoding import wire
from koordlet.api.registry import Resource
from koordlet.app.logging import get_logger
from koordlet.app.loopslice import yield_to_loop
from koordlet.app.periodic import Periodic
from koordlet.kube.client import PAGE, Client
from koordlet.kube.decode import Object, ObjectDecoder, decode_meta, resource_of, where_of
from koordlet.kube.errors import VERSION_TOO_LARGE, ApiError, ConnectionFailed, Gone, KubeError
from koordlet.kube.metrics import InformerMetrics
from koordlet.kube.ratelimit import Backoff
from koordlet.kube.selectors import Selector, by_name
from koordlet.kube.store import IndexFn, Store
from koordlet.kube.watch import IDLE_SECONDS, WatchEvent, watch

log = get_logger(__name__)
T = TypeVar("T", bound=Object)

_BATCH = 100  # objects decoded or handed out between two turns of the loop: a few milliseconds
_HEALTHY_SECONDS = 5.0  # a watch that lived this long, or brought something, ends a streak of failures
_WATCH_SECONDS = (240, 480)  # the server is asked to end the stream at random in here, as client-go does


@dataclass(frozen=True)
class _Handler(Generic[T]):
    on_add: Callable[[T], object] | None
    on_update: Callable[[T, T], object] | None
    on_delete: Callable[[T], object] | None


class Informer(Generic[T]):
    """See the module text. A service for `Runner`: `start` returns at once, wait for `synced` where needed."""

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
        resource: Resource | type | None = None,
        name: str | None = None,
        resync_seconds: float | None = None,
        page: int = PAGE,
        idle_seconds: float = IDLE_SECONDS,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._type = type
        self._resource = resource_of(type, resource)
        self._namespace = namespace
        self._fields = field_selector
        self._labels = label_selector
        self._trim = trim
        self._page = page
        self._idle = idle_seconds
        self._rng = rng or random.Random()
        self._decoder: ObjectDecoder[T] = ObjectDecoder(type, self._resource)
        self.name = name or self._resource.plural
        self.store: Store[T] = Store(indexes)
        self.synced = asyncio.Event()
        """Set once the first complete list is in the store and its handlers have run."""
        self.last_contact: float | None = None
        """Monotonic time of the last sign of life of the server."""
        self.problem: str | None = "not synced yet"
        """Why the copy is not being kept current just now; None while a watch runs. Fits `Health.check`."""
        self.undecoded: dict[str, str] = {}
        """Objects whose latest version is malformed, by key, and why: the store has an older one, or none."""
        self._handlers: list[_Handler[T]] = []
        self._version: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._metrics = InformerMetrics.of(client.registry)
        self._backoff = Backoff(0.8, 30.0, rng=self._rng)
        self._resync: Periodic | None = None
        if resync_seconds:
            self._resync = Periodic(
                f"resync:{self.name}", resync_seconds, self._resync_all, immediate=False, clock=client.clock,
                registry=client.registry,
            )  # fmt: skip

    async def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"informer:{self.name}")
            if self._resync is not None:
                await self._resync.start()

    async def stop(self) -> None:
        """End the watch; the store stays readable."""
        if self._resync is not None:
            await self._resync.stop()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.problem = "stopped"

    def add_handler(
        self,
        on_add: Callable[[T], object] | None = None,
        on_update: Callable[[T, T], object] | None = None,
        on_delete: Callable[[T], object] | None = None,
    ) -> None:
        """Have events told: added(new), updated(old, new), deleted(last known).

        Objects already in the store are told as added at once, so the time of registration does not matter.
        """
        handler = _Handler(on_add, on_update, on_delete)
        self._handlers.append(handler)
        for obj in self.store.list():
            self._tell(handler.on_add, obj)

    def get(self, key: str) -> T | None:
        """The object `namespace/name` (`name` when cluster-scoped). Shared: don't change it."""
        return self.store.get(key)

    def list(self) -> list[T]:
        return self.store.list()

    def by_index(self, name: str, value: str) -> Sequence[T]:
        return self.store.by_index(name, value)

    async def _run(self) -> None:
        while True:
            clock = self._client.clock
            begun, delay = clock.monotonic(), 0.0
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
                if clock.monotonic() - begun < 1.0:  # a server that hangs up at once must not be called in a loop
                    delay = self._backoff.next()
            except Gone as error:
                # The ordinary fate of an old version: list again, at once unless it keeps happening.
                first = self._version is not None and self._backoff.failures == 0
                delay = 0.0 if first else self._backoff.next()
                self._backoff.failures = max(1, self._backoff.failures)
                self._version = None
                self._failed("gone", error, delay)
            except ApiError as error:
                if error.has_cause(VERSION_TOO_LARGE):
                    self._version = None  # the server lost history that we have seen: waiting for it heals nothing
                delay = max(self._backoff.next(), min(error.retry_after or 0.0, 60.0))
                self._failed(str(error.status), error, delay)
            except ConnectionFailed as error:
                delay = self._backoff.next()
                self._failed("connection", error, delay)
            except (KubeError, wire.WireError) as error:
                self._version, delay = None, self._backoff.next()
                self._failed("malformed", error, delay)
            except Exception as error:
                self._version, delay = None, self._backoff.next()
                log.exception("Informer failed, listing again", informer=self.name, err=error)
                self._failed("internal", error, delay)
            await clock.sleep(delay)

    def _failed(self, reason: str, error: Exception, delay: float) -> None:
        self._metrics.watch_errors.labels(self.name, reason).inc()
        self.problem = str(error) or reason
        failures = self._backoff.failures
        if reason == "gone":
            log.info("Informer lists again", informer=self.name, err=error)
        elif failures & (failures - 1) == 0:  # streaks are told at 1, 2, 4, 8 … failures
            log.warning(
                "Informer lost the server", informer=self.name, failures=failures, retry=round(delay, 1), err=error
            )

    def _contact(self) -> None:
        """The server spoke."""
        self.last_contact = self._client.clock.monotonic()
        self._metrics.last_event.labels(self.name).set(self._client.clock.now())

    def _opened(self) -> None:
        """A watch runs; whether it is any good (see `_backoff`) only its events or its age will tell."""
        self.problem = None
        self._contact()

    async def _list(self) -> None:
        self._metrics.relists.labels(self.name).inc()
        fresh: dict[str, T | None] = {}  # None: there, but malformed
        version = ""
        pages = self._client.pages(
            self._resource, self._namespace, label_selector=self._labels, field_selector=self._fields, limit=self._page
        )  # fmt: skip
        async with aclosing(pages):
            async for page in pages:
                if page is None:
                    fresh.clear()
                    continue
                version = page.metadata.resource_version
                for count, raw in enumerate(page.items or ()):
                    try:
                        obj = self._decoder.decode(raw)
                        fresh[obj.metadata.key] = obj
                    except wire.WireError as error:
                        meta = decode_meta(raw)
                        self._malformed(error, "" if meta is None else meta.key)
                        if meta is not None:
                            fresh[meta.key] = None
                    await self._pause(count)
        await self._replace(fresh)
        self._version = version
        self._contact()
        self.synced.set()

    async def _replace(self, fresh: Mapping[str, T | None]) -> None:
        """Make the store what the list says, as events."""
        for key in sorted({*self.store.keys(), *self.undecoded} - fresh.keys()):
            self._delete(key)
        for count, (key, obj) in enumerate(fresh.items()):
            if obj is not None:
                self._upsert(key, obj)
            await self._pause(count)
        self._metrics.objects.labels(self.name).set(len(self.store))

    async def _pause(self, count: int) -> None:
        """Between two objects of a list: the first list is waited for, later ones come while others have work."""
        if self.synced.is_set():
            await yield_to_loop()
        elif count % _BATCH == _BATCH - 1:
            await asyncio.sleep(0)

    async def _watch(self) -> None:
        begun = self._client.clock.monotonic()
        stream = watch(
            self._client,
            self._type,
            self._resource,
            self._namespace,
            resource_version=self._version or "",
            label_selector=self._labels,
            field_selector=self._fields,
            server_seconds=self._rng.randint(*_WATCH_SECONDS),
            idle_seconds=self._idle,
            on_open=self._opened,
        )
        try:
            async with aclosing(stream):
                async for event in stream:
                    self._apply(event)
                    self._backoff.reset()
                    self._contact()
                    await yield_to_loop()
        finally:
            if self._client.clock.monotonic() - begun >= _HEALTHY_SECONDS:
                self._backoff.reset()

    def _apply(self, event: WatchEvent[T]) -> None:
        self._metrics.events.labels(self.name, event.type).inc()
        key = event.meta.key
        if event.type == "DELETED":
            self._delete(key, event.object)
        elif event.object is not None:
            self._upsert(key, event.object)
        elif event.error is not None:
            self._malformed(event.error, key)
        if event.meta.resource_version:
            self._version = event.meta.resource_version
        self._metrics.objects.labels(self.name).set(len(self.store))

    def _upsert(self, key: str, obj: T) -> None:
        self.undecoded.pop(key, None)
        old = self.store.get(key)
        if old is not None and "" != old.metadata.uid != obj.metadata.uid:
            self._delete(key)  # another object of the same name: whoever follows the old one must hear of its end
            old = None
        if old is not None and old.metadata.resource_version == obj.metadata.resource_version != "":
            return  # a list after a resumed watch: seen already
        try:
            new = self._trim(obj) if self._trim is not None else obj
            self.store.put(key, new)
        except Exception as error:
            self._metrics.decode_errors.labels(self.name).inc()
            log.exception("Cannot keep object", informer=self.name, object=key, err=error)
            return
        for handler in self._handlers:
            if old is None:
                self._tell(handler.on_add, new)
            else:
                self._tell(handler.on_update, old, new)

    def _delete(self, key: str, last: T | None = None) -> None:
        self.undecoded.pop(key, None)
        old = self.store.pop(key)
        if old is None:
            return
        # With `trim` the final state would have another shape than handlers are used to: they get the last kept one.
        gone = last if last is not None and self._trim is None else old
        for handler in self._handlers:
            self._tell(handler.on_delete, gone)

    def _tell(self, fn: Callable[..., object] | None, *objects: T) -> None:
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
        log.error("Malformed object left as it was", informer=self.name, err=error)

    async def _resync_all(self) -> None:
        """Tell every object as updated to itself, for handlers that missed or failed something."""
        for count, obj in enumerate(self.store.list()):
            if self.store.get(obj.metadata.key) is obj:  # else told of, or gone, while others had their turn
                for handler in self._handlers:
                    self._tell(handler.on_update, obj, obj)
            await self._pause(count)


class ObjectInformer(Informer[T]):
    """An informer of one named object: its Node, its NodeSLO."""

    def __init__(
        self,
        client: Client,
        type: type[T],
        object_name: str,
        namespace: str | None = None,
        *,
        resource: Resource | None = None,
        **options: object,
    ) -> None:
        super().__init__(
            client, type, namespace, field_selector=by_name(object_name), resource=resource, **options  # type: ignore[arg-type]
        )  # fmt: skip
        self.object_name = object_name
        self._key = f"{namespace}/{object_name}" if namespace else object_name
        self.title = where_of(self._resource, namespace, object_name)

    @property
    def malformed(self) -> str:
        """Why the latest version could not be read; empty when it could."""
        return self.undecoded.get(self._key, "")

    @property
    def object(self) -> T | None:
        """The object as last seen; None when it does not exist (or is not known yet: see `synced`)."""
        return self.store.get(self._key)
