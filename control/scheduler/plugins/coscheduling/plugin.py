"""Coscheduling, the plugin: where gangs meet the queue and the cycle (spec 05 §9.3 to §9.7).

One pod at a time represents a group of gangs in the queue. When its turn comes a `Turn` begins, and `next_pod` supplies
the other members, so that they follow each other without a gap; each is placed like any pod and waits at Permit until
there are enough. When one fails, a strict group gives everything back, and only the pod that failed reacts to events.

A pod that was rejected at Permit keeps its node until its binding task has taken it back; such pods don't count as
waiting, or a member that comes meanwhile would be bound without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import numpy as np

from control.scheduler.config.args import CoschedulingArgs
from control.scheduler.cycle.nominationloss import JOB_REJECT
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import (
    CycleState,
    Plugin,
    PostFilterResult,
    PreFilterResult,
    Reads,
    default_normalize,
)
from control.scheduler.framework.runtime import Runtime
from control.scheduler.framework.status import SKIP, SUCCESS, PluginStatus, error, unresolvable, unschedulable, wait
from control.scheduler.plugins.coscheduling import decisions, params, summary
from control.scheduler.plugins.coscheduling.cache import GangCache
from control.scheduler.plugins.coscheduling.conditions import MemberConditions
from control.scheduler.plugins.coscheduling.gang import Gang, GangGroup
from control.scheduler.plugins.coscheduling.gathering import Gathering
from control.scheduler.plugins.coscheduling.jobpreemption import Choose, NotHelpful
from control.scheduler.plugins.coscheduling.metrics import GangMetrics, job_size
from control.scheduler.plugins.coscheduling.planning import NoPlan
from control.scheduler.plugins.coscheduling.podgroups import PodGroupController
from control.scheduler.plugins.coscheduling.preempting import GangPreemption
from control.scheduler.plugins.coscheduling.turn import Turn
from control.scheduler.state.columns import IntArray, RowArray, Rows
from control.scheduler.state.pods import PodInfo, Shape
from control.scheduler.state.table import selected
from koordlet.api import names
from koordlet.api.annotations.gang import NetworkTopologySpec
from koordlet.api.core import Pod
from koordlet.api.crs.podgroup import PodGroup
from koordlet.app.logging import get_logger

log = get_logger(__name__)

QUESTIONED: Final = "questionedKey"
"""In the cycle's state: what a failure is reported for."""
POSITIONS: Final = "Coscheduling/positions"
NOT_PLANNED: Final = PreFilterResult(SKIP)
PLANLESS: Final = (SKIP, -1)
NOTHING_TO_ADD: Final = PostFilterResult(unschedulable())
_BINDING_ANNOTATIONS: Final = (
    (names.ANNOTATION_BIND_GANG_GROUP_ID, names.ANNOTATION_BIND_GANG_MEMBER_COUNT),
    (names.ANNOTATION_BIND_GANG_GROUP_ID_DEPRECATED, names.ANNOTATION_BIND_GANG_MEMBER_COUNT_DEPRECATED),
)
_MEMO: Final = "Coscheduling"


