"""Disruption budgets and the eviction gate, nodes without heartbeat, taint eviction, orphaned pods."""

from typing import Any

import pytest

from control.standalone.controllers.disruption import PDB, DisruptionController, eviction_gate
from control.standalone.controllers.nodes import (
    LEASE_NAMESPACE,
    LEASES,
    NOT_READY,
    UNREACHABLE,
    NodeLifecycle,
    TaintEviction,
    desired_taints,
    eviction_time,
)
from control.standalone.controllers.podgc import PodGarbage
from control.standalone.errors import StatusError
from tests.control.standalone.controllers.conftest import Cluster
from tests.present import present

LABELS = {"app": "a"}


async def budget(cluster: Cluster, **spec: Any) -> dict[str, Any]:
    await cluster.create(PDB, "b", spec={"selector": {"matchLabels": LABELS}, **spec})
    await DisruptionController(cluster.registry).reconcile(("default", "b"))
    result: dict[str, Any] = present(cluster.find(PDB, "b"))["status"]
    return result


async def owned_pods(cluster: Cluster, replicas: int, ready: int) -> None:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template}
    owner = await cluster.create("apps/replicasets", "r", spec=spec)
    for n in range(replicas):
        await cluster.pod(f"p{n}", owner=owner, labels=LABELS, ready=n < ready)


@pytest.mark.parametrize(
    ("spec", "replicas", "ready", "want"),
    [
        ({"minAvailable": 2}, 3, 3, (3, 2, 3, 1)),
        ({"minAvailable": 2}, 3, 2, (3, 2, 2, 0)),
        ({"minAvailable": "50%"}, 3, 3, (3, 2, 3, 1)),
        ({"maxUnavailable": 1}, 3, 3, (3, 2, 3, 1)),
        ({"maxUnavailable": 1}, 3, 2, (3, 2, 2, 0)),
        ({"maxUnavailable": "50%"}, 3, 3, (3, 1, 3, 2)),
        ({"minAvailable": 0}, 0, 0, (0, 0, 0, 0)),
    ],
    ids=str,
)
async def test_the_numbers_of_a_budget(
    cluster: Cluster, spec: dict[str, Any], replicas: int, ready: int, want: tuple[int, int, int, int]
) -> None:
    await owned_pods(cluster, replicas, ready)
    status = await budget(cluster, **spec)
    fields = ("expectedPods", "desiredHealthy", "currentHealthy", "disruptionsAllowed")
    assert tuple(status[field] for field in fields) == want
    assert status["observedGeneration"] == 1
    (condition,) = status["conditions"]
    assert condition["status"] == str(want[3] > 0)


async def test_a_share_of_unowned_pods_cannot_be_computed(cluster: Cluster) -> None:
    await cluster.pod("p", labels=LABELS, ready=True)
    status = await budget(cluster, maxUnavailable=1)
    assert status["disruptionsAllowed"] == 0
    assert status["conditions"][0]["reason"] == "SyncFailed"
    assert status["conditions"][0]["message"] == 'found no controllers for pod "p"'


async def test_the_gate_uses_up_the_budget_and_then_rejects(cluster: Cluster) -> None:
    await owned_pods(cluster, 3, 3)
    await budget(cluster, minAvailable=2)
    await eviction_gate(cluster.registry, present(cluster.find("/pods", "p0")), dry_run=False)
    status = present(cluster.find(PDB, "b"))["status"]
    assert status["disruptionsAllowed"] == 0
    assert list(status["disruptedPods"]) == ["p0"]
    with pytest.raises(StatusError) as caught:
        await eviction_gate(cluster.registry, present(cluster.find("/pods", "p1")), dry_run=False)
    error = caught.value
    assert (error.code, error.message) == (429, "Cannot evict pod as it would violate the pod's disruption budget.")
    message = "The disruption budget b needs 2 healthy pods and has 3 currently"
    assert error.details["causes"] == [{"reason": "DisruptionBudget", "message": message}]


async def test_an_evicted_pod_counts_as_disrupted_for_a_limited_time(cluster: Cluster) -> None:
    await owned_pods(cluster, 3, 3)
    await budget(cluster, minAvailable=2)
    await eviction_gate(cluster.registry, present(cluster.find("/pods", "p0")), dry_run=False)
    controller = DisruptionController(cluster.registry)
    assert await controller.reconcile(("default", "b")) == 120
    assert present(cluster.find(PDB, "b"))["status"]["disruptionsAllowed"] == 0
    cluster.time.advance(121)
    await controller.reconcile(("default", "b"))
    status = present(cluster.find(PDB, "b"))["status"]
    assert status["disruptionsAllowed"] == 1
    assert "disruptedPods" not in status


