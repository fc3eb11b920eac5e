"""The base class of scheduling plugins (spec 05 §3.5, §5.1): one class, with one method per extension point.

A plugin works at the extension points whose methods it overrides. Methods that evaluate nodes get *rows* of the node
table and return one column with a value per row:

- `filter(state, pod, rows)` returns a number per row: 0 passes, any other number is a reason in `self.reasons`.
- `score(state, pod, rows)` returns a raw score per row; `normalize` maps the scores of the feasible rows to 0..100.

`Reads` declares what a result depends on, and therefore how long it may be cached for pods of one shape. A plugin that
can evaluate only one node at a time overrides `filter_row` or `score_row`. Such filters run last, and only for rows
that every other filter accepts.

All calls up to Permit are synchronous and must be fast. PreBind, Bind and PostBind run in a task per pod and may call
the API server. No method may modify a `Pod` or `Node` object in place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from control.scheduler.framework.runtime import PluginRuntime
from control.scheduler.framework.status import SUCCESS, Code, PluginStatus
from control.scheduler.framework.suggestion import Suggestion
from control.scheduler.state.columns import IntArray, Reasons16, RowArray, Rows
from control.scheduler.state.credit import Offer, RowCredit
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import selected
from koordlet.api.core import Pod

if TYPE_CHECKING:
    from control.scheduler.cycle.failures import FitError
    from control.scheduler.framework.handle import Handle

MAX_SCORE = 100


class Reads(IntEnum):
    """What the result for (pod, row) depends on, besides the pod's shape."""

    NODE = 0
    """Only on the row's node object."""
    PODS = 1
    """On the node object, on the pods counted on the row, and on plugin data whose changes the plugin reports with
    `table.touch(row)`."""
    CLUSTER = 2
    """On anything, including other rows and the pod itself. The plugin is called in every cycle."""


@dataclass(frozen=True)
class AttemptFailure:
    """An attempt that failed, in the cycle or in the binding."""

    pod: PodInfo
    status: PluginStatus
    message: str
    rejected_by: frozenset[str]
    """The plugins whose events may help; none after an error."""
    nominated: str | None
    """What becomes of the nomination: a node, "" to remove it, None to keep it."""


MAX_REASONS: Final = 16384
"""Distinct reasons of one plugin: texts may contain what tenants write, and results are columns of 16 bits."""
OTHER_REASON: Final = "node(s) didn't fit for another reason"
"""Stands for the texts of a plugin that already has `MAX_REASONS`."""


class Reasons:
    """The reasons for which a plugin rejects nodes, numbered from 1."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Code, tuple[str, ...]], int] = {}
        self._statuses: list[PluginStatus] = [SUCCESS]

    def number(self, code: Code, *texts: str) -> int:
        """The number of this reason. Each of several texts is counted separately in messages."""
        key = (code, texts)
        number = self._numbers.get(key)
        if number is None:
            if len(self._statuses) >= MAX_REASONS and texts != (OTHER_REASON,):
                return self.number(code, OTHER_REASON)
            number = self._numbers[key] = len(self._statuses)
            self._statuses.append(PluginStatus(code, texts))
        return number

    def status(self, number: int) -> PluginStatus:
        return self._statuses[number]


@dataclass(frozen=True)
class ExtenderResult:
    """The results of the extenders for the nodes that fitted a pod before its cycle, by node name."""

    allowed: frozenset[str]
    refused: Mapping[str, PluginStatus] = field(default_factory=dict)
    scores: Mapping[str, int] = field(default_factory=dict)
    """Weighted and scaled to plugin scores. Nodes that are missing have score 0."""


@dataclass
class CycleState:
    """Data that plugins pass to each other during one pod's cycle, by a key of the plugin."""

    data: dict[str, Any] = field(default_factory=dict)
    skip_filter: set[str] = field(default_factory=set)
    skip_score: set[str] = field(default_factory=set)
    phase: str = ""
    """`PostFilter` or `Reserve` while those run (spec 05 §5.4)."""
    same_job: frozenset[str] = frozenset()
    """uids of pods that are planned together. Their nominations do not block each other (spec 05 §5.5)."""
    of_job: Callable[[PodInfo], bool] | None = None
    """Whether a pod belongs to the same job. Releasing this pod does not wake such pods, or the members of a job that
    does not fit would wake each other endlessly."""
    trial: bool = False
    """The pod is only evaluated: for an explanation, an extender or the preemption of a job. Nothing follows from the
    result, so plugins must not record an attempt."""
    measured: bool = False
    """Whether the plugins' calls during binding are timed."""
    preempted_for_job: bool = False
    """A plugin has decided about preemption for the whole job, so preemption for this pod alone is pointless."""
    plan: Sequence[tuple[PodInfo, int]] = ()
    """Every member of the pod's job with the row that FindOneNode planned for it (spec 05 §12.1)."""
    credit: RowCredit | None = None
    """Room that the pod may use although the table counts it as used. Set before PreFilter."""
    taken: Offer | None = None
    """What the pod takes on the chosen row. Set by `nominate`."""
    variant: Hashable = None
    """Differs for pods of one shape whose results per row differ, e.g. because their names match different
    reservations. Results are cached per shape and variant. Set before PreFilter."""
    undo: list[Callable[[], None]] = field(default_factory=list)
    """Reverts changes made for this cycle, e.g. `Trial.undo` of a restored reservation; see `run_undo`."""
    extenders: ExtenderResult | None = None
    """None: no extender was called for this pod."""

    suggestion: Suggestion | None = None
    """Set by `suggest`."""

    def suggest(self, suggestion: Suggestion) -> bool:
        """Add advice to the reasons of PostFilter. False: another one was set before and stays."""
        if self.suggestion is not None:
            return False
        self.suggestion = suggestion
        return True

    def run_undo(self) -> None:
        """Call and clear `undo`, last entry first. Done at the end of the synchronous part of the cycle."""
        while self.undo:
            self.undo.pop()()


