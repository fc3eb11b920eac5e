"""The Node object, its lease, and a kubelet with an intermittent API server."""

from __future__ import annotations

from typing import Any

import pytest

from control.standalone.kubelet.node.machine import MachineCapacity, MachineError, read_machine
from control.standalone.kubelet.node.status import ReservationError, resources
from koordlet.api.encoding.quantity import Quantity

NODE = "/api/v1/nodes/n1"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
MAIN = {"name": "main", "image": "busybox", "command": ["sleep", "1d"]}


async def test_registration_has_the_machines_resources(world: Any) -> None:
    node = world.api.objects[NODE]
    labels = node["metadata"]["labels"]
    assert labels["kubernetes.io/hostname"] == "n1"
    assert (labels["kubernetes.io/os"], labels["kubernetes.io/arch"]) == ("linux", "amd64")
    status = node["status"]
    assert status["capacity"] == {
        "cpu": "4",
        "memory": "16Gi",
        "ephemeral-storage": "100Gi",
        "pods": "110",
        "hugepages-2Mi": "0",
    }
    assert status["allocatable"] == {
        "cpu": "3500m",
        "memory": "15260Mi",  # 16 Gi - 1 Gi reserved - 100 Mi threshold
        "ephemeral-storage": "90Gi",
        "pods": "110",
        "hugepages-2Mi": "0",
    }
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}
    assert {"type": "InternalIP", "address": "127.0.0.1"} in status["addresses"]
    assert status["nodeInfo"]["kernelVersion"] == "6.1.0"
    assert status["nodeInfo"]["containerRuntimeVersion"] == "fake://0"
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "Ready": "True",
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
    }


async def test_lease_is_renewed_every_ten_seconds(world: Any) -> None:
    await world.advance(1)
    lease = world.api.objects[LEASE]
    assert lease["spec"]["holderIdentity"] == "n1"
    assert lease["spec"]["leaseDurationSeconds"] == 40
    assert lease["metadata"]["ownerReferences"][0]["uid"] == world.api.objects[NODE]["metadata"]["uid"]
    first = lease["spec"]["renewTime"]
    await world.advance(11)
    assert world.api.objects[LEASE]["spec"]["renewTime"] > first


async def test_fields_of_other_components_stay_on_the_node(world: Any, pod: Any) -> None:
    status = world.api.objects[NODE]["status"]
    for side in ("capacity", "allocatable"):
        status[side]["kubernetes.io/batch-cpu"] = "2000"
    status["conditions"].append({"type": "NetworkUnavailable", "status": "False"})
    status["allocatable"]["cpu"] = "1"  # the kubelet's own: restored
    await world.advance(700)
    status = world.api.objects[NODE]["status"]
    assert status["allocatable"]["kubernetes.io/batch-cpu"] == "2000"
    assert status["allocatable"]["cpu"] == "3500m"
    assert "NetworkUnavailable" in {c["type"] for c in status["conditions"]}


async def test_an_unchanged_status_is_sent_every_five_minutes(world: Any) -> None:
    await world.advance(15)
    world.api.calls.clear()
    await world.advance(280)
    assert [c for c in world.api.calls if c[1] == f"{NODE}/status"] == []
    await world.advance(60)
    assert len([c for c in world.api.calls if c[1] == f"{NODE}/status"]) == 1


@pytest.mark.parametrize(("batch_cpu", "phase"), [("2000", "Running"), ("2001", "Failed")])
async def test_admission_reads_the_node_again_before_a_rejection(
    world: Any, pod: Any, batch_cpu: str, phase: str
) -> None:
    # The manager's write has not arrived by the watch yet; before a rejection the Node is read again.
    world.api.objects[NODE]["status"]["allocatable"]["kubernetes.io/batch-cpu"] = "2000"
    resources = {"requests": {"kubernetes.io/batch-cpu": batch_cpu}}
    world.api.create_pod(pod(containers=[{**MAIN, "resources": resources}]))
    await world.settle()
    assert world.status("web")["phase"] == phase
    if phase == "Failed":
        assert world.status("web")["reason"] == "OutOfkubernetes.io/batch-cpu"


async def test_an_existing_node_keeps_its_labels(world: Any) -> None:
    node = world.api.objects[NODE]
    node["metadata"]["labels"] = {"mine": "yes"}
    await world.restart()
    assert world.api.objects[NODE]["metadata"]["labels"]["mine"] == "yes"
    assert world.api.objects[NODE]["metadata"]["labels"]["kubernetes.io/os"] == "linux"
    assert world.api.objects[NODE]["metadata"]["uid"] == node["metadata"]["uid"]


