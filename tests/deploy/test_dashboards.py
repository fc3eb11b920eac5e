"""The dashboard files: Grafana can import them, and their queries use exported metrics only."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from control.descheduler.drain.metrics import DrainMetrics
from control.descheduler.framework.metrics import DeschedulerMetrics
from control.manager.controller import ControllerMetrics
from control.manager.metrics import ManagerMetrics
from control.manager.noderesource.metrics import NodeResourceMetrics, OvercommitCollector
from control.manager.queueing.metrics import QueueingMetrics
from control.manager.webhookserver.metrics import ServerMetrics, WebhookMetrics
from control.scheduler.process.metrics import SchedulerMetrics
from koordlet.app.clock import SYSTEM_CLOCK
from koordlet.app.periodic import TaskMetrics
from koordlet.kube.metrics import ClientMetrics, InformerMetrics
from koordlet.prometheus.catalogue import FAMILIES
from runtimeproxy.metrics import ProxyMetrics

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
RULES = sorted((ROOT / "deploy/prometheus").glob("*.rules.yaml"))
MANAGER_METRICS = (
    ManagerMetrics, ControllerMetrics, NodeResourceMetrics, QueueingMetrics, ServerMetrics, WebhookMetrics,
)  # fmt: skip
PROCESS_METRICS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "up"}
NAME = re.compile(
    r"\b((?:koord|koordlet|koordinator|process|scheduler|descheduler|slo_controller|controller_runtime)_[a-z0-9_]+|up)\b"
    r"(?:\{([^}]*)\})?"
)
LABEL = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")


def load(path: Path) -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(path.read_text())
    return dashboard


def panels(path: Path) -> list[dict[str, Any]]:
    return [panel for panel in load(path)["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """(where it is used, the expression) of every query."""
    for path in DASHBOARDS:
        for panel in panels(path):
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", target["expr"]
        for variable in load(path)["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{path.stem}: ${variable['name']}", variable["query"]["query"]
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield f"rule {rule.get('record') or rule['alert']}", rule["expr"]


def exported() -> dict[str, set[str] | None]:
    """Sample name -> its labels; None where they are not known here."""
    labels_of: dict[str, set[str] | None] = dict.fromkeys(PROCESS_METRICS)
    labels_of["koordlet_metric_provider_failures_total"] = {"family"}
    for family in FAMILIES:
        suffixes = ("_bucket", "_sum", "_count") if family.type == "histogram" else ("",)
        for suffix in suffixes:
            labels_of[family.full_name + suffix] = {*family.all_labels, *(("le",) if suffix == "_bucket" else ())}
    registry = CollectorRegistry()
    shared = (TaskMetrics, InformerMetrics, ClientMetrics)
    for metrics in (*shared, SchedulerMetrics, DeschedulerMetrics, DrainMetrics, ProxyMetrics, *MANAGER_METRICS):
        metrics(registry)
    registry.register(OvercommitCollector({}, SYSTEM_CLOCK))
    labels_of["koord_manager_config_key_bad"] = {"key"}
    labels_of["scheduler_elastic_quota_status"] = {"name", "resource", "tree", "is_parent", "parent", "field"}
    labels_of["scheduler_reservation_status_phase"] = {"name", "phase"}
    labels_of["scheduler_reservation_resource"] = {"type", "name", "resource", "unit"}
    labels_of["scheduler_pending_pods"] = {"queue"}
    labels_of["scheduler_unschedulable_pods"] = {"plugin", "profile"}
    labels_of["scheduler_cache_size"] = {"type"}
    labels_of["scheduler_goroutines"] = {"operation"}
    for metric in registry.collect():
        names = {
            "counter": [f"{metric.name}_total"],
            "histogram": [f"{metric.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")],
        }.get(metric.type, [metric.name])
        labels_of.update(dict.fromkeys(names))
    return labels_of


def test_there_are_dashboards() -> None:
    assert [path.stem for path in DASHBOARDS] == [
        "koord-descheduler", "koord-manager", "koord-runtime-proxy", "koord-scheduler", "koordlet-devices",
        "koordlet-fleet", "koordlet-health", "koordlet-interference", "koordlet-node", "koordlet-pod",
    ]  # fmt: skip


def test_the_generated_files_are_up_to_date() -> None:
    """`make dashboards` was run."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.grafana", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("expr", [pytest.param(expr, id=where) for where, expr in queries()])
def test_queries_use_only_exported_metrics(expr: str) -> None:
    """Metric names are in the catalogue, and so are the labels in selectors."""
    known = exported()
    named = NAME.findall(re.sub(r'"[^"]*"', '""', expr))
    assert named, "the query names no metric"
    for name, selector in named:
        assert name in known, f"{name} is not exported"
        labels = known[name]
        if labels is not None:
            assert set(LABEL.findall(selector)) <= labels | {"job", "instance"}, f"{name} has no such label"


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_grafana_can_import_it(path: Path) -> None:
    page = load(path)
    assert page["id"] is None
    assert page["uid"] == path.stem
    assert page["schemaVersion"] >= 36
    assert {"title", "tags", "templating", "time", "refresh", "annotations", "links", "panels"} <= page.keys()
    names = [variable["name"] for variable in page["templating"]["list"]]
    variables = {"koord-scheduler": "profile", "koord-descheduler": "strategy", "koord-runtime-proxy": "instance"}
    first = variables.get(path.stem, "node")
    assert names[:2] == ["datasource", first]
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(page)))
    assert used <= {*names, "__rate_interval", "__all"} - {""}
    for variable in page["templating"]["list"][1:]:
        assert variable["datasource"]["uid"] == "${datasource}"
        assert (variable["includeAll"], variable["allValue"]) == (True, ".*")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_are_complete_and_do_not_overlap(path: Path) -> None:
    everything = load(path)["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        across, down = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        cells = {(x, y) for x in across for y in down}
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels(path):
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEF")[: len(panel["targets"])]
        assert all(target["expr"].count("(") == target["expr"].count(")") for target in panel["targets"])
    titles = [panel["title"] for panel in panels(path)]
    assert len(set(titles)) == len(titles)
