"""What every controller here is: watches that name keys, and a function that makes one key right.

Level-triggered: a change says only "look at this key", `reconcile` looks at the store and compares what is with
what should be. It may run any number of times for one change and after a restart runs for everything that
exists. Reads are of the store itself, so that a controller sees its own writes at once and needs no
expectations. A `reconcile` that raises is retried with back-off; one that returns a number is run again after
so many seconds.
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
from koordlet.kube.workqueue import WorkQueue

Json = dict[str, Any]
Key = tuple[str, str]
"""(namespace, name); namespace "" for cluster-wide kinds."""
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
        """Kind key -> which keys a change of such an object concerns."""

    @abstractmethod
    async def reconcile(self, key: Key) -> float | None:
        """Make `key` right."""

    async def start(self) -> None:
        self.queue = self._new_queue()
        self.prepare()
        for kind, mapper in self.watches().items():
            self._spawn(self._follow(kind, mapper), f"{self.name}:{kind}")
        self._spawn(self.queue.work(self._attempt), f"{self.name}:work")

    def prepare(self) -> None:
        """Called at every start, before the first watch: forget what an earlier run remembered."""
        return None

    async def stop(self) -> None:
        await self.queue.shutdown()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _attempt(self, key: Key) -> float | None:
        """`reconcile`, but for the two failures that are part of everyday life."""
        try:
            return await self.reconcile(key)
        except StatusError as error:
            causes = error.details.get("causes") or ()
            if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
                return None  # what this key wants will go with its namespace
            if error.reason == "Conflict":
                return CONFLICT_PAUSE_SECONDS  # somebody else wrote: look again
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
        """Feed the queue from a watch, from the start again when the history is gone or the watch breaks.

        `since`: the version that the first watch goes on from; None: that begins with what there is, too.
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
    """Await a write whose object may have vanished meanwhile; None then."""
    try:
        return await write
    except StatusError as error:
        if error.reason != "NotFound":
            raise
        return None
