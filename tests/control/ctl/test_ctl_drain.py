"""`koordctl drain`: the plan as a table, and the command against a real API server with scheduler and descheduler."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from control.ctl import draincommands, draining
from control.ctl.errors import CtlError
from control.ctl.views.drains import changes, owners_of, plan_of, plan_table, staying
from control.descheduler.config.shipped import configuration
from control.standalone.apiserver import ApiServer
from koordlet.api.crs.drain import DrainNode
from koordlet.api.crs.reservation import Reservation
from koordlet.api.encoding import crdgen, wire
from koordlet.kube import Client, ClientConfig
from tests.control.descheduler.drain.test_drain_server import drain_taints, started
from tests.control.descheduler.migration.build import pod
from tests.control.descheduler.migration.test_migration_server import Cluster, _until

ROOT = Path(__file__).parents[3]


def drain(*entries: dict[str, Any], conditions: tuple[str, ...] = ("OnceAvailable",)) -> DrainNode:
    document = {
        "metadata": {"name": "n1-x"},
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": "Running",
            "podMigrations": list(entries),
            "conditions": [{"type": condition_type, "status": "False"} for condition_type in conditions],
        },
    }
    return wire.convert(document, DrainNode)


WEB = {"uid": "uid-web-1", "namespace": "shop", "podName": "web-1", "phase": "Available", "targetNode": "n2"}
LOCAL = {"uid": "b", "namespace": "shop", "podName": "db", "phase": "Unmigratable", "message": "pod has local storage"}


def test_the_plan_as_a_table() -> None:
    plan = plan_of(drain(WEB, LOCAL), owners_of([pod("web-1", by="web")]))
    console = Console(width=200)
    with console.capture() as capture:
        console.print(plan_table(plan))
    lines = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert lines == [
        "POD OWNER FROM TO PHASE REASON",
        "shop/db - n1 - Unmigratable pod has local storage",
        "shop/web-1 ReplicaSet/web n1 n2 Available -",
    ]
    assert [each.pod for each in staying(plan)] == ["shop/db"]


def test_when_a_plan_is_complete() -> None:
    assert plan_of(drain(WEB, LOCAL), {}).planned
    assert plan_of(drain(), {}).planned
    assert not plan_of(drain({**WEB, "phase": "Ready"}), {}).planned
    assert not plan_of(drain(conditions=()), {}).planned, "no pod is listed yet"


def test_changes_are_lines() -> None:
    before, after = plan_of(drain(WEB, LOCAL), {}), plan_of(drain({**WEB, "phase": "Succeed"}, LOCAL), {})
    assert list(changes(before, after)) == ["shop/web-1 to n2: Succeed"]


@pytest.fixture
async def scheduled(tmp_path: Path) -> AsyncIterator[tuple[Cluster, Path]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ApiServer(tmp_path / "api"))
        client = await stack.enter_async_context(Client(ClientConfig.load(server.kubeconfig_path, qps=0)))
        cluster = Cluster(client)
        await cluster.start(stack, tmp_path, server.kubeconfig_path)
        yield cluster, server.kubeconfig_path


async def koordctl(kubeconfig: Path, *arguments: str, answer: bytes = b"") -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "control.ctl.main", "drain", *arguments, "--kubeconfig", str(kubeconfig), cwd=ROOT,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate(answer)
    return process.returncode or 0, out.decode()


async def test_a_node_is_drained(scheduled: tuple[Cluster, Path], tmp_path: Path) -> None:
    cluster, kubeconfig = scheduled
    pods = await cluster.workload("web", 4)
    subjects = {each.metadata.name for each in pods if each.spec.node_name == "n1"}
    document = configuration()
    limits = {"objectLimiters": {"workload": {"duration": "1s"}}}
    document["profiles"][0]["pluginConfig"].append({"name": "MigrationController", "args": limits})
    only = {"disabled": [{"name": "*"}], "enabled": [{"name": "MigrationController"}]}
    document["profiles"][0]["plugins"] |= {"evict": only, "filter": only}
    async with AsyncExitStack() as stack:
        await started(stack, tmp_path, document, ClientConfig.load(kubeconfig))
        status, text = await koordctl(kubeconfig, "n1", "--dry-run", "-o", "json")
        plan = json.loads(text)
        assert status == 0
        assert {each["pod"].removeprefix("default/") for each in plan["pods"]} == subjects
        assert {(each["owner"], each["toNode"], each["phase"]) for each in plan["pods"]} == {
            ("ReplicaSet/web", "n2", "Available")
        }
        assert await cluster.admin.list(DrainNode) == []
        await _until(lambda: _none(cluster.admin, Reservation))
        for answer in (b"n\n", b""):  # no, and the end of the input
            status, text = await koordctl(kubeconfig, "n1", answer=answer)
            assert status == 1 and text.endswith("Nothing was changed.\n"), text
        assert {each.metadata.uid for each in await cluster.running("web", 4)} == {each.metadata.uid for each in pods}
        status, text = await koordctl(kubeconfig, "n1", answer=b"y\n")
        assert status == 0 and text.endswith("Node n1: complete; no pod remains\n"), text
        assert {each.spec.node_name for each in await _until(lambda: cluster.running("web", 4))} == {"n2"}
        assert len(await drain_taints(cluster.admin, "n1")) == 1
        status, text = await koordctl(kubeconfig, "n1", "--abort")
        assert status == 0 and text.endswith("node n1 gets new pods again.\n")
        assert await drain_taints(cluster.admin, "n1") == []
        status, text = await koordctl(kubeconfig, "n1", "--abort")
        assert (status, text) == (1, "koordctl: no DrainNode names node n1\n")


async def _none(admin: Client, kind: type) -> bool:
    return not await admin.list(kind)


async def test_a_drain_without_a_descheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "ANSWER_S", 0.1)
    monkeypatch.setattr(draining, "POLL_S", 0.05)
    async with (
        ApiServer(tmp_path / "api") as server,
        Client(ClientConfig.load(server.kubeconfig_path, qps=0)) as admin,
    ):
        drain = draining.NodeDraining(admin, "n1")
        with pytest.raises(CtlError, match="there is no node n1"):
            await drain.begin()
        await admin.raw("POST", "/api/v1/nodes", body={"metadata": {"name": "n1"}})
        with pytest.raises(CtlError, match="the API server has no DrainNodes"):
            await drain.begin()
        for crd in crdgen.documents().values():
            await admin.raw("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=crd)
        await drain.begin()
        with pytest.raises(CtlError, match="no koord-descheduler takes up DrainNode n1-"):
            await drain.wait(lambda plan: plan.planned, 5.0)
        again = draining.NodeDraining(admin, "n1")
        await again.begin()
        assert (again.name, again.is_new) == (drain.name, False)
        # "no" does not end a drain that was there before, and one that runs is not asked about
        questions: list[str] = []
        monkeypatch.setattr(draining, "UNDO_S", 0.1)
        monkeypatch.setattr(draincommands, "_is_confirmed", questions.append)
        view = draincommands.DrainView(draincommands.TABLE)
        assert not await draincommands._move(again, await again.plan(), view, yes=False, timeout_s=1)
        assert (await admin.get(DrainNode, drain.name)).spec.confirm_state == "WaitForConfirm"
        await again.confirm()
        follower = draining.NodeDraining(admin, "n1")
        await follower.begin()
        with pytest.raises(CtlError, match="no koord-descheduler"):
            await draincommands._move(follower, await follower.plan(), view, yes=False, timeout_s=1)
        assert (await admin.get(DrainNode, drain.name)).spec.confirm_state == "Confirmed"
        assert questions == ["n1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--yes", "--abort"), "exclude each other"),
        (("-o", "json"), "add --yes, --dry-run or --abort"),
    ],
)
async def test_options_that_exclude_each_other(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    status, text = await koordctl(tmp_path / "none", "n1", *arguments)
    assert status == 2 and message in text
