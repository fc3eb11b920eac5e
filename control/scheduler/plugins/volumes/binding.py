"""VolumeBinding: bound claims restrict a pod to the nodes of their volumes; other claims are bound for the chosen node.

Reserve records the decision (`claims.Assumed`). PreBind writes it (a volume's `claimRef`, or the selected node of the
claim for its provisioner) and waits until every claim is bound, at most `bindTimeoutSeconds`. Unreserve drops the
record. As in kube-scheduler, written data stays: the claim keeps its volume, and the pod returns to it (spec 05 §4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import SUCCESS, Code, PluginStatus, error, unresolvable
from control.scheduler.plugins.nodeselection import RequiredNodes
from control.scheduler.plugins.results import PASS_ALL, SKIP_FILTER
from control.scheduler.plugins.volumes import matching
from control.scheduler.plugins.volumes.claims import (
    BOUND_BY_CONTROLLER,
    SELECTED_NODE,
    Storage,
    claims_of,
    is_bound,
    named_claims,
    not_found,
    reference_of,
)
from control.scheduler.plugins.volumes.matching import PodClaims, VolumePlan
from control.scheduler.plugins.volumes.progress import binding_progress
from control.scheduler.state.columns import Reasons16, RowArray, Rows
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import selected
from koordlet.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from koordlet.kube import KubeError

_KEY: Final = "VolumeBinding"
_PLAN: Final = "VolumeBinding/plan"
POLL_PERIOD_S: Final = 0.1
_ORDER: Final = (matching.NODE_CONFLICT, matching.BIND_CONFLICT, matching.NO_SPACE, matching.GONE)


class VolumeBinding(Plugin):
    """See the module text."""

    name: ClassVar[str] = "VolumeBinding"
    reads: ClassVar[Reads] = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._storage = Storage(handle)
        self._timeout = float(getattr(args, "bind_timeout_seconds", 600))
        self._conflict = self.reasons.number(Code.UNRESOLVABLE, matching.NODE_CONFLICT)
        self._gone = self.reasons.number(Code.UNRESOLVABLE, matching.GONE)

    def interests(self) -> Sequence[EventInterest]:
        changed = frozenset(("Add", "Update"))
        return (
            EventInterest("StorageClass", changed),
            EventInterest("PersistentVolumeClaim", changed, _own_claim),
            EventInterest("PersistentVolume", changed),
            EventInterest("Node", frozenset(("Add", "Label"))),
            EventInterest("CSINode", changed),
            EventInterest("CSIDriver", frozenset(("Update",))),
            EventInterest("CSIStorageCapacity", changed),
        )

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        keys = claims_of(pod)
        if not keys:
            return SKIP_FILTER
        claims_used: list[PersistentVolumeClaim] = []
        for key in keys:
            claim = self._storage.claim(key)
            problem = _problem(pod, key, claim)
            if problem or claim is None:
                return _refused(problem)
            claims_used.append(claim)
        bound: list[PersistentVolumeClaim] = []
        delayed: list[PersistentVolumeClaim] = []
        for claim in claims_used:
            if is_bound(claim):
                bound.append(claim)
            elif self._storage.waits_for_consumer(claim) and not claim.spec.volume_name:
                delayed.append(claim)
            else:
                return _refused("pod has unbound immediate PersistentVolumeClaims")
        state.data[_KEY] = PodClaims(tuple(bound), tuple(delayed), matching.candidate_volumes(self._storage, delayed))
        return PASS_ALL

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        claims: PodClaims = state.data[_KEY]
        chosen = selected(rows, self.table.size)
        reasons: Reasons16 = np.zeros(len(chosen), np.int16)
        gone = np.zeros(len(chosen), np.bool_)
        conflict = np.zeros(len(chosen), np.bool_)
        for claim in claims.bound:  # the first claim that prevents the placement determines the reason
            volume = self._storage.volume(claim.spec.volume_name)
            if volume is None:
                gone = ~conflict
                break
            affinity = volume.spec.node_affinity
            if affinity is not None and affinity.required is not None:
                conflict |= ~RequiredNodes.selected_by(affinity.required).select(self.table, chosen)
        reasons[conflict] = self._conflict
        reasons[gone] = self._gone
        if claims.delayed:
            self._match(claims, chosen, reasons)
        return reasons

    def _match(self, claims: PodClaims, rows: RowArray, reasons: Reasons16) -> None:
        """Match the delayed claims for one node of each kind: nodes with equal relevant labels have equal results."""
        alive = np.flatnonzero(self.table.valid[rows])
        if not len(alive):
            return
        keys = matching.deciding_labels(self._storage, claims)
        first, kinds = self._kinds(rows[alive], keys)
        plans = [matching.plan(self._storage, claims, self.table.node(row)) for row in first.tolist()]
        texts = sorted({plan for plan in plans if isinstance(plan, str)})
        which = np.array([texts.index(plan) if isinstance(plan, str) else -1 for plan in plans], np.int16)[kinds]
        for number, text in enumerate(texts):
            these = alive[which == number]
            for before in np.unique(reasons[these]).tolist():
                reasons[these[reasons[these] == before]] = self._with(before, text)

    def _with(self, number: int, text: str) -> int:
        """The number of a reason for bound claims combined with one for delayed claims, in kube-scheduler's order."""
        texts = (*self.reasons.status(number).reasons, text)
        return self.reasons.number(Code.UNRESOLVABLE, *sorted(texts, key=_ORDER.index))

    def _kinds(self, rows: RowArray, keys: frozenset[str] | None) -> tuple[RowArray, RowArray]:
        """(one row of each kind, the kind of each row). `keys`: labels that define a kind; None: every row is its own
        kind."""
        if keys is None:
            return rows, np.arange(len(rows))
        kinds = np.zeros(len(rows), np.intp)
        for key in sorted(keys):
            column = self.table.labels.column(key)
            _, kinds = np.unique(kinds * len(column.values) + column.ids.data[rows], return_inverse=True)
        _, first, kinds = np.unique(kinds, return_index=True, return_inverse=True)
        return rows[first], kinds

    def reserve(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        claims: PodClaims | None = state.data.get(_KEY)
        if claims is None or not claims.delayed:
            return SUCCESS
        plan = matching.plan(self._storage, claims, self.table.node(row))
        if isinstance(plan, str):
            return unresolvable(plan)
        state.data[_PLAN] = plan
        self._storage.assumed.hold(plan.matched, plan.provisioned, self.table.names[row])
        return SUCCESS

    def unreserve(self, state: CycleState, pod: PodInfo, row: int) -> None:
        self._settle(state)

    async def pre_bind(self, state: CycleState, pod: PodInfo, row: int, changed: Pod) -> PluginStatus:
        plan: VolumePlan | None = state.data.get(_PLAN)
        if plan is None:
            return SUCCESS
        client = self.handle.client
        if client is None:
            return error("no API server to bind volumes at")
        node = self.table.names[row]
        written: dict[str, str] = {}
        try:
            for key, name in plan.matched:
                written[name] = await self._bind(key, name)
            for key in plan.provisioned:
                namespace, _, name = key.partition("/")
                body = {"metadata": {"annotations": {SELECTED_NODE: node}}}
                claim = await client.patch(PersistentVolumeClaim, name, namespace, body=body)
                written[key] = claim.metadata.resource_version
        except KubeError as failure:
            return error(f"binding volumes: {failure}")
        status = await self._bound(pod, plan, node, written)
        if status.ok:
            self._settle(state)
        return status

    async def _bind(self, key: str, name: str) -> str:
        """The resourceVersion of the volume with its claim."""
        claim, volume, client = self._storage.claim(key), self._storage.volume(name), self.handle.client
        assert client is not None
        if claim is None or volume is None:
            raise KubeError(f"claim {key} or volume {name} is gone")
        if volume.spec.claim_ref is not None and volume.spec.claim_ref.uid == claim.metadata.uid:
            return volume.metadata.resource_version
        body = {
            "metadata": {
                "resourceVersion": volume.metadata.resource_version,  # fails if the volume changed in the meantime
                "annotations": {BOUND_BY_CONTROLLER: "yes"},
            },
            "spec": {"claimRef": reference_of(claim)},
        }
        return (await client.patch(PersistentVolume, name, body=body)).metadata.resource_version

    async def _bound(self, pod: PodInfo, plan: VolumePlan, node: str, written: Mapping[str, str]) -> PluginStatus:
        """Wait until every claim of the plan is bound, or cannot be any more. The pod is assumed on `node`."""
        clock = self.handle.clock
        deadline = clock.monotonic() + self._timeout
        while True:
            row = self.table.row(node)
            bound, problem = binding_progress(
                self._storage, plan, None if row is None else self.table.node(row), written
            )
            if pod.row < 0:
                problem = "the pod was deleted"
            if problem:
                return error(f"binding volumes: {problem}")
            if bound:
                return SUCCESS
            if clock.monotonic() >= deadline:
                keys = ", ".join([key for key, _ in plan.matched] + list(plan.provisioned))
                return error(f"binding volumes: timed out after {self._timeout:g} s waiting for {keys}")
            await clock.sleep(POLL_PERIOD_S)

    def _settle(self, state: CycleState) -> None:
        """Drop the record of the decision: it is written, or given up."""
        plan: VolumePlan | None = state.data.pop(_PLAN, None)
        if plan is not None:
            self._storage.assumed.release(plan.matched, plan.provisioned)


def _problem(pod: PodInfo, key: str, claim: PersistentVolumeClaim | None) -> str:
    """The problem of a claim that prevents scheduling on every node; empty if there is none."""
    name = key.partition("/")[2]
    ephemeral = key not in named_claims(pod)
    if claim is None:
        if ephemeral:
            return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
        return not_found(key)
    if claim.status.phase == "Lost":
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
    if claim.metadata.deletion_timestamp is not None:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if ephemeral and not any(ref.controller and ref.uid == pod.uid for ref in claim.metadata.owner_references):
        return f"PVC {key} was not created for pod {pod.key} (pod is not owner)"
    return ""


def _refused(text: str) -> PreFilterResult:
    return PreFilterResult(unresolvable(text))


def _own_claim(pod: PodInfo, old: Any, new: Any) -> bool:
    """Whether the changed claim belongs to the pod."""
    return not isinstance(new, PersistentVolumeClaim) or new.metadata.key in claims_of(pod)
