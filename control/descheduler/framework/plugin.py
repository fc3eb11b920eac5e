"""What a plugin is (spec 07 §3.1).

A plugin subclasses `DeschedulerPlugin` and one interface per set of the profile in which it may be enabled:

    class LowNodeLoad(BalancePlugin):
        name = "LowNodeLoad"
        args_type = LowNodeLoadArgs

        def __init__(self, args: LowNodeLoadArgs, handle: PluginHandle) -> None: ...
        async def balance(self, nodes: Sequence[NodeRecord]) -> None: ...

    class MigrationController(EvictionFilterPlugin, EvictPlugin): ...

A profile constructs a plugin once, even if several of its sets enable it; `control.descheduler.plugins.registry` lists
all plugins. The constructor requests informers (`handle.objects.informer(Kind)`) and raises ConfigurationError for
arguments that cannot work. `start` and `stop` surround the time in which this replica leads.

`deschedule` and `balance` run once per pass with the ready nodes of the profile. They read `handle.state` and call
`handle.evictor`; they never write to the API themselves. An exception fails the pass of this plugin, not the process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord
from koordlet.api.meta import DeleteOptions

if TYPE_CHECKING:
    from control.descheduler.framework.handle import PluginHandle


class PluginArgs(msgspec.Struct, rename="camel"):
    """Base of the arguments of plugins, kind `<plugin>Args`. Defaults are the defaults of the fields."""

    def check(self, path: str) -> list[str]:
        """The errors of these arguments, each with the path of its field. May complete fields (defaults that depend on
        other fields)."""
        return []


class NoArgs(PluginArgs):
    """For plugins without arguments."""


@dataclass(frozen=True)
class EvictOptions:
    """Who evicts a pod, and why."""

    plugin: str = ""
    """"": the plugin whose handle made the call."""
    reason: str = ""
    delete_options: DeleteOptions | None = None


class DeschedulerPlugin(ABC):
    """See the module text."""

    name: ClassVar[str]
    args_type: ClassVar[type[PluginArgs]] = NoArgs
    strict_args: ClassVar[bool] = True
    """Whether unknown fields of the arguments are errors. The plugins of Kubernetes' descheduler ignore them."""

    def __init__(self, args: Any, handle: PluginHandle) -> None:
        self._args = args
        self._handle = handle

    async def start(self) -> None:
        """Called when this replica becomes the leader, with complete caches."""
        return None

    async def stop(self) -> None:
        """Called when it stops leading or terminates."""
        return None


class DeschedulePlugin(DeschedulerPlugin):
    """Set `deschedule`: pods judged one by one."""

    @abstractmethod
    async def deschedule(self, nodes: Sequence[NodeRecord]) -> None:
        """One pass over the nodes, which are sorted by name."""


class BalancePlugin(DeschedulerPlugin):
    """Set `balance`: decisions over groups of pods."""

    @abstractmethod
    async def balance(self, nodes: Sequence[NodeRecord]) -> None:
        """One pass over the nodes, which are sorted by name."""


class EvictionFilterPlugin(DeschedulerPlugin):
    """Set `filter`: which pods may be evicted."""

    @abstractmethod
    def filter(self, pod: PodRecord) -> str | None:
        """Why the pod may not be evicted, as a short text; None if it may."""

    def pre_eviction_filter(self, pod: PodRecord) -> str | None:
        """Like `filter`; called only for a pod that is about to be evicted, so it may cost more (node fit)."""
        return None


class EvictPlugin(DeschedulerPlugin):
    """Set `evict`: exactly one per profile."""

    @abstractmethod
    async def evict(self, pod: PodRecord, options: EvictOptions) -> bool:
        """Evict the pod, or start its migration. False if that failed, which is logged here."""


SETS: dict[str, type[Any]] = {
    "deschedule": DeschedulePlugin,
    "balance": BalancePlugin,
    "evict": EvictPlugin,
    "filter": EvictionFilterPlugin,
}
"""The plugin sets of a profile and the interface that their members implement."""
