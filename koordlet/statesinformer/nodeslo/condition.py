"""Reports which fields of the NodeSLO are not in force, and why: Node condition `NodeSLOInvalid`, an Event, a count.

The condition is written only when it differs from the Node's current one, so a Node with a valid NodeSLO is never
written to. A failed write is retried at the next `update`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koordlet.api import slocheck
from koordlet.api.core import Node
from koordlet.api.core.node import NodeCondition
from koordlet.api.encoding.wire import Time, to_builtins
from koordlet.kube import Client, EventRecorder, PatchKind
from koordlet.prometheus import Registries
from koordlet.statesinformer.states import KubeStates

CONDITION_TYPE = "NodeSLOInvalid"
ACCEPTED_REASON = "NodeSLOAccepted"
INVALID_REASON = "NodeSLONotTaken"
UPDATE_PERIOD_S = 5.0
REWRITE_AFTER_S = 60.0
"""A condition that the Node does not show this long after it was written is written again."""
MAX_FIELDS_IN_MESSAGE = 5
MALFORMED_FIELD = "spec"
ACCEPTED_MESSAGE = "all of NodeSLO is in force"


def message(problems: dict[str, str]) -> str:
    """`field: reason` of the first `MAX_FIELDS_IN_MESSAGE` fields; the same for the same problems."""
    lines = [f"{path}: {reason}" for path, reason in sorted(problems.items())]
    rest = f"; and {len(lines) - MAX_FIELDS_IN_MESSAGE} more" if len(lines) > MAX_FIELDS_IN_MESSAGE else ""
    return "; ".join(lines[:MAX_FIELDS_IN_MESSAGE]) + rest


def condition(problems: dict[str, str], node: Node, now: Time) -> NodeCondition | None:
    """The condition to write; None if the Node already shows it, or if there is no problem and none was reported."""
    old = node.status.condition(CONDITION_TYPE)
    if not problems and (old is None or old.status == "False"):
        return None
    status, reason = ("True", INVALID_REASON) if problems else ("False", ACCEPTED_REASON)
    text = f"the last valid values stay in force: {message(problems)}" if problems else ACCEPTED_MESSAGE
    if old is not None and (old.status, old.reason, old.message) == (status, reason, text):
        return None
    since = now if old is None or old.status != status else old.last_transition_time or now
    return NodeCondition(
        type=CONDITION_TYPE,
        status=status,
        last_heartbeat_time=now,
        last_transition_time=since,
        reason=reason,
        message=text,
    )


class NodeSLOCondition:
    """Call `update` periodically. `problems`: field path -> reason."""

    def __init__(
        self,
        states: KubeStates,
        client: Client,
        events: EventRecorder,
        registries: Registries,
        *,
        wall: Callable[[], float],
    ) -> None:
        self._states = states
        self._client = client
        self._events = events
        self._wall = wall
        self._written: NodeCondition | None = None
        self._written_at = 0.0
        registries.view("node_slo_problems", self._rows)

    @property
    def problems(self) -> dict[str, str]:
        """Field of NodeSLO's spec -> why it is not in force."""
        problems = slocheck.lines(self._states.slo_problems)
        if self._states.node_slo.malformed:
            problems[MALFORMED_FIELD] = self._states.node_slo.malformed
        return problems

    async def update(self) -> None:
        """Write the condition and send the Event if something changed. Raises KubeError."""
        node = self._states.node.object
        if node is None:
            return
        new = condition(self.problems, node, Time.from_unix(self._wall()))
        if new is None or self._just_written(new):
            return
        body: dict[str, Any] = {"status": {"conditions": [to_builtins(new)]}}
        await self._client.patch(
            Node,
            node.metadata.name,
            body=body,
            kind=PatchKind.STRATEGIC,
            subresource="status",
            field_manager="koordlet",
        )
        self._written = new
        self._written_at = self._wall()
        if new.status == "True":
            self._events.warning(node, new.reason, f"NodeSLO is only partly in force; {new.message}")
        else:
            self._events.normal(node, new.reason, new.message)

    def _just_written(self, new: NodeCondition) -> bool:
        """Whether it was written less than `REWRITE_AFTER_S` ago, and the watch may not have delivered it yet."""
        old = self._written
        same = old is not None and (old.status, old.message) == (new.status, new.message)
        return same and 0 <= self._wall() - self._written_at < REWRITE_AFTER_S

    def _rows(self) -> list[tuple[tuple[str, ...], float]]:
        counts = {section: float(len(fields)) for section, fields in self._states.slo_problems.items()}
        if self._states.node_slo.malformed:
            counts[MALFORMED_FIELD] = 1.0
        return [((section,), count) for section, count in sorted(counts.items())]
