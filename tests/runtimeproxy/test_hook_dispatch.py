"""Selection of the server and its failure policy, with scripted clients; then the real gRPC client with real servers:
koordlet's own, one that restarts, a slow one, one with another protocol."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from prometheus_client import CollectorRegistry

from koordlet.api.hooks import SERVICE
from koordlet.api.hooks.api_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from koordlet.app.tasks import end_tasks
from koordlet.runtimehooks.stages import HookStage
from runtimeproxy.hooks.client import HookCallError, HookClient, HookEndpointError, HookServerUnreachable
from runtimeproxy.hooks.dispatch import MAX_CLIENTS, HookDispatcher, HookOutcome, HookRefused
from runtimeproxy.hooks.registry import HookServerRegistry
from runtimeproxy.hooks.stages import Hook, HookFailurePolicy
from runtimeproxy.metrics import ProxyMetrics
from tests.koordlet.runtimehooks.test_server import serve

FOREVER = 3600.0
ASKED = PodSandboxHookRequest(pod_meta={"name": "p"}, cgroup_parent="/kubepods/pod1")


@dataclass
class Peer:
    """A scripted server: each next call returns bytes or raises; the last entry repeats."""

    answers: list[Any] = field(default_factory=lambda: [b""])
    calls: list[str] = field(default_factory=list)
    connected: int = 0
    closed: int = 0

    async def call(self, rpc: str, request: bytes, seconds: float) -> bytes:
        self.calls.append(rpc)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return bytes(answer)

    async def close(self, grace: float) -> None:
        self.closed += 1


class Node:
    """A registration directory and a dispatcher that connects to scripted peers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.peers: dict[str, Peer] = {}
        self.registry = CollectorRegistry()
        self.dispatcher = HookDispatcher(
            HookServerRegistry(folder / "d"),
            timeout=FOREVER,
            connect=self.connect,
            metrics=ProxyMetrics.of(self.registry),
        )

    def register(self, name: str, *hooks: str, policy: str = "Ignore", there: bool = True) -> Peer:
        socket = self.folder / f"{name}.sock"
        if there:
            socket.touch()
        document = {"remote-endpoint": str(socket), "failure-policy": policy, "runtime-hooks": hooks}
        (self.folder / "d").mkdir(exist_ok=True)
        (self.folder / f"d/{name}.json").write_text(json.dumps(document))
        return self.peers.setdefault(str(socket), Peer())

    async def connect(self, endpoint: str) -> HookClient:
        peer = self.peers[endpoint]
        if isinstance(peer.answers[0], HookEndpointError):
            raise peer.answers[0]
        peer.connected += 1
        return peer

    async def ask(self, deadline: float | None = None) -> HookOutcome:
        return await self.dispatcher.dispatch(Hook.PRE_RUN_POD_SANDBOX, ASKED, deadline)

    def failures(self, policy: str) -> float | None:
        return self.registry.get_sample_value(
            "koord_runtime_proxy_hook_failures_total", {"hook": "PreRunPodSandbox", "policy": policy}
        )


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    await node.dispatcher.close()


PRE = Hook.PRE_RUN_POD_SANDBOX.value


async def test_no_server_is_registered(node: Node) -> None:
    other = node.register("other", "PreCreateContainer", "Unheard")
    outcome = await node.ask()
    assert outcome == HookOutcome(None, HookFailurePolicy.NONE, None)
    assert outcome.accepted() is None
    assert other.calls == []
    assert not node.dispatcher.handles(Hook.PRE_RUN_POD_SANDBOX)
    assert node.dispatcher.handles(Hook.PRE_CREATE_CONTAINER)


async def test_only_the_first_server_by_file_name_is_called(node: Node) -> None:
    last = node.register("z", PRE)
    first = node.register("a", PRE, policy="Fail")
    first.answers = [PodSandboxHookResponse(labels={"a": "b"}).SerializeToString()]
    outcome = await node.ask()
    assert outcome.accepted() == PodSandboxHookResponse(labels={"a": "b"})
    assert outcome.policy is HookFailurePolicy.FAIL
    assert (first.calls, last.calls) == (["PreRunPodSandboxHook"], [])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(HookCallError("INTERNAL: no"), "INTERNAL: no", id="error"),
        pytest.param(b"\xff\xff", "pars", id="garbage"),
        pytest.param(
            PodSandboxHookResponse(cgroup_parent="/../x").SerializeToString(), "cgroup_parent", id="forbidden"
        ),
        pytest.param(HookServerUnreachable("UNAVAILABLE: gone"), "gone", id="lost"),
    ],
)
@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_the_failure_policy_applies(node: Node, answer: Any, message: str, policy: str) -> None:
    node.register("a", PRE, policy=policy).answers = [answer]
    never = node.register("b", PRE)
    outcome = await node.ask()
    assert outcome.error is not None and message.lower() in outcome.error.lower()
    if policy == "Fail":
        with pytest.raises(HookRefused, match=r"^hook server err: ") as refused:
            outcome.accepted()
        assert outcome.error in str(refused.value)
    else:
        assert outcome.accepted() is None
    assert never.calls == []
    assert node.failures(policy) == 1


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_the_policy_applies_to_a_dead_socket(node: Node, policy: str) -> None:
    node.register("a", PRE, policy=policy, there=False)
    outcome = await node.ask()
    assert outcome.policy is HookFailurePolicy(policy)
    assert outcome.error is not None and "no socket" in outcome.error


