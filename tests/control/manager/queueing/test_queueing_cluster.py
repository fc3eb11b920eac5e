"""Queued Jobs on the embedded API server with its Job controller: quotas, units, pods, restarts (spec 05 §14)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from koordlet.api.names import KOORDINATOR_NAMESPACE, LABEL_QUOTA_NAME
from koordlet.kube import PatchKind
from tests.waiting import until

JOBS = "/apis/batch/v1/namespaces/default/jobs"
UNITS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/queueunits"
QUEUES = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{KOORDINATOR_NAMESPACE}/queues"
QUOTAS = f"/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/{KOORDINATOR_NAMESPACE}/elasticquotas"
PODS = "/api/v1/namespaces/default/pods"
FLAGS = ("--feature-gates=JobQueueing=true", "--controllers=queue,queuejobs", "--page-authorization=none")


class Site:
    """An administrator's requests as plain JSON."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.until = until

    async def post(self, path: str, body: dict[str, Any]) -> None:
        await self.cluster.admin.raw("POST", path, body=body)

    async def merge(self, path: str, body: dict[str, Any]) -> None:
        await self.cluster.admin.raw("PATCH", path, body=body, content_type=PatchKind.MERGE.value)

    async def quota(self, name: str, cores: int) -> None:
        amounts = {"cpu": str(cores)}
        spec = {"min": amounts, "max": amounts}
        kind = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota"}
        await self.post(QUOTAS, {**kind, "metadata": {"name": name}, "spec": spec})

    async def job(self, name: str, cores: int, queue: str = "team", **spec: Any) -> None:
        container = {
            "name": "c", "image": "i", "resources": {"requests": {"cpu": str(cores)}, "limits": {"cpu": str(cores)}}
        }  # fmt: skip
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        meta = {"name": name, "annotations": {"kube-queue/queue-name": queue}}
        await self.post(JOBS, {"metadata": meta, "spec": {"template": template, **spec}})

    async def status(self, name: str) -> dict[str, Any]:
        unit = await self.cluster.get(f"{UNITS}/{name}")
        return (unit or {}).get("status") or {}

    async def phase(self, name: str, *expected: str) -> dict[str, Any]:
        async def reached() -> dict[str, Any] | None:
            status = await self.status(name)
            return status if status.get("phase") in expected else None

        return await self.until(reached)  # type: ignore[no-any-return]

    async def pods(self, job: str) -> list[dict[str, Any]]:
        listed = json.loads(await self.cluster.admin.raw("GET", PODS, params={"labelSelector": f"job-name={job}"}))
        return [pod for pod in listed["items"] if "deletionTimestamp" not in pod["metadata"]]

    async def pod(self, job: str) -> dict[str, Any]:
        return (await self.until(lambda: self.pods(job)))[0]  # type: ignore[no-any-return]

    async def run(self, job: str, phase: str) -> None:
        """What a kubelet reports."""
        name = (await self.pod(job))["metadata"]["name"]
        ready = "True" if phase == "Running" else "False"
        status = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
        await self.merge(f"{PODS}/{name}/status", {"status": status})


async def test_jobs_run_one_after_another(cluster: Any, manager: Callable[..., Any]) -> None:
    site = Site(cluster)
    await cluster.nodes("n1")  # 8 cores
    await site.quota("team", 4)
    first = await manager(*FLAGS)
    await site.job("one", 3, suspend=True)
    dequeued = await site.phase("one", "Dequeued")
    assert (dequeued["quota"], dequeued["admissions"][0]["resources"]) == ("team", {"cpu": "3"})
    assert (await site.pod("one"))["metadata"]["labels"][LABEL_QUOTA_NAME] == "team"

    await site.job("two", 3, suspend=True, parallelism=1)
    waiting = await until(lambda: _message(site, "two", "Insufficient quotas"))
    assert "quotaName: team" in waiting["message"] and waiting["phase"] == "Enqueued"
    assert await site.pods("two") == []
    await site.merge(f"{JOBS}/two", {"spec": {"parallelism": 2}})
    await until(lambda: _message(site, "two", "pod's request: cpu:6"))
    await site.merge(f"{JOBS}/two", {"spec": {"parallelism": 1}})
    await until(lambda: _message(site, "two", "pod's request: cpu:3"))

    await site.run("one", "Running")
    running = await site.phase("one", "Running")
    assert running["admissions"][0]["running"] == 1

    assert await first.stop() == 0  # a new leader knows it from the objects alone
    second = await manager(*FLAGS, name="b")
    await until(lambda: second.manager.leads)
    await site.job("three", 1, suspend=True)
    await until(lambda: _message(site, "three", "Waits behind default/two"))
    assert (await site.status("one"))["phase"] == "Running"

    await site.run("one", "Succeeded")
    await site.phase("one", "Succeed")
    await site.phase("two", "Dequeued")
    await site.phase("three", "Dequeued")  # 3 + 1 of 4 cores
    registry = second.manager.context.internal
    await until(lambda: registry.get_sample_value("koord_manager_queue_units", {"queue": "team", "phase": "Dequeued"}))
    assert registry.get_sample_value("koord_manager_queue_admissions_total", {"queue": "team"}) == 2
    assert registry.get_sample_value("koord_manager_queue_wait_seconds_count") == 2


