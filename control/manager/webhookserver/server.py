"""The HTTPS server that the API server asks (spec 04 §1.5, §1.7, §10).

One POST route a handler; `/healthz` answers 200, `/convert` refuses every conversion, and debug pages may be added.
A body over 7 MiB is refused (413): a review holds an object twice, and objects are bounded by 3 MiB. A request is
given up after the time-out its URL tells (`?timeout=10s`), 10 s at most: its asker is gone by then. The certificate is
read again when its file changes; connections that are open keep the old one.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry

from control.manager.webhookserver.admission import (
    Allowed,
    BadReview,
    Denied,
    Handler,
    Response,
    Undecodable,
    read_review,
    write_review,
)
from control.manager.webhookserver.metrics import ServerMetrics
from koordlet.api.encoding.times import Duration
from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.http import ListenError
from koordlet.app.logging import describe, get_logger
from koordlet.app.periodic import Periodic

log = get_logger(__name__)

MAX_BODY = 7 * 1024 * 1024
MAX_SECONDS = 10.0
RELOAD_SECONDS = 2.0
KEEPALIVE_SECONDS = 120.0
"""More than an API server keeps an idle connection (90 s): a handshake costs more than the whole answer."""


class WebhookServer:
    """A service: register handlers, then start once `cert_dir` holds `tls.crt` and `tls.key`."""

    def __init__(
        self,
        cert_dir: Path,
        *,
        host: str = "0.0.0.0",
        port: int = 9876,
        registry: CollectorRegistry | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name = "webhook-server"
        self._cert, self._key = cert_dir / "tls.crt", cert_dir / "tls.key"
        self._host, self._wanted_port = host, port
        self._clock = clock
        self._handlers: dict[str, Handler] = {}
        self._metrics = ServerMetrics.of(registry)
        self._tls: ssl.SSLContext | None = None
        self._loaded: tuple[object, ...] = ()
        self._runner: web.AppRunner | None = None
        self.port = port
        self.app = web.Application(client_max_size=MAX_BODY)
        self.app.router.add_get("/healthz", _healthz)
        self.app.router.add_post("/convert", _convert)
        self._reload = Periodic(
            "webhook-certificate", RELOAD_SECONDS, self.reload, immediate=False, clock=clock, registry=registry
        )

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By path."""
        return self._handlers

    def register(self, handler: Handler) -> None:
        """Serve a handler at its path. Raises ValueError when the path is taken."""
        if handler.path in self._handlers:
            raise ValueError(f"two webhooks want {handler.path}")
        self._handlers[handler.path] = handler
        self.app.router.add_post(handler.path, self._route(handler))

    def add_routes(self, routes: list[web.RouteDef]) -> None:
        """Pages beside the webhooks (`/elasticQuota`)."""
        self.app.router.add_routes(routes)

    async def start(self) -> None:
        """Listen. Raises ListenError, OSError for unreadable certificates."""
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.reload()
        runner = web.AppRunner(
            self.app, access_log=None, handle_signals=False, shutdown_timeout=5.0, keepalive_timeout=KEEPALIVE_SECONDS
        )
        await runner.setup()
        try:
            await web.TCPSite(
                runner, self._host, self._wanted_port, ssl_context=self._tls, reuse_address=True, backlog=512
            ).start()
        except OSError as error:
            await runner.cleanup()
            raise ListenError(
                error.errno, f"cannot listen on {self._host}:{self._wanted_port}: {error.strerror}"
            ) from error
        self._runner = runner
        self.port = runner.addresses[0][1]
        await self._reload.start()
        log.info("Webhooks served", port=self.port, paths=",".join(sorted(self._handlers)))

    async def stop(self) -> None:
        """Finish the requests under way and close."""
        await self._reload.stop()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def reload(self) -> None:
        """Read certificate and key again if they changed. Raises OSError (ssl.SSLError when they don't fit)."""
        assert self._tls is not None
        seen = tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in (self._cert.stat(), self._key.stat()))
        if seen != self._loaded:
            self._tls.load_cert_chain(self._cert, self._key)
            self._loaded = seen
            log.info("Webhook certificate loaded", file=str(self._cert))

    def _route(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            begun = self._clock.monotonic()
            self._metrics.in_flight.labels(handler.path).inc()
            code = 500
            try:
                response = await self._answer(handler, request)
                code = response.status
                return response
            finally:
                self._metrics.in_flight.labels(handler.path).dec()
                self._metrics.requests.labels(handler.path, str(code)).inc()
                self._metrics.latency.labels(handler.path).observe(self._clock.monotonic() - begun)

        return answer

    async def _answer(self, handler: Handler, request: web.Request) -> web.Response:
        version, uid, status = "admission.k8s.io/v1", "", 200
        try:
            body = await _body(request)
            version, review = read_review(body)
            uid = review.uid
            async with self._clock.timeout(_seconds(request)):
                response: Response = await handler.handle(review) if handler.serves(review) else Allowed()
        except BadReview as error:
            status, response = error.code, Denied(str(error), code=error.code)
        except Undecodable as error:
            response = Denied(str(error), code=400)
        except TimeoutError:
            log.error("Webhook out of time", path=handler.path, uid=uid)
            return web.Response(status=504, text=f"{handler.path} did not decide in time\n")
        except Exception as error:
            self._metrics.panics.inc()
            log.exception("Webhook failed", path=handler.path, uid=uid, err=error)
            response = Denied(f"{handler.path} failed: {describe(error)}", code=500, reason="InternalError")
        body = write_review(version, uid, response)
        return web.Response(status=status, body=body, content_type="application/json")


async def _body(request: web.Request) -> bytes:
    """Raises BadReview."""
    if request.content_type != "application/json":
        raise BadReview(f"contentType={request.content_type}, expected application/json", 415)
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise BadReview(f"the review is larger than {MAX_BODY} bytes", 413) from error


def _seconds(request: web.Request) -> float:
    """What the asker is going to wait."""
    try:
        told = Duration(request.query.get("timeout", "")).seconds
    except ValueError:
        return MAX_SECONDS
    return min(MAX_SECONDS, told) if told > 0 else MAX_SECONDS


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(status=200)


async def _convert(request: web.Request) -> web.Response:
    """No kind here has a second stored version, so there is nothing to convert."""
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
