"""Every query of the manager's dashboard and alerts, executed by a real Prometheus that scrapes a real koord-manager.

A query must be understood, and must have data unless what feeds it is named in `MAY_BE_EMPTY`. The cluster has a node
with batch resources and one whose koordlet never reported, pods are admitted and
refused, and a key of the configuration is bad.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.manager import manifests
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.kube import KubeError
from tests import scraping
from tests.ports import free_port
from tests.scraping import Prometheus

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


async def _live(cluster: Any, until: Any) -> None:
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


async def test_every_query_has_data_and_every_rule_is_evaluated(
    cluster: Any, manager: Any, until: Any, tmp_path: Path
) -> None:
    await cluster.nodes("n1", "n2")
    running = await manager("--feature-gates=JobQueueing=true")
    await _live(cluster, until)
    await _queued_job(cluster)
    target = running.manager.pages["metrics"].port
    prometheus = Prometheus("koord-manager", target, "/all-metrics", RULES, free_port(), tmp_path)
    waiting = {where: expr for where, expr in queries().items() if not any(name in expr for name in MAY_BE_EMPTY)}
    number = 0

    async def query_prometheus(path: str, **parameters: str) -> Any:
        return await asyncio.to_thread(prometheus.get, path, **parameters)

    async def answered() -> bool:
        nonlocal number
        number += 1
        await _pods(cluster, number)
        for where, expr in list(waiting.items()):
            series = await query_prometheus("query", query=expr)
            if series is not None and series["result"]:
                del waiting[where]
        return not waiting

    try:
        try:
            await until(answered, 180)
        except TimeoutError:
            pass  # message below
        assert not waiting, "no data"
        for expr in queries().values():
            assert await query_prometheus("query", query=expr) is not None, "is a valid query"
        every = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}

        async def evaluated() -> Any:
            rules = [rule for group in (await query_prometheus("rules"))["groups"] for rule in group["rules"]]
            return rules if all(rule["health"] != "unknown" for rule in rules) else None

        rules = await until(evaluated, 180)
        assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
        assert {rule["name"] for rule in rules} == every
        raised = [alert for alert in (await query_prometheus("alerts"))["alerts"] if alert["state"] == "firing"]
        assert {alert["labels"]["alertname"] for alert in raised} <= EXCUSED
    finally:
        prometheus.process.terminate()
        await asyncio.to_thread(prometheus.process.wait, 120)


def test_exceptions_are_needed() -> None:
    all_queries = " ".join(queries().values())
    assert {name for name in MAY_BE_EMPTY if name not in all_queries} == set()