async def test_a_job_that_does_not_run_in_time_backs_off_and_comes_again(
    cluster: Any, manager: Callable[..., Any]
) -> None:
    site = Site(cluster)
    await cluster.nodes("n1")
    await site.quota("team", 4)
    await manager(*FLAGS, "--job-queue-start-timeout=1s", "--job-queue-backoff=2s")
    await site.job("stuck", 2)  # not suspended: the extension does it
    await site.phase("stuck", "Dequeued")
    backoff = await site.phase("stuck", "TimeoutBackoff")
    assert backoff["attempts"] == 1 and "No pod was ready" in backoff["message"]
    await until(lambda: _suspended(site, "stuck"))
    again = await site.phase("stuck", "Enqueued", "Dequeued")
    assert again["attempts"] == 1


async def test_checks_order_and_permission(cluster: Any, manager: Callable[..., Any]) -> None:
    """A Queue with Priority and a check over two quotas, and a namespace that may use another queue only."""
    site = Site(cluster)
    await cluster.nodes("n1")
    for name in ("small", "large"):
        await site.quota(name, 2 if name == "small" else 4)
    await site.post(
        QUEUES,
        {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "Queue",
            "metadata": {"name": "batch", "annotations": {"kube-queue/available-quota": "small,large"}},
            "spec": {"queuePolicy": "Priority", "admissionChecks": [{"name": "budget"}]},
        },
    )
    running = await manager(*FLAGS)
    await site.job("one", 4, "batch")
    reserved = await site.phase("one", "Reserved")
    assert (reserved["quota"], reserved["admissionChecks"]) == ("large", [{"name": "budget", "state": "Pending"}])
    assert await site.pods("one") == []
    await site.job("two", 4, "batch")
    queue = f"{QUEUES}/batch"

    async def listed() -> Any:
        return ((await cluster.get(queue)).get("status") or {}).get("queueItemDetails", {}).get("active")

    assert await until(listed) == [{"name": "two", "namespace": "default", "position": 1}]
    checks = {"status": {"admissionChecks": [{"name": "budget", "state": "Ready"}]}}
    await site.merge(f"{UNITS}/one/status", checks)
    await site.phase("one", "Dequeued")
    await site.pod("one")

    await site.merge(
        "/api/v1/namespaces/default", {"metadata": {"annotations": {"kube-queue/available-queue": '{"x":[]}'}}}
    )
    await site.job("three", 1, "batch")
    await until(lambda: _message(site, "three", "may not use queue batch"))
    await site.job("four", 1, "x-y-z")
    await until(lambda: _message(site, "four", "may not use queue x-y-z"))
    registry = running.manager.context.internal
    await until(
        lambda: registry.get_sample_value("koord_manager_queue_units", {"queue": "unknown", "phase": "Enqueued"})
    )


async def _message(site: Site, unit: str, text: str) -> dict[str, Any] | None:
    status = await site.status(unit)
    return status if text in status.get("message", "") else None


async def _suspended(site: Site, job: str) -> bool:
    stored = await site.cluster.get(f"{JOBS}/{job}")
    return stored["spec"]["suspend"] is True and await site.pods(job) == []
