"""InterPodAffinity at the scheduler's extension points.

Forwards, the pods that a new pod's terms mean are counted by `PodCounters` and summed by `DomainSums`. Backwards, the
terms of existing pods that mean the new pod come from `Owners`. Both give numbers by domain, and rows are looked up in
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from control.scheduler.config.args import InterPodAffinityArgs
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import MAX_SCORE, CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import SKIP, SUCCESS, Code, PluginStatus, error
from control.scheduler.plugins import answers
from control.scheduler.plugins.domains import Domains, DomainSums, by_row
from control.scheduler.plugins.interpodaffinity.owners import OwnedTerm, Owners
from control.scheduler.plugins.interpodaffinity.terms import Role, Term, Terms, terms_of
from control.scheduler.plugins.recent import RecentShapes
from control.scheduler.state.columns import IntArray, Reasons16, RowArray, Rows, count
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api.core import Namespace, Pod

T = TypeVar("T", bound=np.generic)
_NEAR: Final = "node(s) didn't match pod affinity rules"
_FAR: Final = "node(s) didn't match pod anti-affinity rules"
_EXISTING: Final = "node(s) didn't satisfy existing pods anti-affinity rules"
_NOTHING: Final[Mapping[str, str]] = {}


@dataclass(slots=True)
class _Compiled:
    """The sums that a shape's own terms need. `near`: of pods that all its required terms mean, by each topology."""

    generation: int
    terms: Terms
    near: tuple[DomainSums, ...] = ()
    first: bool = False
    """Pods of the shape are meant by all its required terms, so the first may go anywhere."""
    far: tuple[DomainSums, ...] = ()
    preferred: tuple[tuple[int, DomainSums], ...] = ()


