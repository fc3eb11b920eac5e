"""Client of the kubelet's HTTP API: the pods of this node and the kubelet's configuration (spec 02 §3.4).

It authenticates with the service account's token, after it has verified the kubelet (`kubelettls`). Each answer
observes `koordlet_kubelet_request_duration_seconds{verb, path, code}`.

A long list is decoded in batches while it arrives (`listbatches`). A pod whose JSON did not change is not decoded
again, and a pod that changes all the time only at a limited rate (`decodeallowance`); while a pod that is longer than
a batch may not be decoded, it is not even held. Time in which koordlet's own event loop was blocked does not count
against the kubelet's time limit; it is logged and counted separately.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from time import monotonic
from typing import Any, Final

import msgspec
from prometheus_client import Histogram

from koordlet.api.core import Node, Pod
from koordlet.api.encoding.nesting import decode_any_depth
from koordlet.api.encoding.wire import WireError, decode, json_decoder
from koordlet.api.registry import resource_for
from koordlet.app.logging import get_logger
from koordlet.app.patience import within
from koordlet.kube.connections import BodyTooLong, Connections, NotConnected
from koordlet.kube.decode import ObjectDecoder, RawList
from koordlet.statesinformer.pods.decodeallowance import DecodeAllowance
from koordlet.statesinformer.pods.kubelettls import KubeletVerification
from koordlet.statesinformer.pods.listbatches import Batch, BatchTooLongError, ListBatches
from koordlet.statesinformer.pods.longpods import LONG_BYTES, reduced

REQUEST_BUCKETS_S = tuple(0.001 * 4**k for k in range(7))
MAX_ANSWER_BYTES = 3 << 30
"""Of all batches: more than 300 pods of the largest size, which tenants can create."""
COMPARED_BYTES = 1 << 20
"""A longer pod uses up its allowance also by comparisons: ordinary pods have 5 to 20 KiB."""
COMPARISON_SHARE = 16
"""A comparison takes this share of the time of decoding."""
MAX_ERROR_BYTES = 200
MIN_LOGGED_DELAY_S = 1.0
"""A delay by koordlet itself is logged from this length on; shorter ones are only counted."""
_POD_LIST = json_decoder(RawList)
_POD = ObjectDecoder(Pod, resource_for(Pod))
log = get_logger(__name__)


class KubeletError(RuntimeError):
    """The kubelet was unreachable, refused the request, or returned an invalid answer."""


def kubelet_url(node: Node, address_type: str, *, insecure: bool, read_only_port: int) -> str:
    """`https://host:port` of the kubelet of `node`, or `http://` for the read-only port. An unknown or empty address
    type means InternalIP; raises KubeletError if the Node has no address of that type."""
    address_type = address_type if address_type in _ADDRESS_TYPES else "InternalIP"
    address = next((address.address for address in node.status.addresses if address.type == address_type), "")
    if not address:
        raise KubeletError(f"node {node.metadata.name} has no address of type {address_type}")
    host = f"[{address}]" if ":" in address else address
    if insecure:
        return f"http://{host}:{read_only_port}"
    endpoint = node.status.daemon_endpoints.kubelet_endpoint
    if endpoint is None or not endpoint.port:
        raise KubeletError(f"node {node.metadata.name}: status.daemonEndpoints.kubeletEndpoint.Port is not set")
    return f"https://{host}:{endpoint.port}"


_ADDRESS_TYPES = ("Hostname", "InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS")


class _UidOnly(msgspec.Struct):
    uid: str = ""


class _IdentityOnly(msgspec.Struct):
    """What identifies a pod, without its other fields, which cost most of the time."""

    metadata: _UidOnly = msgspec.field(default_factory=_UidOnly)


_IDENTITY: Final = msgspec.json.Decoder(_IdentityOnly)
_FIRST_FIELDS: Final = re.compile(rb'\{"metadata":\{(?:"[a-zA-Z]++":"[^"\\]*+",)*?"uid":"([^"\\]++)"')
"""Kubelets write the UID before labels and annotations, so it is read without a walk through those."""
_FIRST_BYTES: Final = 2 << 10
"""Names, namespace and selfLink are shorter."""


_Digest = tuple[int, int]
_HASHED_BYTES: Final = 64 << 10
"""Hashed at a time. A longer copy is a new mapping each time (`koordlet.app.heap`), whose page faults take twice the
time of the hash."""


def _digest(raw: msgspec.Raw) -> _Digest:
    """Length and hash of a pod's JSON. Python's hash of bytes is keyed with a random number per process, so tenants
    cannot make texts collide, and takes a third of the time of a cryptographic one."""
    data = memoryview(raw)
    parts = [hash(bytes(data[start : start + _HASHED_BYTES])) for start in range(0, len(data), _HASHED_BYTES)]
    return len(data), hash(tuple(parts))


def _first_uid(pod: memoryview) -> str | None:
    """The UID of a pod's JSON, of which the end may be missing; None if it is not among the first fields."""
    match = _FIRST_FIELDS.match(pod[:_FIRST_BYTES])
    return None if match is None else bytes(match[1]).decode(errors="replace")


