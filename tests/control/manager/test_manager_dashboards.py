"""Every query of the manager's dashboard and alerts, executed by a real Prometheus that scrapes a real koord-manager.

A query must be understood, and must have data unless what feeds it is named in `MAY_BE_EMPTY`. The cluster has a node
that lends and one whose koordlet never reported, pods are admitted and
refused, and a key of the configuration is bad.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.manager import manifests
from koordlet.api.nodemetric import NodeMetric
from koordlet.kube import KubeError

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
    page = json.loads(DASHBOARD.read_text())
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in page["panels"]
        for target in panel.get("targets", ())
    }
    for one in page["templating"]["list"]:
        if one["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", one["query"]["query"]).groups()  # type: ignore[union-attr]
            found[f"${one['name']}"] = f"group by ({label}) ({series})"
    for name, value in VARIABLES.items():
        found = {where: expr.replace(name, value) for where, expr in found.items()}
    assert not any("$" in expr for expr in found.values()), found
    return found


class Prometheus:
    """A server that scrapes one manager."""

    def __init__(self, target: int, port: int, directory: Path) -> None:
        self.port, self.log = port, directory / "prometheus.log"
        config = directory / "prometheus.yml"
        config.write_text(
            f"global: {{scrape_interval: 2s, evaluation_interval: 2s}}\nrule_files: ['{RULES}']\n"
            "scrape_configs:\n- job_name: koord-manager\n  metrics_path: /all-metrics\n"
            f"  static_configs: [{{targets: ['127.0.0.1:{target}']}}]\n"
        )
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}",
                   f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def get(self, path: str, **parameters: str) -> Any:
        """`data` of the answer; None while the server starts."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except OSError:
            assert self.process.poll() is None, self.log.read_text()
            return None


def _node_metric() -> dict[str, Any]:
    amounts = {"resources": {"cpu": "1", "memory": "1Gi"}}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"status": {"updateTime": now, "nodeMetric": {"nodeUsage": amounts, "systemUsage": amounts}}}


async def _live(cluster: Any, until: Any) -> None:
    """A node that lends and one that does not; a bad key."""
    await until(lambda: cluster.spec("nodemetrics", "n1"))
    await cluster.admin.patch(NodeMetric, "n1", body=_node_metric(), subresource="status")
    path = f"/api/v1/namespaces/koordinator-system/configmaps/{manifests.CONFIG}"
    await cluster.admin.raw("PATCH", path, body={"data": {"system-config": "{"}}, content_type=MERGE)
    await until(lambda: cluster.get("/api/v1/namespaces/default/serviceaccounts/default"))


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
    cluster: Any, manager: Any, until: Any, unused_tcp_port: int, tmp_path: Path
) -> None:
    await cluster.nodes("n1", "n2")
    running = await manager()
    await _live(cluster, until)
    prometheus = Prometheus(running.manager.pages["metrics"].port, unused_tcp_port, tmp_path)
    waiting = {where: expr for where, expr in queries().items() if not any(name in expr for name in MAY_BE_EMPTY)}
    number = 0

    async def ask(path: str, **parameters: str) -> Any:
        return await asyncio.to_thread(prometheus.get, path, **parameters)

    async def answered() -> bool:
        nonlocal number
        number += 1
        await _pods(cluster, number)
        for where, expr in list(waiting.items()):
            found = await ask("query", query=expr)
            if found is not None and found["result"]:
                del waiting[where]
        return not waiting

    try:
        try:
            await until(answered, 60)
        except TimeoutError:
            pass  # said below
        assert not waiting, "no data"
        for expr in queries().values():
            assert await ask("query", query=expr) is not None, "is understood"
        every = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}

        async def evaluated() -> Any:
            rules = [rule for group in (await ask("rules"))["groups"] for rule in group["rules"]]
            return rules if all(rule["health"] != "unknown" for rule in rules) else None

        rules = await until(evaluated, 60)
        assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
        assert {rule["name"] for rule in rules} == every
        assert {alert["labels"]["alertname"] for alert in (await ask("alerts"))["alerts"]} <= EXCUSED
    finally:
        prometheus.process.terminate()
        await asyncio.to_thread(prometheus.process.wait, 30)


def test_exceptions_are_needed() -> None:
    asked = " ".join(queries().values())
    assert {name for name in MAY_BE_EMPTY if name not in asked} == set()
