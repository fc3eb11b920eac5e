"""Callbacks that run when this node's state changed (spec 02 §3.2).

    callbacks.register(StateType.NODE_METADATA, "cpu-rules", fn)

Each type has one worker and a mailbox with one slot: triggers that arrive while one is pending are merged with it, and
the callback sees the newest state. Callbacks of one type run one after another in the order of registration; types run
concurrently. A trigger before `start` is not lost. A callback that raises is logged and counted, and the next one runs.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
from collections.abc import Awaitable, Callable, Mapping

from koordlet.app.logging import get_logger
from koordlet.app.periodic import is_cancelled
from koordlet.app.tasks import end_tasks
from koordlet.prometheus import Registries

log = get_logger(__name__)


class StateType(enum.StrEnum):
    """A kind of state change."""

    ALL_PODS = "AllPods"
    """The kubelet returned its pods, changed or not. Object: True."""
    NODE_TOPOLOGY = "NodeTopology"
    """The node's NodeResourceTopology changed. Object: the NodeResourceTopology."""
    NODE_METADATA = "NodeMetadata"
    """The Node was seen for the first time, or its labels or annotations changed. Object: the Node."""


Callback = Callable[[object], Awaitable[None] | None]


class CallbackError(ValueError):
    """An invalid registration; names type and callback."""


class Callbacks:
    """A service for `Runner`; register before or after its start.

    sources: read the current object of each type right before its callbacks run; None skips the run.
    """

    def __init__(self, sources: Mapping[StateType, Callable[[], object | None]]) -> None:
        self.name = "state-callbacks"
        self._sources = dict(sources)
        self._registered: dict[StateType, dict[str, Callback]] = {type: {} for type in StateType}
        self._mailboxes = {type: asyncio.Event() for type in StateType}
        self._workers: list[asyncio.Task[None]] = []
        self.failures: dict[tuple[str, str], int] = {}
        """Calls that raised, by (type, name of the callback)."""

    def attach(self, registries: Registries) -> None:
        """Export `failures`."""
        registries.view("state_callback_failures_total", self.failures.items)

    def add_source(self, type: StateType, read: Callable[[], object | None]) -> None:
        """Read the object of a type with `read`."""
        self._sources[type] = read

    def register(self, type: StateType, name: str, fn: Callback) -> None:
        """Call `fn(object)` after changes. CallbackError when the name is taken within the type."""
        if type not in self._registered:
            raise CallbackError(f"callback {name}: unknown state type {type!r}")
        if name in self._registered[type]:
            raise CallbackError(f"callback {name} of {type} is already registered")
        self._registered[type][name] = fn

    def trigger(self, type: StateType) -> None:
        """Schedule the callbacks of a type."""
        self._mailboxes[type].set()

    async def start(self) -> None:
        if not self._workers:
            self._workers = [asyncio.create_task(self._work(type), name=f"callbacks:{type}") for type in StateType]

    async def stop(self) -> None:
        """Cancel the workers."""
        workers = self._workers
        self._workers = []
        await end_tasks(*workers)

    async def _work(self, type: StateType) -> None:
        while True:
            await self._mailboxes[type].wait()
            self._mailboxes[type].clear()
            for name, fn in list(self._registered[type].items()):
                try:
                    await self._call(type, fn)
                except (Exception, asyncio.CancelledError) as error:  # the next callbacks must run; counted and logged
                    if is_cancelled(error):
                        raise
                    key = (type.value, name)
                    self.failures[key] = self.failures.get(key, 0) + 1
                    log.exception("State callback failed", type=type.value, callback=name, err=error)

    async def _call(self, type: StateType, fn: Callback) -> None:
        read = self._sources.get(type)
        current = read() if read is not None else None
        if current is None:
            return
        result = fn(current)
        if inspect.isawaitable(result):
            await result
