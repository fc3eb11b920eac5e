"""The plugins of a profile by extension point, in their order (spec 05 §2.1, §5.1)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import Plugin, Reads, overrides
from control.scheduler.framework.runtime import PluginRuntime

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
"""Extension point of the configuration -> methods of `Plugin` that belong to it."""


@dataclass(frozen=True)
class FilterPlugin:
    """`index`: position in the order. The first plugin that rejects a node determines the reason."""

    plugin: Plugin
    index: int
    by_row: bool
    """The plugin evaluates one node at a time, so it runs last; its results are cached."""


@dataclass(frozen=True)
class ScorePlugin:
    """A Score plugin with its weight."""

    plugin: Plugin
    weight: int
    normalizes: bool
    by_row: bool
    """The plugin evaluates one node at a time, so only for feasible nodes; its results are cached."""


class Framework:
    """The plugins of one profile. Attributes named after an extension point hold its plugins in their order."""

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
        """Create each plugin once. `points`: names of the plugins enabled at each point, in order, fully expanded.

        Raises KeyError for a name that the registry lacks: validate first."""
        self.handle = handle
        self.name = handle.profile
        self.percentage = percentage
        self.plugins: dict[str, Plugin] = {}
        for names in points.values():
            for name in names:
                if name not in self.plugins:
                    self.plugins[name] = registry[name]((args or {}).get(name), handle)
        self._points = points
        self._weights = weights or {}
        self._arrange(self.plugins)

    def connect(self, runtime: PluginRuntime) -> None:
        """Give every plugin the services that were built from the plugins. Called once."""
        for plugin in self.plugins.values():
            plugin.connect(runtime)

    def observed(self, wrap: Callable[[Plugin], Plugin]) -> Framework:
        """A view for observed cycles: the same order, but every call goes through `wrap(plugin)`."""
        view = copy.copy(self)
        view._arrange({name: wrap(plugin) for name, plugin in self.plugins.items()})
        return view

    def _arrange(self, called: Mapping[str, Plugin]) -> None:
        """`called`: the object whose methods are called, for each plugin."""

        def at(point: str, method: str) -> tuple[Plugin, ...]:
            names = self._points.get(point, ())
            return tuple(called[name] for name in names if overrides(self.plugins[name], method))

        def anywhere(method: str) -> tuple[Plugin, ...]:
            return tuple(called[name] for name, plugin in self.plugins.items() if overrides(plugin, method))

        def by_row(name: str, method: str) -> bool:
            plugin = self.plugins[name]
            return overrides(plugin, method) and plugin.reads is not Reads.CLUSTER

        self.pre_enqueue = at("preEnqueue", "pre_enqueue")
        self.sort = next(iter(at("queueSort", "sort_key")), None)
        self.next_pod = next(iter(anywhere("next_pod")), None)

        self.before_pre_filter = at("preFilter", "before_pre_filter")
        self.pre_filter = at("preFilter", "pre_filter")
        self.after_pre_filter = at("preFilter", "after_pre_filter")
        self.find_one_node = next(iter(at("preFilter", "find_one_node")), None)
        self.prefer_nodes = next(iter(at("preFilter", "prefer_nodes")), None)
        pre_filters = {plugin.name: plugin for plugin in self.pre_filter}
        self.added = tuple(plugin for name, plugin in pre_filters.items() if overrides(self.plugins[name], "added"))
        self.removed = tuple(plugin for name, plugin in pre_filters.items() if overrides(self.plugins[name], "removed"))

        self.filters = tuple(
            FilterPlugin(called[name], index, by_row(name, "filter_row"))
            for index, name in enumerate(self._points.get("filter", ()))
        )
        columns = [plugin for plugin in self.filters if not plugin.by_row]
        self.node_filters = tuple(column for column in columns if column.plugin.reads is Reads.NODE)
        self.pod_filters = tuple(column for column in columns if column.plugin.reads is Reads.PODS)
        self.cluster_filters = tuple(column for column in columns if column.plugin.reads is Reads.CLUSTER)
        self.row_filters = tuple(plugin for plugin in self.filters if plugin.by_row)
        self.post_filter = at("postFilter", "post_filter")
        self.after_post_filter = anywhere("after_post_filter")

        self.pre_score = at("score", "pre_score")
        self.scorers = tuple(
            ScorePlugin(
                called[name],
                self._weights.get(name) or 1,
                overrides(self.plugins[name], "normalize"),
                by_row(name, "score_row"),
            )
            for name in self._points.get("score", ())
        )
        cached = [scorer for scorer in self.scorers if scorer.plugin.reads is not Reads.CLUSTER and not scorer.by_row]
        self.final_scorers = {
            reads: tuple(scorer for scorer in cached if scorer.plugin.reads is reads and not scorer.normalizes)
            for reads in Reads
        }
        """By what they read: cached scorers whose raw score is final, so that only the weighted sum is cached."""
        self.normalized_scorers = {
            reads: tuple(scorer for scorer in cached if scorer.plugin.reads is reads and scorer.normalizes)
            for reads in Reads
        }
        """By what they read: cached scorers whose raw scores are normalized over the feasible rows in each cycle."""
        self.row_scorers = tuple(scorer for scorer in self.scorers if scorer.by_row)
        self.cluster_scorers = tuple(scorer for scorer in self.scorers if scorer.plugin.reads is Reads.CLUSTER)

        self.nominate = anywhere("nominate")
        self.resize = anywhere("resize_pod")
        self.reserve = at("reserve", "reserve")
        self.unreserve = tuple(reversed(at("reserve", "unreserve")))
        self.permit = at("permit", "permit")
        self.pre_bind = at("preBind", "pre_bind")
        self.patchers = at("preBind", "apply_patch")
        self.bind = at("bind", "bind")
        self.post_bind = at("postBind", "post_bind")
        self.take_over_failure = anywhere("take_over_failure")
        self.after_failure = anywhere("after_failure")
        self.forgotten = anywhere("forgotten")
