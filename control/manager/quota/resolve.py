"""Whether a pod may use a quota, and change its quota labels (spec 04 §12.4). Pure."""

from __future__ import annotations

from control.manager.webhooks.errors import forbidden, invalid
from control.quota.info import Tree
from koordlet.api import names
from koordlet.api.core import Pod

_NAME_PATH = f"labels.{names.LABEL_QUOTA_NAME}"
_PREEMPTIBLE_PATH = f"labels.{names.LABEL_QUOTA_PREEMPTIBLE}"


def submission_errors(tree: Tree, quota: str) -> list[str]:
    """Errors of a pod that uses this quota: a parent quota accepts no pods.

    A quota that is not in the topology counts as the default quota.
    """
    info = tree.get(quota)
    if info is None or quota in ("", names.DEFAULT_QUOTA) or not info.is_parent:
        return []
    return [forbidden(_NAME_PATH, f"quota {quota} is a parent quota, pods must be submitted to one of its children")]


def change_errors(pod: Pod, old: Pod) -> list[str]:
    """Errors of an update that changes an immutable quota label of a pod."""
    new = pod.metadata.labels.get(names.LABEL_QUOTA_PREEMPTIBLE, "")
    if new == old.metadata.labels.get(names.LABEL_QUOTA_PREEMPTIBLE, ""):
        return []
    return [invalid(_PREEMPTIBLE_PATH, new, "field is immutable")]
