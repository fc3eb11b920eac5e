"""Restricts which users may bind pods, for replacing a scheduler (spec 04 §13, feature gate BindingAdmissionWebhook).

The conditions are evaluated in a fixed order; the first that holds decides. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from koordlet.api.core import Pod


def _items(text: str) -> tuple[str, ...]:
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


@dataclass(frozen=True)
class BindingScope:
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
    ) -> BindingScope:
        """From the values of the flags: comma-separated lists; blanks and empty items are dropped."""
        return cls(
            user_names=_items(user_names),
            dry_run=dry_run,
            namespaces=_items(namespaces),
            all_namespaces=namespaces.strip() == "*",
            excluded=_items(excluded),
            bypass_labels=_items(bypass_labels),
            bypass_annotations=_items(bypass_annotations),
        )


class BindingDecision(NamedTuple):
    """Whether the binding is allowed, and the label of the metric; empty if it is not counted."""

    allowed: bool
    counted: str = ""
    message: str = ""


ALLOW = BindingDecision(True)


def before_pod(scope: BindingScope, *, enabled: bool, user: str, namespace: str) -> BindingDecision | None:
    """The decision by the conditions that need no pod; None when the pod is needed."""
    if not enabled or not scope.user_names:
        return ALLOW
    if any(name in user for name in scope.user_names):
        return BindingDecision(True, "allowed_username")
    if namespace in scope.excluded:
        return BindingDecision(True, "excluded_ns")
    if not scope.all_namespaces:
        if not scope.namespaces:
            return ALLOW
        if namespace not in scope.namespaces:
            return BindingDecision(True, "out_of_scope")
    return None


def with_pod(scope: BindingScope, pod: Pod | None, *, user: str, namespace: str, name: str) -> BindingDecision:
    """The decision by the pod's labels and annotations. A pod that is not cached (None) is allowed."""
    if pod is None:
        return ALLOW
    if any(key in pod.metadata.labels for key in scope.bypass_labels):
        return BindingDecision(True, "bypass_label")
    if any(key in pod.metadata.annotations for key in scope.bypass_annotations):
        return BindingDecision(True, "bypass_annotation")
    if scope.dry_run:
        return BindingDecision(True, "dry_run")
    return BindingDecision(False, "denied", f'user "{user}" is not allowed to bind pod {namespace}/{name}')