async def test_no_client_can_be_made(node: Node) -> None:
    node.register("a", PRE, policy="Fail").answers = [HookEndpointError("no such protocol")]
    assert (await node.ask()).error == "no such protocol"
    second = node.register("b", PRE)
    assert (await node.ask()).response == PodSandboxHookResponse()
    assert second.calls == ["PreRunPodSandboxHook"]


async def test_a_deadline_that_has_passed(node: Node) -> None:
    peer = node.register("a", PRE)
    assert (await node.ask(time.monotonic() - 1)).error is not None
    assert peer.calls == []


async def test_the_callers_deadline_bounds_the_limit(node: Node) -> None:
    peer = node.register("a", PRE)
    limits: list[float] = []

    async def call(rpc: str, request: bytes, seconds: float) -> bytes:
        limits.append(seconds)
        return b""

    peer.call = call  # type: ignore[method-assign]
    await node.ask()
    await node.ask(time.monotonic() + 600)
    assert 600 < limits[0] <= FOREVER
    assert 0 < limits[1] <= 600


async def test_a_dead_connection_is_replaced_once(node: Node) -> None:
    peer = node.register("a", PRE)
    await node.ask()
    peer.answers = [HookServerUnreachable("reset"), b""]
    assert (await node.ask()).response is not None
    await asyncio.sleep(0)
    assert (peer.connected, peer.closed) == (2, 1)
    peer.answers = [HookServerUnreachable("reset"), HookServerUnreachable("refused"), b""]
    assert (await node.ask()).error is not None
    assert len(peer.calls) == 5
    assert (await node.ask()).response is not None


async def test_another_socket_is_another_server(node: Node) -> None:
    peer = node.register("a", PRE)
    await node.ask()
    socket = node.folder / "a.sock"
    (node.folder / "new").touch()
    (node.folder / "new").replace(socket)
    await node.ask()
    await asyncio.sleep(0)
    assert (peer.connected, peer.closed) == (2, 1)


async def test_the_number_of_clients_is_bounded(node: Node) -> None:
    peers = []
    for number in range(MAX_CLIENTS + 2):
        peer = node.register(f"{number:02}", PRE)
        await node.ask()
        (node.folder / f"d/{number:02}.json").rename(node.folder / f"d/{number:02}.off")
        peers.append(peer)
    await asyncio.sleep(0)
    assert [peer.closed for peer in peers] == [1, 1] + [0] * MAX_CLIENTS
    await node.dispatcher.close()
    assert [peer.closed for peer in peers] == [1] * (MAX_CLIENTS + 2)


async def test_concurrent_calls_share_a_client(node: Node) -> None:
    peer = node.register("a", PRE)
    await asyncio.gather(*(node.ask() for _ in range(20)))
    assert peer.connected - peer.closed == 1


# Real gRPC


@asynccontextmanager
async def proxy(folder: Path, path: Path, *hooks: Hook, hook_timeout: float = 60.0) -> AsyncIterator[HookDispatcher]:
    (folder / "d").mkdir(exist_ok=True)
    document = {"remote-endpoint": str(path), "failure-policy": "Fail", "runtime-hooks": list(hooks)}
    (folder / "d/k.json").write_text(json.dumps(document))
    dispatcher = HookDispatcher(
        HookServerRegistry(folder / "d"), timeout=hook_timeout, metrics=ProxyMetrics.of(CollectorRegistry())
    )
    try:
        yield dispatcher
    finally:
        await dispatcher.close()


