"""A scheduler with an extender that filters, scores and binds."""

from __future__ import annotations

import asyncio
from typing import Any

import yaml
from aiohttp import web

from control.scheduler.config.shipped import configuration
from koordlet.app.http import HttpServer
from tests.waiting import until


async def test_pods_go_where_the_extender_lets_them(world: Any, scheduler: Any) -> None:
    allowed = {"n2"}

    async def pick(request: web.Request) -> web.Response:
        names = (await request.json())["NodeNames"]
        refused = {name: "no licence" for name in names if name not in allowed}
        return web.json_response({"NodeNames": sorted(set(names) & allowed), "FailedNodes": refused})

    async def bind(request: web.Request) -> web.Response:
        args = await request.json()
        where = f"/api/v1/namespaces/{args['PodNamespace']}/pods/{args['PodName']}/binding"
        target = {"apiVersion": "v1", "kind": "Node", "name": args["Node"]}
        meta = {"name": args["PodName"], "annotations": {"bound-by": "extender"}}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        await world.admin.raw("POST", where, body=body)
        return web.json_response({})

    service = HttpServer("127.0.0.1:0", routes=[web.post("/pick", pick), web.post("/bind", bind)])
    await service.start()
    try:
        document = configuration()
        extender = {"urlPrefix": service.url, "filterVerb": "pick", "bindVerb": "bind", "nodeCacheCapable": True}
        path = world.tmp / "extended.yaml"
        path.write_text(yaml.safe_dump({**document, "extenders": [extender]}))
        for name in ("n1", "n2", "n3"):
            await world.node(name, cpu="1")
        running = await scheduler(f"--config={path}")
        await world.pod("a")
        assert (await until(lambda: world.bound("a")))["a"] == "n2"
        await world.pod("b")
        text = await until(lambda: world.condition("b"))
        assert text.startswith("0/3 nodes are available: 1 Insufficient cpu, 2 no licence.")
        allowed.add("n3")
        for number in range(30):  # any event may have changed its mind
            await world.node(f"m{number}", cpu="1")
            try:
                async with asyncio.timeout(2):
                    await until(lambda: world.bound("b"))
                break
            except TimeoutError:
                continue
        assert (await world.placed())["b"] == "n3"
        await running.stop()
    finally:
        await service.stop()
