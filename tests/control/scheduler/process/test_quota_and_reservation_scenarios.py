"""Quotas and Reservations end to end: a real scheduler with the shipped profile (spec 06 §8.1)."""

from __future__ import annotations

import json
from typing import Any

import yaml

from control.scheduler.config.shipped import configuration
from koordlet.api.core import Pod
from koordlet.api.crs.reservation import Reservation
from tests.waiting import until

RESERVATIONS = "/apis/scheduling.koordinator.sh/v1alpha1/reservations"
QUOTAS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas"
ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
QUOTA = "quota.scheduling.koordinator.sh/name"
PREEMPTIBLE = "quota.scheduling.koordinator.sh/preemptible"


async def reserve(world: Any, name: str, cpu: str, **spec: Any) -> None:
    """For pods with the label `app` of the same value as `name`."""
    containers = [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}]
    body = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {
            "template": {"spec": {"schedulerName": "koord-scheduler", "containers": containers}},
            "owners": [{"labelSelector": {"matchLabels": {"app": name}}}],
            **spec,
        },
    }
    await world.admin.raw("POST", RESERVATIONS, body=body)


async def reserved(world: Any, name: str, phase: str) -> Any:
    """The Reservation once it has the phase."""
    room = await world.admin.get(Reservation, name)
    return room if room.status.phase == phase else None


async def allocated(world: Any, pod: str) -> str:
    """The Reservation that the pod consumes; empty: none."""
    annotations = (await world.admin.get(Pod, pod, "default")).metadata.annotations
    return str(json.loads(annotations.get(ALLOCATED, "{}")).get("name", ""))


async def quota(world: Any, name: str, low: str, high: str) -> None:
    body = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": name},
        "spec": {"min": {"cpu": low}, "max": {"cpu": high}},
    }
    await world.admin.raw("POST", QUOTAS, body=body)


async def test_a_reservation_for_one_pod(world: Any, scheduler: Any) -> None:
    """Scenario 5: the first pod consumes it, the second gets free room or waits."""
    await world.node("n1", cpu="6")
    await scheduler()
    await reserve(world, "web", "4")
    await until(lambda: reserved(world, "web", "Available"))
    await world.pod("other", cpu="3")
    await until(lambda: world.condition("other"))
    assert "Insufficient cpu" in await world.condition("other"), "the room is reserved"

    await world.pod("first", cpu="4", labels={"app": "web"})
    await until(lambda: world.bound("first"))
    over = await until(lambda: reserved(world, "web", "Succeeded"))
    assert await allocated(world, "first") == "web"
    assert [owner.name for owner in over.status.current_owners] == ["first"]
    assert str(over.status.allocated["cpu"]) == "4"
    await world.pod("second", cpu="4", labels={"app": "web"})
    await until(lambda: world.condition("second"))
    await world.pod("third", cpu="2", labels={"app": "web"})
    await until(lambda: world.bound("third"))
    assert await allocated(world, "third") == "", "free room of the node"


async def test_a_daemon_pod_on_a_fully_reserved_node(world: Any, scheduler: Any) -> None:
    """Scenario 10."""
    await world.node("n1", cpu="4")
    await scheduler()
    await reserve(world, "all", "4", allocateOnce=False)
    await until(lambda: reserved(world, "all", "Available"))
    await world.pod("plain", cpu="1")
    await until(lambda: world.condition("plain"))
    labels = {"scheduling.koordinator.sh/reservation-ignored": "true"}
    await world.pod("daemon", cpu="1", labels=labels)
    await until(lambda: world.bound("daemon"))
    assert await allocated(world, "daemon") == ""
    assert not (await world.placed())["plain"]


