"""Requests forwarded to a node's kubelet (container logs and nodes/proxy), with a fake kubelet over TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from control.standalone.apiserver import ApiServer
from control.standalone.apiserver.tls import ensure_pki

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Any]:
    """Records the requests; the response to a log request is the request itself."""
    requests: list[tuple[str, str]] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        requests.append((request.path_qs, request.headers.get("Authorization", "")))
        if request.path.endswith("/broken"):
            return web.Response(status=404, text="no such container")
        return web.Response(text=f"{request.method} {request.path_qs}\n")

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    context = ensure_pki(tmp_path / "kubelet-pki", ("127.0.0.1",)).server_context()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    yield runner.addresses[0][1], requests
    await runner.cleanup()


async def node(http: Any, port: int) -> None:
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    assert (await http("POST", "/api/v1/nodes", {"metadata": {"name": "n"}, "status": status})).status == 201


async def pod(server: ApiServer, **spec: Any) -> None:
    containers = [{"name": "main", "image": "i"}, {"name": "broken", "image": "i"}]
    await server.registry.create(
        "/pods", "default", {"metadata": {"name": "p"}, "spec": {"containers": containers, **spec}}
    )


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path / "data", controllers=False) as running:
        await running.registry.create("/serviceaccounts", "default", {"metadata": {"name": "default"}})
        yield running


async def test_logs_come_from_the_kubelet_with_the_servers_token(http: Any, server: ApiServer, kubelet: Any) -> None:
    port, asked = kubelet
    await node(http, port)
    await pod(server, nodeName="n")
    answer = await http("GET", f"{PODS}/p/log?container=main&tailLines=5&follow=false")
    assert (answer.status, answer.text) == (200, "GET /containerLogs/default/p/main?follow=false&tailLines=5\n")
    assert asked[0][1] == f"Bearer {server.admin_token}"
    proxied = await http("GET", "/api/v1/nodes/n/proxy/configz?x=1")
    assert proxied.text == "GET /configz?x=1\n"


@pytest.mark.parametrize(
    ("query", "spec", "status", "text"),
    [
        ("", {"nodeName": "n"}, 400, "a container name must be specified for pod p, choose one of: [main broken]"),
        ("?container=none", {"nodeName": "n"}, 400, "container none is not valid for pod p"),
        ("?container=main", {}, 400, "does not have a host assigned"),
        ("?container=main", {"nodeName": "elsewhere"}, 404, 'nodes "elsewhere" not found'),
        ("?container=broken", {"nodeName": "n"}, 404, "no such container"),
    ],
)
async def test_log_errors_are_reported(
    http: Any, server: ApiServer, kubelet: Any, query: str, spec: dict[str, str], status: int, text: str
) -> None:
    await node(http, kubelet[0])
    await pod(server, **spec)
    answer = await http("GET", f"{PODS}/p/log{query}")
    assert answer.status == status
    assert text in answer.body["message"]


async def test_an_unavailable_kubelet_is_named(http: Any, server: ApiServer) -> None:
    await node(http, 1)
    await pod(server, nodeName="n")
    answer = await http("GET", f"{PODS}/p/log?container=main")
    assert (answer.status, answer.body["reason"]) == (503, "ServiceUnavailable")
    assert 'error trying to reach the kubelet of node "n" at https://127.0.0.1:1' in answer.body["message"]


async def test_exec_is_not_served(http: Any, server: ApiServer) -> None:
    await pod(server)
    answer = await http("POST", f"{PODS}/p/exec?command=ls")
    assert (answer.status, answer.body["message"]) == (501, "pods/exec is not served by this API server")
