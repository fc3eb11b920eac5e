"""DynamicResources: devices of resource claims (resource.k8s.io/v1, structured parameters).

Filter searches the devices of a node for all unallocated claims of the pod together; an allocated claim restricts the
pod to the nodes of its devices. Reserve takes the devices in this process, PreBind writes allocation and consumer into
the claims. As with volumes, written data stays when a later step fails, and the pod returns to its devices; if it does
not fit there any more, PostFilter frees them.

Not supported, with a reason in the pod's condition: adminAccess, devices that are allocated in parts (counters,
consumable capacity), binding conditions, and looping macros in CEL selectors. Extended resources of device classes are
not mapped to claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import (
    CycleState,
    EventInterest,
    Plugin,
    PostFilterResult,
    PreFilterResult,
    Reads,
)
from control.scheduler.framework.status import SUCCESS, Code, PluginStatus, error, unresolvable, unschedulable
from control.scheduler.plugins.dynamicresources.allocator import (
    ClaimRequests,
    NotAllocatable,
    SearchBudget,
    allocate,
    prepared,
    result,
    selector_texts,
)
from control.scheduler.plugins.dynamicresources.claimstore import ClaimStore
from control.scheduler.plugins.dynamicresources.claimwriter import bind_claim, deallocate
from control.scheduler.plugins.dynamicresources.podclaims import ClaimProblem, claim_names, claims_of
from control.scheduler.plugins.dynamicresources.pools import ClaimableDevice
from control.scheduler.plugins.nodeselection import RequiredNodes
from control.scheduler.plugins.results import PASS_ALL, SKIP_FILTER
from control.scheduler.state.columns import Reasons16, Rows
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import selected
from koordlet.api.core import Pod
from koordlet.api.core.claims import AllocationResult, ResourceClaim
from koordlet.api.encoding import wire
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks
from koordlet.kube import Client, KubeError, NotFound

log = get_logger(__name__)

NO_CLAIMS: Final = "no new claims to deallocate"
RELEASED: Final = "deallocation of ResourceClaim completed"
STILL: Final = "still not schedulable"
UNAVAILABLE: Final = "resourceclaim not available on the node"
CANNOT: Final = "cannot allocate all claims"
MAX_SELECTOR_CHARS: Final = 16 << 10
"""Of the different CEL selectors in a pod's claims: their compilation takes up to 0.3 seconds."""
MAX_KEPT_RESULTS: Final = 64
"""Different claims whose results by node are kept."""
VERIFY_PERIOD_S: Final = 2.0
_KEY: Final = "DynamicResources"


@dataclass
class _PodClaims:
    """The claims of a pod in one cycle."""

    allocated: list[ResourceClaim]
    unallocated: list[ClaimRequests]
    unavailable: set[str] = field(default_factory=set)
    """uids of allocated claims whose devices a node cannot use."""
    plan: list[tuple[ResourceClaim, AllocationResult]] = field(default_factory=list)
    """What Reserve decided."""


@dataclass
class _NodeResults:
    """Filter results by node name. `position` in the changes of the epoch."""

    epoch: int
    position: int = 0
    by_node: dict[str, int] = field(default_factory=dict)


