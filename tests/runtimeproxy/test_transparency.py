"""Without hooks the proxy is transparent: a kubelet's calls in a pod's life, direct and through it, with containerd.

Checked twice. On the wire, by taps on both sides of the proxy: identical frames, except window updates, which belong to
each connection. And in responses: the same conversation without the proxy gives the same values, except those that the
runtime generates (ids, times, tokens, measurements).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from koordlet.api.cri import api_pb2 as cri
from koordlet.api.hooks.api_pb2 import LinuxContainerResources
from tests.runtimeproxy.proxyprocess import ProxyProcess
from tests.runtimeproxy.tap import Passed, frames, requests, tap, with_calls
from tests.runtimes.daemons import BUSYBOX, Containerd
from tests.runtimes.pods import container_config, sandbox_config
from tests.waiting import wait_until

pytestmark = pytest.mark.runtime

MEASURED = {"ContainerStats", "ListContainerStats", "PodSandboxStats", "ListPodSandboxStats", "ImageFsInfo"}
"""Responses that differ each time; of these only the status is compared."""
Answer = tuple[str, str, Any]


def text(number: int, value: str | bytes) -> bytes:
    """One string or message field of a request."""
    data = value.encode() if isinstance(value, str) else value
    size = len(data)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + length + data


def words(*command: str) -> bytes:
    """The command of an exec."""
    return b"".join(text(2, argument) for argument in command)


class Conversation:
    """A pod's life by raw messages; records every response as (method, status, message or text)."""

    def __init__(self, channel: grpc.aio.Channel, version: str) -> None:
        self._channel, self._package = channel, f"runtime.{version}"
        self.answers: list[Answer] = []

    async def ask(self, method: str, request: bytes | Message = b"", service: str = "RuntimeService") -> bytes:
        body = request.SerializeToString() if isinstance(request, Message) else request
        call = self._channel.unary_unary(f"/{self._package}.{service}/{method}")(body, metadata=(("trace", "x-1"),))
        try:
            answer: bytes = await call
        except grpc.aio.AioRpcError as error:
            metadata = dict(error.trailing_metadata() or ())
            self.answers.append((method, error.code().name, (error.details(), sorted(metadata))))
            return b""
        self.answers.append((method, "OK", answer))
        return answer

    async def hold(self, parent: str) -> None:
        """All calls of RuntimeService and ImageService, in a possible order of a kubelet."""
        ask = self.ask
        config = sandbox_config(parent, uid="5a1b2c3d-0000-4000-8000-000000000000", labels={"a": "b"})
        await ask("Version", text(1, "0.1.0"))
        await ask("Status", b"\x08\x01")
        await ask("UpdateRuntimeConfig", text(1, text(1, "10.0.0.0/16")))
        await ask("RuntimeConfig")
        for image in (BUSYBOX, "no-such.example/image:1"):
            await ask("ImageStatus", text(1, text(1, image)), "ImageService")
        await ask("PullImage", text(1, text(1, "localhost:1/none:1")), "ImageService")
        await ask("RemoveImage", text(1, text(1, "no-such.example/image:1")), "ImageService")
        await ask("ListImages", b"", "ImageService")
        await ask("ImageFsInfo", b"", "ImageService")
        await ask("ListPodSandbox")
        answer = await ask("RunPodSandbox", cri.RunPodSandboxRequest(config=config))
        pod = cri.RunPodSandboxResponse.FromString(answer).pod_sandbox_id
        await ask("RunPodSandbox", cri.RunPodSandboxRequest(config=config))  # its name is in use
        await ask("PodSandboxStatus", text(1, pod))
        await ask("ListPodSandbox", text(1, text(1, pod)))
        request = cri.CreateContainerRequest(
            pod_sandbox_id=pod, config=container_config(envs=[("A", "x" * 20_000)]), sandbox_config=config
        )
        request.config.log_path = "main.log"
        container = cri.CreateContainerResponse.FromString(await ask("CreateContainer", request)).container_id
        await ask("CreateContainer", request)
        await ask("ContainerStatus", text(1, container))
        await ask("StartContainer", text(1, container))
        await ask("StartContainer", text(1, container))
        await ask("ContainerStatus", text(1, container))
        await ask("ListContainers", text(1, text(3, pod)))
        resources = LinuxContainerResources(cpu_period=100_000, cpu_quota=50_000, cpu_shares=100)
        await ask(
            "UpdateContainerResources", cri.UpdateContainerResourcesRequest(container_id=container, linux=resources)
        )
        await ask(
            "ExecSync",
            text(1, container) + b"".join(text(2, argument) for argument in ("/bin/sh", "-c", "echo a; exit 3")),
        )
        await ask("Exec", text(1, container) + text(2, "/bin/true") + b"\x28\x01")
        await ask("Attach", text(1, container) + b"\x20\x01")
        await ask("PortForward", text(1, pod) + b"\x12\x01\x50")
        for method, id in (("ContainerStats", container), ("PodSandboxStats", pod)):
            await ask(method, text(1, id))
        for method in ("ListContainerStats", "ListPodSandboxStats", "ListMetricDescriptors", "ListPodSandboxMetrics"):
            await ask(method)
        await ask("ReopenContainerLog", text(1, container))
        await ask("CheckpointContainer", text(1, container))
        await ask("ThisIsFromTheFuture", bytes(100_000))
        await ask("StopContainer", text(1, container))
        await ask("StopContainer", text(1, container))
        await ask("ContainerStatus", text(1, container))
        for method, id in (("RemoveContainer", container), ("StopPodSandbox", pod), ("StopPodSandbox", pod)):
            await ask(method, text(1, id))
        await ask("RemovePodSandbox", text(1, pod))
        await ask("PodSandboxStatus", text(1, pod))
        await ask("StartContainer", text(1, container))
        await ask("StartContainer", b"\xff\xff\xff")
        events = self._channel.unary_stream(f"/{self._package}.RuntimeService/GetContainerEvents")(b"")
        try:
            async for event in events:
                self.answers.append(("GetContainerEvents", "OK", event))
        except grpc.aio.AioRpcError as error:
            self.answers.append(("GetContainerEvents", error.code().name, error.details()))


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """A message without its schema: numbers and values, where bytes may be messages."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        number, kind = key >> 3, key & 7
        if not number:
            raise ValueError
        if kind == 0:
            yield number, varint()
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            yield number, data[at : at + size]
            at += size
        elif kind == 2:
            size = varint()
            if at + size > len(data):
                raise IndexError
            yield number, data[at : at + size]
            at += size
        else:
            raise ValueError


def comparable(value: Any) -> Any:
    """Without values that the runtime generates."""
    if isinstance(value, tuple | list):
        return [comparable(item) for item in value]
    if isinstance(value, int):
        return "time" if value > 10**17 else value
    if isinstance(value, bytes) and not (value.isascii() and value.decode().isprintable()):
        try:
            comparable_fields = [(number, comparable(item)) for number, item in fields(value)]
        except (ValueError, IndexError):
            comparable_fields = None  # text after all
        if comparable_fields is not None:
            return sorted(comparable_fields, key=repr)  # maps have no order
    value = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    value = re.sub(r"[0-9a-f]{64}", "<id>", value)
    value = re.sub(r"(exec|attach|portforward)/[\w-]+", r"\1/<token>", value)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>", value)


@contextlib.asynccontextmanager
async def channel_to(path: Path) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 16 << 20)]
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        yield channel


@pytest.fixture
def proxy(containerd: Containerd, tmp_path: Path) -> Iterator[ProxyProcess]:
    """Its runtime is expected at `tmp_path/behind.sock`."""
    process = ProxyProcess(tmp_path / "behind.sock")
    yield process
    process.close()


async def through(containerd: Containerd, proxy: ProxyProcess, version: str) -> tuple[list[Answer], Passed, Passed]:
    """The conversation's responses, and the frames on the client's and the runtime's side of the proxy."""
    before = proxy.backend.with_name("before.sock")
    async with tap(proxy.backend, containerd.socket) as behind:
        await asyncio.to_thread(proxy.start)
        count = len(behind)
        async with tap(before, proxy.socket) as ahead, channel_to(before) as channel:
            conversation = Conversation(channel, version)
            await conversation.hold(containerd.cgroup_parent("same"))
            await channel.close()
            (client,) = with_calls(ahead)
            (runtime,) = with_calls(answer for answer in behind[count:] if b"koord-runtime-proxy" not in answer.up)
            await asyncio.to_thread(wait_until, lambda: client.over and runtime.over, "both connections are over")
    return conversation.answers, client, runtime


