"""The base class of the embedded controllers: watches that produce keys, and a function that reconciles one key.

Level-triggered: a change only names a key; `reconcile` compares the actual state in the store with the desired one.
It may run any number of times for one change, and after a restart it runs for every existing object. Controllers
read the store itself, so that they see their own writes at once and need no expectations. A `reconcile` that raises
is retried with back-off; one that returns a number runs again after that number of seconds.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from control.standalone.errors import StatusError
from control.standalone.kinds import POD
from control.standalone.registry import ObjectChange, ObjectRegistry
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks
from koordlet.kube.workqueue import WorkQueue

Json = dict[str, Any]
Key = tuple[str, str]
"""(namespace, name); namespace "" for cluster-scoped kinds."""
Mapper = Callable[[ObjectChange], Iterable[Key]]

log = get_logger(__name__)

RETRY_MAX_SECONDS = 10.0
RELIST_PAUSE_SECONDS = 0.2
CONFLICT_PAUSE_SECONDS = 0.05


def itself(change: ObjectChange) -> list[Key]:
    """The mapper of a controller's own kind: the changed object is the key."""
    return [key_of(change.object)]


def key_of(obj: Json) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def pods_on(registry: ObjectRegistry, node: str) -> list[Key]:
    """The pods bound to a node."""
    return [key_of(pod) for pod in registry.store.list(POD) if (pod.get("spec") or {}).get("nodeName") == node]


class EmbeddedController(ABC):
    """`await start()` … `await stop()`; may be started again after it stopped."""

    name: str

    def __init__(self, registry: ObjectRegistry) -> None:
        self.registry = registry
        self.queue: WorkQueue[Key] = self._new_queue()
        self._tasks: list[asyncio.Task[None]] = []

    @abstractmethod
    def watches(self) -> dict[str, Mapper]:
        """Kind -> function from a change of an object of this kind to the affected keys."""

    @abstractmethod
    async def reconcile(self, key: Key) -> float | None:
        """Make the state of `key` as desired; returns the seconds until the next run, or None."""

    async def start(self) -> None:
        self.queue = self._new_queue()
        self.prepare()
        for kind, mapper in self.watches().items():
            self._spawn(self._follow(kind, mapper), f"{self.name}:{kind}")
        self._spawn(self.queue.work(self._attempt), f"{self.name}:work")

    def prepare(self) -> None:
        """Called at every start, before the first watch: reset the state of an earlier run."""
        return None

    async def stop(self) -> None:
        await self.queue.shutdown()
        tasks, self._tasks = self._tasks, []
        await end_tasks(*tasks)

    async def _attempt(self, key: Key) -> float | None:
        """`reconcile`, with the handling of two expected failures: namespace being deleted, and write conflict."""
        try:
            return await self.reconcile(key)
        except StatusError as error:
            causes = error.details.get("causes") or ()
            if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
                return None  # the objects of this key are deleted with the namespace
            if error.reason == "Conflict":
                return CONFLICT_PAUSE_SECONDS  # another writer changed the object: read it again
            raise

    @property
    def now(self) -> float:
        """Wall clock, seconds."""
        return self.registry.now()

    def _new_queue(self) -> WorkQueue[Key]:
        return WorkQueue(self.name, max_delay=RETRY_MAX_SECONDS)

    def _spawn(self, coroutine: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(coroutine, name=name)
        self._tasks.append(task)
        return task

    async def _follow(self, kind: str, mapper: Mapper, since: int | None = None) -> None:
        """Fill the queue from a watch; restart it when its version is too old or it fails.

        `since`: the version after which the first watch starts. None: it starts with all existing objects.
        """
        while True:
            try:
                async for change in self.registry.watch(kind, rv=since):
                    for key in mapper(change):
                        self.queue.add(key)
            except StatusError as error:
                log.warning("Watch ended, listing again", controller=self.name, kind=kind, err=error)
            except Exception as error:
                log.exception("Watch failed, listing again", controller=self.name, kind=kind, err=error)
            since = None
            await asyncio.sleep(RELIST_PAUSE_SECONDS)


async def ignore_missing(write: Any) -> Any:
    """Await a write; None when its object doesn't exist."""
    try:
        return await write
    except StatusError as error:
        if error.reason != "NotFound":
            raise
        return None
