"""The kubelet's own HTTP API: the pods of this node and its configuration (spec 02 §3.4).

The credential is the service account's; the serving certificate is usually self-signed and is not verified, as in the
original. Every answer observes `koordlet_kubelet_request_duration_seconds{verb, path, code}`.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import aiohttp
from prometheus_client import Histogram

from koordlet.api.core import Node, Pod
from koordlet.api.encoding.wire import WireError, decode, json_decoder
from koordlet.api.registry import resource_for
from koordlet.app.logging import get_logger
from koordlet.kube.decode import ObjectDecoder, RawList

REQUEST_BUCKETS = tuple(0.001 * 4**k for k in range(7))
MAX_BYTES = 64 << 20
_POD_LIST = json_decoder(RawList)
_POD = ObjectDecoder(Pod, resource_for(Pod))
log = get_logger(__name__)


class KubeletError(RuntimeError):
    """The kubelet could not be asked, refused, or answered something unreadable."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a kubelet listens."""

    base: str
    """`https://host:port`, or `http://` for the read-only port."""


def endpoint_of(node: Node, address_type: str, *, insecure: bool, read_only_port: int) -> Endpoint:
    """The kubelet of `node`. An unknown or empty address type means InternalIP; raises KubeletError without one."""
    wanted = address_type if address_type in _ADDRESS_TYPES else "InternalIP"
    found = next((a.address for a in node.status.addresses if a.type == wanted), "")
    if not found:
        raise KubeletError(f"node {node.metadata.name} has no address of type {wanted}")
    host = f"[{found}]" if ":" in found else found
    if insecure:
        return Endpoint(f"http://{host}:{read_only_port}")
    served = node.status.daemon_endpoints.kubelet_endpoint
    if served is None or not served.port:
        raise KubeletError(f"node {node.metadata.name}: status.daemonEndpoints.kubeletEndpoint.Port is not set")
    return Endpoint(f"https://{host}:{served.port}")


_ADDRESS_TYPES = ("Hostname", "InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS")


class KubeletClient:
    """GET /pods and GET /configz."""

    def __init__(
        self,
        endpoint: Callable[[], Endpoint],
        credentials: Callable[[], Awaitable[Mapping[str, str]]],
        *,
        timeout: float = 3.0,
        duration: Histogram | None = None,
    ) -> None:
        self._endpoint, self._credentials, self._duration = endpoint, credentials, duration
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None

    async def pods(self) -> list[Pod]:
        """All pods of the node; malformed ones are left out and said once. Raises KubeletError, also when no pod of
        a list is well-formed."""
        body = await self._get("/pods/")
        pods: list[Pod] = []
        malformed: WireError | None = None
        try:
            items = _POD_LIST.decode(body, where="kubelet /pods/").items or []
        except WireError as error:
            raise KubeletError(str(error)) from error
        for raw in items:
            try:
                pods.append(_POD.decode(raw))
            except WireError as error:
                malformed = error
                log.once(f"malformed:{error}", "malformed pod left out", error=str(error))
        if malformed is not None and not pods:
            raise KubeletError(f"kubelet /pods/: {malformed}") from malformed
        return pods

    async def config(self) -> Mapping[str, Any]:
        """The `kubeletconfig` object of /configz, undecoded. Raises KubeletError."""
        body = await self._get("/configz")
        try:
            answer: dict[str, dict[str, Any]] = decode(body, dict[str, dict[str, Any]], where="kubelet /configz")
        except WireError as error:
            raise KubeletError(str(error)) from error
        if "kubeletconfig" not in answer:
            raise KubeletError("kubelet /configz: kubeletconfig is missing")
        return answer["kubeletconfig"]

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()

    async def _get(self, path: str) -> bytes:
        url = self._endpoint().base + path
        if self._session is None:
            unverified = ssl.create_default_context()
            unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=unverified, limit=2), timeout=self._timeout
            )
        headers = await self._credentials() if url.startswith("https") else {}  # no secret over plain HTTP
        began = monotonic()
        try:
            async with self._session.get(url, headers=headers) as response:
                try:
                    body = await _whole(response, url)
                finally:
                    if self._duration is not None:
                        self._duration.labels("get", path, str(response.status)).observe(monotonic() - began)
                if response.status != 200:
                    raise KubeletError(f"kubelet {url}: HTTP {response.status}: {body[:200].decode(errors='replace')}")
                return body
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeletError(f"kubelet {url}: {error or type(error).__name__}") from error


async def _whole(response: aiohttp.ClientResponse, url: str) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_BYTES:
            raise KubeletError(f"kubelet {url}: the answer is longer than {MAX_BYTES} bytes")
    return bytes(body)
