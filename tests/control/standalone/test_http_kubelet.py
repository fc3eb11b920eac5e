"""Requests forwarded to a node's kubelet (container logs and nodes/proxy), with a fake kubelet over TLS."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp import web

from control.standalone.apiserver import ApiServer
from control.standalone.apiserver.tls import ensure_pki, kubelet_serving_certificate
from control.standalone.auth.authenticate import certificate_user
from control.standalone.auth.bootstrap import KUBELET_CLIENT
from control.standalone.kubelet.server.certs import serving_certificate
from koordlet.app.http import server_tls

PODS = "/api/v1/namespaces/default/pods"


class Asked(NamedTuple):
    """A request as the kubelet receives it."""

    path: str
    authorization: str | None
    caller: str | None


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Any]:
    """The kubelet of node n, with a certificate of the cluster."""
    async with fake_kubelet(tmp_path, "n") as running:
        yield running


@asynccontextmanager
async def fake_kubelet(tmp_path: Path, node: str) -> AsyncIterator[Any]:
    """Records the requests; the response to a log request is the request itself."""
    cluster = ensure_pki(tmp_path / "data" / "pki", ("127.0.0.1",))
    cert, key = kubelet_serving_certificate(tmp_path / "data" / "pki", tmp_path / node, node, "127.0.0.1")
    async with listener(server_tls(cert, key, cluster.ca_file)) as running:
        yield running


@asynccontextmanager
async def listener(context: ssl.SSLContext) -> AsyncIterator[Any]:
    """(port, requests) of a server that answers anything."""
    requests: list[Asked] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        caller = certificate_user(request.transport.get_extra_info("peercert") or {})
        requests.append(Asked(request.path_qs, request.headers.get("Authorization"), caller and caller.name))  # type: ignore[arg-type]
        if request.path.endswith("/broken"):
            return web.Response(status=404, text="no such container")
        return web.Response(text=f"{request.method} {request.path_qs}\n")

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield runner.addresses[0][1], requests
    finally:
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


async def test_logs_come_from_the_kubelet_without_a_token(http: Any, server: ApiServer, kubelet: Any) -> None:
    port, requests = kubelet
    await node(http, port)
    await pod(server, nodeName="n")
    answer = await http("GET", f"{PODS}/p/log?container=main&tailLines=5&follow=false")
    assert (answer.status, answer.text) == (200, "GET /containerLogs/default/p/main?follow=false&tailLines=5\n")
    assert (requests[0].authorization, requests[0].caller) == (None, "kube-apiserver-kubelet-client")
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


async def test_a_listener_that_only_a_node_object_names_learns_nothing(
    http: Any, server: ApiServer, tmp_path: Path
) -> None:
    """An agent that may write nodes/status sends the server to an address of its choice."""
    cert, key = serving_certificate(tmp_path / "self-signed", "n", "127.0.0.1")
    async with listener(server_tls(cert, key, server.pki.ca_file)) as (port, requests):
        await node(http, port)
        answer = await http("GET", "/api/v1/nodes/n/proxy/pods")
        assert answer.status == 503
        assert "CERTIFICATE_VERIFY_FAILED" in answer.body["message"]
        assert requests == []


async def test_the_kubelet_of_another_node_is_refused(http: Any, server: ApiServer, tmp_path: Path) -> None:
    async with fake_kubelet(tmp_path, "other") as (port, requests):
        await node(http, port)
        answer = await http("GET", "/api/v1/nodes/n/proxy/pods")
        assert answer.status == 503
        assert "Hostname mismatch" in answer.body["message"]
        assert requests == []


async def test_a_self_signed_kubelet_is_accepted_if_its_certificate_is_given(http: Any, tmp_path: Path) -> None:
    cert, key = serving_certificate(tmp_path / "self-signed", "n", "127.0.0.1")
    context = ensure_pki(tmp_path / "pki", ("127.0.0.1",)).kubelet_context(cert)
    async with (
        listener(server_tls(cert, key)) as (port, _),
        aiohttp.ClientSession() as session,
        session.get(f"https://127.0.0.1:{port}/", ssl=context, server_hostname="n") as response,
    ):
        assert response.status == 200


async def test_the_servers_user_at_kubelets_has_no_other_rights(http: Any, server: ApiServer) -> None:
    user = {"user": KUBELET_CLIENT, "groups": ["system:authenticated"]}

    async def may(verb: str, resource: str, subresource: str = "") -> bool:
        attributes = {"verb": verb, "resource": resource, "subresource": subresource, "name": "n"}
        spec = {**user, "resourceAttributes": attributes}
        review = await http("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
        return bool(review.body["status"]["allowed"])

    assert await may("get", "nodes", "proxy")
    assert not await may("list", "secrets")
    assert not await may("get", "nodes")
    assert not await may("create", "pods")
