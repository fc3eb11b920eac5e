"""The manager with its own roles: no request is refused, and every permission is used."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import yaml

from control.manager import manifests, rights
from control.manager.caches import Caches
from control.manager.recommender.model import ContainerModel
from control.manager.recommender.settings import RecommenderSettings
from control.manager.recommender.status import confident
from koordlet.api.core import Namespace, Pod, PriorityClass
from koordlet.api.crs.analysis import Recommendation
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.api.crs.slo import NodeMetric, NodeMetricInfo, NodeMetricStatus, ResourceMap
from koordlet.api.crs.topology import NodeResourceTopology, ResourceInfo, Zone
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Time, to_builtins
from koordlet.api.meta import ObjectMeta
from koordlet.kube import KubeError
from tests.rights import Right, asked, granted
from tests.waiting import until

ROOT = Path(__file__).parents[3]
USER = f"system:serviceaccount:koordinator-system:{manifests.ACCOUNT}"
GATES = ",".join(
    f"{gate}=true"
    for gate in (
        "NodeMutatingWebhook", "NodeValidatingWebhook", "ConfigMapValidatingWebhook", "ReservationMutatingWebhook",
        "ColocationProfileController", "EnablePodEnhancedValidator", "MultiQuotaTree", "BindingAdmissionWebhook",
        "EnableQuotaAdmission", "Recommender", "JobQueueing",
    )
)  # fmt: skip
MERGE = "application/merge-patch+json"
FEATURES = [rule for feature in rights.FEATURES for rule in feature.rules]
GRANTED = granted((*manifests.RULES, *manifests.NAMESPACE_RULES, *FEATURES))


async def test_every_call_is_allowed_and_every_permission_is_used(cluster: Any, manager: Any) -> None:
    await cluster.nodes("n1", "n2")
    await recommended(cluster)
    running = await manager(
        f"--feature-gates={GATES}", "--colocation-profile-reconcile-by-default=true",
        "--colocation-profile-reconcile-interval=200ms", "--recommender-sample-interval=200ms",
        "--recommender-eviction-minimum-age=0s", "--page-authorization=delegated",
    )  # fmt: skip
    async with aiohttp.ClientSession() as session:  # a caller without rights: a review of the token and one of the path
        headers = {"Authorization": f"Bearer {await cluster.token('default')}"}
        url = f"{running.manager.pages['metrics'].url}/all-metrics"
        async with session.get(url, headers=headers, ssl=False) as response:
            assert response.status == 403
    await until(lambda: cluster.spec("nodeslos", "n1"))
    await exercise(cluster, running.manager.context.caches)

    def unused(without: str = "") -> set[Right]:
        used = {right for right, _, _ in asked(cluster.audit, USER)}
        return {right for right in GRANTED - used if right[2] != without}

    try:
        await until(lambda: not unused(without="watch"))  # a watch is in the audit log when it ends
    except TimeoutError:
        pass  # message below
    await running.stop()
    await until(lambda: not any(verb == "watch" for _, _, verb in unused()))
    assert not unused(), "granted and never used"
    refused = {(right, uri) for right, code, uri in asked(cluster.audit, USER) if code in (401, 403)}
    assert not refused
    assert {right for right, _, _ in asked(cluster.audit, USER)} <= GRANTED


async def exercise(cluster: Any, caches: Caches) -> None:
    """Bring about everything that the manager may want to write or read."""
    raw = cluster.admin.raw
    slo = "/apis/slo.koordinator.sh/v1alpha1"
    # an Event, a NodeMetric and a NodeSLO that change and go
    await raw("PATCH", f"{slo}/nodemetrics/n1", body={"spec": {"metricCollectPolicy": None}}, content_type=MERGE)
    await raw("PATCH", f"{slo}/nodeslos/n1", body={"spec": {"cpuBurstStrategy": None}}, content_type=MERGE)
    await raw("DELETE", "/api/v1/nodes/n2")
    # an Event that is sent, and then again
    await say_no_config(cluster)
    # a certificate that must be replaced
    secret = f"/api/v1/namespaces/koordinator-system/secrets/{manifests.DEFAULTS.secret_name}"
    await raw("PATCH", secret, body={"data": {"cert.pem": "eA=="}}, content_type=MERGE)
    await lend(cluster)
    await quotas(cluster)
    # a profile that is applied to a pod that waits for a node
    # in a namespace and under a PriorityClass that no cache has heard of yet
    await caches.informer(Namespace).stop()
    await caches.informer(PriorityClass).stop()
    await raw("POST", "/api/v1/namespaces", body={"metadata": {"name": "jobs", "labels": {"jobs": "yes"}}})
    fresh = {"metadata": {"name": "fresh"}, "value": 9100}
    await raw("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body=fresh)
    await until(lambda: cluster.get("/api/v1/namespaces/jobs/serviceaccounts/default"))
    pod = {
        "metadata": {"name": "p", "labels": {"app": "p"}},
        "spec": {"priorityClassName": "koord-prod", "containers": [{"name": "c", "image": "i"}]},
    }
    await raw("POST", "/api/v1/namespaces/jobs/pods", body=pod)
    await caches.informer(Namespace).start()
    profile = {
        "apiVersion": "config.koordinator.sh/v1alpha1",
        "kind": "ClusterColocationProfile",
        "metadata": {"name": "all"},
        "spec": {
            "namespaceSelector": {"matchLabels": {"jobs": "yes"}},
            "selector": {"matchLabels": {"app": "p"}},
            "labels": {"touched": "yes"},
            "priorityClassName": "fresh",
        },
    }
    await raw("POST", "/apis/config.koordinator.sh/v1alpha1/clustercolocationprofiles", body=profile)
    profiles = caches.informer(ClusterColocationProfile)
    await until(lambda: profiles.list())
    again = {**pod, "metadata": {**pod["metadata"], "name": "q"}}  # type: ignore[dict-item]
    await raw("POST", "/api/v1/namespaces/jobs/pods", body=again)
    await keep_quota(cluster)
    await recommend(cluster, caches)
    await wait_in_queue(cluster)


WORKLOADS = (("Deployment", "apps/v1"), ("CronJob", "batch/v1"))


async def recommended(cluster: Any) -> None:
    """What a manager of before has recommended: to be there when the next one begins, which writes what it knows."""
    raw, model = cluster.admin.raw, ContainerModel(RecommenderSettings())
    model.add(np.ones(2), np.ones(2), np.array([time.time() - 864_000, time.time() - 1200]))
    for kind, version in WORKLOADS:
        name = kind.lower()
        meta = {"name": name, "annotations": {"analysis.koordinator.sh/update-mode": "Auto"}}
        spec = {"target": {"type": "workload", "workload": {"kind": kind, "name": name, "apiVersion": version}}}
        path = "/apis/analysis.koordinator.sh/v1alpha1/namespaces/default/recommendations"
        recommendation = {"apiVersion": "analysis.koordinator.sh/v1alpha1", "kind": "Recommendation"}
        await raw("POST", path, body={**recommendation, "metadata": meta, "spec": spec})
        pod_status = {"containerStatuses": [{"containerName": "c", "resources": {"cpu": "1", "memory": "1Gi"}}]}
        status = {"podStatus": pod_status, "checkpoint": [to_builtins(model.checkpoint("c"))]}
        await raw("PATCH", f"{path}/{name}/status", body={"status": status}, content_type=MERGE)


async def recommend(cluster: Any, caches: Caches) -> None:
    """Pods whose requests are far off, and new ones under controllers that no cache has heard of."""
    raw = cluster.admin.raw
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "4"}}}
    template = {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [container]}}
    workload = {"replicas": 2, "selector": {"matchLabels": {"app": "d"}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "deployment"}, "spec": workload}
    await raw("POST", "/apis/apps/v1/namespaces/default/deployments", body=body)
    await until(lambda: sum(pod.metadata.labels.get("app") == "d" for pod in caches.informer(Pod).list()) == 2)
    for kind, version in WORKLOADS:
        name = kind.lower()
        informer = caches.informer(Recommendation)
        await until(lambda name=name, known=informer: confident(known.get(f"default/{name}").status))
        between = {"apiVersion": version, "kind": {"Deployment": "ReplicaSet", "CronJob": "Job"}[kind]}
        owner = {**between, "name": "unheard-of", "uid": "1", "controller": True}
        pod = {"metadata": {"name": f"of-{name}", "ownerReferences": [owner]}, "spec": {"containers": [container]}}
        await raw("POST", "/api/v1/namespaces/default/pods", body=pod)


async def wait_in_queue(cluster: Any) -> None:
    """A job that is suspended, waits in a Queue, and changes meanwhile; and one without requests, which its
    quota admits: these nodes have no CPUs."""
    raw, queueing = cluster.admin.raw, "/apis/scheduling.x-k8s.io/v1alpha1/namespaces"
    queue = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "Queue", "metadata": {"name": "batch"}}
    await raw("POST", f"{queueing}/koordinator-system/queues", body=queue)
    amounts = {"cpu": "2", "memory": "1Gi"}
    quota = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": "team"}}
    quotas = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas"
    await raw("POST", quotas, body={**quota, "spec": {"min": amounts, "max": amounts}})
    jobs, unit = "/apis/batch/v1/namespaces/default/jobs", f"{queueing}/default/queueunits/waits"
    for name, queue_name, cpu in (("waits", "batch", "100"), ("starts", "team", "0")):
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}}
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        meta = {"name": name, "annotations": {"kube-queue/queue-name": queue_name}}
        await raw("POST", jobs, body={"metadata": meta, "spec": {"template": template, "parallelism": 1}})
    await until(lambda: cluster.get(unit))

    async def is_resumed() -> bool:
        return (await cluster.get(f"{jobs}/starts"))["spec"]["suspend"] is False

    await until(is_resumed)
    await raw("PATCH", f"{jobs}/waits", body={"spec": {"parallelism": 2}}, content_type=MERGE)


async def keep_quota(cluster: Any) -> None:
    """A quota that is made for the nodes of a profile, and changed with it."""
    path = "/apis/quota.koordinator.sh/v1alpha1/namespaces/default/elasticquotaprofiles"
    spec: dict[str, Any] = {"quotaName": "root", "nodeSelector": {}}
    body = {"apiVersion": "quota.koordinator.sh/v1alpha1", "kind": "ElasticQuotaProfile", "metadata": {"name": "p"}}
    await cluster.admin.raw("POST", path, body={**body, "spec": spec})
    await until(lambda: cluster.get("/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas/root"))
    change = {"spec": {"quotaLabels": {"changed": "yes"}}}
    await cluster.admin.raw("PATCH", f"{path}/p", body=change, content_type=MERGE)


async def say_no_config(cluster: Any) -> None:
    """Two bad versions of the ConfigMap, past its own webhook: an Event, and one more of the same."""
    webhooks = (
        f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{manifests.DEFAULTS.validating_name}"
    )
    path = "/api/v1/namespaces/koordinator-system/configmaps/slo-controller-config"
    taken = 0
    for number in range(30):
        await cluster.admin.raw("PATCH", webhooks, body={"webhooks": []}, content_type=MERGE)
        body = {"data": {"colocation-config": "{", "number": str(number)}}
        try:
            await cluster.admin.raw("PATCH", path, body=body, content_type=MERGE)
        except KubeError as error:  # the manager restored the configuration before
            assert "colocation-config" in str(error)
        else:
            taken += 1
            if taken == 3:
                break


async def lend(cluster: Any) -> None:
    """A fresh NodeMetric of a node with a NUMA zone: something to lend, on the Node and in its topology."""
    amounts = ResourceMap(resources={"cpu": Quantity("1"), "memory": Quantity("1Gi")})
    info = NodeMetricInfo(node_usage=amounts, system_usage=amounts)
    status = NodeMetricStatus(update_time=Time.from_unix(time.time()), node_metric=info)
    await cluster.admin.patch(NodeMetric, "n1", body={"status": to_builtins(status)}, subresource="status")
    have = [
        ResourceInfo(name=name, capacity=Quantity(amount), allocatable=Quantity(amount), available=Quantity(amount))
        for name, amount in (("cpu", "8"), ("memory", "16Gi"))
    ]
    zones = [Zone(name="node-0", type="Node", resources=have)]
    await cluster.admin.create(NodeResourceTopology(metadata=ObjectMeta(name="n1"), zones=zones))


async def quotas(cluster: Any) -> None:
    """A root quota that is made and grows with its nodes."""
    profile = {
        "apiVersion": "quota.koordinator.sh/v1alpha1",
        "kind": "ElasticQuotaProfile",
        "metadata": {"name": "all", "namespace": "default"},
        "spec": {"quotaName": "root", "nodeSelector": {"matchLabels": {"kubernetes.io/os": "linux"}}},
    }
    path = "/apis/quota.koordinator.sh/v1alpha1/namespaces/default/elasticquotaprofiles"
    await cluster.admin.raw("POST", path, body=profile)
    await until(lambda: cluster.get("/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas/root"))
    spec = {"nodeSelector": {"matchLabels": None}}
    await cluster.admin.raw("PATCH", f"{path}/all", body={"spec": spec}, content_type=MERGE)


def test_deploy_matches_the_manifests() -> None:
    for name, text in manifests.texts().items():
        assert (ROOT / "deploy/manager" / name).read_text() == text, "run python -m control.manager.manifests"
    assert {path.name for path in (ROOT / "deploy/manager").iterdir()} == set(manifests.texts())
    assert all(yaml.safe_load_all(text) for text in manifests.texts().values())
