"""The file of `--external-advisors`: which exporters are scraped, and which of their series are figures of containers.

    {"advisors": [{"name": "pmu", "url": "http://127.0.0.1:9431/metrics", "intervalSeconds": 15,
                   "figures": [{"name": "cpi", "metric": "container_cpi"},
                               {"name": "latency", "metric": "request_seconds_total", "rate": true}]}]}

The administrator writes it, so unknown fields and wrong values are errors that name the field.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from koordlet.api.crs.performance import MAX_NAME_CHARS, WAITS

MAX_ADVISORS = 8
MAX_ADVISOR_FIGURES = 8
MIN_INTERVAL_S, MAX_INTERVAL_S = 5.0, 600.0
_NAME = re.compile(rf"[a-z0-9]([-a-z0-9_]{{0,{MAX_NAME_CHARS - 2}}}[a-z0-9])?", re.ASCII)
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,254}", re.ASCII)


class ExternalAdvisorError(ValueError):
    """The file cannot be used; the message names the field."""


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Unknown fields are errors."""


class ExternalFigure(_Strict, frozen=True):
    """One figure of containers. A higher value is worse."""

    name: str
    metric: str
    """Name of the series in the exporter's answer."""
    rate: bool = False
    """The series is a counter: the figure is its increase per second."""


class SeriesLabels(_Strict, frozen=True):
    """The labels by which a series names its container; the defaults are those of the plan (spec 02 §11.2 D5). The
    container's id is enough, else namespace, pod and container are compared."""

    id: str = "container_id"
    namespace: str = "pod_namespace"
    pod: str = "pod_name"
    container: str = "container_name"


class ExternalAdvisorConfig(_Strict, frozen=True):
    """One exporter."""

    name: str
    url: str
    figures: tuple[ExternalFigure, ...]
    interval_seconds: float = 15.0
    labels: SeriesLabels = SeriesLabels()


class _File(_Strict, frozen=True):
    """The whole file."""

    advisors: tuple[ExternalAdvisorConfig, ...]


def read_file(path: Path) -> tuple[ExternalAdvisorConfig, ...]:
    """Raises ExternalAdvisorError."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise ExternalAdvisorError(f"{path}: {error.strerror}") from error
    except ExternalAdvisorError as error:
        raise ExternalAdvisorError(f"{path}: {error}") from error


def parse(text: bytes) -> tuple[ExternalAdvisorConfig, ...]:
    """Raises ExternalAdvisorError."""
    try:
        advisors = msgspec.json.decode(text, type=_File).advisors
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ExternalAdvisorError(str(error)) from error
    if len(advisors) > MAX_ADVISORS:
        raise ExternalAdvisorError(f"advisors: more than {MAX_ADVISORS}")
    names = [advisor.name for advisor in advisors]
    if len({*names}) < len(names):
        raise ExternalAdvisorError("advisors: two have the same name")
    for at, advisor in enumerate(advisors):
        problem = _problem(advisor)
        if problem:
            raise ExternalAdvisorError(f"advisors[{at}].{problem}")
    return advisors


def _problem(advisor: ExternalAdvisorConfig) -> str:
    if not _NAME.fullmatch(advisor.name):
        return f"name: {advisor.name!r} is not a DNS label"
    try:
        url = urlsplit(advisor.url)
        valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        valid = False
    if not valid:
        return f"url: {advisor.url!r} is not an http or https address"
    if not MIN_INTERVAL_S <= advisor.interval_seconds <= MAX_INTERVAL_S:
        return f"intervalSeconds: {advisor.interval_seconds:g} is not between {MIN_INTERVAL_S:g} and {MAX_INTERVAL_S:g}"
    if not 0 < len(advisor.figures) <= MAX_ADVISOR_FIGURES:
        return f"figures: {len(advisor.figures)} is not between 1 and {MAX_ADVISOR_FIGURES}"
    figure_names = [figure.name for figure in advisor.figures]
    if len({*figure_names}) < len(figure_names):
        return "figures: two have the same name"
    for at, figure in enumerate(advisor.figures):
        if not _NAME.fullmatch(figure.name) or figure.name in WAITS:
            return f"figures[{at}].name: {figure.name!r} is not a DNS label, or a figure that koordlet measures itself"
        if not _METRIC.fullmatch(figure.metric):
            return f"figures[{at}].metric: {figure.metric!r} is not the name of a metric"
    return ""
