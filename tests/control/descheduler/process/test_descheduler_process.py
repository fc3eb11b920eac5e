"""The whole process in a real API server, with the shipped profile and under its own account."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.descheduler.config.shipped import configuration
from control.descheduler.framework.leasenote import LeaseNote
from control.descheduler.process import manifests
from control.descheduler.process.options import DeschedulerOptions
from control.descheduler.process.process import Descheduler
from koordlet.api.core import Lease
from koordlet.api.names import ANNOTATION_INTERFERENCE_MOVES
from koordlet.app.flags import read
from koordlet.kube import Client
from tests.control.descheduler.process.conftest import balancing
from tests.waiting import until

ROOT = Path(__file__).parents[4]


async def hot_and_idle(world: Any, *pods: str) -> None:
    """Node `hot` at more than 75 percent by these pods, and two nodes with room."""
    for name in ("hot", "idle", "other"):
        await world.node(name, cpu="4")
        await world.report(name, {})
    for name in pods:
        await world.replica(name, "hot")
    await world.report("hot", dict.fromkeys(pods, f"{3200 // len(pods)}m"))


async def budget(world: Any, available: int) -> None:
    """A PodDisruptionBudget for the replicas; the disruption controller keeps its status."""
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}}
    body = {**kind, "spec": {"minAvailable": available, "selector": {"matchLabels": {"app": "web"}}}}
    await world.admin.raw("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", body=body)


async def test_pods_leave_the_hot_node_as_far_as_their_budget_allows(world: Any, descheduler: Any) -> None:
    await hot_and_idle(world, "web-0", "web-1", "web-2", "web-3")
    await budget(world, 3)
    running = await descheduler(balancing())
    await until(lambda: len_of(world, 3))

    async def refused() -> bool:
        return (
            'descheduler_pods_evicted{namespace="default",node="hot",result="error",strategy="LowNodeLoad"}'
            in (await running.page("/metrics"))[1]
        )

    (gone,) = {"web-0", "web-1", "web-2", "web-3"} - await world.pods()
    rest = sorted(await world.pods())
    await world.report("hot", dict.fromkeys(rest, "1060m"))  # still over its threshold: another eviction is refused
    await until(refused)
    assert len(await world.pods()) == 3
    events = await until(lambda: world.events(gone))
    assert events["Descheduled"] == ("pod evicted by node is overutilized, node cpu usage(80.00%)>threshold(75.00%)")
    assert await running.page("/healthz") == (200, "ok")
    config = json.loads((await running.page("/configz"))[1])["componentconfig"]
    assert config["profiles"][0]["pluginConfig"][1]["args"]["nodeMetricExpirationSeconds"] == 180
    metrics = (await running.page("/metrics"))[1]
    families = set(re.findall(r"^# TYPE (descheduler_\w+) ", metrics, re.MULTILINE))
    page = (ROOT / "docs/descheduler.md").read_text()
    assert set(re.findall(r"`(descheduler_\w+)`", page[page.index("## Metrics") :])) == families
    for sample in (
        'leader_election_master_status{name="koordinator-system/koord-descheduler"} 1.0',
        'rest_client_requests_total{code="201",host="127.0.0.1:',
        'kubernetes_build_info{build_date="",compiler="CPython"',
        "process_resident_memory_bytes",
        "python_info",
    ):
        assert sample in metrics
    lease = await world.admin.get(Lease, "koord-descheduler", "koordinator-system")
    assert lease.spec.holder_identity
    await _note(running.process.client).write({"hot": 1.0})
    assert await running.stop() == 0
    lease = await world.admin.get(Lease, "koord-descheduler", "koordinator-system")
    assert not lease.spec.holder_identity
    assert await _note(world.admin).read() == {"hot": 1.0}, "the election keeps what a plugin recorded"


def _note(client: Client) -> LeaseNote[float]:
    return LeaseNote(client, "koordinator-system", "koord-descheduler", ANNOTATION_INTERFERENCE_MOVES, float)


async def len_of(world: Any, number: int) -> bool:
    return len(await world.pods()) == number


async def test_pods_that_may_not_go_stay(world: Any, descheduler: Any) -> None:
    """Bare, mirror, local storage, system namespace: only the replica leaves."""
    await hot_and_idle(world, "web-0")
    await world.pod("bare", cpu="100m", on="hot")
    await world.replica("mirror", "hot", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}})
    await world.replica("scratch", "hot", volumes=[{"name": "v", "emptyDir": {}}])
    await world.report("hot", {"web-0": "800m", "bare": "800m", "mirror": "800m", "scratch": "800m"})
    await descheduler(balancing())
    await until(lambda: gone(world, "web-0"))
    await world.report("hot", {"bare": "1100m", "mirror": "1100m", "scratch": "1100m"})
    await asyncio.sleep(0.6)  # three passes
    assert await world.pods() == {"bare", "mirror", "scratch"}


async def gone(world: Any, name: str) -> bool:
    return name not in await world.pods()


async def test_the_dry_run_prints_what_would_move_and_writes_nothing(world: Any) -> None:
    await hot_and_idle(world, "web-0", "web-1")
    document = balancing()
    del document["profiles"][0]["pluginConfig"][0]["args"]["anomalyCondition"]  # it does not wait for six observations
    path = world.tmp / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    options = read(DeschedulerOptions, [f"--config={path}", "--dry-run"])
    out = io.StringIO()
    before = len(world.audit.read_text().splitlines())
    assert await Descheduler(options, config=await world.account(manifests.ACCOUNT)).preview(out) == 0
    lines = out.getvalue().splitlines()
    assert lines[0].split() == ["POD", "NODE", "PROFILE", "PLUGIN", "REASON"]
    assert lines[1].startswith("default/web-")
    assert lines[1].endswith(
        "hot   koord-descheduler  LowNodeLoad  node is overutilized, node cpu usage(80.00%)>threshold(75.00%)"
    )
    assert lines[2] == "1 pods would be evicted from 1 nodes."
    assert await world.pods() == {"web-0", "web-1"}
    written = [json.loads(line) for line in world.audit.read_text().splitlines()[before:]]
    own = [request["verb"] for request in written if request["user"]["username"].endswith(manifests.ACCOUNT)]
    assert set(own) <= {"list", "watch", "get"}


async def test_the_shipped_configuration_moves_nothing(world: Any, descheduler: Any) -> None:
    await hot_and_idle(world, "web-0")
    running = await descheduler({**configuration(), "deschedulingInterval": "100ms"})

    async def passes() -> bool:
        text = (await running.page("/metrics"))[1]
        counted = re.search(r"^descheduler_loop_duration_seconds_count (\S+)", text, re.MULTILINE)
        return counted is not None and float(counted[1]) >= 3

    await until(passes)
    assert await world.pods() == {"web-0"}


def test_the_manifests_are_current() -> None:
    for name, text in manifests.texts().items():
        written = (ROOT / "deploy/descheduler" / name).read_text()
        assert written == text, "run python -m control.descheduler.process.manifests --out deploy/descheduler"


@pytest.mark.parametrize("flag", ["--port=x", "--address=nowhere", "--leader-elect=perhaps", "positional"])
async def test_bad_flags_end_the_process(flag: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "control.descheduler", flag, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert process.returncode == 2
    assert flag.partition("=")[0].encode() in err


async def test_an_invalid_configuration_is_reported_completely(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\ndryRun: perhaps\nprofiles:\n"
        "- name: a\n  plugins: {balance: {enabled: [{name: Missing}]}}\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "control.descheduler",
        f"--config={path}",
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    lines = err.decode().splitlines()
    assert process.returncode == 1
    assert 'koord-descheduler: dryRun: Invalid value: "perhaps": must be a boolean' in lines
    assert 'koord-descheduler: profiles[0].plugins.balance: plugin "Missing" does not exist' in lines
