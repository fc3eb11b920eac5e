"""Runs the strategies: one node view per round for all that are due, declarations to the executor, one pass of writes.

A strategy that raises is logged with its cause and counted, keeps its previous declarations, and runs again in the next
round; the other strategies are not delayed. Called once a second; `restore` is called at the stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from koordlet.app.logging import get_logger
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.evictor import PodEvictor
from koordlet.qosmanager.engine.strategy import Notice, QoSDecision, Strategy
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.rules.cpu import CPURules
from koordlet.resourceexecutor import DesiredSetting, Executor, PassResult
from koordlet.resourceexecutor.actions import Actor
from koordlet.system.cgroup.naming import is_slice

log = get_logger(__name__)

FAMILIES = (
    "be_suppress_cpu_cores",
    "be_suppress_ls_used_cpu_cores",
    "container_scaled_cfs_burst_us",
    "container_scaled_cfs_quota_us",
    "interference_action_level",
    "container_oom_score_adj",
)
"""Metric families that decisions fill."""


@dataclass(slots=True)
class _Slot:
    strategy: Strategy
    interval: float
    due: float = float("-inf")
    decision: QoSDecision = field(default_factory=QoSDecision)
    waiting: bool = True
    """Whether figures were missing for the last decision."""


class QoSManager:
    """`strategies` with their intervals in seconds; `node_view` returns the round's view, None while the node is
    unknown; `outline` the view without figures, which costs almost nothing (`ViewBuilder.outline`)."""

    def __init__(
        self,
        strategies: Sequence[tuple[Strategy, float]],
        node_view: Callable[[], NodeView | None],
        executor: Executor,
        evictor: PodEvictor,
        registries: Registries,
        publish: Callable[[Notice], None] = lambda notice: None,
        actor: Actor | None = None,
        *,
        outline: Callable[[], NodeView | None] = lambda: None,
    ) -> None:
        self._slots = [_Slot(strategy, interval) for strategy, interval in strategies]
        self._node_view = node_view
        self._outline = outline
        self._executor = executor
        self._evictor = evictor
        self._registries = registries
        self._publish = publish
        self._actor = actor
        self._rules: tuple[CPURules | None, float] | None = None
        for family in FAMILIES:
            registries.view(family, lambda family=family: self._rows(family))

    @property
    def notes(self) -> dict[str, str]:
        """Each strategy's note about its last decision."""
        return {
            slot.strategy.name: "waiting for figures" if slot.waiting else slot.decision.note or "nothing to do"
            for slot in self._slots
        }

    async def round(self) -> PassResult:
        """Run the strategies that are due, write what differs, then evict."""
        view = self._node_view()
        if view is None:
            return self._executor.apply()
        rules = (view.cpu_rules, view.normalization)
        rules_changed, self._rules = rules != self._rules, rules  # pods get the node's new rules at once
        due = []
        for slot in self._slots:
            at_once = (rules_changed and slot.strategy.follows_pods) or slot.strategy.outdated()
            if at_once or view.now >= slot.due:
                self._decide(slot, view)
                due.append(slot)
        result = self._executor.apply()
        for slot in due:
            if slot.decision.actions and self._actor is not None:
                slot.strategy.acted(view.now, self._actor.act(slot.strategy.name, slot.decision.actions))
            if slot.decision.evictions and await self._evictor.work(slot.decision.evictions):
                slot.strategy.evicted(view.now)
        return result

    def follow(self) -> PassResult | None:
        """Run the strategies that follow pods at once, for a pod that starts; None while there is no node view."""
        view = self._node_view()
        if view is None:
            return None
        for slot in self._slots:
            if slot.strategy.follows_pods:
                self._decide(slot, view)
        return self._executor.apply()

    def follow_announced(self, pods: Sequence[PodView]) -> PassResult | None:
        """Apply the settings of these announced pods at once, for a hook call that waits; None while there is no node
        view. A strategy whose result depends on all pods decides for all; everything else waits for the next round."""
        outline = self._outline()
        if outline is None:
            return None
        view = replace(outline, announced=tuple(pods), announced_only=True)
        settings, dependent = [], []
        for slot in self._slots:
            if slot.strategy.follows_pods:
                updates = self._for_announced(slot, view)
                if updates is None:
                    dependent.append(slot)
                else:
                    settings += self._executor.add(slot.strategy.name, updates)
        for pod in pods:
            if is_slice(pod.meta.cgroup_dir):  # systemd wrote its own values when the child cgroups appeared
                settings += self._executor.above(pod.meta.cgroup_dir)
        full_view = self._node_view() if dependent else None
        if full_view is None:
            return self._executor.apply_to(settings)
        for slot in dependent:
            self._decide(slot, full_view)
        return self._executor.apply()

    def restore(self) -> PassResult:
        """Restore everything to what the kubelet had set."""
        return self._executor.restore_everything()

    def _for_announced(self, slot: _Slot, view: NodeView) -> tuple[DesiredSetting, ...] | None:
        try:
            return slot.strategy.for_announced(view)
        except Exception as error:  # one strategy's fault must not stop the others
            log.exception("Strategy failed", strategy=slot.strategy.name, error=repr(error))
            self._count_failure(slot)
            return ()

    def _decide(self, slot: _Slot, view: NodeView) -> None:
        slot.due = view.now + slot.interval
        try:
            decision = slot.strategy.decide(view)
        except Exception as error:  # one strategy's fault must not stop the others
            log.exception("Strategy failed", strategy=slot.strategy.name, error=repr(error))
            self._count_failure(slot)
            slot.decision = replace(slot.decision, evictions=(), actions=())
            return
        slot.waiting = decision is None
        if decision is None:  # settings stay in force, victims of another moment do not; it decides in the next round
            slot.due = view.now
            slot.decision = replace(slot.decision, evictions=(), actions=())
            return
        slot.decision = decision
        self._executor.declare(slot.strategy.name, decision.updates)
        for notice in decision.notices:
            self._publish(notice)

    def _count_failure(self, slot: _Slot) -> None:
        self._registries.count("resource_update_problems_total", slot.strategy.name, "", "raised")

    def _rows(self, family: str) -> Iterable[tuple[tuple[str, ...], float]]:
        return [row for slot in self._slots for row in slot.decision.figures.get(family, {}).items()]
