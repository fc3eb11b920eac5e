"""Says on the Node what of its NodeSLO is not in force, and why: condition `NodeSLOInvalid`, an Event, a count.

The condition is written only when it differs from what the Node shows, so a node with a good NodeSLO is never written
to. An API server that refuses is tried again at the next look.
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

TYPE = "NodeSLOInvalid"
ACCEPTED, NOT_TAKEN = "NodeSLOAccepted", "NodeSLONotTaken"
SECONDS = 5.0
"""Between two looks."""
AGAIN_SECONDS = 60.0
"""After which a condition that the Node still does not show is written again."""
SHOWN = 5
"""Fields in a message."""
MALFORMED = "spec"
TAKEN = "NodeSLO is taken as it is"


def message(found: dict[str, str]) -> str:
    """`field: reason` of the first few; stable for the same problems."""
    said = [f"{path}: {reason}" for path, reason in sorted(found.items())]
    rest = f"; and {len(said) - SHOWN} more" if len(said) > SHOWN else ""
    return "; ".join(said[:SHOWN]) + rest


def condition(found: dict[str, str], node: Node, now: Time) -> NodeCondition | None:
    """What to write; None when the Node shows it already, or has nothing to take back."""
    old = node.status.condition(TYPE)
    if not found and (old is None or old.status == "False"):
        return None
    status, reason = ("True", NOT_TAKEN) if found else ("False", ACCEPTED)
    text = f"the last good values stay: {message(found)}" if found else TAKEN
    if old is not None and (old.status, old.reason, old.message) == (status, reason, text):
        return None
    since = now if old is None or old.status != status else old.last_transition_time or now
    return NodeCondition(
        type=TYPE, status=status, last_heartbeat_time=now, last_transition_time=since, reason=reason, message=text
    )


class SLOCondition:
    """`look` is one round; `problems` what it found, path -> reason."""

    def __init__(
        self,
        states: KubeStates,
        client: Client,
        events: EventRecorder,
        registries: Registries,
        *,
        wall: Callable[[], float],
    ) -> None:
        self._states, self._client, self._events, self._wall = states, client, events, wall
        self._written: NodeCondition | None = None
        self._at = 0.0
        registries.view("node_slo_problems", self._rows)

    @property
    def problems(self) -> dict[str, str]:
        """Field of NodeSLO's spec -> why it is not in force."""
        found = slocheck.lines(self._states.slo_problems)
        if self._states.node_slo.malformed:
            found[MALFORMED] = self._states.node_slo.malformed
        return found

    async def look(self) -> None:
        """Write the condition and send the Event when something changed. Raises KubeError after trying."""
        node = self._states.node.object
        if node is None:
            return
        wanted = condition(self.problems, node, Time.from_unix(self._wall()))
        if wanted is None or self._on_its_way(wanted):
            return
        body: dict[str, Any] = {"status": {"conditions": [to_builtins(wanted)]}}
        await self._client.patch(
            Node, node.metadata.name, body=body, kind=PatchKind.STRATEGIC, subresource="status",
            field_manager="koordlet",
        )  # fmt: skip
        self._written, self._at = wanted, self._wall()
        if wanted.status == "True":
            self._events.warning(node, wanted.reason, f"NodeSLO is not taken as it is; {wanted.message}")
        else:
            self._events.normal(node, wanted.reason, wanted.message)

    def _on_its_way(self, wanted: NodeCondition) -> bool:
        """Whether it was just written, and the watch has yet to show it."""
        old = self._written
        same = old is not None and (old.status, old.message) == (wanted.status, wanted.message)
        return same and 0 <= self._wall() - self._at < AGAIN_SECONDS

    def _rows(self) -> list[tuple[tuple[str, ...], float]]:
        counts = {section: float(len(fields)) for section, fields in self._states.slo_problems.items()}
        if self._states.node_slo.malformed:
            counts[MALFORMED] = 1.0
        return [((section,), count) for section, count in sorted(counts.items())]
