"""One client connection and the backend connection behind it: bytes go on as they came, held calls excepted.

The stream is followed just far enough to know where requests and answers begin and end. A request that `Calls`
wants is held until its body is complete, decided on, and sent on: the same bytes when nothing changes, else with
another body. Everything else is written to the other side in the moment it arrives. From 101, from an answer
without length (dockerd's raw stream), and from anything that isn't HTTP/1 as we know it, the link relays blindly.
Where dockerd isn't there at all, the first request is answered 503 with the reason, and the connection ends: after the
rest of the request, since a client that still writes to a closed one may never read why (RFC 9112 §9.6).

Bounds: one request at a time is in flight (a pipelining client's next ones wait here, `MAX_WAITING` bytes, then
its socket is no longer read), a held body has at most `MAX_HELD` bytes and all of a process together what `Holding`
allows (what is more passes untouched), and a side that doesn't read stops the other from being read. Ends of file are
passed on as what they are: half closed as half closed, gone as gone. Called by server.DockerServer only; everything
runs on its loop, without locks.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from koordlet.app.logging import get_logger
from runtimeproxy.docker import http1
from runtimeproxy.docker.held import Calls, Exchange, Refused
from runtimeproxy.docker.http1 import NotHttp, Request, Response
from runtimeproxy.docker.side import Side
from runtimeproxy.http2.exchange import Holding

log = get_logger(__name__)

MAX_WAITING = 256 << 10
MAX_HELD = 16 << 20
"""As CRI messages: larger bodies pass without hooks."""
MAX_ANSWER = 1 << 20
"""Of an answer's body this much is kept for `Exchange.answered`; those to held calls have some 100 bytes."""
LINGER_SECONDS = 5.0
"""So long the rest of a refused request is waited for."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


Connect = Callable[[asyncio.Protocol], Awaitable[object]]
"""Connects the protocol to dockerd; raises OSError."""


class _State(enum.Enum):
    CONNECTING = enum.auto()
    REFUSING = enum.auto()
    """There is no dockerd to connect to."""
    DROPPING = enum.auto()
    """That has been said; the rest of the request is read and forgotten."""
    HEAD = enum.auto()
    """Between requests, or in the middle of a head."""
    BODY = enum.auto()
    """A request passes."""
    HELD = enum.auto()
    """A request is collected."""
    DECIDING = enum.auto()
    """`before` runs."""
    ANSWER = enum.auto()
    """The request is with dockerd, its answer isn't complete."""
    RELAY = enum.auto()
    CLOSED = enum.auto()


