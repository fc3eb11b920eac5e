"""The recommender against an API server, through admission and evictions: Off, Initial, Auto."""

from __future__ import annotations

import json
import time
from typing import Any

from control.manager.recommender.settings import ANNOTATION_APPLIED
from control.manager.recommender.status import confident
from koordlet.api.core import Pod
from koordlet.api.crs.analysis import Recommendation
from koordlet.api.crs.config import ClusterColocationProfile
from tests.waiting import until

FLAGS = (
    "--feature-gates=Recommender=true",
    "--recommender-sample-interval=200ms",
    "--recommender-status-interval=300ms",
    "--recommender-eviction-minimum-age=0s",
)
CONTROLLERS = "--controllers=nodemetric,recommender"
WEB = {"type": "workload", "workload": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}}
LARGE = {"requests": {"cpu": "4", "memory": "4Gi"}, "limits": {"cpu": "8", "memory": "4Gi"}}
SMALL = {"cpu": "1140m", "memory": "1207345062"}
"""Recommended requests of a container that uses one core and 1 GiB."""
PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def requests(pod: Any) -> dict[str, str]:
    return {name: str(amount) for name, amount in pod.spec.containers[0].resources.requests.items()}


def recommended(status: dict[str, Any]) -> dict[str, Any]:
    return {
        each["containerName"]: each["resources"] for each in status.get("podStatus", {}).get("containerStatuses", [])
    }


def count(running: Any, family: str, **labels: str) -> float:
    return running.manager.context.internal.get_sample_value(f"koord_manager_recommender_{family}", labels) or 0.0


async def test_usage_is_recommended_and_applied_to_new_pods(world: Any, manager: Any) -> None:
    await world.recommend("web", WEB)
    running = await manager(*FLAGS, "--recommender-minimum-history=1m", CONTROLLERS)
    await until(lambda: _is(world, "web", "NoObjectsMatched", "True"))
    await world.deployment("web", 3, LARGE)
    await until(lambda: world.running("web", 3))
    await until(lambda: world.cluster.get("/apis/slo.koordinator.sh/v1alpha1/nodemetrics/n1"))
    await until(lambda: _is(world, "web", "NoObjectsMatched", "False"))

    begun = time.time()
    await until(lambda: _cached_running(running) == 3)
    await world.report(begun - 100, "web")
    await until(lambda: _recommended(world, "web"))
    assert recommended(await world.status("web")) == {"app": SMALL}
    assert await world.condition("web", "LowConfidence") == ("True", "ShortHistory")
    assert count(running, "samples_total") == 3

    # reported but not applied while the history is short, in any mode
    await world.mode("web", "Initial")
    await until(lambda: count(running, "recommendations", mode="Initial"))
    await world.scale("web", 4)
    await until(lambda: world.running("web", 4))
    assert all(requests(pod) == LARGE["requests"] for pod in await world.pods("web"))

    await until(lambda: _cached_running(running) == 4)
    await world.report(begun, "web")
    await until(lambda: _is(world, "web", "LowConfidence", "False"))
    (explained,) = (await world.status("web"))["explain"]
    assert (explained["samples"], explained["confidencePercent"]) == (7, 100)
    assert "cpu 1140m = p95 1036m x 1.1" in explained["message"]
    await until(lambda: _cached_confident(running))
    await world.scale("web", 5)
    await until(lambda: world.running("web", 5))
    (changed_pod,) = [pod for pod in await world.pods("web") if ANNOTATION_APPLIED in pod.metadata.annotations]
    assert requests(changed_pod) == SMALL
    limits = changed_pod.spec.containers[0].resources.limits
    assert {name: str(amount) for name, amount in limits.items()} == {"cpu": "2280m", "memory": SMALL["memory"]}
    assert changed_pod.metadata.annotations[ANNOTATION_APPLIED] == "web"
    assert count(running, "applied_total") == 1
    assert count(running, "evictions_total", result="evicted") == 0, "Initial replaces nothing"

    # the next leader goes on from there, and no report counts twice
    assert await running.stop() == 0
    before = await world.status("web")
    again = await manager(*FLAGS, "--recommender-minimum-history=1m", CONTROLLERS, name="b")
    await until(lambda: count(again, "status_writes_total", result="written") >= 2)
    after = await world.status("web")
    assert (after["explain"], after["podStatus"]) == (before["explain"], before["podStatus"])
    assert count(again, "samples_total") == 0


async def test_pods_out_of_bounds_are_evicted_within_the_disruption_budget(
    world: Any, checkpoint: Any, manager: Any
) -> None:
    """Four pods with a disruption budget of three, and a single one that is not evicted; from a stored checkpoint."""
    for name in ("web", "lone"):
        await world.recommend(name, {"type": "podSelector", "podSelector": {"matchLabels": {"app": name}}}, "Off",
                              checkpoint=[checkpoint("app")])  # fmt: skip
    running = await manager(*FLAGS, CONTROLLERS)
    for name, replicas in (("web", 4), ("lone", 1)):
        await world.deployment(name, replicas, LARGE)
        await until(lambda name=name, replicas=replicas: world.running(name, replicas))
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}}
    spec = {"minAvailable": 3, "selector": {"matchLabels": {"app": "web"}}}
    await world.raw("POST", BUDGETS, body={**budget, "spec": spec})
    (lone,) = await world.pods("lone")
    for name in ("web", "lone"):
        await until(lambda name=name: _recommended(world, name))
        assert recommended(await world.status(name)) == {"app": SMALL}
        assert await world.condition(name, "LowConfidence") == ("False", "EnoughHistory")
    assert count(running, "evictions_total", result="evicted") == 0
    for name in ("web", "lone"):
        await world.mode(name, "Auto")

    serving: list[int] = []

    async def replaced() -> bool:
        pods = await world.pods("web")
        serving.append(sum(pod.status.phase == "Running" for pod in pods))
        await world.kubelet()
        return len(pods) == 4 and all(requests(pod) == SMALL for pod in pods)

    await until(replaced)
    assert min(serving) >= 3, "the budget was kept"
    assert count(running, "evictions_total", result="evicted") == 4
    (still,) = await world.pods("lone")
    assert still.metadata.uid == lone.metadata.uid and requests(still) == LARGE["requests"]


