"""The minimum cost of a proxy process that calls a server in another process: it relays bytes and parses nothing.

It is the lower bound for a hooked call of koord-runtime-proxy on this machine, which `bench_proxy.py` prints beside the
proxy's cost. Three processes with the proxy's event loop: an echo in place of the runtime, one in place of the hook
server, and a relay that sends each message to the second, its response to the first, and that response back. Run by
`bench_proxy.py`; as a program it is one of the three: `relayfloor.py echo SOCKET`, `relayfloor.py relay SOCKET HOOKS
RUNTIME`. `relayfloor.py relay SOCKET RUNTIME` calls no server: the lower bound for a forwarded call
(`bench_proxy_docker.py`).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.app.heap import freeze_heap
from koordlet.app.runner import run
from tests.scale.children import serving

SIZE = 5000
"""Bytes of a message, as in a container's request."""
WARM = 100


class Wire(asyncio.Protocol):
    """A connection that passes received bytes to a function."""

    def __init__(self, heard: Callable[[Wire, bytes], None]) -> None:
        self._heard = heard
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._heard(self, data)

    def write(self, data: bytes) -> None:
        self._transport.write(data)


async def _to(path: str, heard: Callable[[Wire, bytes], None]) -> Wire:
    _, wire = await asyncio.get_running_loop().create_unix_connection(lambda: Wire(heard), path)
    return wire


async def _serve(kind: str, path: str, *paths: str) -> None:
    heard: Callable[[Wire, bytes], None] = Wire.write
    if kind == "relay":
        caller: list[Wire] = []
        runtime = first = await _to(paths[-1], lambda _, data: caller[0].write(data))
        if len(paths) > 1:
            first = await _to(paths[0], lambda _, data: runtime.write(data))

        def asked(wire: Wire, data: bytes) -> None:
            caller[:] = [wire]
            first.write(data)

        heard = asked
    server = await asyncio.get_running_loop().create_unix_server(lambda: Wire(heard), path)
    freeze_heap()
    async with server:
        await server.serve_forever()


def child(kind: str, path: Path, *paths: Path) -> AbstractContextManager[Path]:
    """One of the processes, serving at `path`."""
    return serving(__file__, kind, str(path), *map(str, paths), at=path)


async def _times(paths: tuple[Path, Path], calls: int) -> tuple[list[float], list[float]]:
    loop, message = asyncio.get_running_loop(), bytes(SIZE)
    answer: list[asyncio.Future[None]] = []
    missing = 0

    def heard(_: Wire, data: bytes) -> None:
        nonlocal missing
        missing -= len(data)
        if not missing:
            answer[0].set_result(None)

    ways = [await _to(str(path), heard) for path in paths]
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(calls + WARM):
        for way in (0, 1) if turn % 2 else (1, 0):
            began, missing = time.perf_counter(), SIZE
            answer[:] = [loop.create_future()]
            ways[way].write(message)
            await answer[0]
            if turn >= WARM:
                times[way].append((time.perf_counter() - began) * 1e3)
    return times


def relay_times(folder: Path, calls: int) -> tuple[list[float], list[float]]:
    """Milliseconds of direct calls and of calls through the relay, in turns."""
    names = (folder / f"floor-{name}.sock" for name in ("runtime", "hooks", "relay"))
    runtime, hooks, relay = names
    with child("echo", runtime), child("echo", hooks), child("relay", relay, hooks, runtime):
        return run(_times((runtime, relay), calls))


if __name__ == "__main__":
    run(_serve(*sys.argv[1:]))