async def test_the_gate_allows_dry_runs_and_unready_pods(cluster: Cluster) -> None:
    await owned_pods(cluster, 3, 2)
    await budget(cluster, minAvailable=1)
    await eviction_gate(cluster.registry, present(cluster.find("/pods", "p0")), dry_run=True)
    assert present(cluster.find(PDB, "b"))["status"]["disruptionsAllowed"] == 1
    await eviction_gate(cluster.registry, present(cluster.find("/pods", "p2")), dry_run=False)
    assert present(cluster.find(PDB, "b"))["status"]["disruptionsAllowed"] == 1


async def test_the_gate_rejects_unobserved_budgets_and_two_budgets(cluster: Cluster) -> None:
    await owned_pods(cluster, 1, 1)
    await cluster.create(PDB, "new", spec={"selector": {"matchLabels": LABELS}, "minAvailable": 0})
    with pytest.raises(StatusError) as caught:
        await eviction_gate(cluster.registry, present(cluster.find("/pods", "p0")), dry_run=False)
    assert caught.value.retry_after == 10
    await budget(cluster, minAvailable=0)
    with pytest.raises(StatusError, match="more than one PodDisruptionBudget") as caught:
        await eviction_gate(cluster.registry, present(cluster.find("/pods", "p0")), dry_run=False)
    assert caught.value.code == 500


async def node(cluster: Cluster, name: str = "n", ready: str = "True") -> None:
    row = {"type": "Ready", "status": ready, "reason": "KubeletReady", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    await cluster.create("/nodes", name, status={"conditions": [row]})
    await cluster.create(LEASES, name, LEASE_NAMESPACE, spec={"renewTime": "2026-01-01T00:00:00.000000Z"})


def taints(cluster: Cluster, name: str = "n") -> set[tuple[str, str]]:
    node_taints = present(cluster.find("/nodes", name)).get("spec", {}).get("taints", [])
    return {(each["key"], each["effect"]) for each in node_taints}


async def renew(cluster: Cluster, moment: str) -> None:
    change = {"renewTime": f"2026-01-01T00:{moment}:00.000000Z"}
    await cluster.registry.modify(LEASES, LEASE_NAMESPACE, "n", lambda o: {**o, "spec": change})


async def test_a_node_without_heartbeat_becomes_unknown_until_it_returns(cluster: Cluster) -> None:
    await node(cluster)
    await cluster.pod("p", nodeName="n", ready=True)
    controller = NodeLifecycle(cluster.registry, cluster.time)
    assert await controller.reconcile(("", "n")) == 40
    cluster.time.advance(30)
    await renew(cluster, "01")
    assert await controller.reconcile(("", "n")) == 40
    cluster.time.advance(39)
    await controller.reconcile(("", "n"))
    assert taints(cluster) == set()
    cluster.time.advance(1)
    await controller.reconcile(("", "n"))
    rows = {c["type"]: c for c in present(cluster.find("/nodes", "n"))["status"]["conditions"]}
    assert rows["Ready"]["status"] == "Unknown"
    assert rows["Ready"]["reason"] == "NodeStatusUnknown"
    assert rows["MemoryPressure"]["status"] == "Unknown"
    assert taints(cluster) == {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")}
    assert present(cluster.find("/pods", "p"))["status"]["conditions"][0]["status"] == "False"

    await renew(cluster, "02")
    back = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": "2026-01-01T00:02:00Z"}
    await cluster.status("/nodes", "n", conditions=[back])
    await controller.reconcile(("", "n"))
    assert taints(cluster) == set()


async def test_the_pods_of_a_silent_node_are_read_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await node(cluster)
    await cluster.pod("p", nodeName="n", ready=True)
    controller = NodeLifecycle(cluster.registry, cluster.time)
    listed: list[str] = []
    read = cluster.registry.store.list

    def counted(kind: str, *namespace: str) -> Any:
        listed.append(kind)
        return read(kind, *namespace)

    monkeypatch.setattr(cluster.registry.store, "list", counted)

    async def silent_for(rounds: int) -> None:
        await controller.reconcile(("", "n"))
        for _ in range(rounds):
            cluster.time.advance(40)
            await controller.reconcile(("", "n"))

    await silent_for(3)
    assert listed.count("/pods") == 1
    await renew(cluster, "01")  # it is back, and its kubelet reports its pod
    ready = [{"type": "Ready", "status": "True"}]
    await cluster.status("/pods", "p", conditions=ready)
    await silent_for(2)
    assert listed.count("/pods") == 2
    assert present(cluster.find("/pods", "p"))["status"]["conditions"][0]["status"] == "False"


async def test_a_restarted_controller_waits_the_full_grace_period(cluster: Cluster) -> None:
    await node(cluster)
    cluster.time.advance(3600)
    assert await NodeLifecycle(cluster.registry, cluster.time).reconcile(("", "n")) == 40
    assert taints(cluster) == set()


def conditions(**statuses: Any) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status} for kind, status in statuses.items()]}