async def test_recommended_amounts_are_translated_to_batch_resources(world: Any, checkpoint: Any, manager: Any) -> None:
    """Ahead of profiles; exclusive CPUs are left alone, whether a pod or a profile says so."""
    amounts = {"containerStatuses": [{"containerName": "app", "resources": SMALL}]}
    await world.recommend("web", {"type": "podSelector", "podSelector": {}}, "Initial",
                          checkpoint=[checkpoint("app")], podStatus=amounts)  # fmt: skip
    running = await manager(*FLAGS, CONTROLLERS)
    await until(lambda: _cached_confident(running))
    for qos, priority in (("BE", "koord-batch"), ("LSR", "koord-prod")):
        body = {
            "apiVersion": "config.koordinator.sh/v1alpha1",
            "kind": "ClusterColocationProfile",
            "metadata": {"name": qos.lower()},
            "spec": {"selector": {"matchLabels": {"as": qos}}, "qosClass": qos, "priorityClassName": priority},
        }
        await world.raw("POST", "/apis/config.koordinator.sh/v1alpha1/clustercolocationprofiles", body=body)
    profiles = running.manager.context.caches.informer(ClusterColocationProfile)
    await until(lambda: len(profiles.list()) == 2)

    async def made(name: str, **labels: str) -> dict[str, Any]:
        container = {"name": "app", "image": "i", "resources": LARGE}
        spec = {"containers": [container], "priorityClassName": "koord-prod"}
        answer = await world.raw("POST", PODS, body={"metadata": {"name": name, "labels": labels}, "spec": spec})
        resources: dict[str, Any] = json.loads(answer)["spec"]["containers"][0]["resources"]
        return resources

    batch = {"kubernetes.io/batch-cpu": "1140", "kubernetes.io/batch-memory": SMALL["memory"]}
    assert (await made("be", **{"as": "BE"}))["requests"] == batch
    assert (await made("plain"))["requests"] == SMALL
    assert await made("exclusive", **{"as": "LSR"}) == LARGE
    assert await made("own", **{"koordinator.sh/qosClass": "LSR"}) == LARGE


async def test_invalid_targets_and_modes_are_reported(world: Any, checkpoint: Any, manager: Any) -> None:
    """A bad target, a bad mode and a bad checkpoint: conditions and Events that name them; the others go on."""
    broken = {**checkpoint("app"), "cpu": {"bucketWeights": {"999": 1}, "totalWeight": 1.0}}
    await world.recommend("kind", {"type": "workload", "workload": {"kind": "Pod", "name": "p"}})
    await world.recommend("mode", WEB, "Sometimes")
    await world.recommend("past", WEB, checkpoint=[broken])
    running = await manager(*FLAGS, CONTROLLERS)
    await until(lambda: _is(world, "kind", "ConfigUnsupported", "True"))
    await until(lambda: _is(world, "mode", "ConfigUnsupported", "True"))
    await until(lambda: _is(world, "past", "ConfigUnsupported", "False"))
    messages = {c["type"]: c["message"] for c in (await world.status("kind"))["conditions"]}
    assert messages["ConfigUnsupported"].startswith("spec.target.workload.kind: 'Pod' is not one of Deployment")
    messages = {c["type"]: c["message"] for c in (await world.status("mode"))["conditions"]}
    assert messages["ConfigUnsupported"].startswith("metadata.annotations[analysis.koordinator.sh/update-mode]: 'Som")
    assert count(running, "checkpoints_refused_total") == 1

    async def event() -> bool:
        events = await world.cluster.get("/api/v1/namespaces/default/events")
        return any(each["reason"] == "InvalidCheckpoint" and "bucketWeights[999]" in each["message"]
                   for each in events["items"])  # fmt: skip

    await until(event)


async def _is(world: Any, name: str, condition_type: str, status: str) -> bool:
    condition: tuple[str, str] = await world.condition(name, condition_type)
    return condition[0] == status


async def _recommended(world: Any, name: str) -> bool:
    return bool(recommended(await world.status(name)))


def _cached_running(running: Any) -> int:
    """Pods that the manager's own cache knows to run: a report counts once, for those."""
    pods = running.manager.context.caches.informer(Pod).list()
    return sum(pod.status.phase == "Running" and pod.status.start_time is not None for pod in pods)


def _cached_confident(running: Any) -> bool:
    """Whether the manager's own cache, which admission uses, has the history."""
    recommendation = running.manager.context.caches.informer(Recommendation).get("default/web")
    return recommendation is not None and confident(recommendation.status)
