"""A link between two test transports: any splitting of the streams, and every way to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.docker import heldrequest, unavailable
from runtimeproxy.docker import link as links
from runtimeproxy.docker.http1 import HttpRequest
from runtimeproxy.docker.interception import DockerCallRefused
from runtimeproxy.docker.link import DockerLink
from runtimeproxy.http2.interception import HoldBudget

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CREATE = b"POST /containers/create HTTP/1.1\r\nHost: docker\r\nContent-Length: 4\r\n\r\nbody"
GET = b"GET /info HTTP/1.1\r\nHost: docker\r\n\r\n"


class Wire(asyncio.Transport):
    """Records what a side writes."""

    def __init__(self, gone: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self.written = bytearray()
        self.writes = 0
        """Each would be a system call; asyncio's `writelines` is one."""
        self.ended = self.closed = self.paused = False

    def write(self, data: Any) -> None:
        assert not self.closed and not self.ended
        self.written += data
        self.writes += 1

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class Around:
    """A call handler scripted by the test."""

    def __init__(self, decide: Callable[[bytes], bytes]) -> None:
        self.decide = decide
        self.go = asyncio.Event()
        self.go.set()
        self.bodies: list[bytes] = []
        self.answers: list[tuple[int, bytes]] = []
        self.losses = 0

    async def before(self, body: bytes) -> bytes:
        self.bodies.append(body)
        await self.go.wait()
        return self.decide(body)

    def answered(self, status: int, body: bytes) -> None:
        self.answers.append((status, body))

    def lost(self) -> None:
        self.losses += 1


class Pair:
    """A link with a transport on each side. Requests to /containers/create are held."""

    def __init__(self, decide: Callable[[bytes], bytes] = lambda body: body) -> None:
        self.client, self.server = Wire(), Wire()
        self.around = Around(decide)
        self.unhooked_for: list[str] = []
        self.closed = 0
        self.link = DockerLink(self._connect, self, self._closed, HoldBudget())
        self.backend: asyncio.Protocol | None = None
        self.link.client.connection_made(self.client)

    async def _connect(self, side: asyncio.Protocol) -> None:
        self.backend = side
        side.connection_made(self.server)

    def _closed(self, link: DockerLink) -> None:
        self.closed += 1

    def handler(self, request: HttpRequest) -> Around | None:
        return self.around if request.target == b"/containers/create" else None

    def unhooked(self, reason: str) -> None:
        self.unhooked_for.append(reason)

    async def say(self, data: bytes) -> None:
        """As the client."""
        self.link.client.data_received(data)
        await settle()

    async def answer(self, data: bytes) -> None:
        """As dockerd."""
        assert self.backend is not None
        self.backend.data_received(data)
        await settle()


async def settle() -> None:
    """Let the link's task run as far as it can; it does not wait for a clock or a socket."""
    for _ in range(6):
        await asyncio.sleep(0)


async def ready(decide: Callable[[bytes], bytes] = lambda body: body) -> Pair:
    pair = Pair(decide)
    await settle()
    return pair


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


# Any splitting


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Framing fields and the bytes of a body."""
    payload = draw(st.binary(max_size=30))
    match draw(st.sampled_from(["none", "length", "chunked"])):
        case "none":
            return b"", b""
        case "length":
            return b"Content-Length: %d\r\n" % len(payload), payload
    chunks = b"%x\r\n%s\r\n" % (len(payload), payload) if payload else b""
    return b"Transfer-Encoding: chunked\r\n", chunks + b"0\r\n\r\n"


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A request and its response."""
    method = draw(st.sampled_from([b"GET", b"POST", b"HEAD", b"DELETE"]))
    target = draw(st.sampled_from([b"/info", b"/containers/create"]))
    fields, body = draw(bodies())
    request = b"%s %s HTTP/1.1\r\nHost: docker\r\n%s\r\n%s" % (method, target, fields, body)
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 102 Processing\r\n\r\n"]))
    fields, body = draw(bodies())
    if not fields:
        return request, interim + b"HTTP/1.1 204 No Content\r\n\r\n"
    answer = b"HTTP/1.1 200 OK\r\n%s\r\n%s" % (fields, b"" if method == b"HEAD" else body)
    return request, interim + answer


