"""Builds the plugins of all profiles from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from control.scheduler.config.args import ARGS
from control.scheduler.config.load import SchedulerSettings
from control.scheduler.config.plugins import DEFAULT_PLUGINS
from control.scheduler.cycle.extenders import EXTENDER
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import EventInterest, Plugin
from control.scheduler.framework.profile import POINTS, Framework
from control.scheduler.framework.runtime import Timed, untimed
from control.scheduler.plugins.registry import PLUGINS
from control.scheduler.queue import QueueProfile
from koordlet.app.logging import get_logger

log = get_logger(__name__)

KNOWN_PLUGINS: Final = frozenset((*ARGS, *DEFAULT_PLUGINS))
"""Plugin names that are valid in a configuration, whether or not this build has the plugin."""


def implements(plugin: str, point: str) -> bool:
    """Whether a plugin of this build works at an extension point."""
    kind = PLUGINS[plugin]
    return any(getattr(kind, method) is not getattr(Plugin, method) for method in POINTS[point])


def build_frameworks(settings: SchedulerSettings, handle_of: Callable[[str], Handle]) -> dict[str, Framework]:
    """The plugins of each profile, by profile name; `handle_of(profile)` is what they work with."""
    frameworks: dict[str, Framework] = {}
    for profile in settings.profiles:
        frameworks[profile.name] = Framework(
            handle_of(profile.name),
            profile.enabled.points,
            PLUGINS,
            args=profile.args,
            weights=profile.enabled.weights,
            percentage=profile.percentage,
        )
        for name in profile.left_out:
            log.warning("Profile enables a plugin that this build lacks", profile=profile.name, plugin=name)
    return frameworks


def queue_profiles(
    frameworks: Mapping[str, Framework], *, with_extenders: bool, timed: Timed = untimed
) -> dict[str, QueueProfile]:
    """What the queue needs from the plugins of each profile."""
    return {name: _queue_profile(framework, with_extenders, timed) for name, framework in frameworks.items()}


def _queue_profile(framework: Framework, with_extenders: bool, timed: Timed) -> QueueProfile:
    if framework.sort is None:
        raise ValueError(f"profile {framework.name} has no queueSort plugin")
    profile = QueueProfile.of(framework.sort, framework.pre_enqueue, framework.plugins.values(), timed)
    if with_extenders:  # extenders declare no events, so any event may change their result
        profile = replace(profile, interests={**profile.interests, EXTENDER: [EventInterest("*")]})
    return profile


def plugins_once(frameworks: Mapping[str, Framework]) -> dict[str, Plugin]:
    """Every plugin once by name: that of the first profile if several enable it."""
    plugins: dict[str, Plugin] = {}
    for framework in frameworks.values():
        for name, plugin in framework.plugins.items():
            plugins.setdefault(name, plugin)
    return plugins
