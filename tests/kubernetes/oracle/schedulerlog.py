"""kube-scheduler's log as events: what it has seen, and the attempts with scores and result."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_LINE: Final = re.compile(r'^[IWEF]\d{4} \S+ +\d+ \S+\] (?:"Unhandled Error" )?"((?:[^"\\]|\\.)*)"(.*)$')
_FIELD: Final = re.compile(r' ([\w.]+)=("(?:[^"\\]|\\.)*"|\S+)')
WAIT_S: Final = 20.0


@dataclass
class KubeAttempt:
    """One attempt of kube-scheduler."""

    pod: str
    scores: dict[str, dict[str, int]] = field(default_factory=dict)
    """node -> plugin -> weighted score; empty if at most one node was feasible."""
    totals: dict[str, int] = field(default_factory=dict)
    node: str = ""
    """Where the pod was bound; "" if it was not."""
    feasible: int = 0
    message: str = ""
    preempts_on: str = ""


class SchedulerLog:
    """Follows the log. `counts` counts events by (message, object)."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines
        self.counts: Counter[tuple[str, str]] = Counter()
        self.attempts: dict[str, list[KubeAttempt]] = {}
        """Finished attempts by pod."""
        self.victims: dict[str, set[str]] = {}
        """Preemptor -> victims."""
        self.tail: deque[str] = deque(maxlen=2000)
        self._current: dict[str, KubeAttempt] = {}
        self._changed = asyncio.Event()
        self._ended = False

    async def follow(self) -> None:
        """Read until the end of the log."""
        async for raw in self._lines:
            line = raw.decode(errors="replace").rstrip("\n")
            self.tail.append(line)
            matched = _LINE.match(line)
            if matched is not None:
                fields = {key: _text(value) for key, value in _FIELD.findall(matched[2])}
                self._take(_text(f'"{matched[1]}"'), fields)
                self._changed.set()
        self._ended = True
        self._changed.set()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition about what was read. Raises TimeoutError, RuntimeError when the log ends."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not condition():
                    if self._ended:
                        raise RuntimeError(f"kube-scheduler ended: {list(self.tail)[-20:]}")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise TimeoutError(f"kube-scheduler did not log within {WAIT_S:.0f} s: {what}") from error

    def _take(self, message: str, fields: dict[str, str]) -> None:
        about = fields.get("pod") or fields.get("preemptor") or fields.get("node") or fields.get("type", "")
        self.counts[message, about] += 1
        attempt = self._current.setdefault(about, KubeAttempt(about))
        if "victim" in fields:
            self.victims.setdefault(about, set()).add(fields["victim"])
        match message:
            case "Attempting to schedule pod":
                self._current[about] = KubeAttempt(about)
            case "Plugin scored node for pod":
                attempt.scores.setdefault(fields["node"], {})[fields["plugin"]] = int(fields["score"])
            case "Calculated node's final score for pod":
                attempt.totals[fields["node"]] = int(fields["score"])
            case "the target node for the preemption is determined":
                attempt.preempts_on = fields["node"]
            case "Successfully bound pod to node":
                attempt.node, attempt.feasible = fields["node"], int(fields["feasibleNodes"])
                self._finish(attempt)
            case "Unable to schedule pod; no fit; waiting":
                attempt.message = fields["err"]
                self._finish(attempt)
            case "Error scheduling pod; retrying" | "Unable to schedule pod; no nodes are registered to the cluster":
                attempt.message = fields.get("err", "")
                self._finish(attempt)

    def _finish(self, attempt: KubeAttempt) -> None:
        self.attempts.setdefault(attempt.pod, []).append(attempt)
        self._current.pop(attempt.pod, None)

    def forget(self) -> None:
        """Drop what is known of past worlds."""
        self.counts.clear()
        self.attempts.clear()
        self.victims.clear()
        self._current.clear()


def _text(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        text: str = json.loads(value)
    except ValueError:  # Go escapes some characters that JSON does not know
        text = value[1:-1].encode().decode("unicode_escape")
    return text
