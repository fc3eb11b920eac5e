"""The rights of koord-descheduler that depend on its configuration: what grants them.

`deploy/descheduler` grants what every descheduler needs: it reads. Each feature that writes has a role of its own in
`deploy/descheduler-rights`, and a value of the chart; `control.component.rights` names missing ones. Data, one pure
function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from control.descheduler.config.load import ResolvedProfile
from control.manifestfiles import OptionalRights, purpose, rule

_READ = ["list", "watch"]
_JOBS = "scheduling.koordinator.sh"


@dataclass(frozen=True)
class RightsFeature(OptionalRights):
    """`needed`: whether a profile needs the rights."""

    needed: Callable[[ResolvedProfile], bool]


def _evicts(profile: ResolvedProfile) -> bool:
    moving = {*profile.enabled["deschedule"], *profile.enabled["balance"]} - {"ScaleDownBinPack"}
    return bool(moving) or _migrates(profile)


def _migrates(profile: ResolvedProfile) -> bool:
    """It also carries out jobs of users."""
    return "MigrationController" in profile.names()


def _cordons(profile: ResolvedProfile) -> bool:
    return bool(getattr(profile.args.get("CustomPriority"), "auto_cordon", False))


FEATURES: Final = (
    RightsFeature(
        "eviction", "eviction", needed=_evicts,
        purposes=(purpose("evictions, of every plugin that moves pods", rule("", ["pods/eviction"], ["create"])),),
    ),
    RightsFeature(
        "migration", "migration", needed=_migrates,
        purposes=(
            purpose(
                "MigrationController: limits per workload",
                rule("apps", ["deployments", "replicasets", "statefulsets"], _READ),
                rule("", ["replicationcontrollers"], _READ),
            ),
            purpose(
                "MigrationController: jobs, and the capacity that they reserve",
                rule(_JOBS, ["podmigrationjobs"], ["list", "watch", "create", "patch", "delete"]),
                rule(_JOBS, ["podmigrationjobs/status"], ["patch"]),
                rule(_JOBS, ["reservations"], ["get", "list", "watch", "create", "patch", "delete"]),
            ),
            purpose(
                "MigrationController: the present pod, and the policies SoftEviction and Delete",
                rule("", ["pods"], ["get", "patch", "delete"]),
            ),
        ),
    ),
    RightsFeature(
        "deletion-cost", "deletionCost", needed=lambda profile: "ScaleDownBinPack" in profile.names(),
        purposes=(purpose("ScaleDownBinPack: deletion costs of pods", rule("", ["pods"], ["patch"])),),
    ),
    RightsFeature(
        "cordon", "cordon", needed=_cordons,
        purposes=(purpose("CustomPriority with autoCordon", rule("", ["nodes"], ["patch"])),),
    ),
    RightsFeature(
        "drain", "drain", needed=lambda profile: False,
        purposes=(
            purpose(
                "drains of nodes, with the feature gate DrainController",
                rule(_JOBS, ["drainnodes"], ["list", "watch", "create", "patch", "delete"]),
                rule(_JOBS, ["drainnodegroups"], ["list", "watch", "delete"]),
                rule(_JOBS, ["drainnodes/status", "drainnodegroups/status"], ["patch"]),
                rule("", ["nodes"], ["patch"]),
            ),
        ),
    ),
)  # fmt: skip
EVICTION, MIGRATION, DRAIN = FEATURES[0], FEATURES[1], FEATURES[-1]


def needed(profiles: Collection[ResolvedProfile], *, drains: bool = False) -> list[RightsFeature]:
    """The features whose rights a configuration needs. `drains`: the feature gate DrainController."""
    of_drains = (EVICTION, MIGRATION, DRAIN) if drains else ()
    return [each for each in FEATURES if each in of_drains or any(map(each.needed, profiles))]
