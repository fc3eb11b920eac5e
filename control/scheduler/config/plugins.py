"""The plugins that run at each extension point: defaults merged with a profile's, `multiPoint` expanded (spec 05 §2.1).

Pure: a function argument supplies the points that a plugin implements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from control.scheduler.config.model import POINTS, PluginRef, PluginSet, ProfilePlugins

DEFAULT_WEIGHTS: Final = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "NodeResourcesFit": 1,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
}
DEFAULT_PLUGINS: Final = (
    *("SchedulingGates", "PrioritySort", "NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity"),
    *("NodePorts", "NodeResourcesFit", "VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"),
    *("PodTopologySpread", "InterPodAffinity", "DynamicResources", "DefaultPreemption"),
    *("NodeResourcesBalancedAllocation", "ImageLocality", "DefaultBinder"),
)
"""kube-scheduler's default plugins in their order, enabled in every profile unless disabled."""

_FILTERS: Final = frozenset(("preFilter", "filter"))
_SCORES: Final = frozenset(("preScore", "score"))
ORIGINAL_POINTS: Final[Mapping[str, frozenset[str]]] = {
    "SchedulingGates": frozenset(("preEnqueue",)),
    "PrioritySort": frozenset(("queueSort",)),
    "NodeUnschedulable": frozenset(("filter",)),
    "NodeName": frozenset(("filter",)),
    "TaintToleration": frozenset(("filter", *_SCORES)),
    "NodeAffinity": _FILTERS | _SCORES,
    "NodePorts": _FILTERS,
    "NodeResourcesFit": _FILTERS | _SCORES,
    "VolumeRestrictions": _FILTERS,
    "NodeVolumeLimits": _FILTERS,
    "VolumeBinding": _FILTERS | _SCORES | {"reserve", "preBind"},
    "VolumeZone": _FILTERS,
    "PodTopologySpread": _FILTERS | _SCORES,
    "InterPodAffinity": _FILTERS | _SCORES,
    "DynamicResources": _FILTERS | {"preEnqueue", "postFilter", "score", "reserve", "preBind"},
    "DefaultPreemption": frozenset(("preEnqueue", "postFilter")),
    "NodeResourcesBalancedAllocation": _SCORES,
    "ImageLocality": frozenset(("score",)),
    "DefaultBinder": frozenset(("bind",)),
    "Coscheduling": frozenset(
        ("preEnqueue", "queueSort", "preFilter", "postFilter", *_SCORES, "reserve", "permit", "preBind", "postBind")
    ),
}
"""The points at which Kubernetes' and Koordinator's plugins may be listed. Plugins that are missing here are not
checked. This build may do the work of a point elsewhere."""

PREBIND: Final = "DefaultPreBind"

Implements = Callable[[str, str], bool]
"""(plugin, point) -> whether the plugin implements the point."""


class PluginError(ValueError):
    """The plugins of a profile are inconsistent."""


@dataclass(frozen=True)
class Enabled:
    """The plugin names by point, in the order in which they run, and the score weights."""

    points: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, int]

    def names(self) -> list[str]:
        """Every plugin once."""
        return list(dict.fromkeys(name for names in self.points.values() for name in names))


def default_set() -> PluginSet:
    """The default of `multiPoint`."""
    return PluginSet([PluginRef(name, DEFAULT_WEIGHTS.get(name, 0)) for name in DEFAULT_PLUGINS])


def merged(plugins: ProfilePlugins | None) -> ProfilePlugins:
    """A profile's plugins merged with the defaults, and DefaultPreBind (spec 05 §1.3-2). Does not modify the
    argument."""
    own = plugins or ProfilePlugins()
    result = ProfilePlugins(
        *(merge_set(default_set() if point == "multiPoint" else PluginSet(), plugins) for point, plugins in own.sets())
    )
    pre_bind = result.pre_bind
    if PREBIND not in pre_bind.names() and not pre_bind.switched_off() & {PREBIND, "*"}:
        pre_bind.enabled.append(PluginRef(PREBIND))
    return result


def merge_set(default: PluginSet, own: PluginSet) -> PluginSet:
    """The defaults without the disabled plugins; re-listed plugins keep their place, the others follow."""
    off = own.switched_off()
    relisted = {ref.name: ref for ref in own.enabled}
    enabled: list[PluginRef] = []
    replaced: list[PluginRef] = []
    for ref in default.enabled if "*" not in off else ():
        if ref.name in off:
            continue
        if ref.name in relisted:
            replaced.append(relisted[ref.name])
        enabled.append(relisted.get(ref.name, ref))
    enabled += [ref for ref in own.enabled if not any(ref is replacement for replacement in replaced)]
    return PluginSet(enabled, list(own.disabled))


def expanded(plugins: ProfilePlugins, implements: Implements) -> Enabled:
    """The plugins that run at each point, without those that do not implement it.

    Raises PluginError for a plugin that is enabled twice, or listed at a point that it does not extend."""
    points = {point: tuple(_at(plugins, point, implements)) for point in POINTS}
    weights: dict[str, int] = {}
    for ref in (*plugins.score.enabled, *plugins.multi_point.enabled):
        if ref.name in points["score"]:
            weights.setdefault(ref.name, ref.weight or 1)
    return Enabled(points, weights)


def _at(plugins: ProfilePlugins, point: str, implements: Implements) -> list[str]:
    listed = plugins.at(point).names()
    _once(listed, point)
    for name in listed:
        if not implements(name, point) and point not in ORIGINAL_POINTS.get(name, (point,)):
            raise PluginError(f'plugin "{name}" does not extend {point[0].upper()}{point[1:]}Plugin plugin')
    explicit = [name for name in listed if implements(name, point)]
    off = plugins.at(point).switched_off()
    everywhere: list[str] = []
    if "*" not in off:
        everywhere = [name for name in plugins.multi_point.names() if name not in off and implements(name, point)]
        _once(everywhere, point)
    first = [name for name in explicit if name in everywhere]
    second = [name for name in everywhere if name not in explicit]
    third = [name for name in explicit if name not in everywhere]
    return first + second + third


def _once(names: list[str], point: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise PluginError(f'plugin "{name}" already registered as "{point[0].upper()}{point[1:]}Plugin"')
