"""Scheduling constraints of a pod: node and pod affinity, taints and tolerations, topology spreading (core/v1).

Plain data, and two predicates that several components share: a node selector on labels, and a toleration on a taint.
"""

import re
from collections.abc import Mapping

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import LabelSelector

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


class NodeSelectorRequirement(Struct):
    """One expression over node labels (or fields): In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str
    operator: str
    values: list[str] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` satisfy it. Malformed numbers and unknown operators match nothing."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                if value is None or len(self.values) != 1:
                    return False
                if not (_INTEGER.fullmatch(value) and _INTEGER.fullmatch(self.values[0])):
                    return False
                number, bound = int(value), int(self.values[0])
                return number > bound if self.operator == "Gt" else number < bound
        return False


class NodeSelectorTerm(Struct):
    """Expressions that are ANDed. An empty term matches nothing."""

    match_expressions: list[NodeSelectorRequirement] = []
    match_fields: list[NodeSelectorRequirement] = []

    def matches(self, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
        """Whether every expression holds; `fields` is `{"metadata.name": …}` for a node."""
        if not self.match_expressions and not self.match_fields:
            return False
        return all(e.matches(labels) for e in self.match_expressions) and all(
            e.matches(fields) for e in self.match_fields
        )


class NodeSelector(Struct):
    """Terms that are ORed."""

    node_selector_terms: list[NodeSelectorTerm] = []


class PreferredSchedulingTerm(Struct):
    """A node preference with a weight of 1 to 100."""

    weight: int
    preference: NodeSelectorTerm = msgspec.field(default_factory=NodeSelectorTerm)


class NodeAffinity(Struct):
    """Node constraints and preferences."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredSchedulingTerm] = []


class PodAffinityTerm(Struct):
    """Pods to be close to or apart from, and the node label that defines the topology domain."""

    label_selector: LabelSelector | None = None
    namespaces: list[str] = []
    topology_key: str
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] = []
    mismatch_label_keys: list[str] = []


class WeightedPodAffinityTerm(Struct):
    """A pod affinity preference with a weight of 1 to 100."""

    weight: int
    pod_affinity_term: PodAffinityTerm


class PodAffinity(Struct):
    """Pod affinity or anti-affinity: both have the same shape."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = []
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] = []


class Affinity(Struct):
    """`spec.affinity` of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Taint(Struct):
    """A taint of a node: repels pods that do not tolerate it."""

    key: str
    value: str = ""
    effect: str
    time_added: Time | None = None


class Toleration(Struct):
    """Taints that a pod tolerates. An empty key with Exists tolerates all taints, an empty effect all effects."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None

    def tolerates(self, taint: Taint) -> bool:
        """Whether the taint is tolerated; an absent operator means Equal."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return self.operator in ("", "Equal") and self.value == taint.value


class TopologySpreadConstraint(Struct):
    """How evenly matching pods must be spread over the values of a node label."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: str
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] = []
