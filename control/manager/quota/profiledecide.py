"""The ElasticQuota that an ElasticQuotaProfile keeps equal to the resources of some nodes (spec 04 §7). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from control.manager.quota.lists import total
from koordlet.api import names
from koordlet.api.annotations import quota as annotation
from koordlet.api.core import Node, is_ready
from koordlet.api.crs.quota import ElasticQuota, ElasticQuotaProfile, ElasticQuotaSpec
from koordlet.api.encoding.gosyntax import parse_decimal
from koordlet.api.encoding.quantity import ZERO, Quantity
from koordlet.api.encoding.wire import WireError
from koordlet.api.resources import ResourceList, Resources


@dataclass(frozen=True)
class Wanted:
    """What the quota must have; labels and annotations are added to what is there."""

    labels: dict[str, str]
    annotations: dict[str, str]
    spec: ElasticQuotaSpec

    def changes(self, quota: ElasticQuota) -> bool:
        """Whether the quota differs from it."""
        meta = quota.metadata
        return (
            not self.labels.items() <= meta.labels.items()
            or not self.annotations.items() <= meta.annotations.items()
            or quota.spec != self.spec
        )


def tree_id(profile: ElasticQuotaProfile) -> str:
    """The profile's tree id: its label, or what it is to be labelled with."""
    given = profile.metadata.labels.get(names.LABEL_QUOTA_TREE_ID, "")
    return given or annotation.profile_tree_id(profile.metadata.namespace, profile.metadata.name)


def totals(nodes: Iterable[Node], ratio: str | None) -> tuple[ResourceList, ResourceList]:
    """(allocatable of all, of those that take no pods), both times the ratio. The second is part of the first."""
    listed = list(nodes)
    idle = [node for node in listed if node.spec.unschedulable or not is_ready(node)]
    both = (total(node.status.allocatable for node in those) for those in (listed, idle))
    everything, unschedulable = (_scaled(each, ratio) for each in both)
    return everything, unschedulable


def _scaled(amounts: Resources, ratio: str | None) -> ResourceList:
    if ratio is None:
        return dict(amounts)
    try:
        factor = parse_decimal(ratio)
    except ValueError:
        factor = 1.0
    if not 0 < factor <= 1:
        factor = 1.0
    return {
        name: Quantity.milli(int(amount.milli_value() * factor), amount.fmt)
        if name == names.RESOURCE_CPU
        else Quantity.of(int(amount.value() * factor), amount.fmt)
        for name, amount in amounts.items()
    }


def resource_keys(annotations: Mapping[str, str]) -> tuple[list[str], str | None]:
    """(resources that the quota is about, what is wrong with the annotation); the default is cpu and memory."""
    try:
        found = annotation.RESOURCE_KEYS.get(annotations)
    except WireError as error:
        return list(annotation.DEFAULT_RESOURCE_KEYS), str(error)
    return (list(annotation.DEFAULT_RESOURCE_KEYS) if found is None else found), None


def wanted(profile: ElasticQuotaProfile, nodes: Iterable[Node], keys: Iterable[str]) -> Wanted:
    """The quota of a profile over its nodes."""
    everything, unschedulable = totals(nodes, profile.spec.resource_ratio)
    listed = list(keys)
    return Wanted(
        labels={
            names.LABEL_QUOTA_PROFILE: profile.metadata.name,
            **profile.spec.quota_labels,
            names.LABEL_QUOTA_TREE_ID: tree_id(profile),
            names.LABEL_QUOTA_IS_ROOT: names.TRUE,
        },
        annotations={
            annotation.TOTAL_RESOURCE.key: annotation.TOTAL_RESOURCE.text(everything),
            annotation.UNSCHEDULABLE_RESOURCE.key: annotation.UNSCHEDULABLE_RESOURCE.text(unschedulable),
        },
        spec=ElasticQuotaSpec(
            min={key: everything.get(key, ZERO) for key in listed},
            max={key: Quantity.of(annotation.UNLIMITED) for key in listed},
        ),
    )
