"""The rights of koord-descheduler that depend on its configuration: what grants them, and which of them it lacks.

`deploy/descheduler` grants what every descheduler needs: it reads. Each feature that writes has a role of its own in
`deploy/descheduler-rights`, and a value of the chart. At the start the process asks the API server for the rights that
its configuration needs, and names the missing ones with what grants them. Data, one pure function, one check.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from control.descheduler.config.load import ResolvedProfile
from control.manifestfiles import OptionalRights, purpose, rule
from koordlet.app.logging import get_logger
from koordlet.kube import Client, ConnectionFailed, KubeError

log = get_logger(__name__)

PERIOD_S = 30.0
_READ = ["list", "watch"]
_JOBS, _PATH = "scheduling.koordinator.sh", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


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


def attributes(feature: RightsFeature) -> Iterator[dict[str, str]]:
    """`resourceAttributes` of the reviews, one for each right."""
    for policy_rule in feature.rules:
        for resource in policy_rule["resources"]:
            plural, _, subresource = resource.partition("/")
            for verb in policy_rule["verbs"]:
                group = policy_rule["apiGroups"][0]
                yield {"group": group, "resource": plural, "subresource": subresource, "verb": verb}


class RightsCheck:
    """A service for `Runner`; `problem` fits `HealthChecks.check`. It queries until every right is granted."""

    def __init__(self, client: Client, features: Iterable[RightsFeature]) -> None:
        self.name = "rights"
        self.problem: str | None = None
        self._client = client
        self._features = list(features)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while not await self.granted():
            await self._client.clock.sleep(PERIOD_S)

    async def granted(self) -> bool:
        """Query once and update `problem`; whether all rights are granted, or the server does not report rights."""
        try:
            problems = [text for feature in self._features if (text := await self._missing(feature))]
        except ConnectionFailed:
            return False  # the informers report it
        except KubeError as error:
            log.warning("Cannot query the own rights", err=error)
            return True
        if problems and self.problem is None:
            log.error("The configuration needs rights that are not granted", problem="; ".join(problems))
        self.problem = "; ".join(problems) or None
        return not problems

    async def _missing(self, feature: RightsFeature) -> str:
        lacking = [right for right in attributes(feature) if not await self._allowed(right)]
        if not lacking:
            return ""
        first = lacking[0]
        resource = "/".join(part for part in (first["resource"], first["subresource"]) if part)
        return (
            f"may not {first['verb']} {resource} ({len(lacking)} missing): apply deploy/descheduler-rights/"
            f"{feature.name}.yaml, or set the chart's value descheduler.rights.{feature.value}"
        )

    async def _allowed(self, right: dict[str, str]) -> bool:
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        body: dict[str, Any] = {**kind, "spec": {"resourceAttributes": right}}
        answer = json.loads(await self._client.raw("POST", _PATH, body=body))
        return bool((answer.get("status") or {}).get("allowed"))
