"""Streams with a scripted kubelet: what reaches it, limits, memory, and clients and kubelets that misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from control.standalone.apiserver import ApiServer
from control.standalone.apiserver.tls import ensure_pki, kubelet_serving_certificate
from control.standalone.streams import spdy
from control.standalone.streams.remotecommand import CLOSE, ERROR, MESSAGE_LIMIT_BYTES, RESIZE, STDIN, STDOUT
from control.standalone.streams.slots import StreamSlots, TooManyStreams
from koordlet.app.http import server_tls

POD = "/api/v1/namespaces/default/pods/p"
EXEC = f"{POD}/exec?command=sh&stdin=true&stdout=true&stderr=true"
PORTS = f"{POD}/portforward"
V5 = "v5.channel.k8s.io"
TUNNEL = "SPDY/3.1+portforward.k8s.io"
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"


class ScriptedKubelet:
    """The kubelet of node n. `script` gets each connection after the request's head."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.ended = asyncio.Event()
        """A connection has ended."""
        self.script: Script = self.refuse

    async def refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        text = b'container not found ("main")'
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            await self.script(reader, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the API server closed it
        finally:
            writer.close()
            self.ended.set()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path / "data", controllers=False) as running:
        await running.registry.create("/serviceaccounts", "default", {"metadata": {"name": "default"}})
        yield running


@pytest.fixture
async def kubelet(tmp_path: Path, server: ApiServer) -> AsyncIterator[ScriptedKubelet]:
    pki = tmp_path / "data" / "pki"
    cert, key = kubelet_serving_certificate(pki, tmp_path / "n", "n", "127.0.0.1")
    kubelet = ScriptedKubelet()
    listener = await asyncio.start_server(
        kubelet.serve, "127.0.0.1", 0, ssl=server_tls(cert, key, ensure_pki(pki, ("127.0.0.1",)).ca_file)
    )
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": listener.sockets[0].getsockname()[1]}},
    }
    await server.registry.create("/nodes", None, {"metadata": {"name": "n"}, "status": status})
    spec = {"containers": [{"name": "main", "image": "i"}], "nodeName": "n"}
    await server.registry.create("/pods", "default", {"metadata": {"name": "p"}, "spec": spec})
    yield kubelet
    listener.close()


@asynccontextmanager
async def websocket(http: Any, path: str, protocol: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    headers = {"Authorization": f"Bearer {http.server.admin_token}"}
    async with http.session.ws_connect(http.server.url + path, protocols=(protocol,), headers=headers) as opened:
        assert opened.protocol == protocol
        yield opened


async def message(client: aiohttp.ClientWebSocketResponse) -> bytes:
    async with asyncio.timeout(60):
        received = await client.receive()
    assert received.type is aiohttp.WSMsgType.BINARY, received
    return bytes(received.data)


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    decoder = spdy.FrameDecoder()
    while data := await reader.read(65536):
        for frame in decoder.feed(data):
            yield frame


async def until_idle(reading: Callable[[], int]) -> int:
    """The value of `reading` once it has stopped growing."""
    before = 0
    while not before or reading() != before:
        before = reading()
        await asyncio.sleep(0.3)
    return before


async def test_exec_is_translated_to_spdy(http: Any, kubelet: ScriptedKubelet) -> None:
    received: list[Any] = []
    status = b'{"metadata":{},"status":"Success"}'

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCH + spdy.ping(2))
        async for frame in frames(reader):
            received.append(frame)
            if isinstance(frame, spdy.DataPiece) and frame.fin:
                break
        writer.write(
            spdy.data_frame(5, b"out") + spdy.data_frame(1, status) + spdy.control_frame(spdy.GOAWAY, b"\0" * 8)
        )
        await reader.read()

    kubelet.script = script
    async with websocket(http, EXEC, V5) as client:
        assert await message(client) == bytes((STDOUT,))
        await client.send_bytes(bytes((STDIN,)) + b"in")
        for ignored in (b"", bytes((RESIZE,)) + b"{}", bytes((STDOUT,)) + b"x", bytes((9, 9)), bytes((CLOSE,))):
            await client.send_bytes(ignored)
        await client.send_str(chr(STDIN) + "text")
        await client.send_bytes(bytes((CLOSE, STDIN)))
        await client.send_bytes(bytes((STDIN,)) + b"too late")
        assert await message(client) == bytes((STDOUT,)) + b"out"
        assert await message(client) == bytes((ERROR,)) + status
        assert (await client.receive()).type is aiohttp.WSMsgType.CLOSE
    assert [f.number for f in received if isinstance(f, spdy.ControlFrame) and f.type == spdy.SYN_STREAM] == [
        1,
        3,
        5,
        7,
    ]
    assert [f.number for f in received if isinstance(f, spdy.ControlFrame) and f.type == spdy.PING] == [2]
    assert b"".join(f.data for f in received if isinstance(f, spdy.DataPiece)) == b"intext"
    (head,) = kubelet.heads
    assert head.startswith("POST /exec/default/p/main?input=1&output=1&error=1&command=sh HTTP/1.1\r\n")
    assert "X-Stream-Protocol-Version: v4.channel.k8s.io\r\n" in head
    assert "uthorization" not in head


