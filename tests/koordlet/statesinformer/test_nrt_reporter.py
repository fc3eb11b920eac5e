"""The NodeResourceTopology reporter against the embedded API server: written once, kept right, never in the way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.standalone.apiserver import ApiServer
from koordlet.api import names
from koordlet.api.annotations.topology import CPUBasicInfo
from koordlet.api.core import Node, Pod
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.meta import ObjectMeta
from koordlet.kube import Client, ConnectionFailed, NotFound
from koordlet.prometheus import Registries
from koordlet.statesinformer.nrt.reporter import TopologyReporter
from koordlet.statesinformer.nrt.status import MachineInfo
from koordlet.statesinformer.pods.cpuallocation import allocation_of
from koordlet.statesinformer.pods.kubelet import KubeletError
from koordlet.statesinformer.pods.model import PodMeta
from koordlet.system.cpu.cputopology import Cpu, CpuTopology
from koordlet.system.proc.procfs import NumaMemInfo
from tests.koordlet.statesinformer.reporting import kubectl, outcomes, until_stored
from tests.waiting import until

CPUS = CpuTopology(
    tuple(Cpu(id=i, core=i, socket=i // 4, node=i // 4, l1=None, l2=None, l3=None) for i in range(8)),
    smt=False,
    turbo=False,
)
MACHINE = MachineInfo(CPUS, CPUBasicInfo(cpu_model="m"), {n: NumaMemInfo(n, 1 << 30, 0, 0, {}) for n in range(2)})
GPU = {"name": "koordinator.sh/gpu", "capacity": "100", "allocatable": "50", "available": "50"}


def pod(uid: str, status: str, qos: str) -> PodMeta:
    meta = ObjectMeta(
        name=uid,
        namespace="ns",
        uid=uid,
        annotations={names.ANNOTATION_RESOURCE_STATUS: status},
        labels={names.LABEL_QOS_CLASS: qos},
    )
    pod = Pod(metadata=meta)
    return PodMeta(uid, uid, "ns", qos, "", "Guaranteed", "", (), pod, cpu_allocation=allocation_of(pod))


@dataclass
class World:
    """What the reporter sees, to be changed by tests."""

    client: Client
    node: Node | None
    pods: list[PodMeta] | None = field(default_factory=list)
    machine: MachineInfo | None = MACHINE
    kubelet: dict[str, Any] | Exception = field(default_factory=lambda: {"cpuManagerPolicy": "none"})
    kubelet_dir: Path = Path("/nonexistent")
    notifications: int = 0
    registries: Registries = field(default_factory=Registries)
    reporter: TopologyReporter = field(init=False)

    def make(self, **how: Any) -> TopologyReporter:
        async def ask() -> dict[str, Any]:
            if isinstance(self.kubelet, Exception):
                raise self.kubelet
            return self.kubelet

        def tell() -> None:
            self.notifications += 1

        self.registries.node = "n"
        self.reporter = TopologyReporter(
            self.client, "n", node=lambda: self.node, pods=lambda: self.pods, machine=lambda: self.machine,
            kubelet=ask, kubelet_dir=self.kubelet_dir, registries=self.registries, on_change=tell, **how,
        )  # fmt: skip
        return self.reporter

    async def round(self) -> None:
        """Compute and report."""
        await self.reporter.compute()
        await self.reporter.report()

    async def stored(self) -> NodeResourceTopology:
        return await self.client.get(NodeResourceTopology, "n")

    async def until_stored(self, version: str) -> None:
        await until_stored(self.reporter.stored, version)

    def outcomes(self) -> dict[str, float]:
        return outcomes(self.registries, "node_topology_reports")


@pytest.fixture
async def world(client: Client) -> AsyncIterator[World]:
    node = await client.create(Node(metadata=ObjectMeta(name="n")))
    world = World(client, node)
    await world.make().stored.start()
    await world.reporter.stored.synced.wait()
    yield world
    await world.reporter.stored.stop()


def annotations(topology: NodeResourceTopology) -> dict[str, Any]:  # type: ignore[no-redef]
    return {key: json.loads(text) for key, text in topology.metadata.annotations.items()}


def ls_pools(topology: NodeResourceTopology) -> list[str]:
    return [pool.get("cpuset", "") for pool in annotations(topology)[names.ANNOTATION_CPU_SHARED_POOLS]]  # type: ignore[operator]


def be_pools(topology: NodeResourceTopology) -> list[str]:
    return [pool.get("cpuset", "") for pool in annotations(topology)[names.ANNOTATION_BE_CPU_SHARED_POOLS]]  # type: ignore[operator]


async def test_the_object_is_created_once_and_not_written_without_changes(world: World) -> None:
    await world.round()
    stored = await world.stored()
    (owner,) = stored.metadata.owner_references
    assert world.node is not None
    assert (owner.kind, owner.uid) == ("Node", world.node.metadata.uid)
    assert stored.topology_policies == ["None"]
    await world.until_stored(stored.metadata.resource_version)
    for _ in range(10):
        await world.round()
    assert (await world.stored()).metadata.resource_version == stored.metadata.resource_version
    assert world.outcomes() == {"created": 1}
    assert world.notifications == 1


async def test_pinning_a_pod_takes_its_cpus_from_the_pools(world: World) -> None:
    """From the LS pool always, from the BE pool only for an LSE pod."""
    world.pods = [pod("lsr", '{"cpuset":"0"}', "LSR"), pod("bad", "{", "LSE"), pod("bad2", '{"cpuset":"x"}', "LSE")]
    await world.round()
    stored = await world.stored()
    assert (ls_pools(stored), be_pools(stored)) == (["1-3", "4-7"], ["0-3", "4-7"])
    await world.until_stored(stored.metadata.resource_version)
    world.pods = [pod("lse", '{"cpuset":"0,4"}', "LSE")]
    await world.round()
    now = await world.stored()
    assert (ls_pools(now), be_pools(now)) == (["1-3", "5-7"], ["1-3", "5-7"])
    assert now.metadata.uid == stored.metadata.uid
    assert world.outcomes() == {"created": 1, "updated": 1}
    assert world.notifications == 2
    sizes = {
        f.name: f.samples[0].value for f in world.registries.internal.collect() if f.name.startswith("koordlet_cpuset")
    }
    assert sizes == {"koordlet_cpuset_share_pool_cpu_cores": 6, "koordlet_cpuset_be_share_pool_cpu_cores": 6}


async def test_per_cpu_metrics_are_behind_their_gate(world: World) -> None:
    per_cpu = World(world.client, world.node)
    await per_cpu.make(per_cpu=True).compute()
    for owner, expected in ((world, []), (per_cpu, [str(cpu) for cpu in range(8)])):
        families = [f for f in owner.registries.internal.collect() if f.name == "koordlet_cpuset_share_pool_info"]
        assert [sample.labels["cpu"] for f in families for sample in f.samples] == expected


async def test_a_deleted_object_is_created_again(world: World) -> None:
    await world.round()
    await until(lambda: world.reporter.stored.object is not None)
    await world.client.delete(NodeResourceTopology, "n")
    await until(lambda: world.reporter.stored.object is None)
    await world.round()
    assert (await world.stored()).metadata.owner_references
    assert world.outcomes() == {"created": 2}


async def test_a_stale_copy_is_corrected_by_a_retry(world: World) -> None:
    """The watch is late: deleted, or recreated and changed by others since."""
    await world.round()
    await until(lambda: world.reporter.stored.object is not None)
    await world.reporter.stored.stop()  # its copy stays what it was
    await world.client.delete(NodeResourceTopology, "n")
    world.pods = [pod("lsr", '{"cpuset":"0"}', "LSR")]
    await world.round()
    assert ls_pools(await world.stored()) == ["1-3", "4-7"], "NotFound leads to a new object"
    zones = [
        {"name": "node-0", "type": "Node", "resources": [GPU]}, {"name": "zone-x", "type": "Node"},
    ]  # fmt: skip
    await world.client.patch(NodeResourceTopology, "n", body={"zones": zones})
    world.pods = [pod("lsr", '{"cpuset":"7"}', "LSR")]
    await world.round()
    now = await world.stored()
    assert ls_pools(now) == ["0-3", "4-6"], "Conflict leads to a fresh look"
    assert [zone.name for zone in now.zones] == ["node-0", "node-1"]
    assert "koordinator.sh/gpu" in {resource.name for resource in now.zones[0].resources}


async def test_fields_of_other_writers_are_kept(world: World) -> None:
    await world.round()
    stored = await world.stored()
    zones = json.loads(await _raw(world))["zones"]
    zones[0]["resources"].append(GPU)
    mine = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "zones": zones}
    theirs = await world.client.patch(NodeResourceTopology, "n", body=mine)
    await world.until_stored(theirs.metadata.resource_version)
    await world.round()
    assert (await world.stored()).metadata.resource_version == theirs.metadata.resource_version, "rewritten for nothing"
    assert world.node is not None
    world.node.metadata.labels[names.LABEL_ENABLE_NUMA_RESERVATION] = "true"
    world.node.status.capacity, world.node.status.allocatable = _amounts("8"), _amounts("7")
    await world.round()
    now = await world.stored()
    assert now.metadata.labels["a"] == "b"
    assert now.metadata.annotations["c"] == "d"
    cpu = {r.name: r for r in now.zones[0].resources}
    assert (str(cpu["cpu"].capacity), str(cpu["cpu"].allocatable)) == ("4", "3500m")
    assert str(cpu["koordinator.sh/gpu"].capacity) == "100"
    assert now.metadata.labels[names.LABEL_ENABLE_NUMA_RESERVATION] == "true"
    await world.until_stored(now.metadata.resource_version)
    del world.node.metadata.labels[names.LABEL_ENABLE_NUMA_RESERVATION]
    await world.round()
    gone = await world.stored()
    assert names.LABEL_ENABLE_NUMA_RESERVATION not in gone.metadata.labels
    assert gone.metadata.uid == stored.metadata.uid


def _amounts(cpu: str) -> Any:
    return {"cpu": Quantity(cpu)}


async def _raw(world: World) -> str:
    path = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/n"
    return (await world.client.raw("GET", path)).decode()


UNKNOWN = {
    "no node": ({"node": None}, "node n is not known"),
    "no layout": ({"machine": None}, "CPU and NUMA layout"),
    "no pods yet": ({"pods": None}, "pods are not known"),
    "kubelet away": ({"kubelet": KubeletError("kubelet /configz: HTTP 500")}, "HTTP 500"),
    "kubelet talks nonsense": ({"kubelet": {"cpuManagerPolicy": 7}}, "cpuManagerPolicy"),
}


@pytest.mark.parametrize(("change", "problem"), UNKNOWN.values(), ids=UNKNOWN)
async def test_an_unknown_input_skips_only_the_round(world: World, change: dict[str, Any], problem: str) -> None:
    whole = {name: getattr(world, name) for name in change}
    for name, value in change.items():
        setattr(world, name, value)
    await world.round()
    assert problem in world.reporter.problem  # type: ignore[operator]
    assert world.reporter.local is None
    assert world.outcomes() == {"skipped": 1}
    for name, value in whole.items():
        setattr(world, name, value)
    await world.round()
    assert world.reporter.problem is None
    for name, value in change.items():
        setattr(world, name, value)
    await world.round()
    assert world.reporter.local is not None, "the last status stays in force"


async def test_unused_fields_of_the_kubelet_configuration_are_not_decoded(world: World) -> None:
    """Its type changed in 1.28; any shape will do."""
    world.kubelet = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0", "logging": {"flushFrequency": ["?"]}}
    await world.round()
    policy = annotations(await world.stored())[names.ANNOTATION_CPU_MANAGER_POLICY]  # type: ignore[operator]
    assert policy == {"policy": "static", "reservedCPUs": "0"}


async def test_the_kubelets_state_file(world: World, tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text('{"entries":{"u":{"main":"5-6"}}}')
    static = World(world.client, world.node, kubelet={"cpuManagerPolicy": "static"}, kubelet_dir=tmp_path)
    await static.make().compute()
    assert static.reporter.local is not None
    assert ls_pools(static.reporter.local) == ["0-3", "4,7"]
    (tmp_path / "cpu_manager_state").write_text("{")
    await static.reporter.compute()
    assert "cpu_manager_state" in (static.reporter.problem or "")


async def test_the_local_copy_is_updated_while_the_server_is_unreachable(server: ApiServer, world: World) -> None:
    await world.round()
    await world.until_stored((await world.stored()).metadata.resource_version)
    await server.stop()
    world.pods = [pod("lsr", '{"cpuset":"0"}', "LSR")]
    await world.reporter.compute()
    with pytest.raises(ConnectionFailed):
        await world.reporter.report()
    assert world.reporter.local is not None
    assert ls_pools(world.reporter.local) == ["1-3", "4-7"]
    assert world.notifications == 2
    assert world.outcomes() == {"created": 1, "failed": 1}


async def test_a_skipped_round_writes_nothing(world: World) -> None:
    await world.round()
    await until(lambda: world.reporter.stored.object is not None)
    await world.client.delete(NodeResourceTopology, "n")
    await until(lambda: world.reporter.stored.object is None)
    world.kubelet = KubeletError("kubelet /configz: HTTP 500")
    await world.round()
    with pytest.raises(NotFound):
        await world.stored()


async def test_without_the_gate_only_the_local_copy_is_kept(world: World) -> None:
    quiet = World(world.client, world.node)
    await quiet.make().compute()
    assert quiet.reporter.local is not None
    with pytest.raises(NotFound):
        await world.stored()


@pytest.mark.kubectl
async def test_kubectl_shows_it(server: ApiServer, world: World) -> None:
    world.pods = [pod("lse", '{"cpuset":"2-3"}', "LSE")]
    await world.round()
    shown = yaml.safe_load(await kubectl(server, "get", "node-res-topo", "n", "-o", "yaml"))
    assert shown["metadata"]["labels"] == {names.LABEL_MANAGED_BY: "Koordinator"}
    assert [zone["name"] for zone in shown["zones"]] == ["node-0", "node-1"]
    assert shown["zones"][0]["resources"][0] == {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"}
    pools = json.loads(shown["metadata"]["annotations"][names.ANNOTATION_CPU_SHARED_POOLS])
    assert pools == [{"socket": 0, "node": 0, "cpuset": "0-1"}, {"socket": 1, "node": 1, "cpuset": "4-7"}]
