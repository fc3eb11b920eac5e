"""Scrapes one third-party exporter and assigns its series to containers (spec 02 §11.2 D3).

A scrape that fails is a condition of the collector `external-NAME`; figures older than three intervals are dropped. An
exporter cannot delay koordlet: time, size and number of series are bounded, and redirects are not followed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import aiohttp

from koordlet.app.clock import boot_clock
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.external.config import ExternalAdvisorConfig, SeriesLabels
from koordlet.metricsadvisor.external.exposition import ExternalAnswer, ExternalSeries, read_answer
from koordlet.metricsadvisor.labels import Row, container_labels
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 4 << 20
KEPT_INTERVALS = 3
FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
"""What a scrape raises: connection, status, size, encoding."""


async def fetch(url: str) -> str:
    """The exporter's answer. Raises one of FAILURES."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}")
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise ValueError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        return body.decode()


@dataclass(frozen=True, slots=True)
class _Reading:
    """Container key -> figure -> value of one scrape; for a rate the counter itself."""

    at: float
    values: Mapping[str, Mapping[str, float]]


class ExternalAdvisor:
    """`read` is one scrape, to be run every `config.interval_seconds`."""

    def __init__(
        self,
        config: ExternalAdvisorConfig,
        workloads: Callable[[], Workloads],
        conditions: CollectorConditions,
        *,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self.config = config
        self.name = f"external-{config.name}"
        self._workloads = workloads
        self._conditions = conditions
        self._clock = clock
        self._last: _Reading | None = None
        self._figures: Mapping[str, Mapping[str, float]] = {}
        conditions.waiting(self.name, "not scraped yet", config.url)

    async def read(self) -> None:
        """Scrape; a failure leaves the last figures until they are too old."""
        config = self.config
        try:
            text = await fetch(config.url)
        except FAILURES as error:
            self._conditions.down(self.name, f"{type(error).__name__}: {error}"[:200], config.url)
            return
        answer = read_answer(text, {figure.metric for figure in config.figures})
        subjects = [s for s in self._workloads().subjects if s.kind is SubjectKind.CONTAINER]
        reading = _Reading(self._clock(), by_container(answer, config, subjects))
        self._figures = figures_between(config, self._last, reading)
        self._last = reading
        if answer.malformed or answer.beyond_limit:
            problem = f"{answer.malformed} lines cannot be read, {answer.beyond_limit} exceed the limit of series"
            self._conditions.down(self.name, problem, config.url)
        elif not answer.series:
            self._conditions.down(self.name, "the answer has none of the metrics", config.url)
        else:
            self._conditions.up(self.name, config.url)

    @property
    def figures(self) -> Mapping[str, Mapping[str, float]]:
        """Container key -> figure -> value; empty when the last scrape is too old."""
        too_old = self.config.interval_seconds * KEPT_INTERVALS
        return self._figures if self._last is not None and self._clock() - self._last.at <= too_old else {}


class ExternalAdvisors:
    """All advisors; `of_container` merges their figures, the first advisor of the file first."""

    def __init__(self, advisors: tuple[ExternalAdvisor, ...], workloads: Callable[[], Workloads]) -> None:
        self.advisors = advisors
        self._workloads = workloads

    def attach(self, registries: Registries) -> None:
        """Show the figures as Prometheus rows."""
        registries.view("external_advisor_figure", self._rows)

    def of_container(self, key: str) -> dict[str, float]:
        """Figure -> value."""
        merged: dict[str, float] = {}
        for advisor in self.advisors:
            for name, value in advisor.figures.get(key, {}).items():
                merged.setdefault(name, value)
        return merged

    def _rows(self) -> Iterator[Row]:
        subjects = {subject.key: subject for subject in self._workloads().subjects}
        for advisor in self.advisors:
            for key, figures in advisor.figures.items():
                if key in subjects:
                    for name, value in figures.items():
                        yield (*container_labels(subjects[key]), advisor.config.name, name), value


def by_container(
    answer: ExternalAnswer, config: ExternalAdvisorConfig, subjects: list[Subject]
) -> dict[str, dict[str, float]]:
    """Container key -> figure -> value, of containers of this node. Several series of one container, for example one
    per CPU, are added. Values that are negative or not finite are left out."""
    by_id = {subject.key: subject.key for subject in subjects}
    by_id |= {subject.key.partition("://")[2]: subject.key for subject in subjects}
    by_name = {(subject.namespace, subject.pod_name, subject.name): subject.key for subject in subjects}
    names_of: dict[str, list[str]] = {}
    for figure in config.figures:
        names_of.setdefault(figure.metric, []).append(figure.name)
    values: dict[str, dict[str, float]] = {}
    for series in answer.series:
        key = _key_of(series, config.labels, by_id, by_name)
        if key is not None and 0 <= series.value < math.inf:
            of_container = values.setdefault(key, {})
            for name in names_of[series.metric]:
                of_container[name] = of_container.get(name, 0.0) + series.value
    return values


def _key_of(
    series: ExternalSeries,
    labels: SeriesLabels,
    by_id: Mapping[str, str],
    by_name: Mapping[tuple[str, str, str], str],
) -> str | None:
    container_id = series.labels.get(labels.id, "")
    if container_id:
        return by_id.get(container_id)
    namespace, pod, container = (
        series.labels.get(label, "") for label in (labels.namespace, labels.pod, labels.container)
    )
    return by_name.get((namespace, pod, container))


def figures_between(config: ExternalAdvisorConfig, old: _Reading | None, new: _Reading) -> dict[str, dict[str, float]]:
    """The figures of a scrape. A rate needs an older reading of the same container, and none if its counter went
    back."""
    rates = {figure.name for figure in config.figures if figure.rate}
    figures: dict[str, dict[str, float]] = {}
    for key, values in new.values.items():
        before = {} if old is None else old.values.get(key, {})
        of_container = {name: value for name, value in values.items() if name not in rates}
        for name in rates & values.keys() & before.keys():
            if old is not None and new.at > old.at and values[name] >= before[name]:
                of_container[name] = (values[name] - before[name]) / (new.at - old.at)
        if of_container:
            figures[key] = of_container
    return figures
