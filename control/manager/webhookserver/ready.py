"""Readiness of the webhook server, tested with an HTTPS request like the API server's (spec 04 §1.7)."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp

from control.manager.webhookserver.rotation import Rotation
from control.manager.webhookserver.server import WebhookServer
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks

log = get_logger(__name__)

POLL_INTERVAL_S = 2.0
LOG_AFTER_S = 5.0
REQUEST_TIMEOUT_S = 4.0


class WebhookReady:
    """`check` is for /readyz. As a service it logs when the server has not been ready for LOG_AFTER_S."""

    def __init__(self, rotation: Rotation, server: WebhookServer, cert_dir: Path, clock: Clock) -> None:
        self.name = "webhook-ready"
        self._rotation = rotation
        self._server = server
        self._clock = clock
        self._ca = cert_dir / "ca-cert.pem"
        self._context: tuple[object, ssl.SSLContext] | None = None
        self._task: asyncio.Task[None] | None = None

    async def check(self) -> str | None:
        """The reason why webhooks cannot be called, or None."""
        if not self._rotation.initialised.is_set():
            return "certificates and webhook configurations are not set up yet"
        try:
            timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"https://localhost:{self._server.port}/healthz", ssl=self._trust()) as response,
            ):
                await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"GET /healthz of the webhook server: {error or type(error).__name__}"
        return None

    def _trust(self) -> ssl.SSLContext:
        stat = self._ca.stat()
        version = (stat.st_ino, stat.st_mtime_ns)
        if self._context is None or self._context[0] != version:
            self._context = (version, ssl.create_default_context(cafile=str(self._ca)))
        return self._context[1]

    async def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._watch(), name=self.name)

    async def stop(self) -> None:
        task, self._task = self._task, None
        await end_tasks(task)

    async def _watch(self) -> None:
        since: float | None = None
        while True:
            reason = await self.check()
            now = self._clock.monotonic()
            if reason is None:
                since = None
            else:
                since = now if since is None else since
                if now - since >= LOG_AFTER_S:
                    log.warning("Webhook server is not ready", reason=reason, seconds=round(now - since))
            await self._clock.sleep(POLL_INTERVAL_S)
