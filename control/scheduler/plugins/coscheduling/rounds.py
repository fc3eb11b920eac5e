"""Rounds of gang groups: the members of a group are scheduled one after another without a gap (spec 05 §9.4).

A round begins with the member that represents its group in the queue. It ends when enough members have nodes, when no
member is left to try, or when another group's round begins. Only one round exists at a time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.nominationloss import JOB_REJECT
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import PostFilterResult
from control.scheduler.framework.runtime import PluginRuntime
from control.scheduler.plugins.coscheduling.cache import GangCache
from control.scheduler.plugins.coscheduling.decisions import why_not_tried
from control.scheduler.plugins.coscheduling.gang import Gang, GangGroup
from control.scheduler.plugins.coscheduling.memberconditions import MemberConditions
from control.scheduler.plugins.coscheduling.metrics import GangMetrics, job_size
from control.scheduler.state.pods import PodInfo
from koordlet.app.logging import get_logger

log = get_logger(__name__)


@dataclass(eq=False)
class GangRound:
    """The round of one group. `first`: key of the pod that began it; `started`: monotonic seconds."""

    group: GangGroup
    first: str
    started: float
    attempted: set[str] = field(default_factory=set)
    failed: str = ""
    """The message of the first member that failed; set once."""
    root_cause: str = ""
    """Key of that member."""
    preemption: str = ""
    """The result of preemption, for members that fail later."""
    preempted: bool = False
    """Preemption for the whole group was tried; at most once per round."""
    nominations: dict[str, str] = field(default_factory=dict)
    """`namespace/name` -> node to which this preemption nominates the member; "" removes the nomination."""
    patched: bool = False
    """The conditions of members that were not tried have been written."""
    plan: dict[str, str] = field(default_factory=dict)
    """`namespace/name` -> node, if the members were planned together."""
    _order: deque[str] = field(default_factory=deque)

    def next(self, cache: GangCache) -> str | None:
        """The next member to try, which then counts as attempted; None if there is none left."""
        for last in (False, True):
            while self._order:
                key = self._order.popleft()
                if key not in self.attempted and any(key in gang.pending for gang in cache.gangs_of(self.group)):
                    self.attempted.add(key)
                    return key
            if not last:
                members = (key for gang in cache.gangs_of(self.group) for key in gang.in_order())
                self._order.extend(key for key in members if key not in self.attempted)
        return None


class GangRounds:
    """The current round, and the members that are held at Permit or released from there."""

    def __init__(
        self, gangs: GangCache, handle: Handle, metrics: GangMetrics | None, *, non_strict_waits: bool = True
    ) -> None:
        """`non_strict_waits`: members of NonStrict gangs keep their nodes after a round without enough members."""
        self._non_strict_waits = non_strict_waits
        self.current: GangRound | None = None
        self._gangs = gangs
        self._handle = handle
        self._metrics = metrics
        self._runtime = PluginRuntime()
        self._conditions = MemberConditions(handle)
        self._released: set[str] = set()
        """uids of members that were allowed at Permit and are being bound."""

    def connect(self, runtime: PluginRuntime) -> None:
        """See `Plugin.connect`."""
        self._runtime = runtime

    async def stop(self) -> None:
        await self._conditions.stop()

    # Members

    def permitted(self, uid: str) -> bool:
        """Whether a member is held at Permit and not rejected since, or released."""
        return uid in self._released or self._handle.waiting.waiting(uid) is not None

    def release(self, uids: list[str], plugin: str, already_permitted: str) -> None:
        """Allow members at Permit; `already_permitted` is the uid of the one that is in its cycle."""
        for uid in uids:
            if uid != already_permitted and uid not in self._released:
                self._handle.waiting.allow(uid, plugin)
            self._released.add(uid)

    def binding_ended(self, uid: str) -> None:
        """The member is bound, lost its node, or was deleted."""
        self._released.discard(uid)

    def reject(self, group: GangGroup, plugin: str, message: str) -> None:
        """Reject every member of the group that is held at Permit."""
        for uid in self._gangs.waiting_in(group).values():
            if uid not in self._released:
                self._handle.waiting.reject(uid, plugin, message)

    def pending(self, key: str) -> PodInfo | None:
        """A queued member that can be scheduled, by `namespace/name`."""
        pod = self._runtime.queue.pending(key)
        schedulable = pod is not None and pod.row < 0 and not pod.terminating and not pod.pod.spec.scheduling_gates
        return pod if schedulable else None

    # Rounds

    def of(self, gang: Gang | None) -> GangRound | None:
        """The current round if it is that of the gang's group."""
        current = self.current
        return current if gang is not None and current is not None and current.group is gang.group else None

    def begin(self, group: GangGroup, first: str) -> None:
        """Begin the round of a group; the round of another group ends."""
        if self.current is not None:
            self._reject_held(self.current)
            self.end("another gang group is being scheduled")
        group.representative = ""
        self.current = GangRound(group, first, self._handle.clock.monotonic(), {first})

    def next_member(self) -> PodInfo | None:
        """The next member of the current round. None: there is no round, or it has just ended."""
        current = self.current
        if current is None:
            return None
        if not self._gangs.gangs_of(current.group):
            self.end("gang is nil, may be already deleted")
            return None
        while (key := current.next(self._gangs)) is not None:
            member = self.pending(key)
            if member is not None:
                return member
        self._reject_held(current)
        if not current.failed and self._runtime.auditor is not None:
            self._runtime.auditor.all_attempted(current.group.id)
        self.end("all pending pods is already been attempted")
        return None

    def end(self, reason: str) -> None:
        current, self.current = self.current, None
        if current is None:
            return
        seconds = self._handle.clock.monotonic() - current.started
        if self._metrics is not None:
            self._metrics.round_seconds.labels(reason, job_size(len(current.attempted))).observe(seconds)
        log.debug("Round of a gang group ended", group=current.group.id, reason=reason, seconds=round(seconds, 4))

    def first_untried(self) -> str | None:
        """The first pending member of the current round that was not attempted."""
        current = self.current
        if current is None:
            return None
        untried = (
            key
            for gang in self._gangs.gangs_of(current.group)
            for key in gang.in_order()
            if key not in current.attempted
        )
        return next(untried, None)

    def note_failure(self, pod: PodInfo, failure: FitError, result: PostFilterResult | None) -> str:
        """Record that a member of the current round failed. Returns the message of the round's first failure."""
        current = self.current
        if current is None:
            raise RuntimeError("no round")
        if not current.failed:
            waiting = sum(map(self.permitted, self._gangs.waiting_in(current.group).values()))
            current.root_cause = pod.key
            current.failed = (
                f'GangGroup "{current.group.id}" gets rejected due to member Pod "{pod.key}" is unschedulable with'
                f' reason "{failure.text(bare=True)}", alreadyWaitForBound: {waiting}'
            )
            if not current.preempted:
                current.preemption = result.status.message if result is not None and not result.status.ok else ""
        elif result is not None and not current.patched and pod.key != current.root_cause:
            current.patched = True
            untried = [
                gang.children[key]
                for gang in self._gangs.gangs_of(current.group)
                for key in gang.in_order()
                if key != pod.key and key not in current.attempted and key == gang.children[key].metadata.key
            ]  # pods only
            self._conditions.write(untried, current.failed, result.status.message)
        return current.failed

    def gang_lost(self, gang: Gang) -> None:
        """The PodGroup was deleted: correct the conditions of members that had failed."""
        nodes = self._handle.table.nodes_alive
        self._conditions.correct(
            [
                (gang.children[key], f"0/{nodes} nodes are available: {why_not_tried(self._gangs, gang.id, key)}.")
                for key in gang.in_order()
                if key == gang.children[key].metadata.key
            ]  # pods only
        )

    def _reject_held(self, ended: GangRound) -> None:
        """A round ends without enough members: a strict group keeps no nodes."""
        if not self._non_strict_waits or all(gang.strict for gang in self._gangs.gangs_of(ended.group)):
            ended.group.waiting_gang_ids.clear()
            reason = ended.failed or f'GangGroup "{ended.group.id}" gets rejected: not enough members could be placed'
            self.reject(ended.group, JOB_REJECT, reason)
