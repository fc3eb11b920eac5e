"""SchedulingGates, PrioritySort, DefaultBinder, DefaultPreBind (spec 05 §3.3, §4, §13.4)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.defaultbinder import DefaultBinder
from control.scheduler.plugins.defaultprebind import DefaultPreBind, pod_patch
from control.scheduler.plugins.prioritysort import PrioritySort
from control.scheduler.plugins.schedulinggates import SchedulingGates
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Time
from koordlet.kube import ApiError, Conflict, ConnectionFailed, NotFound, TooManyRequests
from tests.control.scheduler.build import Cluster, pod
from tests.fakeclock import FakeClock


def waiting(pod: Pod) -> PodInfo:
    return Cluster().info(pod)


class Api:
    """Answers patches and posts with what it is told to: errors first, then `answer`."""

    def __init__(self, *errors: Exception, answer: Pod | None = None) -> None:
        self.errors = list(errors)
        self.answer = answer or pod()
        self.sent: list[Any] = []

    async def patch(self, type: type, name: str, namespace: str, *, body: Any, kind: Any) -> Pod:
        self.sent.append(json.loads(json.dumps(body)))
        if self.errors:
            raise self.errors.pop(0)
        return self.answer

    async def raw(self, method: str, path: str, *, body: Any) -> bytes:
        self.sent.append((method, path, body))
        if self.errors:
            raise self.errors.pop(0)
        return b"{}"


def over(api: Api) -> Cluster:
    cluster = Cluster()
    cluster.use(client=api)
    cluster.use(clock=FakeClock(auto=True))
    return cluster


@pytest.mark.parametrize(
    ("gates", "expected"),
    [([], None), (["a"], "waiting for scheduling gates: [a]"), (["a", "b"], "waiting for scheduling gates: [a b]")],
)
def test_gates(gates: list[str], expected: str | None) -> None:
    cluster = Cluster()
    plugin = SchedulingGates(None, cluster.handle)
    info = cluster.info(pod(spec={"schedulingGates": [{"name": name} for name in gates]}))
    status = plugin.pre_enqueue(info)
    assert (status.ok, status.message) == (expected is None, expected or "")
    (interest,) = plugin.interests()
    assert interest.hint is not None
    assert interest.hint(info, info, info)
    assert not interest.hint(info, info, cluster.info(pod()))


def test_priority_first_then_waiting_time() -> None:
    cluster = Cluster()
    plugin = PrioritySort(None, cluster.handle)
    pods = {name: cluster.info(pod(name, priority=priority)) for name, priority in (("a", 1), ("b", None), ("c", -5))}
    keys = {(name, at): plugin.sort_key(pod, at) for name, pod in pods.items() for at in (1.0, 2.0)}
    assert [name + str(int(at)) for name, at in sorted(keys, key=lambda k: keys[k])] == [
        "a1", "a2", "b1", "b2", "c1", "c2"
    ]  # fmt: skip


async def test_binding_names_node_and_uid() -> None:
    api = Api()
    cluster = over(api)
    info = cluster.info(pod("a"))
    assert (await DefaultBinder(None, cluster.handle).bind(CycleState(), info, "n1")).ok
    ((method, path, body),) = api.sent
    assert (method, path) == ("POST", "/api/v1/namespaces/default/pods/a/binding")
    binding = json.loads(body)
    assert binding["metadata"] == {"name": "a", "namespace": "default", "uid": info.uid}
    assert binding["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n1"}


async def test_a_refused_binding_is_an_error() -> None:
    cluster = over(Api(Conflict(409, "Conflict", "pod a is already assigned to node n2")))
    status = await DefaultBinder(None, cluster.handle).bind(CycleState(), cluster.info(pod("a")), "n1")
    assert status.message == "409 pod a is already assigned to node n2"
    assert not status.rejected


def changed(pod: Pod, **annotations: str | None) -> Pod:
    kept = {**pod.metadata.annotations, **annotations}
    metadata = msgspec.structs.replace(
        pod.metadata, annotations={key: value for key, value in kept.items() if value is not None}
    )
    return msgspec.structs.replace(pod, metadata=metadata)


async def test_equal_fields_are_not_sent() -> None:
    api = Api()
    candidate = pod("a")
    assert (
        await DefaultPreBind(None, over(api).handle).apply_patch(
            CycleState(), waiting(candidate), candidate, changed(candidate)
        )
    ).ok
    assert api.sent == []


async def test_the_difference_is_sent_once_with_the_uid() -> None:
    api = Api()
    candidate = pod("a", annotations={"old": "1", "kept": "2"})
    assert (
        await DefaultPreBind(None, over(api).handle).apply_patch(
            CycleState(), Cluster().info(candidate), candidate, changed(candidate, new="3", old=None)
        )
    ).ok
    assert api.sent == [{"metadata": {"uid": candidate.metadata.uid, "annotations": {"new": "3", "old": None}}}]


@pytest.mark.parametrize(
    ("failures", "sent", "message"),
    [
        ([Conflict(409), TooManyRequests(429), ConnectionFailed("closed")], 4, ""),
        ([Conflict(409)] * 9, 4, "409 Conflict"),
        ([NotFound(404)], 1, "404 Not Found"),
        ([ApiError(418, "", "no")], 1, "418 no"),
    ],
    ids=["tried-again", "not-for-ever", "gone", "refused"],
)
async def test_retries(failures: list[Exception], sent: int, message: str) -> None:
    api = Api(*failures)
    cluster = over(api)
    candidate = pod("a")
    status = await DefaultPreBind(None, cluster.handle).apply_patch(
        CycleState(), waiting(candidate), candidate, changed(candidate, x="y")
    )
    assert (len(api.sent), status.message) == (sent, message)
    slept = cluster.handle.clock.slept  # type: ignore[attr-defined]
    assert len(slept) == sent - 1
    for seconds, least in zip(slept, (0.01, 0.05, 0.25), strict=False):
        assert least <= seconds <= 1.1 * least


async def test_a_pod_on_its_way_out_is_not_bound() -> None:
    gone = pod("a", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert isinstance(gone.metadata.deletion_timestamp, Time)
    candidate = pod("a")
    status = await DefaultPreBind(None, over(Api(answer=gone)).handle).apply_patch(
        CycleState(), waiting(candidate), candidate, changed(candidate, x="y")
    )
    assert status.message == "pod is being deleted"


def test_resources_are_merged_by_container() -> None:
    candidate = pod("a", cpu="1")
    container = candidate.spec.containers[0]
    bigger = msgspec.structs.replace(
        container,
        resources=msgspec.structs.replace(
            container.resources, requests={"cpu": Quantity("2"), "memory": Quantity("1Gi")}
        ),
    )
    new = msgspec.structs.replace(candidate, spec=msgspec.structs.replace(candidate.spec, containers=[bigger]))
    assert pod_patch(candidate, new) == {
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}
    }


@pytest.mark.parametrize("field", ["host_network", "image"])
def test_other_changes_are_refused(field: str) -> None:
    candidate = pod("a")
    spec = msgspec.structs.replace(candidate.spec, host_network=True)
    if field == "image":
        spec = msgspec.structs.replace(
            candidate.spec, containers=[msgspec.structs.replace(candidate.spec.containers[0], image="other")]
        )
    with pytest.raises(ValueError, match="PreBind plugins changed"):
        pod_patch(candidate, msgspec.structs.replace(candidate, spec=spec))
