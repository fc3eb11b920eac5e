"""What a strategy is and what it can answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from koordlet.qosmanager.engine.eviction import Task
from koordlet.qosmanager.engine.view import NodeView
from koordlet.resourceexecutor import Action, DesiredSetting, Setting
from koordlet.resourceexecutor.actions import ActionOutcome
from koordlet.statesinformer.pods.model import PodMeta

Rows = Mapping[tuple[str, ...], float]
Supports = Callable[[str, str], bool]
"""(resource, directory) -> whether this kernel has it there."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to say of a pod: in the audit log, as an Event where `event` has words, and as a count where `counts`
    names a family and its label values. An Event's words are the same for the same thing, so that it is one Event."""

    pod: PodMeta
    reason: str
    message: str
    event: str = ""
    warning: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)
    counts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """`updates`: all that the strategy wants set, by its settings; what it wanted before and leaves out is given back.
    `evictions`: what must be released and who may go. `figures`: rows of its metric families (label values without
    `node`). `note`: one sentence for people. `notices`: what changed with this decision and is to be said.
    `actions`: writes that are done once, with this decision."""

    updates: tuple[DesiredSetting, ...] = ()
    evictions: tuple[Task, ...] = ()
    figures: Mapping[str, Rows] = field(default_factory=dict)
    note: str = ""
    notices: tuple[Notice, ...] = ()
    actions: tuple[Action, ...] = ()


class Strategy(Protocol):
    """`name` is the owner's name at the executor, `gate` its feature gate. One that follows pods is asked at once, too,
    when a hook tells of a new pod."""

    name: str
    gate: str
    follows_pods: bool = False

    def decide(self, view: NodeView) -> Decision | None:
        """The decision of one round; None when something it needs is missing: what was decided before stands."""
        ...

    def for_newborns(self, view: NodeView) -> tuple[DesiredSetting, ...] | None:
        """For one that follows pods: what `decide` would say of this view's newborns, if that can be told without
        deciding about everybody (`view.births` is set); None when it can't."""
        return None

    def overtaken(self) -> bool:
        """Whether another strategy's decision has made the last one wrong: then it is asked in this round, due or not.
        Strategies are asked in order, so those that follow others come after them."""
        return False

    def evicted(self, now: float) -> None:
        """Somebody of the last decision was evicted; strategies that evict cool down."""
        return

    def acted(self, now: float, outcomes: Mapping[Setting, ActionOutcome]) -> None:
        """What became of the last decision's actions."""
        return


class PodByPod(Strategy):
    """One whose decision has no state and says of each pod what it would say if that were the only one to follow."""

    follows_pods = True

    def for_newborns(self, view: NodeView) -> tuple[DesiredSetting, ...] | None:
        """See `Strategy`. With what it says of the node, which stands already."""
        decision = self.decide(view)
        return () if decision is None else decision.updates