async def test_pods_are_managed_while_the_api_server_is_unavailable(world: Any, pod: Any) -> None:
    world.api.create_pod(pod("stays"))
    world.api.create_pod(pod("ends", restartPolicy="Never", containers=[{**MAIN, "name": "job"}]))
    await world.settle()
    world.api.away = True
    world.runtime.exit("job", 0)
    world.runtime.exit("main", 1)
    await world.advance(400)
    assert world.runtime.find("main").running, "restarts need no API server"
    assert world.runtime.starts("main") == 2
    world.api.away = False
    await world.advance(15)
    assert world.status("ends")["phase"] == "Succeeded"
    assert world.container("stays")["restartCount"] == 1
    assert {c["type"]: c["status"] for c in world.api.objects[NODE]["status"]["conditions"]}["Ready"] == "True"


async def test_a_kubelet_without_api_server_manages_its_stored_pods(world: Any, pod: Any) -> None:
    world.api.create_pod(pod())
    await world.settle()
    world.api.away = True
    await world.restart()
    world.runtime.exit("main", 1)
    await world.advance(30)
    assert world.runtime.find("main").running
    world.api.away = False
    world.api.sync()
    await world.advance(30)
    assert world.container("web")["restartCount"] == 1


async def test_a_deletion_is_finished_when_the_api_server_is_back(world: Any, pod: Any) -> None:
    world.api.create_pod(pod())
    await world.settle()
    world.api.delete_pod("web")
    world.api.away = True
    await world.advance(60)
    assert world.runtime.find("main").exit_code == 143
    assert world.kubelet.workers, "the worker stays until the object is deleted"
    world.api.away = False
    await world.advance(15)
    assert world.api.pod("web") is None
    assert world.kubelet.workers == {}


async def test_a_lost_status_is_sent_again(world: Any, pod: Any) -> None:
    world.api.create_pod(pod())
    await world.settle()
    stored = world.api.pod("web")
    stored["status"] = {"phase": "Pending"}
    world.kubelet.pod_seen(stored)
    await world.settle()
    assert world.status("web")["phase"] == "Running"


async def test_conditions_of_others_stay_and_gate_readiness(world: Any, pod: Any) -> None:
    world.api.create_pod(pod(readinessGates=[{"conditionType": "example.com/gate"}]))
    await world.settle()
    assert world.condition("web", "ContainersReady") == "True"
    assert world.condition("web", "Ready") == "False"
    stored = world.api.pod("web")
    stored["status"]["conditions"].append({"type": "example.com/gate", "status": "True"})
    world.kubelet.pod_seen(stored)
    await world.settle()
    assert world.condition("web", "Ready") == "True"
    assert world.condition("web", "example.com/gate") == "True"


MACHINE = MachineCapacity(2, 1 << 30, 1 << 40, {2 << 20: 64 << 20}, "h", "k", "o", "amd64", "", "", "")


def test_huge_pages_are_not_ordinary_memory() -> None:
    node_resources = resources(MACHINE, 10, {}, {}, 0, 0)
    assert str(node_resources.capacity["hugepages-2Mi"]) == "64Mi"
    assert node_resources.allocatable["memory"].value() == (1 << 30) - (64 << 20)


@pytest.mark.parametrize(
    ("reserved", "text"),
    [({"cpu": "3"}, "cannot reserve 3 of cpu: only 2 is available"), ({"gpu": "1"}, "cannot reserve 'gpu'")],
)
def test_impossible_reservations_are_rejected(reserved: Any, text: str) -> None:
    amounts = {k: Quantity(v) for k, v in reserved.items()}
    with pytest.raises(ReservationError, match=text):
        resources(MACHINE, 10, amounts, {}, 0, 0)


def test_reading_a_machine(tmp_path: Any) -> None:
    proc, sys, etc = (tmp_path / n for n in ("proc", "sys", "etc"))
    for folder in (proc, sys / "devices/system/cpu", sys / "kernel/mm/hugepages/hugepages-2048kB", etc):
        folder.mkdir(parents=True)
    (proc / "meminfo").write_text("MemFree: 1 kB\nMemTotal:       2048 kB\n")
    (sys / "devices/system/cpu/online").write_text("0-3,8,10-11\n")
    (sys / "kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").write_text("4\n")
    (etc / "os-release").write_text('NAME="x"\nPRETTY_NAME="Some Linux 1"\n')
    machine = read_machine(tmp_path, proc, sys, etc)
    assert (machine.cpus, machine.memory) == (7, 2 << 20)
    assert machine.hugepages == {2 << 20: 8 << 20}
    assert machine.os_image == "Some Linux 1"
    assert machine.machine_id == ""
    (proc / "meminfo").write_text("nothing\n")
    with pytest.raises(MachineError, match="no MemTotal"):
        read_machine(tmp_path, proc, sys, etc)
