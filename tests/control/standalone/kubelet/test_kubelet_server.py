"""The HTTPS endpoints on a real socket: authentication, authorization, responses."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from control.standalone.kubelet.node.apirequests import NodeApi
from control.standalone.kubelet.options import KubeletOptions, kubelet_configuration
from control.standalone.kubelet.server.auth import AuthError, KubeletAuth, TokenUser, read_token_file
from control.standalone.kubelet.server.certs import serving_certificate
from control.standalone.kubelet.server.server import KubeletEndpoints, main_server, read_only_server, subresources
from control.standalone.kubelet.server.stats import KubeletCollector
from koordlet.app.flags import read
from koordlet.app.health import HealthChecks
from koordlet.app.http import server_tls


@pytest.fixture
async def served(world: Any, tmp_path: Path) -> AsyncIterator[Any]:
    cert, key = serving_certificate(tmp_path / "pki", "n1", "127.0.0.1")
    registry = CollectorRegistry()
    registry.register(KubeletCollector(world.kubelet))
    options = read(KubeletOptions, ["--cgroup-driver=systemd", "--kube-reserved=cpu=500m", "--node-name=n1"])
    endpoints = KubeletEndpoints(world.kubelet, lambda: kubelet_configuration(options, "n1", 10250), world.clock)
    api = world.api
    api.tokens = {"koordlet": {"username": "koordlet", "groups": ["g"]}, "nobody": {"username": "nobody"}}
    api.rights = {("koordlet", "proxy"), ("koordlet", "metrics"), ("koordlet", "stats")}
    gate = KubeletAuth(NodeApi(api, "n1"), world.clock, {"fixed": TokenUser("admin", static=True)})
    tls = server_tls(cert, key)
    server = main_server("127.0.0.1:0", endpoints, gate, registry, HealthChecks(), tls)
    open_server = read_only_server("127.0.0.1:0", endpoints, registry, HealthChecks())
    await server.start()
    await open_server.start()
    trust = ssl.create_default_context(cafile=str(cert))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:

        async def get(path: str, token: str | None = "koordlet", base: str = server.url) -> tuple[int, str]:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with session.get(base + path, headers=headers) as response:
                return response.status, await response.text()

        async def get_json(path: str) -> Any:
            async with session.get(server.url + path, headers={"Authorization": "Bearer koordlet"}) as response:
                assert response.status == 200
                return await response.json()

        yield SimpleNamespace(get=get, json=get_json, open=open_server.url, world=world)
    await server.stop()
    await open_server.stop()


@pytest.mark.parametrize("path", ["/pods", "/pods/", "/configz", "/healthz", "/metrics", "/stats/summary"])
async def test_requests_are_authenticated_and_authorized(served: Any, path: str) -> None:
    assert (await served.get(path))[0] == 200
    assert (await served.get(path, "fixed"))[0] == 200
    assert await served.get(path, None) == (401, "Unauthorized\n")
    assert await served.get(path, "wrong") == (401, "Unauthorized\n")
    status, text = await served.get(path, "nobody")
    assert status == 403
    listed = " ".join(subresources(path))
    assert text == f"Forbidden (user=nobody, verb=get, resource=nodes, subresource(s)=[{listed}])\n"


async def test_unknown_paths_require_authentication_too(served: Any) -> None:
    assert (await served.get("/nothing", None))[0] == 401
    assert (await served.get("/nothing"))[0] == 404


FINE_GRAINED = {
    "/pods": "pods proxy", "/runningpods/": "pods proxy", "/configz": "configz proxy", "/healthz": "healthz proxy",
    "/healthz/ping": "healthz proxy", "/stats/summary": "stats", "/metrics/cadvisor": "metrics", "/logs/x": "log",
    "/containerLogs/a/b/c": "proxy", "/exec/a/b/c": "proxy", "/run/a/b/c": "proxy", "/readyz": "proxy", "/": "proxy",
}  # fmt: skip


@pytest.mark.parametrize(("path", "expected"), FINE_GRAINED.items())
def test_subresources_of_paths(path: str, expected: str) -> None:
    assert " ".join(subresources(path)) == expected


async def test_a_client_certificate_takes_precedence_over_a_token(world: Any) -> None:
    world.api.tokens, world.api.rights = {}, {("kube-apiserver-kubelet-client", "proxy")}
    auth = KubeletAuth(NodeApi(world.api, "n1"), world.clock, {})
    certificate = {"subject": ((("commonName", "kube-apiserver-kubelet-client"),),)}
    user = await auth.check("Bearer unknown", "get", ("proxy",), certificate)
    assert (user.name, user.groups) == ("kube-apiserver-kubelet-client", ("system:authenticated",))
    other = {"subject": ((("commonName", "other"),),)}
    with pytest.raises(AuthError, match="user=other"):
        await auth.check(None, "get", ("proxy",), other)


async def test_pods_have_their_newest_status_and_every_field(served: Any, pod: Any) -> None:
    raw = pod(tolerations=[{"operator": "Exists"}])
    raw["metadata"]["labels"] = {"koordinator.sh/qosClass": "BE"}
    served.world.api.create_pod(raw)
    await served.world.settle()
    await served.get("/pods")
    served.world.api.away = True
    served.world.runtime.exit("main", 1)
    await served.world.settle()
    body = await served.json("/pods/")
    assert (body["kind"], body["apiVersion"]) == ("PodList", "v1")
    (item,) = body["items"]
    assert item["metadata"]["labels"] == {"koordinator.sh/qosClass": "BE"}
    assert item["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert item["status"]["qosClass"] == "BestEffort"
    assert item["status"]["containerStatuses"][0]["restartCount"] == 1, "the kubelet's status, not the API's"


async def test_configz_has_a_kubelets_field_names(served: Any) -> None:
    config = (await served.json("/configz"))["kubeletconfig"]
    assert config["cgroupDriver"] == "systemd"
    assert config["cpuManagerPolicy"] == "none"
    assert config["topologyManagerPolicy"] == "none"
    assert config["kubeReserved"] == {"cpu": "500m"}


async def test_read_only_port_needs_no_token_and_shows_no_logs(served: Any) -> None:
    assert (await served.get("/pods", None, served.open))[0] == 200
    assert (await served.get("/containerLogs/default/web/main", None, served.open))[0] == 404
    assert (await served.get("/configz", None, served.open))[0] == 404


async def test_known_callers_are_served_while_the_api_server_is_unavailable(served: Any) -> None:
    assert (await served.get("/pods"))[0] == 200
    assert (await served.get("/pods", "wrong"))[0] == 401
    served.world.api.away = True
    await served.world.clock.advance(500)
    assert (await served.get("/pods"))[0] == 200
    assert (await served.get("/pods", "wrong"))[0] == 503
    await served.world.clock.advance(200)
    assert (await served.get("/pods"))[0] == 503, "only for a limited time"


async def test_token_reviews_are_cached(served: Any) -> None:
    for _ in range(5):
        await served.get("/pods")
    reviews = [c for c in served.world.api.calls if c[1].endswith("reviews")]
    # One TokenReview; nodes/pods is denied once, nodes/proxy allowed once.
    assert len(reviews) == 3


async def test_metrics_and_stats(served: Any, pod: Any) -> None:
    served.world.api.create_pod(pod())
    await served.world.settle()
    text = (await served.get("/metrics"))[1]
    assert "kubelet_running_pods 1.0" in text
    assert 'kubelet_running_containers{container_state="running"} 1.0' in text
    summary = await served.json("/stats/summary")
    (pod_stats,) = summary["pods"]
    assert pod_stats["podRef"]["name"] == "web"
    assert pod_stats["containers"][0]["memory"]["workingSetBytes"] == 3072


LINES = "".join(f"2026-01-01T00:00:{i:02d}.000000000Z stdout F line {i}\n" for i in range(10))


@pytest.fixture
async def logged(served: Any, pod: Any) -> Any:
    served.world.api.create_pod(pod())
    await served.world.settle()
    path = served.world.runtime.find("main").log_path
    path.parent.mkdir(parents=True)
    path.write_text(LINES)
    return served


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "".join(f"line {i}\n" for i in range(10))),
        ("?tailLines=2", "line 8\nline 9\n"),
        ("?tailLines=0", ""),
        ("?tailLines=1&timestamps=true", "2026-01-01T00:00:09.000000000Z line 9\n"),
        ("?sinceTime=2026-01-01T00:00:08Z", "line 8\nline 9\n"),
        ("?limitBytes=9", "line 0\nli"),
    ],
)
async def test_container_logs(logged: Any, query: str, expected: str) -> None:
    assert await logged.get(f"/containerLogs/default/web/main{query}") == (200, expected)


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("default/none/main", 404, 'pod "none" does not exist'),
        ("default/web/none", 404, 'container "none" not found in pod "web"'),
        ("default/web/main?tailLines=x", 400, "tailLines: invalid value 'x'"),
        ("default/web/main?previous=true", 400, "previous terminated container"),
    ],
)
async def test_log_errors(logged: Any, path: str, status: int, text: str) -> None:
    response = await logged.get(f"/containerLogs/{path}")
    assert response[0] == status
    assert text in response[1]


async def test_the_log_of_a_waiting_container_returns_the_reason(served: Any, pod: Any) -> None:
    served.world.api.create_pod(pod(containers=[{"name": "main", "image": "nginx"}]))
    await served.world.settle()
    status, text = await served.get("/containerLogs/default/web/main")
    assert status == 400
    assert "waiting to start: ErrImagePull" in text


def test_serving_certificate_is_kept_and_renewed(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    cert, key = serving_certificate(tmp_path, "n1", "127.0.0.1", now)
    first = cert.read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600
    assert serving_certificate(tmp_path, "n1", "127.0.0.1", now)[0].read_bytes() == first
    assert serving_certificate(tmp_path, "n2", "127.0.0.1", now)[0].read_bytes() != first
    second = cert.read_bytes()
    serving_certificate(tmp_path, "n2", "127.0.0.1", now + timedelta(days=340))
    assert cert.read_bytes() != second
    cert.write_text("damaged")
    serving_certificate(tmp_path, "n2", "127.0.0.1", now)
    assert cert.read_bytes().startswith(b"-----BEGIN CERTIFICATE")


def test_token_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text('t1,alice,u1,"a,b"\nt2,bob,u2\n')
    users = read_token_file(path)
    assert users["t1"] == TokenUser("alice", "u1", ("a", "b"), static=True)
    assert users["t2"].groups == ()
    path.write_text("t1,alice,u1\nbroken\n")
    with pytest.raises(ValueError, match=r"tokens:2: want token,user,uid"):
        read_token_file(path)
