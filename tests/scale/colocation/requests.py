"""Times of each request of a measurement, and the requests that were delayed by a stopped CPU. Pure.

All times are seconds of one monotonic clock, common to client, service and watchers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Stop = tuple[float, float]
"""A time span in which a CPU ran nothing: (begin, end)."""
PARTS = ("client", "start", "away", "answer")


@dataclass(frozen=True)
class Request:
    """One request. `cpu`: the service's CPU seconds for it."""

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
    """0 for an empty list."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)] if ordered else 0.0


def parts(requests: Sequence[Request]) -> dict[str, list[float]]:
    """Seconds by part, a value per request: `client`: the client sent late; `start`: the idle service started late;
    `away`: the service was off its CPU during the request (other task, page, disk); `answer`: the client read the
    response late. The rest is work, its own and that of earlier requests."""
    waits: dict[str, list[float]] = {name: [] for name in PARTS}
    free = 0.0
    for request in requests:
        waits["client"].append(max(request.sent - request.due, 0.0))
        waits["start"].append(max(request.began - max(request.sent, free), 0.0))
        waits["away"].append(max(request.ended - request.began - request.cpu, 0.0))
        waits["answer"].append(max(request.answered - request.ended, 0.0))
        free = request.ended
    return waits


def spared(requests: Sequence[Request], stops: Sequence[Stop]) -> list[Request]:
    """Requests without a stop: neither in flight during one, nor queued behind one that was."""
    spared_requests, jammed = [], 0.0
    for request in requests:
        hit = request.due < jammed or any(begin < request.answered and end > request.due for begin, end in stops)
        if hit:
            jammed = max(jammed, request.answered)
        else:
            spared_requests.append(request)
    return spared_requests


def together(first: Sequence[Stop], second: Sequence[Stop]) -> list[Stop]:
    """Spans in which a CPU was stopped, on either CPU."""
    shared = ((max(a, c), min(b, d)) for a, b in first for c, d in second)
    return [(begin, end) for begin, end in shared if begin < end]


def seconds_of(stops: Iterable[Stop]) -> float:
    return sum(end - begin for begin, end in stops)
