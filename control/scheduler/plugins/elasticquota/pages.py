"""The pages of quotas as JSON (spec 06 §7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from control.quota.amounts import to_list
from control.quota.figures import QuotaFigures
from control.quota.forest import QuotaForest
from control.quota.tree import QuotaTree


def page(tree: QuotaTree, quota: QuotaFigures, version: int, *, pods: bool) -> dict[str, Any]:
    """One quota. `pods`: also list what it counts."""
    body: dict[str, Any] = {
        "name": quota.name,
        "parentName": quota.info.parent,
        "isParent": quota.info.is_parent,
        "runtimeVersion": version,
        "allowLentResource": quota.lends,
        "tree": tree.id,
        "max": amounts(quota.max),
        "min": amounts(quota.min),
        "autoScaleMin": amounts(tree.scaled_min(quota)),
        "used": amounts(quota.used),
        "nonPreemptibleUsed": amounts(quota.np_used),
        "request": amounts(quota.request),
        "nonPreemptibleRequest": amounts(quota.np_request),
        "sharedWeight": amounts(quota.weight),
        "runtime": amounts(tree.runtimes(quota)),
        "childRequest": amounts(quota.child_request),
        "allocated": amounts(quota.allocated),
        "guaranteed": amounts(quota.guaranteed),
        "selfUsed": amounts(quota.self_used),
        "selfNonPreemptibleUsed": amounts(quota.self_np_used),
        "selfRequest": amounts(quota.self_request),
        "selfNonPreemptibleRequest": amounts(quota.self_np_request),
    }
    if pods:
        body["podCache"] = {
            pod.key: {"isAssigned": pod.assigned, "resource": amounts(pod.counted or {})}
            for pod in sorted(quota.pods.values(), key=lambda quota_pod: quota_pod.key)
        }
    return body


def pages(forest: QuotaForest, tree_id: str, *, pods: bool) -> dict[str, Any]:
    """Name -> page of every quota but the roots; of one tree, if `tree_id` is not empty."""
    return {
        quota.name: page(tree, quota, forest.version, pods=pods)
        for quota_pod, tree in sorted(forest.trees().items())
        if not tree_id or quota_pod == tree_id
        for quota in sorted(tree.quotas.values(), key=lambda quota: quota.name)
    }


def amounts(values: Mapping[str, int]) -> dict[str, str]:
    """As Kubernetes writes them."""
    return {name: str(quantity) for name, quantity in sorted(to_list(values).items())}