BOTH = {(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")}
CORDONED_AND_FULL = {
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
}


@pytest.mark.parametrize(
    ("obj", "want"),
    [
        ({"status": conditions(Ready="True")}, set()),
        ({"status": conditions(Ready="False")}, BOTH),
        ({}, {(NOT_READY, "NoSchedule")}),
        ({"spec": {"unschedulable": True}, "status": conditions(Ready="True", DiskPressure="True")}, CORDONED_AND_FULL),
    ],
    ids=["ready", "not ready", "never heard of", "cordoned and full"],
)
def test_taints_follow_conditions(obj: dict[str, Any], want: set[tuple[str, str]]) -> None:
    assert {(each["key"], each["effect"]) for each in desired_taints(obj)} == want


async def test_taints_of_other_components_are_not_changed(cluster: Cluster) -> None:
    await node(cluster, ready="False")
    own = {"key": "mine", "effect": "NoSchedule"}
    await cluster.registry.modify("/nodes", None, "n", lambda o: {**o, "spec": {"taints": [own]}})
    await NodeLifecycle(cluster.registry, cluster.time).reconcile(("", "n"))
    assert ("mine", "NoSchedule") in taints(cluster)
    assert (NOT_READY, "NoExecute") in taints(cluster)


NO_EXECUTE = {"key": "k", "effect": "NoExecute", "timeAdded": "1970-01-01T00:00:10Z"}


@pytest.mark.parametrize(
    ("tolerations", "want"),
    [
        ([], 100.0),
        ([{"key": "k", "operator": "Exists"}], None),
        ([{"key": "k", "operator": "Exists", "tolerationSeconds": 300}], 310.0),
        ([{"key": "k", "operator": "Exists", "tolerationSeconds": 0}], 10.0),
        ([{"operator": "Exists", "effect": "NoSchedule"}], 100.0),
        ([{"key": "k", "operator": "Equal", "value": "x"}], 100.0),
    ],
    ids=["none", "permanently", "for a while", "not at all", "other effect", "other value"],
)
def test_the_eviction_time_of_a_pod(tolerations: list[dict[str, Any]], want: float | None) -> None:
    assert eviction_time({"spec": {"tolerations": tolerations}}, [NO_EXECUTE], now=100.0) == want


async def test_pods_are_deleted_from_a_tainted_node_after_their_toleration(cluster: Cluster) -> None:
    await cluster.create("/nodes", "n")
    await cluster.pod("p", nodeName="n")
    taint = {"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": "2027-01-15T08:00:00Z"}
    await cluster.registry.modify("/nodes", None, "n", lambda o: {**o, "spec": {"taints": [taint]}})
    controller = TaintEviction(cluster.registry)
    assert await controller.reconcile(("default", "p")) == 300
    cluster.time.advance(300)
    await controller.reconcile(("default", "p"))
    assert present(cluster.find("/pods", "p"))["metadata"]["deletionTimestamp"]


async def test_pods_of_a_deleted_node_are_removed_after_the_quarantine(cluster: Cluster) -> None:
    await cluster.create("/nodes", "n")
    await cluster.pod("p", nodeName="n")
    controller = PodGarbage(cluster.registry, cluster.time)
    assert await controller.reconcile(("default", "p")) is None
    await cluster.registry.delete("/nodes", None, "n")
    assert await controller.reconcile(("default", "p")) == 40
    cluster.time.advance(20)
    assert await controller.reconcile(("default", "p")) == 20
    cluster.time.advance(20)
    await controller.reconcile(("default", "p"))
    assert cluster.find("/pods", "p") is None
