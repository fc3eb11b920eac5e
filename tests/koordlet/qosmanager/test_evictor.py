"""Evictions with the embedded API server: disruption budgets, pod identity, one eviction per pod."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from control.standalone.apiserver.server import ApiServer
from koordlet.api.core import Event, Pod
from koordlet.audit import NullAuditor
from koordlet.kube import Client, ClientConfig, EventRecorder
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.eviction import EvictionTask
from koordlet.qosmanager.engine.evictor import EvictionRequests, PodEvictor
from koordlet.qosmanager.engine.view import PodView
from koordlet.statesinformer.pods.cgroupindex import owner_of
from koordlet.statesinformer.pods.informer import describe
from koordlet.statesinformer.pods.model import subjects_of
from koordlet.system.cgroup.naming import CgroupDriver
from tests.koordlet.qosmanager.test_throttling import WEB, Stage, verdict

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with (
        ApiServer(tmp_path / "data") as server,
        Client(ClientConfig.load(str(server.kubeconfig_path))) as api_client,
    ):
        yield api_client


class Node:
    def __init__(self, client: Client) -> None:
        self.client, self.now = client, 1000.0
        self.registries = Registries()
        self.registries.node = "n"
        self.events = EventRecorder(client, "koordlet", "n")
        self.evictor = PodEvictor(
            EvictionRequests(client), self.events, NullAuditor(), self.registries, lambda: self.now
        )

    async def pod(self, name: str, ready: bool = True, **labels: str) -> PodView:
        """`labels` without Koordinator's prefix."""
        own = {f"koordinator.sh/{key}": value for key, value in labels.items()}
        body = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "job", **own}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "none"}]},
        }  # fmt: skip
        await self.client.raw("POST", PODS, body=body)
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
        await self.client.raw(
            "PATCH", f"{PODS}/{name}/status", body={"status": status},
            content_type="application/merge-patch+json",
        )  # fmt: skip
        return PodView.of(describe(await self.client.get(Pod, name, "default"), CgroupDriver.CGROUPFS), 100, 100)

    async def budget(self) -> None:
        """Allows the eviction of one of two pods; created after them."""
        budget = {
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keep"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "job"}}},
        }  # fmt: skip
        await self.client.raw("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", body=budget)
        path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/keep"
        async with asyncio.timeout(60):
            while (await _json(self.client, path)).get("status", {}).get("disruptionsAllowed") != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def left(self) -> list[str]:
        """Pods that are not being deleted."""
        pods = await self.client.list(Pod, "default")
        return sorted(pod.metadata.name for pod in pods if pod.metadata.deletion_timestamp is None)

    def count(self, name: str, **labels: str) -> float | None:
        return self.registries.internal.get_sample_value(name, {"node": "n", **labels})


@pytest.fixture
async def node(client: Client) -> AsyncIterator[Node]:
    node = Node(client)
    await node.events.start()
    yield node
    await node.events.stop()


def task(*pods: PodView, release: int = 100) -> EvictionTask:
    return EvictionTask(
        "BEMemoryEvict", "podUsed", {"memory": release}, pods, {pod.meta.uid: {"memory": 100} for pod in pods}
    )


async def events_of(client: Client, reason: str) -> list[Event]:
    async with asyncio.timeout(60):
        while True:
            matching = [event for event in await client.list(Event, "default") if event.reason == reason]
            if matching:
                return matching
            await asyncio.sleep(0.02)


async def test_pods_are_evicted_until_enough_is_released_and_none_twice(node: Node) -> None:
    pods = [await node.pod(name) for name in ("a", "b", "c")]
    assert await node.evictor.work([task(*pods, release=150)]) == 2
    assert await node.left() == ["c"]
    node.now += 4
    assert await node.evictor.work([task(*pods, release=150)]) == 0, "both are still terminating"
    (event, *_) = await events_of(node.client, "evictPodSuccess")
    assert "trigger by koordlet feature BEMemoryEvict" in event.message and event.type == "Warning"
    assert node.count("koordlet_pod_eviction", reason="evicted") == 2
    detail = {"pod_namespace": "default", "pod_name": "a", "reason": "evicted"}
    assert node.count("koordlet_pod_eviction_detail", **detail) == 1
    node.now += 301
    assert node.count("koordlet_pod_eviction_detail", **detail) is None


async def test_a_disruption_budget_is_respected_and_the_next_victim_is_tried(node: Node) -> None:
    pods = [await node.pod(name) for name in ("a", "b")]
    await node.budget()
    assert await node.evictor.work([task(*pods, release=1000)]) == 1
    assert len(await node.left()) == 1
    (event, *_) = await events_of(node.client, "evictPodFail")
    assert "disruption budget" in event.message


async def test_culprits_at_the_floor_are_evicted_one_by_one_within_their_budget(node: Node) -> None:
    """Two culprits at their floor, of which the budget allows the eviction of one."""
    pods = [await node.pod(name, qosClass="BE") for name in ("a", "b")]
    await node.budget()
    stage = Stage({"cpu": {"enable": True, "floorPercent": 80, "evictAfterSeconds": 2}})
    both = verdict(*((owner_of(subjects_of(pod.meta)[0]), 0.45) for pod in pods))
    gone = []
    for _ in range(8):
        decided = stage.round(both, pods=(WEB, *pods))
        node.now = stage.now
        assert decided is not None
        if decided.evictions and await node.evictor.work(decided.evictions):
            stage.acts.evicted(stage.now)
            gone.append(stage.now - 1000)
    assert gone == [3.0], "after its time; the other is kept by the budget, or counts as terminating"
    assert len(await node.left()) == 1
    (event, *_) = await events_of(node.client, "evictPodSuccess")
    assert "trigger by koordlet feature InterferenceActions" in event.message


async def test_another_pod_of_the_same_name_is_not_the_victim(node: Node) -> None:
    pod = await node.pod("a")
    other = replace(pod, meta=replace(pod.meta, uid="another"))
    assert await node.evictor.work([task(other)]) == 0
    assert await node.left() == ["a"]


async def test_a_pod_that_was_deleted_meanwhile_is_no_failure(node: Node) -> None:
    pod = await node.pod("a")
    await node.client.raw(
        "DELETE", f"{PODS}/a", body={"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
    )
    assert await node.evictor.work([task(pod)]) == 0
    assert node.count("koordlet_pod_eviction", reason="evicted") is None


async def _json(client: Client, path: str) -> Any:
    return json.loads(await client.raw("GET", path))
