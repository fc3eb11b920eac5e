"""Who sent a request: a component, an administrator, a node with its static pods, or a tenant. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from control.manager.trust.keys import Component
from control.manager.webhookserver.admission import RequestUser
from koordlet.api.core import Pod
from koordlet.api.names import KOORDINATOR_NAMESPACE

ACCOUNTS: Final[dict[Component, str]] = {"scheduler": "koord-scheduler", "manager": "koord-manager"}
"""The ServiceAccount of each component."""
ADMIN_GROUPS: Final = frozenset({"system:masters", "kubeadm:cluster-admins"})
NODE_GROUP: Final = "system:nodes"
NODE_USER_PREFIX: Final = "system:node:"
MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"


@dataclass(frozen=True)
class TrustedUsers:
    """The users that may set trusted keys. `users` and `groups` may set all of them."""

    users: frozenset[str] = frozenset()
    groups: frozenset[str] = ADMIN_GROUPS
    namespace: str = KOORDINATOR_NAMESPACE
    components: dict[str, Component] = field(init=False)
    """User name -> component."""

    def __post_init__(self) -> None:
        names: dict[str, Component] = {
            f"system:serviceaccount:{self.namespace}:{account}": component for component, account in ACCOUNTS.items()
        }
        object.__setattr__(self, "components", names)

    @classmethod
    def read(cls, users: Iterable[str], groups: Iterable[str], namespace: str) -> TrustedUsers:
        """From the flags; both lists are additional to the administrators' groups."""
        named = {user for user in users if user}
        return cls(frozenset(named), ADMIN_GROUPS | {group for group in groups if group}, namespace or cls.namespace)

    def all_keys(self, user: RequestUser, pod: Pod) -> bool:
        """Whether the user may set every key: an administrator, or a node that reports its own static pod."""
        if user.username in self.users or not self.groups.isdisjoint(user.groups):
            return True
        return (
            NODE_GROUP in user.groups
            and MIRROR_ANNOTATION in pod.metadata.annotations
            and user.username == f"{NODE_USER_PREFIX}{pod.spec.node_name}"
        )

    def component(self, user: RequestUser) -> Component | None:
        """The component that the user is, if any."""
        return self.components.get(user.username)
