"""The page /drains: all DrainNodes with the pods that they move, as JSON."""

from __future__ import annotations

from aiohttp import web

from control.descheduler.drain.book import DrainBook
from koordlet.api.encoding import wire


def drain_routes(book: DrainBook) -> list[web.RouteDef]:
    """The route of the page."""

    async def page(_: web.Request) -> web.Response:
        items = [{"name": drain.metadata.name, "spec": drain.spec, "status": drain.status} for drain in book.all()]
        return web.Response(body=wire.encode({"items": items}), content_type="application/json")

    return [web.get("/drains", page)]
