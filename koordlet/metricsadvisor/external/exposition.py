"""Reads some series of an answer in the Prometheus text format. Pure.

The exporter is the administrator's, but tenants may choose label values and the number of series, so work is bounded:
only lines of the wanted metrics are parsed, at most MAX_SERIES of them, each of at most MAX_LINE_CHARS characters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

MAX_SERIES = 5_000
"""1,250 containers with four figures."""
MAX_LINE_CHARS = 4_096
_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?[0-9]+)?[ \t]*", re.ASCII)
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)', re.ASCII)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n"}


@dataclass(frozen=True, slots=True)
class ExternalSeries:
    """One line."""

    metric: str
    labels: dict[str, str]
    value: float


@dataclass(slots=True)
class ExternalAnswer:
    """The wanted series of an answer, and how many of their lines were left out."""

    series: list[ExternalSeries] = field(default_factory=list)
    malformed: int = 0
    beyond_limit: int = 0


def read_answer(text: str, metrics: Collection[str]) -> ExternalAnswer:
    """The series of these metrics."""
    answer = ExternalAnswer()
    for line in _lines(text):
        if not line.startswith(tuple(metrics)):
            continue
        name = re.split(r"[{ \t]", line, maxsplit=1)[0]
        if name not in metrics:
            continue
        if len(answer.series) >= MAX_SERIES:
            answer.beyond_limit += 1
            continue
        series = _series(line) if len(line) <= MAX_LINE_CHARS else None
        if series is None:
            answer.malformed += 1
        else:
            answer.series.append(series)
    return answer


def _lines(text: str) -> Iterator[str]:
    """Separated by line feeds only: label values may contain other separators."""
    return (line.rstrip("\r") for line in text.split("\n"))


def _series(line: str) -> ExternalSeries | None:
    parts = _LINE.fullmatch(line)
    labels = None if parts is None else _labels(parts[2] or "")
    if parts is None or labels is None:
        return None
    try:
        return ExternalSeries(parts[1], labels, float(parts[3]))
    except ValueError:
        return None


def _labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        label = _LABEL.match(text, at)
        if label is None:
            return labels if not text[at:].strip() else None
        labels[label[1]] = _ESCAPE.sub(lambda escape: _ESCAPES.get(escape[1], escape[1]), label[2])
        at = label.end()
    return labels
