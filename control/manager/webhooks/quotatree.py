"""Pods of a quota tree stay on the nodes of the tree (spec 04 §11.5, gate MultiQuotaTree).

The tree's ElasticQuotaProfile says which nodes these are; its node selector becomes required node affinity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from control.manager.webhooks.objects import Json, child
from koordlet.api import names
from koordlet.api.crs.quota import ElasticQuotaProfile
from koordlet.api.meta import LabelSelector

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod_quota_name(labels: Mapping[str, str], namespace: str) -> str:
    """The quota that a pod means here: its label, else the name of its namespace."""
    return labels.get(names.LABEL_QUOTA_NAME) or namespace


def tree_selector(profiles: Iterable[ElasticQuotaProfile], tree: str) -> LabelSelector | None:
    """The nodes of a tree: the selector of the first profile (by namespace and name) that carries its id."""
    mine = [each for each in profiles if each.metadata.labels.get(names.LABEL_QUOTA_TREE_ID) == tree]
    return min(mine, key=lambda each: each.metadata.key).spec.node_selector if mine else None


def requirements(selector: LabelSelector) -> list[Json]:
    """A label selector as node affinity expressions, its labels in order of their keys."""
    return [
        {"key": key, "operator": "In", "values": [value]} for key, value in sorted(selector.match_labels.items())
    ] + [
        {"key": each.key, "operator": each.operator} | ({"values": list(each.values)} if each.values else {})
        for each in selector.match_expressions
    ]


def require_nodes(pod: Json, selector: LabelSelector) -> None:
    """Hold the pod to nodes of the selector: in every term that it has already, else in a term of its own.

    Expressions that a term has already are not added again.
    """
    wanted = requirements(selector)
    if not wanted:
        return
    affinity = child(child(child(pod, "spec"), "affinity"), "nodeAffinity")
    required = child(affinity, _REQUIRED)
    terms = required.get("nodeSelectorTerms") or []
    required["nodeSelectorTerms"] = terms
    if not terms:
        terms.append({})
    for term in terms:
        present = term.get("matchExpressions") or []
        term["matchExpressions"] = present + [each for each in wanted if each not in present]
