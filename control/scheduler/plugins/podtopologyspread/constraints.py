"""Compiled spread constraints of a shape: the pods that they count, the eligible nodes, and the topology key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from control.scheduler.plugins.domains import Domains, DomainSums
from control.scheduler.plugins.nodeselection import RequiredNodes
from control.scheduler.plugins.tainttoleration import tolerated
from control.scheduler.state.columns import Mask
from control.scheduler.state.pods import Shape
from control.scheduler.state.selectors import PodCounter, PodCounters
from control.scheduler.state.table import NodeTable
from koordlet.api.core.selectors import TopologySpreadConstraint
from koordlet.api.encoding import wire
from koordlet.api.meta import LabelSelector, LabelSelectorRequirement

HOSTNAME: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
HARD: Final = "DoNotSchedule"
SOFT: Final = "ScheduleAnyway"

SYSTEM_DEFAULTS: Final = (
    TopologySpreadConstraint(max_skew=3, topology_key=HOSTNAME, when_unsatisfiable=SOFT),
    TopologySpreadConstraint(max_skew=5, topology_key=ZONE, when_unsatisfiable=SOFT),
)
"""For pods without constraints that belong to a service or controller, unless the configuration sets others."""


@dataclass(slots=True)
class Constraint:
    """One constraint of one shape. `self_match`: 1 if the selector matches pods of the shape itself."""

    key: str
    max_skew: int
    min_domains: int
    self_match: int
    counter: PodCounter
    domains: DomainSums


def compile_constraints(
    table: NodeTable,
    topologies: Domains,
    counters: PodCounters,
    shape: Shape,
    constraints: Sequence[TopologySpreadConstraint],
    *,
    all_keys: bool,
) -> tuple[Constraint, ...]:
    """`all_keys`: only nodes with the topology keys of all constraints are counted. Raises SelectorError."""
    keys = [constraint.topology_key for constraint in constraints]
    return tuple(
        _compile(table, topologies, counters, shape, constraint, keys if all_keys else []) for constraint in constraints
    )


def _compile(
    table: NodeTable,
    topologies: Domains,
    counters: PodCounters,
    shape: Shape,
    constraint: TopologySpreadConstraint,
    keys: Sequence[str],
) -> Constraint:
    selector = _with_keys(constraint.label_selector, constraint.match_label_keys, shape)
    counter = counters.counter(
        ("spread", shape.namespace, wire.encode(selector) if selector else None),
        _SelectedPods(shape.namespace, selector),
        live=True,
    )
    domains = DomainSums(
        table, counter, topologies.of(constraint.topology_key), _Eligible(table, shape, constraint, keys)
    )
    self_match = int(selector is not None and selector.matches(shape.labels))
    return Constraint(
        constraint.topology_key, constraint.max_skew, constraint.min_domains or 1, self_match, counter, domains
    )


class _SelectedPods:
    """Counts pods of the namespace that the selector matches. As in kube-scheduler, an empty selector matches none."""

    __slots__ = ("_namespace", "_selector")

    def __init__(self, namespace: str, selector: LabelSelector | None) -> None:
        self._namespace = namespace
        self._selector = selector

    def __call__(self, shape: Shape) -> int:
        selector = self._selector
        if selector is None or shape.namespace != self._namespace or selector.is_empty():
            return 0
        return int(selector.matches(shape.labels))


def _with_keys(selector: LabelSelector | None, keys: Sequence[str], shape: Shape) -> LabelSelector | None:
    """The selector, restricted to the pod's own values of `keys`. Raises SelectorError for a malformed selector."""
    if selector is None:
        return None
    selector.matches({})
    own = [
        LabelSelectorRequirement(key=key, operator="In", values=[shape.labels[key]])
        for key in keys
        if key in shape.labels
    ]
    if not own:
        return selector
    return LabelSelector(match_labels=selector.match_labels, match_expressions=[*selector.match_expressions, *own])


class _Eligible:
    """[row]: whether the node has all topology keys and the constraint's policies include it."""

    __slots__ = ("_columns", "_required", "_table", "_tolerations")

    def __init__(
        self, table: NodeTable, shape: Shape, constraint: TopologySpreadConstraint, keys: Sequence[str]
    ) -> None:
        self._table = table
        self._columns = [table.labels.column(key) for key in keys]
        required = RequiredNodes.of(shape.pod) if constraint.node_affinity_policy in (None, "", "Honor") else None
        self._required = required if required and not required.anything else None
        self._tolerations = shape.pod.spec.tolerations if constraint.node_taints_policy == "Honor" else None

    def __call__(self) -> Mask:
        table = self._table
        chosen: Mask = table.valid.copy()
        for column in self._columns:
            chosen &= column.ids.data[: table.size] != 0
        if self._required is not None:
            chosen &= self._required.select(table, table.all)
        if self._tolerations is not None:
            tolerable = np.array([tolerated(taints, self._tolerations) for taints in table.taint_sets], np.bool_)
            chosen &= tolerable[table.taint_set]
        return chosen
