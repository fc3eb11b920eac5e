"""kube-scheduler's pages: pod resources and health check counts, on the HTTP port and on the secure port."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from control.component.errors import ConfigurationError
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.app.connections import ConnectionLimits
from koordlet.app.selfsigned import self_signed
from tests.accounts import account_token
from tests.ports import free_port
from tests.waiting import until


async def test_pages_of_pod_resources_and_health_checks(world: Any, scheduler: Any) -> None:
    await world.node("n1")
    first = await scheduler()
    second = await scheduler(wait=False)
    await world.pod("a", cpu="1500m")
    await until(lambda: world.bound("a"))
    line = (
        'kube_pod_resource_request{namespace="default",pod="a",node="n1",scheduler="koord-scheduler",priority="0",'
        'resource="cpu",unit="cores"} 1.5'
    )

    async def told() -> bool:
        return line in (await first.page("/metrics/resources"))[1].splitlines()

    await until(told)
    await until(lambda: second.scheduler.server is not None and second.scheduler.assembly.table.nodes_alive)
    assert await second.page("/metrics/resources") == (200, "")
    assert await first.page("/healthz") == (200, "ok")
    assert (await first.page("/readyz/leaderElection"))[0] == 200
    slis = (await first.page("/metrics/slis"))[1]
    assert 'kubernetes_healthcheck{name="leaderElection",type="healthz"} 1.0' in slis
    assert 'kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 1.0' in slis
    assert 'name="ping",status="success",type="readyz"' not in slis  # only one check was asked for
    assert 'kubernetes_healthchecks_total{name="leaderElection",status="success",type="readyz"} 1.0' in slis


async def test_the_secure_port_is_for_those_who_may(world: Any, scheduler: Any, tmp_path: Path) -> None:
    port = free_port()
    pem = tmp_path / "tls.pem"
    pem.write_bytes(self_signed(["127.0.0.1"]))
    running = await scheduler(
        "--bind-address=127.0.0.1", f"--secure-port={port}", f"--tls-cert-file={pem}", f"--tls-private-key-file={pem}"
    )
    tls = ssl.create_default_context(cafile=str(pem))
    token = await reader(world)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session:

        async def ask(path: str, token: str = "", method: str = "GET") -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with session.request(method, f"https://127.0.0.1:{port}{path}", headers=headers) as answer:
                return answer.status

        assert await ask("/healthz") == 200
        assert await ask("/metrics") == 403
        assert await ask("/metrics", "wrong") == 401
        assert await ask("/metrics", token) == 200
        assert await ask("/metrics", token, "DELETE") == 403
        assert await ask("/configz", token) == 403
        assert await ask("/debug/pprof/heap") == 403
        assert await ask("/debug/pprof/heap", token) == 200
    assert (await running.page("/debug/pprof/heap"))[0] == 404  # profiles are for authorized callers only


@pytest.mark.parametrize(("address", "status"), [("0.0.0.0", 404), ("127.0.0.1", 200)])
async def test_without_authorization_pages_are_served_on_loopback_only(
    scheduler: Any, address: str, status: int
) -> None:
    running = await scheduler(f"--address={address}")
    for path in ("/configz", "/metrics/resources", "/apis/v1/__services__"):
        assert (await running.page(path))[0] == status, path
    assert (await running.page("/metrics"))[0] == (await running.page("/healthz"))[0] == 200
    assert running.scheduler.server is not None
    async with aiohttp.ClientSession() as session, session.delete(f"{running.scheduler.server.url}/metrics") as answer:
        assert (answer.status, await answer.text() == "metrics reset\n") == (
            (200, True) if status == 200 else (405, False)
        )


async def test_silent_clients_do_not_keep_probes_out(world: Any, scheduler: Any) -> None:
    port = free_port()
    await scheduler(f"--secure-port={port}", "--bind-address=127.0.0.1")
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(ConnectionLimits().loopback + 8)]
    connector = aiohttp.TCPConnector(ssl=False)
    async with asyncio.timeout(120), aiohttp.ClientSession(connector=connector) as session:
        async with session.get(f"https://127.0.0.1:{port}/healthz") as response:
            assert response.status == 200
        assert await silent[0][0].read() == b"", "the one that was silent longest made room"
    for _, writer in silent:
        writer.close()


async def reader(world: Any) -> str:
    """A token of an account that may read /metrics and one profile."""
    rbac = "rbac.authorization.k8s.io"
    where = f"/api/v1/namespaces/{KOORDINATOR_NAMESPACE}/serviceaccounts"
    await world.admin.raw("POST", where, body={"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "m"}})
    meta = {"name": "metrics"}
    rule = {"nonResourceURLs": ["/metrics", "/debug/pprof/heap"], "verbs": ["get"]}
    role = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": meta, "rules": [rule]}
    await world.admin.raw("POST", f"/apis/{rbac}/v1/clusterroles", body=role)
    binding = {
        "apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", "metadata": meta,
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "metrics"},
        "subjects": [{"kind": "ServiceAccount", "name": "m", "namespace": KOORDINATOR_NAMESPACE}],
    }  # fmt: skip
    await world.admin.raw("POST", f"/apis/{rbac}/v1/clusterrolebindings", body=binding)
    return await account_token(world.admin, "m")


async def test_files_that_cannot_be_used_end_the_start(world: Any, scheduler: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no")
    with pytest.raises(ConfigurationError, match="TLS of the secure port"):
        await scheduler("--secure-port=1", f"--tls-cert-file={bad}", f"--tls-private-key-file={bad}")
