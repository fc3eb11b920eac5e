"""SchedulingHint: an annotation restricts the nodes of a pod, or names nodes to try first (spec 05 §13.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from control.scheduler.config.args import SchedulingHintArgs
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, Plugin, PreFilterResult
from control.scheduler.framework.status import SKIP, SUCCESS, PluginStatus, error
from control.scheduler.state.columns import RowArray
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api.annotations import scheduling
from koordlet.api.annotations.scheduling import SchedulingHint as Hint
from koordlet.api.encoding.wire import WireError

STATE: Final = "SchedulingHint"
"""Key of the hint in `CycleState.data`."""
NO_HINT: Final = PreFilterResult(SKIP)


class SchedulingHintPlugin(Plugin):
    """See the module text."""

    name: ClassVar[str] = "SchedulingHint"

    def __init__(self, args: SchedulingHintArgs | None, handle: Handle) -> None:
        super().__init__(args or SchedulingHintArgs(), handle)
        self.args: SchedulingHintArgs

    def before_pre_filter(self, state: CycleState, pod: PodInfo) -> PluginStatus:
        hint = hint_of(pod.shape)
        if hint is None:
            return SUCCESS
        if isinstance(hint, str):
            return error(hint)
        state.data[STATE] = hint
        return SUCCESS

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        hint: Hint | None = state.data.get(STATE)
        if hint is None or not hint.node_names:
            return NO_HINT
        rows = {row for name in hint.node_names if (row := self.table.row(name)) is not None}
        return PreFilterResult(rows=np.array(sorted(rows), np.intp))

    def prefer_nodes(self, state: CycleState, pod: PodInfo, rows: RowArray | None) -> Sequence[int]:
        hint: Hint | None = state.data.get(STATE)
        if hint is None:
            return ()
        allowed = None if rows is None else set(rows.tolist())
        preferred = (self.table.row(name) for name in hint.preferred_node_names[: self.args.max_hint_nodes])
        return [row for row in preferred if row is not None and (allowed is None or row in allowed)]


def designates(shape: Shape, plugin: str) -> bool:
    """Whether the pod's result annotation specifies what it gets from a plugin: its hint has an extension for it
    (spec 06 §2.9). A malformed hint designates nothing."""
    hint = hint_of(shape)
    return isinstance(hint, Hint) and plugin in hint.extensions


def hint_of(shape: Shape) -> Hint | str | None:
    """The hint, the error in it, or None."""
    if "SchedulingHint" not in shape.memo:
        parsed: Hint | str | None
        try:
            parsed = scheduling.scheduling_hint(shape.annotations) if shape.annotations else None
        except WireError as error:
            parsed = str(error)
        shape.memo["SchedulingHint"] = parsed
    hint: Hint | str | None = shape.memo["SchedulingHint"]
    return hint
