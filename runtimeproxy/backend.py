"""The proxy's own calls to the CRI runtime behind it: is it there, and what runs in it (spec 08 §7, §11.5).

Over gRPC, imported with the first call. The first answer decides which version of the service is spoken: a runtime of
before CRI v1 answers that with UNIMPLEMENTED.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from koordlet.api.cri import SERVICES
from runtimeproxy.recover import BackendError

SECONDS = 5.0
"""A call that takes longer has failed."""
_OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),  # lists of a full node
    ("grpc.enable_http_proxy", 0),
)


class GrpcBackend:
    """A `recover.Backend` with a connection of its own, beside those that carry kubelet's calls."""

    def __init__(self, socket: Path, *, seconds: float = SECONDS) -> None:
        self._socket, self._seconds = socket, seconds
        self._channel: Any = None
        self._services = list(SERVICES)

    async def call(self, method: str, request: bytes) -> bytes:
        import grpc.aio

        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(f"unix:{quote(str(self._socket))}", options=_OPTIONS)
        while True:
            service = self._services[0]
            try:
                answer = await self._channel.unary_unary(f"/{service}/{method}")(request, timeout=self._seconds)
            except grpc.aio.AioRpcError as error:
                code = error.code()
                if code is grpc.StatusCode.UNIMPLEMENTED and len(self._services) > 1:
                    self._services = [other for other in self._services if other != service]
                    continue
                if code is grpc.StatusCode.UNAVAILABLE:
                    await self.close()  # a new connection does not sit out this one's back-off
                raise BackendError(f"{method}: {code.name}: {error.details()}") from error
            except grpc.aio.UsageError as error:  # closed by another call
                raise BackendError(f"{method}: {error}") from error
            self._services = [service]
            return bytes(answer)

    async def close(self) -> None:
        """Drop the connection; a later call makes a new one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