def _uid(raw: msgspec.Raw) -> str:
    """The UID of a pod's JSON, empty if it is malformed."""
    uid = _first_uid(memoryview(raw))
    if uid is not None:
        return uid
    try:
        return decode_any_depth(_IDENTITY, raw).metadata.uid
    except msgspec.DecodeError:
        return ""


class KubeletClient:
    """GET /pods and GET /configz."""

    def __init__(
        self,
        url: Callable[[], str],
        credentials: Callable[[], Awaitable[Mapping[str, str]]],
        *,
        tls: KubeletVerification,
        timeout: float = 3.0,
        duration: Histogram | None = None,
        on_own_delay: Callable[[float], object] = lambda seconds: None,
    ) -> None:
        """`url` of the kubelet (KubeletError while unknown); `credentials`: headers for HTTPS requests; `tls`: verifies
        the kubelet in each session. `timeout`: seconds; `on_own_delay` gets the seconds by which koordlet
        itself delayed an answer."""
        self._url = url
        self._credentials = credentials
        self._tls = tls
        self._duration = duration
        self._timeout = timeout
        self._on_own_delay = on_own_delay
        self._decoded: dict[_Digest, Pod] = {}
        """The pods of the last answer by digest of their JSON."""
        self._digests: dict[str, _Digest] = {}
        """The keys of `_decoded` by UID."""
        self._allowance = DecodeAllowance()
        self.decoded_bytes = 0
        """Bytes of pods decoded since the start; unchanged pods add nothing."""
        self.answer_bytes = 0
        """Length of the last list of pods."""
        self.postponed = 0
        """Pods that changed so much that an answer was not compared with their last state."""
        self._connections: Connections | None = None
        self._server = ""
        """Of the connections."""

    async def pods(self) -> list[Pod]:
        """All pods of the node; malformed ones are left out and logged once. Raises KubeletError, also if all pods of
        a non-empty list are malformed."""
        decoded: dict[_Digest, Pod] = {}
        self._allowance.start(self._digests)
        malformed: WireError | None = None
        lists = ListBatches(partial(self._left_out, decoded))
        async with aclosing(self._get("/pods/", lists)) as batches:
            async for batch in batches:
                malformed = self._take(batch, decoded) or malformed
        self.answer_bytes = lists.bytes
        if malformed is not None and not decoded:
            raise KubeletError(f"kubelet /pods/: {malformed}") from malformed
        self._decoded = decoded
        self._digests = {pod.metadata.uid: digest for digest, pod in decoded.items()}
        return list(decoded.values())

    def _take(self, batch: Batch, decoded: dict[_Digest, Pod]) -> WireError | None:
        """Add the pods of a list to `decoded`. Returns the error of the last malformed one; raises KubeletError."""
        malformed: WireError | None = None
        try:
            items = _POD_LIST.decode(batch, where="kubelet /pods/").items or []
        except WireError as error:
            raise KubeletError(str(error)) from error
        for raw in items:
            try:
                digest, pod = self._current(raw)
                decoded[digest] = pod
            except WireError as error:
                malformed = error
                log.once(f"malformed:{error}", "Malformed pod left out", error=str(error))
        return malformed

    def _current(self, raw: msgspec.Raw) -> tuple[_Digest, Pod]:
        """The pod and the digest of the JSON that it was decoded from: `raw`, or an earlier state of a pod that changes
        too fast. Raises WireError."""
        uid = _uid(raw)
        kept = self._kept(uid)
        if kept is not None:
            return kept, self._decoded[kept]
        size = len(memoryview(raw))
        digest = _digest(raw)
        known = self._decoded.get(digest)
        if known is not None:
            if size > COMPARED_BYTES:
                self._allowance.take(uid, size // COMPARISON_SHARE)
            return digest, known
        if uid in self._digests:
            self._allowance.take(uid, size)
        return digest, self._decode(raw)

    def _kept(self, uid: str) -> _Digest | None:
        """The digest of a pod's last state if the pod keeps it, because it may not be decoded now."""
        last = self._digests.get(uid)
        if last is None or not self._allowance.spent(uid):
            return None
        self.postponed += 1
        return last

    def _left_out(self, decoded: dict[_Digest, Pod], pod: memoryview) -> bool:
        """Whether a pod, of which this is the beginning, keeps its last state, which is then added to `decoded`."""
        kept = self._kept(_first_uid(pod) or "")
        if kept is not None:
            decoded[kept] = self._decoded[kept]
        return kept is not None

    def _decode(self, raw: msgspec.Raw) -> Pod:
        size = len(memoryview(raw))
        self.decoded_bytes += size
        if size <= LONG_BYTES:
            return _POD.decode(raw)
        text, is_cut = reduced(bytes(raw))
        pod = _POD.decode(text)
        if is_cut:
            kept = len(pod.spec.containers)
            message = "A pod has too many containers: the first ones are managed, and the whole pod"
            log.once(f"long:{pod.metadata.uid}", message, pod=pod.metadata.key, managed=kept)
        return pod

    async def config(self) -> Mapping[str, Any]:
        """The `kubeletconfig` object of /configz, undecoded. Raises KubeletError."""
        body = b"".join([part async for part in self._get("/configz", ListBatches())])
        try:
            answer: dict[str, dict[str, Any]] = decode(body, dict[str, dict[str, Any]], where="kubelet /configz")
        except WireError as error:
            raise KubeletError(str(error)) from error
        if "kubeletconfig" not in answer:
            raise KubeletError("kubelet /configz: kubeletconfig is missing")
        return answer["kubeletconfig"]

    async def close(self) -> None:
        """Close the connections."""
        if self._connections is not None:
            self._connections.close()
            self._connections = None

    async def _get(self, path: str, lists: ListBatches) -> AsyncGenerator[Batch, None]:
        """The answer, or the batches of a long list. Each of them may take the time limit."""
        server = self._url()
        async with aclosing(self._request(server, path, lists)) as batches:
            while (batch := await self._limited(server + path, batches)) is not None:
                yield batch

    async def _limited(self, url: str, batches: AsyncGenerator[Batch, None]) -> Batch | None:
        """The next of `batches`, None after the last. Raises KubeletError."""
        try:
            batch, own_delay = await within(self._timeout, _next(batches))
        except NotConnected as error:
            reason = error.__cause__
            if not isinstance(reason, ssl.SSLCertVerificationError):
                raise KubeletError(f"kubelet {url}: {error}: {reason}") from error
            await self.close()  # the kubelet may have a new certificate: the next connection reads the files again
            raise KubeletError(f"kubelet {url}: {reason}: {self._tls.refused()}") from error
        except BodyTooLong as error:
            raise KubeletError(f"kubelet {url}: the answer is longer than {MAX_ANSWER_BYTES} bytes") from error
        except (BatchTooLongError, TimeoutError, OSError) as error:
            raise KubeletError(f"kubelet {url}: {error or type(error).__name__}") from error
        if own_delay > 0:
            self._on_own_delay(own_delay)
            if own_delay >= MIN_LOGGED_DELAY_S:
                message = "Koordlet was busy while the kubelet answered; this is not the kubelet's delay"
                log.warning(message, url=url, busy_seconds=round(own_delay, 3))
        return batch

    async def _request(self, server: str, path: str, lists: ListBatches) -> AsyncGenerator[Batch, None]:
        url = server + path
        connections = await self._connections_to(server)
        headers = await self._credentials() if server.startswith("https") else {}  # no secret over plain HTTP
        started_at, status = monotonic(), 0
        try:
            answers = connections.stream(path, headers, lists.add, max_bytes=MAX_ANSWER_BYTES)
            async with aclosing(answers):
                async for status, _, batch in answers:
                    if status != 200:
                        text = (batch or lists.rest())[:MAX_ERROR_BYTES].decode(errors="replace")
                        raise KubeletError(f"kubelet {url}: HTTP {status}: {text}")
                    if batch:
                        yield batch
        finally:
            if self._duration is not None and status:
                self._duration.labels("get", path, str(status)).observe(monotonic() - started_at)
        yield lists.rest()

    async def _connections_to(self, server: str) -> Connections:
        """Raises KubeletError."""
        if server != self._server:  # the Node has another address
            await self.close()
        if self._connections is None:
            try:
                self._connections = Connections(server, self._tls())
            except OSError as error:
                raise KubeletError(f"kubelet {server}: cannot load certificates: {error}") from error
            self._server = server
        return self._connections


async def _next(batches: AsyncGenerator[Batch, None]) -> Batch | None:
    return await anext(batches, None)