def cut(data: bytes, draw: Callable[[st.SearchStrategy[list[int]]], list[int]]) -> list[bytes]:
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    pieces = [data[low:high] for low, high in zip([0, *places], [*places, len(data)], strict=True)]
    return [piece for piece in pieces if piece]


@settings(max_examples=150)
@given(st.lists(exchanges(), min_size=1, max_size=4), st.booleans(), st.data())
def test_every_byte_is_forwarded_for_any_splitting(
    talk: list[tuple[bytes, bytes]], pipelined: bool, data: st.DataObject
) -> None:
    async def test() -> None:
        pair = await ready()
        requests, answered = b"", b""
        if pipelined:
            for piece in cut(b"".join(request for request, _ in talk), data.draw):
                await pair.say(piece)
        for request, answer in talk:
            if not pipelined:
                for piece in cut(request, data.draw):
                    await pair.say(piece)
            requests, answered = requests + request, answered + answer
            assert bytes(pair.server.written) == requests  # and no byte of the next one, before the response
            for piece in cut(answer, data.draw):
                await pair.answer(piece)
        assert bytes(pair.client.written) == answered and bytes(pair.server.written) == requests
        held = [request for request, _ in talk if b"/containers/create" in request]
        assert len(pair.around.bodies) == len(pair.around.answers) == len(held)
        assert not pair.link.busy and not pair.unhooked_for and not pair.around.losses

    run(test)


@given(bodies(), bodies(), st.data())
def test_a_rewritten_body_is_what_dockerd_gets(
    sent: tuple[bytes, bytes], answered: tuple[bytes, bytes], data: st.DataObject
) -> None:
    async def test() -> None:
        pair = await ready(lambda body: b"new " + body)
        request = b"POST /containers/create HTTP/1.1\r\nHost: docker\r\n%s\r\n%s" % sent
        for piece in cut(request + GET, data.draw):
            await pair.say(piece)
        body = b"new " + pair.around.bodies[0]
        head = b"POST /containers/create HTTP/1.1\r\nHost: docker\r\nContent-Length: %d\r\n\r\n" % len(body)
        assert bytes(pair.server.written) == head + body
        await pair.answer(OK)
        assert bytes(pair.server.written) == head + body + GET

    run(test)


