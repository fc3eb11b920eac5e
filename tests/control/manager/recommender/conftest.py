"""Recommendations with a history, and a substitute for the kubelet that writes pod statuses."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from control.manager.recommender.model import ContainerModel
from control.manager.recommender.settings import ANNOTATION_MODE, RecommenderSettings
from koordlet.api.core import Pod
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding.wire import Time, to_builtins

DAY = 86_400.0
MERGE = "application/merge-patch+json"
RECOMMENDATIONS = "/apis/analysis.koordinator.sh/v1alpha1/namespaces/default/recommendations"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
PODS = "/api/v1/namespaces/default/pods"


def _checkpoint(container: str, *, days: float = 10, cores: float = 1.0, memory: float = 1 << 30) -> dict[str, Any]:
    """A container that used the same for some days, until twenty minutes ago."""
    model, now = ContainerModel(RecommenderSettings()), time.time() - 1200
    at = now - np.linspace(days * DAY, 0, 200)
    model.add(np.full(200, cores), np.full(200, memory), at)
    stored: dict[str, Any] = to_builtins(model.checkpoint(container))
    return stored


@pytest.fixture
def checkpoint() -> Callable[..., dict[str, Any]]:
    return _checkpoint


class World:
    """A cluster with the node n1, seen through an administrator's client."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.raw = cluster.admin.raw

    async def recommend(self, name: str, target: dict[str, Any], mode: str = "", **status: Any) -> None:
        """A Recommendation, with a status written before."""
        annotations = {ANNOTATION_MODE: mode} if mode else {}
        meta = {"name": name, "namespace": "default", "annotations": annotations}
        kind = {"apiVersion": "analysis.koordinator.sh/v1alpha1", "kind": "Recommendation"}
        await self.raw("POST", RECOMMENDATIONS, body={**kind, "metadata": meta, "spec": {"target": target}})
        if status:
            path = f"{RECOMMENDATIONS}/{name}/status"
            await self.raw("PATCH", path, body={"status": status}, content_type=MERGE)

    async def mode(self, name: str, mode: str) -> None:
        body = {"metadata": {"annotations": {ANNOTATION_MODE: mode}}}
        await self.raw("PATCH", f"{RECOMMENDATIONS}/{name}", body=body, content_type=MERGE)

    async def status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = (await self.cluster.get(f"{RECOMMENDATIONS}/{name}")).get("status", {})
        return status

    async def condition(self, name: str, condition_type: str) -> tuple[str, str]:
        """Status and reason; empty before there is one."""
        conditions = (await self.status(name)).get("conditions", [])
        return next(((c["status"], c["reason"]) for c in conditions if c["type"] == condition_type), ("", ""))

    async def deployment(self, name: str, replicas: int, resources: dict[str, Any], **labels: str) -> None:
        """Pods of one container, bound to n1."""
        labels = {"app": name, **labels}
        spec = {"nodeName": "n1", "containers": [{"name": "app", "image": "i", "resources": resources}]}
        body = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }
        await self.raw("POST", DEPLOYMENTS, body=body)

    async def scale(self, name: str, replicas: int) -> None:
        await self.raw("PATCH", f"{DEPLOYMENTS}/{name}", body={"spec": {"replicas": replicas}}, content_type=MERGE)

    async def pods(self, app: str) -> list[Pod]:
        return [
            pod for pod in await self.cluster.admin.list(Pod, "default", label_selector=f"app={app}")
            if pod.metadata.deletion_timestamp is None
        ]  # fmt: skip

    async def kubelet(self) -> None:
        """Pods run and are ready, evicted ones are removed."""
        for pod in await self.cluster.admin.list(Pod, "default"):
            name = pod.metadata.name
            if pod.metadata.deletion_timestamp is not None:
                await self.cluster.admin.delete(Pod, name, "default", grace_seconds=0, missing_ok=True)
            elif pod.status.phase != "Running":
                at = "2026-01-01T00:00:00Z"
                ready = {"type": "Ready", "status": "True", "lastTransitionTime": at}
                status = {"phase": "Running", "startTime": at, "conditions": [ready]}
                await self.cluster.admin.patch(Pod, name, "default", body={"status": status}, subresource="status")

    async def running(self, app: str, count: int) -> bool:
        """Start or stop pods until this number runs."""
        await self.kubelet()
        return sum(pod.status.phase == "Running" for pod in await self.pods(app)) == count

    async def report(self, at: float, *apps: str, cpu: str = "1", memory: str = "1Gi") -> None:
        """koordlet's report of what pods use."""
        used = {"resources": {"cpu": cpu, "memory": memory}}
        metrics = [
            {"namespace": "default", "name": pod.metadata.name, "podUsage": used}
            for app in apps
            for pod in await self.pods(app)
        ]
        status = {"updateTime": str(to_builtins(Time.from_unix(at))), "podsMetric": metrics}
        await self.cluster.admin.patch(NodeMetric, "n1", body={"status": status}, subresource="status")


@pytest.fixture
async def world(cluster: Any) -> World:
    await cluster.nodes("n1")
    return World(cluster)
