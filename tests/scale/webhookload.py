"""Sends requests to webhooks and to a control server at a steady rate, in an open loop; also the control server itself.

The control reads an HTTP request over TLS and sends its body back: its time is that of machine, TLS and client, without
the manager. `bench_webhook` runs it as a separate process (`--control`).
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import aiohttp

WARM_SECONDS: Final = 2.0
CONTROL: Final = "control"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Echo(asyncio.Protocol):
    """One kept connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, separator, rest = self._read.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not separator or length is None or len(rest) < int(length[1]):
            return
        self._read = b""
        assert self._transport is not None
        start = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
        self._transport.write(start + length[1] + b"\r\n\r\n" + rest)


async def echo(folder: Path) -> None:
    """The control process: prints its port and runs until it is killed."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Asker:
    """Sends requests to `port` and `control` in turns; `times`: milliseconds since a request was due, by path."""

    def __init__(
        self, port: int, control: int, ca: Path, bodies: list[bytes], wrong: Callable[[str, int, object], bool]
    ) -> None:
        """`wrong(path, number of the body, the review's response)` validates a response."""
        self._bases = {CONTROL: f"https://localhost:{control}"}
        self._own, self._ca, self._bodies, self._wrong = f"https://localhost:{port}", ca, bodies, wrong
        self.times: dict[str, list[float]] = {CONTROL: []}
        self.failed = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, paths: list[str], rate: float, seconds: float) -> None:
        """`rate` requests per second to all paths together, and as many to the control."""
        self.times |= {path: [] for path in paths}
        tls = ssl.create_default_context(cafile=str(self._ca))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=tls)) as session:
            began = time.perf_counter()
            for step in range(int(2 * (WARM_SECONDS + seconds) * rate)):
                number, own = step // 2, step % 2 == 0
                due = began + step / (2 * rate)
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                path = paths[number % len(paths)] if own else CONTROL
                task = asyncio.create_task(
                    self._one(session, path, number // len(paths), due, counts=number >= WARM_SECONDS * rate)
                )
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            await asyncio.gather(*self._tasks)

    async def _one(self, session: aiohttp.ClientSession, path: str, number: int, due: float, *, counts: bool) -> None:
        url = self._bases.get(path, self._own + path)
        body, headers = self._bodies[number % len(self._bodies)], {"Content-Type": "application/json"}
        async with session.post(url, data=body, headers=headers) as answer:
            received = await answer.read()
            if counts:
                self.times[path].append((time.perf_counter() - due) * 1e3)
            if path == CONTROL:
                self.failed += received != body
            else:
                self.failed += self._wrong(path, number, (await answer.json())["response"])
