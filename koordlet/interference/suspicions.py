"""Suspicions: which victims lose time to others by short evidence alone. Pure, without a clock of its own.

A suspicion may start a light, reversible action (`qosmanager.throttling`); it is no verdict: no Event, metric or page
shows it, and the detector decides on its own, longer evidence.

    not suspected --score >= 1--> suspected --score < leave, or no evidence, for `LEAVE_SECONDS`--> not suspected
"""

from __future__ import annotations

from collections.abc import Mapping

from koordlet.interference.model import Verdict

LEAVE_SECONDS = 1.0


class Suspicions:
    """The suspected victims of one resource, by subject key."""

    def __init__(self) -> None:
        self._high_at: dict[str, float] = {}
        """Time of the last score that was not below the leave threshold."""
        self._verdicts: dict[str, Verdict] = {}

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """In state SUSPECTED."""
        return tuple(self._verdicts.values())

    def clear(self) -> None:
        """Forget everything."""
        self._high_at.clear()
        self._verdicts.clear()

    def update(self, evidence: Mapping[str, Verdict], leave_score: float, now: float) -> bool:
        """`evidence`: subject key -> the verdict that the short evidence alone would give, for everything that may have
        lost a noticeable share of its time. Returns whether a victim, or another worst culprit, became suspected."""
        begins = False
        for key, verdict in evidence.items():
            known = self._verdicts.get(key)
            if verdict.score >= 1.0:
                begins |= known is None or _worst(known) != _worst(verdict)
            elif known is None or verdict.score < leave_score:
                continue
            self._high_at[key] = now
            self._verdicts[key] = verdict
        for key in [key for key, at in self._high_at.items() if now - at >= LEAVE_SECONDS]:
            del self._high_at[key], self._verdicts[key]
        return begins


def _worst(verdict: Verdict) -> str:
    return verdict.culprits[0].owner.pod_uid if verdict.culprits else ""
