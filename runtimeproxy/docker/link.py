"""Connects one client with dockerd: bytes are forwarded unchanged, held calls excepted.

The stream is parsed only to find where requests and responses begin and end. A request that `HandlerSelector` selects
is held until its body is complete and its handler has decided; then it is sent, with the same bytes when nothing
changed, else with another body. Everything else is forwarded as it arrives. After status 101, a response without a
length (dockerd's raw stream) or anything that is not HTTP/1 as parsed here, the link relays bytes blindly. A client
whose link cannot connect to dockerd gets status 503 (`unavailable`).

`linkstate` has the states of the request side and the possible changes. dockerd's responses are parsed
independently of it, as a response may arrive before its request is complete (408).

Bounds: one request at a time is in flight (a pipelining client's further requests wait here, up to
`MAX_PIPELINED_BYTES`; then its socket is not read). A held body has at most `MAX_HELD_BODY_BYTES`, and all of a process
together at most what `HoldBudget` allows (larger ones are forwarded unchanged). A side that does not read stops reading
from the other side. A half-closed connection is half-closed on the other side, a closed one closed. Used by
`server.DockerServer` only; everything runs on its event loop, without locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from koordlet.app.logging import get_logger
from runtimeproxy.docker import http1
from runtimeproxy.docker.heldrequest import HeldRequest
from runtimeproxy.docker.http1 import HttpRequest, NotHttp1
from runtimeproxy.docker.interception import DockerCallHandler, DockerCallRefused, HandlerSelector
from runtimeproxy.docker.linkstate import READS_REQUESTS, REQUEST_RUNNING, TRANSITIONS, LinkState
from runtimeproxy.docker.responses import Progress, ResponseParser
from runtimeproxy.docker.side import DockerSide
from runtimeproxy.docker.unavailable import UnavailableResponder
from runtimeproxy.http2.interception import HoldBudget

log = get_logger(__name__)

MAX_PIPELINED_BYTES = 256 << 10
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Connect = Callable[[asyncio.Protocol], Awaitable[object]]
"""Connects the protocol to dockerd; raises OSError."""


class DockerLink:
    """See the module. `client` is the protocol for the accepted connection."""

    def __init__(
        self, connect: Connect, selector: HandlerSelector, closed: Callable[[DockerLink], None], budget: HoldBudget
    ) -> None:
        """`budget`: for the held bytes of all links of the process."""
        self.client = DockerSide(self._accepted, self._client_data, self._client_eof, self.close)
        self._dockerd = DockerSide(self._connected, self._dockerd_data, self._dockerd_eof, self.close)
        self.client.mate = self._dockerd
        self._dockerd.mate = self.client
        self._dial = connect
        self._selector = selector
        self._closed = closed
        self._state = LinkState.CONNECTING
        self._leaving = False
        self._client_ended = False
        self._task: asyncio.Task[None] | None = None
        self._unavailable: UnavailableResponder | None = None
        self._inbox = bytearray()
        """From the client, not forwarded yet."""
        self._head_searched = 0
        """Bytes of the inbox that were searched for the end of a head."""
        self._request: HttpRequest | None = None
        self._body: http1.HttpBody = http1.LengthBody(0)
        self._held = HeldRequest(budget)
        self._handler: DockerCallHandler | None = None
        self._continue_sent = False
        """The proxy has sent 100 Continue; dockerd's is dropped."""
        self._responses = ResponseParser()
        self._response_done = False
        """The response to `_request` is complete, which may be before the request is."""

    @property
    def busy(self) -> bool:
        """A request is running, or its response is not with the client yet. A stop waits for that, but not for raw
        streams and idle connections."""
        if self._state is LinkState.IDLE:
            return self.client.unsent
        return self._state in REQUEST_RUNNING

    def leave(self) -> None:
        """Take no more requests; close now if none is running and nothing is relayed."""
        self._leaving = True
        if not self.busy and self._state is not LinkState.RELAY:
            self.close()

    def close(self) -> None:
        """Close both sides after what is unsent."""
        if self._state is LinkState.CLOSED:
            return
        self._enter(LinkState.CLOSED)
        if self._task is not None:
            self._task.cancel()
        if self._unavailable is not None:
            self._unavailable.stop()
        self.client.close()
        self._dockerd.close()
        self._held.release()
        self._drop_handler()
        self._closed(self)

    def _enter(self, state: LinkState) -> None:
        assert state in TRANSITIONS[self._state], f"{self._state} -> {state}"
        self._state = state

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    # Connections

    def _accepted(self) -> None:
        self._spawn(self._connect())

    async def _connect(self) -> None:
        try:
            await self._dial(self._dockerd)
        except OSError as error:
            log.warning("Cannot connect to dockerd", err=error)
            if self._state is not LinkState.CLOSED:
                self._become_unavailable(f"koord-runtime-proxy: cannot connect to dockerd: {error.strerror or error}")

    def _become_unavailable(self, reason: str) -> None:
        self._enter(LinkState.UNAVAILABLE)
        self._unavailable = UnavailableResponder(self.client, reason, self.close)
        self.client.resume("pipelined")
        early, self._inbox = bytes(self._inbox), bytearray()
        self._unavailable.data_received(early)
        self._forward_eof()

    def _connected(self) -> None:
        if self._state is LinkState.CLOSED:  # the client left meanwhile
            self._dockerd.close()
            return
        self._enter(LinkState.IDLE)
        self._process_inbox()

    def _client_eof(self) -> None:
        self._client_ended = True
        if self.client.peer_gone():
            self.close()
        else:
            self._forward_eof()

    def _forward_eof(self) -> None:
        """Half-close towards dockerd, once everything before it is sent."""
        if not self._client_ended or self._state in (LinkState.CONNECTING, LinkState.DECIDING, LinkState.CLOSED):
            return
        if self._state is LinkState.UNAVAILABLE:
            self.close()  # the rest of the request never comes
            return
        if self._state is LinkState.COLLECTING:  # the rest of the body never comes
            self._forward_held("body-not-held")
        if self._state in (
            LinkState.IDLE,
            LinkState.FORWARDING,
            LinkState.RELAY,
        ):  # an incomplete head or body is forwarded as it is
            self._dockerd.write(self._inbox)
            self._inbox.clear()
        if not self._inbox:
            self._dockerd.write_end()

    def _dockerd_eof(self) -> None:
        self.client.write(self._responses.take_partial_head())
        if self._dockerd.peer_gone():
            self.close()
        else:
            self.client.write_end()

    # Requests

    def _client_data(self, data: bytes) -> None:
        if self._state is LinkState.RELAY:
            self._dockerd.write(data)
        elif self._state is LinkState.FORWARDING:  # the inbox is empty then; fast path of large uploads
            self._forward_body(data)
            if self._inbox:
                self._process_inbox()
        elif self._unavailable is not None:
            self._unavailable.data_received(data)
        else:
            self._inbox += data
            self._process_inbox()

    def _process_inbox(self) -> None:
        """Handle the client's bytes as far as the present request allows."""
        while self._inbox and self._state in READS_REQUESTS:
            if self._state is LinkState.IDLE:
                if self._leaving or not self._read_head():
                    break
            else:
                data = bytes(self._inbox)
                self._inbox.clear()
                if self._state is LinkState.FORWARDING:
                    self._forward_body(data)
                else:
                    self._collect_body(data)
        if len(self._inbox) > MAX_PIPELINED_BYTES and self._state is not LinkState.IDLE:
            self.client.pause("pipelined")
        else:
            self.client.resume("pipelined")
        self._forward_eof()

    def _read_head(self) -> bool:
        """Begin the next request; False while its head is incomplete."""
        try:
            end = http1.split_head(self._inbox, self._head_searched)
            if not end:
                self._head_searched = len(self._inbox)
                return False
            self._head_searched = 0
            request = http1.parse_request(bytes(self._inbox[:end]))
            self._body = http1.request_body(request)
            handler = self._selector.handler(request)
        except NotHttp1 as error:
            self._relay(f"a request that isn't HTTP/1: {error}")
            return True
        del self._inbox[:end]
        self._request = request
        self._handler = handler
        self._continue_sent = False
        self._response_done = False
        if handler is None:
            self._dockerd.write(request.raw)
            self._enter(LinkState.FORWARDING)
            if self._body.done:
                self._request_sent()
            return True
        self._body.sink = self._held.body.extend
        self._enter(LinkState.COLLECTING)
        if not self._held.add(request.raw):
            self._forward_held("held-too-much")
        elif self._body.done:
            self._start_deciding()
        elif request.waits_for_continue:
            self._continue_sent = True
            self.client.write(_CONTINUE)
        return True

    def _forward_body(self, data: bytes) -> None:
        try:
            end = self._body.take(data)
        except NotHttp1 as error:
            self._dockerd.write(data)
            self._relay(f"a request body that can't be read: {error}")
            return
        self._dockerd.write(data if end == len(data) else data[:end])
        self._inbox += data[end:]
        if self._body.done:
            self._request_sent()

    def _collect_body(self, data: bytes) -> None:
        try:
            end = self._body.take(data)
        except NotHttp1 as error:
            self._held.add(data)
            self._forward_held("body-not-held")
            self._relay(f"a request body that can't be read: {error}")
            return
        self._inbox += data[end:]
        if not self._held.add(data[:end]):
            self._forward_held("held-too-much")
        elif self._body.done:
            self._start_deciding()
        elif self._held.too_large:
            self._forward_held("body-not-held")

    def _forward_held(self, reason: str) -> None:
        """Forward a held request unchanged; the rest of its body follows."""
        self._selector.unhooked(reason)
        self._drop_handler()
        self._body.sink = None
        self._dockerd.write(self._held.release())
        self._enter(LinkState.FORWARDING)
        if self._body.done:
            self._request_sent()

    def _start_deciding(self) -> None:
        self._enter(LinkState.DECIDING)
        self._spawn(self._decide())

    async def _decide(self) -> None:
        request, handler, body = self._request, self._handler, bytes(self._held.body)
        assert request is not None and handler is not None
        try:
            replacement = await handler.before(body)
        except DockerCallRefused as refused:
            self._refuse(request, str(refused))
            return
        except Exception as error:  # a bug of the proxy must not block the pod
            log.exception("Forwarding a Docker call unchanged", line=request.line.decode("latin-1"), err=error)
            self._selector.unhooked("error")
            self._drop_handler()
            replacement = body
        raw = self._held.release()
        self._dockerd.write(raw if replacement is body else http1.with_body(request, replacement))
        self._request_sent()
        self._process_inbox()
        self.client.flush_both()

    def _refuse(self, request: HttpRequest, message: str) -> None:
        self._held.release()
        self._drop_handler()
        self.client.write(http1.error_response(message, method=request.method, last=request.last))
        if request.last:
            self.close()
            return
        self._request = None
        self._enter(LinkState.IDLE)
        self._process_inbox()
        self.client.flush_both()

    def _request_sent(self) -> None:
        """The request is sent completely; the next one waits for its response."""
        self._enter(LinkState.WAITING)
        if self._response_done:
            self._finish_request()

    def _finish_request(self) -> None:
        self._drop_handler()
        self._request = None
        self._enter(LinkState.IDLE)

    # Responses

    def _dockerd_data(self, data: bytes) -> None:
        if self._responses.partial_head:
            data = self._responses.take_partial_head() + data
        start = at = 0
        """data[start:at] is parsed and not forwarded yet."""
        while at < len(data) and self._state is not LinkState.RELAY and self._state is not LinkState.CLOSED:
            try:
                end, progress = self._read_response(data, at)
            except NotHttp1 as error:
                self._relay(f"an answer that can't be read: {error}")
                break
            if progress is Progress.PARTIAL_HEAD:
                self.client.write(data[start:at])
                return
            if progress is Progress.INTERIM and self._is_second_continue():
                self.client.write(data[start:at])
                start = end
            at = end
            if progress is Progress.COMPLETE:
                self._response_complete()
            elif progress is Progress.UNFRAMED:  # no request can follow it
                self._notify_handler()
                self._relay(None)
            if self._response_done:  # the proxy may answer the next request itself, after dockerd's bytes so far
                self.client.write(data[start:at])
                start = at
                self._process_inbox()
        self.client.write(data[start:] if start else data)

    def _read_response(self, data: bytes, at: int) -> tuple[int, Progress]:
        """Raises NotHttp1."""
        method = self._request.method if self._request is not None else None
        return self._responses.read(data, at, method, keep_body=self._response_handler is not None)

    def _is_second_continue(self) -> bool:
        """Whether the interim response is a 100 Continue that the proxy has sent itself."""
        head = self._responses.head
        return head is not None and head.status == 100 and self._continue_sent

    def _response_complete(self) -> None:
        """The store is updated before the client gets the last bytes."""
        self._notify_handler()
        self._response_done = True
        if self._state is LinkState.WAITING:
            self._finish_request()

    @property
    def _response_handler(self) -> DockerCallHandler | None:
        """The handler of the current response; None when dockerd responds before it has the request (408)."""
        return self._handler if self._state is LinkState.WAITING else None

    def _notify_handler(self) -> None:
        handler, head = self._response_handler, self._responses.head
        if handler is None or head is None:
            return
        self._handler = None
        try:
            handler.answered(head.status, bytes(self._responses.body))
        except Exception as error:  # the client must get its response despite a bug of the proxy
            log.exception("Cannot store the result of a Docker call", status=head.status, err=error)
            self._selector.unhooked("error")

    def _relay(self, reason: str | None) -> None:
        """Relay both directions blindly from now on. `reason`: None for a response that allows no further request."""
        if reason is not None:
            log.once(f"relay {reason[:40]}", "Relaying a Docker connection without parsing it", reason=reason)
            self._selector.unhooked("not-http")
        if self._state is LinkState.DECIDING and self._task is not None:
            self._task.cancel()
        self._drop_handler()
        self._enter(LinkState.RELAY)
        self._dockerd.write(self._held.release())
        self._dockerd.write(self._inbox)
        self._inbox.clear()
        self.client.resume("pipelined")
        self._forward_eof()

    def _drop_handler(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.lost()
