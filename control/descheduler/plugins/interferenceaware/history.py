"""How long services have been delayed without a pause, from the verdicts in NodeMetrics. Pure; time is an argument.

A report counts once, by its own time. A delay ends when a report of the node does not have it, or when reports stop for
longer than they are valid.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from control.descheduler.state.delays import Delay


@dataclass(frozen=True, slots=True)
class LastingDelay:
    """A delay and how long it has lasted."""

    node: str
    delay: Delay
    seconds: float


class DelayHistory:
    """The delays of the last report of each node, with their beginnings."""

    def __init__(self, expiration_s: float) -> None:
        self._expiration_s = expiration_s
        self._reports: dict[str, tuple[float, dict[tuple[str, str, str], tuple[float, Delay]]]] = {}

    def report(self, node: str, at: float, delays: Iterable[Delay]) -> None:
        """A node's report of Unix time `at`; one that is not newer than the last one changes nothing."""
        last, known = self._reports.get(node, (float("-inf"), {}))
        if at <= last:
            return
        if at - last > self._expiration_s:
            known = {}
        began = {key: since for key, (since, _) in known.items()}
        self._reports[node] = (at, {each.key: (began.get(each.key, at), each) for each in delays})

    def forget_all_but(self, nodes: set[str]) -> None:
        """Drop nodes that no longer exist."""
        self._reports = {node: each for node, each in self._reports.items() if node in nodes}

    def lasting(self, now: float, persist_s: float) -> list[LastingDelay]:
        """Delays of valid reports that have lasted long enough, the one with the largest loss first."""
        selected = [
            LastingDelay(node, delay, at - since)
            for node, (at, delays) in self._reports.items()
            if now - at < self._expiration_s
            for since, delay in delays.values()
            if at - since >= persist_s
        ]
        return sorted(selected, key=lambda each: (-each.delay.lost, each.node, each.delay.key))

    def troubled_nodes(self, now: float) -> set[str]:
        """Nodes on which a service is delayed now."""
        return {node for node, (at, delays) in self._reports.items() if delays and now - at < self._expiration_s}
