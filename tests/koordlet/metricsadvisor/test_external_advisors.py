"""External advisors: their file, the text format that they read, and scrapes of a real HTTP server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.external.advisor import MAX_ANSWER_BYTES, ExternalAdvisor, ExternalAdvisors
from koordlet.metricsadvisor.external.config import ExternalAdvisorError, parse, read_file
from koordlet.metricsadvisor.external.exposition import MAX_SERIES, ExternalSeries, read_answer
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads

WEB = Subject(
    SubjectKind.CONTAINER, "containerd://abc", "kubepods/web", "app", pod_uid="u", pod_name="web", namespace="default"
)
JOB = replace(WEB, key="containerd://def", name="burn", pod_name="job")
WORKLOADS = Workloads(subjects=(replace(WEB, kind=SubjectKind.POD, key="u"), WEB, JOB))
CPI = {"name": "cpi", "metric": "container_cpi"}
LATENCY = {"name": "latency", "metric": "request_seconds_total", "rate": True}


def document(url: str = "http://127.0.0.1:9/metrics", **changes: Any) -> bytes:
    return json.dumps({"advisors": [{"name": "pmu", "url": url, "figures": [CPI, LATENCY], **changes}]}).encode()


REFUSED = {
    "no JSON": (b"advisors:", "JSON is malformed"),
    "an unknown field": (document(interval=3), "`interval`"),
    "a name for a path": (document(name="../x"), "advisors[0].name"),
    "another scheme": (document("file:///etc/passwd"), "advisors[0].url"),
    "no host": (document("http://:80/"), "advisors[0].url"),
    "a port that is none": (document("http://a:99999/"), "advisors[0].url"),
    "too often": (document(intervalSeconds=1), "advisors[0].intervalSeconds"),
    "no figures": (document(figures=[]), "advisors[0].figures"),
    "a figure twice": (document(figures=[CPI, CPI]), "advisors[0].figures: two have the same name"),
    "a figure of koordlet's": (document(figures=[{**CPI, "name": "cpu"}]), "advisors[0].figures[0].name"),
    "a metric that is none": (document(figures=[{**CPI, "metric": "a b"}]), "advisors[0].figures[0].metric"),
    "a name twice": (b'{"advisors":' + json.dumps(json.loads(document())["advisors"] * 2).encode() + b"}", "same name"),
    "too many": (b'{"advisors":' + json.dumps(json.loads(document())["advisors"] * 9).encode() + b"}", "more than 8"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_is_refused(text: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "advisors.json"
    path.write_bytes(text)
    with pytest.raises(ExternalAdvisorError) as caught:
        read_file(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ExternalAdvisorError, match="No such file"):
        read_file(tmp_path / "none")


LINES = {
    'a{x="1",y="a b"} 2': ExternalSeries("a", {"x": "1", "y": "a b"}, 2.0),
    "a 2 1700000000000": ExternalSeries("a", {}, 2.0),
    "a{} +Inf": ExternalSeries("a", {}, float("inf")),
    'a { x = "1" , } 2': ExternalSeries("a", {"x": "1"}, 2.0),
    r'a{x="q\"\\n\n"} 1e3': ExternalSeries("a", {"x": 'q"\\n\n'}, 1000.0),
    'a{x="}\u2028{"} 1\r': ExternalSeries("a", {"x": "}\u2028{"}, 1.0),
    'a{x="1" 2': None,
    "a{x=1} 2": None,
    "a two": None,
    "a": None,
    'a{x="' + "1" * 5000 + '"} 1': None,
}


@pytest.mark.parametrize(("line", "series"), LINES.items())
def test_a_line(line: str, series: ExternalSeries | None) -> None:
    answer = read_answer(f"# HELP a text\n# TYPE a gauge\nab 1\nb 1\n{line}\n", {"a"})
    assert answer.series == ([] if series is None else [series])
    assert answer.malformed == (series is None)


@given(st.text(max_size=300), st.sampled_from(["", 'a{x="', "a ", "a{"]))
def test_any_answer_is_read_without_an_error(text: str, start: str) -> None:
    answer = read_answer(start + text, {"a"})
    assert len(answer.series) + answer.malformed <= (start + text).count("\n") + 1


def test_too_many_series_are_counted() -> None:
    answer = read_answer("a 1\n" * (MAX_SERIES + 7), {"a"})
    assert (len(answer.series), answer.beyond_limit) == (MAX_SERIES, 7)


class Exporter:
    """Answers what it is told, on a port of this machine."""

    def __init__(self) -> None:
        self.answer, self.status = "", 200

    async def handle(self, _: web.Request) -> web.Response:
        return web.Response(text=self.answer, status=self.status)


@pytest.fixture
async def exporter() -> AsyncIterator[tuple[Exporter, str]]:
    app, fake_exporter = web.Application(), Exporter()
    app.router.add_get("/metrics", fake_exporter.handle)
    async with TestServer(app) as server:
        yield fake_exporter, str(server.make_url("/metrics"))


class Advised:
    """An advisor of the exporter with a clock of its own."""

    def __init__(self, url: str) -> None:
        self.now = 0.0
        self.registries = Registries()
        self.conditions = CollectorConditions(self.registries)
        (config,) = parse(document(url))
        self.advisor = ExternalAdvisor(config, lambda: WORKLOADS, self.conditions, clock=lambda: self.now)
        self.all = ExternalAdvisors((self.advisor,), lambda: WORKLOADS)
        self.all.attach(self.registries)

    async def read(self, at: float) -> tuple[bool, str]:
        self.now = at
        await self.advisor.read()
        condition = self.conditions.states["external-pmu"]
        return condition.up, condition.reason


async def test_series_become_figures_of_containers(exporter: tuple[Exporter, str]) -> None:
    server, url = exporter
    advised = Advised(url)
    server.answer = (
        'container_cpi{container_id="abc"} 1.5\n'
        'container_cpi{container_id="unknown"} 9\n'
        'container_cpi{pod_namespace="default",pod_name="job",container_name="burn"} 2\n'
        'container_cpi{container_id="containerd://def",cpu="1"} NaN\n'
        'request_seconds_total{container_id="abc",code="200"} 10\n'
        'request_seconds_total{container_id="abc",code="500"} 5\n'
    )
    assert await advised.read(100.0) == (True, "")
    assert advised.all.of_container(WEB.key) == {"cpi": 1.5}, "a rate needs two readings"
    server.answer = server.answer.replace("} 10\n", "} 40\n")
    await advised.read(115.0)
    assert advised.all.of_container(WEB.key) == {"cpi": 1.5, "latency": 2.0}
    assert advised.all.of_container(JOB.key) == {"cpi": 2.0}
    rows = dict(advised.all._rows())
    assert rows["u", "web", "default", "containerd://abc", "app", "pmu", "latency"] == 2.0
    server.answer = server.answer.replace("} 40\n", "} 1\n")
    await advised.read(130.0)
    assert advised.all.of_container(WEB.key) == {"cpi": 1.5}, "a counter that went back gives no rate"


async def test_an_exporter_that_fails_is_a_condition(exporter: tuple[Exporter, str]) -> None:
    server, url = exporter
    advised = Advised(url)
    assert advised.conditions.states["external-pmu"].reason == "not scraped yet"
    server.answer = 'container_cpi{container_id="abc"} 1.5\n'
    await advised.read(100.0)
    server.status = 503
    assert await advised.read(115.0) == (False, "ValueError: HTTP 503")
    assert advised.all.of_container(WEB.key) == {"cpi": 1.5}, "the last figures are still young"
    advised.now = 146.0
    assert advised.all.of_container(WEB.key) == {}
    server.status, server.answer = 200, "x" * (MAX_ANSWER_BYTES + 1)
    assert (await advised.read(160.0))[1].startswith("ValueError: the answer is longer than")
    server.answer = "other 1\n"
    assert await advised.read(175.0) == (False, "the answer has none of the metrics")
    server.answer = "container_cpi x\n"
    assert "1 lines cannot be read" in (await advised.read(190.0))[1]


async def test_an_exporter_that_is_not_there() -> None:
    advised = Advised("http://127.0.0.1:9/metrics")
    up, reason = await advised.read(1.0)
    assert not up
    assert reason.startswith("ClientConnectorError")
