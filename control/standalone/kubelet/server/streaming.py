"""exec, attach and port-forward: the request becomes a CRI call, and the stream is passed on to the runtime's server.

That server has a random port of this machine and a random path for each stream, valid once. It is reached only from
here, after the caller was authorized.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from control.standalone.kubelet.agent import Kubelet
from control.standalone.kubelet.pods.worker import PodWorker
from control.standalone.kubelet.runtimes.runtime import RuntimeFailure, StreamRequest
from control.standalone.streams.passthrough import pass_through
from control.standalone.streams.slots import MAX_STREAMS, StreamSlots, TooManyStreams
from control.standalone.streams.takeover import is_upgrade
from control.standalone.streams.upgrade import Endpoint

PATHS: Final = ("/exec", "/attach", "/portForward")
"""Their first parts. A caller needs the verb `create`, whatever the method: the request starts something."""


class StreamEndpoints:
    """The handlers. `slots` limits all callers together: the API server is usually the only one."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet
        self._slots = StreamSlots(MAX_STREAMS, MAX_STREAMS)

    def routes(self) -> list[web.RouteDef]:
        routes = []
        for method in ("GET", "POST"):
            for path in ("/exec", "/attach"):
                routes.append(web.route(method, path + "/{namespace}/{pod}/{container}", self.command))
            routes.append(web.route(method, "/portForward/{namespace}/{pod}", self.ports))
        return routes

    async def command(self, request: web.Request) -> web.StreamResponse:
        """exec or attach. A terminal has no stderr of its own."""
        worker = self._worker(request)
        name = request.match_info["container"]
        spec = worker.spec.find(name) if worker.spec is not None else None
        record = worker.records.get(name)
        if spec is None or record is None or record.current is None or not record.running:
            raise web.HTTPInternalServerError(text=f'container not found ("{name}")')
        attach = request.path.startswith("/attach/")
        stdin, stdout, stderr, tty = (request.query.get(key) == "1" for key in ("input", "output", "error", "tty"))
        if not (stdin or stdout or (stderr and not tty)):
            raise web.HTTPBadRequest(text="you must specify at least 1 of stdin, stdout, stderr")
        command = None if attach else request.query.getall("command", [])
        terminal = spec.tty if attach else tty
        return await self._stream(
            request,
            StreamRequest(record.current.id, command, stdin, stdout, stderr and not tty, terminal),
        )

    async def ports(self, request: web.Request) -> web.StreamResponse:
        """Port-forward; a WebSocket names its ports in the query, SPDY in the streams."""
        text = request.query.get("port", "")
        numbers = text.split(",") if text else []
        if any(not n.isdecimal() or len(n) > 5 or not 1 <= int(n) <= 65535 for n in numbers):
            raise web.HTTPBadRequest(text=f'unable to parse "{text[:64]}" as a port')
        if not numbers and request.headers.get("Upgrade", "").lower() == "websocket":
            raise web.HTTPBadRequest(text='query parameter "port" is required')
        uid = self._worker(request).uid
        return await self._stream(request, StreamRequest(pod_uid=uid, ports=[int(n) for n in numbers]))

    def _worker(self, request: web.Request) -> PodWorker:
        pod_key = (request.match_info["namespace"], request.match_info["pod"])
        for worker in self._kubelet.workers.values():
            if (worker.namespace, worker.pod_name) == pod_key:
                return worker
        raise web.HTTPNotFound(text="pod does not exist")

    async def _stream(self, request: web.Request, stream_request: StreamRequest) -> web.StreamResponse:
        if not is_upgrade(request):
            raise web.HTTPBadRequest(text="Upgrade request required")
        try:
            with self._slots.taken(""):
                endpoint, path = runtime_endpoint(await self._kubelet.runtime.stream_url(stream_request))
                return await pass_through(request, endpoint, path)
        except TooManyStreams as error:
            raise web.HTTPTooManyRequests(text=str(error)) from error
        except RuntimeFailure as error:
            if error.reason == "NotImplemented":
                raise web.HTTPNotImplemented(text=str(error)) from error
            raise web.HTTPInternalServerError(text=str(error)) from error
        except OSError as error:
            text = f"error dialing the runtime's streaming server: {error}"
            raise web.HTTPInternalServerError(text=text) from error


def runtime_endpoint(url: str) -> tuple[Endpoint, str]:
    """The address and path of a runtime's URL. Raises RuntimeFailure unless it is plain HTTP on this machine."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.port and ipaddress.ip_address(parts.hostname or "").is_loopback:
            return Endpoint(str(parts.hostname), parts.port), parts.path
    except ValueError:
        pass  # reported below
    raise RuntimeFailure("StreamError", "the runtime's streaming server is not at a loopback address over HTTP")
