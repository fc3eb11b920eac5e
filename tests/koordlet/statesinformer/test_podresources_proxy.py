"""The pod-resources proxy between gRPC's own client and a stand-in for the kubelet that gRPC's own server serves."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from koordlet.api.core import Pod
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import ObjectMeta
from koordlet.api.podresources import SERVICE
from koordlet.api.podresources.api_pb2 import GetPodResourcesResponse, ListPodResourcesResponse
from koordlet.metriccache.facts import GpuInfo
from koordlet.statesinformer.podresources.merge import Accelerators
from koordlet.statesinformer.podresources.proxy import PodResourcesProxy, SharedRefresh, Upstream
from koordlet.statesinformer.pods.deviceallocation import AllocatedDevices
from koordlet.statesinformer.pods.kubelet import KubeletError
from koordlet.statesinformer.pods.model import PodMeta
from tests.waiting import until

PATIENCE = 60.0
MIB = 1 << 20
LARGE = [("grpc.max_send_message_length", 32 * MIB), ("grpc.max_receive_message_length", 32 * MIB)]
OWN = [("grpc.use_local_subchannel_pool", 1)]
ALLOCATED = {"gpu": [{"minor": 0, "id": "GPU-a"}], "rdma": [{"minor": 0, "extension": {"vfs": [{"busID": "01:00.2"}]}}]}
TOLD = {
    "name": "train", "namespace": "ml",
    "containers": [
        {"name": "main", "devices": [{"resource_name": "m.com/net", "device_ids": ["eth1"]}]}, {"name": "side"},
    ],
}  # fmt: skip
GAINED = [("koordinator.sh/rdma", ["01:00.2"]), ("m.com/net", ["eth1"]), ("nvidia.com/gpu", ["GPU-a"])]
UNDECLARED = b"\xfa\x06\x03abc"
"""Field 111 of a newer kubelet."""


def listed(*pods: dict[str, Any]) -> bytes:
    return ListPodResourcesResponse(pod_resources=pods).SerializeToString() + UNDECLARED


def meta(name: str, allocated: object = None, *, uid: str = "", leaving: bool = False) -> PodMeta:
    annotations = {} if allocated is None else {"scheduling.koordinator.sh/device-allocated": json.dumps(allocated)}
    pod = Pod(metadata=ObjectMeta(name=name, namespace="ml", uid=uid or name, annotations=annotations))
    if leaving:
        pod.metadata.deletion_timestamp = Time.parse("2026-01-01T00:00:00Z")
    return PodMeta(uid or name, name, "ml", "LS", "", "Burstable", f"kubepods/{name}", (), pod)


class Kubelet:
    """Serves `answers` by method: bytes, or the (code, text) that it refuses with. Strict about what it is asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, bytes | tuple[grpc.StatusCode, str]] = {}
        self.asked: list[tuple[str, bytes]] = []
        self.hold: asyncio.Event | None = None
        self._server: Any = None

    async def start(self) -> None:
        self.path.parent.mkdir(exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._server = grpc.aio.server(options=LARGE)
        names = ("List", "Get", "GetAllocatableResources")
        handlers = {name: grpc.unary_unary_rpc_method_handler(self._method(name)) for name in names}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    def _method(self, name: str) -> Callable[[bytes, Any], Any]:
        async def answer(request: bytes, context: Any) -> bytes:
            self.asked.append((name, request))
            if self.hold is not None:
                await self.hold.wait()
            configured = self.answers.get(name, (grpc.StatusCode.UNIMPLEMENTED, f"no {name} here"))
            if isinstance(configured, tuple):
                await context.abort(*configured)
            assert isinstance(configured, bytes)
            return configured

        return answer


class Node:
    """What koordlet knows: `pods`; `later` is what the kubelet's /pods says when it is asked."""

    def __init__(self, tmp_path: Path) -> None:
        self.kubelet = Kubelet(tmp_path / "kubelet" / "kubelet.sock")
        self.pods: dict[str, PodMeta] = {"train": meta("train", ALLOCATED)}
        self.later: dict[str, PodMeta] | str | None = None
        self.rounds = 0
        self.calls: list[tuple[str, str]] = []
        self.proxy = PodResourcesProxy(
            tmp_path / "koordlet" / "pod-resources",
            Upstream(self.kubelet.path),
            lambda: self.pods,
            self._round,
            lambda: Accelerators(gpus=(GpuInfo(2, "GPU-c", 1),)),
            lambda method, code: self.calls.append((method, code)),
        )

    async def _round(self) -> None:
        self.rounds += 1
        if isinstance(self.later, str):
            raise KubeletError(self.later)
        self.pods = self.later or self.pods

    @asynccontextmanager
    async def consumer(self) -> AsyncIterator[Callable[..., Any]]:
        async with grpc.aio.insecure_channel(f"unix:{self.proxy.path}", options=[*OWN, *LARGE]) as channel:

            async def call(method: str, request: bytes = b"", seconds: float = PATIENCE) -> bytes:
                answer: bytes = await channel.unary_unary(f"/{SERVICE}/{method}")(request, timeout=seconds)
                return answer

            yield call


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    await node.kubelet.start()
    await node.proxy.start()
    yield node
    await node.proxy.stop()
    await node.kubelet.stop()


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details() or ""


def first_container(pod: Any) -> list[tuple[str, list[str]]]:
    return [(device.resource_name, list(device.device_ids)) for device in pod.containers[0].devices]


async def test_list_and_get_contain_the_schedulers_devices(node: Node) -> None:
    other = {"name": "web", "namespace": "ml", "containers": [{"name": "main"}]}
    node.pods["web"] = meta("web")
    node.kubelet.answers["List"] = listed(other, TOLD)
    node.kubelet.answers["Get"] = GetPodResourcesResponse(pod_resources=TOLD).SerializeToString()
    async with node.consumer() as call:
        answer = await call("List")
        message = ListPodResourcesResponse.FromString(answer)
        assert [pod.name for pod in message.pod_resources] == ["web", "train"]
        assert not message.pod_resources[0].containers[0].devices
        assert first_container(message.pod_resources[1]) == GAINED
        assert not message.pod_resources[1].containers[1].devices
        assert answer.endswith(UNDECLARED)
        request = b"\x0a\x05train\x12\x02ml"
        pod_response = GetPodResourcesResponse.FromString(await call("Get", request))
        assert first_container(pod_response.pod_resources) == GAINED
    assert node.kubelet.asked == [("List", b""), ("Get", request)]
    assert node.rounds == 0, "pods that are known need no request"
    assert node.calls == [("List", "OK"), ("Get", "OK")]


async def test_refused_devices_are_not_listed(node: Node) -> None:
    node.pods["train"] = replace(node.pods["train"], device_allocation=AllocatedDevices(refused="not on this node"))
    node.kubelet.answers["List"] = listed(TOLD)
    async with node.consumer() as call:
        message = ListPodResourcesResponse.FromString(await call("List"))
    assert first_container(message.pod_resources[0]) == [("m.com/net", ["eth1"])]


async def test_an_answer_without_additions_is_byte_identical(node: Node) -> None:
    node.pods = {"train": meta("train", {"gpu": "all"}), "empty": meta("empty", ALLOCATED)}
    scrambled = b"\x1a\x06\x0a\x04main\x12\x02ml\x0a\x05train"  # fields in an order that no encoder writes
    scrambled_list = b"\x0a%c" % len(scrambled) + scrambled + listed({"name": "empty", "namespace": "ml"})
    node.kubelet.answers |= {"List": scrambled_list, "GetAllocatableResources": UNDECLARED * 3}
    async with node.consumer() as call:
        assert await call("List", UNDECLARED) == scrambled_list
        assert await call("GetAllocatableResources", b"\x08\x01") == UNDECLARED * 3
    assert node.kubelet.asked == [("List", UNDECLARED), ("GetAllocatableResources", b"\x08\x01")]


async def test_errors_of_the_kubelet_are_returned_to_the_caller(node: Node) -> None:
    async with node.consumer() as call:
        for code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAUTHENTICATED):
            node.kubelet.answers["Get"] = (code, "é: 100% no")
            assert await refused(call("Get")) == (code, "é: 100% no")
        assert await refused(call("List")) == (grpc.StatusCode.UNIMPLEMENTED, "no List here")
        node.kubelet.answers["List"] = b"\xff\xff"
        code, text = await refused(call("List"))
        assert code is grpc.StatusCode.INTERNAL and text.startswith("the kubelet's answer cannot be decoded")
        assert await refused(call("Watch")) == (grpc.StatusCode.UNIMPLEMENTED, "no such method")
    assert [code for _, code in node.calls][-2:] == ["UNIMPLEMENTED", "INTERNAL"]


