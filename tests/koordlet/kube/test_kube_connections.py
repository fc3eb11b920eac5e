"""A burst of requests shares a few connections, and watches have their own."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import CollectorRegistry

from koordlet.app.tasks import end_tasks
from koordlet.kube.config import ClientConfig
from koordlet.kube.transport import _MAX_CONCURRENT, Transport

REQUESTS, WATCHES = 300, 3


async def test_a_burst_of_requests_shares_a_few_connections() -> None:
    peers: dict[str, set[Any]] = {"/request": set(), "/watch": set()}
    watched, end = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers[request.path].add(request.transport.get_extra_info("peername"))
        await asyncio.sleep(0)
        return web.json_response({})

    async def watch(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peers[request.path].add(request.transport.get_extra_info("peername"))
        if len(peers[request.path]) == WATCHES:
            watched.set()
        response = web.StreamResponse()
        await response.prepare(request)
        await end.wait()
        return response

    application = web.Application()
    application.router.add_get("/request", answer)
    application.router.add_get("/watch", watch)
    async with TestServer(application) as server:
        config = ClientConfig(str(server.make_url("/")).rstrip("/"), qps=0)
        transport = Transport(config, registry=CollectorRegistry())

        async def follow() -> None:
            async with transport.stream("/watch", {}) as content:
                await content.read()

        watches = [asyncio.create_task(follow()) for _ in range(WATCHES)]
        await watched.wait()
        bodies = await asyncio.gather(*(transport.request("GET", "/request") for _ in range(REQUESTS)))
        assert bodies == [b"{}"] * REQUESTS
        assert len(peers["/request"]) <= _MAX_CONCURRENT
        assert not any(task.done() for task in watches)
        end.set()
        await asyncio.gather(*watches)
        await transport.close()


async def test_requests_that_wait_for_their_rate_limit_leave_the_connections_to_other_groups() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({})

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    async with TestServer(application) as server:
        config = ClientConfig(str(server.make_url("/")).rstrip("/"), qps=0.001, burst=1)
        transport = Transport(config, registry=CollectorRegistry())
        busy = [asyncio.create_task(transport.request("GET", "/api/v1/pods")) for _ in range(2 * _MAX_CONCURRENT)]
        await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)
        path = "/apis/coordination.k8s.io/v1/leases"
        assert await asyncio.wait_for(transport.request("GET", path), 30) == b"{}"
        assert sum(task.done() for task in busy) == 1
        await end_tasks(*busy)
        await transport.close()
