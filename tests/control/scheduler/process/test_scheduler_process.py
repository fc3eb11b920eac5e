"""The whole process in a real API server, with the shipped profile and under its own account."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from control.scheduler.process import manifests
from koordlet.api.core import Lease, Node, Pod
from tests.waiting import until

ROOT = Path(__file__).parents[4]


async def test_pods_are_placed_and_reported(world: Any, scheduler: Any) -> None:
    await world.node("n1", cpu="2")
    await world.node("n2", cpu="2")
    await world.pod("there", on="n1", cpu="1500m")
    for name in ("a", "b"):
        await world.pod(name)
    await world.pod("foreign", schedulerName="another")
    running = await scheduler()
    placed = await until(lambda: world.bound("a", "b"))
    assert (placed["a"], placed["b"]) == ("n2", "n2")  # what is on n1 was known before anything was decided
    assert placed["foreign"] == ""
    events = await until(lambda: world.events("a"))
    assert events["Scheduled"] == "Successfully assigned default/a to n2"

    await world.pod("late", cpu="1")
    text = await until(lambda: world.condition("late"))
    assert text.startswith("0/2 nodes are available: 2 Insufficient cpu.")
    assert (await until(lambda: world.events("late")))["FailedScheduling"] == text
    assert running.scheduler.assembly.queue.counts()["unschedulable"] == 1
    await world.delete_pod("a")  # makes room, and that wakes it
    assert (await until(lambda: world.bound("late")))["late"] == "n2"

    assert await running.page("/healthz") == (200, "ok")
    status, text = await running.page("/apis/v1/nodes/n2")
    page = json.loads(text)
    names = [pod["metadata"]["name"] for pod in page["pods"]]
    assert (status, names, page["node"]["metadata"]["name"]) == (200, ["b", "late"], "n2")
    assert page["remaining"]["MilliCPU"] == 0
    assert await running.page("/apis/v1/nodes/x") == (404, '{"message": "cannot find node x"}')
    services = json.loads((await running.page("/apis/v1/__services__"))[1])["GET"]
    assert "/apis/v1/plugins/LoadAwareScheduling/node/{node}" in services
    assert "/apis/v1/plugins/Coscheduling/gangs" in services
    config = json.loads((await running.page("/configz"))[1])["componentconfig"]
    assert config["leaderElection"]["resourceName"] == "koord-scheduler"
    metrics = (await running.page("/metrics"))[1]
    assert 'scheduler_schedule_attempts_total{profile="koord-scheduler",result="scheduled"} 3.0' in metrics
    assert 'scheduler_cache_size{type="pods"} 3.0' in metrics
    families = set(re.findall(r"^# TYPE (scheduler_\w+) ", metrics, re.MULTILINE))
    served = {name for name in families if not name.endswith("_created")}
    ours, plugin_docs = ((ROOT / "docs" / name).read_text() for name in ("scheduler.md", "scheduler-plugins.md"))
    documented = set(re.findall(r"`(scheduler_\w+)", ours[ours.index("## Metrics") :]))
    assert documented <= served
    assert served <= documented | set(re.findall(r"`(scheduler_\w+)", plugin_docs))
    evaluation = (
        'scheduler_plugin_evaluation_total{extension_point="Filter",plugin="NodeName",profile="koord-scheduler"}'
    )
    assert evaluation not in metrics  # no request names a node
    assert evaluation.replace("NodeName", "NodeResourcesFit") in metrics
    assert 'scheduler_event_handling_duration_seconds_count{event="AssignedPodDelete"}' in metrics
    assembly = running.scheduler.assembly
    before = len(assembly.shapes)
    for name in ("b", "late"):
        await world.delete_pod(name)
    await until(lambda: len(assembly.cache.pods) == 1)
    assembly.drop_unused_shapes()
    assert len(assembly.shapes) == 1 < before
    assert await running.stop() == 0


async def test_changes_of_nodes_wake_pods(world: Any, scheduler: Any) -> None:
    await world.node("n1")
    await world.admin.patch(Node, "n1", body={"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}})
    await scheduler()
    await world.pod("tainted")
    await world.pod("picky", nodeSelector={"disk": "fast"})
    assert "untolerated taint" in await until(lambda: world.condition("tainted"))
    await until(lambda: world.condition("picky"))
    await world.admin.patch(Node, "n1", body={"spec": {"taints": []}})
    await until(lambda: world.bound("tainted"))
    assert (await world.placed())["picky"] == ""
    await world.admin.patch(Node, "n1", body={"metadata": {"labels": {"disk": "fast"}}})
    await until(lambda: world.bound("picky"))
    await world.pod("big", cpu="9")
    await until(lambda: world.condition("big"))
    await world.node("n2", cpu="16")
    assert (await until(lambda: world.bound("big")))["big"] == "n2"


async def test_gated_pods_wait_for_their_gates(world: Any, scheduler: Any) -> None:
    await world.node("n1")
    running = await scheduler()
    await world.pod("a", schedulingGates=[{"name": "g"}])
    await until(lambda: running.scheduler.assembly.queue.counts()["gated"] == 1)
    await world.admin.patch(Pod, "a", "default", body={"spec": {"schedulingGates": []}})
    await until(lambda: world.bound("a"))


async def test_the_important_take_the_place_of_others(world: Any, scheduler: Any) -> None:
    classes = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    await world.apply({**classes, "metadata": {"name": "high"}, "value": 1000})
    await world.node("n1", cpu="1")
    running = await scheduler("--enable-workload-auditor=true", "--workload-auditor-metric-labels=app")
    await world.pod("low", terminationGracePeriodSeconds=0)
    await until(lambda: world.bound("low"))
    await world.pod("high", priorityClassName="high")
    placed = await until(lambda: world.bound("high"))
    assert placed == {"high": "n1"}
    metrics = (await running.page("/metrics"))[1]
    assert "scheduler_preemption_attempts_total 1.0" in metrics
    assert "scheduler_preemption_victims_sum 1.0" in metrics
    count = "scheduler_workload_auditor_scheduling_events_before_outcome_count"
    series = f'{count}{{app="",event_type="%s",outcome="scheduled",priority="high"}} 1.0'
    expected = [series % kind for kind in ("create", "preemptNominated", "victimAllDeleted", "scheduled")]

    async def told() -> bool:
        page = (await running.page("/metrics"))[1]
        return all(text in page for text in expected)

    await until(told)


async def test_a_new_leader_waits_for_the_previous_leaders_bindings(world: Any, scheduler: Any) -> None:
    await world.node("n1")
    await world.pod("there", on="n1")
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "barrier"}}
    spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "x"}]}
    await world.admin.raw("POST", "/api/v1/namespaces/kube-system/pods", body={**body, "spec": spec})
    flags = ("--sync-barrier-pod-name=barrier", "--feature-gates=SyncBarrier=true")
    await scheduler(*flags)
    barrier = await world.admin.get(Pod, "barrier", "kube-system")
    assert "scheduling.koordinator.sh/sync-barrier-koord-scheduler" in barrier.metadata.annotations
    await world.pod("a")
    await until(lambda: world.bound("a"))


async def test_a_gang_is_placed_whole_or_not_at_all(world: Any, scheduler: Any) -> None:
    await world.node("n1", cpu="2")
    running = await scheduler()
    gang = {
        "gang.scheduling.koordinator.sh/name": "g",
        "gang.scheduling.koordinator.sh/min-available": "3",
    }
    names = ("g1", "g2", "g3")
    for name in names:
        await world.pod(name, annotations=gang)
    await until(lambda: world.condition("g1"))
    assert not any((await world.placed()).values())
    await world.node("n2", cpu="2")
    gangs = json.loads((await running.page("/apis/v1/plugins/Coscheduling/gangs"))[1])
    assert sorted(gangs["default/g"]["children"]) == [f"default/{name}" for name in names]
    await until(lambda: world.bound(*names))


async def test_a_replica_without_the_lease_responds_503(world: Any, scheduler: Any) -> None:
    await world.node("n1")
    first = await scheduler()
    second = await scheduler(wait=False)
    await until(lambda: second.scheduler.server is not None and second.scheduler.assembly.table.nodes_alive)
    assert await second.page("/apis/v1/nodes/n1") == (503, '{"message": "the instance is not leader"}')
    await first.stop()
    await second.leading()
    await world.pod("a")
    await until(lambda: world.bound("a"))


async def test_a_lost_lease_ends_the_process_with_status_1(world: Any, scheduler: Any) -> None:
    running = await scheduler(
        "--leader-elect-lease-duration=8s", "--leader-elect-renew-deadline=6s", "--leader-elect-retry-period=200ms"
    )
    taken = {"spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600}}

    async def stolen() -> bool:
        """A renewal that is under way may win over us: then it is taken again."""
        await world.admin.patch(Lease, "koord-scheduler", "koordinator-system", body=taken)
        await asyncio.sleep(0.1)
        result: bool = running.task.done()
        return result

    await until(stolen)
    assert await running.task == 1


async def run(*args: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "control.scheduler", *args, cwd=ROOT, env={**os.environ, "HOME": "/nonexistent"},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, text = await process.communicate()
    return process.returncode or 0, text.decode()


async def test_configuration_errors_end_the_process_with_status_1(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"kind": "KubeSchedulerConfiguration", "parallelism": 0, "bogus": 1}))
    status, text = await run(f"--config={path}")
    assert status == 1
    assert 'unknown field "bogus"' in text
    assert "parallelism: Invalid value: 0" in text
    assert 'is registered for version "None"' in text


async def test_the_effective_configuration_can_be_written(tmp_path: Path) -> None:
    (text,) = [document["data"][manifests.CONFIG] for document in manifests.config()]
    source, written = tmp_path / "given.yaml", tmp_path / "written.yaml"
    source.write_text(text)
    status, error = await run(f"--config={source}", f"--write-config-to={written}")
    assert (status, error) == (0, "")
    document = yaml.safe_load(written.read_text())
    (profile,) = document["profiles"]
    enabled = [plugin["name"] for plugin in profile["plugins"]["postFilter"]["enabled"]]
    assert enabled == ["Reservation", "Coscheduling", "ElasticQuota", "DefaultPreemption"]
    assert document["podMaxBackoffSeconds"] == 10


def test_deploy_matches_the_generator() -> None:
    for folder, texts in (("scheduler", manifests.texts()), ("scheduler-rights", manifests.rights_texts())):
        for name, text in texts.items():
            written = (ROOT / "deploy" / folder / name).read_text()
            assert written == text, f"run python -m control.scheduler.process.manifests for deploy/{folder}"


async def test_debug_output_can_be_switched_on(world: Any, scheduler: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    await world.node("n1")
    await world.node("n2")
    running = await scheduler("-s=1")
    await world.pod("a")
    await until(lambda: world.bound("a"))
    first = [record.koord_fields["row"] for record in caplog.records if record.koord_message == "Scores"]
    assert (len(first), first[2].startswith("| 0 | default/a | n")) == (3, True)
    for flag, value, reply in (
        ("s", "0", "debugTopNScores to 0"),
        ("d", "true", "debugDiagnosis to true"),
        ("db", "false", "debugDiagnosisBlocking to false"),
    ):
        assert await running.page(f"/debug/flags/{flag}", "PUT", value) == (200, f"successfully set {reply}")
    assert (await running.page("/debug/flags/s", "PUT", "-1"))[0] == 400
    caplog.clear()
    await world.pod("b")
    await world.pod("big", cpu="90")
    await until(lambda: world.bound("b"))

    def diagnosed() -> list[str]:
        return [r.koord_fields["diagnosis"] for r in caplog.records if r.koord_message == "Schedule diagnosis"]

    await until(diagnosed)
    page = json.loads(diagnosed()[0])
    assert page["questionedKey"] == "default/big"
    assert page["scheduleDiagnosis"]["nodeFailedDetails"] == [
        {"failedPlugin": "NodeResourcesFit", "reason": "Insufficient cpu", "failedNodes": ["n1", "n2"]}
    ]  # more than a node ever has: preemption would not help
    assert not [record for record in caplog.records if record.koord_message == "Scores"]
