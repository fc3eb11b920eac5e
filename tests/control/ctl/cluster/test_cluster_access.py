"""koordctl reaches the pages of an installed cluster with nothing but a kubeconfig."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from control.ctl.cluster.access import PORT_FORWARD_VARIABLE
from control.ctl.cluster.choice import Where
from control.ctl.cluster.pods import ServingPod, leader_of, port_of
from control.ctl.main import cli
from koordlet.api.encoding.wire import convert, encode
from koordlet.api.pages.placement import PodPlacement
from koordlet.api.pages.top import Top, TopRow
from tests.control.ctl.cluster.fakecluster import FakeCluster, pages, serving, system_pod
from tests.control.ctl.cluster.pagetls import page_tls

LEASE = "/apis/coordination.k8s.io/v1/namespaces/koordinator-system/leases/koord-scheduler"
QUOTAS = "/apis/v1/plugins/ElasticQuota/quotas"
QUOTA = {"team": {"name": "team", "parent": "koordinator-root-quota", "min": {"cpu": "4"}}}
NODE_USAGE = {"resources": {"cpu": "1500m", "memory": "2Gi"}}


def top_of(node: str, *namespaces: str) -> bytes:
    rows = [TopRow(kind="container", namespace=space, pod=f"p-{node}", name="c", cpu=0.5) for space in namespaces]
    return encode(Top(node=node, cpus=2, cpu=1.0, memory=1e9, memory_total=2e9, window=10.0, rows=rows))


@pytest.fixture(params=["pods/proxy", "forwarded ports", "an API server without pods/proxy"])
async def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[FakeCluster]:
    """Two nodes, one koordlet with TLS and one without, and two schedulers, the second of which leads."""
    fake = FakeCluster(tmp_path)
    fake.has_proxy = request.param == "pods/proxy"
    monkeypatch.setenv(PORT_FORWARD_VARIABLE, str(request.param == "forwarded ports"))
    tls = page_tls(tmp_path)
    placement = encode(PodPlacement(pod="demo/web", state="placed", node="n1"))
    scheduler: dict[str, object] = {QUOTAS: QUOTA, "/apis/v1/explain/demo/web": placement}
    async with AsyncExitStack() as stack:
        rows: tuple[tuple[str, str, str, int, Mapping[str, object], bool], ...] = (
            ("koordlet-a", "koordlet", "n1", 9316, {"/top": top_of("n1", "demo", "other")}, True),
            ("koordlet-b", "koordlet", "n2", 9316, {"/top": top_of("n2", "demo")}, False),
            ("koord-scheduler-1", "koord-scheduler", "n1", 10259, {}, True),
            ("koord-scheduler-2", "koord-scheduler", "n2", 10259, scheduler, True),
            ("koord-manager-1", "koord-manager", "n1", 8000, {}, False),
        )
        for name, app, node, port, answers, secure in rows:
            application = pages(answers) if secure else pages(answers, token="")
            server = await stack.enter_async_context(serving(application, tls if secure else None))
            fake.system.append(system_pod(name, app, node, port, tls=secure))
            fake.ports[name, port] = server
        fake.objects[LEASE] = {"spec": {"holderIdentity": "koord-scheduler-2_0c5e"}}
        nodes = [
            {
                "metadata": {"name": name},
                "status": {
                    "capacity": {"cpu": "4", "memory": "8Gi"},
                    "allocatable": {"kubernetes.io/batch-cpu": "1200", "kubernetes.io/batch-memory": "1Gi"},
                },
            }
            for name in ("n1", "n2")
        ]
        fake.objects["/api/v1/nodes"] = {"kind": "NodeList", "items": nodes}
        metric = {"metadata": {"name": "n1"}, "status": {"nodeMetric": {"nodeUsage": NODE_USAGE}}}
        fake.objects["/apis/slo.koordinator.sh/v1alpha1/nodemetrics"] = {"kind": "NodeMetricList", "items": [metric]}
        own = [
            {"metadata": {"name": f"p-{node}", "namespace": "demo"}, "spec": {"nodeName": node}}
            for node in ("n1", "n2")
        ]
        fake.objects["/api/v1/namespaces/demo/pods"] = {"kind": "PodList", "items": own}
        fake.objects["/api/v1/namespaces/demo/pods/web"] = {"metadata": {"name": "web"}, "spec": {"nodeName": "n1"}}
        yield await stack.enter_async_context(fake.running())


async def koordctl(cluster: FakeCluster, *arguments: str) -> Result:
    state = str(cluster.kubeconfig.parent / "state")
    full = [*arguments, "--kubeconfig", str(cluster.kubeconfig), "--state-dir", state]
    result = await asyncio.to_thread(CliRunner().invoke, cli, full)
    return result


async def test_quotas_come_from_the_scheduler_that_leads(cluster: FakeCluster) -> None:
    result = await koordctl(cluster, "quota", "-o", "json")
    assert json.loads(result.stdout)["team"]["min"] == {"cpu": "4"}
    assert set(cluster.asked) == {"koord-scheduler-2"}
    assert yaml.safe_load((await koordctl(cluster, "quota", "-o", "yaml")).stdout) == json.loads(result.stdout)


async def test_top_of_a_node(cluster: FakeCluster) -> None:
    for node, spaces in (("n1", ["demo", "other"]), ("n2", ["demo"])):
        result = await koordctl(cluster, "top", "--node", node, "-o", "json")
        shown = json.loads(result.stdout)
        assert (shown["node"], sorted(row["namespace"] for row in shown["rows"])) == (node, spaces)
    assert set(cluster.asked) == {"koordlet-a", "koordlet-b"}


async def test_top_of_a_namespace_asks_the_koordlets_of_its_nodes(cluster: FakeCluster) -> None:
    result = await koordctl(cluster, "top", "-n", "demo", "-o", "json")
    assert sorted(row["pod"] for row in json.loads(result.stdout)["rows"]) == ["p-n1", "p-n2"]
    cluster.ports.pop(("koordlet-b", 9316))
    result = await koordctl(cluster, "top", "-n", "demo", "-o", "json")
    shown = json.loads(result.stdout)
    assert [row["pod"] for row in shown["rows"]] == ["p-n1"]
    assert [failure.split(":")[0] for failure in shown["failures"]] == ["n2"]
    assert "p-n1" in (await koordctl(cluster, "top", "-n", "demo")).output


async def test_top_of_the_cluster_is_a_row_per_node(cluster: FakeCluster) -> None:
    rows = json.loads((await koordctl(cluster, "top", "-o", "json")).stdout)
    assert [(row["node"], row.get("cpu"), row["batchCpu"]) for row in rows] == [("n1", 1500, 1200), ("n2", None, 1200)]
    lines = (await koordctl(cluster, "top")).stdout.splitlines()
    assert lines[1].split() == ["n1", "1500m", "38", "2Gi", "25", "1200m", "1Gi", "-"]
    assert not cluster.asked, "no node is asked"


async def test_explain_asks_the_scheduler_and_the_koordlet_of_the_pods_node(cluster: FakeCluster) -> None:
    result = await koordctl(cluster, "explain", "pod", "web", "-n", "demo")
    assert "demo/web runs on n1" in result.output
    assert set(cluster.asked) == {"koord-scheduler-2", "koordlet-a"}


async def test_status_shows_the_components(cluster: FakeCluster) -> None:
    result = await koordctl(cluster, "status", "-o", "json")
    assert result.exit_code == 0
    counts = {component["name"]: (component["readyPods"], component["pods"]) for component in json.loads(result.stdout)}
    assert counts == {"koord-manager": (1, 1), "koord-scheduler": (2, 2), "koordlet": (2, 2)}
    cluster.system[0]["status"]["conditions"] = []
    result = await koordctl(cluster, "status")
    assert (result.exit_code, "koordlet-a on n1" in result.stdout) == (1, True)


async def test_refusals_name_the_role(cluster: FakeCluster) -> None:
    cluster.refuse_tokens = True
    refused: Any = (await koordctl(cluster, "top", "--node", "n1")).exception
    assert "cannot request a token" in str(refused) and "koordinator-view" in str(refused)
    cluster.refuse_tokens, cluster.refuse_connections = False, 403
    refused = (await koordctl(cluster, "top", "--node", "n1")).exception
    role = "koordinator-view" if cluster.has_proxy else "koordinator-portforward"
    assert "HTTP 403" in str(refused) and f"Role {role}" in str(refused)
    absent = (await koordctl(cluster, "top", "--node", "n3")).exception
    assert "no koordlet runs on node n3" in str(absent)


async def test_a_port_that_nobody_listens_on_is_named(cluster: FakeCluster) -> None:
    cluster.ports.pop(("koordlet-a", 9316))
    failed = (await koordctl(cluster, "top", "--node", "n1")).exception
    assert "port 9316 of pod koordinator-system/koordlet-a" in str(failed)


@pytest.mark.parametrize(
    ("where", "node_here", "kubeconfig_here", "is_cluster"),
    [
        ({}, False, False, False),
        ({}, False, True, True),
        ({}, True, True, False),
        ({"kubeconfig": "k"}, True, False, True),
        ({"context": "c"}, True, True, True),
        ({"node": "n"}, True, True, True),
        ({"koordlet_url": "http://h", "kubeconfig": "k"}, False, True, False),
        ({"scheduler_url": "http://h"}, False, True, False),
    ],
)
def test_the_choice(where: dict[str, Any], node_here: bool, kubeconfig_here: bool, is_cluster: bool) -> None:
    chosen = Where(Path("/s"), **where)
    assert chosen.is_cluster(node_here=node_here, kubeconfig_here=kubeconfig_here) is is_cluster


def test_the_readiness_probe_names_the_scheme() -> None:
    def serving_pod(**options: Any) -> ServingPod:
        pod: ServingPod = convert(system_pod("a", "koordlet", "n", 9316, **options), ServingPod)
        return pod

    assert port_of(serving_pod(), 9316).tls and not port_of(serving_pod(tls=False), 9316).tls
    assert not port_of(serving_pod(), 8080).tls, "the probe of another port says nothing"
    ready, starting = serving_pod(), serving_pod(ready=False)
    assert leader_of([starting, ready], "") is ready and leader_of([starting], "") is None
    assert leader_of([starting], "a_uuid") is starting
