"""`strategy-profile`: one key that selects the strategies from which the other keys' documents start.

An addition to Koordinator. `koordinator`, the default, has Koordinator's defaults. `recommended` protects services
without more settings; a field that is set in another key still takes precedence. docs/colocation.md has what was
measured with both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import doc
from koordlet.api.encoding.wire import WireError, decode, overlay
from koordlet.api.sloconfig import defaults, interference
from koordlet.api.sloconfig.interference import InterferencePlugin, InterferenceStrategy
from koordlet.api.sloconfig.interferenceactions import InterferenceAction, InterferenceActionsConfig
from koordlet.api.sloconfig.resourceqos import CPUQOS, ResourceQOS, ResourceQOSStrategy
from koordlet.api.sloconfig.threshold import ResourceThresholdStrategy

PROFILE_KEY: Final = "strategy-profile"
KOORDINATOR: Final = "koordinator"
RECOMMENDED: Final = "recommended"


class StrategyProfile(Frozen):
    """Which strategies the other keys' documents start from."""

    profile: Annotated[
        str,
        doc(
            "koordinator (default): Koordinator's defaults. recommended: services are protected without more settings."
        ),
    ] = KOORDINATOR


DEFAULT: Final = StrategyProfile()


class UnknownProfile(WireError):
    """The message names the profiles."""


@dataclass(frozen=True)
class ProfileStrategies:
    """The base of each key that a profile changes."""

    threshold: ResourceThresholdStrategy
    qos: ResourceQOSStrategy
    interference: InterferenceStrategy | None
    """None: without the key `interference-config`, NodeSLO has no strategy."""


_ON: Final = InterferenceAction(enable=True)
PROFILES: Final[Mapping[str, ProfileStrategies]] = {
    KOORDINATOR: ProfileStrategies(defaults.THRESHOLD, defaults.MANAGER_QOS, None),
    RECOMMENDED: ProfileStrategies(
        overlay(defaults.THRESHOLD, ResourceThresholdStrategy(enable=True, cpu_suppress_threshold_percent=95)),
        # Best effort runs only where no other task wants the CPU, so that it may use what is left.
        ResourceQOSStrategy(be_class=ResourceQOS(cpu_qos=CPUQOS(enable=True))),
        # The culprit of a delay by disk, page cache or network is throttled, whichever device it is.
        overlay(
            interference.DEFAULT,
            InterferenceStrategy(actions=InterferenceActionsConfig(memory=_ON, io=_ON, network=_ON)),
        ),
    ),
}


def selected(data: Mapping[str, str]) -> str:
    """The name of the profile that the ConfigMap's data selects. Raises WireError, UnknownProfile among them."""
    if not data.get(PROFILE_KEY):
        return KOORDINATOR
    document: StrategyProfile = decode(data[PROFILE_KEY], StrategyProfile, where=PROFILE_KEY)
    name = document.profile or KOORDINATOR
    if name not in PROFILES:
        raise UnknownProfile(f"{name!r} is not one of {', '.join(PROFILES)}", where=PROFILE_KEY, path="profile")
    return name


def _interference(data: Mapping[str, str]) -> InterferenceStrategy | None:
    return PROFILES[selected(data)].interference


INTERFERENCE_PLUGIN: Final = InterferencePlugin(_interference)
"""`interference-config` over the selected profile."""
