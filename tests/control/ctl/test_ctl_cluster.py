"""The objects of a node and their rights, with the embedded API server in process."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import yaml

from control.ctl.manifests import cluster as manifests
from control.ctl.manifests.cluster import DESCHEDULER, KOORDLET, KUBELET, MANAGER, SECOND_KUBELET
from control.ctl.node import cluster
from control.ctl.node.parts import Layout
from control.ctl.node.state import NodeSettings
from control.standalone.apiserver import ApiServer
from koordlet.api.core import ConfigMap, Node, Pod, PriorityClass
from koordlet.api.crs.drain import DrainNode
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.crs.slo import NodeMetric, NodeSLO
from koordlet.api.meta import ObjectMeta
from koordlet.kube import Client, ClientConfig, Forbidden, NotFound

SETTINGS = NodeSettings("n1", report_interval=30, aggregate_duration=60)


@pytest.fixture
async def layout(tmp_path: Path) -> AsyncIterator[Layout]:
    async with ApiServer(tmp_path / "apiserver") as server:
        layout = Layout(tmp_path)
        assert server.kubeconfig_path == layout.admin_kubeconfig
        await cluster.prepare(layout.admin_kubeconfig, SETTINGS, layout.agents(SETTINGS), manager=False)
        yield layout


def client(kubeconfig: Path) -> Client:
    return Client(ClientConfig.load(kubeconfig, qps=0))


async def test_everything_a_node_needs_is_there(layout: Layout) -> None:
    async with client(layout.admin_kubeconfig) as admin:
        metric = await admin.get(NodeMetric, "n1")
        policy = metric.spec.metric_collect_policy
        assert policy is not None
        assert (policy.report_interval_seconds, policy.aggregate_duration_seconds) == (30, 60)
        await admin.get(NodeSLO, "n1")
        values = {pc.metadata.name: pc.value for pc in await admin.list(PriorityClass)}
        assert {name: values[name] for name in values if name.startswith("koord-")} == {
            "koord-prod": 9000, "koord-mid": 7000, "koord-batch": 5000, "koord-free": 3000,
        }  # fmt: skip
        definitions = json.loads(await admin.raw("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"))
        assert len(definitions["items"]) == 17


async def test_a_bare_cluster_has_only_the_kubelets_account(tmp_path: Path) -> None:
    async with ApiServer(tmp_path / "apiserver"):
        layout = Layout(tmp_path)
        agents = layout.agents(SETTINGS)
        await cluster.prepare(layout.admin_kubeconfig, msgspec.structs.replace(SETTINGS, bare=True), agents)
        assert [agent.kubeconfig.exists() for agent in agents] == [
            agent.account == manifests.KUBELET for agent in agents
        ]
        async with client(layout.kubeconfig(manifests.KUBELET)) as kubelet:
            await kubelet.list(Node)
        async with client(layout.admin_kubeconfig) as admin:
            definitions = json.loads(await admin.raw("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"))
            assert definitions["items"] == []
            with pytest.raises(NotFound):
                await admin.raw("GET", "/api/v1/namespaces/koordinator-system")


async def test_preparing_again_keeps_objects_of_others(layout: Layout) -> None:
    async with client(layout.admin_kubeconfig) as admin:
        await admin.patch(NodeMetric, "n1", body={"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 77}}})
        before = {crd["metadata"]["name"]: await admin.raw("GET", cluster.path_of(crd)) for crd in manifests.crds()}
        await cluster.prepare(layout.admin_kubeconfig, SETTINGS, layout.agents(SETTINGS), manager=False)
        policy = (await admin.get(NodeMetric, "n1")).spec.metric_collect_policy
        assert policy is not None and policy.report_interval_seconds == 77
        after = {crd["metadata"]["name"]: await admin.raw("GET", cluster.path_of(crd)) for crd in manifests.crds()}
        assert [json.loads(raw)["metadata"]["generation"] for raw in after.values()] == [
            json.loads(raw)["metadata"]["generation"] for raw in before.values()
        ]


async def test_webhooks_exist_only_with_a_manager(layout: Layout) -> None:
    async with client(layout.admin_kubeconfig) as admin:
        await cluster.prepare(layout.admin_kubeconfig, SETTINGS, layout.agents(SETTINGS))
        config = await admin.get(ConfigMap, "slo-controller-config", "koordinator-system")
        assert json.loads(config.data["colocation-config"])["metricReportIntervalSeconds"] == 30
        for obj in manifests.webhooks():  # the manager's content stays
            path = cluster.path_of(obj)
            await admin.raw("PATCH", path, body={"webhooks": []}, content_type="application/merge-patch+json")
        await cluster.prepare(layout.admin_kubeconfig, SETTINGS, layout.agents(SETTINGS))
        for obj in manifests.webhooks():
            assert not json.loads(await admin.raw("GET", cluster.path_of(obj))).get("webhooks")
        await cluster.prepare(layout.admin_kubeconfig, SETTINGS, layout.agents(SETTINGS), manager=False)
        for obj in manifests.webhooks():
            with pytest.raises(NotFound):
                await admin.raw("GET", cluster.path_of(obj))


def private_token(kubeconfig: Path) -> bool:
    """Only the owner can read kubeconfig and token file, and only the token file has the token."""
    text = kubeconfig.read_text()
    token_file = Path(yaml.safe_load(text)["users"][0]["user"]["tokenFile"])
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (kubeconfig, token_file)}
    return modes == {0o600} and token_file.read_text() not in text


async def test_credentials_are_private_and_in_a_separate_file(layout: Layout) -> None:
    assert private_token(layout.kubeconfig(KUBELET))
    assert private_token(layout.kubeconfig(KOORDLET))
    assert private_token(layout.kubeconfig(MANAGER))


async def test_a_second_node_gets_accounts_of_its_own(layout: Layout) -> None:
    both = msgspec.structs.replace(SETTINGS, second_node="n1-2")
    await cluster.prepare(layout.admin_kubeconfig, both, layout.agents(both), manager=False)
    async with client(layout.kubeconfig(SECOND_KUBELET)) as agent:
        await agent.create(Node(metadata=ObjectMeta(name="n1-2")))
        with pytest.raises(Forbidden):
            await agent.patch(Node, "n1", body={"metadata": {"labels": {"a": "b"}}})
    async with client(layout.kubeconfig(DESCHEDULER)) as agent:
        await agent.list(PodMigrationJob)
        with pytest.raises(Forbidden):
            await agent.list(DrainNode)


async def test_koordlet_may_report_and_read_but_nothing_else(layout: Layout) -> None:
    async with client(layout.kubeconfig(KOORDLET)) as agent:
        await agent.list(NodeSLO)
        await agent.list(Node)
        await agent.patch(NodeMetric, "n1", body={"status": {"podsMetric": []}}, subresource="status")
        with pytest.raises(Forbidden):
            await agent.patch(NodeMetric, "n1", body={"spec": {"metricCollectPolicy": None}})
        with pytest.raises(Forbidden):
            await agent.list(Pod)
        with pytest.raises(Forbidden):
            await agent.raw("GET", "/api/v1/namespaces/koordinator-system/secrets")
        with pytest.raises(Forbidden):
            await agent.patch(NodeMetric, "other", body={"status": {"podsMetric": []}}, subresource="status")


async def test_the_kubelet_may_register_its_node_only(layout: Layout) -> None:
    async with client(layout.kubeconfig(KUBELET)) as agent:
        await agent.create(Node(metadata=ObjectMeta(name="n1")))
        await agent.patch(Node, "n1", body={"status": {"phase": "Running"}}, subresource="status")
        await agent.list(Pod)
        with pytest.raises(Forbidden):
            await agent.patch(Node, "n2", body={"metadata": {"labels": {"a": "b"}}})
        with pytest.raises(Forbidden):
            await agent.delete(Node, "n1")
        with pytest.raises(Forbidden):
            await agent.list(NodeMetric)


def test_manifests_of_the_checkout_are_the_ones_that_are_applied() -> None:
    folder = Path(__file__).parents[3] / "deploy" / "crds"
    written = {
        document["metadata"]["name"]: document
        for path in folder.glob("*_*.yaml")
        for document in yaml.safe_load_all(path.read_text())
    }
    assert {crd["metadata"]["name"]: crd for crd in manifests.crds()} == written
