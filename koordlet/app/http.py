"""The HTTP server of a binary: /healthz, /livez, /readyz, metrics on any number of paths, and its own routes.

Probe pages answer like Kubernetes components: `ok`, or with `?verbose` (always on failure) one line per check,
`[+]name ok` or `[-]name failed: reason`. `?exclude=name` omits a check, `/readyz/<name>` runs one, and
`Accept: application/json` returns JSON. A metrics path serves one or more registries in order; an error in any of them
fails the scrape, since an incomplete page would look like deleted series. With `limits`, connections are
limited (`koordlet.app.connections`), and beyond `PAGES_PER_SECOND` scrapes get the page of the scrape before: the
number of clients must not determine how long the event loop is busy.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from koordlet.app.connections import ConnectionGuard, ConnectionLimits, TlsListener
from koordlet.app.exposition import packed_page, page, sliced_page
from koordlet.app.health import CheckResult, HealthChecks
from koordlet.app.logging import describe, get_logger

log = get_logger(__name__)


PAGES_PER_SECOND = 10.0
PAGE_BURST = 20.0
"""Metrics pages that are produced; a page of a full node takes 20 ms."""
BACKLOG = 128
"""Connections that wait until the server accepts them."""


class ListenError(OSError):
    """Listening on the address failed; the message names it."""


def split_address(addr: str) -> tuple[str | None, int]:
    """`:9316` -> (None, 9316): all addresses; also `127.0.0.1:0`, `[::1]:80`. Raises ValueError naming the text."""
    host, colon, port = addr.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f'invalid address "{addr}": want host:port or :port')
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f'invalid address "{addr}": an IPv6 host needs brackets')
    return host.strip("[]") or None, int(port)


def listen(addr: str) -> socket.socket:
    """A socket that listens at the address, before a server accepts its connections; for all addresses it takes IPv4
    and IPv6. Raises ListenError."""
    host, port = split_address(addr)
    try:
        if host is None and socket.has_dualstack_ipv6():
            sock = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
        else:
            family = socket.AF_INET6 if host is not None and ":" in host else socket.AF_INET
            sock = socket.create_server((host or "", port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ListenError(error.errno, f"cannot listen on {addr}: {error.strerror}") from error
    sock.setblocking(False)
    return sock


def server_tls(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """A server context from PEM files; with `client_ca` a client certificate is requested but not required."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