class DynamicResources(Plugin):
    """See the module text."""

    name: ClassVar[str] = "DynamicResources"
    reads: ClassVar[Reads] = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._store = ClaimStore.of(handle)
        self._unavailable = self.reasons.number(Code.UNRESOLVABLE, UNAVAILABLE)
        self._results: dict[tuple[bytes, ...], _NodeResults] = {}
        """By the content of the claims, least recently used first."""
        self._tasks: set[asyncio.Task[None]] = set()

    def interests(self) -> Sequence[EventInterest]:
        changed = frozenset(("Add", "Update"))
        return (
            EventInterest("ResourceClaim", hint=self._claim_hint),
            EventInterest("ResourceSlice", changed),
            EventInterest("DeviceClass", changed),
            EventInterest("Node", frozenset(("Add", "Label", "Allocatable"))),
            EventInterest("UnscheduledPod", frozenset(("GeneratedClaim",))),
            EventInterest("AssignedPod", frozenset(("Delete",)), self._released_hint),
        )

    def _released_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """Whether a pod with claims lost its node: what it took was perhaps never written."""
        return bool(old.pod.spec.resource_claims)

    def _claim_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """Whether one of the pod's claims changed, or a claim released devices."""
        if _devices_held(old) and not _devices_held(new):
            return True
        try:
            names = set(claim_names(pod.pod))
        except ClaimProblem:
            return False
        changed = new if isinstance(new, ResourceClaim) else old
        return changed.metadata.namespace == pod.pod.metadata.namespace and changed.metadata.name in names

    async def stop(self) -> None:
        await end_tasks(*self._tasks)

    # Cycle

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        if not pod.pod.spec.resource_claims:
            reason = self._unserved_resource(pod)
            return PreFilterResult(unresolvable(reason)) if reason else SKIP_FILTER
        try:
            claims = claims_of(pod, self._store.claim)
            state.data[_KEY] = self._prepared(claims)
        except (ClaimProblem, NotAllocatable) as problem:
            return PreFilterResult(unresolvable(str(problem)))
        return PASS_ALL if claims else SKIP_FILTER

    def _unserved_resource(self, pod: PodInfo) -> str:
        """Why an extended resource that stands for devices of a class is on no node: it gets no claim here."""
        classes = self._store.extended_resources()
        for name in pod.requests if classes else ():
            column = self.table.resources.get(name)
            if name in classes and (column is None or not self.table.allocatable[column].any()):
                return (
                    f'extended resource "{name}" of DeviceClass "{classes[name]}" is not supported: use a ResourceClaim'
                )
        return ""

    def _prepared(self, claims: Sequence[ResourceClaim]) -> _PodClaims:
        """Raises ClaimProblem and NotAllocatable."""
        allocated = [claim for claim in claims if claim.status.allocation is not None]
        unallocated, texts = [], set[str]()
        for claim in claims:
            if claim.status.allocation is not None:
                continue
            texts |= selector_texts(claim)
            if sum(map(len, texts)) > MAX_SELECTOR_CHARS:
                raise NotAllocatable(f"CEL selectors of more than {MAX_SELECTOR_CHARS} characters are not evaluated")
            name = claim.metadata.name
            if self._store.allocating(claim):
                raise ClaimProblem(f'resourceclaim "{name}" is in the process of being allocated')
            requests = claim.spec.devices.requests
            exact = [
                request for each in requests for request in (each.exactly, *each.first_available) if request is not None
            ]
            names = {each.device_class_name for each in exact}
            try:
                unallocated.append(prepared(claim, self._store.classes(names)))
            except NotAllocatable as problem:
                raise NotAllocatable(f'resourceclaim "{name}": {problem}') from problem
        return _PodClaims(allocated, unallocated)

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        claims: _PodClaims = state.data[_KEY]
        chosen = selected(rows, self.table.size)
        reasons: Reasons16 = np.zeros(len(chosen), np.int16)
        for claim in claims.allocated:
            where = claim.status.allocation.node_selector if claim.status.allocation is not None else None
            if where is not None:
                wrong = ~RequiredNodes.selected_by(where).select(self.table, chosen)
                if wrong.any():
                    claims.unavailable.add(claim.metadata.uid)
                reasons[wrong] = self._unavailable
        if claims.unallocated:
            self._search(claims, chosen.tolist(), reasons)
        return reasons

    def _search(self, claims: _PodClaims, rows: list[int], reasons: Reasons16) -> None:
        pools, names, valid = self._store.pools(), self.table.names, self.table.valid
        known = self._known(claims) if not pools.shared else {}
        budget = SearchBudget()
        for position, row in enumerate(rows):
            if reasons[position] or not valid[row]:
                continue
            result = known.get(names[row])
            if result is None:
                result = self._result(claims, pools.on(self.table.node(row)), budget)
                if budget.steps > 0:  # otherwise the node is searched again in the next cycle
                    known[names[row]] = result
            reasons[position] = result

    def _known(self, claims: _PodClaims) -> dict[str, int]:
        """Results by node for claims with the same content: those that are still true."""
        key = tuple(wire.encode(each.claim.spec.devices) for each in claims.unallocated)
        changes, results = self._store.changes, self._results.pop(key, None)
        if results is None or results.epoch != changes.epoch:
            results = _NodeResults(changes.epoch)
        for name in changes.since(results.position):
            results.by_node.pop(name, None)
        results.position = changes.end
        self._results[key] = results
        if len(self._results) > MAX_KEPT_RESULTS:
            del self._results[next(iter(self._results))]
        return results.by_node

    def _result(self, claims: _PodClaims, devices: Sequence[ClaimableDevice], budget: SearchBudget) -> int:
        try:
            allocate(claims.unallocated, devices, self._store.taken, budget)
        except NotAllocatable as problem:
            detail = str(problem)
            return self.reasons.number(Code.UNRESOLVABLE, f"{CANNOT}: {detail}" if detail else CANNOT)
        return 0

    def post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> PostFilterResult:
        """The words of kube-scheduler's plugin; they are part of failure messages."""
        claims: _PodClaims | None = state.data.get(_KEY)
        if claims is None:
            return PostFilterResult(unschedulable(*(() if pod.pod.spec.resource_claims else (NO_CLAIMS,))))
        return PostFilterResult(unschedulable(RELEASED if self._movable(claims, pod) else STILL))

    def after_post_filter(
        self, state: CycleState, pod: PodInfo, failure: FitError, result: PostFilterResult | None
    ) -> None:
        """Free the devices of a claim that holds the pod on nodes where it does not fit. Koordinator's profile disables
        the PostFilter plugins that it does not name, therefore not there."""
        claims: _PodClaims | None = state.data.get(_KEY)
        if claims is None or state.trial or (result is not None and result.status.ok):
            return
        claim = self._movable(claims, pod)
        if claim is not None:
            self._in_background(self._release(claim), "deallocate")

    @staticmethod
    def _movable(claims: _PodClaims, pod: PodInfo) -> ResourceClaim | None:
        """A claim that some nodes cannot use and that no other pod uses."""
        for claim in claims.allocated:
            consumers = [each for each in claim.status.reserved_for if each.uid != pod.uid]
            if claim.metadata.uid in claims.unavailable and not consumers:
                return claim
        return None

    async def _release(self, claim: ResourceClaim) -> None:
        client = self.handle.client
        if client is None:
            return
        try:
            await deallocate(client, claim)
            log.info("Deallocated a ResourceClaim of an unschedulable pod", claim=claim.metadata.key)
        except KubeError as failure:
            log.warning("Cannot deallocate a ResourceClaim", claim=claim.metadata.key, err=failure)

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Binding

    def reserve(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        claims: _PodClaims | None = state.data.get(_KEY)
        if claims is None or not claims.unallocated:
            return SUCCESS
        devices = self._store.pools().on(self.table.node(row))
        try:
            picked = allocate(claims.unallocated, devices, self._store.taken)
        except NotAllocatable as problem:
            return unschedulable(CANNOT, *([str(problem)] if str(problem) else []))
        claims.plan = [
            (requests.claim, result(requests, chosen))
            for requests, chosen in zip(claims.unallocated, picked, strict=True)
        ]
        for claim, allocation in claims.plan:
            self._store.assume(claim, allocation)
        return SUCCESS

    def unreserve(self, state: CycleState, pod: PodInfo, row: int) -> None:
        """Drop what was not written."""
        claims: _PodClaims | None = state.data.get(_KEY)
        if claims is not None:
            for claim, _ in claims.plan:
                self._store.forget(claim)
            claims.plan = []

    async def pre_bind(self, state: CycleState, pod: PodInfo, row: int, changed: Pod) -> PluginStatus:
        claims: _PodClaims | None = state.data.get(_KEY)
        if claims is None:
            return SUCCESS
        client = self.handle.client
        if client is None:
            return error("no API server to write claims to")
        try:
            for claim in claims.allocated:
                await bind_claim(client, claim, pod, None)
            while claims.plan:
                claim, allocation = claims.plan.pop(0)
                await self._allocate(client, claim, pod, allocation)
        except KubeError as failure:
            return error(f"writing resource claims: {failure}")
        return SUCCESS

    async def _allocate(self, client: Client, claim: ResourceClaim, pod: PodInfo, allocation: AllocationResult) -> None:
        """Raises KubeError. The devices stay taken until it is certain that the allocation was not written."""
        try:
            await bind_claim(client, claim, pod, allocation)
        except BaseException:
            self._in_background(self._verify(client, claim), "verify-claim")
            raise

    async def _verify(self, client: Client, claim: ResourceClaim) -> None:
        """After a failed write, which may have been executed: forget the allocation if the API server has none. If it
        has it, the cache will show it."""
        while True:
            try:
                current = await client.get(ResourceClaim, claim.metadata.name, claim.metadata.namespace)
            except NotFound:
                break
            except KubeError as failure:
                log.warning("Cannot verify the allocation of a claim", claim=claim.metadata.key, err=failure)
                await self.handle.clock.sleep(VERIFY_PERIOD_S)
                continue
            if current.metadata.uid == claim.metadata.uid and current.status.allocation is not None:
                return
            break
        self._store.forget(claim)


def _devices_held(claim: Any) -> bool:
    return isinstance(claim, ResourceClaim) and claim.status.allocation is not None
