"""The quota that a pod belongs to (spec 04 §12.4, 06 §5.3). Pure."""

from __future__ import annotations

from collections.abc import Callable

from koordlet.api import names


def quota_of_pod(
    label: str,
    namespace: str,
    *,
    exists: Callable[[str, str], bool],
    bound: Callable[[str], list[str]],
    default_disabled: bool,
) -> str:
    """The name of a pod's quota; empty when it has none.

    It is the pod's label `quota.scheduling.koordinator.sh/name`. Without the label, and unless feature gate
    DisableDefaultQuota is on, it is the first that exists of: the quota `<namespace>/<namespace>`, the first by name
    that lists the namespace, the default quota. `exists(namespace, name)` and `bound(namespace)` query the known
    quotas.
    """
    if label or default_disabled:
        return label
    if exists(namespace, namespace):
        return namespace
    return min(bound(namespace), default=names.DEFAULT_QUOTA)