@dataclass(frozen=True)
class ClusterEvent:
    """A change in the cluster. `resource` is a kind (`Node`, `AssignedPod`, `NodeMetric` …)."""

    resource: str
    action: str
    """Add, Update, Delete, or a part of an update: Allocatable, Label, Taint, Condition, Annotation; for pods Label,
    ScaleDown, Toleration, GatesEliminated, GeneratedClaim."""


Hint = Callable[[PodInfo, Any, Any], bool]
"""(waiting pod, old object, new object) -> whether the pod may fit now. An exception counts as True."""


@dataclass(frozen=True)
class EventInterest:
    """Events that may make a pod schedulable that this plugin rejected. Without `hint` every such event wakes the pod.

    Empty `actions` match every action. A plugin without interests is never woken by events (spec 05 §3.3)."""

    resource: str
    actions: frozenset[str] = frozenset()
    hint: Hint | None = None


@dataclass(frozen=True)
class PreFilterResult:
    """`rows`: the only rows to evaluate; None means all."""

    status: PluginStatus = SUCCESS
    rows: RowArray | None = None


@dataclass(frozen=True)
class PostFilterResult:
    """`nominated`: the node to nominate; "" removes the nomination, None keeps it."""

    status: PluginStatus
    nominated: str | None = None


class Plugin:
    """Base of all plugins. `args` are the decoded arguments of the configuration, None if the plugin has none."""

    name: ClassVar[str]
    makes_room_itself: ClassVar[bool] = False
    """Only the plugin's own PostFilter preempts for pods that its PreFilter rejects, because other victims would not
    help them."""
    reads: ClassVar[Reads] = Reads.PODS

    def __init__(self, args: Any, handle: Handle) -> None:
        self.args = args
        self.handle = handle
        self.table = handle.table
        self.reasons = Reasons()
        self.runtime = PluginRuntime()

    def connect(self, runtime: PluginRuntime) -> None:
        """Receive the services that are built from the plugins. Called once, before the first event and cycle."""
        self.runtime = runtime

    # Queue

    def interests(self) -> Sequence[EventInterest]:
        return ()

    def pre_enqueue(self, pod: PodInfo) -> PluginStatus:
        """Whether the pod may enter the active queue."""
        return SUCCESS

    def sort_key(self, pod: PodInfo, timestamp: float) -> Any:
        """QueueSort: pods with smaller keys are scheduled first. `timestamp`: when the pod entered the queue."""
        raise NotImplementedError

    def next_pod(self) -> PodInfo | None:
        """A pod to schedule next instead of the head of the queue (spec 05 §5.2)."""
        return None

    # Cycle

    def before_pre_filter(self, state: CycleState, pod: PodInfo) -> PluginStatus:
        """Prepare `state`, or change the table for this cycle: `state.undo` must revert that. Also called when the pod
        is only evaluated (`state.trial`)."""
        return SUCCESS

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        """Parse the pod once, reject it early, or restrict the rows. SKIP: `filter` is not called in this cycle."""
        return PreFilterResult()

    def after_pre_filter(self, state: CycleState, pod: PodInfo, rows: RowArray | None) -> PluginStatus:
        return SUCCESS

    def find_one_node(self, state: CycleState, pod: PodInfo, rows: RowArray | None) -> tuple[PluginStatus, int]:
        """(SUCCESS, row): the planned node; (SKIP, -1): schedule normally; otherwise the cycle fails (spec 05 §12)."""
        raise NotImplementedError

    def prefer_nodes(self, state: CycleState, pod: PodInfo, rows: RowArray | None) -> Sequence[int]:
        """Rows to try first, in order. The first row that passes every filter is used (spec 05 §13.3)."""
        raise NotImplementedError

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        """[len(rows)]: 0, or the number of a reason."""
        chosen = selected(rows, self.table.size)
        return np.fromiter((self.filter_row(state, pod, int(row)) for row in chosen), np.int16, len(chosen))

    def filter_row(self, state: CycleState, pod: PodInfo, row: int) -> int:
        raise NotImplementedError

    def rejection_details(self, pod: PodInfo, row: int) -> Sequence[str]:
        """What an explanation adds to the reason for which `filter` rejected the row, one statement per line."""
        return ()

    def added(self, state: CycleState, pod: PodInfo, other: PodInfo, row: int) -> PluginStatus:
        """A dry run added `other` to `row`: update the data that PreFilter put into `state` (AddPod)."""
        return SUCCESS

    def removed(self, state: CycleState, pod: PodInfo, other: PodInfo, row: int) -> PluginStatus:
        """A dry run removed `other` from `row` (RemovePod)."""
        return SUCCESS

    def post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> PostFilterResult:
        """No node fits: make room, or return what is missing."""
        raise NotImplementedError

    def after_post_filter(
        self, state: CycleState, pod: PodInfo, failure: FitError, result: PostFilterResult | None
    ) -> None:
        """Observe a failure, after all PostFilter plugins ran."""

    def pre_score(self, state: CycleState, pod: PodInfo, rows: RowArray) -> PluginStatus:
        """`rows`: the feasible rows. SKIP: this plugin's score is 0 for every row in this cycle."""
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        """[len(rows)]: raw scores. They must be within 0..100 unless `normalize` maps them to that range."""
        chosen = selected(rows, self.table.size)
        return np.fromiter((self.score_row(state, pod, int(row)) for row in chosen), np.int64, len(chosen))

    def score_row(self, state: CycleState, pod: PodInfo, row: int) -> int:
        raise NotImplementedError

    def normalize(self, state: CycleState, pod: PodInfo, rows: RowArray, scores: IntArray) -> IntArray:
        """The raw scores of the feasible `rows`, mapped to 0..100."""
        raise NotImplementedError

    def refuses_offer(self, state: CycleState, pod: PodInfo, row: int, offer: Offer) -> str:
        """Why the pod cannot get its share from the reservation, see `Offer`; empty if it can (spec 05 §5.1)."""
        return ""

    def nominate(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        """A node was chosen and the pod is not counted there yet: choose what it takes there, e.g. a reservation
        (spec 05 §5.2). Called before `resize_pod`."""
        return SUCCESS

    def resize_pod(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        return SUCCESS

    def reserve(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        """Claim in this plugin's own caches what the pod will use."""
        return SUCCESS

    def unreserve(self, state: CycleState, pod: PodInfo, row: int) -> None:
        """Release the claim. Also called when `reserve` was not called or failed."""

    def permit(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        """SUCCESS, WAIT with a timeout, or a rejection."""
        return SUCCESS

    # Binding

    async def pre_bind(self, state: CycleState, pod: PodInfo, row: int, changed: Pod) -> PluginStatus:
        """Prepare the binding. `changed` is a copy of the pod that may be edited; all edits are sent in one patch
        (spec 05 §5.7)."""
        return SUCCESS

    async def apply_patch(self, state: CycleState, pod: PodInfo, original: Pod, changed: Pod) -> PluginStatus:
        """Send the edits of PreBind. SKIP leaves it to the next plugin."""
        raise NotImplementedError

    async def bind(self, state: CycleState, pod: PodInfo, node: str) -> PluginStatus:
        """Bind the pod. SKIP leaves it to the next plugin."""
        raise NotImplementedError

    async def post_bind(self, state: CycleState, pod: PodInfo, row: int) -> None:
        """The pod is bound."""

    # Failures

    def take_over_failure(self, failure: AttemptFailure) -> bool:
        """Whether this plugin handles a failed attempt instead of the scheduler (spec 05 §5.6). Then the pod gets no
        condition and no Event, and only the plugin returns it to the queue (`runtime.queue.requeue`), now or later."""
        return False

    def after_failure(self, failure: AttemptFailure) -> bool:
        """A failed attempt was handled. True: no further plugin is called."""
        return False

    # Process

    def forgotten(self, pod: PodInfo) -> None:
        """An assumed pod was removed from the cache (spec 05 §5.1)."""

    def routes(self) -> Mapping[str, Callable[..., Any]]:
        """Pages under /apis/v1/plugins/<name>/: path -> handler(**path parameters) -> JSON (spec 05 §6). A handler that
        accepts any keyword also gets the parameters of the query."""
        return {}

    async def start(self) -> None:
        """Start the plugin's controllers. Called when the caches are filled and this process is the leader."""

    async def stop(self) -> None:
        """Stop the plugin's controllers."""


def overrides(plugin: Plugin, method: str) -> bool:
    """Whether the plugin works at the extension point of this method."""
    return getattr(type(plugin), method) is not getattr(Plugin, method)


def default_normalize(scores: IntArray, *, reverse: bool = False) -> IntArray:
    """kube-scheduler's default: the highest score becomes 100 (spec 05 §4)."""
    highest = int(scores.max(initial=0))
    if highest == 0:
        return np.full(len(scores), MAX_SCORE, np.int64) if reverse else scores
    scaled: IntArray = scores if highest == MAX_SCORE else scores * MAX_SCORE // highest
    return MAX_SCORE - scaled if reverse else scaled
