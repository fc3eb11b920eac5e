"""A profile's plugins, by extension point, in their order (spec 05 §2.1, §5.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import Plugin, Reads, overrides

POINTS: dict[str, tuple[str, ...]] = {
    "preEnqueue": ("pre_enqueue",),
    "queueSort": ("sort_key",),
    "preFilter": ("pre_filter", "before_pre_filter", "after_pre_filter", "find_one_node", "prefer_nodes"),
    "filter": ("filter", "filter_row"),
    "postFilter": ("post_filter", "after_post_filter"),
    "preScore": ("pre_score",),
    "score": ("score", "score_row"),
    "reserve": ("reserve", "unreserve"),
    "permit": ("permit",),
    "preBind": ("pre_bind", "apply_patch"),
    "bind": ("bind",),
    "postBind": ("post_bind",),
}
"""Extension point of the configuration -> methods of `Plugin` that work there."""


@dataclass(frozen=True)
class Scorer:
    """A Score plugin and its weight."""

    plugin: Plugin
    weight: int
    normalizes: bool
    by_row: bool
    """It can only look at one node at a time, and is asked last; not if its answers are asked for in every cycle."""


@dataclass(frozen=True)
class Filterer:
    """A Filter plugin and its place in the order, which decides whose reason is given for a node."""

    plugin: Plugin
    index: int
    by_row: bool


class Framework:
    """See the module text. `points`: names of the plugins enabled at each point, in order, already expanded."""

    def __init__(
        self,
        handle: Handle,
        points: Mapping[str, Sequence[str]],
        registry: Mapping[str, type[Plugin]],
        *,
        args: Mapping[str, Any] | None = None,
        weights: Mapping[str, int] | None = None,
        percentage: int = 0,
    ) -> None:
        """Builds each plugin once. Raises KeyError for a name that the registry lacks: validate first."""
        self.handle = handle
        self.name = handle.profile
        self.percentage = percentage
        self.plugins: dict[str, Plugin] = {}
        handle.plugin = self.plugins.get
        handle.framework = self
        for names in points.values():
            for name in names:
                if name not in self.plugins:
                    self.plugins[name] = registry[name]((args or {}).get(name), handle)
        self._points = points

        def at(point: str, method: str) -> tuple[Plugin, ...]:
            found = (self.plugins[name] for name in points.get(point, ()))
            return tuple(plugin for plugin in found if overrides(plugin, method))

        self.pre_enqueue = at("preEnqueue", "pre_enqueue")
        self.sort = next(iter(at("queueSort", "sort_key")), None)
        self.before_pre_filter = at("preFilter", "before_pre_filter")
        self.pre_filter = at("preFilter", "pre_filter")
        self.after_pre_filter = at("preFilter", "after_pre_filter")
        self.find_one_node = next(iter(at("preFilter", "find_one_node")), None)
        self.prefer_nodes = next(iter(at("preFilter", "prefer_nodes")), None)
        self.added = tuple(plugin for plugin in self.pre_filter if overrides(plugin, "added"))
        self.removed = tuple(plugin for plugin in self.pre_filter if overrides(plugin, "removed"))
        self.filters = tuple(
            Filterer(plugin, index, _kept_by_row(plugin, "filter_row"))
            for index, plugin in enumerate(self.plugins[name] for name in points.get("filter", ()))
        )
        self.post_filter = at("postFilter", "post_filter")
        self.after_post_filter = tuple(p for p in self.plugins.values() if overrides(p, "after_post_filter"))
        self.pre_score = tuple(
            plugin
            for plugin in (self.plugins[name] for name in points.get("score", ()))
            if overrides(plugin, "pre_score")
        )
        self.scorers = tuple(
            Scorer(
                plugin,
                (weights or {}).get(plugin.name) or 1,
                overrides(plugin, "normalize"),
                _kept_by_row(plugin, "score_row"),
            )
            for plugin in (self.plugins[name] for name in points.get("score", ()))
        )
        self.resize = tuple(p for p in self.plugins.values() if overrides(p, "resize_pod"))
        self.reserve = at("reserve", "reserve")
        self.unreserve = tuple(reversed(at("reserve", "unreserve")))
        self.permit = at("permit", "permit")
        self.pre_bind = at("preBind", "pre_bind")
        self.patchers = at("preBind", "apply_patch")
        self.bind = at("bind", "bind")
        self.post_bind = at("postBind", "post_bind")
        self.next_pod = next((p for p in self.plugins.values() if overrides(p, "next_pod")), None)
        self.forgotten = tuple(p for p in self.plugins.values() if overrides(p, "forgotten"))

    def group(self, reads: Reads) -> tuple[Filterer, ...]:
        """Column filters whose answers depend on `reads`."""
        return tuple(f for f in self.filters if f.plugin.reads is reads and not f.by_row)


def _kept_by_row(plugin: Plugin, method: str) -> bool:
    """Whether the plugin looks at one node at a time, and what it says may be remembered."""
    return overrides(plugin, method) and plugin.reads is not Reads.CLUSTER
