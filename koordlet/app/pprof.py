"""Profiles of the running process under /debug/pprof/ (spec 02 §1.3, 04 §1.5). Imported only if they are served.

`goroutine`: all tasks with their stacks. `heap`: objects by type. `profile?seconds=10`: a deterministic profile of the
event loop, as text; it slows the process while it runs, and only one runs at a time.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import io
import pstats
import ssl
from collections import Counter
from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Middleware

from koordlet.app.connections import ConnectionLimits
from koordlet.app.http import HttpServer, ListenError
from koordlet.app.logging import get_logger

log = get_logger(__name__)

_MAX_PROFILE_S = 60.0
_MAX_ROWS = 60
_INDEX = "goroutine\nheap\nprofile?seconds=10\n"


class ProfileServer:
    """A service for `Runner`. If its address is in use, the process runs without it."""

    def __init__(
        self, address: str, *, tls: ssl.SSLContext | None = None, middlewares: Sequence[Middleware] = ()
    ) -> None:
        self.name = "pprof"
        limits = ConnectionLimits(handling_s=2 * _MAX_PROFILE_S)
        self.server = HttpServer(address, routes=routes(), tls=tls, middlewares=middlewares, limits=limits)

    async def start(self) -> None:
        try:
            await self.server.start()
        except ListenError as error:
            log.warning("Profiles are not served", err=error)

    async def stop(self) -> None:
        await self.server.stop()


def routes() -> list[web.RouteDef]:
    """Routes for `koordlet.app.http.HttpServer`."""
    lock = asyncio.Lock()

    async def profile(request: web.Request) -> web.Response:
        try:
            seconds = min(_MAX_PROFILE_S, float(request.query.get("seconds", "10")))
        except ValueError:
            return web.Response(status=400, text=f'seconds: "{request.query["seconds"]}" is not a number\n')
        if lock.locked():
            return web.Response(status=409, text="a profile is already running\n")
        async with lock:
            profiler = cProfile.Profile()
            profiler.enable()
            try:
                await asyncio.sleep(seconds)
            finally:
                profiler.disable()
        out = io.StringIO()
        pstats.Stats(profiler, stream=out).sort_stats("tottime").print_stats(_MAX_ROWS)
        return web.Response(text=out.getvalue())

    return [
        web.get("/debug/pprof/", _index),
        web.get("/debug/pprof/goroutine", _tasks),
        web.get("/debug/pprof/heap", _heap),
        web.get("/debug/pprof/profile", profile),
    ]


async def _index(_: web.Request) -> web.Response:
    return web.Response(text=_INDEX)


async def _tasks(_: web.Request) -> web.Response:
    out = io.StringIO()
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        out.write(f"{task.get_name()}\n")
        task.print_stack(file=out)
        out.write("\n")
    return web.Response(text=out.getvalue())


async def _heap(_: web.Request) -> web.Response:
    types = Counter(f"{type(obj).__module__}.{type(obj).__qualname__}" for obj in gc.get_objects())
    return web.Response(text="".join(f"{count:>9} {name}\n" for name, count in types.most_common(_MAX_ROWS)))
