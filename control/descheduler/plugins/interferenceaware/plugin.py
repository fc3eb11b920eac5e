"""The plugin InterferenceAware: moves a pod when a service remains delayed although the node's strategies act.

koordlet throttles best-effort culprits within seconds. A delay that every report of many minutes shows is one that the
node cannot end. Then the main culprit moves, or the service if the culprit may not move or is not known. The
scheduler's InterferenceAware plugin and node fit keep the pod off nodes with the same interference. Off by default.

Bounded: `maxMovesPerPass`; after a move the node and the pod's workload are left alone for `cooldownSeconds`, also by
the next leader, so that no workload moves back and forth. The evidence is the job's reason, an Event of the service and
a log message.
"""

from __future__ import annotations

from collections.abc import Sequence

from control.descheduler.config.selection import considered
from control.descheduler.framework.fit import fits_any
from control.descheduler.framework.handle import PluginHandle
from control.descheduler.framework.plugin import BalancePlugin
from control.descheduler.plugins.interferenceaware.args import InterferenceMovesArgs
from control.descheduler.plugins.interferenceaware.history import DelayHistory, LastingDelay
from control.descheduler.plugins.interferenceaware.recentmoves import RecentMoves
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord
from koordlet.api.names import ANNOTATION_INTERFERENCE_MOVES
from koordlet.app.logging import get_logger
from koordlet.kube import KubeError

log = get_logger(__name__)

EVENT_REASON = "InterferencePersists"
SHARED = "interference-moves"


class InterferenceMoves(BalancePlugin):
    """See the module text."""

    name = "InterferenceAware"
    args_type = InterferenceMovesArgs

    def __init__(self, args: InterferenceMovesArgs, handle: PluginHandle) -> None:
        self._args = args
        self._handle = handle
        self._history = DelayHistory(args.report_expiration_seconds)
        note = handle.lease_note(ANNOTATION_INTERFERENCE_MOVES, float)
        self._moves = handle.share(SHARED, lambda: RecentMoves(handle.clock, note))
        self._moves.keep_s = max(self._moves.keep_s, args.cooldown_seconds)

    async def balance(self, nodes: Sequence[NodeRecord]) -> None:
        if self._args.paused:
            return
        self._read_reports(nodes)
        try:
            await self._moves.read()
            await self._move_all(nodes)
        except KubeError as error:
            log.warning("No pod moves because of interference: moves cannot be recorded", err=error)

    async def _move_all(self, nodes: Sequence[NodeRecord]) -> None:
        moves = 0
        persist_s = 0 if self._handle.process.preview else self._args.persist_seconds
        lasting = self._history.lasting(self._handle.clock.now(), persist_s)
        for each in lasting:
            if moves >= self._args.max_moves_per_pass:
                return
            if not self._is_quiet(each.node) and await self._move(each, nodes):
                moves += 1

    def _read_reports(self, nodes: Sequence[NodeRecord]) -> None:
        self._history.forget_all_but({node.name for node in nodes})
        for node in nodes:
            if node.load is not None and node.load.updated is not None:
                sure = [each for each in node.load.delays if each.confidence >= self._args.min_confidence]
                self._history.report(node.name, node.load.updated, sure)

    async def _move(self, lasting: LastingDelay, nodes: Sequence[NodeRecord]) -> bool:
        """Move the culprit or the service. Whether one of them moves. Raises KubeError if it cannot be recorded."""
        calm = [node for node in nodes if node.name not in self._history.troubled_nodes(self._handle.clock.now())]
        refusals = []
        for pod, role in self._candidates(lasting):
            refusal = self._refusal(pod, lasting, calm)
            if refusal is not None:
                refusals.append(f"{role} {pod.key}: {refusal}")
                continue
            reason = describe(lasting, pod)
            if not await self._evict(lasting, pod, reason):
                refusals.append(f"{role} {pod.key}: not evicted")
                continue
            self._report(lasting, pod, reason)
            return True
        log.info("Nothing moves although a service is delayed", victim=lasting.delay.victim, why="; ".join(refusals))
        return False

    def _candidates(self, lasting: LastingDelay) -> list[tuple[PodRecord, str]]:
        """The pods that may move, in order of preference."""
        state, delay = self._handle.state, lasting.delay
        candidates = []
        culprit = state.pods.get(delay.culprit)
        if culprit is not None and culprit.key != delay.victim and delay.share >= self._args.min_culprit_share:
            candidates.append((culprit, "culprit"))
        victim = state.pods.get(delay.victim)
        if victim is not None and self._args.move_victims:
            candidates.append((victim, "service"))
        return candidates

    def _refusal(self, pod: PodRecord, lasting: LastingDelay, calm: Sequence[NodeRecord]) -> str | None:
        if pod.node != lasting.node:
            return f"is not on {lasting.node} any more"
        if not considered(pod, self._args.evictable_namespaces, []):
            return "its namespace is excluded"
        if self._is_quiet(_workload(pod)):
            return "its workload has moved a pod recently"
        if self._args.node_fit and not fits_any(pod, calm):
            return "it fits no other node without interference"
        return self._handle.evictor.filter(pod)

    async def _evict(self, lasting: LastingDelay, pod: PodRecord, reason: str) -> bool:
        """Record the move, then request it."""
        keys, evictor = (lasting.node, _workload(pod)), self._handle.evictor
        if self._args.dry_run or self._handle.dry_run:
            self._moves.add(keys)
            return await evictor.evict(pod, reason, dry_run=self._args.dry_run)
        before = await self._moves.record(keys)
        if await evictor.evict(pod, reason):
            return True
        await self._moves.undo(before)
        return False

    def _report(self, lasting: LastingDelay, pod: PodRecord, reason: str) -> None:
        victim = self._handle.state.pods.get(lasting.delay.victim)
        if victim is not None and not self._handle.process.preview:
            verb = "would move" if self._args.dry_run or self._handle.dry_run else "moves"
            self._handle.events.warning(victim.pod, EVENT_REASON, f"koord-descheduler {verb} pod {pod.key}: {reason}")

    def _is_quiet(self, key: str) -> bool:
        return self._moves.within(key, self._args.cooldown_seconds)


def describe(lasting: LastingDelay, pod: PodRecord) -> str:
    """The evidence as a sentence, for the job, the Event and the log."""
    delay = lasting.delay
    text = (
        f"pod {delay.victim} (container {delay.container}) has lost {delay.lost:.0%} of its time to "
        f"co-located pods ({delay.resource}) for {_duration(lasting.seconds)} on node {lasting.node}"
    )
    if delay.culprit:
        text += f"; {delay.culprit} causes {delay.share:.0%} of it"
    return text + ("" if pod.key == delay.culprit else "; the delayed pod itself moves")


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


def _workload(pod: PodRecord) -> str:
    """The UID of the controller; the pod itself without one."""
    owner = pod.controller
    return owner.uid if owner is not None else pod.uid