@given(st.binary(min_size=1, max_size=80), st.binary(max_size=40), st.data())
def test_garbage_passes_too(garbage: bytes, answered: bytes, data: st.DataObject) -> None:
    async def test() -> None:
        pair = await ready()
        said_all = b"\x00 " + garbage + b"\r\n\r\n"
        for piece in cut(said_all, data.draw):
            await pair.say(piece)
        await pair.answer(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" + answered)
        assert bytes(pair.server.written) == said_all
        assert bytes(pair.client.written).endswith(b"\r\n\r\n" + answered)
        assert pair.unhooked_for == ["not-http"]

    run(test)


# Held calls


async def test_the_store_is_updated_before_the_client_gets_the_response() -> None:
    pair = await ready()
    await pair.say(CREATE)
    written: list[bytes] = []
    pair.around.answered = lambda status, body: written.append(bytes(pair.client.written))  # type: ignore[method-assign]
    await pair.answer(OK[:-1])
    assert written == []
    await pair.answer(OK[-1:])
    assert written == [OK[:-1]] and bytes(pair.client.written) == OK


async def test_bytes_of_one_turn_are_sent_in_one_write() -> None:
    pair = await ready(lambda body: b"new " + body)
    await pair.say(GET)
    await pair.answer(OK)
    await pair.say(CREATE)
    await pair.answer(b"HTTP/1.1 102 Processing\r\n\r\n" + OK)
    assert (pair.server.writes, pair.client.writes) == (2, 2)


async def test_a_refusal_follows_the_previous_response() -> None:
    def refuse(body: bytes) -> bytes:
        raise DockerCallRefused("no")

    pair = await ready(refuse)
    await pair.say(GET + CREATE + GET)
    await pair.answer(OK)
    answer, refusal = bytes(pair.client.written).split(b"HTTP/1.1 500", 1)
    assert answer == OK and b'"no"' in refusal and bytes(pair.server.written) == GET + GET


async def test_a_refused_call_never_reaches_dockerd_and_the_connection_continues() -> None:
    def refuse(body: bytes) -> bytes:
        raise DockerCallRefused("hook server err: no")

    pair = await ready(refuse)
    await pair.say(CREATE + GET)
    assert bytes(pair.server.written) == GET
    assert bytes(pair.client.written).endswith(b'{"message":"hook server err: no"}\n')
    assert pair.around.losses == 1 and not pair.around.answers
    await pair.answer(OK)
    assert bytes(pair.client.written).endswith(OK) and not pair.client.closed


async def test_a_refused_last_call_closes_the_connection() -> None:
    def refuse(body: bytes) -> bytes:
        raise DockerCallRefused("no")

    pair = await ready(refuse)
    await pair.say(CREATE.replace(b"Host: docker", b"Connection: close"))
    assert b"Connection: close" in pair.client.written and pair.client.closed and pair.server.closed
    assert pair.closed == 1


async def test_a_bug_of_the_proxy_lets_the_call_pass() -> None:
    def fail(body: bytes) -> bytes:
        raise ZeroDivisionError("on purpose")

    pair = await ready(fail)
    await pair.say(CREATE)
    assert bytes(pair.server.written) == CREATE and pair.unhooked_for == ["error"]
    await pair.answer(OK)
    assert bytes(pair.client.written) == OK and pair.around.losses == 1 and not pair.around.answers


async def test_a_bug_of_the_proxy_withholds_no_response() -> None:
    def fail(status: int, body: bytes) -> None:
        raise ZeroDivisionError("on purpose")

    pair = await ready()
    pair.around.answered = fail  # type: ignore[method-assign]
    await pair.say(CREATE)
    await pair.answer(OK)
    await pair.say(GET)
    assert bytes(pair.client.written) == OK and bytes(pair.server.written) == CREATE + GET
    assert pair.unhooked_for == ["error"]


async def test_a_client_gets_100_continue_once() -> None:
    pair = await ready()
    head, _, body = CREATE.partition(b"\r\n\r\n")
    head += b"\r\nExpect: 100-continue\r\n\r\n"
    await pair.say(head)
    assert bytes(pair.client.written) == b"HTTP/1.1 100 Continue\r\n\r\n" and not pair.server.written
    await pair.say(body)
    assert bytes(pair.server.written) == head + body
    await pair.answer(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)
    assert bytes(pair.client.written) == b"HTTP/1.1 100 Continue\r\n\r\n" + OK


async def test_the_continue_of_a_forwarded_call_is_dockerds() -> None:
    pair = await ready()
    head = GET[:-2] + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\n"
    await pair.say(head)
    assert bytes(pair.server.written) == head and not pair.client.written
    await pair.answer(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert bytes(pair.client.written) == b"HTTP/1.1 100 Continue\r\n\r\n"
    await pair.say(b"x")
    await pair.answer(OK)
    assert bytes(pair.client.written).endswith(OK) and not pair.link.busy


async def test_a_body_too_long_to_hold_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldrequest, "MAX_HELD_BODY_BYTES", 1000)
    pair = await ready()
    request = CREATE[:-4].replace(b"Content-Length: 4", b"Content-Length: 3000") + b"x" * 3000
    for at in range(0, len(request), 100):
        await pair.say(request[at : at + 100])
    assert bytes(pair.server.written) == request and pair.unhooked_for == ["body-not-held"]
    await pair.answer(OK)
    await pair.say(GET)
    assert bytes(pair.server.written) == request + GET


async def test_an_answer_before_the_whole_request() -> None:
    pair = await ready()
    await pair.say(CREATE.replace(b"/containers/create", b"/build")[:-4])
    await pair.answer(OK)
    assert bytes(pair.client.written) == OK
    await pair.say(b"body" + GET)
    assert bytes(pair.server.written).endswith(b"body" + GET)


async def test_an_invalid_chunk_in_a_held_body_is_forwarded() -> None:
    pair = await ready()
    request = b"POST /containers/create HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\nnonsense\r\nmore"
    await pair.say(request)
    assert bytes(pair.server.written) == request and pair.around.losses == 1 and not pair.around.bodies


# Streams


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n", id="upgrade"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n", id="raw-stream"),
    ],
)
async def test_a_hijacked_connection_is_bytes_both_ways(answer: bytes) -> None:
    pair = await ready()
    attach = b"POST /containers/abc/attach?stdin=1 HTTP/1.1\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n"
    await pair.say(attach + b"early")
    assert bytes(pair.server.written) == attach  # dockerd would lose bytes that arrive before it hijacks
    await pair.answer(answer + b"\x01\x00\x00\x00")
    assert bytes(pair.server.written) == attach + b"early"
    await pair.say(CREATE)  # may be interactive input
    await pair.answer(b"HTTP/1.1 nothing")
    assert bytes(pair.server.written) == attach + b"early" + CREATE and not pair.around.bodies
    assert bytes(pair.client.written) == answer + b"\x01\x00\x00\x00HTTP/1.1 nothing"
    assert not pair.link.busy