async def test_a_refusal_of_the_kubelet_comes_on_the_error_channel(http: Any, kubelet: ScriptedKubelet) -> None:
    async with websocket(http, EXEC, V5) as client:
        answer = await message(client)
    assert answer[0] == ERROR
    text = 'Internal error occurred: unable to upgrade connection: container not found ("main")'
    assert json.loads(answer[1:])["message"] == text


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 101\r\n" + b"x: y\r\n" * 20000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        SWITCH,
        SWITCH + b"HTTP/1.1 400 Bad Request\r\n\r\n",
        SWITCH + spdy.control_frame(spdy.SYN_REPLY, b"\0" * 70000),
        SWITCH + spdy.data_frame(1, b"x" * 70000),
    ],
)
async def test_a_kubelet_that_answers_nonsense_fails_the_command(
    http: Any, kubelet: ScriptedKubelet, answer: bytes
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    kubelet.script = script
    async with websocket(http, EXEC, V5) as client:
        while (received := await message(client))[0] != ERROR:
            pass
    assert json.loads(received[1:])["reason"] == "InternalError"


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"\x83\x80\0\0\0\0", 1002),  # an unknown type of message
        (b"\xf2\x80\0\0\0\0", 1002),  # reserved bits
        (b"\x82\xff" + (MESSAGE_LIMIT_BYTES + 1).to_bytes(8, "big") + b"\0\0\0\0", 1009),
        (b"\x81\x82\0\0\0\0\xff\xfe", 1007),  # text that is none
    ],
)
async def test_malformed_messages_end_the_stream(http: Any, kubelet: ScriptedKubelet, raw: bytes, code: int) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCH)
        await reader.read()

    kubelet.script = script
    async with websocket(http, EXEC, V5) as client:
        await message(client)
        transport = client._conn.transport  # type: ignore[union-attr]
        assert transport is not None
        transport.write(raw)
        received = await client.receive()
        assert (received.type, received.data) == (aiohttp.WSMsgType.CLOSE, code)
    async with asyncio.timeout(60):
        await kubelet.ended.wait()


