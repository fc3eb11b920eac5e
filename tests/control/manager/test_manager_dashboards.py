"""Every query of the manager's dashboard and alerts, executed by a real Prometheus that scrapes a real koord-manager.

A query must be understood, and must have data unless what feeds it is named in `MAY_BE_EMPTY`. The cluster has a node
with batch resources and one whose koordlet never reported, pods are admitted and
refused, and a key of the configuration is bad.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from control.manager import manifests
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.kube import KubeError
from tests import scraping
from tests.ports import free_port
from tests.scraping import Prometheus
from tests.waiting import until

pytestmark = pytest.mark.runtime

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "deploy/grafana/koord-manager.json"
RULES = ROOT / "deploy/prometheus/koord-manager.rules.yaml"
VARIABLES = {"$__rate_interval": "1m", "$node": ".*"}
MERGE = "application/merge-patch+json"
MAY_BE_EMPTY = {
    "koord_manager_lending_percent": "interference that persisted for minutes",
    "controller_runtime_reconcile_errors_total": "counts failures",
}
EXCUSED = {"KoordManagerNodesDegraded", "KoordManagerConfigurationBad"}
"""What is so here."""


def queries() -> dict[str, str]:
    """Where from -> expression as Grafana sends it."""
    return scraping.queries(DASHBOARD, VARIABLES)


def _node_metric() -> dict[str, Any]:
    amounts = {"resources": {"cpu": "1", "memory": "1Gi"}}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"status": {"updateTime": now, "nodeMetric": {"nodeUsage": amounts, "systemUsage": amounts}}}


async def _live(cluster: Any) -> None:
    """A node with batch resources, one without, and an invalid key."""
    await until(lambda: cluster.spec("nodemetrics", "n1"))
    await cluster.admin.patch(NodeMetric, "n1", body=_node_metric(), subresource="status")
    path = f"/api/v1/namespaces/koordinator-system/configmaps/{manifests.CONFIG}"  # type: ignore[attr-defined]
    await cluster.admin.raw("PATCH", path, body={"data": {"system-config": "{"}}, content_type=MERGE)
    await until(lambda: cluster.get("/api/v1/namespaces/default/serviceaccounts/default"))


async def _queued_job(cluster: Any) -> None:
    """One that its quota admits."""
    amounts = {"cpu": "2", "memory": "1Gi"}
    quota = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": "team"}}
    quotas = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas"
    await cluster.admin.raw("POST", quotas, body={**quota, "spec": {"min": amounts, "max": amounts}})
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    spec = {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    meta = {"name": "job", "annotations": {"kube-queue/queue-name": "team"}}
    await cluster.admin.raw("POST", "/apis/batch/v1/namespaces/default/jobs", body={"metadata": meta, "spec": spec})


async def _pods(cluster: Any, number: int) -> None:
    """One that is admitted, one that is refused."""
    path = "/api/v1/namespaces/default/pods"
    spec = {"containers": [{"name": "c", "image": "i"}]}
    for name, qos in ((f"good-{number}", {}), (f"bad-{number}", {"koordinator.sh/qosClass": "BE"})):
        try:
            await cluster.admin.raw("POST", path, body={"metadata": {"name": name, "labels": qos}, "spec": spec})
        except KubeError as error:
            assert qos, error


async def test_every_query_has_data_and_every_rule_is_evaluated(cluster: Any, manager: Any, tmp_path: Path) -> None:
    await cluster.nodes("n1", "n2")
    running = await manager("--feature-gates=JobQueueing=true")
    await _live(cluster)
    await _queued_job(cluster)
    target = running.manager.pages["metrics"].port
    fed = {where: expr for where, expr in queries().items() if not any(name in expr for name in MAY_BE_EMPTY)}
    numbers = itertools.count(1)
    async with Prometheus("koord-manager", target, "/all-metrics", RULES, free_port(), tmp_path) as prometheus:
        await prometheus.wait_for_data(fed, lambda: _pods(cluster, next(numbers)))
        for expr in queries().values():
            assert await asyncio.to_thread(prometheus.get, "query", query=expr) is not None, "is a valid query"
        assert await prometheus.firing_alerts() <= EXCUSED


def test_exceptions_are_needed() -> None:
    all_queries = " ".join(queries().values())
    assert {name for name in MAY_BE_EMPTY if name not in all_queries} == set()
