"""Writing requests over connections that stay open, against a server that speaks bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from koordlet.kube import Client, ClientConfig, Conflict, ConnectionFailed
from koordlet.kube.exchange import Answer, AnswerReader, Exchange, MalformedAnswer, NotConnected
from tests.ports import free_port

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = OK + b"Content-Length: 5\r\n\r\nhello"
CHUNKS = OK + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH
UNTIL_END = OK + b"Content-Type: text/plain\r\n\r\nhello"


def read(data: bytes, *cuts: int) -> tuple[Answer | None, bool]:
    """The answer from the pieces between these positions, and whether the connection stays open."""
    reader, begin, answer = AnswerReader(), 0, None
    for end in [*sorted(cuts), len(data)]:
        answer = reader.feed(data[begin:end]) if end > begin else answer
        begin = end
    return answer or reader.end(), reader.keeps


@pytest.mark.parametrize(
    ("data", "body", "keeps"),
    [
        pytest.param(LENGTH, b"hello", True, id="length"),
        pytest.param(CHUNKS, b"hello", True, id="chunks"),
        pytest.param(INTERIM, b"hello", True, id="after an interim answer"),
        pytest.param(UNTIL_END, b"hello", False, id="until the connection ends"),
        pytest.param(OK + b"content-length: 0\r\n\r\n", b"", True, id="empty"),
        pytest.param(OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", b"hello", False, id="close"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello", False, id="HTTP/1.0"),
        pytest.param(b"HTTP/1.1 204 \r\n\r\n", b"", True, id="204"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: 1\r\n\r\n", b"", True, id="a trailer"),
    ],
)
def test_an_answer_is_read_in_any_pieces(data: bytes, body: bytes, keeps: bool) -> None:
    for cut in range(len(data)):
        answer, kept = read(data, cut)
        assert answer is not None and (answer.body, kept) == (body, keeps), cut
    answer, kept = read(data, *range(len(data)))
    assert answer is not None and (answer.body, kept) == (body, keeps)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_chunks_of_any_size_are_joined(chunks: list[bytes], cuts: list[int]) -> None:
    data = OK + b"Transfer-Encoding: chunked\r\n\r\n"
    data += b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    answer, keeps = read(data, *(cut for cut in cuts if cut < len(data)))
    assert answer is not None and answer.body == b"".join(chunks) and keeps


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", id="another protocol"),
        pytest.param(b"HTTP/2 200\r\n\r\n", id="another version"),
        pytest.param(b"HTTP/1.1 101 Switching Protocols\r\n\r\n", id="change of the protocol"),
        pytest.param(OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", id="two lengths"),
        pytest.param(OK + b"Content-Length: -5\r\n\r\nhello", id="negative length"),
        pytest.param(OK + b"Content-Length: 99999999999\r\n\r\n", id="length with too many digits"),
        pytest.param(OK + b"Content-Length: 67108865\r\n\r\n", id="too long"),
        pytest.param(OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", id="length and chunks"),
        pytest.param(OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n", id="another encoding"),
        pytest.param(LENGTH + b"HTTP/1.1", id="data after the body"),
        pytest.param(CHUNKS + b"x", id="data after the last chunk"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", id="chunk without a size"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n", id="chunk of another size"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 300, id="endless size"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n", id="huge chunk"),
        pytest.param(OK + b"X: " + b"x" * (64 << 10), id="endless headers"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"x" * (64 << 10), id="endless trailer"),
    ],
)
def test_what_is_not_an_answer_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        AnswerReader().feed(data)


@pytest.mark.parametrize("data", [LENGTH[:-1], CHUNKS[:-1], OK, b""])
def test_the_end_of_the_connection_does_not_complete_a_partial_answer(data: bytes) -> None:
    reader = AnswerReader()
    assert reader.feed(data) is None and reader.end() is None


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class BytesServer:
    """Each connection is served by the next of `handlers`, the last one serves all others."""

    def __init__(self) -> None:
        self.handlers: list[Handler] = []
        self.connections = 0
        self.requests: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = self.handlers[min(self.connections, len(self.handlers) - 1)]
        self.connections += 1
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    async def request(self, reader: asyncio.StreamReader) -> bool:
        """Read one request; False at the end of the connection."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        self.requests.append(
            head + await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
        )
        return True

    def answering(self, *answers: bytes) -> Handler:
        """Sends these answers to as many requests, then closes the connection."""

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for answer in answers:
                if not await self.request(reader):
                    return
                writer.write(answer)
                await writer.drain()

        return handle


@pytest.fixture
async def server() -> AsyncIterator[BytesServer]:
    server = BytesServer()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield server


@pytest.fixture
async def exchange(server: BytesServer) -> AsyncIterator[Exchange]:
    exchange = Exchange(
        f"http://127.0.0.1:{server.port}/base/",
        context=None,
        server_hostname=None,
        user_agent="test",
        configure=lambda socket: None,
    )
    yield exchange
    exchange.close()


