"""Defaults that admission sets on a new ElasticQuota (spec 04 §16.2). Pure."""

from __future__ import annotations

from control.manager.webhooks.errors import invalid
from control.manager.webhooks.objects import Json, own_annotations, own_labels
from control.quota.info import Tree
from koordlet.api import names
from koordlet.api.annotations.quota import SHARED_WEIGHT
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.wire import WireError
from koordlet.api.resources import ResourceList


class QuotaError(ValueError):
    """The defaults of a quota cannot be determined (HTTP 400)."""


def mutate_quota(raw: Json, quota: ElasticQuota, tree: Tree) -> ResourceList | None:
    """Set the defaults in `raw`; `quota` is the same object, decoded. Raises QuotaError.

    The default parent is the root, the default tree id that of the parent; the shared weight gets the keys of max.
    Returns the shared weight if it was defaulted.
    """
    if quota.metadata.name == names.ROOT_QUOTA:
        return None
    labels = quota.metadata.labels
    parent = labels.get(names.LABEL_QUOTA_PARENT) or names.ROOT_QUOTA
    if not labels.get(names.LABEL_QUOTA_PARENT):
        own_labels(raw)[names.LABEL_QUOTA_PARENT] = parent
    if not labels.get(names.LABEL_QUOTA_TREE_ID) and parent != names.ROOT_QUOTA:
        parent_info = tree.get(parent)
        if parent_info is None:
            raise QuotaError(invalid(f"labels.{names.LABEL_QUOTA_PARENT}", parent, "there is no such quota"))
        if parent_info.tree:
            own_labels(raw)[names.LABEL_QUOTA_TREE_ID] = parent_info.tree
    return _weight(raw, quota)


def _weight(raw: Json, quota: ElasticQuota) -> ResourceList | None:
    maximum = quota.spec.max
    if not quota.metadata.annotations.get(SHARED_WEIGHT.key):
        own_annotations(raw)[SHARED_WEIGHT.key] = SHARED_WEIGHT.text(maximum)
        return maximum
    try:
        configured = SHARED_WEIGHT.get(quota.metadata.annotations) or {}
    except WireError as error:
        raise QuotaError(str(error)) from error
    weight = {name: configured.get(name, amount) for name, amount in maximum.items()}
    if weight != configured:
        own_annotations(raw)[SHARED_WEIGHT.key] = SHARED_WEIGHT.text(weight)
    return None
