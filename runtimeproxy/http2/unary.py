"""One gRPC call of the proxy's own, on a connection of its own, which a runtime on the same machine makes in half a
millisecond: for what is asked at start and now and then, without gRPC's library, whose import alone would be a quarter
of the start."""

from __future__ import annotations

import asyncio
from pathlib import Path

from runtimeproxy.http2.client import STATUSES, Client
from runtimeproxy.http2.client import CallError as CallError

UNIMPLEMENTED = STATUSES.index("UNIMPLEMENTED")


async def call(socket: Path, method: str, request: bytes, seconds: float) -> bytes:
    """The answer's message to `/service/method`. CallError, within `seconds`."""
    end = asyncio.get_running_loop().time() + seconds
    try:
        async with asyncio.timeout_at(end):
            client = await Client.connect(str(socket))
    except OSError as error:  # TimeoutError too
        raise CallError(f"UNAVAILABLE: {error.strerror or 'cannot connect in time'}") from error
    try:
        return await client.call(method, request, end - asyncio.get_running_loop().time())
    finally:
        await client.close(0)
