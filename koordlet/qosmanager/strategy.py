"""What a strategy is and what it can answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from koordlet.qosmanager.eviction import Task
from koordlet.qosmanager.view import NodeView
from koordlet.resourceexecutor import Update

Rows = Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Decision:
    """`updates`: all that the strategy wants set, by its settings; what it wanted before and leaves out is given back.
    `evictions`: what must be released and who may go. `figures`: rows of its metric families (label values without
    `node`). `note`: one sentence for people."""

    updates: tuple[Update, ...] = ()
    evictions: tuple[Task, ...] = ()
    figures: Mapping[str, Rows] = field(default_factory=dict)
    note: str = ""


class Strategy(Protocol):
    """`name` is the owner's name at the executor, `gate` its feature gate. One that follows pods is asked at once, too,
    when a hook tells of a new pod."""

    name: str
    gate: str
    follows_pods: bool = False

    def decide(self, view: NodeView) -> Decision | None:
        """The decision of one round; None when something it needs is missing: what was decided before stands."""
        ...

    def evicted(self, now: float) -> None:
        """Somebody of the last decision was evicted; strategies that evict cool down."""
        return