@pytest.mark.parametrize("version", ["v1", "v1alpha2"])
async def test_a_pods_life(containerd: Containerd, proxy: ProxyProcess, version: str) -> None:
    answers, client, runtime = await through(containerd, proxy, version)
    # the wire
    assert frames(bytes(client.down)) == frames(bytes(runtime.down))
    assert requests(bytes(client.up)) == requests(bytes(runtime.up))
    # the answers
    async with channel_to(containerd.socket) as channel:
        direct = Conversation(channel, version)
        await direct.hold(containerd.cgroup_parent("same"))
    assert [answer[:2] for answer in answers] == [answer[:2] for answer in direct.answers]
    for (method, _, proxied), (_, _, expected) in zip(answers, direct.answers, strict=True):
        same = [_parents(comparable(responses)) for responses in (proxied, expected)]
        assert same[0] == same[1] or method in MEASURED, method
    worked = {method for method, status, _ in answers if status == "OK"}
    assert worked >= {
        "Version", "Status", "RunPodSandbox", "CreateContainer", "StartContainer", "UpdateContainerResources",
        "ExecSync", "Exec", "Attach", "PortForward", "StopContainer", "RemoveContainer", "StopPodSandbox",
        "RemovePodSandbox", "ListImages", "ImageStatus", "ListContainerStats",
    }  # fmt: skip
    assert proxy.metric("koord_runtime_proxy_malformed_connections_total") == 0


