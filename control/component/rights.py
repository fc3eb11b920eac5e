"""Which of the rights that depend on its configuration a component lacks (`manifestfiles.OptionalRights`).

At the start the process asks the API server for the rights that its configuration needs, and names missing ones with
what grants them: a file of `deploy/COMPONENT-rights`, or a value of the chart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from control.manifestfiles import OptionalRights, purpose, rule
from koordlet.app.logging import get_logger
from koordlet.kube import Client, ConnectionFailed, KubeError
from koordlet.kube.startcheck import StartCheck

log = get_logger(__name__)

_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
QUERIES = purpose(
    "its own rights: those that the configuration needs are named if they are missing",
    rule("authorization.k8s.io", ["selfsubjectaccessreviews"], ["create"]),
)
"""What `RightsCheck` needs itself."""


def attributes(feature: OptionalRights) -> Iterator[dict[str, str]]:
    """`resourceAttributes` of the reviews, one for each right."""
    for policy_rule in feature.rules:
        for resource in policy_rule["resources"]:
            plural, _, subresource = resource.partition("/")
            for verb in policy_rule["verbs"]:
                group = policy_rule["apiGroups"][0]
                yield {"group": group, "resource": plural, "subresource": subresource, "verb": verb}


class RightsCheck(StartCheck):
    """Passed when all rights are granted, or the server does not report rights."""

    def __init__(self, client: Client, component: str, features: Iterable[OptionalRights]) -> None:
        """`component` as in the name of the folder, for example `descheduler`."""
        super().__init__("rights", client)
        self._component = component
        self._features = list(features)

    async def passed(self) -> bool:
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

    async def _missing(self, feature: OptionalRights) -> str:
        lacking = [right for right in attributes(feature) if not await self._allowed(right)]
        if not lacking:
            return ""
        first = lacking[0]
        resource = "/".join(part for part in (first["resource"], first["subresource"]) if part)
        return (
            f"may not {first['verb']} {resource} ({len(lacking)} missing): apply deploy/"
            f"{self._component}-rights/{feature.name}.yaml, or set the chart's value "
            f"{self._component}.rights.{feature.value}"
        )

    async def _allowed(self, right: dict[str, str]) -> bool:
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        body: dict[str, Any] = {**kind, "spec": {"resourceAttributes": right}}
        answer = json.loads(await self._client.raw("POST", _PATH, body=body))
        return bool((answer.get("status") or {}).get("allowed"))
