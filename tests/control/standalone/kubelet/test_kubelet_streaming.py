"""exec, attach and port-forward at the kubelet: who may, what is asked of the runtime, and where the stream goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from control.standalone.kubelet.node.apirequests import NodeApi
from control.standalone.kubelet.runtimes.process import ProcessRuntime
from control.standalone.kubelet.runtimes.runtime import RuntimeFailure, StreamRequest
from control.standalone.kubelet.server.auth import KubeletAuth
from control.standalone.kubelet.server.server import KubeletEndpoints, main_server
from control.standalone.kubelet.server.streaming import runtime_endpoint
from control.standalone.streams.upgrade import Endpoint, UpgradeRefused, connect
from koordlet.app.health import HealthChecks

SPDY = [("Upgrade", "SPDY/3.1"), ("Authorization", "Bearer server")]
EXEC = "/exec/default/web/main?output=1&command=ls&command=-l"


@pytest.fixture
async def served(world: Any, pod: Callable[..., Any]) -> AsyncIterator[Any]:
    """A kubelet over plain HTTP with a running pod, and a streaming server of its runtime that echoes."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nX-Other: x\r\n\r\nready")
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    heads: list[str] = []
    runtime = await asyncio.start_server(echo, "127.0.0.1", 0)
    world.runtime.stream_server = f"http://127.0.0.1:{runtime.sockets[0].getsockname()[1]}/exec/t0ken"
    world.api.create_pod(pod())
    await world.settle()
    world.api.tokens = {"server": {"username": "server"}, "reader": {"username": "reader"}}
    world.api.rights = {("server", "proxy")}
    server = main_server(
        "127.0.0.1:0",
        KubeletEndpoints(world.kubelet, dict, world.clock),
        KubeletAuth(NodeApi(world.api, "n1"), world.clock, {}),
        CollectorRegistry(),
        HealthChecks(),
        None,
    )
    await server.start()
    yield SimpleNamespace(world=world, heads=heads, url=server.url, endpoint=Endpoint("127.0.0.1", server.port))
    await server.stop()
    runtime.close()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_the_stream_goes_to_the_runtimes_server(served: Any, method: str) -> None:
    upgraded = await connect(served.endpoint, method, EXEC, [*SPDY, ("X-Stream-Protocol-Version", "v4.channel.k8s.io")])
    assert await upgraded.read() == b"ready"
    await upgraded.write(b"x" * 500_000)
    received = 0
    while received < 500_000:
        received += len(await upgraded.read())
    upgraded.close()
    info = served.world.runtime.find("main")
    assert served.world.runtime.streams == [StreamRequest(info.id, ["ls", "-l"], stdout=True)]
    (head,) = served.heads
    assert head.startswith(f"{method} /exec/t0ken HTTP/1.1\r\n")
    assert "X-Stream-Protocol-Version: v4.channel.k8s.io\r\n" in head
    assert "Bearer" not in head
    assert "X-Other" not in upgraded.headers


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/attach/default/web/main?input=1&output=1&error=1&tty=1", {"stdin": True, "stdout": True, "stderr": False}),
        ("/attach/default/web/main?error=1", {"stdin": False, "stdout": False, "stderr": True}),
        ("/portForward/default/web", {"ports": []}),
        ("/portForward/default/web?port=80,8080", {"ports": [80, 8080]}),
    ],
)
async def test_what_is_asked_of_the_runtime(served: Any, path: str, expected: dict[str, Any]) -> None:
    """An attached terminal is the container's: the client does not choose it."""
    upgraded = await connect(served.endpoint, "POST", path, SPDY)
    upgraded.close()
    (request,) = served.world.runtime.streams
    assert {name: getattr(request, name) for name in expected} == expected
    assert request.command is None
    assert not request.tty
    assert bool(request.pod_uid) is path.startswith("/portForward")


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/exec/default/none/main?output=1", 404, "pod does not exist"),
        ("/exec/default/web/none?output=1", 500, 'container not found ("none")'),
        ("/exec/default/web/main", 400, "you must specify at least 1 of stdin, stdout, stderr"),
        ("/exec/default/web/main?error=1&tty=1", 400, "you must specify at least 1 of stdin, stdout, stderr"),
        ("/portForward/default/web?port=80,x", 400, 'unable to parse "80,x" as a port'),
        ("/portForward/default/web?port=" + "9" * 5000, 400, "as a port"),
    ],
)
async def test_errors(served: Any, path: str, status: int, text: str) -> None:
    with pytest.raises(UpgradeRefused) as error:
        await connect(served.endpoint, "POST", path, SPDY)
    assert error.value.status == status
    assert text in error.value.text
    assert served.world.runtime.streams == []


@pytest.mark.parametrize(
    "path", ["/exec/default/web/main?output=1", "/attach/default/web/main", "/portForward/default/web"]
)
async def test_a_websocket_needs_the_right_to_create(served: Any, path: str) -> None:
    """Its request is a GET, which the right to read nodes/proxy must not allow."""
    async with aiohttp.ClientSession() as session:
        for token, status in ((None, 401), ("reader", 403)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with session.get(served.url + path, headers=headers) as response:
                assert response.status == status
                assert token is None or "verb=create, resource=nodes" in await response.text()
        async with session.get(served.url + path, headers={"Authorization": "Bearer server"}) as response:
            assert response.status == 400  # no upgrade
    reviews = [body for _, path, body in served.world.api.calls if path.endswith("/subjectaccessreviews")]
    assert {body["spec"]["resourceAttributes"]["verb"] for body in reviews} == {"create"}


async def test_an_ended_container_has_no_streams(served: Any, pod: Callable[..., Any]) -> None:
    container = {"name": "once", "image": "busybox", "command": ["true"]}
    served.world.api.create_pod(pod("ended", containers=[container], restartPolicy="Never"))
    await served.world.settle()
    served.world.runtime.exit("once", 0)
    with pytest.raises(UpgradeRefused, match="container not found"):
        await connect(served.endpoint, "POST", "/exec/default/ended/once?output=1", SPDY)


@pytest.mark.parametrize(
    "url",
    [
        *("", "http://[::1", "https://127.0.0.1:1/x", "http://192.0.2.1:80/x", "http://localhost:80/x"),
        *("http://127.0.0.1/x", "http://127.0.0.1:99999/x"),
    ],
)
def test_only_a_loopback_address_is_a_runtimes_server(url: str) -> None:
    with pytest.raises(RuntimeFailure, match="not at a loopback address over HTTP"):
        runtime_endpoint(url)
    assert runtime_endpoint("http://[::1]:8080/exec/a?b")[0] == Endpoint("::1", 8080)


async def test_plain_processes_have_no_streams(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match="need a container runtime") as error:
        await ProcessRuntime.stream_url(object.__new__(ProcessRuntime), StreamRequest())
    assert error.value.reason == "NotImplemented"