async def test_a_restart_gives_the_same_pages(world: Any, scheduler: Any) -> None:
    """Scenario 1, as far as quotas and Reservations are concerned."""
    await world.node("n1", cpu="8")
    first = await scheduler("--leader-elect=false")
    await quota(world, "team", "2", "6")
    await reserve(world, "web", "4", allocateOnce=False)
    await until(lambda: reserved(world, "web", "Available"))
    await world.pod("a", cpu="1", labels={"app": "web", QUOTA: "team"})
    await until(lambda: world.bound("a"))

    async def consumed() -> bool:
        status = (await world.admin.get(Reservation, "web")).status
        return [owner.name for owner in status.current_owners] == ["a"]

    await until(consumed)

    async def pages(running: Any) -> Any:
        _, room = await running.page("/apis/v1/plugins/Reservation/nodeReservations/n1")
        _, quotas = await running.page("/apis/v1/plugins/ElasticQuota/quotas?includePods=true")
        figures = json.loads(quotas)
        for figure in figures.values():
            del figure["runtimeVersion"]  # number of changes that the process saw
        return json.loads(room), figures

    before = await pages(first)
    assert before[0]["items"][0]["allocated"] == {"cpu": "1"}
    assert before[1]["team"]["used"] == {"cpu": "1"}
    await first.stop()
    second = await scheduler("--leader-elect=false")
    assert await pages(second) == before


async def test_a_quota_gets_its_minimum_back(world: Any, scheduler: Any) -> None:
    """Scenario 7: A uses 80 of 100, B asks for its min of 50; A's least important pods are evicted."""
    config = configuration()
    for plugin in config["profiles"][0]["pluginConfig"]:
        if plugin["name"] == "ElasticQuota":
            plugin["args"] |= {"monitorAllQuotas": True, "delayEvictTime": "1s", "revokePodInterval": "200ms"}
    path = world.tmp / "revoking.yaml"
    path.write_text(yaml.safe_dump(config))
    await world.node("n1", cpu="100")
    running = await scheduler(f"--config={path}")
    for name in ("a", "b"):
        await quota(world, name, "50", "100")
    for priority, name in ((1, "low"), (2, "high")):
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        await world.apply({**body, "value": priority})
    more = {"labels": {QUOTA: "a"}, "terminationGracePeriodSeconds": 0}
    for at in range(8):
        await world.pod(f"a{at}", cpu="10", priorityClassName="low" if at < 4 else "high", **more)
    await until(lambda: world.bound(*(f"a{at}" for at in range(8))))

    async def runtimes() -> tuple[str, str]:
        _, page = await running.page("/apis/v1/plugins/ElasticQuota/quotas")
        figures = json.loads(page)
        return figures["a"]["runtime"]["cpu"], figures["b"]["runtime"]["cpu"]

    assert await runtimes() == ("80", "0")
    for at in range(5):
        await world.pod(f"b{at}", cpu="10", labels={QUOTA: "b"})

    async def shared() -> bool:
        return await runtimes() == ("50", "50")

    await until(shared)
    await until(lambda: world.bound(*(f"b{at}" for at in range(5))))
    left = {name for name in await world.placed() if name.startswith("a")}
    assert len(left) == 5
    assert {f"a{at}" for at in range(4, 8)} <= left, "the least important ones went"


async def test_pods_that_must_not_be_preempted_are_limited_by_min(world: Any, scheduler: Any) -> None:
    """Scenario 8."""
    await world.node("n1", cpu="100")
    await scheduler()
    await quota(world, "q", "10", "50")
    labels = {QUOTA: "q", PREEMPTIBLE: "false"}
    await world.pod("fixed", cpu="9", labels=labels)
    await until(lambda: world.bound("fixed"))
    await world.pod("more", cpu="2", labels=labels)
    await until(lambda: world.condition("more"))
    assert "Insufficient non-preemptible quotas, quotaName: q, min: cpu:10, nonPreemptibleUsed: cpu:9" in (
        await world.condition("more")
    )
    await world.pod("preemptible", cpu="2", labels={QUOTA: "q"})
    await until(lambda: world.bound("preemptible"))
