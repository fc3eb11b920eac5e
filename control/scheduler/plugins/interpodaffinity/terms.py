"""Affinity terms of shapes, interned: which pods a term means, and what it is to its owner.

`matchLabelKeys` and `mismatchLabelKeys` are resolved with the owner's labels, as the API server does. A term with a
malformed selector means nobody; whoever schedules a pod that has one is told by `SelectorError`.
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
"""Labels of a namespace; none for one that is not known."""


class Role(IntEnum):
    """What a term asks for."""

    NEAR = 0
    """Required affinity."""
    FAR = 1
    """Required anti-affinity."""
    PREFER = 2
    """Preferred, by a weight that is negative for anti-affinity."""


@dataclass(frozen=True, slots=True)
class Term:
    """`key` is the same for terms that mean the same pods, whatever their role, topology and weight."""

    role: Role
    topology: str
    weight: int
    key: Hashable
    namespaces: frozenset[str] = field(compare=False)
    namespace_selector: LabelSelector | None = field(compare=False)
    selector: LabelSelector | None = field(compare=False)

    def means(self, shape: Shape, labels_of: NamespaceLabels) -> bool:
        """Whether pods of the shape are meant."""
        if self.selector is None:
            return False
        if shape.namespace not in self.namespaces:
            by_labels = self.namespace_selector
            if by_labels is None or not by_labels.matches(labels_of(shape.namespace)):
                return False
        return self.selector.matches(shape.labels)


@dataclass(frozen=True, slots=True)
class Terms:
    """All terms of a shape. `broken`: what is wrong with one of them."""

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
    """The terms of a shape, compiled once."""
    found: Terms | None = shape.memo.get(_MEMO)
    if found is None:
        found = shape.memo[_MEMO] = _compile(shape)
    return found


def _compile(shape: Shape) -> Terms:
    affinity = shape.pod.spec.affinity
    if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
        return NONE
    near, far = affinity.pod_affinity or PodAffinity(), affinity.pod_anti_affinity or PodAffinity()
    broken = ""
    made: dict[Role, list[Term]] = {role: [] for role in Role}
    wanted = [(Role.NEAR, 0, one) for one in near.required_during_scheduling_ignored_during_execution]
    wanted += [(Role.FAR, 0, one) for one in far.required_during_scheduling_ignored_during_execution]
    for sign, kind in ((1, near), (-1, far)):
        weighted = kind.preferred_during_scheduling_ignored_during_execution
        wanted += [(Role.PREFER, sign * one.weight, one.pod_affinity_term) for one in weighted]
    for role, weight, one in wanted:
        try:
            made[role].append(_term(shape, role, weight, one))
        except SelectorError as problem:
            broken = str(problem)
    return Terms(tuple(made[Role.NEAR]), tuple(made[Role.FAR]), tuple(made[Role.PREFER]), broken)


def _term(shape: Shape, role: Role, weight: int, one: PodAffinityTerm) -> Term:
    by_labels, selector = one.namespace_selector, _with_keys(one, shape)
    namespaces = frozenset(one.namespaces)
    if not namespaces and by_labels is None:
        namespaces = frozenset((shape.namespace,))
    for given in (by_labels, selector):
        if given is not None:
            given.matches({})
    key = (
        namespaces,
        wire.encode(by_labels) if by_labels is not None else None,
        wire.encode(selector) if selector is not None else None,
    )
    return Term(role, one.topology_key, weight, key, namespaces, by_labels, selector)


def _with_keys(one: PodAffinityTerm, shape: Shape) -> LabelSelector | None:
    """The term's selector, with the owner's own values of the keys that must be the same, or must differ."""
    selector = one.label_selector
    if selector is None:
        return None
    more = [
        LabelSelectorRequirement(key=key, operator=operator, values=[shape.labels[key]])
        for operator, keys in (("In", one.match_label_keys), ("NotIn", one.mismatch_label_keys))
        for key in keys
        if key in shape.labels
    ]
    if not more:
        return selector
    return LabelSelector(match_labels=selector.match_labels, match_expressions=[*selector.match_expressions, *more])
