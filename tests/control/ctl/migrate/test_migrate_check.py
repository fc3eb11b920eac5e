"""`koordctl migrate check` against the objects of a cluster that runs Koordinator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from control.ctl.main import cli
from control.ctl.migrate import objects
from control.ctl.migrate.components import check_workload
from control.ctl.migrate.model import MigrationItem
from control.ctl.migrate.objects import check_crds, check_scheduler_config
from control.scheduler.plugins.registry import PLUGINS
from koordlet.api import gates
from tests.control.ctl.cluster.fakecluster import FakeCluster
from tests.control.ctl.migrate import shipped


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FakeCluster]:
    fake = FakeCluster(tmp_path)
    fake.objects.update(shipped.objects())
    async with fake.running():
        yield fake


async def check(cluster: FakeCluster, *arguments: str) -> Result:
    command = ["migrate", "check", "--kubeconfig", str(cluster.kubeconfig), *arguments]
    return await asyncio.to_thread(CliRunner().invoke, cli, command)


async def test_the_report(cluster: FakeCluster) -> None:
    items = [MigrationItem(**item) for item in json.loads((await check(cluster, "-o", "json")).stdout)["items"]]
    outcomes = {(item.area, item.subject): item.outcome for item in items}
    expected = {
        ("crd", "nodemetrics.slo.koordinator.sh"): "same",
        ("crd", "others.slo.koordinator.sh"): "differs",
        ("config", "colocation-config"): "same",
        ("config", "cpu-burst-config"): "action",
        ("config", "vendor-config"): "differs",
        ("config", "koord-scheduler-config koord-scheduler"): "same",
        ("component", "koord-manager"): "same",
        ("flag", "koordlet"): "same",
        ("flag", "koordlet --no-such-flag"): "action",
        ("flag", "koordlet --tsdb-path"): "differs",
        ("gate", "koordlet"): "action",
        ("gate", "koord-manager"): "same",
        ("checkpoint", "koordlet"): "action",
        ("right", "ClusterRoleBinding koordlet-rolebinding"): "action",
        ("right", "ClusterRoleBinding koord-manager"): "same",
        ("webhook", "koordinator-mutating-webhook-configuration"): "same",
        ("webhook", "koordinator-validating-webhook-configuration"): "differs",
    }
    assert {key: outcomes.get(key) for key in expected} == expected
    assert not {subject for _, subject in outcomes} & {"foreign", "ClusterRoleBinding other"}
    (lost,) = [item.todo for item in items if (item.area, item.subject) == ("gate", "koordlet")]
    assert lost == "Set --feature-gates=Accelerators=true,BECPUEvict=true,BEMemoryEvict=true,CgroupReconcile=true"


async def test_the_table_begins_with_what_is_to_be_done(cluster: FakeCluster) -> None:
    lines = (await check(cluster)).stdout.splitlines()
    results = [line.split()[0] for line in lines[1:-2]]
    assert results == sorted(results, key=["action", "differs", "same"].index)
    assert lines[-1].endswith(f"{results.count('action')} to do")


async def test_a_cluster_without_koordinator_is_reported_too(cluster: FakeCluster) -> None:
    for path, document in cluster.objects.items():
        cluster.objects[path] = {"items": []} if "items" in document else document
    for name in ("slo-controller-config", "koord-scheduler-config"):
        del cluster.objects[f"/api/v1/namespaces/koordinator-system/configmaps/{name}"]
    items = json.loads((await check(cluster, "-o", "json")).stdout)["items"]
    assert {item["area"] for item in items} == {"crd", "config"}
    assert {item["outcome"] for item in items if item["area"] == "crd"} == {"action"}


@pytest.mark.parametrize("known", [True, False])
def test_all_stages_of_gates_are_spelled_out(known: bool) -> None:
    name = "AllAlpha=true" if known else "NoSuchGate=true"
    items = [item for item in check_workload(shipped.koordlet([f"--feature-gates={name}"])) if item.area == "gate"]
    if known:
        (item,) = items
        alpha = sum(gate.stage == "alpha" for gate in gates.KOORDLET.values())
        assert item.todo.count("=true") == alpha
    else:
        assert [item.outcome for item in items] == ["action", "same"]


def test_a_value_may_be_an_argument_of_its_own() -> None:
    """The gates of such a workload would silently be lost."""
    arguments = [
        "--v",
        "4",
        "--feature-gates",
        "BECPUEvict=true,CgroupReconcile=true",
        "-feature-gates=Accelerators=true",
    ]
    gate = [item for item in check_workload(shipped.koordlet(arguments)) if item.area == "gate"]
    assert [item.todo for item in gate] == [
        "Set --feature-gates=Accelerators=true,BECPUEvict=true,CgroupReconcile=true"
    ]


def test_the_descheduler_is_not_replaced_by_the_take_over() -> None:
    first = next(iter(check_workload(shipped.workload("koord-descheduler", []))))
    assert (first.area, first.outcome) == ("component", "action") and "deploy/descheduler" in first.todo


def test_a_workload_without_counterpart_stays() -> None:
    (item,) = check_workload(shipped.workload("koord-device-plugin", ["--x"]))
    assert (item.outcome, item.area) == ("differs", "component")


def test_a_workload_with_another_selector_cannot_be_changed_in_place() -> None:
    workload = {**shipped.koordlet([]), "kind": "DaemonSet"}
    workload["spec"]["selector"] = {"matchLabels": {"app": "koordlet"}}
    (first, *_) = check_workload(workload)
    assert (first.outcome, first.todo.split(" just")[0]) == ("action", "Delete the DaemonSet")


def test_objects_in_an_old_version_must_be_migrated() -> None:
    crds = shipped.crds()
    crds[0]["status"]["storedVersions"].append("v1alpha0")
    first = next(item for item in check_crds(crds) if item.subject == crds[0]["metadata"]["name"])
    assert (first.outcome, first.detail) == ("action", "objects are stored in version v1alpha0")


def test_plugins_that_this_system_lacks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {name: plugin for name, plugin in PLUGINS.items() if name != "DeviceShare"}
    monkeypatch.setattr(objects, "PLUGINS", fewer)
    profile = {**shipped.PROFILE, "plugins": {"filter": {"enabled": [{"name": "DeviceShare"}]}}}
    items = list(check_scheduler_config(shipped.scheduler_config(profile)))
    assert [(item.outcome, "DeviceShare" in item.detail) for item in items] == [("action", True), ("same", False)]
    assert {item.outcome for item in check_scheduler_config("a: [")} == {"action"}
