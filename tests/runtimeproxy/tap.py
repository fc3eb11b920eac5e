"""A unix socket in front of another one that records the bytes, and HTTP/2 as comparable values."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from koordlet.app.http2 import frames as h2
from koordlet.app.http2.frames import Splitter
from koordlet.app.tasks import end_tasks


@dataclass
class Passed:
    """One connection's bytes."""

    up: bytearray = field(default_factory=bytearray)
    down: bytearray = field(default_factory=bytearray)
    over: bool = False


@contextlib.asynccontextmanager
async def tap(listen: Path, target: Path) -> AsyncIterator[list[Passed]]:
    """Connections in the order of arrival."""
    connections: list[Passed] = []
    tasks: set[asyncio.Task[None]] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                kept += data
                writer.write(data)
                await writer.drain()
        if not writer.is_closing():  # also after a reset: the sender was killed before it had read everything
            writer.write_eof()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        passed = Passed()
        connections.append(passed)
        behind, ahead = await asyncio.open_unix_connection(str(target))
        try:
            await asyncio.gather(relay(reader, ahead, passed.up), relay(behind, writer, passed.down))
        finally:
            passed.over = True
            ahead.close()
            writer.close()

    server = await asyncio.start_unix_server(forward, str(listen))
    try:
        yield connections
    finally:
        server.close()
        await end_tasks(*tasks)


def frames(data: bytes) -> list[bytes]:
    """All frames except WINDOW_UPDATE, complete, in order."""
    splitter = Splitter()
    splitter.limit = 1 << 24
    buffer, frames = splitter.feed(data)
    return [buffer[frame.start : frame.end] for frame in frames if frame.kind != h2.WINDOW_UPDATE]


def requests(data: bytes) -> tuple[list[bytes], dict[int, bytes]]:
    """A client's frames except DATA and WINDOW_UPDATE in order, and each stream's DATA."""
    assert data.startswith(h2.PREFACE)
    splitter = Splitter()
    splitter.limit = 1 << 24
    buffer, frames = splitter.feed(data[len(h2.PREFACE) :])
    bodies: dict[int, bytes] = defaultdict(bytes)
    for frame in frames:
        if frame.kind == h2.DATA:
            start, end = h2.payload(buffer, frame)
            bodies[frame.stream] += buffer[start:end]
    control_frames = [
        buffer[frame.start : frame.end] for frame in frames if frame.kind not in (h2.DATA, h2.WINDOW_UPDATE)
    ]
    return control_frames, bodies


def with_calls(connections: Iterable[Passed]) -> list[Passed]:
    """Those that carried a call: on a busy machine gRPC gives up a connection that is not ready in time."""
    return [passed for passed in connections if len(passed.up) > len(h2.PREFACE) and requests(bytes(passed.up))[1]]
