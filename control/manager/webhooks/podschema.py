"""How the lists of a pod merge when a profile patches it (core/v1, the `patchMergeKey`s of its Go types).

A table instead of OpenAPI, because the manager has no schema of its own. What is not listed is replaced as a whole
(tolerations, command, args, envFrom …), as Kubernetes does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from koordlet.api.encoding.strategicmerge import UNKNOWN, MergeSchema


@dataclass(frozen=True)
class Fields:
    """An object with members of known merge behaviour."""

    members: Mapping[str, MergeSchema] = field(default_factory=dict)
    patch_strategies: Collection[str] = ()
    patch_merge_key: str = ""

    def field(self, name: str, /) -> MergeSchema | None:
        return self.members.get(name)

    def element(self) -> MergeSchema:
        return UNKNOWN


@dataclass(frozen=True)
class Merged:
    """A list whose items merge: objects by `patch_merge_key`, scalars as a set when it is empty."""

    patch_merge_key: str = ""
    items: MergeSchema = UNKNOWN
    patch_strategies: Collection[str] = ("merge",)

    def field(self, name: str, /) -> MergeSchema | None:
        return None

    def element(self) -> MergeSchema:
        return self.items


_CONTAINER: Final = Fields(
    {
        "env": Merged("name"),
        "ports": Merged("containerPort"),
        "volumeDevices": Merged("devicePath"),
        "volumeMounts": Merged("mountPath"),
    }
)
_META: Final = Fields({"finalizers": Merged(), "ownerReferences": Merged("uid")})
_SPEC: Final = Fields(
    {
        "containers": Merged("name", _CONTAINER),
        "ephemeralContainers": Merged("name", _CONTAINER),
        "hostAliases": Merged("ip"),
        "imagePullSecrets": Merged("name"),
        "initContainers": Merged("name", _CONTAINER),
        "resourceClaims": Merged("name", patch_strategies=("merge", "retainKeys")),
        "schedulingGates": Merged("name"),
        "topologySpreadConstraints": Merged("topologyKey"),
        "volumes": Merged("name", patch_strategies=("merge", "retainKeys")),
    }
)
POD: Final = Fields({"metadata": _META, "spec": _SPEC})
RESERVATION: Final = Fields({"metadata": _META, "spec": Fields({"template": POD})})
"""A Reservation carries a pod template; the rest of it has no merge keys."""
