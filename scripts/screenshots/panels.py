"""The panels of a dashboard's JSON, and their data from Prometheus."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from scripts.screenshots.prometheus import SCRAPE_S, Series

RATE_INTERVAL_S = 60
"""Grafana's $__rate_interval of a data source with the default scrape interval, 15 s."""
VARIABLES = {"$__rate_interval": f"{RATE_INTERVAL_S}s"}
ALL = ".*"
"""The value of each variable of a dashboard."""


class Source(Protocol):
    def range(self, expr: str, start: float, end: float, step: float) -> list[Series]: ...
    def instant(self, expr: str, at: float) -> list[Series]: ...


@dataclass(frozen=True)
class Named:
    """A series with its text in the legend."""

    name: str
    series: Series

    @property
    def last(self) -> float:
        return self.series.points[-1][1]

    @property
    def largest(self) -> float:
        return max(value for _, value in self.series.points)

    @property
    def mean(self) -> float:
        return sum(value for _, value in self.series.points) / len(self.series.points)


@dataclass(frozen=True)
class FilledPanel:
    """A panel with its data; `reason` says why there are none."""

    spec: dict[str, Any]
    data: list[Named]
    reason: str = ""

    @property
    def kind(self) -> str:
        return str(self.spec["type"])

    @property
    def title(self) -> str:
        return str(self.spec["title"])

    @property
    def defaults(self) -> dict[str, Any]:
        defaults: dict[str, Any] = self.spec["fieldConfig"]["defaults"]
        return defaults


@dataclass(frozen=True)
class Interval:
    start: float
    end: float
    step: float = SCRAPE_S


def substituted(expr: str, variables: list[str]) -> str:
    """What Grafana sends when each variable is set to All."""
    for name, value in {**VARIABLES, **{f"${name}": ALL for name in variables}}.items():
        expr = expr.replace(name, value)
    if "$" in expr:
        raise ValueError(f"unknown variable in {expr}")
    return expr


def legend(text: str, labels: Mapping[str, str]) -> str:
    """The legend's text for one series; a label that it lacks is empty."""
    if text == "__auto":
        shown = ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items()) if name != "__name__")
        return labels.get("__name__", "") + (f"{{{shown}}}" if shown else "")
    return re.sub(r"{{\s*(\w+)\s*}}", lambda match: labels.get(match[1], ""), text).strip()


def filled(
    page: Mapping[str, Any], source: Source, interval: Interval, reasons: Mapping[str, str]
) -> tuple[list[FilledPanel], list[str]]:
    """All panels of a dashboard, rows included, and those that have no data and no metric in `reasons`."""
    variables = [named["name"] for named in page["templating"]["list"]]
    panels, missing = [], []
    for spec in page["panels"]:
        data = _data(spec, source, interval, variables)
        reason = "" if data or spec["type"] == "row" else _reason(spec, reasons)
        if reason is None:
            missing.append(f"the panel {spec['title']!r} has no data")
        panels.append(FilledPanel(spec, data, "unknown reason" if reason is None else reason))
    return panels, missing


def _data(spec: Mapping[str, Any], source: Source, interval: Interval, variables: list[str]) -> list[Named]:
    data = []
    for target in spec.get("targets", ()):
        expr = substituted(target["expr"], variables)
        answer = (
            source.instant(expr, interval.end)
            if target["instant"]
            else source.range(expr, interval.start, interval.end, interval.step)
        )
        data += [Named(legend(target["legendFormat"], named.labels), named) for named in answer]
    return data


def _reason(spec: Mapping[str, Any], reasons: Mapping[str, str]) -> str | None:
    expressions = " ".join(target["expr"] for target in spec["targets"])
    return next((reason for metric, reason in reasons.items() if re.search(rf"\b{metric}", expressions)), None)
