"""Kept-alive connections of short requests, against a server that sends exactly these bytes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from koordlet.app.tasks import end_tasks
from koordlet.kube import connections as module
from koordlet.kube.config import ClientConfig
from koordlet.kube.connections import Answer, BodyTooLong, Connections, NotConnected, request_target
from koordlet.kube.credentials import Anonymous
from koordlet.kube.errors import AnswerTooLong
from koordlet.kube.tls import client_context
from koordlet.kube.transport import Transport
from tests.certificates import self_signed_files
from tests.waiting import until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
SILENCE = b""


@dataclass
class RawServer:
    """Answers each request with the next of `answers`, then closes the connection if `closes`."""

    answers: list[bytes] = field(default_factory=list)
    closes: bool = False
    requests: list[bytes] = field(default_factory=list)
    opened: int = 0
    lost: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(line[16:]) for line in head.split(b"\r\n") if line[:16] == b"Content-Length: "), 0)
                self.requests.append(head + await reader.readexactly(length))
                writer.write(self.answers.pop(0))
                await writer.drain()
                if self.closes:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost += 1
        finally:
            writer.close()


@pytest.fixture
async def raw() -> AsyncIterator[RawServer]:
    raw = RawServer()
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    raw.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield raw
    server.close()


@pytest.fixture
async def client(raw: RawServer) -> AsyncIterator[Connections]:
    client = Connections(f"{raw.url}/prefix/", None)
    yield client
    client.close()


async def get(client: Connections) -> Answer:
    return await client.request("GET", "/a", {"Accept": "x"}, None)


async def test_a_connection_serves_one_request_after_the_other(raw: RawServer, client: Connections) -> None:
    raw.answers += [OK, OK]
    assert await get(client) == (200, {"content-length": "2"}, b"{}")
    assert (await client.request("POST", "/b?c=d", {}, b"body")).body == b"{}"
    host = raw.url.removeprefix("http://").encode()
    assert raw.requests == [
        b"GET /prefix/a HTTP/1.1\r\nHost: " + host + b"\r\nAccept: x\r\n\r\n",
        b"POST /prefix/b?c=d HTTP/1.1\r\nHost: " + host + b"\r\nContent-Length: 4\r\n\r\nbody",
    ]
    assert raw.opened == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK,
    ],
    ids=["chunked", "continue", "hints"],
)
async def test_forms_of_an_answer(raw: RawServer, client: Connections, answer: bytes) -> None:
    raw.answers += [answer, OK]
    assert (await get(client))[::2] == (200, b"{}")
    await get(client)
    assert raw.opened == 1


async def streamed(
    client: Connections, take: Callable[[bytes], bytes | None] = lambda part: part
) -> list[tuple[int, bytes]]:
    return [answer[::2] async for answer in client.stream("/a", {}, take, max_bytes=1 << 20)]


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_an_answer_is_read_in_parts(raw: RawServer, client: Connections) -> None:
    raw.answers += [CHUNKED + b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", OK.replace(b"200", b"403"), OK]
    assert await streamed(client, lambda part: part * 2 if part != b"a" else None) == [(200, b"bcbc"), (200, b"")]
    assert await streamed(client) == [(403, b"{}"), (403, b"")]
    assert (await get(client)).body == b"{}"
    assert raw.opened == 1


async def test_a_reader_that_leaves_or_fails_closes_its_connection(raw: RawServer, client: Connections) -> None:
    raw.answers += [CHUNKED + b"1\r\na\r\n", CHUNKED + b"1\r\na\r\n", OK]
    async with aclosing(client.stream("/a", {}, lambda part: part, max_bytes=10)) as answers:
        assert (await anext(answers)).body == b"a"

    def refuse(part: bytes) -> bytes:
        raise ValueError(f"no {part.decode()}")

    with pytest.raises(ValueError, match="no a"):
        await streamed(client, refuse)
    assert (await get(client)).body == b"{}"
    assert raw.opened == 3


async def test_what_follows_an_answer_is_no_part_of_it(raw: RawServer, client: Connections) -> None:
    raw.answers += [OK + OK, OK]
    assert await streamed(client) == [(200, b"{}"), (200, b"")]
    assert await streamed(client) == [(200, b"{}"), (200, b"")]
    assert raw.opened == 2


async def test_an_answer_that_breaks_off_is_an_error_after_its_parts(raw: RawServer, client: Connections) -> None:
    raw.answers, raw.closes = [CHUNKED + b"1\r\na\r\n"], True
    parts: list[bytes] = []
    with pytest.raises(ConnectionError):
        async for answer in client.stream("/a", {}, lambda part: part, max_bytes=10):
            parts.append(answer.body)
    assert parts == [b"a"]


@pytest.mark.parametrize(
    "answer", [OK + OK, OK + b"HTTP/1.1 200 OK\r\n", OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)]
)
async def test_a_connection_with_more_than_the_answer_is_not_used_again(
    raw: RawServer, client: Connections, answer: bytes
) -> None:
    raw.answers += [answer, OK]
    assert (await get(client)).body == b"{}"
    await until(lambda: raw.lost == 1)
    assert (await get(client)).body == b"{}"
    assert raw.opened == 2


async def test_bytes_that_arrive_later_are_not_the_next_answer(raw: RawServer, client: Connections) -> None:
    raw.answers += [OK, OK]
    await get(client)
    [idle] = client._idle
    late = b"HTTP/1.1 200 OK\r\n"
    idle.get_buffer(-1)[: len(late)] = late
    idle.buffer_updated(len(late))
    await get(client)
    assert raw.opened == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        OK[:-1],
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nx",
    ],
)
async def test_a_broken_answer_is_a_lost_connection(raw: RawServer, client: Connections, answer: bytes) -> None:
    raw.answers, raw.closes = [answer], True
    with pytest.raises(ConnectionError) as failure:
        await get(client)
    assert not isinstance(failure.value, NotConnected)


@pytest.mark.parametrize(
    ("start", "part"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 1000),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 100),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x" * 1000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ", b"x" * 1000),
    ],
    ids=["header", "headers", "answers", "chunk extension", "trailer"],
)
async def test_an_endless_head_is_not_read_to_its_end(
    raw: RawServer, client: Connections, start: bytes, part: bytes
) -> None:
    raw.answers = [start + part * (2 * module.MAX_HEAD_BYTES // len(part))]
    with pytest.raises(ConnectionError, match="head of the answer"):
        await get(client)
    assert not client._idle


async def test_a_long_body_has_no_limit_of_a_head(raw: RawServer, client: Connections) -> None:
    body = b"x" * (2 * module.MAX_HEAD_BYTES)
    raw.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body, OK]
    assert (await get(client)).body == body
    assert (await get(client)).body == b"{}"


@pytest.mark.parametrize("encoding", ["Content-Length: 4000", "Transfer-Encoding: chunked", "X: until the end"])
async def test_a_body_is_not_read_past_its_limit(raw: RawServer, client: Connections, encoding: str) -> None:
    part = b"x" * 1000 if "chunked" not in encoding else b"3e8\r\n" + b"x" * 1000 + b"\r\n"
    raw.answers, raw.closes = [f"HTTP/1.1 200 OK\r\n{encoding}\r\n\r\n".encode() + part * 4], True
    with pytest.raises(BodyTooLong):
        await client.request("GET", "/a", {}, None, max_bytes=3999)
    raw.answers = [f"HTTP/1.1 200 OK\r\n{encoding}\r\n\r\n".encode() + part * 4]
    with pytest.raises(BodyTooLong):
        [answer async for answer in client.stream("/a", {}, lambda part: None, max_bytes=3999)]
    assert not client._idle


async def test_an_answer_that_is_too_long_is_not_requested_again(raw: RawServer) -> None:
    raw.answers = [OK.replace(b"Length: 2", b"Length: 4").replace(b"{}", b"{  }")] * 2
    transport = Transport(ClientConfig(raw.url), registry=CollectorRegistry())
    with pytest.raises(AnswerTooLong, match="/a: the answer has more than"):
        await transport.request("GET", "/a", max_bytes=3)
    assert len(raw.requests) == 1
    await transport.close()


async def test_renewed_credentials_get_a_new_connection(raw: RawServer) -> None:
    """A client certificate belongs to its connection: on the old one, the server would answer 401 again."""

    class Renewable(Anonymous):
        def invalidate(self) -> bool:
            return True

    raw.answers = [OK, b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", OK]
    transport = Transport(ClientConfig(raw.url, credentials=Renewable()), registry=CollectorRegistry())
    await transport.request("GET", "/a")
    await transport.request("GET", "/b")
    assert (len(raw.requests), raw.opened) == (3, 2)
    await transport.close()


async def test_a_connection_that_the_server_closed_is_not_used(raw: RawServer, client: Connections) -> None:
    raw.answers, raw.closes = [OK, OK], True
    await get(client)
    await until(lambda: not any(connection.is_reusable for connection in client._idle))
    await get(client)
    assert raw.opened == 2


async def test_a_cancelled_request_closes_its_connection(raw: RawServer, client: Connections) -> None:
    raw.answers += [SILENCE, OK]
    task = asyncio.create_task(get(client))
    await until(lambda: bool(raw.requests))
    await end_tasks(task)
    await until(lambda: raw.lost == 1)
    assert (await get(client)).body == b"{}"


async def test_idle_connections_are_closed(
    raw: RawServer, client: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.01)
    raw.answers += [OK, OK]
    await asyncio.gather(get(client), get(client))
    await until(lambda: raw.lost == 2)
    assert not client._idle and client._sweep_timer is None


async def test_no_server() -> None:
    with pytest.raises(NotConnected, match=r"cannot connect to 127\.0\.0\.1:1$"):
        await Connections("http://127.0.0.1:1", None).request("GET", "/", {}, None)


@pytest.mark.parametrize(
    ("trusted", "name", "problem"),
    [
        ("own", "", ""),
        ("own", "api.example", "Hostname mismatch"),
        ("another", "", "self-signed certificate"),
    ],
)
async def test_the_certificate_is_verified(
    raw: RawServer, tmp_path: Path, trusted: str, name: str, problem: str
) -> None:
    raw.answers += [OK]
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate, key = self_signed_files(tmp_path, "localhost")
    tls.load_cert_chain(certificate, key)
    if trusted == "another":
        certificate, _ = self_signed_files(tmp_path, "localhost")
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0, ssl=tls)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    client = Connections(url, client_context(ca=certificate.read_bytes(), insecure=False), name or None)
    if problem:
        with pytest.raises(NotConnected) as failure:
            await get(client)
        assert problem in str(failure.value.__cause__) and not raw.requests
    else:
        assert (await get(client)).body == b"{}"
    client.close()
    server.close()


@pytest.mark.parametrize("header", ["a\r\nb: c", "a\nb", "a\0"])
async def test_a_header_with_a_line_break_is_not_sent(raw: RawServer, client: Connections, header: str) -> None:
    with pytest.raises(ValueError, match="'Authorization': a line break"):
        await client.request("GET", "/", {"Authorization": header}, None)
    assert raw.opened == 0


def test_the_target_of_a_request() -> None:
    assert request_target("/api/v1/pods") == "/api/v1/pods"
    assert request_target("/a b\r\n/ü#?x=%20", {"labelSelector": "a=b,c in (d)"}) == (
        "/a%20b%0D%0A/%C3%BC%23?x=%20&labelSelector=a%3Db%2Cc+in+%28d%29"
    )
