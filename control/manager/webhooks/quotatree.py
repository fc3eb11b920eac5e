"""Restricts pods of a quota tree to the nodes of the tree (spec 04 §11.5, feature gate MultiQuotaTree). Pure.

The node selector of the tree's ElasticQuotaProfile becomes required node affinity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from control.manager.webhooks.objects import Json, child
from koordlet.api import names
from koordlet.api.crs.quota import ElasticQuotaProfile
from koordlet.api.meta import LabelSelector

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod_quota_name(labels: Mapping[str, str], namespace: str) -> str:
    """The quota name that determines a pod's tree: its label, else the name of its namespace."""
    return labels.get(names.LABEL_QUOTA_NAME) or namespace


def tree_selector(profiles: Iterable[ElasticQuotaProfile], tree: str) -> LabelSelector | None:
    """The node selector of a tree: that of the first profile (by namespace and name) with its tree id."""
    matching = [profile for profile in profiles if profile.metadata.labels.get(names.LABEL_QUOTA_TREE_ID) == tree]
    return min(matching, key=lambda profile: profile.metadata.key).spec.node_selector if matching else None


def requirements(selector: LabelSelector) -> list[Json]:
    """A label selector as node affinity expressions; its labels in order of their keys."""
    return [
        {"key": key, "operator": "In", "values": [value]} for key, value in sorted(selector.match_labels.items())
    ] + [
        {"key": term.key, "operator": term.operator} | ({"values": list(term.values)} if term.values else {})
        for term in selector.match_expressions
    ]


def require_nodes(pod: Json, selector: LabelSelector) -> None:
    """Require nodes that match the selector: added to every existing term, else as a new term.

    Expressions that a term already contains are not added again.
    """
    expressions = requirements(selector)
    if not expressions:
        return
    affinity = child(child(child(pod, "spec"), "affinity"), "nodeAffinity")
    required = child(affinity, _REQUIRED)
    terms = required.get("nodeSelectorTerms") or []
    required["nodeSelectorTerms"] = terms
    if not terms:
        terms.append({})
    for term in terms:
        present = term.get("matchExpressions") or []
        term["matchExpressions"] = present + [expression for expression in expressions if expression not in present]
