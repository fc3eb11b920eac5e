"""Whether the webhook server answers, asked as the API server would ask it (spec 04 §1.7)."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp

from control.manager.webhookserver.rotation import Rotation
from control.manager.webhookserver.server import WebhookServer
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger

log = get_logger(__name__)

POLL_SECONDS, SAY_SECONDS, ASK_SECONDS = 2.0, 5.0, 4.0


class WebhookReady:
    """`check` for /readyz; a service whose loop logs when the server does not answer for long."""

    def __init__(self, rotation: Rotation, server: WebhookServer, cert_dir: Path, clock: Clock) -> None:
        self.name = "webhook-ready"
        self._rotation, self._server, self._clock = rotation, server, clock
        self._ca = cert_dir / "ca-cert.pem"
        self._context: tuple[object, ssl.SSLContext] | None = None
        self._task: asyncio.Task[None] | None = None

    async def check(self) -> str | None:
        """None, or why webhooks can't be called."""
        if not self._rotation.initialised.is_set():
            return "certificates and webhook configurations are not set up yet"
        try:
            timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"https://localhost:{self._server.port}/healthz", ssl=self._trust()) as response,
            ):
                await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"GET /healthz of the webhook server: {error or type(error).__name__}"
        return None

    def _trust(self) -> ssl.SSLContext:
        seen = self._ca.stat()
        stamp = (seen.st_ino, seen.st_mtime_ns)
        if self._context is None or self._context[0] != stamp:
            self._context = (stamp, ssl.create_default_context(cafile=str(self._ca)))
        return self._context[1]

    async def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._watch(), name=self.name)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        since: float | None = None
        while True:
            reason = await self.check()
            now = self._clock.monotonic()
            if reason is None:
                since = None
            else:
                since = now if since is None else since
                if now - since >= SAY_SECONDS:
                    log.warning("Webhook server not ready", reason=reason, seconds=round(now - since))
            await self._clock.sleep(POLL_SECONDS)
