"""The HTTPS server that the API server calls for admission (spec 04 §1.5, §1.7, §10).

It has one POST route per handler; `/healthz` answers 200, `/convert` refuses every conversion, and debug pages can be
added. A review that cannot be read, because it is over 7 MiB or nested too deeply, refuses its object: an HTTP error
would make the API server store it where failurePolicy is Ignore. `limits` bounds connections and the large reviews in
progress; if too many wait, the answer is 503. A request is cancelled after
the timeout in its URL (`?timeout=10s`), at most 10 s, when the API server no longer waits for it. The certificate is
reloaded when its file changes; open connections keep the old one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry

from control.manager.webhookserver.admission import (
    HEAD_BYTES,
    AllowResponse,
    BadReview,
    DenyResponse,
    Response,
    UndecodableObject,
    WebhookHandler,
    read_review,
    uid_of_head,
    write_review,
)
from control.manager.webhookserver.limits import HANDSHAKE_S, ConnectionLimit, LargeReviews, ServerBusy
from control.manager.webhookserver.metrics import ServerMetrics
from koordlet.api.encoding.times import Duration
from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.connections import client_address
from koordlet.app.http import ListenError
from koordlet.app.logging import describe, get_logger
from koordlet.app.periodic import Periodic

log = get_logger(__name__)

MAX_BODY_BYTES = 7 * 1024 * 1024
MAX_TIMEOUT_S = 10.0
BODY_S = 5.0
"""For the body of a review."""
RELOAD_INTERVAL_S = 2.0
KEEPALIVE_S = 120.0
"""Longer than an API server keeps an idle connection (90 s): a TLS handshake costs more than a whole request."""


class WebhookServer:
    """It is a service: register handlers, then `start` it when `cert_dir` holds `tls.crt` and `tls.key`."""

    def __init__(
        self,
        cert_dir: Path,
        *,
        host: str,
        port: int,
        registry: CollectorRegistry | None = None,
        clock: Clock = SYSTEM_CLOCK,
        client_ca: Path | None = None,
    ) -> None:
        """`client_ca`: signs the API servers' client certificates, without which only /healthz is served; None: every
        client may call."""
        self.name = "webhook-server"
        self._client_ca = client_ca
        self._cert = cert_dir / "tls.crt"
        self._key = cert_dir / "tls.key"
        self._host = host
        self._configured_port = port
        self._clock = clock
        self._handlers: dict[str, WebhookHandler] = {}
        self._metrics = ServerMetrics.of(registry)
        self._tls: ssl.SSLContext | None = None
        self._loaded: tuple[object, ...] = ()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._connections = ConnectionLimit()
        self.large_reviews = LargeReviews()
        self.port = port
        self.app = web.Application(
            client_max_size=MAX_BODY_BYTES, middlewares=[self._connections.middleware, self._authenticated]
        )
        self.app.router.add_get("/healthz", _healthz)
        self.app.router.add_post("/convert", _convert)
        self._reload = Periodic(
            "webhook-certificate", RELOAD_INTERVAL_S, self.reload, immediate=False, clock=clock, registry=registry
        )

    @property
    def handlers(self) -> Mapping[str, WebhookHandler]:
        """Path -> handler."""
        return self._handlers

    def register(self, handler: WebhookHandler) -> None:
        """Serve a handler at its path. Raises ValueError when the path is taken."""
        if handler.path in self._handlers:
            raise ValueError(f"two webhooks have the path {handler.path}")
        self._handlers[handler.path] = handler
        self.app.router.add_post(handler.path, self._route(handler))

    def add_routes(self, routes: list[web.RouteDef]) -> None:
        """Add debug pages (`/elasticQuota`)."""
        self.app.router.add_routes(routes)

    async def start(self) -> None:
        """Listen. Raises ListenError, OSError for unreadable certificates of server or clients."""
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if self._client_ca is not None:
            self._tls.load_verify_locations(self._client_ca)
            self._tls.verify_mode = ssl.CERT_OPTIONAL  # readiness is tested without one
        self.reload()
        runner = web.AppRunner(
            self.app, access_log=None, handle_signals=False, shutdown_timeout=5.0, keepalive_timeout=KEEPALIVE_S
        )
        await runner.setup()
        assert runner.server is not None
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self._connections.factory(runner.server),
                self._host,
                self._configured_port,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_S,
                reuse_address=True,
                backlog=512,
            )
        except OSError as error:
            await runner.cleanup()
            raise ListenError(
                error.errno, f"cannot listen on {self._host}:{self._configured_port}: {error.strerror}"
            ) from error
        self._runner = runner
        self.port = self._listener.sockets[0].getsockname()[1]
        await self._reload.start()
        log.info("Serving webhooks", port=self.port, paths=",".join(sorted(self._handlers)))

    async def stop(self) -> None:
        """Finish the requests in progress and close."""
        await self._reload.stop()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def reload(self) -> None:
        """Reload certificate and key if they changed. Raises OSError (ssl.SSLError if they do not match)."""
        assert self._tls is not None
        version = tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in (self._cert.stat(), self._key.stat()))
        if version != self._loaded:
            self._tls.load_cert_chain(self._cert, self._key)
            self._loaded = version
            log.info("Loaded the webhook certificate", file=str(self._cert))

    @web.middleware
    async def _authenticated(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuses clients without a certificate, before their body is read, if there is an authority for them."""
        transport = request.transport
        known = transport is not None and transport.get_extra_info("peercert")
        if known or self._client_ca is None or request.path == "/healthz":
            return await handler(request)
        return web.Response(status=401, text="a client certificate is required\n", headers={"Connection": "close"})

    def _route(self, handler: WebhookHandler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def measured(request: web.Request) -> web.StreamResponse:
            started = self._clock.monotonic()
            self._metrics.in_flight.labels(handler.path).inc()
            code = 500
            try:
                response = await self._respond(handler, request)
                code = response.status
                return response
            finally:
                self._metrics.in_flight.labels(handler.path).dec()
                self._metrics.requests.labels(handler.path, str(code)).inc()
                self._metrics.latency.labels(handler.path).observe(self._clock.monotonic() - started)

        return measured

    async def _respond(self, handler: WebhookHandler, request: web.Request) -> web.Response:
        version, uid, status = "admission.k8s.io/v1", "", 200
        try:
            async with (
                self._clock.timeout(_timeout_s(request)),
                self.large_reviews.place(_address(request), request.content_length) as place,
            ):
                body = await _body(request, self._clock)
                async with place.handling():
                    version, review = read_review(body)
                    uid = review.uid
                    response: Response = await handler.handle(review) if handler.serves(review) else AllowResponse()
        except BadReview as error:
            uid = uid_of_head(error.head)
            status, response = 200 if uid else error.code, DenyResponse(str(error), code=error.code)
        except UndecodableObject as error:
            response = DenyResponse(str(error), code=400)
        except ServerBusy as error:
            log.once("large-review", "Refusing a large review", path=handler.path, err=error)
            return web.Response(status=503, text=f"{handler.path}: {error}\n", headers={"Retry-After": "1"})
        except TimeoutError:
            log.error("Webhook timed out", path=handler.path, uid=uid)
            return web.Response(status=504, text=f"{handler.path} timed out\n")
        except Exception as error:
            self._metrics.panics.inc()
            log.exception("Webhook failed", path=handler.path, uid=uid, err=error)
            response = DenyResponse(f"{handler.path} failed: {describe(error)}", code=500, reason="InternalError")
        answer = write_review(version, uid, response)
        return web.Response(status=status, body=answer, content_type="application/json")


def _address(request: web.Request) -> str:
    transport = request.transport
    return client_address(transport.get_extra_info("peername") if transport is not None else None)


async def _body(request: web.Request, clock: Clock) -> bytes:
    """Raises BadReview, also if the client sends it too slowly."""
    try:
        async with clock.timeout(BODY_S):
            return await _read(request)
    except TimeoutError as error:
        raise BadReview(f"the review did not arrive within {BODY_S:g} s", 408) from error


async def _read(request: web.Request) -> bytes:
    """Raises BadReview."""
    if request.content_type != "application/json":
        raise BadReview(f"contentType={request.content_type}, expected application/json", 415)
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise BadReview(f"the review is larger than {MAX_BODY_BYTES} bytes", 413, head=bytes(body[:HEAD_BYTES]))
    return bytes(body)


def _timeout_s(request: web.Request) -> float:
    """The API server's timeout for this request, at most MAX_TIMEOUT_S."""
    try:
        timeout_s = Duration(request.query.get("timeout", "")).seconds
    except ValueError:
        return MAX_TIMEOUT_S
    return min(MAX_TIMEOUT_S, timeout_s) if timeout_s > 0 else MAX_TIMEOUT_S


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(status=200)


async def _convert(request: web.Request) -> web.Response:
    """Refuses: no kind has a second version, so there is nothing to convert."""
    return web.json_response(
        {
            "kind": "ConversionReview",
            "apiVersion": "apiextensions.k8s.io/v1",
            "response": {
                "uid": await _uid(request),
                "result": {"status": "Failure", "message": "no conversion is registered"},
            },
        }
    )


async def _uid(request: web.Request) -> str:
    try:
        document = await request.json()
        return str(document["request"]["uid"])
    except (ValueError, KeyError, TypeError):
        return ""
