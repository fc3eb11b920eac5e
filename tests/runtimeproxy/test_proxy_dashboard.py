"""Every query of the proxy's dashboard, executed by a real Prometheus that scrapes a real proxy before containerd.

A hook server that does not exist is registered with policy Ignore, so that hooks fail and calls succeed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from control.standalone.kubelet.runtimes.criclient import CriClient
from tests import scraping
from tests.ports import free_port
from tests.runtimeproxy.proxyprocess import ProxyProcess
from tests.runtimes.daemons import Containerd
from tests.runtimes.pods import sandbox_config
from tests.scraping import Prometheus

pytestmark = pytest.mark.runtime

DASHBOARD = Path(__file__).resolve().parents[2] / "deploy/grafana/koord-runtime-proxy.json"
VARIABLES = {"$__rate_interval": "1m", "$instance": ".*"}
MAY_BE_EMPTY = {
    "koord_runtime_proxy_unhooked_total": "a pod with the skip label, or an unknown container",
    "koord_runtime_proxy_recoveries_total": "objects from before the start",
}
QUERIES = scraping.queries(DASHBOARD, VARIABLES)


@pytest.fixture
async def proxy(containerd: Containerd) -> AsyncIterator[ProxyProcess]:
    process = ProxyProcess(containerd.socket)
    process.hooks.mkdir()
    registration = {
        "remote-endpoint": str(process.root / "absent.sock"),
        "failure-policy": "Ignore",
        "runtime-hooks": ["PreRunPodSandbox"],
    }
    (process.hooks / "absent.json").write_text(json.dumps(registration))
    await asyncio.to_thread(process.start)
    yield process
    process.close()


async def test_every_query_has_data(proxy: ProxyProcess, containerd: Containerd, tmp_path: Path) -> None:
    rules = tmp_path / "none.yaml"
    rules.write_text("groups: []\n")
    target = int(proxy.pages.rpartition(":")[2])
    fed = {where: expr for where, expr in QUERIES.items() if not any(name in expr for name in MAY_BE_EMPTY)}
    async with (
        Prometheus("koord-runtime-proxy", target, "/metrics", rules, free_port(), tmp_path) as prometheus,
        CriClient(str(proxy.socket)) as client,
    ):
        await client.run_pod_sandbox(sandbox_config(containerd.cgroup_parent(), name="one"))
        await prometheus.wait_for_data(fed, lambda: asyncio.sleep(0.2))
        for expr in QUERIES.values():
            assert await asyncio.to_thread(prometheus.get, "query", query=expr) is not None, "is a valid query"


def test_exceptions_are_needed() -> None:
    all_queries = " ".join(QUERIES.values())
    assert {name for name in MAY_BE_EMPTY if name not in all_queries} == set()