class Link:
    """See the module. `client` is the protocol to give to the listening server."""

    def __init__(
        self, connect: Connect, calls: Calls, closed: Callable[[Link], None], holding: Holding | None = None
    ) -> None:
        """`holding`: what all links of a process hold together."""
        self.client = Side(self._accepted, self._client_data, self._client_eof, self.close)
        self._server = Side(self._connected, self._server_data, self._server_eof, self.close)
        self.client.mate, self._server.mate = self._server, self.client
        self._dial, self._calls, self._closed = connect, calls, closed
        self._holding = holding if holding is not None else Holding()
        self._state = _State.CONNECTING
        self._leaving = False
        self._refusal = ""
        self._task: asyncio.Task[None] | None = None
        self._inbox = bytearray()
        """From the client, not passed on yet."""
        self._looked = 0
        self._client_ended = False
        self._request: Request | None = None
        self._body: http1.Body = http1.LengthBody(0)
        self._held = bytearray()
        self._taken = 0
        """Of it, what `holding` counts."""
        self._payload = bytearray()
        self._exchange: Exchange | None = None
        self._said_continue = False
        self._outbox = bytearray()
        """From dockerd: the piece of a head."""
        self._response: Response | None = None
        self._answer_body: http1.Body | None = None
        self._answer = bytearray()
        self._answer_done = False

    @property
    def busy(self) -> bool:
        """A request is under way, or its answer not with the client yet: a stop waits for it, not for raw streams and
        idle connections."""
        if self._state is _State.HEAD:
            return self.client.unsent
        return self._state in (_State.BODY, _State.HELD, _State.DECIDING, _State.ANSWER)

    def leave(self) -> None:
        """Take no more requests; close now if none is under way and nothing is relayed."""
        self._leaving = True
        if not self.busy and self._state is not _State.RELAY:
            self.close()

    def close(self) -> None:
        """Both sides, after what is still unsent."""
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        if self._task is not None:
            self._task.cancel()
        self.client.close()
        self._server.close()
        self._let_go()
        self._drop_exchange()
        self._closed(self)

    # -- connections

    def _accepted(self) -> None:
        self._spawn(self._connect())

    async def _connect(self) -> None:
        try:
            await self._dial(self._server)
        except OSError as error:
            log.warning("Docker is out of reach", err=error)
            if self._state is not _State.CLOSED:
                self._refusal = f"koord-runtime-proxy: dockerd is out of reach: {error.strerror or error}"
                self._state = _State.REFUSING
                self.client.resume("waiting")
                self._refuse_all()
                self._pass_end()

    def _refuse_all(self) -> None:
        """Once a head is there: an answer before it would be nobody's."""
        method, rest = b"", b""
        try:
            end = http1.split_head(self._inbox)
            if not end:
                return
            request = http1.parse_request(bytes(self._inbox[:end]))
            method, rest = request.method, bytes(self._inbox[end:])
            self._body = http1.request_body(request)
        except NotHttp:  # it is refused like any other
            self._body = http1.LengthBody(0)
        self.client.write(http1.error_answer(self._refusal, method=method, last=True, line=http1.UNAVAILABLE))
        self._inbox.clear()
        self._state = _State.DROPPING
        self._drop(rest)
        if self._state is _State.DROPPING:
            self.client.write_end()
            self._spawn(self._linger())

    def _drop(self, data: bytes) -> None:
        try:
            self._body.take(data)
        except NotHttp:  # nobody can say where it ends
            self.close()
            return
        if self._body.done:
            self.close()

    async def _linger(self) -> None:
        await asyncio.sleep(LINGER_SECONDS)
        self.close()

    def _connected(self) -> None:
        if self._state is _State.CLOSED:  # meanwhile the client left
            self._server.close()
            return
        self._state = _State.HEAD
        self._pump()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    def _client_eof(self) -> None:
        self._client_ended = True
        if self.client.peer_gone():
            self.close()
        else:
            self._pass_end()

    def _pass_end(self) -> None:
        """Half close towards dockerd, as soon as all that came before it is there."""
        if not self._client_ended or self._state in (_State.CONNECTING, _State.DECIDING, _State.CLOSED):
            return
        if self._state in (_State.REFUSING, _State.DROPPING):
            self.close()  # a request that never comes whole
            return
        if self._state is _State.HELD:  # the rest of this body never comes
            self._release("body-not-held")
        if self._state in (_State.HEAD, _State.BODY, _State.RELAY):  # a torn piece goes as it is
            self._server.write(self._inbox)
            self._inbox.clear()
        if not self._inbox:
            self._server.write_end()

    def _server_eof(self) -> None:
        self.client.write(self._outbox)
        self._outbox.clear()
        if self._server.peer_gone():
            self.close()
        else:
            self.client.write_end()

    # -- requests

    def _client_data(self, data: bytes) -> None:
        if self._state is _State.RELAY:
            self._server.write(data)
        elif self._state is _State.BODY:  # nothing waits then; large uploads come through here
            self._pass_body(data)
            if self._inbox:
                self._pump()
        elif self._state is _State.DROPPING:
            self._drop(data)
        else:
            self._inbox += data
            if self._state is _State.REFUSING:
                self._refuse_all()
            else:
                self._pump()

    def _pump(self) -> None:
        """As far as what has arrived and what is under way allow."""
        while self._inbox and self._state in (_State.HEAD, _State.BODY, _State.HELD):
            if self._state is _State.HEAD:
                if self._leaving or not self._take_head():
                    break
            else:
                data = bytes(self._inbox)
                self._inbox.clear()
                if self._state is _State.BODY:
                    self._pass_body(data)
                else:
                    self._hold_body(data)
        if len(self._inbox) > MAX_WAITING and self._state is not _State.HEAD:
            self.client.pause("waiting")
        else:
            self.client.resume("waiting")
        self._pass_end()

    def _take_head(self) -> bool:
        """Whether a request began (or it turned out that none can be read)."""
        try:
            end = http1.split_head(self._inbox, self._looked)
            if not end:
                self._looked = len(self._inbox)
                return False
            self._looked = 0
            request = http1.parse_request(bytes(self._inbox[:end]))
            self._payload = bytearray()
            self._exchange = None
            self._body = http1.request_body(request)
            exchange = self._calls.exchange(request)
        except NotHttp as error:
            self._relay(f"a request that isn't HTTP/1: {error}")
            return True
        del self._inbox[:end]
        self._request, self._exchange, self._said_continue, self._answer_done = request, exchange, False, False
        if exchange is None:
            self._server.write(request.raw)
            self._state = _State.BODY
            if self._body.done:
                self._sent()
            return True
        self._body.sink = self._payload.extend
        self._state = _State.HELD
        if not self._hold(request.raw):
            self._release("held-too-much")
        elif self._body.done:
            self._decide()
        elif request.waits_for_continue:
            self._said_continue = True
            self.client.write(_CONTINUE)
        return True

    def _pass_body(self, data: bytes) -> None:
        try:
            end = self._body.take(data)
        except NotHttp as error:
            self._server.write(data)
            self._relay(f"a request body that can't be read: {error}")
            return
        self._server.write(data if end == len(data) else data[:end])
        self._inbox += data[end:]
        if self._body.done:
            self._sent()

    def _hold_body(self, data: bytes) -> None:
        try:
            end = self._body.take(data)
        except NotHttp as error:
            self._held += data
            self._release("body-not-held")
            self._relay(f"a request body that can't be read: {error}")
            return
        self._inbox += data[end:]
        if not self._hold(data[:end]):
            self._release("held-too-much")
        elif self._body.done:
            self._decide()
        elif len(self._held) > MAX_HELD:
            self._release("body-not-held")

    def _hold(self, data: bytes) -> bool:
        """Whether all links together may hold that much; it is held either way."""
        self._held += data
        if not self._holding.take(len(data)):
            return False
        self._taken += len(data)
        return True

    def _let_go(self) -> bytearray:
        """What is held, which is held no more."""
        held, self._held = self._held, bytearray()
        self._payload = bytearray()
        self._holding.give(self._taken)
        self._taken = 0
        return held

    def _release(self, reason: str) -> None:
        """Let a held request go on untouched, the rest of its body behind it."""
        self._calls.unhooked(reason)
        self._drop_exchange()
        self._body.sink = None
        self._server.write(self._let_go())
        self._state = _State.BODY
        if self._body.done:
            self._sent()

    def _decide(self) -> None:
        self._state = _State.DECIDING
        self._spawn(self._before())

    async def _before(self) -> None:
        request, exchange, body = self._request, self._exchange, bytes(self._payload)
        assert request is not None and exchange is not None
        self._payload = bytearray()
        try:
            wanted = await exchange.before(body)
        except Refused as error:
            self._refuse(request, str(error))
            return
        except Exception as error:  # a pod must start, whatever goes wrong here
            log.exception("A call to Docker passes unchanged", line=request.line.decode("latin-1"), err=error)
            self._calls.unhooked("error")
            self._drop_exchange()
            wanted = body
        held = self._let_go()
        self._server.write(held if wanted is body else http1.with_body(request, wanted))
        self._sent()
        self._pump()
        self.client.flush_both()

    def _refuse(self, request: Request, message: str) -> None:
        self._let_go()
        self._drop_exchange()
        self.client.write(http1.error_answer(message, method=request.method, last=request.last))
        if request.last:
            self.close()
            return
        self._request = None
        self._state = _State.HEAD
        self._pump()
        self.client.flush_both()

    def _sent(self) -> None:
        """The request is with dockerd in full; the next one waits for the answer to it."""
        self._state = _State.ANSWER
        if self._answer_done:
            self._finish()

    def _finish(self) -> None:
        self._drop_exchange()
        self._request = None
        self._state = _State.HEAD

    # -- answers

    def _server_data(self, data: bytes) -> None:
        if self._outbox:
            data = bytes(self._outbox) + data
            self._outbox.clear()
        at = start = 0
        """From `start` to `at` is read and not yet passed."""
        while at < len(data) and self._state is not _State.RELAY and self._state is not _State.CLOSED:
            try:
                if self._answer_body is not None:
                    at = self._answer_body.take(data, at)
                    if self._answer_body.done:
                        self._answered()
                else:
                    rest = data[at:] if at else data
                    size = http1.split_head(rest)
                    if not size:
                        self._outbox += rest
                        break
                    if self._read_answer_head(rest[:size]):
                        at += size
                    else:
                        self.client.write(data[start:at])
                        at = start = at + size
            except NotHttp as error:
                self._relay(f"an answer that can't be read: {error}")
            if self._answer_done:  # the next request may be answered by us: behind what dockerd said until here
                self.client.write(data[start:at])
                start = at
                self._pump()
        else:
            at = len(data)
        self.client.write(data[start:at] if start or at < len(data) else data)

    def _read_answer_head(self, raw: bytes) -> bool:
        """Whether it is to be passed. Raises NotHttp."""
        response = http1.parse_response(raw)
        if response.interim:
            return not (response.status == 100 and self._said_continue)  # ours has been there first
        method = self._request.method if self._request is not None else None
        watch = self._keep_answer if self._asked is not None else None
        body = http1.response_body(response, method, watch)
        self._response, self._answer = response, bytearray()
        if body is None:
            self._answered_without_end()
            return True
        self._answer_body = body
        if body.done:
            self._answered()
        return True

    def _keep_answer(self, piece: bytes) -> None:
        if len(self._answer) < MAX_ANSWER:
            self._answer += piece

    def _answered(self) -> None:
        """The answer is complete: the store learns of it before the client does."""
        self._answer_body = None
        self._tell_answer()
        self._answer_done = True
        if self._state is _State.ANSWER:
            self._finish()

    @property
    def _asked(self) -> Exchange | None:
        """Whose answer is being read. dockerd may speak unasked, before it has the request (408, and ends)."""
        return self._exchange if self._state is _State.ANSWER else None

    def _tell_answer(self) -> None:
        exchange = self._asked
        if exchange is not None and self._response is not None:
            self._exchange = None
            try:
                exchange.answered(self._response.status, bytes(self._answer))
            except Exception as error:  # the client's answer is good, whatever goes wrong here
                log.exception("An answer of Docker is not remembered", status=self._response.status, err=error)
                self._calls.unhooked("error")

    def _answered_without_end(self) -> None:
        """An upgrade, or an answer that lasts as long as the connection: no request can follow it."""
        self._tell_answer()
        self._relay(None)

    def _relay(self, why: str | None) -> None:
        """From here on blindly, both ways."""
        if why is not None:
            log.once(f"relay {why[:40]}", "A Docker connection is passed on without being read", reason=why)
            self._calls.unhooked("not-http")
        if self._state is _State.DECIDING and self._task is not None:
            self._task.cancel()
        self._drop_exchange()
        self._state = _State.RELAY
        self._server.write(self._let_go())
        self._server.write(self._inbox)
        self._inbox.clear()
        self.client.resume("waiting")
        self._pass_end()

    def _drop_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.lost()
