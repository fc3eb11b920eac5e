"""The command line with a fake koordlet, and with none."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from rich.console import Console

from control.ctl import main
from control.ctl.cluster.choice import STATE_DIR
from control.ctl.node import state
from control.ctl.node.state import NodeSettings
from control.ctl.node.status import collect_status, render
from control.ctl.views.koordletclient import KoordletUnreachable, fetch_ready, fetch_top
from control.processid import ProcessId
from koordlet.api.encoding.wire import encode
from koordlet.api.pages.enforcement import Enforcement, RuleState, SettingState
from koordlet.api.pages.interference import ThrottledPodReport
from koordlet.api.pages.top import FeatureState, SchedLatency, Top, TopCulprit, TopRow

PICTURE = Top(
    node="n1", cpus=2, cpu=1.5, memory=1e9, memory_total=2e9, window=10.0,
    probes=[FeatureState(name="sched_latency", up=True, source="bpf")],
    conditions=[FeatureState(name="resctrl", up=False, reason="no RDT")],
    rows=[
        TopRow(kind="container", namespace="a", pod="web", name="serve", qos="LS", cpu=0.1,
               sched=SchedLatency(
                   culprits=[TopCulprit(kind="container", namespace="b", pod="x", name="y", share=1.0)])),
        TopRow(kind="container", namespace="b", pod="x", name="y", qos="BE", cpu=1.2),
    ],
)  # fmt: skip


ENFORCED = Enforcement(
    strategies={"cpusuppress": "2000m for best effort", "cpuburst": "shared CPUs are idle"},
    rules=[RuleState(resources=["cpu.cfs_quota_us"], owners=["cpusuppress", "cpuburst"], why="because")],
    settings=[
        SettingState(setting="kubepods/a/cpu.idle", value=1, owner="groupidentity", was=0),
        SettingState(setting="kubepods/a/cpu.cfs_quota_us", value=5, owner="cpusuppress", overruled=["cpuburst"]),
        SettingState(setting="kubepods/b/cpu.shares", value=2, owner="batchresource", problem="the kernel refused it"),
    ],
    stuck={"kubepods/c/cpu.idle": "in use"},
    node_slo={"cpuBurstStrategy.policy": "'always' is none of"},
    held_back=[
        ThrottledPodReport(namespace="demo", pod="burn", resource="cpu", percent=40, left="quota 5 us", why="web waits")
    ],
)


@pytest.fixture
async def koordlet() -> AsyncIterator[str]:
    async def top(_: web.Request) -> web.Response:
        return web.Response(body=encode(PICTURE), content_type="application/json")

    async def ready(_: web.Request) -> web.Response:
        checks = {"ping": {"ok": True, "reason": None}, "pods": {"ok": False, "reason": "the kubelet is away"}}
        return web.json_response({"ok": False, "checks": checks}, status=503)

    async def enforcement(_: web.Request) -> web.Response:
        return web.Response(body=encode(ENFORCED), content_type="application/json")

    async def nonsense(_: web.Request) -> web.Response:
        return web.Response(text='{"rows": 7}', content_type="application/json")

    app = web.Application()
    app.router.add_get("/top", top)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/enforcement", enforcement)
    app.router.add_get("/odd/top", nonsense)
    app.router.add_get("/odd/readyz", nonsense)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_data_and_readiness_are_fetched(koordlet: str) -> None:
    assert await fetch_top(koordlet + "/") == PICTURE
    assert await fetch_ready(koordlet) == {"ping": None, "pods": "the kubelet is away"}


@pytest.mark.parametrize("path", ["/odd", "/missing"])
async def test_a_server_that_is_no_koordlet_is_reported(koordlet: str, path: str) -> None:
    for ask in (fetch_top, fetch_ready):
        with pytest.raises(KoordletUnreachable, match="is it a koordlet"):
            await ask(koordlet + path)


@pytest.mark.parametrize(("url", "words"), [("http://127.0.0.1:1", "does not respond"), ("nonsense", "not a URL")])
async def test_a_missing_koordlet_gives_a_hint(url: str, words: str) -> None:
    with pytest.raises(KoordletUnreachable, match=words) as caught:
        await fetch_top(url)
    assert "--koordlet-url" in caught.value.hint


async def test_status_of_a_lone_koordlet(koordlet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    report = await collect_status(tmp_path, state.UpState(), koordlet_url=koordlet, kubeconfig=None)
    assert report.parts == []
    assert report.koordlet.reachable and report.koordlet.node == "n1"
    assert report.koordlet.conditions[0].reason == "no RDT"
    assert "no API server configured" in report.kubernetes.error
    console = Console(file=io.StringIO(), width=150)
    console.print(render(report))
    assert isinstance(console.file, io.StringIO)
    output = console.file.getvalue()
    assert "cpusuppress" in output and "2000m for best effort" in output
    assert "kubepods/a/cpu.idle" not in output, "what holds undisputed is only counted"
    assert "cpuburst" in output and "the kernel refused it" in output
    assert "cpusuppress before cpuburst" in output
    assert "cannot be restored: in use" in output
    assert "cpuBurstStrategy.policy" in output and "'always' is none of" in output
    assert "demo/burn" in output and "40 %, quota 5 us" in output and "web waits" in output


async def test_status_of_parts_that_ended(tmp_path: Path) -> None:
    me = ProcessId(1, 1)
    known = state.UpState(
        settings=NodeSettings("n1"), parts={"kubelet": state.PartRecord(me, ("x",), "/log", 0.0)}, boot_id="b"
    )
    report = await collect_status(tmp_path, known, koordlet_url="http://127.0.0.1:1", kubeconfig=str(tmp_path / "none"))
    by_name = {part.name: part for part in report.parts}
    assert by_name["kubelet"].reason == "ended; `koordctl up` starts it again"
    assert by_name["apiserver"].reason == "not started"
    assert not report.koordlet.reachable and "does not respond" in report.koordlet.error


def run(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr(sys, "argv", ["koordctl", *argv])
    return main.main()


def test_top_without_koordlet_is_one_line_and_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "top", "--once", "--koordlet-url=http://127.0.0.1:1") == 1
    output = capsys.readouterr().err
    assert output.startswith("koordctl: koordlet at http://127.0.0.1:1 does not respond")
    assert "koordlet --standalone" in output and "Traceback" not in output


@pytest.mark.parametrize(
    "argv", [("top", "-A", "-n", "x"), ("top", "--sort", "age"), ("up", "--port", "70000"), ("fly",)]
)
def test_a_wrong_command_line(monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]) -> None:
    assert run(monkeypatch, *argv) == 2


def test_help_names_every_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--help") == 0
    output = capsys.readouterr().out
    assert all(f"\n  {name} " in output for name in ("up", "down", "status", "top"))


async def test_the_once_table_and_json(
    koordlet: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import asyncio

    assert await asyncio.to_thread(run, monkeypatch, "top", "--once", "--koordlet-url", koordlet) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("n1  2 containers")
    assert lines[-1].split()[:3] == ["a", "web", "serve"] and "b/x/y (100%)" in lines[-1]
    assert lines[-2].split()[:3] == ["b", "x", "y"]
    assert await asyncio.to_thread(run, monkeypatch, "top", "--json", "-n", "a", "--koordlet-url", koordlet) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["pod"] for row in rows] == ["web"]


def test_suggested_commands_contain_non_default_options(tmp_path: Path) -> None:
    plain = main.next_commands(STATE_DIR, NodeSettings("n"))
    assert "  koordctl top" in plain and "  koordctl down" in plain
    special = main.next_commands(tmp_path, NodeSettings("n", koordlet_port=1))
    assert "  koordctl top --koordlet-url=http://127.0.0.1:1" in special
    assert f"  koordctl down --state-dir={tmp_path}" in special
