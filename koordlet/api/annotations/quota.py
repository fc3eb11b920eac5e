"""ElasticQuota labels and annotations (spec 01 §5.7)."""

from __future__ import annotations

from typing import Final

from koordlet.api import names
from koordlet.api.annotations._base import Annotation, Map
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError

ResourceList = dict[str, Quantity]

DEFAULT_RESOURCE_KEYS: Final = ("cpu", "memory")
UNLIMITED: Final = 4611686018427387
"""`max` of a profile's quota, in units: half of the largest int64 in milli-units."""


def _list(key: str) -> Annotation[ResourceList]:
    return Annotation(key, dict[str, Quantity], empty=dict)


GUARANTEED: Final = _list(names.ANNOTATION_QUOTA_GUARANTEED)
ALLOCATED: Final = _list(names.ANNOTATION_QUOTA_ALLOCATED)
RUNTIME: Final = _list(names.ANNOTATION_QUOTA_RUNTIME)
REQUEST: Final = _list(names.ANNOTATION_QUOTA_REQUEST)
CHILD_REQUEST: Final = _list(names.ANNOTATION_QUOTA_CHILD_REQUEST)
NON_PREEMPTIBLE_REQUEST: Final = _list(names.ANNOTATION_QUOTA_NON_PREEMPTIBLE_REQUEST)
NON_PREEMPTIBLE_USED: Final = _list(names.ANNOTATION_QUOTA_NON_PREEMPTIBLE_USED)
ADMISSION: Final = _list(names.ANNOTATION_QUOTA_ADMISSION)
TOTAL_RESOURCE: Final = _list(names.ANNOTATION_QUOTA_TOTAL_RESOURCE)
UNSCHEDULABLE_RESOURCE: Final = _list(names.ANNOTATION_QUOTA_UNSCHEDULABLE_RESOURCE)
SHARED_WEIGHT: Final = _list(names.ANNOTATION_QUOTA_SHARED_WEIGHT)

NAMESPACES: Final[Annotation[list[str]]] = Annotation(names.ANNOTATION_QUOTA_NAMESPACES, list[str], empty=list)
STRICT_CHECK_KEYS: Final[Annotation[list[str]]] = Annotation(
    names.ANNOTATION_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS, list[str], empty=list
)
RESOURCE_KEYS: Final[Annotation[list[str]]] = Annotation(names.ANNOTATION_QUOTA_RESOURCE_KEYS, list[str])


def shared_weight(annotations: Map, maximum: ResourceList) -> ResourceList:
    """The weight for distributing spare resources; the quota's max when it is missing, invalid or all zero."""
    try:
        weight = SHARED_WEIGHT.get(annotations) or {}
    except WireError:
        return maximum
    return weight if any(weight.values()) else maximum


def namespaces(annotations: Map) -> list[str]:
    """Namespaces whose pods belong to the quota; none when missing or invalid."""
    try:
        return NAMESPACES.get(annotations) or []
    except WireError:
        return []


def parent(name: str, labels: Map) -> str:
    """The name of the parent quota: the label, else the root; empty for the root itself."""
    if name == names.ROOT_QUOTA:
        return ""
    return labels.get(names.LABEL_QUOTA_PARENT) or names.ROOT_QUOTA


def is_parent(labels: Map) -> bool:
    """Whether the quota has child quotas instead of pods."""
    return labels.get(names.LABEL_QUOTA_IS_PARENT) == names.TRUE


def is_tree_root(labels: Map) -> bool:
    """Whether the quota is the root of a tree."""
    return labels.get(names.LABEL_QUOTA_IS_ROOT) == names.TRUE


def allows_lent_resource(labels: Map) -> bool:
    """Whether other quotas may use this quota's unused resources; the default."""
    return labels.get(names.LABEL_QUOTA_ALLOW_LENT_RESOURCE) != "false"


def allows_force_update(labels: Map) -> bool:
    """Whether the webhook skips the checks of sums."""
    return labels.get(names.LABEL_QUOTA_ALLOW_FORCE_UPDATE) == names.TRUE


def ignores_default_tree(labels: Map) -> bool:
    """Whether the tree is not subtracted from the default tree."""
    return labels.get(names.LABEL_QUOTA_IGNORE_DEFAULT_TREE) == names.TRUE


def fnv1a64(text: str) -> int:
    """FNV-1a, 64 bits, of the UTF-8 bytes."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def profile_tree_id(namespace: str, name: str) -> str:
    """The default tree id of a quota profile."""
    return str(fnv1a64(f"{namespace}/{name}"))
