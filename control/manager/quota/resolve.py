"""The quota that a pod belongs to, and whether the pod may use it (spec 04 §12.4). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from control.manager.quota.topology import Tree
from control.manager.webhooks.errors import forbidden, invalid
from koordlet.api import names
from koordlet.api.core import Pod

_NAME_PATH = f"labels.{names.LABEL_QUOTA_NAME}"
_PREEMPTIBLE_PATH = f"labels.{names.LABEL_QUOTA_PREEMPTIBLE}"


def quota_of_pod(
    labels: Mapping[str, str],
    namespace: str,
    *,
    exists: Callable[[str, str], bool],
    bound: Callable[[str], list[str]],
    default_disabled: bool,
) -> str:
    """The name of a pod's quota; empty when it has none.

    It is the pod's label. Without the label, and unless feature gate DisableDefaultQuota is on, it is the first that
    exists of: the quota `<namespace>/<namespace>`, the first by name that lists the namespace, the default quota.
    `exists(namespace, name)` and `bound(namespace)` query the cache.
    """
    name = labels.get(names.LABEL_QUOTA_NAME, "")
    if name or default_disabled:
        return name
    if exists(namespace, namespace):
        return namespace
    return min(bound(namespace), default=names.DEFAULT_QUOTA)


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