@pytest.mark.parametrize(("path", "protocol"), [(EXEC, V5), (PORTS, TUNNEL), (EXEC, "v4.channel.k8s.io")])
async def test_a_flood_waits_for_a_slow_client(http: Any, kubelet: ScriptedKubelet, path: str, protocol: str) -> None:
    """The kubelet sends without end, and the client does not read: what is under way stays small."""
    sent = 0
    goal: list[int] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        accept = f"Sec-WebSocket-Protocol: {protocol}\r\n".encode() if protocol.startswith("v4") else b""
        writer.write(SWITCH.replace(b"\r\n\r\n", b"\r\n" + accept + b"\r\n"))
        while not goal or sent < goal[0]:
            writer.write(spdy.data_frame(5, b"x" * 65536))
            await writer.drain()
            sent += 65536

    kubelet.script = script
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", http.server.port, ssl=http.context, server_hostname="127.0.0.1"
    )
    try:
        lines = [
            f"GET {path} HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", f"Sec-WebSocket-Protocol: {protocol}",
            f"Authorization: Bearer {http.server.admin_token}", "", "",
        ]  # fmt: skip
        writer.write("\r\n".join(lines).encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        stalled = await until_idle(lambda: sent)
        assert 0 < stalled < 48 << 20, "sockets hold some of it, the server next to nothing"
        goal.append(stalled + (1 << 20))
        received = 0
        while received < goal[0] and (data := await reader.read(1 << 20)):
            received += len(data)
        assert received >= goal[0], "it goes on when the client reads again"
    finally:
        writer.transport.abort()


async def test_a_client_that_vanishes_frees_its_slot_and_the_kubelet(
    http: Any, server: ApiServer, kubelet: ScriptedKubelet
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCH)
        await reader.read()

    kubelet.script = script
    async with websocket(http, PORTS, TUNNEL) as client:
        assert server._streams.open == 1
        assert client._conn is not None
        client._conn.transport.abort()  # type: ignore[union-attr]
        async with asyncio.timeout(60):
            await kubelet.ended.wait()
            while server._streams.open:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.01)


async def test_streams_are_limited_per_user_and_in_total(
    http: Any, server: ApiServer, kubelet: ScriptedKubelet
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCH)
        await reader.read()

    kubelet.script = script
    server._streams._slots = StreamSlots(total=3, per_user=2)
    async with (
        websocket(http, PORTS, TUNNEL),
        websocket(http, PORTS, TUNNEL),
    ):
        answer = await http("POST", PORTS, headers={"Connection": "Upgrade", "Upgrade": "SPDY/3.1"})
        assert (answer.status, answer.body["reason"]) == (429, "TooManyRequests")
        assert "user 'admin' has 2 open streams, which is the limit" in answer.body["message"]
        assert answer.headers["Retry-After"] == "5"
    slots = StreamSlots(total=3, per_user=2)
    with slots.taken("a"), slots.taken("a"), slots.taken("b"):
        with pytest.raises(TooManyStreams, match="3 streams are open"), slots.taken("c"):
            pass
        assert slots.open == 3
    assert slots.open == 0


async def test_a_request_without_an_upgrade_reaches_no_kubelet(http: Any, kubelet: ScriptedKubelet) -> None:
    for subresource in ("exec?command=ls", "attach", "portforward"):
        answer = await http("POST", f"{POD}/{subresource}")
        assert (answer.status, answer.body["message"]) == (400, "Upgrade request required")
    assert (await http("PUT", f"{POD}/exec")).status == 405
    assert kubelet.heads == []


async def test_a_refused_spdy_upgrade_has_the_kubelets_answer(http: Any, kubelet: ScriptedKubelet) -> None:
    """And the connection stays HTTP: nothing after the request reaches the kubelet."""
    headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v4.channel.k8s.io"}
    answer = await http("POST", EXEC, headers=headers)
    assert (answer.status, answer.text) == (500, 'container not found ("main")')
    assert "X-Stream-Protocol-Version: v4.channel.k8s.io\r\n" in kubelet.heads[0]


async def test_a_stopping_server_ends_its_streams(http: Any, server: ApiServer, kubelet: ScriptedKubelet) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCH)
        await reader.read()

    kubelet.script = script
    async with websocket(http, EXEC, V5) as client:
        await message(client)
        await server.stop()
        async with asyncio.timeout(60):
            await kubelet.ended.wait()