async def test_koordlets_own_server(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    server = serve(path)
    await server.start()
    try:
        async with proxy(tmp_path, path, *Hook) as dispatcher:
            await dispatcher.warm()
            for hook in Hook:
                place = list(HookStage).index(HookStage(hook.value)) + 2
                sandbox = hook.response is PodSandboxHookResponse
                request: Any = (PodSandboxHookRequest if sandbox else ContainerResourceHookRequest)(
                    pod_meta={"name": "p", "namespace": "ns", "uid": "1"}
                )
                answer: Any = (await dispatcher.dispatch(hook, request)).accepted()
                assert (answer.resources if sandbox else answer.container_resources).cpu_shares == place
            bad = ContainerResourceHookRequest(pod_meta={"name": "bad", "namespace": "ns", "uid": "1"})
            with pytest.raises(HookRefused, match=r"hook server err: .*INTERNAL: "):
                (await dispatcher.dispatch(Hook.PRE_CREATE_CONTAINER, bad)).accepted()
            large = ContainerResourceHookRequest(
                pod_meta={"name": "p", "namespace": "ns", "uid": "1"}, container_annotations={"A": "x" * (7 << 20)}
            )
            answer = (await dispatcher.dispatch(Hook.PRE_CREATE_CONTAINER, large)).accepted()
            assert answer.container_annotations == large.container_annotations
    finally:
        await server.stop()


async def test_koordlet_restarts_between_two_calls(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    request = PodSandboxHookRequest(pod_meta={"name": "p", "namespace": "ns", "uid": "1"}, cgroup_parent="/kubepods/p1")
    async with proxy(tmp_path, path, Hook.PRE_RUN_POD_SANDBOX) as dispatcher:
        for _ in range(3):
            assert (await dispatcher.dispatch(Hook.PRE_RUN_POD_SANDBOX, request)).error is not None
            server = serve(path)
            await server.start()
            assert (await dispatcher.dispatch(Hook.PRE_RUN_POD_SANDBOX, request)).error is None  # immediately
            await server.stop()


async def test_a_socket_whose_server_died(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
    assert path.exists()  # left over, as after kill -9
    async with proxy(tmp_path, path, Hook.PRE_RUN_POD_SANDBOX) as dispatcher:
        outcome = await dispatcher.dispatch(Hook.PRE_RUN_POD_SANDBOX, ASKED)
        assert outcome.error is not None and "UNAVAILABLE" in outcome.error
        server = serve(path)  # koordlet replaces it
        await server.start()
        assert (await dispatcher.dispatch(Hook.PRE_RUN_POD_SANDBOX, ASKED)).error is None
        await server.stop()


@asynccontextmanager
async def speaker(path: Path, words: bytes) -> AsyncIterator[None]:
    """A server that sends `words` to every client and reads nothing."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)

        async def talk() -> None:
            while True:
                connection = stack.enter_context((await loop.sock_accept(listener))[0])
                await loop.sock_sendall(connection, words)

        task = asyncio.create_task(talk())
        yield
        await end_tasks(task)


async def test_a_server_without_grpc_fails_the_hook(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    words = b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10
    async with speaker(path, words), proxy(tmp_path, path, Hook.PRE_RUN_POD_SANDBOX, hook_timeout=5.0) as dispatcher:
        assert (await dispatcher.dispatch(Hook.PRE_RUN_POD_SANDBOX, ASKED)).error is not None


async def test_a_server_that_never_responds_fails_the_hook(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    async with speaker(path, b""), proxy(tmp_path, path, Hook.PRE_RUN_POD_SANDBOX, hook_timeout=0.2) as dispatcher:
        outcome = await dispatcher.dispatch(Hook.PRE_RUN_POD_SANDBOX, ASKED)
        assert outcome.error is not None and "DEADLINE_EXCEEDED" in outcome.error


@asynccontextmanager
async def hook_server(path: Path, answer: Callable[[bytes], Awaitable[bytes]]) -> AsyncIterator[None]:
    """A server whose hooks respond with `answer` of the request, as bytes."""

    async def method(request: bytes, _: Any) -> bytes:
        return await answer(request)

    server = grpc.aio.server()
    handlers = {hook.rpc: grpc.unary_unary_rpc_method_handler(method) for hook in Hook}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def test_garbage_from_a_real_server(tmp_path: Path) -> None:
    async def answer(_: bytes) -> bytes:
        return b"\x0a\xff garbage"

    path = tmp_path / "odd name %41.sock"
    async with hook_server(tmp_path / "plain.sock", answer), proxy(tmp_path, path, *Hook) as dispatcher:
        (tmp_path / "plain.sock").rename(path)
        outcome = await dispatcher.dispatch(Hook.PRE_CREATE_CONTAINER, ContainerResourceHookRequest())
        assert outcome.error is not None and "pars" in outcome.error.lower()


async def test_a_slow_server_times_out_and_gets_the_cancellation(tmp_path: Path) -> None:
    entered, left = asyncio.Event(), asyncio.Event()

    async def answer(_: bytes) -> bytes:
        entered.set()
        try:
            await asyncio.sleep(FOREVER)
        finally:
            left.set()
        return ContainerResourceHookResponse().SerializeToString()

    path = tmp_path / "k.sock"
    async with hook_server(path, answer):
        async with proxy(tmp_path, path, *Hook, hook_timeout=0.3) as dispatcher:
            outcome = await dispatcher.dispatch(Hook.PRE_CREATE_CONTAINER, ContainerResourceHookRequest())
            assert outcome.error is not None and "DEADLINE_EXCEEDED" in outcome.error
        entered.clear()
        left.clear()
        async with proxy(tmp_path, path, *Hook) as dispatcher:
            task = asyncio.create_task(dispatcher.dispatch(Hook.PRE_CREATE_CONTAINER, ContainerResourceHookRequest()))
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await left.wait()
