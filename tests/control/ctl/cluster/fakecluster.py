"""An API server with the pods of the system behind it, strict about what koordctl must do to reach them."""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from aiohttp import ClientError, ClientSession, WSMsgType, web

from control.ctl.cluster.portforward import DATA, ERROR, SUBPROTOCOL
from koordlet.api.names import PAGE_TOKEN_HEADER, PAGES_AUDIENCE
from koordlet.app.tasks import end_tasks

USER_TOKEN, VIEW_TOKEN = "user-token", "view-token"
Json = dict[str, Any]


def system_pod(name: str, app: str, node: str, port: int, *, tls: bool = True, ready: bool = True) -> Json:
    """A running pod of the system as the API server shows it."""
    get: Json = {"path": "/readyz", "port": port, **({"scheme": "HTTPS"} if tls else {})}
    return {
        "metadata": {"name": name, "namespace": "koordinator-system", "labels": {"koord-app": app}},
        "spec": {"nodeName": node, "containers": [{"name": app, "image": "i:1", "readinessProbe": {"httpGet": get}}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


class FakeCluster:
    """Objects by path, and the local port behind each (pod, port)."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[str, Json] = {}
        self.system: list[Json] = []
        self.ports: dict[tuple[str, int], int] = {}
        self.asked: list[str] = []
        """Pods to which a connection was forwarded or a request was passed."""
        self.has_proxy = True
        self.refuse_tokens = False
        self.refuse_connections = 0
        self.kubeconfig = folder / "kubeconfig"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeCluster]:
        app = web.Application(middlewares=[self._authenticated])
        space = "/api/v1/namespaces/koordinator-system"
        app.router.add_get(f"{space}/pods", self._pods)
        app.router.add_get(f"{space}/pods/{{pod}}/portforward", self._forward)
        app.router.add_get(f"{space}/pods/{{target}}/proxy/{{path:.*}}", self._proxy)
        app.router.add_post(f"{space}/serviceaccounts/koordinator-view/token", self._token)
        app.router.add_get("/{path:.*}", self._object)
        async with serving(app) as port:
            self._write_kubeconfig(port)
            yield self

    def _write_kubeconfig(self, port: int) -> None:
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {"token": USER_TOKEN}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    @web.middleware
    async def _authenticated(self, request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {USER_TOKEN}":
            return _status(401, "Unauthorized")
        response: web.StreamResponse = await handler(request)
        return response

    async def _pods(self, request: web.Request) -> web.Response:
        label, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
        key, _, value = label.partition("=")
        items = [pod for pod in self.system if not value or pod["metadata"]["labels"].get(key) == value]
        if fields:
            field, _, node = fields.partition("=")
            assert field == "spec.nodeName"
            items = [pod for pod in items if pod["spec"]["nodeName"] == node]
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "items": items})

    async def _token(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["kind"] == "TokenRequest" and body["spec"]["expirationSeconds"] >= 600
        assert body["spec"]["audiences"] == [PAGES_AUDIENCE], "not a token for the API server"
        if self.refuse_tokens:
            return _status(403, "Forbidden")
        return web.json_response({"kind": "TokenRequest", "status": {"token": VIEW_TOKEN}}, status=201)

    async def _object(self, request: web.Request) -> web.Response:
        obj = self.objects.get(request.path)
        return web.json_response(obj) if obj is not None else _status(404, "NotFound")

    async def _proxy(self, request: web.Request) -> web.StreamResponse:
        """As kube-apiserver: without the Authorization header, and a Status if the pod is not reached."""
        if not self.has_proxy:
            return _status(501, "NotImplemented")
        if self.refuse_connections:
            return _status(self.refuse_connections, "Forbidden")
        scheme, pod, port = request.match_info["target"].split(":")
        self.asked.append(pod)
        headers = {name: value for name, value in request.headers.items() if name not in ("Authorization", "Host")}
        url = f"{scheme}://127.0.0.1:{self.ports.get((pod, int(port)), 1)}/{request.match_info['path']}"
        url += f"?{request.query_string}" if request.query_string else ""
        try:
            async with ClientSession() as session, session.get(url, headers=headers, ssl=False) as answer:
                return web.Response(
                    status=answer.status, body=await answer.read(), headers={"Content-Type": answer.content_type}
                )
        except ClientError as error:
            return _status(503, "ServiceUnavailable", f"error trying to reach service: {error}")

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        if self.refuse_connections:
            return _status(self.refuse_connections, "Forbidden")
        pod, port = request.match_info["pod"], int(request.query["ports"])
        if SUBPROTOCOL not in request.headers.get("Sec-WebSocket-Protocol", "").split(","):
            return _status(400, "BadRequest")
        socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,))
        await socket.prepare(request)
        for channel in (DATA, ERROR):
            await socket.send_bytes(bytes((channel,)) + struct.pack("<H", port))
        self.asked.append(pod)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.ports.get((pod, port), 1))
        except OSError as error:
            await socket.send_bytes(bytes((ERROR,)) + f"dial tcp4 127.0.0.1:{port}: {error}".encode())
            await socket.close()
            return socket
        back = asyncio.create_task(_from_pod(reader, socket))
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                assert message.data[0] == DATA
                writer.write(message.data[1:])
                await writer.drain()
        await end_tasks(back)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return socket


async def _from_pod(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    while data := await reader.read(1 << 16):
        await socket.send_bytes(bytes((DATA,)) + data)
    await socket.close()


def _status(code: int, reason: str, message: str = "") -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message or reason}
    return web.json_response(body, status=code)


@asynccontextmanager
async def serving(app: web.Application, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port on 127.0.0.1."""
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def pages(answers: Mapping[str, object], *, token: str = VIEW_TOKEN) -> web.Application:
    """A pod's server: JSON by path, only for the token; 403 for others, as delegated authorization answers."""

    async def answer(request: web.Request) -> web.Response:
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ") or request.headers.get(
            PAGE_TOKEN_HEADER, ""
        )
        if sent != token:
            return web.Response(status=403, text="forbidden")
        key = request.path_qs if request.path_qs in answers else request.path
        if key not in answers:
            return web.Response(status=404)
        body = answers[key]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(body=data, content_type="application/json")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    return app