async def test_an_unknown_pod_causes_a_query_of_the_kubelet(node: Node) -> None:
    node.later, node.pods = node.pods, {}
    node.kubelet.answers["List"] = listed(TOLD)
    async with node.consumer() as call:
        listed_pods = ListPodResourcesResponse.FromString(await call("List"))
        assert first_container(listed_pods.pod_resources[0]) == GAINED
        await call("List")
        assert node.rounds == 1
        node.later, node.pods = "kubelet /pods: HTTP 503", {}
        assert await refused(call("List")) == (grpc.StatusCode.UNAVAILABLE, "kubelet /pods: HTTP 503")
        node.later = {"other": meta("other")}
        assert await call("List") == listed(TOLD), "the pod is unknown: nothing is added"


async def test_the_name_of_a_terminating_pod_may_belong_to_another_pod(node: Node) -> None:
    node.pods = {"old": meta("train", {"gpu": [{"minor": 9, "id": "old"}]}, uid="old", leaving=True)}
    node.kubelet.answers["List"] = listed(TOLD)
    async with node.consumer() as call:
        pod_entry = ListPodResourcesResponse.FromString(await call("List")).pod_resources[0]
        assert (node.rounds, first_container(pod_entry)[-1]) == (1, ("nvidia.com/gpu", ["old"])), "it still is there"
        node.later = {**node.pods, "new": meta("train", {"gpu": [{"minor": 2}]}, uid="new")}
        pod_entry = ListPodResourcesResponse.FromString(await call("List")).pod_resources[0]
        assert (node.rounds, first_container(pod_entry)[-1]) == (2, ("nvidia.com/gpu", ["GPU-c"]))