def _parents(value: Any) -> Any:
    """The cgroup's name has a serial number."""
    if isinstance(value, list | tuple):
        return [_parents(item) for item in value]
    return re.sub(r"koord-test-\d+-\d+", "<parent>", value) if isinstance(value, str) else value


async def test_an_exec_session(containerd: Containerd, proxy: ProxyProcess, tmp_path: Path) -> None:
    """The forwarded URL leads to a stream that bypasses the proxy."""
    (tmp_path / "behind.sock").symlink_to(containerd.socket)
    await asyncio.to_thread(proxy.start)
    config = sandbox_config(containerd.cgroup_parent())
    async with channel_to(proxy.socket) as channel:
        conversation = Conversation(channel, "v1")
        answer = await conversation.ask("RunPodSandbox", cri.RunPodSandboxRequest(config=config))
        pod = cri.RunPodSandboxResponse.FromString(answer).pod_sandbox_id
        request = cri.CreateContainerRequest(pod_sandbox_id=pod, config=container_config(), sandbox_config=config)
        container = cri.CreateContainerResponse.FromString(
            await conversation.ask("CreateContainer", request)
        ).container_id
        await conversation.ask("StartContainer", text(1, container))
        command = words("/bin/sh", "-c", "read line; echo got $line")
        ((_, url),) = fields(await conversation.ask("Exec", text(1, container) + command + b"\x20\x01\x28\x01"))
    heard = b""
    protocols = ["v4.channel.k8s.io"]
    async with aiohttp.ClientSession() as session, session.ws_connect(url.decode(), protocols=protocols) as stream:
        await stream.send_bytes(b"\x00hello\n")
        async for message in stream:
            if message.data[:1] == b"\x01":
                heard += message.data[1:]
    assert heard == b"got hello\n"
