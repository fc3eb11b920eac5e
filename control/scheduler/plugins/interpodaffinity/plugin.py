"""InterPodAffinity at the scheduler's extension points.

The pods selected by the terms of an incoming pod are counted by `PodCounters` and summed by `DomainSums`. The terms of
existing pods that select the incoming pod come from `Owners`. Both give numbers by domain, which are then looked up for
the rows.
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
from control.scheduler.plugins import results
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
    """The sums for a shape's own terms. `near`: pods that all required terms select, one sum per topology."""

    generation: int
    terms: Terms
    near: tuple[DomainSums, ...] = ()
    first: bool = False
    """The required terms select pods of the shape itself, so the first pod may be placed anywhere."""
    far: tuple[DomainSums, ...] = ()
    preferred: tuple[tuple[int, DomainSums], ...] = ()


class InterPodAffinity(Plugin):
    name = "InterPodAffinity"
    reads = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        arguments: InterPodAffinityArgs = args or InterPodAffinityArgs()
        self._hard_weight = arguments.hard_pod_affinity_weight
        self._ignore_existing = arguments.ignore_preferred_terms_of_existing_pods
        self._memo = results.memo_key(self.name, handle)
        self._recent = RecentShapes(self._memo)
        # If several reasons apply, the largest number is reported: own affinity before anti-affinity of existing pods.
        self._existing = self.reasons.number(Code.UNSCHEDULABLE, _EXISTING)
        self._far = self.reasons.number(Code.UNSCHEDULABLE, _FAR)
        self._near = self.reasons.number(Code.UNRESOLVABLE, _NEAR)
        self._domains = Domains(self.table)
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._by_namespace = False
        """Whether some counters depend on namespace labels."""
        self._generation = 0
        """Changes with namespace labels."""
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
            return results.PASS_ALL
        return results.SKIP_FILTER

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        compiled = self._compiled(pod.shape)
        tables: dict[str, Reasons16] = {}
        for owned in self._against(pod.shape):
            _refuse(tables, owned.term.topology, owned.by_domain(), self._existing)
        for term, sums in zip(compiled.terms.far, compiled.far, strict=True):
            _refuse(tables, term.topology, sums.sync(), self._far)
        reasons: Reasons16 | None = None
        for topology, refused in tables.items():
            column = by_row(refused, self._domains.of(topology), rows)
            reasons = column if reasons is None else np.maximum(reasons, column)
        if reasons is None:
            reasons = np.zeros(count(rows, self.table.size), np.int16)
        if compiled.near:
            reasons[~self._is_near(compiled, rows)] = self._near
        return reasons

    def _is_near(self, compiled: _Compiled, rows: Rows) -> NDArray[np.bool_]:
        """[len(rows)]: in every topology of the required terms the row's domain has a pod that all terms select, or the
        first pod of the shape may be placed anywhere."""
        near: NDArray[np.bool_] | None = None
        labelled: NDArray[np.bool_] | None = None
        anywhere = False
        for sums in compiled.near:
            present = sums.sync() > 0
            anywhere = anywhere or bool(present.any())
            ids = sums.ids.sync()[rows]
            near = present.take(ids) if near is None else near & present.take(ids)
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
        for owned in self._matching(pod.shape):
            weight = self._hard_weight if owned.term.role is Role.NEAR else owned.term.weight
            if owned.placed and weight and owned.term.role is not Role.FAR:
                _credit(tables, owned.term.topology, owned.by_domain(), weight)
        if not tables:
            return SKIP
        state.data[self.name] = tables
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        """Sum of the weights of the row's domains."""
        total: IntArray | None = None
        tables: dict[str, IntArray] = state.data[self.name]
        for topology, credit in tables.items():
            part = by_row(credit, self._domains.of(topology), rows)
            total = part if total is None else total + part
        return results.zeros(rows, self.table.size) if total is None else total

    def normalize(self, state: CycleState, pod: PodInfo, rows: RowArray, scores: IntArray) -> IntArray:
        if not len(scores):
            return scores
        lowest, highest = int(scores.min()), int(scores.max())
        if highest == lowest:
            return np.zeros(len(scores), np.int64)
        scaled: IntArray = (MAX_SCORE * ((scores - lowest) / float(highest - lowest))).astype(np.int64)
        return scaled

    # Shapes

    def _compiled(self, shape: Shape) -> _Compiled:
        compiled: _Compiled | None = shape.memo.get(self._memo)
        if compiled is None or compiled.generation != self._generation:
            compiled = shape.memo[self._memo] = self._compile(shape)
        if compiled.near or compiled.far or compiled.preferred:
            self._recent.used(shape)
        return compiled

    def _compile(self, shape: Shape) -> _Compiled:
        terms = terms_of(shape)
        return _Compiled(
            self._generation,
            terms,
            tuple(self._sums(terms.near, term.topology) for term in terms.near),
            all(term.selects(shape, self._labels_of) for term in terms.near),
            tuple(self._sums((term,), term.topology) for term in terms.far),
            tuple((term.weight, self._sums((term,), term.topology)) for term in terms.preferred),
        )

    def _sums(self, terms: Sequence[Term], topology: str) -> DomainSums:
        """The pods that all of `terms` select, by domain."""
        labels_of = self._labels_of
        self._by_namespace |= any(term.namespace_selector is not None for term in terms)
        counter = self.handle.counters.counter(
            ("affinity", frozenset(term.key for term in terms)),
            lambda shape: int(all(term.selects(shape, labels_of) for term in terms)),
        )
        return DomainSums(self.table, counter, self._domains.of(topology))

    def _matching(self, shape: Shape) -> list[OwnedTerm]:
        return self._owners.matching(shape, self._labels_of, self._generation)

    def _against(self, shape: Shape) -> list[OwnedTerm]:
        """Required anti-affinity terms of existing pods that select pods of the shape."""
        self._owners.sync()
        return [owned for owned in self._matching(shape) if owned.placed and owned.term.role is Role.FAR]

    def _labels_of(self, namespace: str) -> Mapping[str, str]:
        return self._namespaces.get(namespace, _NOTHING)

    def _namespace(self, namespace: Namespace, labels: Mapping[str, str]) -> None:
        name = namespace.metadata.name
        if self._labels_of(name) != labels:
            self._namespaces[name] = labels
            self._generation += 1
            if self._by_namespace:
                self.handle.counters.rebuild()

    # Queueing hints

    def _pod_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """Whether a pod that the waiting pod requires was added, or one that excludes it was removed, or labels changed
        so."""
        before, after = results.as_pod(old), results.as_pod(new)
        changed_pod = after or before
        if changed_pod is None or changed_pod.metadata.uid == pod.uid:
            return True
        terms = terms_of(pod.shape)

        def selected(changed: Pod | None, required_terms: Sequence[Term]) -> list[bool]:
            if changed is None:
                return [False] * len(required_terms)
            shape = self.handle.shapes.shape(changed)
            return [term.selects(shape, self._labels_of) for term in required_terms]

        if terms.near and all(selected(after, terms.near)) and not all(selected(before, terms.near)):
            return True
        if before is None:
            return False
        if any(
            was and not still
            for was, still in zip(selected(before, terms.far), selected(after, terms.far), strict=True)
        ):
            return True
        owned = terms_of(self.handle.shapes.shape(before)).far
        return after is None and any(term.selects(pod.shape, self._labels_of) for term in owned)

    def _node_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """Whether the node has the topology keys of required affinity, and is new or moved to another domain."""
        node, before = results.as_node(new), results.as_node(old)
        if node is None:
            return True
        terms = terms_of(pod.shape)
        labels = node.metadata.labels
        if any(term.topology not in labels for term in terms.near):
            return False
        if before is None:
            return True
        keys = {term.topology for term in (*terms.near, *terms.far)}
        keys |= {owned.term.topology for owned in self._against(pod.shape)}
        return any(labels.get(key) != before.metadata.labels.get(key) for key in keys)


def _refuse(tables: dict[str, Reasons16], topology: str, sums: IntArray, reason: int) -> None:
    """Reject the domains with a non-zero sum."""
    refused = (sums > 0).astype(np.int16)
    refused *= reason
    refused[0] = 0
    tables[topology] = _joined(np.maximum, refused, tables.get(topology))


def _credit(tables: dict[str, IntArray], topology: str, sums: IntArray, weight: int) -> None:
    """Add `weight` per counted pod to the credit of its domain."""
    credit = sums * weight
    credit[0] = 0
    tables[topology] = _joined(np.add, credit, tables.get(topology))


def _joined(join: np.ufunc, first: NDArray[T], other: NDArray[T] | None) -> NDArray[T]:
    """`join` of two arrays by domain of possibly different lengths."""
    if other is None:
        return first
    longer, shorter = (first, other) if len(first) >= len(other) else (other, first)
    join(longer[: len(shorter)], shorter, out=longer[: len(shorter)])
    return longer
