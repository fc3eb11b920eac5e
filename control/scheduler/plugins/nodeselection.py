"""Evaluates node selectors: for one node by its labels, for many nodes by label columns.

Used by NodeAffinity and by PodTopologySpread, which counts only nodes that the pod may be placed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from control.scheduler.state.columns import Mask, RowArray, Rows, count
from control.scheduler.state.table import NodeTable, selected
from koordlet.api.core import Node, Pod
from koordlet.api.core.selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm

NAME_FIELD: Final = "metadata.name"


class RequiredNodes:
    """The nodes that a pod requires: its node selector and its required node affinity."""

    __slots__ = ("anything", "pairs", "terms")

    def __init__(self, pairs: Sequence[tuple[str, str]], terms: Sequence[NodeSelectorTerm] | None) -> None:
        self.pairs = tuple(pairs)
        self.terms = terms
        """Alternatives. None: every node matches; empty: no node matches."""
        self.anything = not self.pairs and terms is None

    @classmethod
    def of(cls, pod: Pod) -> RequiredNodes:
        affinity = pod.spec.affinity
        node_affinity = affinity.node_affinity if affinity else None
        required = node_affinity.required_during_scheduling_ignored_during_execution if node_affinity else None
        return cls(tuple(pod.spec.node_selector.items()), _terms(required))

    @classmethod
    def selected_by(cls, selector: NodeSelector | None) -> RequiredNodes:
        return cls((), _terms(selector))

    def matches(self, node: Node) -> bool:
        labels = node.metadata.labels
        if any(labels.get(key) != value for key, value in self.pairs):
            return False
        return self.terms is None or any(term_matches(term, node) for term in self.terms)

    def select(self, table: NodeTable, rows: Rows) -> Mask:
        """[len(rows)]"""
        chosen: Mask = np.ones(count(rows, table.size), np.bool_)
        for key, value in self.pairs:
            column = table.labels.column(key)
            chosen &= column.ids.data[rows] == column.numbers.get(value, -1)
        if self.terms is not None:
            picked = np.zeros(len(chosen), np.bool_)
            for term in self.terms:
                picked |= select_term(table, term, rows)
            chosen &= picked
        return chosen

    def names(self) -> set[str] | None:
        """The node names that the terms require; None if a term requires none."""
        if not self.terms:
            return None
        pinned: set[str] = set()
        for term in self.terms:
            pins = [set(f.values) for f in term.match_fields if f.key == NAME_FIELD and f.operator == "In"]
            if not pins:
                return None
            pinned |= set.intersection(*pins)
        return pinned


def _terms(selector: NodeSelector | None) -> list[NodeSelectorTerm] | None:
    return None if selector is None else selector.node_selector_terms


def term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    return term.matches(node.metadata.labels, {NAME_FIELD: node.metadata.name})


def select_term(table: NodeTable, term: NodeSelectorTerm, rows: Rows) -> Mask:
    """[len(rows)]: whether the term matches."""
    if not term.match_expressions and not term.match_fields:
        return np.zeros(count(rows, table.size), np.bool_)
    chosen: Mask = np.ones(count(rows, table.size), np.bool_)
    for expression in term.match_expressions:
        chosen &= _select(table, expression, rows)
    for field in term.match_fields:
        chosen &= _select_names(table, field, selected(rows, table.size))
    return chosen


def _select(table: NodeTable, requirement: NodeSelectorRequirement, rows: Rows) -> Mask:
    column = table.labels.column(requirement.key)
    ids = column.ids.data[rows]
    match requirement.operator:
        case "In" | "NotIn":
            among = _among(ids, (column.numbers.get(value, -1) for value in requirement.values))
            return among if requirement.operator == "In" else ~among
        case "Exists":
            there: Mask = ids != 0
            return there
        case "DoesNotExist":
            missing: Mask = ids == 0
            return missing
    return column.select(rows, lambda value: requirement.matches({} if value is None else {requirement.key: value}))


def _select_names(table: NodeTable, requirement: NodeSelectorRequirement, rows: RowArray) -> Mask:
    if requirement.key == NAME_FIELD and requirement.operator in ("In", "NotIn"):
        among = _among(rows, (table.rows.get(name, -1) for name in requirement.values))
        return among if requirement.operator == "In" else ~among
    return np.fromiter(
        (requirement.matches({NAME_FIELD: table.names[row]}) for row in rows.tolist()), np.bool_, len(rows)
    )


def _among(ids: NDArray[Any], numbers: Iterable[int]) -> Mask:
    chosen = [number for number in numbers if number >= 0]
    if len(chosen) == 1:
        mask: Mask = ids == chosen[0]
        return mask
    return np.isin(ids, chosen) if chosen else np.zeros(len(ids), np.bool_)