async def test_back_pressure_of_one_side_stops_the_other() -> None:
    pair = await ready()
    await pair.say(GET)
    pair.link.client.pause_writing()
    assert pair.server.paused
    pair.link.client.resume_writing()
    assert not pair.server.paused


async def test_reading_stops_for_a_client_that_pipelines_without_end() -> None:
    pair = await ready()
    many = GET * (links.MAX_PIPELINED_BYTES // len(GET) + 2)
    await pair.say(many)
    assert pair.client.paused and bytes(pair.server.written) == GET
    for _ in range(many.count(b"GET")):
        await pair.answer(OK)
    assert not pair.client.paused and bytes(pair.server.written) == many


async def test_bytes_before_the_connection_to_dockerd_are_kept() -> None:
    pair = Pair()
    pair.link.client.data_received(GET)
    assert not pair.server.written
    await settle()
    assert bytes(pair.server.written) == GET


# Ends


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Whether the kernel reports the ended peer as closed."""

    def say(closed: bool) -> None:
        monkeypatch.setattr(links.DockerSide, "peer_gone", lambda side: closed)  # type: ignore[attr-defined]

    return say


@pytest.mark.parametrize(
    ("data", "passed"),
    [
        pytest.param(b"", b"", id="idle"),
        pytest.param(GET, GET, id="answer-due"),
        pytest.param(GET[:9], GET[:9], id="torn-head"),
        pytest.param(GET + GET[:9], GET, id="torn-next-head"),
        pytest.param(CREATE[:-1], CREATE[:-1], id="torn-held-body"),
    ],
)
async def test_a_half_closed_client_is_half_closed_for_dockerd(
    gone: Callable[[bool], None], data: bytes, passed: bytes
) -> None:
    gone(False)
    pair = await ready()
    if data:
        await pair.say(data)
    pair.link.client.eof_received()
    assert bytes(pair.server.written) == passed
    if data == GET + GET[:9]:
        assert not pair.server.ended
        await pair.answer(OK)
        assert bytes(pair.server.written) == data
    assert pair.server.ended and not pair.server.closed and not pair.client.closed
    await pair.answer(OK)
    assert bytes(pair.client.written).endswith(OK)


async def test_a_half_closed_client_still_gets_its_held_call(gone: Callable[[bool], None]) -> None:
    gone(False)
    pair = await ready()
    pair.around.go.clear()
    await pair.say(CREATE)
    pair.link.client.eof_received()
    assert not pair.server.ended and pair.link.busy
    pair.around.go.set()
    await settle()
    assert bytes(pair.server.written) == CREATE and pair.server.ended
    await pair.answer(OK)
    assert bytes(pair.client.written) == OK and pair.around.answers == [(200, b"ok")]


async def test_a_held_call_ends_with_its_client(gone: Callable[[bool], None]) -> None:
    gone(True)
    pair = await ready()
    pair.around.go.clear()
    await pair.say(CREATE)
    pair.link.client.eof_received()
    pair.around.go.set()
    await settle()
    assert not pair.server.written and pair.server.closed and pair.client.closed
    assert pair.around.losses == 1 and pair.closed == 1


async def test_dockerds_end_is_the_clients(gone: Callable[[bool], None]) -> None:
    gone(True)
    pair = await ready()
    await pair.say(CREATE)
    await pair.answer(OK[:20])
    assert pair.backend is not None
    pair.backend.eof_received()
    assert bytes(pair.client.written) == OK[:20]  # incomplete, as received
    assert pair.client.closed and pair.around.losses == 1 and not pair.around.answers


async def test_dockerds_half_close_leaves_the_clients_half(gone: Callable[[bool], None]) -> None:
    gone(False)
    pair = await ready()
    await pair.say(GET)
    await pair.answer(b"HTTP/1.1 101 UPGRADED\r\n\r\nlast words")
    assert pair.backend is not None
    pair.backend.eof_received()
    assert pair.client.ended and not pair.client.closed
    await pair.say(b"still talking")
    assert bytes(pair.server.written).endswith(b"still talking")


async def test_a_lost_connection_ends_both(gone: Callable[[bool], None]) -> None:
    pair = await ready()
    pair.link.client.connection_lost(ConnectionResetError())
    assert pair.server.closed and pair.closed == 1
    assert pair.backend is not None
    pair.backend.connection_lost(None)
    assert pair.closed == 1


class Alone:
    """A link that fails to connect to dockerd, once `go` is set, and its client."""

    def __init__(self) -> None:
        self.client, self.go = Wire(), asyncio.Event()
        self.closed: list[DockerLink] = []
        self.link = DockerLink(self._refuse, Pair(), self.closed.append, HoldBudget())
        self.link.client.connection_made(self.client)

    async def _refuse(self, side: asyncio.Protocol) -> None:
        await self.go.wait()
        raise ConnectionRefusedError

    def say(self, data: bytes) -> None:
        self.link.client.data_received(data)

    @property
    def refused(self) -> bool:
        return self.client.written.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")


async def alone() -> Alone:
    link = Alone()
    link.go.set()
    await settle()
    return link


async def test_a_client_gets_503_without_dockerd() -> None:
    link = await alone()
    assert not link.client.closed  # a response without a request would belong to none
    link.say(GET)
    assert link.refused and link.client.closed and link.closed == [link.link]


SIZED, CHUNKED = (
    b"POST /images/load HTTP/1.1\r\nHost: docker\r\n" + framing + b"\r\n\r\n"
    for framing in (b"Content-Length: 9", b"Transfer-Encoding: chunked")
)


@pytest.mark.parametrize(
    ("pieces", "last"),
    [
        pytest.param([SIZED, b"four"], b" five", id="sized"),
        pytest.param([SIZED + b"four"], b" five and what follows", id="sized in one"),
        pytest.param([CHUNKED, b"4\r\nfour\r\n0"], b"\r\n\r\n", id="chunked"),
        pytest.param([CHUNKED], b"nonsense\r\n", id="damaged"),
    ],
)
async def test_the_rest_of_a_refused_request_is_read_before_the_connection_ends(
    pieces: list[bytes], last: bytes
) -> None:
    link = await alone()
    for piece in pieces:
        link.say(piece)
        assert link.refused and link.client.ended and not link.client.closed
    link.say(last)
    assert link.client.closed and link.closed == [link.link]


async def test_a_half_closed_client_of_a_refused_request_is_closed(gone: Callable[[bool], None]) -> None:
    gone(False)
    link = await alone()
    link.say(SIZED)
    link.link.client.eof_received()
    assert link.client.closed and link.closed == [link.link]


async def test_the_rest_of_a_refused_request_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unavailable, "LINGER_S", 0.0)
    link = await alone()
    link.say(SIZED)
    async with asyncio.timeout(60):
        while not link.closed:
            await settle()
    assert link.client.closed


async def test_a_stop_does_not_wait_for_the_rest_of_a_refused_request() -> None:
    link = await alone()
    link.say(SIZED)
    assert not link.link.busy
    link.link.leave()
    assert link.client.closed and link.closed == [link.link]


async def test_reading_continues_after_a_failed_connection() -> None:
    link = Alone()
    size = links.MAX_PIPELINED_BYTES + 1
    head = b"POST /images/load HTTP/1.1\r\nHost: docker\r\nContent-Length: %d\r\n\r\n" % (size + 4)
    link.say(head + bytes(size))
    assert link.client.paused
    link.go.set()
    await settle()
    assert link.refused and not link.client.paused and not link.client.closed
    link.say(b"last")
    assert link.client.closed


async def test_an_unsolicited_response_is_forwarded(gone: Callable[[bool], None]) -> None:
    gone(True)
    pair = await ready()
    await pair.answer(b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    assert pair.client.written.startswith(b"HTTP/1.1 408") and not pair.link.busy


async def test_a_response_during_the_hook_does_not_belong_to_the_call() -> None:
    pair = await ready()
    pair.around.go.clear()
    await pair.say(CREATE)
    await pair.answer(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
    assert not pair.around.answers
    pair.around.go.set()
    await settle()
    assert bytes(pair.server.written) == CREATE and pair.around.losses == 1