class PageBudget:
    """A token bucket of pages that are produced."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = PAGE_BURST
        self._at = clock()

    def take(self) -> bool:
        """Whether another page may be produced now."""
        now = self._clock()
        self._tokens = min(PAGE_BURST, self._tokens + (now - self._at) * PAGES_PER_SECOND)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class HttpServer:
    """An HTTP(S) server; a service for `Runner`. After the start `port` is the real port (for `:0`)."""

    def __init__(
        self,
        addr: str,
        *,
        registries: Mapping[str, CollectorRegistry | Sequence[CollectorRegistry]] | None = None,
        health: HealthChecks | None = None,
        routes: Iterable[web.RouteDef] = (),
        tls: ssl.SSLContext | None = None,
        sliced: bool = False,
        middlewares: Sequence[Middleware] = (),
        observed: Callable[[str, CheckResult], object] | None = None,
        listener: socket.socket | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """`limits`: of connections and scrapes, for pages that are open to others; None: no limits.

        `listener`: a socket of `listen(addr)`, which the server then owns; None: it listens when it starts.

        `sliced`: metrics pages are produced in pieces and yield to the loop in between.

        `observed(page, result)` is called with each check that a probe page runs; page is healthz, livez or readyz.
        """
        self.name = "http"
        self.addr = addr
        self.health = health or HealthChecks()
        self._host, self._wanted_port = split_address(addr)
        self._tls = tls
        self._listener = listener
        self._guard = None if limits is None else ConnectionGuard(limits)
        self._server: asyncio.Server | TlsListener | None = None
        self._runner: web.AppRunner | None = None
        self._port = self._wanted_port
        self._observed = observed
        if self._guard is None:
            self.app = web.Application(middlewares=middlewares)
        else:
            self.app = web.Application(
                middlewares=(self._guard.middleware, *middlewares), client_max_size=self._guard.limits.body_bytes
            )
        self.app.router.add_get("/healthz", self._live)
        self.app.router.add_get("/livez", self._live)
        self.app.router.add_get("/readyz", self._ready)
        self.app.router.add_get("/healthz/{check}", self._live)
        self.app.router.add_get("/livez/{check}", self._live)
        self.app.router.add_get("/readyz/{check}", self._ready)
        for path, registry in (registries or {}).items():
            page_registries = (registry,) if isinstance(registry, CollectorRegistry) else tuple(registry)
            self.app.router.add_get(path, _metrics_page(page_registries, sliced, limited=limits is not None))
        self.app.router.add_routes(routes)

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        """The base URL on this machine."""
        host = self._host if self._host not in (None, "0.0.0.0", "::") else "127.0.0.1"
        return f"{'https' if self._tls else 'http'}://{f'[{host}]' if ':' in str(host) else host}:{self._port}"

    async def start(self) -> None:
        """Listen. Raises ListenError if the address is in use or not permitted."""
        if self._listener is None:
            self._listener = listen(self.addr)
        guard = self._guard
        settings: dict[str, Any] = {} if guard is None else guard.settings
        runner = web.AppRunner(self.app, access_log=None, handle_signals=False, shutdown_timeout=2.0, **settings)
        await runner.setup()
        if guard is None:
            await web.SockSite(runner, self._listener, ssl_context=self._tls).start()
        else:
            serve = runner.server
            assert serve is not None  # set by `setup`
            if self._tls is None:
                self._server = await asyncio.get_running_loop().create_server(
                    lambda: guard.protocol(serve()), sock=self._listener
                )
            else:
                self._server = TlsListener(guard, self._listener, self._tls, serve)
                self._server.start()
        self._runner = runner
        self._port = self._listener.getsockname()[1]
        log.info("Serving", addr=self.addr, url=self.url)

    async def stop(self) -> None:
        server, runner = self._server, self._runner
        self._server = self._runner = None
        if server is not None:
            server.close()
        if runner is not None:
            await runner.cleanup()
        if self._guard is not None:
            self._guard.close()

    async def _live(self, request: web.Request) -> web.Response:
        return self._probed(request, "healthz", await self.health.live(_excluded(request)))

    async def _ready(self, request: web.Request) -> web.Response:
        return self._probed(request, "readyz", await self.health.ready(_excluded(request)))

    def _probed(self, request: web.Request, title: str, results: list[CheckResult]) -> web.Response:
        page = request.path.split("/")[1]
        observed = self._observed
        if observed is not None:
            only = request.match_info.get("check")
            for result in results:
                if only in (None, result.name):
                    observed(page, result)
        return _page(request, title, results)


def _excluded(request: web.Request) -> list[str]:
    return request.query.getall("exclude", [])


def _page(request: web.Request, title: str, results: list[CheckResult]) -> web.Response:
    only = request.match_info.get("check")
    if only is not None:
        results = [result for result in results if result.name == only]
        if not results:
            raise web.HTTPNotFound(text=f"no check named {only}\n")
    ok = all(result.ok for result in results)
    status = 200 if ok else 503
    if "application/json" in request.headers.get("Accept", ""):
        checks = {result.name: {"ok": result.ok, "reason": result.reason} for result in results}
        return web.json_response({"ok": ok, "checks": checks}, status=status)
    if ok and "verbose" not in request.query:
        return web.Response(text="ok")
    lines = [f"[+]{result.name} ok" if result.ok else f"[-]{result.name} failed: {result.reason}" for result in results]
    lines.append(f"{title} check {'passed' if ok else 'failed'}")
    return web.Response(text="\n".join(lines) + "\n", status=status)


def _metrics_page(
    registries: tuple[CollectorRegistry, ...], sliced: bool, *, limited: bool
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    budget = PageBudget()
    pages: dict[bool, bytes] = {}
    """The last page, packed or not."""

    async def handler(request: web.Request) -> web.StreamResponse:
        packed = "gzip" in request.headers.get("Accept-Encoding", "")
        try:
            if limited and packed in pages and not budget.take():
                body = pages[packed]
            elif sliced:
                body = await sliced_page(registries, packed=packed)
            else:
                body = packed_page(registries) if packed else page(registries)
        except Exception as error:
            log.exception("Metrics page failed", path=request.path, err=error)
            return web.Response(status=500, text=f"cannot collect metrics: {describe(error)}\n")
        pages[packed] = body
        headers = {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4, "Vary": "Accept-Encoding"}
        return web.Response(body=body, headers=headers | ({"Content-Encoding": "gzip"} if packed else {}))

    return handler