class InterPodAffinity(Plugin):
    name = "InterPodAffinity"
    reads = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        given: InterPodAffinityArgs = args or InterPodAffinityArgs()
        self._hard_weight = given.hard_pod_affinity_weight
        self._ignore_existing = given.ignore_preferred_terms_of_existing_pods
        self._memo = answers.memo_key(self.name, handle)
        self._recent = RecentShapes(self._memo)
        # The larger number is told where several hold: own affinity first, those of others last.
        self._existing = self.reasons.number(Code.UNSCHEDULABLE, _EXISTING)
        self._far = self.reasons.number(Code.UNSCHEDULABLE, _FAR)
        self._near = self.reasons.number(Code.UNRESOLVABLE, _NEAR)
        self._domains = Domains(self.table)
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._by_namespace = False
        """Some pods are counted by the labels of their namespaces."""
        self._generation = 0
        """Changes with the labels of namespaces."""
        self._owners = Owners(self.table, self._memo)
        if handle.objects is not None:
            handle.objects.informer(Namespace).add_handler(
                on_add=lambda new: self._namespace(new, new.metadata.labels),
                on_update=lambda _, new: self._namespace(new, new.metadata.labels),
                on_delete=lambda old: self._namespace(old, _NOTHING),
            )

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("AssignedPod", frozenset(("Add", "Label", "Delete")), self._pod_hint),
            EventInterest("UnscheduledPod", frozenset(("Label",)), self._pod_hint),
            EventInterest("Node", frozenset(("Add", "Label")), self._node_hint),
        )

    # Filter

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        compiled = self._compiled(pod.shape)
        if compiled.terms.broken:
            return PreFilterResult(error(compiled.terms.broken))
        if compiled.near or compiled.far or self._against(pod.shape):
            return answers.PASS_ALL
        return answers.SKIP_FILTER

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        compiled = self._compiled(pod.shape)
        tables: dict[str, Reasons16] = {}
        for owned in self._against(pod.shape):
            _refuse(tables, owned.term.topology, owned.by_domain(), self._existing)
        for term, sums in zip(compiled.terms.far, compiled.far, strict=True):
            _refuse(tables, term.topology, sums.sync(), self._far)
        found: Reasons16 | None = None
        for topology, refused in tables.items():
            answer = by_row(refused, self._domains.of(topology), rows)
            found = answer if found is None else np.maximum(found, answer)
        if found is None:
            found = np.zeros(count(rows, self.table.size), np.int16)
        if compiled.near:
            found[~self._is_near(compiled, rows)] = self._near
        return found

    def _is_near(self, compiled: _Compiled, rows: Rows) -> NDArray[np.bool_]:
        """[len(rows)]: all topologies of the required terms have a pod that all of them mean, or none needs to."""
        near: NDArray[np.bool_] | None = None
        labelled: NDArray[np.bool_] | None = None
        anywhere = False
        for one in compiled.near:
            there = one.sync() > 0
            anywhere = anywhere or bool(there.any())
            ids = one.ids.sync()[rows]
            near = there.take(ids) if near is None else near & there.take(ids)
            labelled = ids != 0 if labelled is None else labelled & (ids != 0)
        assert near is not None
        assert labelled is not None
        return labelled if compiled.first and not anywhere else near

    # Score

    def pre_score(self, state: CycleState, pod: PodInfo, rows: RowArray) -> PluginStatus:
        compiled = self._compiled(pod.shape)
        if compiled.terms.broken:
            return error(compiled.terms.broken)
        if self._ignore_existing and not compiled.preferred:
            return SKIP
        tables: dict[str, IntArray] = {}
        for (weight, domains), term in zip(compiled.preferred, compiled.terms.preferred, strict=True):
            sums = domains.sync()
            if sums.any():
                _credit(tables, term.topology, sums, weight)
        self._owners.sync()
        for owned in self._meaning(pod.shape):
            weight = self._hard_weight if owned.term.role is Role.NEAR else owned.term.weight
            if owned.placed and weight and owned.term.role is not Role.FAR:
                _credit(tables, owned.term.topology, owned.by_domain(), weight)
        if not tables:
            return SKIP
        state.data[self.name] = tables
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        """Sum of the weights that the domains of a row have."""
        total: IntArray | None = None
        tables: dict[str, IntArray] = state.data[self.name]
        for topology, credit in tables.items():
            part = by_row(credit, self._domains.of(topology), rows)
            total = part if total is None else total + part
        return answers.nothing(rows, self.table.size) if total is None else total

    def normalize(self, state: CycleState, pod: PodInfo, rows: RowArray, scores: IntArray) -> IntArray:
        if not len(scores):
            return scores
        lowest, highest = int(scores.min()), int(scores.max())
        if highest == lowest:
            return np.zeros(len(scores), np.int64)
        scaled: IntArray = (MAX_SCORE * ((scores - lowest) / float(highest - lowest))).astype(np.int64)
        return scaled

    # The shape

    def _compiled(self, shape: Shape) -> _Compiled:
        found: _Compiled | None = shape.memo.get(self._memo)
        if found is None or found.generation != self._generation:
            found = shape.memo[self._memo] = self._compile(shape)
        if found.near or found.far or found.preferred:
            self._recent.used(shape)
        return found

    def _compile(self, shape: Shape) -> _Compiled:
        terms = terms_of(shape)
        return _Compiled(
            self._generation,
            terms,
            tuple(self._sums(terms.near, term.topology) for term in terms.near),
            all(term.means(shape, self._labels_of) for term in terms.near),
            tuple(self._sums((term,), term.topology) for term in terms.far),
            tuple((term.weight, self._sums((term,), term.topology)) for term in terms.preferred),
        )

    def _sums(self, terms: Sequence[Term], topology: str) -> DomainSums:
        """Of the pods that all of `terms` mean."""
        labels_of = self._labels_of
        self._by_namespace |= any(term.namespace_selector is not None for term in terms)
        counter = self.handle.counters.counter(
            ("affinity", frozenset(term.key for term in terms)),
            lambda shape: int(all(term.means(shape, labels_of) for term in terms)),
        )
        return DomainSums(self.table, counter, self._domains.of(topology))

    def _meaning(self, shape: Shape) -> list[OwnedTerm]:
        return self._owners.meaning(shape, self._labels_of, self._generation)

    def _against(self, shape: Shape) -> list[OwnedTerm]:
        """Required anti-affinity of existing pods that means pods of the shape."""
        self._owners.sync()
        return [one for one in self._meaning(shape) if one.placed and one.term.role is Role.FAR]

    def _labels_of(self, namespace: str) -> Mapping[str, str]:
        return self._namespaces.get(namespace, _NOTHING)

    def _namespace(self, namespace: Namespace, labels: Mapping[str, str]) -> None:
        name = namespace.metadata.name
        if self._labels_of(name) != labels:
            self._namespaces[name] = labels
            self._generation += 1
            if self._by_namespace:
                self.handle.counters.rebuild()

    # What may help

    def _pod_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """A pod came that the waiting pod wants near, or went that stood against it, or changed sides."""
        before, after = answers.as_pod(old), answers.as_pod(new)
        one = after or before
        if one is None or one.metadata.uid == pod.uid:
            return True
        terms = terms_of(pod.shape)

        def meant(changed: Pod | None, wanted: Sequence[Term]) -> list[bool]:
            if changed is None:
                return [False] * len(wanted)
            shape = self.handle.shapes.shape(changed)
            return [term.means(shape, self._labels_of) for term in wanted]

        if terms.near and all(meant(after, terms.near)) and not all(meant(before, terms.near)):
            return True
        if before is None:
            return False
        if any(was and not still for was, still in zip(meant(before, terms.far), meant(after, terms.far), strict=True)):
            return True
        owned = terms_of(self.handle.shapes.shape(before)).far
        return after is None and any(term.means(pod.shape, self._labels_of) for term in owned)

    def _node_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """The node has the labels that required affinity names, and is new or in another domain."""
        node, before = answers.as_node(new), answers.as_node(old)
        if node is None:
            return True
        terms = terms_of(pod.shape)
        labels = node.metadata.labels
        if any(term.topology not in labels for term in terms.near):
            return False
        if before is None:
            return True
        keys = {term.topology for term in (*terms.near, *terms.far)}
        keys |= {one.term.topology for one in self._against(pod.shape)}
        return any(labels.get(key) != before.metadata.labels.get(key) for key in keys)


def _refuse(tables: dict[str, Reasons16], topology: str, sums: IntArray, reason: int) -> None:
    """Refuse the domains that have any of the pods in question."""
    refused = (sums > 0).astype(np.int16)
    refused *= reason
    refused[0] = 0
    tables[topology] = _joined(np.maximum, refused, tables.get(topology))


def _credit(tables: dict[str, IntArray], topology: str, sums: IntArray, weight: int) -> None:
    """Add `weight` for each of the pods in question to their domains."""
    credit = sums * weight
    credit[0] = 0
    tables[topology] = _joined(np.add, credit, tables.get(topology))


def _joined(join: np.ufunc, one: NDArray[T], other: NDArray[T] | None) -> NDArray[T]:
    """Both by domain, where one may know more domains than the other."""
    if other is None:
        return one
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    join(longer[: len(shorter)], shorter, out=longer[: len(shorter)])
    return longer
