"""Passes an upgraded connection on to another server, byte for byte, whatever its protocol.

The client's connection is taken only after the other server has answered 101: before that, and after any other answer,
it stays an HTTP connection of this server, and nothing of the client reaches the other server.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from control.standalone.streams.relay import IDLE_SECONDS, relay
from control.standalone.streams.takeover import TakenConnection
from control.standalone.streams.upgrade import Endpoint, UpgradeRefused, connect

_REQUEST_HEADERS: Final = (
    "Upgrade",
    "X-Stream-Protocol-Version",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Version",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Extensions",
)
"""No credentials: this server identifies itself."""
_RESPONSE_HEADERS: Final = (
    "Upgrade",
    "X-Stream-Protocol-Version",
    "X-Accepted-Stream-Protocol-Versions",
    "Sec-WebSocket-Accept",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Extensions",
)


async def pass_through(request: web.BaseRequest, endpoint: Endpoint, path: str) -> web.StreamResponse:
    """The response of the handler. Raises OSError if the other server gives no valid response."""
    headers = [(name, value) for name in _REQUEST_HEADERS for value in request.headers.getall(name, ())]
    try:
        server = await connect(endpoint, request.method, path, headers)
    except UpgradeRefused as error:
        return web.Response(status=error.status, text=error.text)
    try:
        answered = [(name, value) for name in _RESPONSE_HEADERS for value in server.headers.get_all(name, ())]
        client = TakenConnection(request, answered)
        await client.prepare()
        await relay(client, server, IDLE_SECONDS)
        return client.response
    finally:
        server.close()
