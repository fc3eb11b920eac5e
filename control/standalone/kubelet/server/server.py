"""The kubelet's HTTP endpoints: /pods, /configz, /containerLogs, /stats/summary, /metrics, /healthz, and streams.

The main port requires TLS and a client certificate or bearer token for all of them, also /healthz, as a real kubelet
without anonymous access. The read-only port (off by default) serves the same without logs, /configz and streams.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from control.standalone.kubelet.agent import Kubelet
from control.standalone.kubelet.pods.logs import LogQuery, stamp_seconds, stream
from control.standalone.kubelet.pods.status import container_status
from control.standalone.kubelet.server.auth import AuthError, KubeletAuth
from control.standalone.kubelet.server.stats import summary
from control.standalone.kubelet.server.streaming import PATHS, StreamEndpoints
from koordlet.app.clock import Clock
from koordlet.app.health import HealthChecks
from koordlet.app.http import HttpServer

_SUBRESOURCES = {
    "/pods": ("pods", "proxy"),
    "/runningpods": ("pods", "proxy"),
    "/configz": ("configz", "proxy"),
    "/healthz": ("healthz", "proxy"),
    "/stats": ("stats",),
    "/metrics": ("metrics",),
    "/logs": ("log",),
    "/checkpoint": ("checkpoint",),
}
"""First part of the path -> subresources, as in a kubelet with KubeletFineGrainedAuthz (on since 1.33). Everything else
is nodes/proxy."""


def subresources(path: str) -> tuple[str, ...]:
    """The subresources of nodes of which a caller needs one to read this path."""
    return _SUBRESOURCES.get("/" + path.strip("/").split("/")[0], ("proxy",))


def verb(method: str, path: str) -> str:
    """The verb that a caller needs. A stream needs `create`, also over WebSocket, whose request is a GET."""
    if "/" + path.strip("/").split("/")[0] in PATHS:
        return "create"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method, "get")


def guard(auth: KubeletAuth) -> Any:
    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            peer_cert = request.transport.get_extra_info("peercert") if request.transport is not None else None
            header = request.headers.get("Authorization")
            await auth.check(header, verb(request.method, request.path), subresources(request.path), peer_cert)
        except AuthError as error:
            return web.Response(status=error.status, text=f"{error}\n")
        return await handler(request)

    return middleware


class KubeletEndpoints:
    """The handlers for one `Kubelet`. `configuration` is called for each /configz."""

    def __init__(self, kubelet: Kubelet, configuration: Callable[[], dict[str, object]], clock: Clock) -> None:
        self._kubelet = kubelet
        self._configuration = configuration
        self._clock = clock
        self._streams = StreamEndpoints(kubelet)

    def open_routes(self) -> list[web.RouteDef]:
        """The routes that the read-only port serves, too."""
        routes = []
        for path, handler in (("/pods", self.pods), ("/stats/summary", self.stats)):
            routes += [web.get(path, handler), web.get(path + "/", handler)]
        return routes

    def routes(self) -> list[web.RouteDef]:
        return [
            *self.open_routes(),
            web.get("/configz", self.configz),
            web.get("/containerLogs/{namespace}/{pod}/{container}", self.logs),
            *self._streams.routes(),
        ]

    async def pods(self, request: web.Request) -> web.Response:
        items = [worker.api_object() for worker in self._kubelet.workers.values()]
        return _json({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})

    async def configz(self, request: web.Request) -> web.Response:
        return _json({"kubeletconfig": self._configuration()})

    async def stats(self, request: web.Request) -> web.Response:
        return _json(summary(self._kubelet, self._clock.now()))

    async def logs(self, request: web.Request) -> web.StreamResponse:
        namespace, pod, container = (request.match_info[k] for k in ("namespace", "pod", "container"))
        worker = next(
            (w for w in self._kubelet.workers.values() if (w.namespace, w.pod_name) == (namespace, pod)), None
        )
        if worker is None:
            raise web.HTTPNotFound(text=f'pod "{pod}" does not exist\n')
        spec = worker.spec.find(container) if worker.spec is not None else None
        if spec is None:
            raise web.HTTPNotFound(text=f'container "{container}" not found in pod "{pod}"\n')
        query = _query(request, self._clock.now())
        record = worker.records[container]
        info = record.previous if _flag(request, "previous") else record.current
        if info is None:
            if _flag(request, "previous"):
                text = f'previous terminated container "{container}" in pod "{pod}" not found\n'
            else:
                state = container_status(spec, record, "ContainerCreating")["state"]
                text = f'container "{container}" in pod "{pod}" is waiting to start: {state["waiting"]["reason"]}\n'
            raise web.HTTPBadRequest(text=text)
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        container_id = info.id

        def running() -> bool:
            current = self._kubelet.runtime.get(container_id)
            return current is not None and current.running

        async for data in stream(info.log_path, query, running):
            await response.write(data)
        return response


def _json(value: object) -> web.Response:
    return web.Response(text=json.dumps(value), content_type="application/json")


def _flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() in ("true", "1")


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None or text == "":
        return None
    if not text.isdecimal():
        raise web.HTTPBadRequest(text=f"{name}: invalid value {text!r}\n")
    return int(text)


def _query(request: web.Request, now: float) -> LogQuery:
    since_seconds = _number(request, "sinceSeconds")
    since: float | None = None if since_seconds is None else now - since_seconds
    if request.query.get("sinceTime"):
        since = stamp_seconds(request.query["sinceTime"])
        if since is None:
            raise web.HTTPBadRequest(text=f"sinceTime: invalid value {request.query['sinceTime']!r}\n")
    return LogQuery(
        tail=_number(request, "tailLines"),
        since=since,
        timestamps=_flag(request, "timestamps"),
        limit_bytes=_number(request, "limitBytes"),
        follow=_flag(request, "follow"),
    )


def main_server(
    addr: str,
    endpoints: KubeletEndpoints,
    auth: KubeletAuth,
    registry: CollectorRegistry,
    health: HealthChecks,
    tls: Any,
) -> HttpServer:
    server = HttpServer(addr, registries={"/metrics": registry}, health=health, routes=endpoints.routes(), tls=tls)
    server.app.middlewares.append(guard(auth))
    return server


def read_only_server(
    addr: str, endpoints: KubeletEndpoints, registry: CollectorRegistry, health: HealthChecks
) -> HttpServer:
    return HttpServer(addr, registries={"/metrics": registry}, health=health, routes=endpoints.open_routes())
