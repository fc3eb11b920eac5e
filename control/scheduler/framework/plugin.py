"""What a scheduling plugin is (spec 05 §3.5, §5.1): one class, with a method for each extension point it works at.

A plugin's points are the methods that it overrides. Points that see nodes get *rows* and answer with a column:

- `filter(state, pod, rows)` answers with a number a row: 0 passes, anything else is a reason of `self.reasons`.
- `score(state, pod, rows)` answers with a raw score a row; `normalize` brings those of the feasible rows to 0..100.

`Reads` says what an answer for a row depends on, and so how long it may be remembered for pods of one shape. A plugin
that can only look at one node at a time overrides `filter_row` / `score_row`; it is asked last and only about rows
that everybody else accepts.

Everything up to Reserve and Permit is synchronous and must be quick; PreBind, Bind and PostBind run in a task of the
pod's own and may talk to the API server. Nothing here may change a `Pod` or `Node` object in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from control.scheduler.framework.status import SUCCESS, Code, Status
from control.scheduler.state.columns import IntArray, Reasons16, RowArray, Rows
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import selected
from koordlet.api.core import Pod

if TYPE_CHECKING:
    from control.scheduler.framework.handle import Handle

MAX_SCORE = 100


class Reads(IntEnum):
    """What an answer for (pod, row) depends on, besides the pod's shape."""

    NODE = 0
    """On the row's node object only."""
    PODS = 1
    """On the node object, the pods counted on the row, and whatever makes the plugin call `table.touch(row)`."""
    CLUSTER = 2
    """On anything, other rows and the pod itself included: asked again in every cycle."""


class Reasons:
    """A plugin's reasons for a rejection, as numbers from 1 on."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Code, tuple[str, ...]], int] = {}
        self._statuses: list[Status] = [SUCCESS]

    def number(self, code: Code, *texts: str) -> int:
        """The number of this reason (several texts count each)."""
        key = (code, texts)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._statuses)
            self._statuses.append(Status(code, texts))
        return found

    def status(self, number: int) -> Status:
        return self._statuses[number]


@dataclass
class CycleState:
    """What plugins leave for each other during one pod's cycle, by a key of their own."""

    data: dict[str, Any] = field(default_factory=dict)
    skip_filter: set[str] = field(default_factory=set)
    skip_score: set[str] = field(default_factory=set)
    phase: str = ""
    """`PostFilter` or `Reserve` while those run (spec 05 §5.4)."""
    same_job: frozenset[str] = frozenset()
    """uids of pods that are planned together: their nominations don't block each other (spec 05 §5.5)."""
    of_job: Callable[[PodInfo], bool] | None = None
    """Whether a pod belongs to the same job: releasing this pod does not help it, and would go on for ever."""
    measured: bool = False
    """Whether what plugins do while the pod is bound is timed."""
    preempted_for_job: bool = False
    """Somebody decided for the whole job whether room is made; doing it for this pod alone would be in vain."""
    plan: Sequence[tuple[PodInfo, int]] = ()
    """Every member of the pod's job and the row that FindOneNode plans for it (spec 05 §12.1)."""
    undo: list[Callable[[], None]] = field(default_factory=list)
    """Called, last first, when the synchronous part of the cycle is over; `Trial.undo` of a restored reservation."""


@dataclass(frozen=True)
class Event:
    """Something that happened in the cluster. `resource` is a kind (`Node`, `AssignedPod`, `NodeMetric` …)."""

    resource: str
    action: str
    """Add, Update, Delete, or a part of an update: Allocatable, Label, Taint, Condition, Annotation; for pods Label,
    ScaleDown, Toleration, GatesEliminated."""


Hint = Callable[[PodInfo, Any, Any], bool]
"""(waiting pod, old object, new object) -> whether it may fit now. One that raises counts as yes."""


@dataclass(frozen=True)
class Interest:
    """An event that may make a pod schedulable that this plugin rejected; `hint` None: always.

    `actions` empty: any. A plugin without interests is never woken by events (spec 05 §3.3)."""

    resource: str
    actions: frozenset[str] = frozenset()
    hint: Hint | None = None


@dataclass(frozen=True)
class PreFilterResult:
    """`rows`: only these need be looked at; None is all."""

    status: Status = SUCCESS
    rows: RowArray | None = None


@dataclass(frozen=True)
class PostFilterResult:
    """`nominated`: the node to nominate, "" to clear, None to leave as it is."""

    status: Status
    nominated: str | None = None


