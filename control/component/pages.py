"""The servers of pages, /configz, and switches under /debug/flags (spec 05 §1.2)."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry

from control.component.slis import HealthSlis
from koordlet.api.encoding.gosyntax import parse_bool
from koordlet.app.connections import ConnectionLimits
from koordlet.app.health import HealthChecks
from koordlet.app.http import HttpServer
from koordlet.app.logging import DEBUG_VERBOSITY

Setter = Callable[[str], str]
"""Applies the new value, given as text, and returns the response. Raises ValueError for an unusable value."""


@dataclass
class ComponentPages:
    """Makes the servers of a component: metrics, health and further pages, with limited connections."""

    registry: CollectorRegistry
    health: HealthChecks
    slis: HealthSlis = field(default_factory=HealthSlis)

    def server(
        self,
        address: str,
        routes: Sequence[web.RouteDef],
        tls: ssl.SSLContext | None = None,
        middlewares: Sequence[Middleware] = (),
    ) -> HttpServer:
        """`address`: `host:port`, see `host_and_port`."""
        return HttpServer(
            address,
            registries={"/metrics": self.registry, "/metrics/slis": self.slis.registry},
            health=self.health,
            routes=routes,
            tls=tls,
            middlewares=middlewares,
            observed=self.slis.observe,
            limits=ConnectionLimits(),
        )


def host_and_port(host: str, port: int) -> str:
    """An address of a server; IPv6 addresses get brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def configz(document: Mapping[str, Any]) -> list[web.RouteDef]:
    """The effective configuration."""

    async def page(request: web.Request) -> web.Response:
        return web.json_response({"componentconfig": document})

    return [web.get("/configz", page)]


def debug_flags(setters: Mapping[str, Setter]) -> list[web.RouteDef]:
    """A page that lists the switches, and one page per switch that accepts PUT."""

    async def index(request: web.Request) -> web.Response:
        items = "".join(f'<li><a href="/debug/flags/{name}">{name}</a></li>' for name in setters)
        return web.Response(text=f"<html><body><ul>{items}</ul></body></html>", content_type="text/html")

    def page(name: str, setter: Setter) -> web.RouteDef:
        async def put(request: web.Request) -> web.Response:
            if request.method != "PUT":
                return web.Response(status=406, text="unsupported http method")
            text = (await request.text()).strip()
            try:
                return web.Response(text=setter(text))
            except ValueError as error:
                return web.Response(status=400, text=f"error set {name}: {error}")

        return web.route("*", f"/debug/flags/{name}", put)

    return [web.get("/debug/flags", index), *(page(name, setter) for name, setter in setters.items())]


def integer(name: str, put: Callable[[int], object]) -> Setter:
    """A switch with an integer value."""

    def setter(text: str) -> str:
        put(int(text))
        return f"successfully set {name} to {text}"

    return setter


def boolean(name: str, put: Callable[[bool], object]) -> Setter:
    """A switch with a boolean value."""

    def setter(text: str) -> str:
        put(parse_bool(text))
        return f"successfully set {name} to {text}"

    return setter


def set_verbosity(verbosity: int) -> None:
    """For `/debug/flags/v`."""
    logging.getLogger().setLevel(logging.DEBUG if verbosity >= DEBUG_VERBOSITY else logging.INFO)
