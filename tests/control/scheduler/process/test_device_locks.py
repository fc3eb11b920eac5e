"""Locks of nodes for vendors' device plugins, on a real API server (gate DevicePluginAdaption, spec 06 §3.10)."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from control.scheduler.plugins.deviceshare.nodelocks import NodeLocks
from control.scheduler.state.pods import Shapes
from koordlet.api import names
from koordlet.api.core import Node, Pod
from koordlet.api.encoding import wire
from koordlet.api.meta import ObjectMeta
from koordlet.app.clock import SYSTEM_CLOCK
from tests.control.scheduler.build import pod
from tests.control.scheduler.plugins.deviceworld import ALLOCATABLE, device, gpu
from tests.fakeclock import FakeClock
from tests.waiting import until

DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
RIGHTS = Path(__file__).parents[4] / "deploy/scheduler-rights/device-locks.yaml"
LOCK = names.ANNOTATION_HAMI_LOCK
GATE = "--feature-gates=DevicePluginAdaption=true"


async def lock_of(world: Any, key: str = LOCK) -> str:
    node = await world.admin.get(Node, "n1")
    return str(node.metadata.annotations.get(key, ""))


async def write_lock(world: Any, text: str | None) -> None:
    await world.admin.patch(Node, "n1", body={"metadata": {"annotations": {LOCK: text}}})


async def test_pods_of_a_node_start_one_after_another(world: Any, scheduler: Any) -> None:
    extra = {key.replace("__", "/").replace("_", "-"): amount for key, amount in ALLOCATABLE.items()}
    await world.node("n1", cpu="64", resources=extra)
    machine = device("n1", [gpu(0), gpu(1)], labels={names.LABEL_GPU_VENDOR: "metax"})
    await world.admin.raw("POST", DEVICES, body=wire.to_builtins(machine))
    await scheduler(GATE)

    async def share(name: str) -> None:
        await world.pod(name, cpu="1", requests={"koordinator.sh/gpu": "50"})

    async def refused(name: str, text: str) -> bool:
        return text in await world.condition(name)

    await share("p0")
    await until(lambda: refused("p0", "lock of node n1: "))  # the default role may not change nodes
    for obj in yaml.safe_load_all(RIGHTS.read_text()):
        await world.apply(obj)
    await until(lambda: world.bound("p0"))
    assert (await lock_of(world)).endswith(",default,p0")
    bound = await world.admin.get(Pod, "p0", "default")
    expected = [[{"uuid": "GPU-0", "compute": 50, "vRam": 40 << 10}]]
    assert json.loads(bound.metadata.annotations[names.ANNOTATION_METAX_GPU_DEVICES_ALLOCATED]) == expected

    await share("p1")
    await until(lambda: refused("p1", 'node "n1" has been locked'))
    await write_lock(world, None)  # as the device plugin does
    await until(lambda: world.bound("p1"))

    await share("p2")
    await until(lambda: refused("p2", 'node "n1" has been locked'))
    await world.delete_pod("p1")  # its plugin will never remove the lock
    await until(lambda: world.bound("p2"))
    assert (await lock_of(world)).endswith(",default,p2")


def stamp(ago: timedelta) -> str:
    return (datetime.now(UTC) - ago).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, ""),
        ("NOW,default,other", 'node "n1" has been locked'),
        ("NOW,default,mine", ""),  # a repeated attempt
        ("OLD,default,other", ""),
        ("NOW,default,gone", ""),
        ("nonsense", "'nonsense' is not <time>,<namespace>,<name>"),
        ("yesterday,default,other", "not an RFC 3339 time"),
    ],
)
async def test_which_locks_hold(world: Any, text: str | None, reason: str) -> None:
    await world.node("n1")
    if text is not None:
        text = text.replace("NOW", stamp(timedelta())).replace("OLD", stamp(timedelta(minutes=6)))
    await write_lock(world, text)
    known = {"default/other": object()}
    handle: Any = SimpleNamespace(
        client=world.admin, clock=SYSTEM_CLOCK, objects=SimpleNamespace(informer=lambda kind: known)
    )
    mine = Shapes().info(pod("mine"))
    status = await NodeLocks(handle).take("n1", LOCK, mine)
    assert status.ok == (not reason)
    assert reason in status.message
    now = await lock_of(world)
    assert now == text if reason else now.endswith(",default,mine")


class OneNode:
    """A client that knows one Node."""

    def __init__(self) -> None:
        self.annotations: dict[str, str] = {}

    async def get(self, kind: type, name: str) -> Node:
        return Node(metadata=ObjectMeta(name=name, annotations=self.annotations))

    async def patch(self, kind: type, name: str, *, body: Any) -> None:
        self.annotations = body["metadata"]["annotations"]


async def test_another_pod_of_the_same_name_holds_no_lock() -> None:
    known = {"default/first": pod("first")}
    objects = SimpleNamespace(informer=lambda kind: known)
    handle: Any = SimpleNamespace(client=OneNode(), clock=SYSTEM_CLOCK, objects=objects)
    locks, second = NodeLocks(handle), Shapes().info(pod("second"))
    assert (await locks.take("n1", LOCK, Shapes().info(known["default/first"]))).ok
    assert not (await locks.take("n1", LOCK, second)).ok
    known["default/first"] = pod("first")
    assert (await locks.take("n1", LOCK, second)).ok


async def test_a_lock_that_is_old_is_forgotten() -> None:
    clock = FakeClock()
    handle: Any = SimpleNamespace(client=OneNode(), clock=clock, objects=SimpleNamespace(informer=lambda kind: {}))
    locks = NodeLocks(handle)
    for number in range(50):
        assert (await locks.take(f"n{number}", LOCK, Shapes().info(pod("mine")))).ok
        await clock.advance(60.0)
    assert locks._taken.keys() == {f"n{number}" for number in range(44, 50)}  # of the last five minutes


async def test_one_of_many_attempts_at_once_gets_the_lock(world: Any) -> None:
    await world.node("n1")
    pods = [Shapes().info(pod(f"p{number}")) for number in range(8)]
    known = {waiting.key: waiting.pod for waiting in pods}

    def process() -> NodeLocks:
        objects = SimpleNamespace(informer=lambda kind: known)
        return NodeLocks(SimpleNamespace(client=world.admin, clock=SYSTEM_CLOCK, objects=objects))  # type: ignore[arg-type]

    locks = [process(), process()]
    results = await asyncio.gather(*(locks[at % 2].take("n1", LOCK, waiting) for at, waiting in enumerate(pods)))
    assert sum(status.ok for status in results) == 1
    assert {status.message for status in results if not status.ok} == {'node "n1" has been locked'}
