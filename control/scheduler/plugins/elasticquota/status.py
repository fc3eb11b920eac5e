"""The status of ElasticQuotas: `status.used` and seven annotations (spec 06 §5.11). The decision is pure.

The manager adds to `child-request` when it admits a pod, before the scheduler sees that pod
(EnableQuotaAdmission). So the annotation is lowered with a delay (`ChildRequests`), and every write is conditional on
the version that was read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from control.quota.amounts import Amounts, add_to, differs, to_list
from control.quota.figures import QuotaFigures
from control.quota.tree import QuotaTree
from koordlet.api.annotations import quota as annotation
from koordlet.api.annotations._base import Annotation
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError, to_builtins

LOWERING_DELAY_S: Final = 5.0
"""Longer than an admitted pod needs to become known to the scheduler."""


@dataclass(frozen=True)
class QuotaOutput:
    """What the status of one quota states."""

    used: Amounts
    runtime: Amounts
    request: Amounts
    child_request: Amounts
    guaranteed: Amounts
    allocated: Amounts
    np_request: Amounts
    np_used: Amounts

    @classmethod
    def of(cls, tree: QuotaTree, quota: QuotaFigures) -> QuotaOutput:
        return cls(
            dict(quota.used),
            tree.runtimes(quota),
            dict(quota.request),
            dict(quota.child_request),
            dict(quota.guaranteed) if tree.rules.guarantee else {},
            dict(quota.allocated) if tree.rules.guarantee else {},
            dict(quota.np_request),
            dict(quota.np_used),
        )

    def with_child_request(self, amounts: Amounts) -> QuotaOutput:
        return replace(self, child_request=amounts)

    def annotations(self) -> list[tuple[Annotation[dict[str, Quantity]], Amounts]]:
        return [
            (annotation.RUNTIME, self.runtime),
            (annotation.REQUEST, self.request),
            (annotation.CHILD_REQUEST, self.child_request),
            (annotation.GUARANTEED, self.guaranteed),
            (annotation.ALLOCATED, self.allocated),
            (annotation.NON_PREEMPTIBLE_REQUEST, self.np_request),
            (annotation.NON_PREEMPTIBLE_USED, self.np_used),
        ]


def patch(
    quota: ElasticQuota, output: QuotaOutput, further: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """A merge patch of what differs, conditional on the version that was read; {} if nothing does. A broken annotation
    is overwritten. `further`: annotations that hooks want."""
    annotations = {key: text for key, text in further.items() if quota.metadata.annotations.get(key) != text}
    for stored, amounts in output.annotations():
        try:
            present = stored.get(quota.metadata.annotations)
        except WireError:
            present = None
            if stored.key in quota.metadata.annotations:
                annotations[stored.key] = stored.text(to_list(amounts))
                continue
        if differs(amounts, present or {}):
            annotations[stored.key] = stored.text(to_list(amounts))
    body: dict[str, Any] = {}
    if annotations:
        body["metadata"] = {"annotations": annotations}
    if differs(output.used, quota.status.used):
        gone: dict[str, Any] = {name: None for name in quota.status.used if name not in output.used}
        body["status"] = {"used": {**gone, **to_builtins(to_list(output.used))}}
    if body:
        body.setdefault("metadata", {})["resourceVersion"] = quota.metadata.resource_version
    return body


class ChildRequests:
    """What `child-request` of each quota should state. Asked once per period with what it states now.

    An admitted pod that is not known here yet has raised the annotation within the last `LOWERING_DELAY_S`. So the
    annotation may exceed what is counted by as much as it rose in that time; a further excess belongs to pods that are
    gone. While pods are admitted all the time, the annotation is too high by what was admitted in that time at most."""

    def __init__(self) -> None:
        self._known: dict[str, Amounts] = {}
        self._rises: dict[str, deque[tuple[float, Amounts]]] = {}

    def desired(self, name: str, counted: Amounts, present: Mapping[str, int], now: float) -> Amounts:
        """`present`: the annotation; `now`: monotonic seconds."""
        known, rises = self._known.get(name, counted), self._rises.setdefault(name, deque())
        rise = {key: amount - known.get(key, 0) for key, amount in present.items() if amount > known.get(key, 0)}
        if rise:
            rises.append((now, rise))
        self._known[name] = dict(present)
        while rises and now - rises[0][0] >= LOWERING_DELAY_S:
            rises.popleft()
        allowed: Amounts = dict(counted)
        for _, rise in rises:
            add_to(allowed, rise)
        return {
            key: max(counted.get(key, 0), min(present.get(key, 0), allowed.get(key, 0))) for key in {*counted, *present}
        }

    def written(self, name: str, amounts: Amounts) -> None:
        """The annotation states these amounts now."""
        self._known[name] = dict(amounts)

    def settled(self, name: str) -> bool:
        """Whether time alone changes nothing: no rise is being waited for."""
        return not self._rises.get(name)

    def keep(self, quotas: Collection[str]) -> None:
        """Forget other quotas."""
        self._known = {name: known for name, known in self._known.items() if name in quotas}
        self._rises = {name: rises for name, rises in self._rises.items() if name in quotas}
