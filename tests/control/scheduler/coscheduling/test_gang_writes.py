"""The writes of Coscheduling (PodGroup statuses, conditions of untried members) and its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from control.scheduler.config.args import CoschedulingArgs
from control.scheduler.plugins.coscheduling.cache import GangCache
from control.scheduler.plugins.coscheduling.memberconditions import MemberConditions
from control.scheduler.plugins.coscheduling.metrics import GangMetrics, job_size
from control.scheduler.plugins.coscheduling.podgroups import PodGroupController
from control.scheduler.plugins.coscheduling.rounds import GangRounds
from koordlet.api.core import Pod
from koordlet.api.crs.podgroup import PodGroup
from koordlet.api.encoding import wire
from koordlet.api.gates import Gate
from koordlet.app.gates import FeatureGates
from koordlet.kube import ConnectionFailed, NotFound
from tests.control.scheduler.build import Cluster, node, pod
from tests.fakeclock import FakeClock


class Server:
    """The calls that are made of a client, and what it answers."""

    registry = None

    def __init__(self, pods: list[Pod] | None = None) -> None:
        self.pods = pods or []
        self.patches: list[tuple[str, str, Any]] = []
        self.failures: list[Exception] = []

    async def list(self, kind: type, namespace: str, *, label_selector: Mapping[str, str]) -> list[Pod]:
        assert kind is Pod
        return [
            pod
            for pod in self.pods
            if pod.metadata.namespace == namespace and label_selector.items() <= pod.metadata.labels.items()
        ]

    async def patch(self, what: type, name: str, namespace: str, /, *, body: Any, **more: Any) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.patches.append((what.__name__, f"{namespace}/{name}", body["status"]))


class Store:
    def __init__(self, *groups: PodGroup) -> None:
        self.groups = {f"{group.metadata.namespace}/{group.metadata.name}": group for group in groups}

    def get(self, key: str) -> PodGroup | None:
        return self.groups.get(key)

    def list(self) -> list[PodGroup]:
        return list(self.groups.values())


def group(phase: str, **status: Any) -> PodGroup:
    body = {
        "metadata": {"name": "g", "namespace": "ns"},
        "spec": {"minMember": 2},
        "status": {"phase": phase, **status},
    }
    return wire.convert(body, PodGroup)


def member(name: str, phase: str, on: str = "n") -> Pod:
    labels = {"pod-group.scheduling.sigs.k8s.io": "g"}
    return pod(name, namespace="ns", labels=labels, on=on, status={"phase": phase})


def controller(server: Server, *groups: PodGroup) -> PodGroupController:
    return PodGroupController(server, Store(*groups), workers=2, clock=FakeClock(auto=True))  # type: ignore[arg-type]


async def test_only_changed_fields_of_the_status_are_written_once() -> None:
    server = Server([member("a", "Succeeded"), member("b", "Succeeded"), pod("other", namespace="ns")])
    pod_group = group("Running", running=2, scheduled=2)
    await controller(server, pod_group).sync("ns/g")
    assert server.patches == [("PodGroup", "ns/g", {"phase": "Finished", "running": None, "succeeded": 2})]
    await controller(server, group("Finished")).sync("ns/g")
    await controller(server, group("Running", running=1, succeeded=1, scheduled=2)).sync("ns/unknown")
    assert len(server.patches) == 1


async def test_failed_writes_are_retried() -> None:
    server = Server([member("a", "Running"), member("b", "Running")])
    server.failures = [ConnectionFailed("no route"), NotFound(404, "NotFound", "gone")]
    writer = controller(server, group("Scheduled", scheduled=2))
    with pytest.raises(ConnectionFailed):
        await writer.sync("ns/g")
    await writer.sync("ns/g")  # gone meanwhile
    await writer.start()
    for _ in range(200):
        if server.patches:
            break
        await asyncio.sleep(0)
    await writer.stop()
    assert server.patches == [("PodGroup", "ns/g", {"phase": "Running", "running": 2})]


def telling(server: Server, *, gate: bool = True) -> MemberConditions:
    cluster = Cluster(node("n"))
    cluster.use(client=server)
    cluster.use(gates=FeatureGates({"GangPendingPodsConditionPatch": Gate(gate, "beta")}))
    cluster.use(clock=FakeClock())
    return MemberConditions(cluster.handle)


async def test_untried_members_get_a_condition() -> None:
    server = Server()
    conditions = telling(server)
    conditions.write([pod("a"), pod("b")], "the gang failed", "no victims")
    await asyncio.gather(*conditions._tasks)
    text = "0/1 nodes are available: the gang failed. no victims"
    assert [(name, body["conditions"][0]["message"]) for _, name, body in server.patches] == [
        ("default/a", text),
        ("default/b", text),
    ]
    candidate = pod("a", status=server.patches[0][2])
    conditions.write([candidate], "the gang failed", "no victims")
    assert not conditions._tasks
    await conditions.stop()


async def test_members_of_a_deleted_pod_group_do_not_keep_the_old_message() -> None:
    server = Server()
    cluster = Cluster(node("n"))
    cluster.use(client=server, clock=FakeClock())
    gangs = GangCache(CoschedulingArgs())
    rounds = GangRounds(gangs, cluster.handle, None)
    failed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: …"}
    label = {"pod-group.scheduling.sigs.k8s.io": "g"}
    gangs.pod_group_set(wire.convert({"metadata": {"name": "g", "namespace": "default"}}, PodGroup))
    for member in (
        pod("tried", labels=label, status={"conditions": [failed]}),
        pod("untried", labels=label),
        pod("bound", labels=label, on="n", status={"conditions": [failed | {"status": "True", "reason": ""}]}),
    ):
        gangs.pod_added(member)
    gone = gangs.pod_group_deleted(wire.convert({"metadata": {"name": "g", "namespace": "default"}}, PodGroup))
    assert gone is not None
    rounds.gang_lost(gone)
    await asyncio.gather(*rounds._conditions._tasks)
    text = "0/1 nodes are available: can't find gang, gangName: default/g, podName: default/tried."
    assert [(key, body["conditions"][0]["message"]) for _, key, body in server.patches] == [("default/tried", text)]
    await rounds.stop()


async def test_no_condition_is_written_when_the_gate_is_off() -> None:
    conditions = telling(Server(), gate=False)
    conditions.write([pod("a")], "x", "y")
    assert not conditions._tasks


@pytest.mark.parametrize(
    ("members", "text"),
    [(0, "0"), (1, "1-100"), (100, "1-100"), (101, "101-200"), (1000, "901-1000"), (1001, "1000+")],
)
def test_sizes_of_jobs(members: int, text: str) -> None:
    assert job_size(members) == text


def test_metrics_have_koordinators_names() -> None:
    registry = CollectorRegistry()
    GangMetrics.of(registry).round_seconds.labels("gang is already succeed", "1-100").observe(0.2)
    names = {family.name for family in registry.collect()}
    assert names == {"scheduler_gang_schedule_cycle_duration_seconds", "scheduler_waiting_gang_group_number"}
