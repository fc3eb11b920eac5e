"""The page of `koordctl explain pod`: headline, charts, exit status; and the command with a koordlet."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from control.ctl.errors import CtlError
from control.ctl.main import cli
from control.ctl.views.interference import (
    BLOCKS,
    EXIT_NEIGHBOUR,
    EXIT_SELF,
    bar,
    exit_status,
    headline,
    page,
    sparkline,
)
from koordlet.api.encoding.wire import encode
from koordlet.api.pages.interference import (
    ContainerInterferenceReport,
    CulpritReport,
    PodInterferenceReport,
    SeriesReport,
    SignalReport,
    StateChangeReport,
    ThrottledPodReport,
    VerdictReport,
)

NOW = 1_000_000.0
BATCH = CulpritReport(kind="container", namespace="demo", pod="batch-0", name="burn", qos="BE", share=0.6, seconds=0.2)
SOFTIRQ = CulpritReport(kind="kernel", name="ksoftirqd", share=0.1, seconds=0.03)


def verdict(**changes: Any) -> VerdictReport:
    fields = {
        "container": "serve",
        "resource": "cpu",
        "cause": "neighbour",
        "state": "interfered",
        "score": 2.1,
        "lost": 0.43,
        "began": NOW - 34,
        "at": NOW,
        "window": 3.0,
        "source": "bpf",
        "confidence": 0.95,
        "severity": "medium",
        "action": "suppress-best-effort",
        "advice": "Give best-effort pods less.",
        "signals": [SignalReport(name="lost to others", unit="share", now=0.43, usual=0.02, limit=0.2)],
        "culprits": [BATCH, SOFTIRQ],
    }
    return VerdictReport(**{**fields, **changes})


def own(**changes: Any) -> VerdictReport:
    return verdict(cause="self", culprits=[], parts={"quota": 0.6}, advice="Raise limits.cpu.", **changes)


def pod(*verdicts: VerdictReport, changes: Sequence[StateChangeReport] = (), **fields: Any) -> PodInterferenceReport:
    container = ContainerInterferenceReport(
        name="serve",
        id="containerd://x",
        series=[SeriesReport(resource="cpu", cause="neighbour", usual=0.02, state="quiet", values=[0.0, 0.1, 0.9])],
        verdicts=list(verdicts),
        changes=list(changes),
    )
    facts = {"namespace": "demo", "pod": "web", "qos": "LS", "judged": True, "enabled": True, "step": 5.0}
    return PodInterferenceReport(**{**facts, "containers": [container], "sources": {"cpu": "bpf"}, **fields})


def words(report: PodInterferenceReport) -> str:
    return "\n".join(line.plain for line in page(report, NOW))


@pytest.mark.parametrize(
    ("report", "sentence", "status"),
    [
        pytest.param(pod(), "No interference and no own trouble", 0, id="quiet"),
        pytest.param(
            pod(verdict()), "Interference: it loses 43 % of its time waiting for a CPU. Culprits: demo/batch-0",
            EXIT_NEIGHBOUR, id="neighbour",
        ),
        pytest.param(pod(own()), "No interference. Own trouble: it loses 43 %", EXIT_SELF, id="self"),
        pytest.param(pod(own(), verdict()), "Interference: it loses", EXIT_NEIGHBOUR, id="both"),
        pytest.param(pod(verdict(state="suspected")), "No interference and no own trouble", 0, id="suspicion"),
        pytest.param(
            pod(changes=[StateChangeReport(at=NOW - 60, before="suspected", verdict=verdict())]),
            "No interference now; there was some before", 0, id="past",
        ),
        pytest.param(pod(judged=False, qos="BE"), "QoS class BE are not observed", 0, id="not-judged"),
        pytest.param(pod(enabled=False), "is disabled", 0, id="off"),
        pytest.param(pod(containers=[]), "no running container", 0, id="no-container"),
    ],
)  # fmt: skip
def test_the_headline_summarises_the_page(report: PodInterferenceReport, sentence: str, status: int) -> None:
    assert headline(report).startswith(sentence) or sentence in headline(report)
    assert exit_status(report) == status
    assert headline(report) in words(report)


@pytest.mark.parametrize(
    ("part", "verdicts", "sentence", "line"),
    [
        pytest.param(
            0.3, (), "The hypervisor takes CPUs away from the node (steal): it loses 30 % of", True, id="only-that"
        ),
        pytest.param(0.3, (verdict(),), "Interference: it loses", True, id="beside-a-neighbour"),
        pytest.param(0.04, (), "No interference and no own trouble", False, id="hardly-any"),
    ],
)
def test_stolen_time_is_reported_without_culprits(
    part: float, verdicts: tuple[VerdictReport, ...], sentence: str, line: bool
) -> None:
    report = pod(*verdicts)
    report.containers[0].hypervisor = part
    assert sentence in headline(report)
    assert exit_status(report) == (EXIT_NEIGHBOUR if verdicts else 0)
    assert (" steal " in words(report)) is line


def test_the_page_names_culprits_figures_and_advice() -> None:
    text = words(pod(verdict(), changes=[StateChangeReport(at=NOW - 30, before="suspected", verdict=verdict())]))
    for expected in (
        "demo/batch-0/burn (BE)",
        "60 % of its waiting",
        "kernel: ksoftirqd",
        "lost to others 43 %, usually 2 % (21.5 times); alarm from 20 %",
        "advice: Give best-effort pods less.",
        "for 34s",
        "confidence 95 %",
        "history",
    ):
        assert expected in text


def test_a_sparkline_is_as_high_as_its_values() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == BLOCKS[0] + BLOCKS[4] + BLOCKS[7]
    assert sparkline([-1.0, 1.0]) == " " + BLOCKS[7]
    assert sparkline([]) == ""


@given(st.lists(st.floats(-1.0, 1.0), max_size=400), st.integers(1, 80))
def test_a_sparkline_fits_and_loses_no_peak(values: list[float], width: int) -> None:
    line = sparkline(values, width=width)
    assert len(line) <= max(width, 1)
    if values and max(values) >= 0:
        assert max(BLOCKS.find(mark) for mark in line) == min(int(max(values) * 8), 7)


@given(st.floats(-1.0, 2.0))
def test_a_bar_keeps_its_width(share: float) -> None:
    assert len(bar(share, 10)) == 10


def held_back(**changes: Any) -> ThrottledPodReport:
    fields = {
        "namespace": "demo",
        "pod": "batch-0",
        "resource": "cpu",
        "percent": 40,
        "had": 950,
        "left": "quota 38000 us",
        "since": NOW - 34,
        "why": "container serve of demo/web lost 43 % of its time",
    }
    return ThrottledPodReport(**{**fields, **changes})  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"held_back": [held_back()]}, "Throttled in cpu for 34s: 40 % of 950m left (quota 38000 us)."),
        ({"held_back": [held_back()]}, "because container serve of demo/web lost 43 % of its time"),
        ({"held_back": [held_back(floor=True)]}, "40 % of 950m left (quota 38000 us), at the floor."),
        ({"held_back": [held_back(problem="no disk is known")]}, "(quota 38000 us), but no disk is known."),
        ({"held_back": [held_back(resource="memory", had=512 << 20, left="204 MiB")]}, "40 % of 512Mi left"),
        ({"held_back": [held_back(resource="io", had=8 << 20, left="x")]}, "40 % of 8Mi/s left"),
        ({"held_back": [held_back(resource="network", had=100, left="x")]}, "40 % of its class left (x)"),
        ({"held_back_for": [held_back()]}, "demo/batch-0 is throttled for it in cpu: 40 % of 950m left"),
    ],
)
def test_throttling_is_shown_on_both_pods_pages(fields: dict[str, Any], shown: str) -> None:
    assert shown in "\n".join(line.plain for line in page(pod(verdict(), **fields), NOW))


@pytest.fixture
def koordlet() -> Iterator[str]:
    """A server that knows pod demo/web only."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested_pods = parse_qs(urlsplit(self.path).query).get("pod")
            body = encode(pod(verdict())) if requested_pods == ["demo/web"] else b"no pod on this node\n"
            self.send_response(200 if requested_pods == ["demo/web"] else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_command_prints_the_page_and_the_json(koordlet: str) -> None:
    ask = ["explain", "pod", "web", "-n", "demo", "--koordlet-url", koordlet]
    shown = CliRunner().invoke(cli, ask)
    assert shown.exit_code == 0
    assert "Interference: it loses" in shown.output
    assert CliRunner().invoke(cli, [*ask, "--exit-code"]).exit_code == EXIT_NEIGHBOUR
    answer = json.loads(CliRunner().invoke(cli, [*ask, "-o", "json"]).output)
    assert answer["containers"][0]["verdicts"][0]["culprits"][0]["pod"] == "batch-0"


def test_a_pod_of_another_node_gets_a_hint(koordlet: str) -> None:
    result = CliRunner().invoke(cli, ["explain", "pod", "gone", "-n", "demo", "--koordlet-url", koordlet])
    assert isinstance(result.exception, CtlError)
    assert "does not know pod demo/gone" in str(result.exception)
