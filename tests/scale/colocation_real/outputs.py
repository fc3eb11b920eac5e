"""Figures from the outputs of the programs: latencies of clients, rates of batch jobs. Pure.

Each function raises OutputError with an excerpt if the text does not have the figure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

EXCERPT = 300


class OutputError(ValueError):
    """The output of a program does not have the expected figure."""

    def __init__(self, program: str, text: str) -> None:
        super().__init__(f"{program}: no figure in its output: {text[-EXCERPT:]!r}")


def pgbench_latencies(text: str, warm_seconds: float) -> list[float]:
    """Seconds, from pgbench's log of transactions (`--log --rate`), without those due in the warm-up.

    A line is `client transaction time script epoch_s epoch_us schedule_lag`. With `--rate` the time, in microseconds,
    counts from when the transaction was due. A failed one has a word in its place, and is an error here.
    """
    ended: list[tuple[float, float]] = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 7 or not fields[2].isdigit():
            raise OutputError("pgbench", line)
        latency = int(fields[2]) / 1e6
        ended.append((int(fields[4]) + int(fields[5]) / 1e6 - latency, latency))
    if not ended:
        raise OutputError("pgbench", text)
    first = min(due for due, _ in ended)
    return [latency for due, latency in ended if due >= first + warm_seconds]


def client_latencies(text: str) -> list[float]:
    """Seconds, from `rateclient`."""
    try:
        return [float(latency) for latency in json.loads(text)]
    except (ValueError, TypeError) as error:
        raise OutputError("rateclient", text) from error


def stress_rate(text: str) -> float:
    """Bogo operations per second of real time, from stress-ng's `--yaml` file; the sum over its stressors."""
    rates = re.findall(r"^\s*bogo-ops-per-second-real-time: ([\d.]+)$", text, re.MULTILINE)
    if not rates:
        raise OutputError("stress-ng", text)
    return sum(map(float, rates))


def fio_rate(text: str) -> float:
    """MiB per second read and written, from fio's JSON; messages before it are skipped."""
    try:
        jobs = json.loads(text[text.index("{") :])["jobs"]
        return sum(float(job[way]["bw_bytes"]) for job in jobs for way in ("read", "write")) / (1 << 20)
    except (ValueError, KeyError) as error:
        raise OutputError("fio", text) from error


def ffmpeg_rate(text: str, seconds: float) -> float:
    """Frames per second, from the last complete report of ffmpeg's `-progress` file."""
    frames = re.findall(r"^frame=\s*(\d+)$", text, re.MULTILINE)
    if not frames:
        raise OutputError("ffmpeg", text)
    return int(frames[-1]) / seconds


def compile_rate(text: str, seconds: float) -> float:
    """Compilations per minute, from one line `compiled` for each."""
    return 60 * sum(line == "compiled" for line in text.splitlines()) / seconds


def mean(values: Iterable[float]) -> float:
    """0 for no value."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
