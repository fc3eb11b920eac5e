"""Compiled affinity terms of shapes: the pods that a term selects, and its role for its owner.

`matchLabelKeys` and `mismatchLabelKeys` are resolved with the owner's labels, as the API server does. A term with a
malformed selector selects no pods; `Terms.broken` has the error for pods that own such a term.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeAlias

from control.scheduler.state.pods import Shape
from koordlet.api.core.selectors import PodAffinity, PodAffinityTerm
from koordlet.api.encoding import wire
from koordlet.api.meta import LabelSelector, LabelSelectorRequirement, SelectorError

NamespaceLabels: TypeAlias = Callable[[str], Mapping[str, str]]
"""Namespace -> its labels; empty for an unknown namespace."""


class Role(IntEnum):
    """The kind of a term."""

    NEAR = 0
    """Required affinity."""
    FAR = 1
    """Required anti-affinity."""
    PREFER = 2
    """Preferred; the weight is negative for anti-affinity."""


@dataclass(frozen=True, slots=True)
class Term:
    """`key` is equal for terms that select the same pods, whatever their role, topology and weight."""

    role: Role
    topology: str
    weight: int
    key: Hashable
    namespaces: frozenset[str] = field(compare=False)
    namespace_selector: LabelSelector | None = field(compare=False)
    selector: LabelSelector | None = field(compare=False)

    def selects(self, shape: Shape, labels_of: NamespaceLabels) -> bool:
        """Whether the term selects pods of the shape."""
        if self.selector is None:
            return False
        if shape.namespace not in self.namespaces:
            by_labels = self.namespace_selector
            if by_labels is None or not by_labels.matches(labels_of(shape.namespace)):
                return False
        return self.selector.matches(shape.labels)


@dataclass(frozen=True, slots=True)
class Terms:
    """All terms of a shape. `broken`: the error in one of them, or empty."""

    near: tuple[Term, ...] = ()
    far: tuple[Term, ...] = ()
    preferred: tuple[Term, ...] = ()
    broken: str = ""

    def __iter__(self) -> Iterator[Term]:
        yield from self.near
        yield from self.far
        yield from self.preferred


NONE: Final = Terms()
_MEMO: Final = "InterPodAffinity.terms"


def terms_of(shape: Shape) -> Terms:
    """The compiled terms of a shape."""
    terms: Terms | None = shape.memo.get(_MEMO)
    if terms is None:
        terms = shape.memo[_MEMO] = _compile(shape)
    return terms


def _compile(shape: Shape) -> Terms:
    affinity = shape.pod.spec.affinity
    if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
        return NONE
    near, far = affinity.pod_affinity or PodAffinity(), affinity.pod_anti_affinity or PodAffinity()
    broken = ""
    compiled: dict[Role, list[Term]] = {role: [] for role in Role}
    requested = [(Role.NEAR, 0, term) for term in near.required_during_scheduling_ignored_during_execution]
    requested += [(Role.FAR, 0, term) for term in far.required_during_scheduling_ignored_during_execution]
    for sign, kind in ((1, near), (-1, far)):
        weighted = kind.preferred_during_scheduling_ignored_during_execution
        requested += [(Role.PREFER, sign * term.weight, term.pod_affinity_term) for term in weighted]
    for role, weight, term in requested:
        try:
            compiled[role].append(_term(shape, role, weight, term))
        except SelectorError as error:
            broken = str(error)
    return Terms(tuple(compiled[Role.NEAR]), tuple(compiled[Role.FAR]), tuple(compiled[Role.PREFER]), broken)


def _term(shape: Shape, role: Role, weight: int, affinity_term: PodAffinityTerm) -> Term:
    by_labels, selector = affinity_term.namespace_selector, _with_keys(affinity_term, shape)
    namespaces = frozenset(affinity_term.namespaces)
    if not namespaces and by_labels is None:
        namespaces = frozenset((shape.namespace,))
    for selector_part in (by_labels, selector):
        if selector_part is not None:
            selector_part.matches({})
    key = (
        namespaces,
        wire.encode(by_labels) if by_labels is not None else None,
        wire.encode(selector) if selector is not None else None,
    )
    return Term(role, affinity_term.topology_key, weight, key, namespaces, by_labels, selector)


def _with_keys(affinity_term: PodAffinityTerm, shape: Shape) -> LabelSelector | None:
    """The term's selector, extended by the owner's values of `matchLabelKeys` and `mismatchLabelKeys`."""
    selector = affinity_term.label_selector
    if selector is None:
        return None
    more = [
        LabelSelectorRequirement(key=key, operator=operator, values=[shape.labels[key]])
        for operator, keys in (("In", affinity_term.match_label_keys), ("NotIn", affinity_term.mismatch_label_keys))
        for key in keys
        if key in shape.labels
    ]
    if not more:
        return selector
    return LabelSelector(match_labels=selector.match_labels, match_expressions=[*selector.match_expressions, *more])
