"""The desired ElasticQuota of an ElasticQuotaProfile: the resources of the selected nodes (spec 04 §7). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from control.quota.lists import total
from koordlet.api import names
from koordlet.api.annotations import quota as annotation
from koordlet.api.core import Node, is_ready
from koordlet.api.crs.quota import ElasticQuota, ElasticQuotaProfile, ElasticQuotaSpec
from koordlet.api.encoding.gosyntax import parse_decimal
from koordlet.api.encoding.quantity import ZERO, Quantity
from koordlet.api.encoding.wire import WireError
from koordlet.api.resources import ResourceList, Resources


@dataclass(frozen=True)
class DesiredQuota:
    """The desired fields of the quota; its other labels and annotations are kept."""

    labels: dict[str, str]
    annotations: dict[str, str]
    spec: ElasticQuotaSpec

    def differs_from(self, quota: ElasticQuota) -> bool:
        meta = quota.metadata
        return (
            not self.labels.items() <= meta.labels.items()
            or not self.annotations.items() <= meta.annotations.items()
            or quota.spec != self.spec
        )


def tree_id(profile: ElasticQuotaProfile) -> str:
    """The profile's tree id: its label, or the value that the controller sets as its label."""
    label = profile.metadata.labels.get(names.LABEL_QUOTA_TREE_ID, "")
    return label or annotation.profile_tree_id(profile.metadata.namespace, profile.metadata.name)


def totals(nodes: Iterable[Node], ratio: str | None) -> tuple[ResourceList, ResourceList]:
    """(allocatable of all nodes, allocatable of unschedulable or unready nodes), both times the ratio.

    The first includes the second.
    """
    all_nodes = list(nodes)
    unschedulable_nodes = [node for node in all_nodes if node.spec.unschedulable or not is_ready(node)]
    everything = _scaled(total(node.status.allocatable for node in all_nodes), ratio)
    unschedulable = _scaled(total(node.status.allocatable for node in unschedulable_nodes), ratio)
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
    """(resources of the quota, the error if the annotation is malformed); the default is cpu and memory."""
    try:
        keys = annotation.RESOURCE_KEYS.get(annotations)
    except WireError as error:
        return list(annotation.DEFAULT_RESOURCE_KEYS), str(error)
    return (list(annotation.DEFAULT_RESOURCE_KEYS) if keys is None else keys), None


def desired_quota(profile: ElasticQuotaProfile, nodes: Iterable[Node], keys: Iterable[str]) -> DesiredQuota:
    """The quota of a profile over its nodes."""
    everything, unschedulable = totals(nodes, profile.spec.resource_ratio)
    resources = list(keys)
    return DesiredQuota(
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
            min={key: everything.get(key, ZERO) for key in resources},
            max={key: Quantity.of(annotation.UNLIMITED) for key in resources},
        ),
    )
