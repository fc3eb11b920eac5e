"""Callbacks that run when this node's state changed (spec 02 §3.2).

    callbacks.register(StateType.NODE_SLO_SPEC, "cpu-burst", "new strategy at once", fn)

Each type has one worker and a mailbox with one slot: triggers that arrive while one is pending are merged with it, and
the callback sees the newest state. Callbacks of one type run one after another in the order of registration; types run
concurrently. A trigger before `start` is not lost. A callback that raises is logged and counted, and the next one runs.
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
from koordlet.app.tasks import end_tasks
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import PodMeta

log = get_logger(__name__)


class StateType(enum.StrEnum):
    """A kind of state change."""

    NODE_SLO_SPEC = "NodeSLOSpec"
    """A NodeSLO was added or its spec changed. Object: the spec in force."""
    ALL_PODS = "AllPods"
    """The kubelet returned its pods, changed or not. Object: True."""
    NODE_TOPOLOGY = "NodeTopology"
    """The node's NodeResourceTopology changed. Object: the NodeResourceTopology."""
    NODE_METADATA = "NodeMetadata"
    """The Node was seen for the first time, or its labels or annotations changed. Object: the Node."""


@dataclass(frozen=True, slots=True)
class CallbackTarget:
    """The node's workloads at the time of the call."""

    pods: Mapping[str, PodMeta]
    host_applications: tuple[HostApplicationSpec, ...]


Callback = Callable[[StateType, object, CallbackTarget], Awaitable[None] | None]


class CallbackError(ValueError):
    """An invalid registration; names type and callback."""


@dataclass(frozen=True, slots=True)
class _Registered:
    name: str
    description: str
    fn: Callback


class Callbacks:
    """A service for `Runner`; register before or after its start.

    sources: read the current object of each type right before its callbacks run; None skips the run.
    """

    def __init__(
        self,
        sources: Mapping[StateType, Callable[[], object | None]],
        pods: Callable[[], Mapping[str, PodMeta]],
        host_applications: Callable[[], Iterable[HostApplicationSpec]],
    ) -> None:
        self.name = "state-callbacks"
        self._sources = dict(sources)
        self._pods = pods
        self._host_applications = host_applications
        self._registered: dict[StateType, list[_Registered]] = {type: [] for type in StateType}
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

    def register(self, type: StateType, name: str, description: str, fn: Callback) -> None:
        """Call `fn(type, object, target)` after changes. CallbackError when the name is taken within the type."""
        if type not in self._registered:
            raise CallbackError(f"callback {name}: unknown state type {type!r}")
        if any(registered.name == name for registered in self._registered[type]):
            raise CallbackError(f"callback {name} of {type} is already registered")
        self._registered[type].append(_Registered(name, description, fn))

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
            for registered in list(self._registered[type]):
                try:
                    await self._call(type, registered)
                except (Exception, asyncio.CancelledError) as error:  # the next callbacks must run; counted and logged
                    if is_cancelled(error):
                        raise
                    key = (type.value, registered.name)
                    self.failures[key] = self.failures.get(key, 0) + 1
                    log.exception("State callback failed", type=type.value, callback=registered.name, err=error)

    async def _call(self, type: StateType, registered: _Registered) -> None:
        read = self._sources.get(type)
        current = read() if read is not None else None
        if current is None:
            return
        result = registered.fn(type, current, CallbackTarget(self._pods(), tuple(self._host_applications())))
        if inspect.isawaitable(result):
            await result
