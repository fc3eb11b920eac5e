"""pods/NAME/exec, attach and portforward: streams between a client and the kubelet of the pod's node.

As in kube-apiserver: exec and attach over WebSocket version 5 are translated to SPDY, port-forward over WebSocket is
unpacked to the SPDY connection inside, and everything else (SPDY, older WebSocket protocols) is passed on unchanged.
Kubernetes 1.35 requires the verb `create` of every client, also of a WebSocket, whose request is a GET.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from control.standalone import errors
from control.standalone.http.authorization import require
from control.standalone.http.connectoptions import ConnectTarget, connect_target
from control.standalone.http.kubelet import KubeletProxy
from control.standalone.http.requestinfo import RequestInfo
from control.standalone.kinds import POD
from control.standalone.policyinterfaces import ApiUser, Authorizer, AuthzAttributes
from control.standalone.registry import ObjectRegistry
from control.standalone.streams import remotecommand
from control.standalone.streams.passthrough import pass_through
from control.standalone.streams.relay import relay
from control.standalone.streams.remotecommand import V4, V5, CommandTranslator, TunnelClient
from control.standalone.streams.slots import StreamSlots, TooManyStreams
from control.standalone.streams.takeover import begin_stream, is_upgrade
from control.standalone.streams.upgrade import PROTOCOL_VERSION, SPDY, Endpoint, UpgradeRefused, connect
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks

log = get_logger(__name__)

TUNNEL_PREFIX = "SPDY/3.1+"
PORT_FORWARD = "portforward.k8s.io"
RETRY_SECONDS = 5


class PodStreams:
    """Serves the subresources in `connectoptions.CONNECTS`."""

    def __init__(self, registry: ObjectRegistry, kubelet: KubeletProxy, authorizer: Authorizer) -> None:
        self._registry = registry
        self._kubelet = kubelet
        self._authorizer = authorizer
        self._slots = StreamSlots()
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def open(self) -> int:
        """Streams that are open now."""
        return self._slots.open

    async def close(self) -> None:
        """End all streams."""
        tasks = list(self._tasks)
        await end_tasks(*tasks)

    async def handle(self, request: web.BaseRequest, info: RequestInfo, user: ApiUser) -> web.StreamResponse:
        if request.method not in ("GET", "POST"):
            raise errors.method_not_allowed()
        require(
            self._authorizer,
            AuthzAttributes(user, "create", "", "v1", "pods", info.subresource, info.namespace, info.name, info.path),
        )
        pod = self._registry.get(POD, info.namespace, info.name)
        target = connect_target(info.subresource, pod, request.query)
        endpoint = self._kubelet.endpoint(target.node)
        if not is_upgrade(request):
            raise errors.bad_request("Upgrade request required")
        task = asyncio.current_task()
        assert task is not None  # a handler is a task
        try:
            with self._slots.taken(user.name):
                self._tasks.add(task)
                log.info("Opening a stream to a pod", user=user.name, remote=request.remote, uri=request.path_qs)
                return await self._stream(request, info, target, endpoint)
        except TooManyStreams as error:
            raise errors.too_many_requests(f"cannot {info.subresource}: {error}", RETRY_SECONDS) from error
        finally:
            self._tasks.discard(task)

    async def _stream(
        self, request: web.BaseRequest, info: RequestInfo, target: ConnectTarget, endpoint: Endpoint
    ) -> web.StreamResponse:
        protocols = _websocket_protocols(request)
        try:
            if info.subresource == "portforward" and TUNNEL_PREFIX + PORT_FORWARD in protocols:
                return await _tunnel(request, target, endpoint)
            if info.subresource != "portforward" and V5 in protocols:
                return await _translate(request, target, endpoint)
            return await pass_through(request, endpoint, target.path)
        except OSError as error:
            message = f'error trying to reach the kubelet of node "{target.node}" at {endpoint.authority}: {error}'
            raise errors.StatusError(503, "ServiceUnavailable", message) from error


async def _translate(request: web.BaseRequest, target: ConnectTarget, endpoint: Endpoint) -> web.StreamResponse:
    """The handshake comes first, because clients read the reason of a failure from the error channel."""
    client = remotecommand.websocket()
    await client.prepare(request)
    begin_stream(request)
    try:
        server = await connect(endpoint, "POST", target.path, _spdy(V4))
    except UpgradeRefused as error:
        await remotecommand.finish(client, remotecommand.failure(f"unable to upgrade connection: {error.text}"))
        return client
    except OSError as error:
        await remotecommand.finish(client, remotecommand.failure(f"error dialing the kubelet: {error}"))
        return client
    try:
        status = await CommandTranslator(client, server, target.streams).run()
    finally:
        server.close()
    if status is not None:
        await remotecommand.finish(client, status)
    return client


async def _tunnel(request: web.BaseRequest, target: ConnectTarget, endpoint: Endpoint) -> web.StreamResponse:
    try:
        server = await connect(endpoint, "POST", target.path, _spdy(PORT_FORWARD))
    except UpgradeRefused as error:
        return web.Response(status=error.status, text=error.text)
    try:
        client = web.WebSocketResponse(
            protocols=(TUNNEL_PREFIX + PORT_FORWARD,),
            max_msg_size=remotecommand.MESSAGE_LIMIT_BYTES,
            timeout=remotecommand.CLOSE_SECONDS,
            compress=False,
        )
        await client.prepare(request)
        begin_stream(request)
        await relay(TunnelClient(client), server)
        await client.close()
        return client
    finally:
        server.close()


def _spdy(protocol: str) -> list[tuple[str, str]]:
    return [("Upgrade", SPDY), (PROTOCOL_VERSION, protocol)]


def _websocket_protocols(request: web.BaseRequest) -> list[str]:
    """The subprotocols of a WebSocket request."""
    if request.headers.get("Upgrade", "").strip().lower() != "websocket":
        return []
    offered = ",".join(request.headers.getall("Sec-WebSocket-Protocol", ()))
    return [protocol.strip() for protocol in offered.split(",")]