async def test_sixteen_mebibytes_go_both_ways(node: Node) -> None:
    large = b"\xfa\x06" + b"\xf8\xff\xff\x07" + b"x" * (16 * MIB - 8)
    node.kubelet.answers |= {"List": large, "GetAllocatableResources": large}
    async with node.consumer() as call:
        assert await call("List") == large
        assert await call("GetAllocatableResources", large) == large
    assert node.kubelet.asked[1][1] == large


async def test_many_at_once(node: Node) -> None:
    node.kubelet.answers["List"] = listed(TOLD)
    async with node.consumer() as channel, node.consumer() as two:
        answers = await asyncio.gather(*(call("List") for call in (channel, two) * 25))
    assert len(set(answers)) == 1 and len(node.kubelet.asked) == 50


async def test_a_call_with_a_short_deadline(node: Node) -> None:
    node.kubelet.hold = asyncio.Event()
    async with node.consumer() as call:
        assert (await refused(call("List", seconds=0.5)))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        node.kubelet.hold.set()
        node.kubelet.hold = None
        node.kubelet.answers["List"] = listed()
        assert await call("List") == listed()


async def test_the_kubelet_starts_late_stops_and_restarts(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.kubelet.answers["List"] = listed(TOLD)
    await node.proxy.start()
    try:
        async with node.consumer() as call:
            for again in range(3):
                code, text = await refused(call("List"))
                assert code is grpc.StatusCode.UNAVAILABLE and str(node.kubelet.path) in text
                assert str(node.kubelet.path) in node.proxy.problem
                await node.kubelet.start()
                if again:
                    await node.proxy.maintain()
                    assert node.proxy.problem == ""
                assert first_container(ListPodResourcesResponse.FromString(await call("List")).pod_resources[0])
                assert node.proxy.problem == ""
                await node.kubelet.stop()
                node.kubelet.path.unlink(missing_ok=True)
            await node.kubelet.start()
            await call("List")
            await node.kubelet.stop()
            await node.kubelet.start()  # unnoticed
            await call("List")
    finally:
        await node.proxy.stop()
        await node.kubelet.stop()


async def test_a_kubelet_that_dies_during_a_call(node: Node) -> None:
    node.kubelet.hold = asyncio.Event()
    async with node.consumer() as call:
        running = asyncio.ensure_future(call("List"))
        await until(lambda: node.kubelet.asked)
        await node.kubelet.stop()
        node.kubelet.path.unlink(missing_ok=True)
        assert (await refused(running))[0] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    await node.kubelet.start()


async def test_directory_and_socket_are_created_and_removed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    path = node.proxy.path
    await node.proxy.start()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    assert stat.S_ISSOCK(path.stat().st_mode) and stat.S_IMODE(path.stat().st_mode) == 0o600
    successor = PodResourcesProxy(
        path.parent, Upstream(node.kubelet.path), dict, node._round, Accelerators
    )  # the next koordlet, before the last has gone
    await successor.start()
    assert successor.problem.endswith("another process listens at this socket")
    await node.proxy.stop()
    assert not path.exists()
    await successor.maintain()
    assert path.exists() and "listens" not in successor.problem
    path.unlink()
    await successor.maintain()
    assert path.exists(), "served again after it was removed"
    await successor.stop()
    assert not path.exists()


async def test_an_occupied_path_is_reported_and_retried(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.kubelet.start()
    node.proxy.path.parent.mkdir(parents=True)
    node.proxy.path.write_text("mine")
    await node.proxy.start()
    assert "not a socket" in node.proxy.problem and node.proxy.path.read_text() == "mine"
    node.proxy.path.unlink()
    await node.proxy.maintain()
    assert node.proxy.problem == ""
    await node.proxy.stop()

    own = PodResourcesProxy(node.kubelet.path.parent, Upstream(node.kubelet.path), dict, node._round, Accelerators)
    before = node.kubelet.path.stat().st_ino
    await own.start()
    assert "kubelet's own" in own.problem and node.kubelet.path.stat().st_ino == before
    await own.stop()
    await node.kubelet.stop()


async def test_concurrent_refreshes_share_one_run() -> None:
    begun: list[asyncio.Event] = []

    async def round_() -> None:
        begun.append(asyncio.Event())
        await begun[-1].wait()
        if len(begun) == 2:
            raise KubeletError("gone")

    rounds = SharedRefresh(round_)
    first = asyncio.ensure_future(rounds.refresh())
    await until(lambda: len(begun) == 1)
    waiting = [asyncio.ensure_future(rounds.refresh()) for _ in range(3)]
    await asyncio.sleep(0)
    begun[0].set()
    await first
    await until(lambda: len(begun) == 2)
    begun[1].set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(result) for result in results] == ["gone"] * 3 and len(begun) == 2
    given_up = asyncio.ensure_future(rounds.refresh())
    await until(lambda: len(begun) == 3)
    other = asyncio.ensure_future(rounds.refresh())
    await asyncio.sleep(0)
    given_up.cancel()
    await until(lambda: len(begun) == 4)
    begun[3].set()
    await other