class Plugin:
    """Base of all plugins. `args` are the decoded arguments of the configuration (None: the plugin has none)."""

    name: ClassVar[str]
    reads: ClassVar[Reads] = Reads.PODS

    def __init__(self, args: Any, handle: Handle) -> None:
        self.args = args
        self.handle = handle
        self.table = handle.table
        self.reasons = Reasons()

    # -- queue -------------------------------------------------------------------------------------------------------

    def interests(self) -> Sequence[Interest]:
        return ()

    def pre_enqueue(self, pod: PodInfo) -> Status:
        """Whether the pod may enter the active queue."""
        return SUCCESS

    def sort_key(self, pod: PodInfo, timestamp: float) -> Any:
        """QueueSort: smaller is scheduled first. `timestamp`: when the pod entered the queue."""
        raise NotImplementedError

    def next_pod(self) -> PodInfo | None:
        """A pod to schedule next instead of the queue's head (spec 05 §5.2)."""
        return None

    # -- the cycle ---------------------------------------------------------------------------------------------------

    def before_pre_filter(self, state: CycleState, pod: PodInfo) -> Status:
        return SUCCESS

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        """Parse once, reject early, or narrow the rows. SKIP: this plugin's `filter` is not asked in this cycle."""
        return PreFilterResult()

    def after_pre_filter(self, state: CycleState, pod: PodInfo, rows: RowArray | None) -> Status:
        return SUCCESS

    def find_one_node(self, state: CycleState, pod: PodInfo, rows: RowArray | None) -> tuple[Status, int]:
        """(SUCCESS, row): the planned node; (SKIP, -1): schedule normally; else the cycle fails (spec 05 §12)."""
        raise NotImplementedError

    def prefer_nodes(self, state: CycleState, pod: PodInfo, rows: RowArray | None) -> Sequence[int]:
        """Rows to try first, in order; the first that passes every filter is taken (spec 05 §13.3)."""
        raise NotImplementedError

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        """[len(rows)]: 0, or the number of a reason."""
        chosen = selected(rows, self.table.size)
        return np.fromiter((self.filter_row(state, pod, int(row)) for row in chosen), np.int16, len(chosen))

    def filter_row(self, state: CycleState, pod: PodInfo, row: int) -> int:
        raise NotImplementedError

    def added(self, state: CycleState, pod: PodInfo, other: PodInfo, row: int) -> Status:
        """In a trial `other` was added to `row`: adjust what PreFilter left in `state` (AddPod)."""
        return SUCCESS

    def removed(self, state: CycleState, pod: PodInfo, other: PodInfo, row: int) -> Status:
        """In a trial `other` was removed from `row` (RemovePod)."""
        return SUCCESS

    def post_filter(self, state: CycleState, pod: PodInfo, failure: Any) -> PostFilterResult:
        """No node fits (`failure` is a `cycle.FitError`): make room, or say what is missing."""
        raise NotImplementedError

    def after_post_filter(self, state: CycleState, pod: PodInfo, failure: Any, result: PostFilterResult | None) -> None:
        """Observe a failure, after all PostFilter plugins."""

    def pre_score(self, state: CycleState, pod: PodInfo, rows: RowArray) -> Status:
        """`rows` are the feasible ones. SKIP: this plugin's score is 0 everywhere in this cycle."""
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        """[len(rows)]: raw scores; 0..100 unless `normalize` makes them so."""
        chosen = selected(rows, self.table.size)
        return np.fromiter((self.score_row(state, pod, int(row)) for row in chosen), np.int64, len(chosen))

    def score_row(self, state: CycleState, pod: PodInfo, row: int) -> int:
        raise NotImplementedError

    def normalize(self, state: CycleState, pod: PodInfo, rows: RowArray, scores: IntArray) -> IntArray:
        """The raw scores of the feasible `rows`, brought to 0..100."""
        raise NotImplementedError

    def resize_pod(self, state: CycleState, pod: PodInfo, row: int) -> Status:
        return SUCCESS

    def reserve(self, state: CycleState, pod: PodInfo, row: int) -> Status:
        """Claim in this plugin's own caches what the pod will use."""
        return SUCCESS

    def unreserve(self, state: CycleState, pod: PodInfo, row: int) -> None:
        """Give it back; also called when `reserve` never ran or failed."""

    def permit(self, state: CycleState, pod: PodInfo, row: int) -> Status:
        """SUCCESS, WAIT with a timeout, or a rejection."""
        return SUCCESS

    # -- binding -----------------------------------------------------------------------------------------------------

    async def pre_bind(self, state: CycleState, pod: PodInfo, row: int, changed: Pod) -> Status:
        """Last preparations; `changed` is a copy of the pod that may be edited, one patch is sent (spec 05 §5.7)."""
        return SUCCESS

    async def apply_patch(self, state: CycleState, original: Pod, changed: Pod) -> Status:
        """Send the difference that PreBind made. SKIP: let the next plugin do it."""
        raise NotImplementedError

    async def bind(self, state: CycleState, pod: PodInfo, node: str) -> Status:
        """Bind; SKIP leaves it to the next plugin."""
        raise NotImplementedError

    async def post_bind(self, state: CycleState, pod: PodInfo, row: int) -> None:
        """The pod is bound."""

    # -- around it ---------------------------------------------------------------------------------------------------

    def forgotten(self, pod: PodInfo) -> None:
        """An assumed pod was forgotten (spec 05 §5.1)."""

    def routes(self) -> Mapping[str, Callable[..., Any]]:
        """Pages under /apis/v1/plugins/<name>/: path -> handler(**path parameters) -> JSON (spec 05 §6)."""
        return {}

    async def start(self) -> None:
        """Controllers of this plugin, once the caches are filled and this process leads."""

    async def stop(self) -> None:
        """End what `start` began."""


def overrides(plugin: Plugin, method: str) -> bool:
    """Whether the plugin works at the point whose method this is."""
    return getattr(type(plugin), method) is not getattr(Plugin, method)


def default_normalize(scores: IntArray, *, reverse: bool = False) -> IntArray:
    """Upstream's default: the highest becomes 100 (spec 05 §4)."""
    highest = int(scores.max(initial=0))
    if highest == 0:
        return np.full(len(scores), MAX_SCORE, np.int64) if reverse else scores
    scaled: IntArray = scores * MAX_SCORE // highest
    return MAX_SCORE - scaled if reverse else scaled
