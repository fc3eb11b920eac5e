"""Forwards requests to a node's kubelet: container logs and nodes/proxy.

The address comes from the Node's status (InternalIP or Hostname, daemonEndpoints), which agents of any node may be able
to write. So the server identifies itself by a client certificate, never by a token, and the kubelet's certificate must
be valid for the node's name. If the kubelet can't be reached, the client gets a 503 that names node and address.
"""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import urlencode

import aiohttp
from aiohttp import web

from control.standalone import errors
from control.standalone.http.connectoptions import container_of, node_of
from control.standalone.http.requestinfo import RequestInfo
from control.standalone.kinds import NODE, POD
from control.standalone.registry import ObjectRegistry
from control.standalone.streams.upgrade import CONNECT_SECONDS, Endpoint

_LOG_PARAMETERS = (
    "follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream",
)  # fmt: skip
_HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "te", "trailer"}


class KubeletProxy:
    """`tls` has the server's client certificate and verifies the certificates of kubelets."""

    def __init__(self, registry: ObjectRegistry, tls: ssl.SSLContext) -> None:
        self._registry = registry
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def logs(self, request: web.BaseRequest, info: RequestInfo) -> web.StreamResponse:
        """pods/NAME/log: the kubelet's /containerLogs."""
        pod = self._registry.get(POD, info.namespace, info.name)
        container = container_of(pod, request.query.get("container", ""))
        node = node_of(pod)
        query = {k: request.query[k] for k in _LOG_PARAMETERS if k in request.query}
        path = f"/containerLogs/{info.namespace}/{info.name}/{container}"
        return await self._forward(request, node, path, urlencode(query))

    async def node(self, request: web.BaseRequest, info: RequestInfo) -> web.StreamResponse:
        """nodes/NAME/proxy/PATH; NAME may be `node` or `node:port`."""
        return await self._forward(request, info.name, "/" + info.rest, request.query_string)

    async def _forward(self, request: web.BaseRequest, node: str, path: str, query: str) -> web.StreamResponse:
        endpoint = self.endpoint(node)
        base = f"https://{endpoint.authority}"
        url = f"{base}{path}" + (f"?{query}" if query else "")
        headers = {k: v for k, v in request.headers.items() if k.lower() in ("accept", "content-type")}
        try:
            async with self._client().request(
                request.method,
                url,
                headers=headers,
                data=await request.read(),
                ssl=self._tls,
                server_hostname=endpoint.server_name,
                allow_redirects=False,
            ) as response:
                if response.status >= 400:
                    text = (await response.text(errors="replace")).strip()
                    raise _kubelet_error(response.status, text, node)
                return await _relay(request, response)
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            raise errors.StatusError(
                503, "ServiceUnavailable", f'error trying to reach the kubelet of node "{node}" at {base}: {error}'
            ) from error

    def endpoint(self, name: str) -> Endpoint:
        """Where the kubelet of a node listens; `name` may be `node` or `node:port`. Raises StatusError."""
        name, _, port = name.partition(":")
        node = self._registry.get(NODE, None, name)
        status = node.get("status") or {}
        addresses = {a["type"]: a["address"] for a in reversed(status.get("addresses") or [])}
        host = addresses.get("InternalIP") or addresses.get("Hostname")
        endpoint = port or ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
        if not host or not endpoint:
            raise errors.StatusError(
                503, "ServiceUnavailable", f'node "{name}" does not report the address of its kubelet'
            )
        number = str(endpoint)
        if not number.isdecimal() or len(number) > 5 or not 1 <= int(number) <= 65535:
            raise errors.bad_request(f"invalid port {number[:32]!r} of node {name}")
        return Endpoint(str(host), int(number), self._tls, name)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        return self._session


async def _relay(request: web.BaseRequest, kubelet_response: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = {k: v for k, v in kubelet_response.headers.items() if k.lower() not in _HOP_HEADERS}
    response = web.StreamResponse(status=kubelet_response.status, headers=headers)
    await response.prepare(request)
    try:
        async for chunk in kubelet_response.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
    except (ConnectionResetError, asyncio.IncompleteReadError, aiohttp.ClientPayloadError):
        pass  # one side closed the connection during the stream, so no error can be reported
    return response


def _kubelet_error(status: int, text: str, node: str) -> errors.StatusError:
    """The kubelet's error response as a Status with the API's reason for its code."""
    reasons = {code: reason for reason, code in errors.REASON_CODES.items() if reason not in ("Conflict", "Gone")}
    return errors.StatusError(
        status, reasons.get(status, "InternalError"), text or f"the kubelet of {node} answered {status}"
    )
