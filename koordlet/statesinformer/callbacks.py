"""Who wants to hear that this node's state changed (spec 02 §3.2).

    callbacks.register(StateType.NODE_SLO_SPEC, "cpu-burst", "new strategy at once", fn)

Each type has a mailbox with one slot and one worker: triggers that come while one waits are that one, and the callback
sees the newest state. Callbacks of one type run one after the other in the order of registration, types run side by
side. A trigger before `start` is not lost. A callback that raises is logged and counted, and the next one runs.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from koordlet.api.sloconfig import HostApplicationSpec
from koordlet.app.logging import get_logger
from koordlet.app.periodic import is_cancelled
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import PodMeta

log = get_logger(__name__)


class StateType(enum.StrEnum):
    """What can change."""

    NODE_SLO_SPEC = "NodeSLOSpec"
    """NodeSLO added, or its spec differs; the object is the spec in force."""
    ALL_PODS = "AllPods"
    """The kubelet was asked, with or without a change; the object is True, a mere marker."""
    NODE_TOPOLOGY = "NodeTopology"
    """The node's NodeResourceTopology changed; the object is it."""
    NODE_METADATA = "NodeMetadata"
    """First sight of the Node, or its labels or annotations differ; the object is it."""


@dataclass(frozen=True, slots=True)
class Target:
    """What runs on the node when a callback is called."""

    pods: Mapping[str, PodMeta]
    host_applications: tuple[HostApplicationSpec, ...]


Callback = Callable[[StateType, object, Target], Awaitable[None] | None]


class CallbackError(ValueError):
    """A registration that cannot be; names type and callback."""


@dataclass(frozen=True, slots=True)
class _Registered:
    name: str
    description: str
    fn: Callback


class Callbacks:
    """A service for `Runner`; register before or after its start.

    sources: the current object of each type, asked right before callbacks run; None skips the run.
    """

    def __init__(
        self,
        sources: Mapping[StateType, Callable[[], object | None]],
        pods: Callable[[], Mapping[str, PodMeta]],
        host_applications: Callable[[], Iterable[HostApplicationSpec]],
    ) -> None:
        self.name = "state-callbacks"
        self._sources = dict(sources)
        self._pods, self._host_applications = pods, host_applications
        self._registered: dict[StateType, list[_Registered]] = {type: [] for type in StateType}
        self._mailboxes = {type: asyncio.Event() for type in StateType}
        self._workers: list[asyncio.Task[None]] = []
        self.failures: dict[tuple[str, str], int] = {}
        """Runs that raised, by type and name of the callback."""

    def attach(self, registries: Registries) -> None:
        """Export the failures."""
        registries.view("state_callback_failures_total", self.failures.items)

    def source(self, type: StateType, read: Callable[[], object | None]) -> None:
        """Take the object of a type from here."""
        self._sources[type] = read

    def register(self, type: StateType, name: str, description: str, fn: Callback) -> None:
        """Call `fn(type, object, target)` after changes. CallbackError when the name is taken within the type."""
        if type not in self._registered:
            raise CallbackError(f"callback {name}: there is no state type {type!r}")
        if any(one.name == name for one in self._registered[type]):
            raise CallbackError(f"callback {name} of {type} is registered already")
        self._registered[type].append(_Registered(name, description, fn))

    def trigger(self, type: StateType) -> None:
        """Have the callbacks of a type run soon."""
        self._mailboxes[type].set()

    async def start(self) -> None:
        if not self._workers:
            self._workers = [asyncio.create_task(self._work(type), name=f"callbacks:{type}") for type in StateType]

    async def stop(self) -> None:
        """Cancel what runs."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, type: StateType) -> None:
        while True:
            await self._mailboxes[type].wait()
            self._mailboxes[type].clear()
            for one in list(self._registered[type]):
                try:
                    await self._call(type, one)
                except (Exception, asyncio.CancelledError) as error:  # must not cost the others; counted and logged
                    if is_cancelled(error):
                        raise
                    key = (type.value, one.name)
                    self.failures[key] = self.failures.get(key, 0) + 1
                    log.exception("State callback failed", type=type.value, callback=one.name, err=error)

    async def _call(self, type: StateType, one: _Registered) -> None:
        read = self._sources.get(type)
        found = read() if read is not None else None
        if found is None:
            return
        result = one.fn(type, found, Target(self._pods(), tuple(self._host_applications())))
        if inspect.isawaitable(result):
            await result
