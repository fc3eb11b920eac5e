"""Events of the API server reach the queue (spec 05 §3.7)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from control.scheduler.framework.plugin import EventInterest
from control.scheduler.queue import QueueProfile, SchedulingQueue
from control.scheduler.state.cache import Cache
from control.scheduler.state.eventhandlers import ClusterEventHandlers
from control.scheduler.state.pods import Shapes
from control.scheduler.state.table import NodeTable
from koordlet.api.core import Pod
from tests.control.scheduler.build import pod
from tests.control.scheduler.storedobjects import StoredKind, StoredObjects


@pytest.fixture
def stored() -> StoredObjects:
    return StoredObjects()


@pytest.fixture
def queue(stored: StoredObjects) -> SchedulingQueue:
    """Pods are woken when an assigned pod goes."""
    shapes = Shapes()
    handlers = ClusterEventHandlers(stored, Cache(NodeTable(), shapes))  # type: ignore[arg-type]
    interests = {"Fits": [EventInterest("AssignedPod", frozenset(("Delete",)))]}
    profile = QueueProfile(lambda pod, at: (-pod.priority, at), (), interests)
    queue = SchedulingQueue({"koord-scheduler": profile}, lambda: 0.0)
    handlers.route(queue, {"koord-scheduler": None}, lambda uid: None)  # type: ignore[dict-item]
    return queue


def nominated(pod: Pod, node: str) -> Pod:
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, nominated_node_name=node))


@pytest.mark.parametrize("how", ["deleted", "cleared", "moved"])
def test_a_lost_nomination_wakes_pods_that_left_room_for_it(
    stored: StoredObjects, queue: SchedulingQueue, how: str
) -> None:
    pods: StoredKind = stored.informer(Pod)
    holder = nominated(pod("holder", priority=5), "n1")
    for subject in (holder, pod("equal", priority=5), pod("lower", priority=1), pod("higher", priority=9)):
        pods.set(subject)
    waiting = {}
    while (info := queue.pop()) is not None:
        queue.requeue(info, ["Fits"])
        waiting[info.name] = info
    match how:
        case "deleted":
            pods.delete("default/holder")
        case "cleared":
            pods.set(nominated(holder, ""))
        case "moved":
            pods.set(nominated(holder, "n2"))
    places: dict[str, Any] = {}
    for name, info in waiting.items():
        record = queue.record(info.uid)
        places[name] = None if record is None else record.place.value
    woken = {name for name, place in places.items() if place not in ("unschedulable", None)}
    assert woken - {"holder"} == {"equal", "lower"}
