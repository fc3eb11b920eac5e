"""Validation of an ElasticQuota within the tree: the rules in their order (spec 04 §16.4). Pure.

Inputs are the current tree, the new quota and the old quota. The first violated rule is returned. `pods` is called only
when a leaf becomes a parent, because it searches all pods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from control.manager.webhooks.errors import forbidden, invalid
from control.quota.info import QuotaInfo, Tree
from control.quota.lists import excess, largest, shown, total
from koordlet.api import names

_IS_PARENT = f"labels.{names.LABEL_QUOTA_IS_PARENT}"
_PARENT = f"labels.{names.LABEL_QUOTA_PARENT}"
_TREE = f"labels.{names.LABEL_QUOTA_TREE_ID}"


@dataclass(frozen=True)
class TreeRules:
    """The feature gates that change rules."""

    keys_may_differ: bool = False
    """ElasticQuotaEnableUpdateResourceKey: a child's max may lack keys of its parent's max."""
    check_guarantee: bool = False
    """ElasticQuotaGuaranteeUsage"""
    parents_may_have_pods: bool = False
    """SupportParentQuotaSubmitPod: a quota with pods may become a parent."""


def tree_error(
    tree: Tree, info: QuotaInfo, old: QuotaInfo | None, rules: TreeRules, pods: Callable[[], bool] = lambda: False
) -> str | None:
    """The first rule that the quota would violate, or None."""
    if info.name == names.ROOT_QUOTA:
        return None
    error = _is_parent_error(
        tree, info, old, (lambda: False) if rules.parents_may_have_pods else pods
    ) or _tree_id_error(tree, info, old)
    if error or (info.parent == names.ROOT_QUOTA and not info.is_parent):
        return error
    return (
        _parent_error(tree, info)
        or _keys_error(tree, info, rules.keys_may_differ)
        or _min_error(tree, info)
        or (_guarantee_error(tree, info) if rules.check_guarantee else None)
    )


def _is_parent_error(tree: Tree, info: QuotaInfo, old: QuotaInfo | None, pods: Callable[[], bool]) -> str | None:
    if old is None or old.is_parent == info.is_parent:
        return None
    if not info.is_parent:
        children = [child.name for child in tree.children(info.name)]
        if children:
            return forbidden(_IS_PARENT, f"quota {info.name} has children ({', '.join(children)})")
        return None
    return forbidden(_IS_PARENT, f"quota {info.name} has pods") if pods() else None


def _tree_id_error(tree: Tree, info: QuotaInfo, old: QuotaInfo | None) -> str | None:
    if old is not None and old.tree != info.tree:
        return invalid(_TREE, info.tree, "field is immutable")
    parent = tree.get(info.parent) if info.parent != names.ROOT_QUOTA else None
    for other in ([parent] if parent else []) + tree.children(info.name):
        if other.tree != info.tree:
            return invalid(_TREE, info.tree, f"the related quota {other.name} is in tree {other.tree!r}")
    return None


def _parent_error(tree: Tree, info: QuotaInfo) -> str | None:
    if info.parent == names.ROOT_QUOTA:
        return None
    parent = tree.get(info.parent)
    if parent is None:
        return invalid(_PARENT, info.parent, "there is no such quota")
    if not parent.is_parent:
        return invalid(_PARENT, info.parent, f"it is not labelled {names.LABEL_QUOTA_IS_PARENT}=true")
    if _is_descendant(tree, info.parent, info.name):
        return invalid(_PARENT, info.parent, "it is a descendant of this quota")
    return None


def _is_descendant(tree: Tree, name: str, top: str) -> bool:
    """Whether `name` is `top` or one of its descendants."""
    seen: set[str] = set()
    while name not in seen:
        if name == top:
            return True
        seen.add(name)
        info = tree.get(name)
        if info is None:
            return False
        name = info.parent
    return False


def _keys_error(tree: Tree, info: QuotaInfo, may_differ: bool) -> str | None:
    parent = tree.get(info.parent) if info.parent != names.ROOT_QUOTA else None
    pairs = [(parent, info)] if parent else []
    for above, below in pairs + [(info, child) for child in tree.children(info.name)]:
        upper, lower = above.max.keys(), below.max.keys()
        if lower - upper or (upper != lower and not may_differ):
            return forbidden("spec.max", f"the keys of {below.name} and of its parent {above.name} differ")
        if below.min.keys() - above.min.keys():
            missing = ", ".join(sorted(below.min.keys() - above.min.keys()))
            return forbidden("spec.min", f"{missing} of {below.name} is not in spec.min of its parent {above.name}")
    return None


def _min_error(tree: Tree, info: QuotaInfo) -> str | None:
    if info.force or info.is_tree_root:
        return None
    parent = tree.get(info.parent) if info.parent != names.ROOT_QUOTA else None
    if parent is not None:
        children_sum = total([info.min, *(sibling.min for sibling in tree.siblings(info))])
        if above := excess(children_sum, parent.min):
            reason = (
                f"the sum of the children of {parent.name} is {shown(children_sum, above)},"
                f" its own is {shown(parent.min, above)}"
            )
            return invalid("spec.min", shown(info.min, above), reason)
    children_sum = total(child.min for child in tree.children(info.name))
    if above := excess(children_sum, info.min):
        return invalid("spec.min", shown(info.min, above), f"the sum of its children is {shown(children_sum, above)}")
    return None


def _guarantee_error(tree: Tree, info: QuotaInfo) -> str | None:
    """The error if no ancestor, at any level, already guarantees what this quota would guarantee."""
    if info.force or not info.tree or info.is_tree_root or not excess(info.min, info.guaranteed):
        return None
    required, node = largest(info.min, info.guaranteed), info
    seen = {info.name}
    while node.parent != names.ROOT_QUOTA and node.parent not in seen:
        seen.add(node.parent)
        parent = tree.get(node.parent)
        if parent is None:
            break
        required = largest(parent.min, total([required, *(sibling.guaranteed for sibling in tree.siblings(node))]))
        if not excess(required, parent.guaranteed):
            return None
        node = parent
    above = excess(info.min, info.guaranteed)
    reason = (
        f"is not guaranteed by any ancestor; {node.name} would have to guarantee {shown(required, sorted(required))}"
    )
    return invalid("spec.min", shown(info.min, above), reason)
