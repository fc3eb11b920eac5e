"""Drains in a real API server: with koord-scheduler, and as a process under its own account."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.descheduler.config.shipped import configuration
from control.descheduler.drain import controller, groupcontroller
from control.descheduler.process import manifests
from control.descheduler.process.rights import DRAIN
from control.standalone.apiserver import ApiServer
from koordlet.api.core import Event, Node, Pod
from koordlet.api.core.selectors import Taint
from koordlet.api.crs.drain import DrainNode
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.crs.reservation import Reservation
from koordlet.api.names import LABEL_DRAIN_NODE
from koordlet.kube import Client, ClientConfig
from tests.control.descheduler.migration.test_migration_server import Cluster, _until
from tests.control.descheduler.process.conftest import (  # noqa: F401  (fixtures)
    DeschedulerWorld,
    RunningDescheduler,
    descheduler,
    world,
)
from tests.rights import asked, granted
from tests.waiting import until

GATE = "--feature-gates=DrainController=true"
GROUP = "/apis/scheduling.koordinator.sh/v1alpha1"
USER = f"system:serviceaccount:koordinator-system:{manifests.ACCOUNT}"


async def create(admin: Client, plural: str, kind: str, name: str, **spec: Any) -> None:
    body = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }
    await admin.raw("POST", f"{GROUP}/{plural}", body=body)


async def confirm(admin: Client, name: str, state: str) -> None:
    await admin.patch(DrainNode, name, body={"spec": {"confirmState": state}})


async def phase_of(admin: Client, name: str, *phases: str) -> DrainNode | None:
    drain = await admin.get(DrainNode, name)
    return drain if drain.status.phase in phases else None


@pytest.fixture
async def scheduled(tmp_path: Path) -> AsyncIterator[tuple[Cluster, ApiServer]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ApiServer(tmp_path / "api"))
        client = await stack.enter_async_context(Client(ClientConfig.load(server.kubeconfig_path, qps=0)))
        cluster = Cluster(client)
        await cluster.start(stack, tmp_path, server.kubeconfig_path)
        yield cluster, server


async def test_a_node_is_drained_with_the_scheduler(scheduled: tuple[Cluster, ApiServer], tmp_path: Path) -> None:
    cluster, server = scheduled
    pods = await cluster.workload("web", 6)
    subjects = {pod.metadata.uid for pod in pods if pod.spec.node_name == "n1"}
    assert subjects
    document = configuration()
    document["profiles"][0]["pluginConfig"].append(
        {"name": "MigrationController", "args": {"objectLimiters": {"workload": {"duration": "1s"}}}}
    )
    only = {"disabled": [{"name": "*"}], "enabled": [{"name": "MigrationController"}]}
    document["profiles"][0]["plugins"] |= {"evict": only, "filter": only}
    async with AsyncExitStack() as stack:
        running = await started(stack, tmp_path, document, ClientConfig.load(server.kubeconfig_path))
        await create(
            cluster.admin,
            "drainnodes",
            "DrainNode",
            "d",
            nodeName="n1",
            cordonPolicy={"mode": "Taint"},
            migrationPolicy={"mode": "MigrateDirectly"},
        )

        async def planned() -> DrainNode | None:
            drain = await cluster.admin.get(DrainNode, "d")
            return drain if drain.status.is_true("OnceAvailable") else None

        plan = await _until(planned)
        assert {entry.uid for entry in plan.status.pod_migrations} == subjects
        assert {entry.target_node for entry in plan.status.pod_migrations} == {"n2"}
        assert {pod.metadata.uid for pod in await cluster.running("web", 6)} == {pod.metadata.uid for pod in pods}
        await confirm(cluster.admin, "d", "Confirmed")
        done = await _until(lambda: phase_of(cluster.admin, "d", "Complete", "Aborted"))
        assert done.status.message == "complete; no pod remains", done.status
        assert {pod.spec.node_name for pod in await _until(lambda: cluster.running("web", 6))} == {"n2"}
        assert len(await drain_taints(cluster.admin, "n1")) == 1
        reasons = {event.reason for event in await cluster.admin.list(Event) if event.involved_object.name == "d"}
        assert {"Running", "OnceAvailable", "Complete"} <= reasons
        page = json.loads((await running.page("/drains"))[1])
        assert [item["status"]["phase"] for item in page["items"]] == ["Complete"]
        await confirm(cluster.admin, "d", "Aborted")
        await _until(lambda: phase_of(cluster.admin, "d", "Aborted"))
        assert await drain_taints(cluster.admin, "n1") == []


async def drain_taints(admin: Client, node: str) -> list[Taint]:
    """The taints of a node without those that say that its kubelet does not report."""
    return [taint for taint in (await admin.get(Node, node)).spec.taints if taint.key == LABEL_DRAIN_NODE]


async def started(
    stack: AsyncExitStack, path: Path, document: dict[str, Any], config: ClientConfig
) -> RunningDescheduler:
    from control.descheduler.process.options import DeschedulerOptions
    from control.descheduler.process.process import Descheduler
    from koordlet.app.flags import read
    from tests.ports import free_port

    port = free_port()
    document["healthzBindAddress"] = document["metricsBindAddress"] = f"127.0.0.1:{port}"
    file = path / "descheduler.yaml"
    file.write_text(yaml.safe_dump(document))
    options = read(DeschedulerOptions, [f"--config={file}", "--secure-port=0", GATE])
    running = RunningDescheduler(Descheduler(options, config=config), port)
    stack.push_async_callback(running.stop)
    return running


async def test_every_right_of_drains_is_used(
    world: DeschedulerWorld,  # noqa: F811
    descheduler: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the shipped configuration's plugins: a drain needs no profile with MigrationController."""
    for module in (controller, groupcontroller):
        monkeypatch.setattr(module, "SCAVENGER_GRACE_S", 2.0)
    for name in ("n1", "n2"):
        await world.node(name)
    running = await descheduler({**configuration(), "deschedulingInterval": "0s"}, GATE)
    await create(world.admin, "drainnodes", "DrainNode", "short", nodeName="n1", ttl="1s")
    await create(world.admin, "drainnodegroups", "DrainNodeGroup", "g", nodeSelector={}, ttl="4s")

    async def gone() -> bool:
        left = [await world.admin.raw("GET", f"{GROUP}/{plural}") for plural in ("drainnodes", "drainnodegroups")]
        return not any(json.loads(text)["items"] for text in left)

    await until(gone, 60)
    await running.stop()
    rights = granted(DRAIN.rules)
    await until(lambda: not rights - {each for each, _, _ in asked(world.audit, USER)})
    assert {(right, uri) for right, code, uri in asked(world.audit, USER) if code in (401, 403)} == set()
    assert await world.admin.list(Reservation) == [] and await world.admin.list(PodMigrationJob) == []
    assert [node.metadata.name for node in await world.admin.list(Node) if node.metadata.labels.keys() & {"x"}] == []
    assert await world.admin.list(Pod) == []
