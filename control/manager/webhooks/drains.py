"""DrainNodes and DrainNodeGroups of users: only who may drain nodes with kubectl may do so with koord-descheduler
(feature gate ValidateDrainRights).

`kubectl drain` needs `patch` on the node and `create` on `pods/eviction` of every namespace. Without this rule the
right to create DrainNodes, which are cluster scoped, would be the right to taint and label any node and to evict any
pod. Not in Koordinator.
"""

from __future__ import annotations

from typing import ClassVar, Final

from control.manager.webhooks.userrights import Attributes, UserRightsHandler
from koordlet.api.crs.drain import DrainNode, DrainNodeGroup

_EVICT: Final[Attributes] = {"resource": "pods", "subresource": "eviction", "verb": "create"}
Drain = DrainNode | DrainNodeGroup


def needed_rights(drain: Drain, old: Drain | None) -> list[Attributes]:
    """The rights without which a user may not make this drain, or this change of `old`. A group selects nodes by their
    labels, so it needs the right for all nodes; a drain that changes its node, for both."""
    if old is not None and _effect(drain) == _effect(old):
        return []
    nodes = {each.spec.node_name if isinstance(each, DrainNode) else "" for each in (drain, old) if each is not None}
    patches = [{"resource": "nodes", "verb": "patch", **({"name": node} if node else {})} for node in sorted(nodes)]
    return [*patches, _EVICT]


def _effect(drain: Drain) -> tuple[object, ...]:
    """An annotation makes a drain move pods that the filter refuses."""
    return (drain.spec, drain.metadata.labels, drain.metadata.annotations)


class ValidateDrain(UserRightsHandler):
    """`/validate-drain`."""

    path, gate = "/validate-drain", "ValidateDrainRights"
    label = "drain"
    kinds: ClassVar = {"drainnodes": DrainNode, "drainnodegroups": DrainNodeGroup}
    resources = frozenset({("scheduling.koordinator.sh", plural, "") for plural in ("drainnodes", "drainnodegroups")})
    needed = staticmethod(needed_rights)
