"""What became of each request of a measurement, and which of them met a CPU that the machine below had stopped. Pure.

All moments are seconds of one monotonic clock, which client, service and watchers share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Stop = tuple[float, float]
"""When a CPU ran nothing: (begin, end)."""
PARTS = ("client", "start", "away", "answer")


@dataclass(frozen=True)
class Request:
    """One request's life. `cpu` are the service's CPU seconds for it."""

    due: float
    sent: float
    began: float
    ended: float
    cpu: float
    answered: float

    @property
    def latency(self) -> float:
        return self.answered - self.due


def percentile(values: Iterable[float], percent: float) -> float:
    """0 of nothing."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)] if ordered else 0.0


def parts(requests: Sequence[Request]) -> dict[str, list[float]]:
    """Seconds by part, a value a request: `client` was late with sending, the service was late to `start` though it had
    nothing else to do, it was `away` from its CPU within the request (for another task, a page, the disk), the client
    was late to see the `answer`. What is not here is work, its own and that of the requests before."""
    found: dict[str, list[float]] = {name: [] for name in PARTS}
    free = 0.0
    for one in requests:
        found["client"].append(max(one.sent - one.due, 0.0))
        found["start"].append(max(one.began - max(one.sent, free), 0.0))
        found["away"].append(max(one.ended - one.began - one.cpu, 0.0))
        found["answer"].append(max(one.answered - one.ended, 0.0))
        free = one.ended
    return found


def spared(requests: Sequence[Request], stops: Sequence[Stop]) -> list[Request]:
    """Those that no stop delayed: neither in flight during one, nor queued behind one that was."""
    found, jammed = [], 0.0
    for one in requests:
        hit = one.due < jammed or any(begin < one.answered and end > one.due for begin, end in stops)
        if hit:
            jammed = max(jammed, one.answered)
        else:
            found.append(one)
    return found


def together(first: Sequence[Stop], second: Sequence[Stop]) -> list[Stop]:
    """When both CPUs stood still."""
    shared = ((max(a, c), min(b, d)) for a, b in first for c, d in second)
    return [(begin, end) for begin, end in shared if begin < end]


def seconds_of(stops: Iterable[Stop]) -> float:
    return sum(end - begin for begin, end in stops)
