"""Over-use: which pods of a quota must go when it uses more than its runtime for too long (spec 06 §5.10). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from control.quota.amounts import Amounts, add_to, exceeding


@dataclass(frozen=True)
class Revocable:
    """An assigned pod that may be evicted. `counted`: what the quota counts for it."""

    uid: str
    priority: int
    started: float
    counted: Mapping[str, int]


def to_revoke(used: Mapping[str, int], runtime: Mapping[str, int], pods: Sequence[Revocable]) -> list[str]:
    """uids of the pods to evict, least important first.

    Pods are taken, least important first (lower priority, then the later start), until the rest fits. If they do not
    suffice, all of them go. Otherwise those are kept, most important first, that fit nevertheless."""
    left: Amounts = dict(used)
    taken: list[Revocable] = []
    for pod in sorted(pods, key=lambda candidate: (candidate.priority, -candidate.started, candidate.uid)):
        if not exceeding(left, runtime):
            break
        add_to(left, pod.counted, -1)
        taken.append(pod)
    if exceeding(left, runtime):
        return [pod.uid for pod in taken]
    revoked = []
    for pod in reversed(taken):
        add_to(left, pod.counted)
        if exceeding(left, runtime):
            add_to(left, pod.counted, -1)
            revoked.append(pod.uid)
    return revoked[::-1]


class OveruseClock:
    """Since when each quota uses more than its runtime."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._since: dict[str, float] = {}

    def due(self, over: Mapping[str, bool], now: float) -> list[str]:
        """The quotas whose over-use has lasted longer than the delay; their clocks start again. `over`: every quota;
        `now`: monotonic seconds."""
        self._since = {name: self._since.get(name, now) for name, is_over in over.items() if is_over}
        due = [name for name, since in self._since.items() if now - since > self._delay_s]
        for name in due:
            self._since[name] = now
        return sorted(due)