async def send(exchange: Exchange, path: str = "/api", seconds: float = 30.0) -> Answer:
    return await exchange.request(
        "POST", path, None, {"Authorization": "Bearer a"}, b"{}", seconds=seconds, connect_seconds=30.0
    )


async def test_requests_share_a_connection_until_the_server_closes_it(server: BytesServer, exchange: Exchange) -> None:
    server.handlers = [server.answering(LENGTH, CHUNKS), server.answering(LENGTH)]
    assert [(await send(exchange)).body for _ in range(2)] == [b"hello"] * 2
    assert server.connections == 1
    await asyncio.sleep(0.05)  # the end of the connection arrives
    assert (await send(exchange)).body == b"hello"
    assert server.connections == 2


async def test_the_request_is_written_as_http(server: BytesServer, exchange: Exchange) -> None:
    server.handlers = [server.answering(LENGTH)]
    await exchange.request(
        "PATCH", "/api/ä b?c", {"dryRun": "All", "x": "a&b"}, {}, None, seconds=30.0, connect_seconds=30.0
    )
    assert server.requests == [
        b"PATCH /base/api/%C3%A4%20b%3Fc?dryRun=All&x=a%26b HTTP/1.1\r\n"
        b"Host: 127.0.0.1:" + str(server.port).encode() + b"\r\nUser-Agent: test\r\nContent-Length: 0\r\n\r\n"
    ]


@pytest.mark.parametrize("value", ["a\r\nX: b", "a\nX: b", "a\rb"])
async def test_a_header_cannot_add_another(server: BytesServer, exchange: Exchange, value: str) -> None:
    with pytest.raises(ValueError, match="line end"):
        await exchange.request("POST", "/", None, {"A": value}, None, seconds=1.0, connect_seconds=1.0)
    assert server.connections == 0


@pytest.mark.parametrize("data", [b"", LENGTH[:-1], b"nonsense\r\n\r\n"], ids=["nothing", "a part", "nonsense"])
async def test_a_broken_answer_is_an_error_and_is_not_asked_again(
    server: BytesServer, exchange: Exchange, data: bytes
) -> None:
    server.handlers = [server.answering(data), server.answering(LENGTH)]
    with pytest.raises(OSError) as caught:
        await send(exchange)
    assert not isinstance(caught.value, NotConnected) and len(server.requests) == 1
    assert (await send(exchange)).body == b"hello"


async def test_data_without_a_request_ends_the_connection(server: BytesServer, exchange: Exchange) -> None:
    server.handlers = [server.answering(LENGTH + LENGTH, LENGTH), server.answering(LENGTH)]
    with pytest.raises(MalformedAnswer):
        await send(exchange)
    assert (await send(exchange)).body == b"hello" and server.connections == 2


async def test_a_silent_server_and_a_cancelled_request_end_the_connection(
    server: BytesServer, exchange: Exchange
) -> None:
    requested = asyncio.Event()

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.answering(LENGTH)(reader, writer)
        if await server.request(reader):
            requested.set()
            await reader.read()

    server.handlers = [answer_once]
    await send(exchange)
    with pytest.raises(TimeoutError):
        await send(exchange, seconds=0.001)
    await send(exchange)
    assert server.connections == 2
    requested.clear()
    cancelled = asyncio.create_task(send(exchange))
    await requested.wait()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await send(exchange)
    assert server.connections == 3


async def test_no_connection_is_told_apart() -> None:
    port = free_port()
    exchange = Exchange(
        f"http://127.0.0.1:{port}", context=None, server_hostname=None, user_agent="test",
        configure=lambda socket: None,
    )  # fmt: skip
    with pytest.raises(NotConnected, match=str(port)):
        await send(exchange)


async def test_a_client_repeats_what_was_rejected_unprocessed_only(server: BytesServer) -> None:
    busy = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 0\r\nContent-Length: 0\r\n\r\n"
    text = (
        b'{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","message":"there","code":409}'
    )
    conflict = b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)
    server.handlers = [server.answering(busy, LENGTH, conflict), server.answering(b""), server.answering(LENGTH)]
    config = ClientConfig(f"http://127.0.0.1:{server.port}", qps=0)
    async with Client(config, registry=CollectorRegistry()) as client:
        assert await client.raw("POST", "/a", body={}) == b"hello"
        with pytest.raises(Conflict, match="there") as caught:
            await client.raw("POST", "/a", body={})
        assert caught.value.already_exists
        await asyncio.sleep(0.05)
        with pytest.raises(ConnectionFailed, match="closed the connection"):
            await client.raw("POST", "/a", body={})
        assert len(server.requests) == 4
        assert await client.raw("POST", "/a", body={}, repeatable=True) == b"hello"
