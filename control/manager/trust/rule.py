"""The webhook rule of trusted keys: which of a request's changes its user may not make (docs/security.md). Pure.

Only changes count, so a pod keeps what a trusted user has set. A ClusterColocationProfile, which only administrators
write, grants the values that it sets: the mutating webhook applies it before this rule sees the pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from control.manager.trust.keys import TRUSTED, TrustedKey
from control.manager.trust.users import TrustedUsers
from control.manager.webhooks import podschema
from control.manager.webhooks.errors import forbidden
from control.manager.webhooks.objects import Json
from control.manager.webhooks.profiles import patched, write_class, write_metadata
from control.manager.webhookserver.admission import RequestUser
from koordlet.api.core import Pod
from koordlet.api.crs.config import ClusterColocationProfile

MAX_SHOWN_USER_LENGTH = 128


class Change(NamedTuple):
    """A change of a trusted key that the user may not make; `value` is None for a removed key."""

    key: TrustedKey
    value: str | None
    old: str | None


def refused_changes(pod: Pod, old: Pod | None, user: RequestUser, trusted: TrustedUsers) -> list[Change]:
    """The changes from `old` (None: a new pod) to `pod` that the user may not make, in the order of the table."""
    if trusted.all_keys(user, pod):
        return []
    component = trusted.component(user)
    changes = []
    for key in TRUSTED:
        value, before = _value(pod, key), None if old is None else _value(old, key)
        if value == before or component in key.setters or key.tenant.allows(value, pod):
            continue
        changes.append(Change(key, value, before))
    return changes


def without_granted(changes: Sequence[Change], pod: Pod, profiles: Sequence[ClusterColocationProfile]) -> list[Change]:
    """The changes whose value no profile sets. `profiles` are those that match the pod.

    Raises MutationError for a profile whose patch cannot be applied.
    """
    metadata: dict[str, Mapping[str, str]] = {"labels": pod.metadata.labels, "annotations": pod.metadata.annotations}
    base: Json = {
        "metadata": {
            field: {name: text for name, text in values.items() if not _is_refused(changes, field, name)}
            for field, values in metadata.items()
        },
        "spec": {},
    }
    for profile in profiles:
        write_metadata(base, profile.spec)
        write_class(base, profile.spec)
        base = patched(base, profile, podschema.POD)
    granted = base.get("metadata") or {}
    return [
        change
        for change in changes
        if change.value is None or (granted.get(f"{change.key.kind}s") or {}).get(change.key.key) != change.value
    ]


def errors(changes: Sequence[Change], user: RequestUser, trusted: TrustedUsers) -> list[str]:
    """One error for each change. It names the field, the user, and the users that may make the change."""
    return [forbidden(change.key.path, _reason(change, user, trusted)) for change in changes]


def _reason(change: Change, user: RequestUser, trusted: TrustedUsers) -> str:
    verb = "remove" if change.value is None else "set" if change.old is None else "change"
    accounts = sorted(name for name, component in trusted.components.items() if component in change.key.setters)
    groups = sorted(trusted.groups)
    also = f"; other users may set {change.key.tenant.text.replace('`', '')}"
    return (
        f'user "{user.username[:MAX_SHOWN_USER_LENGTH]}" may not {verb} it with this value, only '
        f"{', '.join((*accounts, *sorted(trusted.users)))} and members of {', '.join(groups)} may{also}"
    )


def _value(pod: Pod, key: TrustedKey) -> str | None:
    metadata = pod.metadata
    return (metadata.labels if key.kind == "label" else metadata.annotations).get(key.key)


def _is_refused(changes: Sequence[Change], field: str, name: str) -> bool:
    return any(f"{change.key.kind}s" == field and change.key.key == name for change in changes)
