"""What a strategy is, and what it decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from koordlet.qosmanager.engine.eviction import EvictionTask
from koordlet.qosmanager.engine.view import NodeView
from koordlet.resourceexecutor import Action, DesiredSetting, Setting
from koordlet.resourceexecutor.actions import ActionOutcome
from koordlet.statesinformer.pods.model import PodMeta

Rows = Mapping[tuple[str, ...], float]
Supports = Callable[[str, str], bool]
"""(resource, directory) -> whether this kernel has it there."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to publish about a pod: in the audit log; as an Event unless `event` is empty; as a count if `counts`
    has a metric family and its label values. The text of an Event is the same for the same fact, so that repetitions
    are one Event."""

    pod: PodMeta
    reason: str
    message: str
    event: str = ""
    warning: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)
    counts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QoSDecision:
    """`updates`: all settings that the strategy desires; a setting that it desired before and leaves out is restored.
    `evictions`: what must be released, with the victims. `figures`: rows of its metric families (label values without
    `node`). `note`: one sentence for people. `notices`: what changed with this decision and is to be published.
    `actions`: writes that are done once, with this decision."""

    updates: tuple[DesiredSetting, ...] = ()
    evictions: tuple[EvictionTask, ...] = ()
    figures: Mapping[str, Rows] = field(default_factory=dict)
    note: str = ""
    notices: tuple[Notice, ...] = ()
    actions: tuple[Action, ...] = ()


class Strategy(Protocol):
    """`name` is the owner's name at the executor. With `follows_pods`, it also decides at once when a hook announces a
    new pod."""

    name: str
    follows_pods: bool = False

    def decide(self, view: NodeView) -> QoSDecision | None:
        """The decision of one round; None when required figures are missing: the previous decision stays in force."""
        ...

    def for_announced(self, view: NodeView) -> tuple[DesiredSetting, ...] | None:
        """For a strategy that follows pods: what `decide` would give the view's announced pods, if that follows from
        them alone (`view.announced_only` is set); None when it does not."""
        return None

    def outdated(self) -> bool:
        """Whether another strategy's decision has made the last one wrong: then it decides in this round, due or not.
        Strategies decide in order, so a strategy that depends on others comes after them."""
        return False

    def evicted(self, now: float) -> None:
        """A victim of the last decision was evicted; strategies that evict cool down."""
        return

    def acted(self, now: float, outcomes: Mapping[Setting, ActionOutcome]) -> None:
        """Outcomes of the last decision's actions."""
        return


class PerPodStrategy(Strategy):
    """A strategy without state whose decision for each pod is independent of the other pods that it follows."""

    follows_pods = True

    def for_announced(self, view: NodeView) -> tuple[DesiredSetting, ...] | None:
        """See `Strategy`. Includes the node's own settings, which are in force already."""
        decision = self.decide(view)
        return () if decision is None else decision.updates
