"""A proxy in front of the API server that can reject and delay requests, lose responses and break watches.

`Front.rules` are asked in order about each request; the first that answers ends it, otherwise it goes on to the
server. Callers without credentials go on as the administrator.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from koordlet.kube import ClientConfig


@dataclass(frozen=True)
class Asked:
    """A request. `forward()` has the server answer it."""

    method: str
    path: str
    body: bytes
    watch: bool
    version: str
    """`resourceVersion` of a watch."""
    forward: Callable[[], Awaitable[web.Response]]

    def binds(self) -> str:
        """The pod that this is the binding of, or nothing."""
        parts = self.path.split("/")
        return parts[-2] if self.method == "POST" and parts[-1] == "binding" else ""

    def status_of(self) -> str:
        """The pod whose status this writes, or nothing."""
        parts = self.path.split("/")
        return parts[-2] if self.method == "PATCH" and parts[-1] == "status" and parts[-3] == "pods" else ""


Rule = Callable[[Asked], Awaitable[web.Response | None]]


def refusal(code: int, reason: str, *, retry_after: int | None = None) -> web.Response:
    """A Status as API servers answer with."""
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": f"{reason} by test",
                            "reason": reason, "code": code}  # fmt: skip
    headers = {}
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
        body["details"] = {"retryAfterSeconds": retry_after}
    return web.json_response(body, status=code, headers=headers)


@dataclass
class Front:
    """See the module text. Use as a context manager."""

    config: ClientConfig
    """The administrator's."""
    rules: list[Rule] = field(default_factory=list)
    url: str = ""
    watches: set[asyncio.Task[Any]] = field(default_factory=set)
    _ending: set[asyncio.Task[Any]] = field(default_factory=set)

    async def __aenter__(self) -> Front:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self.config.ssl or False, limit=0), auto_decompress=True
        )
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end_watches()
        await self._runner.cleanup()
        await self._session.close()

    def end_watches(self) -> None:
        """End every watch that is open, as servers do from time to time."""
        self._ending.update(self.watches)
        for task in list(self.watches):
            task.cancel()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        received = Asked(
            request.method, request.path, body, request.query.get("watch", "") in ("true", "1"),
            request.query.get("resourceVersion", ""), lambda: self._forward(request, body),
        )  # fmt: skip
        for rule in self.rules:
            answer = await rule(received)
            if answer is not None:
                return answer
        return await self._stream(request) if received.watch else await received.forward()

    async def _headers(self, request: web.Request) -> dict[str, str]:
        kept = {name: request.headers[name] for name in ("Accept", "Content-Type", "User-Agent", "Authorization")
                if name in request.headers}  # fmt: skip
        return kept if "Authorization" in kept else kept | await self.config.credentials.headers()  # type: ignore[operator]

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        async with self._session.request(
            request.method,
            self.config.server + request.path_qs,
            data=body or None,
            headers=await self._headers(request),
        ) as answer:
            text = await answer.read()
            headers = {"Retry-After": retry_after} if (retry_after := answer.headers.get("Retry-After")) else {}
            return web.Response(body=text, status=answer.status, content_type=answer.content_type, headers=headers)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(
            self.config.server + request.path_qs, headers=await self._headers(request), timeout=timeout
        ) as answer:
            if answer.status != 200:
                return web.Response(body=await answer.read(), status=answer.status, content_type=answer.content_type)
            out = web.StreamResponse(headers={"Content-Type": "application/json"})
            await out.prepare(request)
            self.watches.add(task)
            try:
                async for piece in answer.content.iter_any():
                    await out.write(piece)
            except (ConnectionResetError, aiohttp.ClientError):
                return out  # one side is gone
            except asyncio.CancelledError:
                if task not in self._ending:
                    raise
                task.uncancel()
            finally:
                self.watches.discard(task)
                self._ending.discard(task)
            await out.write_eof()
            return out


def kubeconfig(front: Front) -> str:
    """For a process that goes through the door as the administrator."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "front",
            "contexts": [{"name": "front", "context": {"cluster": "front", "user": "nobody"}}],
            "clusters": [{"name": "front", "cluster": {"server": front.url}}],
            "users": [{"name": "nobody", "user": {}}],
        }
    )
