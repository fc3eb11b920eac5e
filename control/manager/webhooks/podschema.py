"""Merge keys of a pod's lists for strategic merge patches of profiles (the `patchMergeKey`s of core/v1's Go types).

A table, because the manager has no OpenAPI schema. Lists that are not in it (tolerations, command, args, envFrom …) are
replaced as a whole, as in Kubernetes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from koordlet.api.encoding.strategicmerge import UNKNOWN, MergeSchema


@dataclass(frozen=True)
class Fields:
    """An object with members that have a merge schema."""

    members: Mapping[str, MergeSchema] = field(default_factory=dict)
    patch_strategies: Collection[str] = ()
    patch_merge_key: str = ""

    def field(self, name: str, /) -> MergeSchema | None:
        return self.members.get(name)

    def element(self) -> MergeSchema:
        return UNKNOWN


@dataclass(frozen=True)
class MergedList:
    """A list whose items are merged: objects by `patch_merge_key`, or, if it is empty, scalars as a set."""

    patch_merge_key: str = ""
    items: MergeSchema = UNKNOWN
    patch_strategies: Collection[str] = ("merge",)

    def field(self, name: str, /) -> MergeSchema | None:
        return None

    def element(self) -> MergeSchema:
        return self.items


_CONTAINER: Final = Fields(
    {
        "env": MergedList("name"),
        "ports": MergedList("containerPort"),
        "volumeDevices": MergedList("devicePath"),
        "volumeMounts": MergedList("mountPath"),
    }
)
_META: Final = Fields({"finalizers": MergedList(), "ownerReferences": MergedList("uid")})
_SPEC: Final = Fields(
    {
        "containers": MergedList("name", _CONTAINER),
        "ephemeralContainers": MergedList("name", _CONTAINER),
        "hostAliases": MergedList("ip"),
        "imagePullSecrets": MergedList("name"),
        "initContainers": MergedList("name", _CONTAINER),
        "resourceClaims": MergedList("name", patch_strategies=("merge", "retainKeys")),
        "schedulingGates": MergedList("name"),
        "topologySpreadConstraints": MergedList("topologyKey"),
        "volumes": MergedList("name", patch_strategies=("merge", "retainKeys")),
    }
)
POD: Final = Fields({"metadata": _META, "spec": _SPEC})
RESERVATION: Final = Fields({"metadata": _META, "spec": Fields({"template": POD})})
"""A Reservation contains a pod template; its other fields have no merge keys."""
