"""The RBAC authorizer: roles and bindings in the store decide; members of system:masters may do everything.

An index from subject to granted rules is built from the four RBAC kinds and cached until one of them changes, so
that a decision costs a few dictionary lookups. ClusterRoles with an aggregationRule have the rules of the roles that
it selects. `_rules_of` follows aggregated roles recursively; Kubernetes reaches the same result in several steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from control.standalone.auth.rules import Rule, allows
from control.standalone.policyinterfaces import ApiUser, AuthzAttributes
from control.standalone.selectors import label_selector
from control.standalone.store import ObjectStore

Json = Mapping[str, Any]

GROUP = "rbac.authorization.k8s.io"
ROLES, CLUSTER_ROLES = f"{GROUP}/roles", f"{GROUP}/clusterroles"
BINDINGS, CLUSTER_BINDINGS = f"{GROUP}/rolebindings", f"{GROUP}/clusterrolebindings"
_KINDS = (ROLES, CLUSTER_ROLES, BINDINGS, CLUSTER_BINDINGS)
SUPERUSERS = "system:masters"

Subject = tuple[str, str]  # ("User" | "Group", name); service accounts are users


@dataclass(frozen=True, slots=True)
class Grant:
    """The rules that a binding grants its subjects; with `namespace` "" they hold everywhere."""

    namespace: str
    rules: tuple[Rule, ...]
    binding: str
    role: str


@dataclass(slots=True)
class _Index:
    stamp: tuple[tuple[int, int], ...]
    grants: dict[Subject, list[Grant]] = field(default_factory=dict)


class RBAC:
    """Implements `policyinterfaces.Authorizer` with the RBAC objects of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._index: _Index | None = None

    def authorize(self, attributes: AuthzAttributes) -> tuple[bool, str]:
        """(allowed, reason). The reason of a denial is empty; the caller makes the message."""
        if SUPERUSERS in attributes.user.groups:
            return True, ""
        for grant in self.grants(attributes.user, attributes.namespace):
            if grant.namespace and not attributes.resource:
                continue
            if any(allows(rule, attributes) for rule in grant.rules):
                return True, f'RBAC: allowed by {grant.binding} of {grant.role} to user "{attributes.user.name}"'
        return False, ""

    def grants(self, user: ApiUser, namespace: str) -> Iterator[Grant]:
        """All grants of the user in a namespace ("": only cluster-wide ones)."""
        index = self._current()
        for subject in (("User", user.name), *(("Group", group) for group in user.groups)):
            for grant in index.grants.get(subject, ()):
                if grant.namespace in ("", namespace):
                    yield grant

    def rules_for(self, user: ApiUser, namespace: str) -> list[Rule]:
        """All rules of the user in a namespace."""
        if SUPERUSERS in user.groups:
            everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            return [everything, {"verbs": ["*"], "nonResourceURLs": ["*"]}]
        return [rule for grant in self.grants(user, namespace) for rule in grant.rules]

    def role_rules(self, namespace: str, ref: Json) -> list[Rule]:
        """The rules of the role that a binding refers to; empty if it doesn't exist."""
        role = self._role(namespace, ref)
        if role is None or ref.get("kind") == "Role":
            return list((role or {}).get("rules") or ())
        return self._rules_of(role)

    def role_exists(self, namespace: str, ref: Json) -> bool:
        return self._role(namespace, ref) is not None

    def _role(self, namespace: str, ref: Json) -> Json | None:
        name = str(ref.get("name", ""))
        if ref.get("kind") == "Role":
            return self._store.get(ROLES, namespace, name)
        return self._store.get(CLUSTER_ROLES, None, name)

    def _current(self) -> _Index:
        stamp = tuple(self._stamp(key) for key in _KINDS)
        if self._index is None or self._index.stamp != stamp:
            self._index = self._build(stamp)
        return self._index

    def _stamp(self, key: str) -> tuple[int, int]:
        """Changes with every write to a kind: writes increase the newest version, deletions decrease the count."""
        newest = 0
        count = 0
        for entry in self._store.entries(key):
            count += 1
            newest = max(newest, entry.rv)
        return count, newest

    def _build(self, stamp: tuple[tuple[int, int], ...]) -> _Index:
        index = _Index(stamp)
        for key in (CLUSTER_BINDINGS, BINDINGS):
            for binding in self._store.list(key):
                metadata = binding["metadata"]
                namespace = "" if key == CLUSTER_BINDINGS else metadata["namespace"]
                ref = binding.get("roleRef") or {}
                rules = tuple(self.role_rules(namespace, ref))
                if not rules:
                    continue
                name = f'"{metadata["name"]}"' if not namespace else f'"{metadata["name"]}/{namespace}"'
                binding_kind = "ClusterRoleBinding" if not namespace else "RoleBinding"
                role = f'{ref.get("kind")} "{ref.get("name")}"'
                grant = Grant(namespace, rules, f"{binding_kind} {name}", role)
                for subject in binding.get("subjects") or ():
                    index.grants.setdefault(_subject(subject, namespace), []).append(grant)
        return index

    def _rules_of(self, role: Json, seen: frozenset[str] = frozenset()) -> list[Rule]:
        rules = list(role.get("rules") or ())
        name = role["metadata"]["name"]
        selectors = (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ()
        if not selectors or name in seen:
            return rules
        matchers = [label_selector(selector) for selector in selectors]
        for other in self._store.list(CLUSTER_ROLES):
            labels = other["metadata"].get("labels") or {}
            if other["metadata"]["name"] != name and any(matches(labels) for matches in matchers):
                rules += [rule for rule in self._rules_of(other, seen | {name}) if rule not in rules]
        return rules


def _subject(subject: Json, namespace: str) -> Subject:
    if subject.get("kind") == "ServiceAccount":
        account_namespace = subject.get("namespace") or namespace
        return "User", f"system:serviceaccount:{account_namespace}:{subject.get('name')}"
    return str(subject.get("kind")), str(subject.get("name"))
