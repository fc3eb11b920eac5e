"""ReplicaSet, Deployment, DaemonSet, StatefulSet, Job: single calls of reconcile."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.standalone.controllers.daemonset import DaemonSetController, fits
from control.standalone.controllers.deployment import REVISION, DeploymentController, rolling_plan
from control.standalone.controllers.job import INDEX, JobController
from control.standalone.controllers.replicaset import ReplicaSetController
from control.standalone.controllers.statefulset import StatefulSetController
from tests.control.standalone.controllers.conftest import Cluster
from tests.present import present

RS, DEPLOY, DS, STS, JOB = "apps/replicasets", "apps/deployments", "apps/daemonsets", "apps/statefulsets", "batch/jobs"
LABELS = {"app": "a"}


def spec(**more: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    return {"selector": {"matchLabels": LABELS}, "template": template, **more}


async def update(cluster: Cluster, key: str, name: str, **fields: Any) -> dict[str, Any]:
    def change(obj: dict[str, Any]) -> dict[str, Any]:
        obj["spec"].update(fields)
        return obj

    return await cluster.registry.modify(key, "default", name, change)


async def test_a_replica_set_makes_its_pods_and_counts_them(cluster: Cluster) -> None:
    await cluster.create(RS, "r", spec=spec(replicas=3))
    controller = ReplicaSetController(cluster.registry)
    await controller.reconcile(("default", "r"))
    names = cluster.names("/pods")
    assert len(names) == 3
    pod = cluster.find("/pods", names[0])
    assert pod is not None
    assert pod["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"
    assert pod is not None
    assert pod["metadata"]["generateName"] == "r-"
    await cluster.make_ready(names[0])
    await controller.reconcile(("default", "r"))
    status = present(cluster.find(RS, "r"))["status"]
    assert status == {"replicas": 3, "fullyLabeledReplicas": 3, "readyReplicas": 1, "availableReplicas": 1,
                      "observedGeneration": 1}  # fmt: skip


async def test_a_replica_set_deletes_the_least_useful_pods_first(cluster: Cluster) -> None:
    await cluster.create(RS, "r", spec=spec(replicas=3))
    controller = ReplicaSetController(cluster.registry)
    await controller.reconcile(("default", "r"))
    kept = cluster.names("/pods")[1]
    await cluster.make_ready(kept)
    await update(cluster, RS, "r", replicas=1)
    await controller.reconcile(("default", "r"))
    assert cluster.names("/pods") == [kept]


async def test_a_replica_set_adopts_orphans_and_replaces_failed_pods(cluster: Cluster) -> None:
    await cluster.pod("orphan", labels=LABELS)
    await cluster.create(RS, "r", spec=spec(replicas=1))
    controller = ReplicaSetController(cluster.registry)
    await controller.reconcile(("default", "r"))
    assert cluster.names("/pods") == ["orphan"]
    assert present(cluster.find("/pods", "orphan"))["metadata"]["ownerReferences"][0]["name"] == "r"
    await cluster.finish("orphan", "Failed")
    await controller.reconcile(("default", "r"))
    assert len(cluster.names("/pods")) == 2


async def test_min_ready_seconds_delay_availability(cluster: Cluster) -> None:
    await cluster.create(RS, "r", spec=spec(replicas=1, minReadySeconds=30))
    controller = ReplicaSetController(cluster.registry)
    await controller.reconcile(("default", "r"))
    await cluster.make_ready(cluster.names("/pods")[0])
    assert await controller.reconcile(("default", "r")) == 30
    assert "availableReplicas" not in present(cluster.find(RS, "r"))["status"]
    cluster.time.advance(30)
    assert await controller.reconcile(("default", "r")) is None
    assert present(cluster.find(RS, "r"))["status"]["availableReplicas"] == 1


async def settle(
    cluster: Cluster, deployments: DeploymentController, sets: ReplicaSetController, ready: bool = True
) -> None:
    """Reconcile both controllers until nothing changes; new pods become ready."""
    for _ in range(20):
        before = cluster.registry.store.revision
        await deployments.reconcile(("default", "d"))
        for name in cluster.names(RS):
            await sets.reconcile(("default", name))
        for name in cluster.names("/pods"):
            if ready and "conditions" not in present(cluster.find("/pods", name))["status"]:
                await cluster.make_ready(name)
        await cluster.registry.store.committed()
        if cluster.registry.store.revision == before:
            return


async def test_a_deployment_rolls_out_and_back(cluster: Cluster) -> None:
    await cluster.create(DEPLOY, "d", spec=spec(replicas=4))
    deployments, sets = DeploymentController(cluster.registry), ReplicaSetController(cluster.registry)
    await settle(cluster, deployments, sets)
    status = present(cluster.find(DEPLOY, "d"))["status"]
    assert (status["readyReplicas"], status["updatedReplicas"]) == (4, 4)
    assert {c["type"]: c["status"] for c in status["conditions"]} == {"Available": "True", "Progressing": "True"}
    first = cluster.names(RS)
    assert len(first) == 1

    template = present(cluster.find(DEPLOY, "d"))["spec"]["template"]
    template["spec"]["containers"][0]["image"] = "i:2"
    await update(cluster, DEPLOY, "d", template=template)
    await settle(cluster, deployments, sets)
    images = {p["spec"]["containers"][0]["image"] for p in cluster.registry.list("/pods", "default")}
    assert images == {"i:2"}
    assert len(cluster.names("/pods")) == 4
    revisions = {s["metadata"]["name"]: s["metadata"]["annotations"][REVISION] for s in cluster.registry.list(RS)}
    assert sorted(revisions.values()) == ["1", "2"]

    template["spec"]["containers"][0]["image"] = "i:1"
    await update(cluster, DEPLOY, "d", template=template)
    await settle(cluster, deployments, sets)
    assert len(cluster.names(RS)) == 2
    back = cluster.find(RS, first[0])
    assert back is not None
    assert (present(back["spec"])["replicas"], back["metadata"]["annotations"][REVISION]) == (4, "3")
    assert present(cluster.find(DEPLOY, "d"))["metadata"]["annotations"][REVISION] == "3"


async def test_recreate_scales_old_sets_to_zero_first(cluster: Cluster) -> None:
    await cluster.create(DEPLOY, "d", spec=spec(replicas=2, strategy={"type": "Recreate"}))
    deployments, sets = DeploymentController(cluster.registry), ReplicaSetController(cluster.registry)
    await settle(cluster, deployments, sets)
    old = set(cluster.names("/pods"))
    template = present(cluster.find(DEPLOY, "d"))["spec"]["template"]
    template["spec"]["containers"][0]["image"] = "i:2"
    await update(cluster, DEPLOY, "d", template=template)
    await deployments.reconcile(("default", "d"))
    assert set(cluster.names("/pods")) == old
    assert sorted(s["spec"]["replicas"] for s in cluster.registry.list(RS)) == [0, 0]
    await settle(cluster, deployments, sets)
    assert len(cluster.names("/pods")) == 2
    assert not old & set(cluster.names("/pods"))


async def test_a_rollout_without_progress_is_reported(cluster: Cluster) -> None:
    await cluster.create(DEPLOY, "d", spec=spec(replicas=1, progressDeadlineSeconds=60))
    deployments, sets = DeploymentController(cluster.registry), ReplicaSetController(cluster.registry)
    await settle(cluster, deployments, sets, ready=False)
    cluster.time.advance(61)
    await deployments.reconcile(("default", "d"))
    progressing = [c for c in present(cluster.find(DEPLOY, "d"))["status"]["conditions"] if c["type"] == "Progressing"]
    assert (progressing[0]["status"], progressing[0]["reason"]) == ("False", "ProgressDeadlineExceeded")


@settings(deadline=None)
@given(
    st.integers(0, 20), st.integers(0, 5), st.integers(0, 5), st.integers(0, 25),
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), max_size=3), st.integers(0, 25),
)  # fmt: skip
def test_a_rolling_plan_keeps_its_limits(
    desired: int, surge: int, unavailable: int, new: int, old: list[tuple[int, int]], new_available: int
) -> None:
    old = [(size, min(size, ready)) for size, ready in old]
    new_available = min(new, new_available)
    unavailable = min(unavailable, desired)
    grown, sizes = rolling_plan(desired, surge, unavailable, new, old, new_available)
    assert grown <= desired
    assert all(0 <= after <= before for after, (before, _) in zip(sizes, old, strict=True))
    before = new + sum(size for size, _ in old)
    assert grown + sum(sizes) <= max(before, desired + surge)
    serving = min(new_available, grown) + sum(min(r, s) for (_, r), s in zip(old, sizes, strict=True))
    served = min(new_available, desired) + sum(ready for _, ready in old)
    assert serving >= min(served, desired - unavailable)


async def test_a_daemon_set_runs_on_every_selected_node(cluster: Cluster) -> None:
    for name, labels in (("n1", {"disk": "ssd"}), ("n2", {}), ("n3", {"disk": "ssd"})):
        await cluster.create("/nodes", name, metadata={"labels": labels})
    template = spec()
    template["template"]["spec"]["nodeSelector"] = {"disk": "ssd"}
    await cluster.create(DS, "d", spec=template)
    controller = DaemonSetController(cluster.registry)
    await controller.reconcile(("default", "d"))
    pods = cluster.registry.list("/pods", "default")
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["n1", "n3"]
    assert present(cluster.find(DS, "d"))["status"]["desiredNumberScheduled"] == 2
    await cluster.registry.modify("/nodes", None, "n3", lambda n: n["metadata"].pop("labels") and n)
    await controller.reconcile(("default", "d"))
    left = [pod for pod in cluster.registry.list("/pods", "default") if not pod["metadata"].get("deletionTimestamp")]
    assert [pod["spec"]["nodeName"] for pod in left] == ["n1"]


async def test_a_daemon_set_replaces_one_ready_pod_at_a_time(cluster: Cluster) -> None:
    for name in ("n1", "n2"):
        await cluster.create("/nodes", name)
    await cluster.create(DS, "d", spec=spec())
    controller = DaemonSetController(cluster.registry)
    await controller.reconcile(("default", "d"))
    for name in cluster.names("/pods"):
        await cluster.make_ready(name)
    template = present(cluster.find(DS, "d"))["spec"]["template"]
    template["spec"]["containers"][0]["image"] = "i:2"
    await update(cluster, DS, "d", template=template)
    await controller.reconcile(("default", "d"))
    going = [p for p in cluster.registry.list("/pods", "default") if p["metadata"].get("deletionTimestamp")]
    assert len(going) == 1


AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
    {"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["4"]}]},
    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["special"]}]},
]}}}  # fmt: skip


@pytest.mark.parametrize(
    ("pod", "node", "want"),
    [
        ({}, {}, True),
        ({"affinity": AFFINITY}, {"labels": {"cores": "8"}}, True),
        ({"affinity": AFFINITY}, {"labels": {"cores": "4"}}, False),
        ({"affinity": AFFINITY}, {"labels": {"cores": "many"}}, False),
        ({"affinity": AFFINITY}, {"name": "special"}, True),
        ({}, {"taints": [{"key": "k", "effect": "NoSchedule"}]}, False),
        ({}, {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}, True),
        ({}, {"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}, True),
        ({"tolerations": [{"operator": "Exists"}]}, {"taints": [{"key": "k", "effect": "NoExecute"}]}, True),
        ({"tolerations": [{"key": "k", "value": "v"}]}, {"taints": [{"key": "k", "value": "w", "effect": "X"}]}, False),
    ],
)  # fmt: skip
def test_the_nodes_of_a_daemon_set(pod: dict[str, Any], node: dict[str, Any], want: bool) -> None:
    taints = node.pop("taints", [])
    obj = {"metadata": {"name": node.pop("name", "n"), **node}, "spec": {"taints": taints}}
    assert fits(pod, obj) is want


async def test_a_stateful_set_scales_in_order(cluster: Cluster) -> None:
    await cluster.create(STS, "s", spec=spec(replicas=2, serviceName="svc"))
    controller = StatefulSetController(cluster.registry)
    for _ in range(2):
        await controller.reconcile(("default", "s"))
    assert cluster.names("/pods") == ["s-0"]
    await cluster.make_ready("s-0")
    await controller.reconcile(("default", "s"))
    assert cluster.names("/pods") == ["s-0", "s-1"]
    pod = cluster.find("/pods", "s-1")
    assert pod is not None
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("s-1", "svc")
    await cluster.make_ready("s-1")
    await update(cluster, STS, "s", replicas=0)
    await controller.reconcile(("default", "s"))
    assert cluster.names("/pods") == ["s-0"]
    await controller.reconcile(("default", "s"))
    assert cluster.names("/pods") == []


async def test_a_stateful_set_updates_from_the_highest_ordinal_to_the_partition(cluster: Cluster) -> None:
    await cluster.create(STS, "s", spec=spec(replicas=3, podManagementPolicy="Parallel"))
    controller = StatefulSetController(cluster.registry)
    await controller.reconcile(("default", "s"))
    template = present(cluster.find(STS, "s"))["spec"]["template"]
    template["spec"]["containers"][0]["image"] = "i:2"
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    await update(cluster, STS, "s", template=template, updateStrategy=strategy)
    for _ in range(8):
        for name in cluster.names("/pods"):
            await cluster.make_ready(name)
        await controller.reconcile(("default", "s"))
    images = [p["spec"]["containers"][0]["image"] for p in cluster.registry.list("/pods", "default")]
    assert images == ["i:1", "i:2", "i:2"]
    status = present(cluster.find(STS, "s"))["status"]
    assert (status["updatedReplicas"], status["currentReplicas"]) == (2, 1)


def job_spec(**more: Any) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    return {"template": template, **more}


def conditions(cluster: Cluster) -> dict[str, str]:
    rows = present(cluster.find(JOB, "j"))["status"].get("conditions", [])
    return {row["type"]: row["reason"] for row in rows if row["status"] == "True"}


async def test_a_job_runs_to_completion(cluster: Cluster) -> None:
    await cluster.create(JOB, "j", spec=job_spec(completions=3, parallelism=2))
    controller = JobController(cluster.registry)
    await controller.reconcile(("default", "j"))
    first = cluster.names("/pods")
    assert len(first) == 2
    for name in first:
        await cluster.finish(name, "Succeeded")
    await controller.reconcile(("default", "j"))
    assert present(cluster.find(JOB, "j"))["status"]["succeeded"] == 2
    (last,) = set(cluster.names("/pods")) - set(first)
    await cluster.finish(last, "Succeeded")
    await controller.reconcile(("default", "j"))
    status = present(cluster.find(JOB, "j"))["status"]
    assert conditions(cluster)["Complete"] == "CompletionsReached"
    assert status["completionTime"]
    assert "active" not in status


async def test_a_job_backs_off_and_fails_at_its_limit(cluster: Cluster) -> None:
    await cluster.create(JOB, "j", spec=job_spec(backoffLimit=1))
    controller = JobController(cluster.registry)
    await controller.reconcile(("default", "j"))
    (name,) = cluster.names("/pods")
    ended = {"name": "c", "image": "i", "imageID": "", "ready": False, "restartCount": 0,
             "state": {"terminated": {"exitCode": 1, "finishedAt": "2027-01-15T08:00:00Z"}}}  # fmt: skip
    await cluster.status("/pods", name, phase="Failed", containerStatuses=[ended])
    assert await controller.reconcile(("default", "j")) == 10
    assert cluster.names("/pods") == [name]
    cluster.time.advance(10)
    await controller.reconcile(("default", "j"))
    (second,) = set(cluster.names("/pods")) - {name}
    await cluster.finish(second, "Failed")
    await controller.reconcile(("default", "j"))
    assert conditions(cluster) == {"Failed": "BackoffLimitExceeded"}


async def test_a_job_respects_its_deadline_suspension_and_ttl(cluster: Cluster) -> None:
    await cluster.create(JOB, "j", spec=job_spec(activeDeadlineSeconds=60, ttlSecondsAfterFinished=5))
    controller = JobController(cluster.registry)
    assert await controller.reconcile(("default", "j")) is None
    assert await controller.reconcile(("default", "j")) == 60
    await update(cluster, JOB, "j", suspend=True)
    await controller.reconcile(("default", "j"))
    assert cluster.names("/pods") == []
    assert conditions(cluster) == {"Suspended": "JobSuspended"}
    await update(cluster, JOB, "j", suspend=False)
    await controller.reconcile(("default", "j"))
    cluster.time.advance(61)
    await controller.reconcile(("default", "j"))
    assert conditions(cluster) == {"Failed": "DeadlineExceeded"}
    assert await controller.reconcile(("default", "j")) == 5
    cluster.time.advance(5)
    await controller.reconcile(("default", "j"))
    assert cluster.find(JOB, "j") is None


async def test_indexed_jobs_number_their_pods(cluster: Cluster) -> None:
    await cluster.create(JOB, "j", spec=job_spec(completions=3, parallelism=3, completionMode="Indexed"))
    controller = JobController(cluster.registry)
    await controller.reconcile(("default", "j"))
    pods = {p["metadata"]["annotations"][INDEX]: p for p in cluster.registry.list("/pods", "default")}
    assert sorted(pods) == ["0", "1", "2"]
    assert pods["2"]["spec"]["containers"][0]["env"] == [{"name": "JOB_COMPLETION_INDEX", "value": "2"}]
    for index in ("0", "1"):
        await cluster.finish(pods[index]["metadata"]["name"], "Succeeded")
    await controller.reconcile(("default", "j"))
    assert present(cluster.find(JOB, "j"))["status"]["completedIndexes"] == "0-1"
