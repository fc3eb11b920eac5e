"""Runs the strategies: one picture a round for all that are due, declarations to the executor, one pass of writes.

A strategy that raises is logged with its cause and counted, keeps what it had declared, and runs again at the next
round; the others are not delayed. Called once a second by the daemon; `give_back` is its stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from koordlet.app.logging import get_logger
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.evictor import Evictor
from koordlet.qosmanager.engine.strategy import Decision, Notice, Strategy
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
"""Families that decisions fill."""


@dataclass(slots=True)
class _Slot:
    strategy: Strategy
    interval: float
    due: float = float("-inf")
    decided: Decision = field(default_factory=Decision)
    waiting: bool = True
    """Whether it could not decide the last time."""


class QoSManager:
    """`strategies` with their intervals in seconds; `look` gives the round's picture, None while there is no node."""

    def __init__(
        self,
        strategies: Sequence[tuple[Strategy, float]],
        look: Callable[[], NodeView | None],
        executor: Executor,
        evictor: Evictor,
        registries: Registries,
        tell: Callable[[Notice], None] = lambda notice: None,
        actor: Actor | None = None,
        *,
        outline: Callable[[], NodeView | None] = lambda: None,
    ) -> None:
        """`outline`: the picture without figures, which costs next to nothing (`look.Outline`)."""
        self._tell, self._actor, self._outline = tell, actor, outline
        self._slots = [_Slot(strategy, interval) for strategy, interval in strategies]
        self._look, self._executor, self._evictor, self._registries = look, executor, evictor, registries
        self._rules: tuple[CPURules | None, float] | None = None
        for family in FAMILIES:
            registries.view(family, lambda family=family: self._rows(family))

    @property
    def notes(self) -> dict[str, str]:
        """What each strategy says of its last decision."""
        return {
            slot.strategy.name: "waiting for figures" if slot.waiting else slot.decided.note or "nothing to do"
            for slot in self._slots
        }

    async def round(self) -> PassResult:
        """Decide what is due, make the kernel agree, then evict."""
        view = self._look()
        if view is None:
            return self._executor.apply()
        rules = (view.cpu_rules, view.normalization)
        news, self._rules = rules != self._rules, rules  # what pods get follows the node's rules at once
        due = []
        for slot in self._slots:
            at_once = (news and slot.strategy.follows_pods) or slot.strategy.overtaken()
            if at_once or view.now >= slot.due:
                self._decide(slot, view)
                due.append(slot)
        result = self._executor.apply()
        for slot in due:
            if slot.decided.actions and self._actor is not None:
                slot.strategy.acted(view.now, self._actor.act(slot.strategy.name, slot.decided.actions))
            if slot.decided.evictions and await self._evictor.work(slot.decided.evictions):
                slot.strategy.evicted(view.now)
        return result

    def follow(self) -> PassResult | None:
        """At once what follows pods, for one that starts; None while there is no picture of the node."""
        view = self._look()
        if view is None:
            return None
        for slot in self._slots:
            if slot.strategy.follows_pods:
                self._decide(slot, view)
        return self._executor.apply()

    def born(self, pods: Sequence[PodView]) -> PassResult | None:
        """At once what these newborns get, for a call that waits for it; None while there is no picture of the node.
        What follows from all pods together is decided with all of them, everything else at the next round."""
        outline = self._outline()
        if outline is None:
            return None
        view, settings, whole = replace(outline, newborns=tuple(pods), births=True), [], []
        for slot in self._slots:
            if slot.strategy.follows_pods:
                updates = self._for_newborns(slot, view)
                if updates is None:
                    whole.append(slot)
                else:
                    settings += self._executor.add(slot.strategy.name, updates)
        for pod in pods:
            if is_slice(pod.meta.cgroup_dir):  # systemd wrote its own values as the groups below appeared
                settings += self._executor.above(pod.meta.cgroup_dir)
        everything = self._look() if whole else None
        if everything is None:
            return self._executor.apply_to(settings)
        for slot in whole:
            self._decide(slot, everything)
        return self._executor.apply()

    def _for_newborns(self, slot: _Slot, view: NodeView) -> tuple[DesiredSetting, ...] | None:
        try:
            return slot.strategy.for_newborns(view)
        except Exception as error:  # one strategy's fault must not stop the others
            self._registries.count("resource_update_problems_total", slot.strategy.name, "", "raised")
            log.exception("strategy failed", strategy=slot.strategy.name, error=repr(error))
            return ()

    def give_back(self) -> PassResult:
        """Everything as the kubelet had set it."""
        return self._executor.restore_everything()

    def _decide(self, slot: _Slot, view: NodeView) -> None:
        slot.due = view.now + slot.interval
        try:
            decided = slot.strategy.decide(view)
        except Exception as error:  # one strategy's fault must not stop the others
            self._registries.count("resource_update_problems_total", slot.strategy.name, "", "raised")
            log.exception("strategy failed", strategy=slot.strategy.name, error=repr(error))
            slot.decided = replace(slot.decided, evictions=(), actions=())
            return
        slot.waiting = decided is None
        if decided is None:  # settings stand, victims of another moment do not; asked again at the next round
            slot.due = view.now
            slot.decided = replace(slot.decided, evictions=(), actions=())
        else:
            slot.decided = decided
            self._executor.declare(slot.strategy.name, decided.updates)
            for notice in decided.notices:
                self._tell(notice)

    def _rows(self, family: str) -> Iterable[tuple[tuple[str, ...], float]]:
        return [row for slot in self._slots for row in slot.decided.figures.get(family, {}).items()]
