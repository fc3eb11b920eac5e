"""Pages of a pod through the API server's `pods/proxy`.

    async with proxied(config, pod) as (path, relay):
        aiohttp.UnixConnector(path)  # plain HTTP to the pod

The right `get` on `pods/proxy` is narrower than `pods/portforward`: GET requests to the address of the pod, not streams
to every port of its loopback address, which is the node's if the pod uses the host's network. The API server removes
the Authorization header, so that the token for the pod has a header of its own. It does not verify the pod's
certificate. An API server without `pods/proxy` (501: the embedded one) is asked to forward the port instead.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from control.ctl.cluster.portforward import Forwarder, PodPort, forwarded
from control.ctl.errors import CtlError
from control.ctl.views.bounded import read_bounded
from koordlet.api.names import PAGE_TOKEN_HEADER
from koordlet.kube import ClientConfig

ROLE_HINT: Final = "Ask for the Role koordinator-view (docs/koordctl.md)."
NETWORK_HINT: Final = (
    "The API server must reach this port of the node; else set KOORDCTL_PORT_FORWARD=true (docs/koordctl.md)."
)
TIMEOUT: Final = aiohttp.ClientTimeout(total=9.0)
"""Less than the timeout of the views, so that the reason is shown."""
_PASSED: Final = ("Accept", PAGE_TOKEN_HEADER)
_NOT_IMPLEMENTED: Final = 501
_MESSAGE_CHARACTERS: Final = 300


class _Status(msgspec.Struct):
    """The API server's own error, as opposed to one of the pod."""

    kind: str = ""
    message: str = ""


class PageRelay:
    """Serves the local connections. `problem` is why the last request did not reach the pod."""

    def __init__(
        self, config: ClientConfig, port: PodPort, session: aiohttp.ClientSession, stack: AsyncExitStack
    ) -> None:
        scheme = "https" if port.tls else "http"
        self._base = f"{config.server}/api/v1/namespaces/{port.namespace}/pods/{scheme}:{port.pod}:{port.port}/proxy"
        self._config = config
        self._port = port
        self._session = session
        self._stack = stack
        self._forwarder: Forwarder | None = None
        self._forwarded: aiohttp.ClientSession | None = None
        self.problem: CtlError | None = None

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """One GET. Without an answer of the pod: 502, and `problem`."""
        headers = {name: request.headers[name] for name in _PASSED if name in request.headers}
        try:
            if self._forwarded is None:
                status, kind, body = await self._ask(request.raw_path, headers)
                if (refusal := _refusal(status, kind, body)) is None:
                    return web.Response(status=status, body=body, content_type=kind)
                if status != _NOT_IMPLEMENTED:
                    raise self._problem(status, refusal)
                self._forwarded = await self._forward()
            async with self._forwarded.get(f"http://pod{request.raw_path}", headers=headers) as response:
                body = await read_bounded(response)
                return web.Response(status=response.status, body=body, content_type=response.content_type)
        except CtlError as error:
            self.problem = error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            text = str(error) or type(error).__name__
            unreached = CtlError(f"cannot reach {self._port.where} through the API server: {text}", NETWORK_HINT)
            self.problem = (self._forwarder and self._forwarder.problem) or unreached
        return web.Response(status=502)

    async def _ask(self, path: str, headers: dict[str, str]) -> tuple[int, str, bytes]:
        config = self._config
        async with self._session.get(
            self._base + path,
            headers={**headers, **await config.credentials.headers()},
            ssl=config.ssl or True,
            server_hostname=config.server_hostname,
            proxy=config.proxy,
            allow_redirects=False,
        ) as response:
            return response.status, response.content_type, await read_bounded(response)

    def _problem(self, status: int, refusal: str) -> CtlError:
        hints = {401: "", 403: ROLE_HINT}
        message = f"the API server does not pass the request to {self._port.where}: HTTP {status}: {refusal}"
        return CtlError(message, hints.get(status, NETWORK_HINT))

    async def _forward(self) -> aiohttp.ClientSession:
        path, self._forwarder = await self._stack.enter_async_context(forwarded(self._config, self._port))
        session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=path), timeout=TIMEOUT)
        return await self._stack.enter_async_context(session)


def _refusal(status: int, kind: str, body: bytes) -> str | None:
    """The message of an answer that is the API server's own; None if it is the pod's."""
    if status < 400 or kind != "application/json":
        return None
    try:
        answer = msgspec.json.decode(body, type=_Status)
    except msgspec.DecodeError:
        return None
    return answer.message[:_MESSAGE_CHARACTERS] if answer.kind == "Status" else None


@asynccontextmanager
async def proxied(config: ClientConfig, port: PodPort) -> AsyncIterator[tuple[str, PageRelay]]:
    """The path of a Unix socket that leads to the pod's pages, while the context is open."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=TIMEOUT))
        relay = PageRelay(config, port, session, stack)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="koordctl-"))  # mode 0700
        path = str(Path(folder) / "pod")
        runner = web.ServerRunner(web.Server(relay.answer))
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.UnixSite(runner, path).start()
        yield path, relay
