"""The properties of an ElasticQuota, and the tree that parents and children form (spec 04 §16.1, 06 §5.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from koordlet.api import names
from koordlet.api.annotations import quota as annotation
from koordlet.api.annotations._base import Annotation
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.wire import WireError
from koordlet.api.resources import ResourceList


@dataclass(frozen=True)
class QuotaInfo:
    """The fields of a quota that rules and figures use."""

    name: str
    parent: str = names.ROOT_QUOTA
    is_parent: bool = False
    tree: str = ""
    is_tree_root: bool = False
    force: bool = False
    """label allow-force-update: sums are not checked"""
    allow_lent: bool = True
    """label allow-lent-resource"""
    min: ResourceList = field(default_factory=dict)
    max: ResourceList = field(default_factory=dict)
    guaranteed: ResourceList = field(default_factory=dict)
    namespaces: tuple[str, ...] = ()
    namespace: str = ""
    """of the object"""
    weight: ResourceList = field(default_factory=dict)
    """by which spare resources are distributed"""
    ignores_default_tree: bool = False
    total: ResourceList = field(default_factory=dict)
    """what the tree has, for a root"""
    unschedulable: ResourceList = field(default_factory=dict)
    """the part of it on nodes that accept no pods"""

    @classmethod
    def of(cls, quota: ElasticQuota) -> QuotaInfo:
        """From an object; a malformed annotation counts as absent."""
        labels, annotations, name = quota.metadata.labels, quota.metadata.annotations, quota.metadata.name
        return cls(
            name=name,
            parent=annotation.parent(name, labels),
            is_parent=annotation.is_parent(labels),
            tree=labels.get(names.LABEL_QUOTA_TREE_ID, ""),
            is_tree_root=annotation.is_tree_root(labels),
            force=annotation.allows_force_update(labels),
            allow_lent=annotation.allows_lent_resource(labels),
            min=quota.spec.min,
            max=quota.spec.max,
            guaranteed=_list(annotation.GUARANTEED, annotations),
            namespaces=tuple(annotation.namespaces(annotations)),
            namespace=quota.metadata.namespace,
            weight=annotation.shared_weight(annotations, quota.spec.max),
            ignores_default_tree=annotation.ignores_default_tree(labels),
            total=_list(annotation.TOTAL_RESOURCE, annotations),
            unschedulable=_list(annotation.UNSCHEDULABLE_RESOURCE, annotations),
        )


def _list(annotation: Annotation[ResourceList], annotations: Mapping[str, str]) -> ResourceList:
    """The resources of an annotation; none if it is missing or malformed."""
    try:
        return annotation.get(annotations) or {}
    except WireError:
        return {}


class Tree:
    """An immutable state of the topology, with its indexes."""

    def __init__(self, quotas: Iterable[QuotaInfo] = ()) -> None:
        self.quotas: Mapping[str, QuotaInfo] = {quota.name: quota for quota in quotas}
        self._children: dict[str, list[str]] = {}
        self.namespaces: dict[str, str] = {}
        """Namespace -> the first quota by name whose annotation lists it"""
        for name in sorted(self.quotas):
            info = self.quotas[name]
            if info.parent:
                self._children.setdefault(info.parent, []).append(name)
            for namespace in info.namespaces:
                self.namespaces.setdefault(namespace, name)

    def get(self, name: str) -> QuotaInfo | None:
        return self.quotas.get(name)

    def children(self, name: str) -> list[QuotaInfo]:
        """The children of a quota, sorted by name."""
        return [self.quotas[child] for child in self._children.get(name, ())]

    def siblings(self, info: QuotaInfo) -> list[QuotaInfo]:
        """The other quotas under the same parent."""
        return [quota for quota in self.children(info.parent) if quota.name != info.name]

    def hierarchy(self) -> dict[str, list[str]]:
        """Parent -> children, for every quota and for the root."""
        parents = {names.ROOT_QUOTA, *self.quotas, *self._children}
        return {name: list(self._children.get(name, ())) for name in sorted(parents)}
