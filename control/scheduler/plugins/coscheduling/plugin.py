"""Coscheduling, the plugin: gangs at the extension points of queue and cycle (spec 05 §9.3 to §9.7).

One pod at a time represents a gang group in the queue. Its cycle begins a round (`rounds`), in which `next_pod`
supplies the other members. Each member is placed like any pod and waits at Permit until there are enough. When a member
of a strict group fails, all members lose their nodes, and only the failed pod reacts to events.

A pod that was rejected at Permit keeps its node until its binding task has released it. Such pods do not count as
waiting, or a member that arrives in the meantime would be bound without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from control.scheduler.config.args import CoschedulingArgs
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.nominationloss import JOB_REJECT
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import (
    CycleState,
    EventInterest,
    Plugin,
    PostFilterResult,
    PreFilterResult,
    Reads,
    default_normalize,
)
from control.scheduler.framework.runtime import PluginRuntime
from control.scheduler.framework.status import SKIP, SUCCESS, PluginStatus, error, unresolvable, unschedulable, wait
from control.scheduler.plugins.coscheduling import decisions, params, summary
from control.scheduler.plugins.coscheduling.cache import GangCache
from control.scheduler.plugins.coscheduling.events import GangEvents
from control.scheduler.plugins.coscheduling.gang import Gang, GangGroup
from control.scheduler.plugins.coscheduling.gangpreemption import GangPreemption
from control.scheduler.plugins.coscheduling.jobplanner import Choose, NotHelpful
from control.scheduler.plugins.coscheduling.metrics import GangMetrics
from control.scheduler.plugins.coscheduling.networkplacement import NetworkPlacement
from control.scheduler.plugins.coscheduling.rounds import GangRound, GangRounds
from control.scheduler.plugins.coscheduling.topologyplanner import NoPlan
from control.scheduler.state.columns import IntArray, RowArray, Rows
from control.scheduler.state.pods import PodInfo, Shape
from control.scheduler.state.table import selected
from koordlet.api import names
from koordlet.api.annotations.gang import NetworkTopologySpec
from koordlet.api.core import Pod

QUESTIONED: Final = "questionedKey"
"""Key in `CycleState.data`: the gang group for which a failure is reported."""
POSITIONS: Final = "Coscheduling/positions"
NOT_PLANNED: Final = PreFilterResult(SKIP)
NO_PLAN_NEEDED: Final = (SKIP, -1)
NOTHING_TO_ADD: Final = PostFilterResult(unschedulable())
_BINDING_ANNOTATIONS: Final = (
    (names.ANNOTATION_BIND_GANG_GROUP_ID, names.ANNOTATION_BIND_GANG_MEMBER_COUNT),
    (names.ANNOTATION_BIND_GANG_GROUP_ID_DEPRECATED, names.ANNOTATION_BIND_GANG_MEMBER_COUNT_DEPRECATED),
)
_MEMO: Final = "Coscheduling"


class Coscheduling(Plugin):
    """See the module text. A failed pod is woken by the events of the plugin that rejected it, and its round brings the
    other members. Gangs that were planned as a whole have failed because of this plugin."""

    name: ClassVar[str] = "Coscheduling"
    reads: ClassVar[Reads] = Reads.CLUSTER

    def __init__(self, args: CoschedulingArgs | None, handle: Handle) -> None:
        super().__init__(args or CoschedulingArgs(), handle)
        self.args: CoschedulingArgs
        self.gangs = GangCache(self.args)
        metrics = GangMetrics.of(handle.client.registry) if handle.client is not None else None
        if metrics is not None:
            groups = self.gangs.groups
            metrics.waiting_groups.set_function(lambda: sum(bool(group.waiting_gang_ids) for group in groups.values()))
        self.rounds = GangRounds(self.gangs, handle, metrics, non_strict_waits=self.args.non_strict_gangs_wait)
        self.events = GangEvents(self.gangs, self.rounds, handle, workers=self.args.controller_workers)
        self.network = NetworkPlacement(handle) if self.args.aware_network_topology else None
        self._preemption = GangPreemption(handle, self.name) if self.args.enable_preemption else None

    def connect(self, runtime: PluginRuntime) -> None:
        super().connect(runtime)
        for part in (self.rounds, self.events, self.network, self._preemption):
            if part is not None:
                part.connect(runtime)

    async def start(self) -> None:
        await self.events.start()

    async def stop(self) -> None:
        await self.rounds.stop()
        await self.events.stop()

    # Queue

    def interests(self) -> Sequence[EventInterest]:
        """What may change a failed plan: nodes, released room and the layers of the network (spec 05 §10)."""
        if self.network is None:
            return ()
        return (
            EventInterest("Node", hint=self._planned_hint),
            EventInterest("AssignedPod", frozenset({"Delete", "ScaleDown"}), self._planned_hint),
            EventInterest("ClusterNetworkTopology", hint=self._layers_hint),
        )

    def _planned_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        gang = self._gang(pod)
        return gang is not None and self._topology_spec(gang.group) is not None

    def _layers_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """Not for a new status, which the scheduler writes itself."""
        same = old is not None and new is not None and old.spec == new.spec
        return not same and self._planned_hint(pod, old, new)

    def pre_enqueue(self, pod: PodInfo) -> PluginStatus:
        name = self._gang_id(pod.shape)
        if not name:
            return SUCCESS
        reason = decisions.why_not_tried(self.gangs, name, pod.key)
        if reason:
            return unresolvable(reason)
        gang = self.gangs.gangs[name]
        if gang.settled:
            return SUCCESS
        current = self.rounds.of(gang)
        if current is not None and pod.key not in current.attempted:
            return unresolvable(f"gangGroup {gang.group.id} is scheduling and this pod has not been attempted")
        if self._preemption is not None and self._preemption.evicting(pod):
            return unresolvable("waiting for the preemption for this pod to be finished")
        reason = decisions.why_not_enqueued(gang, pod.key)
        return unresolvable(reason) if reason else SUCCESS

    def next_pod(self) -> PodInfo | None:
        return self.rounds.next_member()

    # Cycle

    def before_pre_filter(self, state: CycleState, pod: PodInfo) -> PluginStatus:
        name = self._gang_id(pod.shape)
        if not name or state.trial:
            return SUCCESS
        reason = decisions.why_not_tried(self.gangs, name, pod.key)
        if reason:
            return unresolvable(reason)
        gang = self.gangs.gangs[name]
        if gang.settled:
            return SUCCESS
        group = gang.group
        state.data[QUESTIONED] = group.id
        state.of_job = lambda other: (
            (other_gang := self._gang_id(other.shape)) in group.gang_ids
            and self.gangs.member(group, other_gang) is not None
        )
        current = self.rounds.of(gang)
        if current is None:
            self.rounds.begin(group, pod.key)
            if self.network is not None and self._topology_spec(group) is not None and self.network.tree() is None:
                return unresolvable("no cluster network topology")
            return SUCCESS
        current.attempted.add(pod.key)
        return unresolvable(current.failed) if current.failed and pod.key != current.root_cause else SUCCESS

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        """Members that were planned in the cycle of the first one are placed as planned (spec 05 §10.3)."""
        current = self._planned_round(pod)
        if current is None or pod.key == current.first:
            return NOT_PLANNED
        row = self.table.row(current.plan.get(pod.key, ""))
        if row is None:
            return PreFilterResult(error("no planned pods"))
        return PreFilterResult(rows=np.array([row], np.intp))

    def find_one_node(self, state: CycleState, pod: PodInfo, rows: RowArray | None) -> tuple[PluginStatus, int]:
        """In the cycle of the first member, plan the nodes of the whole group."""
        current = self._planned_round(pod)
        if self.network is None or current is None or pod.key != current.first:
            return NO_PLAN_NEEDED
        spec, gangs = self._topology_spec(current.group), self.gangs.gangs_of(current.group)
        keys = [key for gang in gangs for key in gang.in_order() if key != pod.key]
        members = [member for key in keys if (member := self.rounds.pending(key)) is not None]
        if spec is None or not any(pod.key in gang.pending for gang in gangs):
            return error("no pending pods"), -1
        try:
            current.plan = self.network.plan(state, [pod, *members], spec, rows)
        except NoPlan as failure:
            return unschedulable(str(failure)), -1
        row_of = self.table.rows
        state.plan = [(member, row_of[current.plan[member.key]]) for member in (pod, *members)]
        return SUCCESS, row_of[current.plan[pod.key]]

    def pre_score(self, state: CycleState, pod: PodInfo, rows: RowArray) -> PluginStatus:
        positions = self.network.neighbour_positions(pod.shape, rows) if self.network is not None else None
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

    def post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> PostFilterResult:
        current = self.rounds.of(self._gang(pod))
        if current is None:
            return NOTHING_TO_ADD
        if self._preemption is not None:
            return self._preempt(self._preemption, state, current, pod, failure)
        if not current.preemption or pod.key == current.root_cause:
            return NOTHING_TO_ADD
        return PostFilterResult(unschedulable(current.preemption))

    def after_post_filter(
        self, state: CycleState, pod: PodInfo, failure: FitError, result: PostFilterResult | None
    ) -> None:
        gang = self._gang(pod)
        if gang is None or gang.settled:
            return
        group = gang.group
        if self.rounds.of(gang) is None:
            message = f'GangGroup "{group.id}" gets rejected due to member pod "{pod.key}" is unschedulable'
        elif not gang.strict and self.args.non_strict_gangs_wait:
            return  # members with nodes keep them until the timeout at Permit (spec 05 §17, D5)
        else:
            message = self.rounds.note_failure(pod, failure, result)
        if gang.strict:
            group.waiting_gang_ids.clear()
            self.rounds.reject(group, JOB_REJECT, message)

    def permit(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        name = self._gang_id(pod.shape)
        if not name:
            return SUCCESS
        gang = self.gangs.gangs.get(name)
        if gang is None:
            return unschedulable("Gang not found")
        group = gang.group
        self.gangs.wait(gang, pod.key, pod.uid)

        def permitted(uid: str) -> bool:
            return uid == pod.uid or self.rounds.permitted(uid)

        if not decisions.satisfied(self.gangs, gang, permitted):
            group.waiting_gang_ids.update(group.gang_ids)
            return wait(gang.parameters.wait.seconds if gang.parameters is not None else 0.0)
        together = [uid for uid in self.gangs.waiting_in(group).values() if permitted(uid)]
        if not group.binding_members:
            group.binding_members = frozenset(together)
        self.rounds.release(together, self.name, pod.uid)
        if self.rounds.of(gang) is not None:
            rest = self.rounds.first_untried()
            self.rounds.end("gang is already succeed")
            self.events.activate([rest] if rest is not None else [])  # begins the next round, for the remaining members
        return SUCCESS

    def unreserve(self, state: CycleState, pod: PodInfo, row: int) -> None:
        gang = self._gang(pod)
        self.rounds.binding_ended(pod.uid)
        if gang is None:
            return
        self.gangs.release(gang, pod.key)
        if gang.strict and not gang.settled:
            message = f'Gang "{gang.id}" gets rejected due to Pod "{pod.name}" in Unreserve'
            self.rounds.reject(gang.group, self.name, message)

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
        self.rounds.binding_ended(pod.uid)
        if gang is not None:
            self.events.activate(self.gangs.bound(gang, pod.key))

    # Lookups

    def group_of(self, pod: Pod) -> tuple[str, bool] | None:
        """(id of the pod's gang group, whether the group has enough members); None without a gang."""
        gang = self.gangs.gangs.get(params.gang_id(pod))
        if gang is None:
            return None
        gangs = self.gangs.gangs_of(gang.group)
        return gang.group.id, len(gangs) == len(gang.group.gang_ids) and all(
            member_gang.complete for member_gang in gangs
        )

    def members(self, name: str) -> list[str]:
        """Keys of the members of a gang, or of a gang group (`namespace/a,namespace/b`); empty if it does not exist."""
        cache = self.gangs
        group = cache.groups.get(name)
        gangs = cache.gangs_of(group) if group is not None else [cache.gangs[name]] if name in cache.gangs else []
        return [key for gang in gangs for key in gang.children]

    @staticmethod
    def _gang_id(shape: Shape) -> str:
        gang_id: str | None = shape.memo.get(_MEMO)
        if gang_id is None:
            gang_id = shape.memo[_MEMO] = params.gang_id(shape.pod)
        return gang_id

    def _gang(self, pod: PodInfo) -> Gang | None:
        name = self._gang_id(pod.shape)
        return self.gangs.gangs.get(name) if name else None

    def _topology_spec(self, group: GangGroup) -> NetworkTopologySpec | None:
        """The network topology requirements of the group's first gang."""
        first = self.gangs.member(group, group.gang_ids[0])
        return first.parameters.topology if first is not None and first.parameters is not None else None

    def _planned_round(self, pod: PodInfo) -> GangRound | None:
        """The current round if the pod belongs to it and its members are planned together."""
        current = self.rounds.of(self._gang(pod)) if self.network is not None else None
        return current if current is not None and self._topology_spec(current.group) is not None else None

    # Preemption

    def _preempt(
        self, preemption: GangPreemption, state: CycleState, current: GangRound, pod: PodInfo, failure: FitError
    ) -> PostFilterResult:
        """Preempt for the whole group. No other plugin preempts for a single member."""
        state.preempted_for_job = True
        gangs = self.gangs.gangs_of(current.group)
        keys = [key for gang in gangs for key in gang.in_order()]
        candidates = [pod if key == pod.key else self.rounds.pending(key) for key in keys]
        pending = [member for member in candidates if member is not None]
        waiting = {key: uid for key, uid in self.gangs.waiting_in(current.group).items() if self.rounds.permitted(uid)}
        strict = all(gang.strict for gang in gangs)
        choose = self._network_choice(current, pod, pending)
        return preemption.post_filter(state, current, pod, failure, pending, waiting, choose, strict=strict)

    def _network_choice(self, current: GangRound, pod: PodInfo, pending: list[PodInfo]) -> Choose | None:
        """The function that places members by network topology; None: they are placed one by one."""
        network, spec = self.network, self._topology_spec(current.group)
        if network is None or spec is None:
            return None

        def choose(state: CycleState, cost: Mapping[str, int]) -> Mapping[str, str]:
            if pod.key != current.first:
                raise NotHelpful("plan become invalid, wait for the next round")
            others = [other for other in pending if other.key != pod.key]
            try:
                return network.plan(state, [pod, *others], spec, None, cost)
            except NoPlan as failure:
                raise NotHelpful(str(failure)) from failure

        return choose

    # Pages

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