class Coscheduling(Plugin):
    """See the module text. It has no interests: who fails wakes by other plugins' events, and brings the others."""

    name: ClassVar[str] = "Coscheduling"
    reads: ClassVar[Reads] = Reads.CLUSTER

    def __init__(self, args: CoschedulingArgs | None, handle: Handle) -> None:
        super().__init__(args or CoschedulingArgs(), handle)
        self.args: CoschedulingArgs
        self.gangs = GangCache(self.args)
        self.turn: Turn | None = None
        self._let_go: set[str] = set()
        """uids that were allowed at Permit and are being bound."""
        self._conditions = MemberConditions(handle)
        self.gathering = Gathering(handle) if self.args.aware_network_topology else None
        self._controller: PodGroupController | None = None
        self._metrics: GangMetrics | None = None
        self._preemption = GangPreemption(handle, self.name) if self.args.enable_preemption else None
        if handle.client is not None:
            self._metrics = GangMetrics.of(handle.client.registry)
            groups_of = self.gangs.groups
            self._metrics.waiting_groups.set_function(
                lambda: sum(bool(group.waiting_gang_ids) for group in groups_of.values())
            )
        if handle.objects is not None:
            groups = handle.objects.informer(PodGroup)
            groups.add_handler(self.pod_group_set, lambda _, new: self.pod_group_set(new), self.pod_group_deleted)
            pods = handle.objects.informer(Pod)
            pods.add_handler(self.pod_added, self.pod_updated, self.pod_deleted)
            if handle.client is not None:
                self._controller = PodGroupController(
                    handle.client, groups, workers=self.args.controller_workers, clock=handle.clock
                )

    def connect(self, runtime: Runtime) -> None:
        super().connect(runtime)
        for part in (self.gathering, self._preemption):
            if part is not None:
                part.connect(runtime)

    # Queue

    def pre_enqueue(self, pod: PodInfo) -> PluginStatus:
        name = self._gang_id(pod.shape)
        if not name:
            return SUCCESS
        why = decisions.why_not_tried(self.gangs, name, pod.key)
        if why:
            return unresolvable(why)
        gang = self.gangs.gangs[name]
        if gang.settled:
            return SUCCESS
        if self.turn is not None and self.turn.group is gang.group and pod.key not in self.turn.attempted:
            return unresolvable(f"gangGroup {gang.group.id} is scheduling and this pod has not been attempted")
        if self._preemption is not None and self._preemption.evicting(pod):
            return unresolvable("waiting for the preemption for this pod to be finished")
        why = decisions.why_not_enqueued(gang, pod.key)
        return unresolvable(why) if why else SUCCESS

    def next_pod(self) -> PodInfo | None:
        turn, queue = self.turn, self.runtime.queue
        if turn is None:
            return None
        if not self.gangs.gangs_of(turn.group):
            self._end_turn("gang is nil, may be already deleted")
            return None
        while (key := turn.next(self.gangs)) is not None:
            found = self._free(queue.pending(key))
            if found is not None:
                return found
        self._reject_waiting(turn)
        if not turn.failed and self.runtime.auditor is not None:
            self.runtime.auditor.all_attempted(turn.group.id)
        self._end_turn("all pending pods is already been attempted")
        return None

    # The cycle

    def before_pre_filter(self, state: CycleState, pod: PodInfo) -> PluginStatus:
        name = self._gang_id(pod.shape)
        if not name:
            return SUCCESS
        why = decisions.why_not_tried(self.gangs, name, pod.key)
        if why:
            return unresolvable(why)
        gang = self.gangs.gangs[name]
        if gang.settled:
            return SUCCESS
        group = gang.group
        state.data[QUESTIONED] = group.id
        state.of_job = lambda other: self._gang_id(other.shape) in group.gang_ids
        turn = self.turn
        if turn is None or turn.group is not gang.group:
            if turn is not None:
                self._reject_waiting(turn)
                self._end_turn("another gang group is being scheduled")
            gang.group.representative = ""
            self.turn = Turn(gang.group, pod.key, self.handle.clock.monotonic(), {pod.key})
            if self.gathering is not None and self._closeness(group) is not None and self.gathering.tree() is None:
                return unresolvable("no cluster network topology")
            return SUCCESS
        turn.attempted.add(pod.key)
        return unresolvable(turn.failed) if turn.failed and pod.key != turn.root_cause else SUCCESS

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        """Members that were planned by the first one go where the plan has them (spec 05 §10.3)."""
        turn = self.turn
        if self.gathering is None or turn is None or pod.key == turn.first or not self._planned(turn, pod):
            return NOT_PLANNED
        row = self.table.row(turn.plan.get(pod.key, ""))
        if row is None:
            return PreFilterResult(error("no planned pods"))
        return PreFilterResult(rows=np.array([row], np.intp))

    def find_one_node(self, state: CycleState, pod: PodInfo, rows: RowArray | None) -> tuple[PluginStatus, int]:
        """Plan the whole group when its first member's turn comes."""
        turn, queue = self.turn, self.runtime.queue
        if self.gathering is None or turn is None or pod.key != turn.first or not self._planned(turn, pod):
            return PLANLESS
        spec = self._closeness(turn.group)
        keys = [key for gang in self.gangs.gangs_of(turn.group) for key in gang.in_order() if key != pod.key]
        others = [found for key in keys if (found := self._free(queue.pending(key))) is not None]
        if spec is None or not any(pod.key in gang.pending for gang in self.gangs.gangs_of(turn.group)):
            return error("no pending pods"), -1
        try:
            turn.plan = self.gathering.plan(state, [pod, *others], spec, rows)
        except NoPlan as failure:
            return unschedulable(str(failure)), -1
        rows_of = self.table.rows
        state.plan = [(one, rows_of[turn.plan[one.key]]) for one in (pod, *others)]
        return SUCCESS, rows_of[turn.plan[pod.key]]

    def pre_score(self, state: CycleState, pod: PodInfo, rows: RowArray) -> PluginStatus:
        positions = self.gathering.neighbour_scores(pod.shape, rows) if self.gathering is not None else None
        if positions is None:
            return SKIP
        state.data[POSITIONS] = dict(zip(rows.tolist(), positions.tolist(), strict=True))
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        positions: Mapping[int, int] = state.data[POSITIONS]
        chosen = selected(rows, self.table.size)
        return np.fromiter((positions.get(row, len(positions)) for row in chosen.tolist()), np.int64, len(chosen))

    def normalize(self, state: CycleState, pod: PodInfo, rows: RowArray, scores: IntArray) -> IntArray:
        return default_normalize(scores, reverse=True)

    def post_filter(self, state: CycleState, pod: PodInfo, failure: Any) -> PostFilterResult:
        gang = self._gang(pod)
        turn = self.turn
        if gang is None or turn is None or turn.group is not gang.group:
            return NOTHING_TO_ADD
        if self._preemption is not None:
            return self._preempt(self._preemption, state, turn, pod, failure)
        if not turn.preemption or pod.key == turn.root_cause:
            return NOTHING_TO_ADD
        return PostFilterResult(unschedulable(turn.preemption))

    def after_post_filter(self, state: CycleState, pod: PodInfo, failure: Any, result: PostFilterResult | None) -> None:
        gang = self._gang(pod)
        if gang is None or gang.settled:
            return
        group, turn = gang.group, self.turn
        if turn is None or turn.group is not group:
            message = f'GangGroup "{group.id}" gets rejected due to member pod "{pod.key}" is unschedulable'
        elif not gang.strict:
            return  # members that have their nodes wait for the others until their time is up (spec 05 §17, D5)
        else:
            message = self._note_failure(turn, pod, failure, result)
        if gang.strict:
            group.waiting_gang_ids.clear()
            self._reject(group, JOB_REJECT, message)

    def permit(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        name = self._gang_id(pod.shape)
        if not name:
            return SUCCESS
        gang = self.gangs.gangs.get(name)
        if gang is None:
            return unschedulable("Gang not found")
        group = gang.group
        self.gangs.wait(gang, pod.key, pod.uid)
        if not decisions.satisfied(self.gangs, gang, lambda uid: uid == pod.uid or self._permitted(uid)):
            group.waiting_gang_ids.update(group.gang_ids)
            return wait(gang.parameters.wait.seconds if gang.parameters is not None else 0.0)
        together = [uid for uid in self.gangs.waiting_in(group).values() if uid == pod.uid or self._permitted(uid)]
        if not group.binding_members:
            group.binding_members = frozenset(together)
        for uid in together:
            if uid != pod.uid and uid not in self._let_go:
                self.handle.waiting.allow(uid, self.name)
            self._let_go.add(uid)
        if self.turn is not None and self.turn.group is group:
            rest = next(
                (key for one in self.gangs.gangs_of(group) for key in one.in_order() if key not in self.turn.attempted),
                None,
            )
            self._end_turn("gang is already succeed")
            self._activate([rest] if rest is not None else [])  # it begins the next turn, with fewer to wait for
        return SUCCESS

    def unreserve(self, state: CycleState, pod: PodInfo, row: int) -> None:
        gang = self._gang(pod)
        self._let_go.discard(pod.uid)
        if gang is None:
            return
        self.gangs.release(gang, pod.key)
        if gang.strict and not gang.settled:
            self._reject(gang.group, self.name, f'Gang "{gang.id}" gets rejected due to Pod "{pod.name}" in Unreserve')

    async def pre_bind(self, state: CycleState, pod: PodInfo, row: int, changed: Pod) -> PluginStatus:
        gang = self._gang(pod)
        if gang is None:
            return SUCCESS
        members, annotations = gang.group.binding_members, changed.metadata.annotations
        for group_key, count_key in _BINDING_ANNOTATIONS:
            if len(members) > 1 and pod.uid in members:
                annotations[group_key], annotations[count_key] = gang.group.id, str(len(members))
            else:
                annotations.pop(group_key, None)
                annotations.pop(count_key, None)
        return SUCCESS

    async def post_bind(self, state: CycleState, pod: PodInfo, row: int) -> None:
        gang = self._gang(pod)
        self._let_go.discard(pod.uid)
        if gang is not None:
            self._activate(self.gangs.bound(gang, pod.key))

    def group_of(self, pod: Pod) -> tuple[str, bool] | None:
        """The id of the pod's gang group, and whether it has enough members; None without a gang."""
        gang = self.gangs.gangs.get(params.gang_id(pod))
        if gang is None:
            return None
        gangs = self.gangs.gangs_of(gang.group)
        return gang.group.id, len(gangs) == len(gang.group.gang_ids) and all(one.complete for one in gangs)

    def members(self, name: str) -> list[str]:
        """Keys of the members of a gang, or of a group of gangs (`namespace/a,namespace/b`); empty if there is none."""
        cache = self.gangs
        group = cache.groups.get(name)
        gangs = cache.gangs_of(group) if group is not None else [cache.gangs[name]] if name in cache.gangs else []
        return [key for gang in gangs for key in gang.children]

    # Events

    def pod_added(self, pod: Pod) -> None:
        self._activate(self.gangs.pod_added(pod))
        self._note_member(pod)

    def pod_updated(self, old: Pod, new: Pod) -> None:
        self._activate(self.gangs.pod_updated(old, new))
        self._note_member(new)

    def pod_deleted(self, pod: Pod) -> None:
        self._let_go.discard(pod.metadata.uid)
        self._activate(self.gangs.pod_deleted(pod))
        self._note_member(pod)

    def pod_group_set(self, pod_group: PodGroup) -> None:
        self._activate(self.gangs.pod_group_set(pod_group))
        if self._controller is not None:
            self._controller.look_at(f"{pod_group.metadata.namespace}/{pod_group.metadata.name}")

    def pod_group_deleted(self, pod_group: PodGroup) -> None:
        self.gangs.pod_group_deleted(pod_group)

    def _activate(self, keys: list[str]) -> None:
        if keys:
            self.runtime.queue.activate(keys)

    def _note_member(self, pod: Pod) -> None:
        if self._controller is not None and params.needs_pod_group(pod):
            self._controller.look_at(params.gang_id(pod))

    # Inside

    @staticmethod
    def _gang_id(shape: Shape) -> str:
        found: str | None = shape.memo.get(_MEMO)
        if found is None:
            found = shape.memo[_MEMO] = params.gang_id(shape.pod)
        return found

    def _gang(self, pod: PodInfo) -> Gang | None:
        name = self._gang_id(pod.shape)
        return self.gangs.gangs.get(name) if name else None

    def _closeness(self, group: GangGroup) -> NetworkTopologySpec | None:
        """What the group's first gang wants of the network."""
        first = self.gangs.gangs.get(group.gang_ids[0])
        return first.parameters.topology if first is not None and first.parameters is not None else None

    def _planned(self, turn: Turn, pod: PodInfo) -> bool:
        """Whether the pod is one of the turn's, and those are planned together."""
        gang = self._gang(pod)
        return gang is not None and gang.group is turn.group and self._closeness(turn.group) is not None

    def _preempt(
        self, preemption: GangPreemption, state: CycleState, turn: Turn, pod: PodInfo, failure: Any
    ) -> PostFilterResult:
        """Room for the whole group; no other plugin makes any for one member alone."""
        state.preempted_for_job = True
        queue = self.runtime.queue
        pending: list[PodInfo] = []
        for key in (key for gang in self.gangs.gangs_of(turn.group) for key in gang.in_order()):
            found = pod if key == pod.key else self._free(queue.pending(key))
            if found is not None:
                pending.append(found)
        waiting = {key: uid for key, uid in self.gangs.waiting_in(turn.group).items() if self._permitted(uid)}
        strict = all(gang.strict for gang in self.gangs.gangs_of(turn.group))
        choose = self._close_choice(turn, pod, pending)
        return preemption.post_filter(state, turn, pod, failure, pending, waiting, choose, strict=strict)

    def _close_choice(self, turn: Turn, pod: PodInfo, pending: list[PodInfo]) -> Choose | None:
        """How members are placed that want to be close together; None: one by one."""
        gathering, spec = self.gathering, self._closeness(turn.group)
        if gathering is None or spec is None:
            return None

        def choose(state: CycleState, cost: Mapping[str, int]) -> Mapping[str, str]:
            if pod.key != turn.first:
                raise NotHelpful("plan become invalid, wait for the next round")
            others = [other for other in pending if other.key != pod.key]
            try:
                return gathering.plan(state, [pod, *others], spec, None, cost)
            except NoPlan as problem:
                raise NotHelpful(str(problem)) from problem

        return choose

    @staticmethod
    def _free(pod: PodInfo | None) -> PodInfo | None:
        """The pod, if a node may be sought for it."""
        free = pod is not None and pod.row < 0 and not pod.terminating and not pod.pod.spec.scheduling_gates
        return pod if free else None

    def _permitted(self, uid: str) -> bool:
        """Parked at Permit and not rejected since, or let go on."""
        return uid in self._let_go or self.handle.waiting.waiting(uid) is not None

    def _note_failure(self, turn: Turn, pod: PodInfo, failure: Any, result: PostFilterResult | None) -> str:
        """The failed message; made, for the whole turn, from its first failure."""
        if not turn.failed:
            waiting = sum(map(self._permitted, self.gangs.waiting_in(turn.group).values()))
            turn.root_cause = pod.key
            turn.failed = (
                f'GangGroup "{turn.group.id}" gets rejected due to member Pod "{pod.key}" is unschedulable with reason '
                f'"{failure.text(bare=True)}", alreadyWaitForBound: {waiting}'
            )
            if not turn.preempted:
                turn.preemption = result.status.message if result is not None and not result.status.ok else ""
        elif result is not None and not turn.patched and pod.key != turn.root_cause:
            turn.patched = True
            untried = [
                gang.children[key]
                for gang in self.gangs.gangs_of(turn.group)
                for key in gang.in_order()
                if key != pod.key and key not in turn.attempted
            ]
            self._conditions.tell(untried, turn.failed, result.status.message)
        return turn.failed

    def _reject_waiting(self, turn: Turn) -> None:
        """A turn ends without enough members: a strict group holds nothing back for later."""
        if all(gang.strict for gang in self.gangs.gangs_of(turn.group)):
            turn.group.waiting_gang_ids.clear()
            reason = turn.failed or f'GangGroup "{turn.group.id}" gets rejected: not enough members could be placed'
            self._reject(turn.group, JOB_REJECT, reason)

    def _reject(self, group: GangGroup, plugin: str, message: str) -> None:
        """Reject every member that is parked at Permit."""
        for uid in self.gangs.waiting_in(group).values():
            if uid not in self._let_go:
                self.handle.waiting.reject(uid, plugin, message)

    def _end_turn(self, reason: str) -> None:
        turn, self.turn = self.turn, None
        if turn is not None:
            seconds = self.handle.clock.monotonic() - turn.started
            if self._metrics is not None:
                self._metrics.turn_seconds.labels(reason, job_size(len(turn.attempted))).observe(seconds)
            log.debug("Gang group's turn ended", group=turn.group.id, reason=reason, seconds=round(seconds, 4))

    # Around it

    def routes(self) -> Mapping[str, Callable[..., Any]]:
        return {"gang/{namespace}/{name}": self.gang_page, "gangs": self.gangs_page}

    def gang_page(self, namespace: str, name: str) -> dict[str, Any]:
        """Raises LookupError for an unknown gang."""
        gang = self.gangs.gangs.get(f"{namespace}/{name}")
        if gang is None:
            raise LookupError(f"cannot find gang {namespace}/{name}")
        return summary.of(gang, self.args)

    def gangs_page(self) -> dict[str, Any]:
        return {key: summary.of(gang, self.args) for key, gang in sorted(self.gangs.gangs.items())}

    async def start(self) -> None:
        if self._controller is not None:
            await self._controller.start()

    async def stop(self) -> None:
        await self._conditions.stop()
        if self._controller is not None:
            await self._controller.stop()
