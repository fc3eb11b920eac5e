"""Who may bind pods while schedulers are exchanged (spec 04 §13, gate BindingAdmissionWebhook).

A table of conditions in fixed order; the first that holds decides. Pure; `Scope` is the flags, read once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from koordlet.api.core import Pod


def _items(text: str) -> tuple[str, ...]:
    return tuple(item for item in (each.strip() for each in text.split(",")) if item)


@dataclass(frozen=True)
class Scope:
    """The `--binding-admission-*` flags."""

    user_names: tuple[str, ...] = ()
    dry_run: bool = False
    namespaces: tuple[str, ...] = ()
    all_namespaces: bool = False
    excluded: tuple[str, ...] = ()
    bypass_labels: tuple[str, ...] = ()
    bypass_annotations: tuple[str, ...] = ()

    @classmethod
    def read(
        cls,
        *,
        user_names: str,
        dry_run: bool,
        namespaces: str,
        excluded: str,
        bypass_labels: str,
        bypass_annotations: str,
    ) -> Scope:
        """From the flags' texts: lists with commas, blanks and empty items dropped."""
        return cls(
            user_names=_items(user_names),
            dry_run=dry_run,
            namespaces=_items(namespaces),
            all_namespaces=namespaces.strip() == "*",
            excluded=_items(excluded),
            bypass_labels=_items(bypass_labels),
            bypass_annotations=_items(bypass_annotations),
        )


class Decision(NamedTuple):
    """Whether the binding may be written, and the metric's label; empty where nothing is counted."""

    allowed: bool
    counted: str = ""
    message: str = ""


ALLOW = Decision(True)


def before_pod(scope: Scope, *, enabled: bool, user: str, namespace: str) -> Decision | None:
    """What can be decided without the pod; None when it takes the pod."""
    if not enabled or not scope.user_names:
        return ALLOW
    if any(name in user for name in scope.user_names):
        return Decision(True, "allowed_username")
    if namespace in scope.excluded:
        return Decision(True, "excluded_ns")
    if not scope.all_namespaces:
        if not scope.namespaces:
            return ALLOW
        if namespace not in scope.namespaces:
            return Decision(True, "out_of_scope")
    return None


def with_pod(scope: Scope, pod: Pod | None, *, user: str, namespace: str, name: str) -> Decision:
    """The rest: by the pod's labels and annotations. A pod that can't be read is let through."""
    if pod is None:
        return ALLOW
    if any(key in pod.metadata.labels for key in scope.bypass_labels):
        return Decision(True, "bypass_label")
    if any(key in pod.metadata.annotations for key in scope.bypass_annotations):
        return Decision(True, "bypass_annotation")
    if scope.dry_run:
        return Decision(True, "dry_run")
    return Decision(False, "denied", f'user "{user}" is not allowed to bind pod {namespace}/{name}')
