"""Every query of every dashboard and rule, executed by a real Prometheus that scrapes a real koordlet with a cluster.

koordlet has an API server process and a kubelet, so that what needs a cluster is there too. A query must be understood,
and must have data unless what feeds it is named in `MAY_BE_EMPTY`.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordlet.api.encoding import crdgen
from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.cluster import METRIC, NODE, TOKEN, TOPOLOGY, Api, Kubelet
from tests.koordlet.process.patience import until
from tests.koordlet.process.programs import BURN, duty
from tests.ports import free_port

pytestmark = [pytest.mark.kernel, pytest.mark.runtime, pytest.mark.timing]

ROOT = Path(__file__).resolve().parents[3]
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("koordlet-*.json"))
RULES = ROOT / "deploy/prometheus/koordlet.rules.yaml"
GATES = "PSICollector,NodeMetricPromMetrics,ColdPageCollector,CPICollector,Accelerators"
VARIABLES = {
    "$__rate_interval": "1m",
    "$node": ".*",
    "$namespace": ".*",
    "$pod": ".*",
}
MAY_BE_EMPTY = {
    # faults, of which there are none
    "koordlet_collector_failures_total": "counts failures",
    "koordlet_metric_provider_failures_total": "counts failures",
    "koordlet_state_callback_failures_total": "counts failures",
    "koordlet_resource_update_problems_total": "counts failures",
    "koord_informer_watch_errors_total": "counts failures",
    "koord_periodic_task_failures_total": "counts failures",
    "koordlet_oom_kills_total": "counts kills",
    "koordlet_mem_stall_seconds_bucket": "a container that is short of memory",
    "koordlet_mem_stall_kind_seconds_total": "a container that is short of memory",
    "koordlet_mem_stall_culprit_share": "a container that is short of memory",
    # states that take trouble
    "koordlet_interference_state": "nothing was in trouble for long enough",
    "koordlet_interference_score": "nothing was in trouble for long enough",
    "koordlet_interference_lost_ratio": "nothing was in trouble for long enough",
    "koordlet_interference_culprit_share": "nothing was in trouble for long enough",
    "koordlet_interference_detections_total": "nothing was in trouble for long enough",
    "koordlet_interference_seconds_total": "nothing was in trouble for long enough",
    # work that this node does not do
    **dict.fromkeys(
        (
            "koordlet_block_io_bytes_total",
            "koordlet_block_io_seconds_bucket",
            "koordlet_block_io_wait_seconds_total",
            "koordlet_block_io_throttled_seconds_total",
            "koordlet_block_io_culprit_wait_seconds_total",
        ),
        "a container that reads or writes a disk",
    ),
    **dict.fromkeys(
        (
            "koordlet_net_retransmits_total",
            "koordlet_net_receive_queue_full_total",
            "koordlet_net_backlog_bytes",
            "koordlet_net_softirq_seconds_total",
            "koordlet_net_softirq_caused_seconds_total",
            "koordlet_net_softirq_culprit_seconds_total",
        ),
        "a container that uses the network",
    ),
    # what this machine or this koordlet lacks
    "koordlet_container_cpi": "hardware counters",
    "koordlet_container_psi": "PSI by cgroup, which needs cgroup v2 beside v1",
    "koordlet_container_psi_stall_seconds_total": "PSI by cgroup, which needs cgroup v2 beside v1",
    "koordlet_pod_psi": "PSI by cgroup, which needs cgroup v2 beside v1",
    "koordlet_pod_psi_stall_seconds_total": "PSI by cgroup, which needs cgroup v2 beside v1",
    "koordlet_node_memory_cold_bytes": "kidled, or five minutes of watching",
    "koordlet_container_memory_cold_bytes": "kidled, or five minutes of watching",
    "koordlet_be_suppress_cpu_cores": "a strategy that suppresses",
    "koordlet_pod_eviction": "an eviction",
    "koordlet_audit_events_total": "gate AuditEvents",
    "koordlet_resource_slice_reports_total": "gate ResourceSlices",
    "koordlet_node_gpu_used_core_ratio": "a GPU",
    "koordlet_node_gpu_used_memory_bytes": "a GPU",
    "koordlet_node_gpu_memory_bytes": "a GPU",
    "koordlet_container_gpu_used_memory_bytes": "a GPU",
    "koordlet_gpu_xid_errors_total": "a GPU",
    "koordlet_gpu_healthy": "a GPU",
}


def substituted(expr: str) -> str:
    """What Grafana sends once variables are chosen."""
    label_query = re.fullmatch(r"label_values\((.*), (\w+)\)", expr)
    if label_query:
        expr = f"group by ({label_query[2]}) ({label_query[1]})"
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, expr
    return expr


def queries() -> list[Any]:
    """Where from, and the expression."""
    queries = []
    for path in DASHBOARDS:
        page = json.loads(path.read_text())
        for panel in page["panels"]:
            for target in panel.get("targets", ()):
                queries.append(pytest.param(target["expr"], id=f"{path.stem}-{panel['title']}-{target['refId']}"))
        for variable in page["templating"]["list"]:
            if variable["type"] == "query":
                queries.append(pytest.param(variable["query"]["query"], id=f"{path.stem}-${variable['name']}"))
    return queries


def rules(kind: str) -> list[Any]:
    """Rules of a kind: record or alert."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


@dataclass
class Prometheus:
    """A server that scrapes one koordlet."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def get(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # starting
                return None
            pytest.fail(f"{parameters}: {error.read().decode()}")
        except OSError:
            assert self.process.poll() is None, self.log.read_text()
            return None

    def ask(self, expr: str) -> Any:
        """The result's series; None while the server is not up."""
        result = self.get("query", query=expr)
        return None if result is None else result["result"]


def _pod(container: Any, name: str, qos: str, kube_qos: KubeQOS, **resources: str) -> dict[str, Any]:
    status = {"name": "main", "containerID": f"containerd://{container.hash}", "state": {"running": {}}, "ready": True}
    requirements = {"requests": resources, "limits": resources}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": container.pod_uid,
            "labels": {"koordinator.sh/qosClass": qos},
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "none", "resources": requirements}]},
        "status": {"phase": "Running", "qosClass": kube_qos.value, "containerStatuses": [status]},
    }


def _populate(api: Api, kubelet: Kubelet) -> None:
    for crd in crdgen.documents().values():
        api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    for path in (METRIC, TOPOLOGY):
        until(partial(api.find, path.rpartition("/")[0]), "the custom kinds")
    api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
        "allocatable": {
            "cpu": "2",
            "memory": "4Gi",
            "kubernetes.io/batch-cpu": "1500",
            "kubernetes.io/batch-memory": "1Gi",
        },
    }
    api.patch(f"/api/v1/nodes/{NODE}/status", {"status": status})
    metric = {"metadata": {"name": NODE}, "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 1}}}
    kind = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric"}
    api.call("POST", METRIC.rpartition("/")[0], {**kind, **metric})


@pytest.fixture(scope="module")
def prometheus(
    trees: Any, views: Any, koordlets: Any, cpus: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    tree = trees()
    (web,), (job,) = tree.pod(KubeQOS.BURSTABLE), tree.pod(KubeQOS.BESTEFFORT)
    directory = tmp_path_factory.mktemp("dashboards")
    api, kubelet = Api(directory / "api", free_port()), Kubelet(directory)
    servers: list[Prometheus] = []
    try:
        api.start()
        until(api.ready, "the API server")
        _populate(api, kubelet)
        batch = {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "256Mi"}
        kubelet.pods = [
            _pod(web, "web", "LS", KubeQOS.BURSTABLE, cpu="1"),
            _pod(job, "job", "BE", KubeQOS.BESTEFFORT, **batch),
        ]
        web.run(duty(0.02, 0.02), cpus[0])
        job.run(BURN, cpus[0])
        web.quota(0.4)
        view = views(tree)
        (view.scratch / "token").write_text(TOKEN)
        infos = view.scratch / "infos"
        infos.mkdir()
        (infos / "card").write_text('[{"vendor": "v", "model": "m", "uuid": "u", "minor": "0"}]')
        koordlet = koordlets(
            view, f"--kubeconfig={api.kubeconfig}", f"--kubelet-token-file={view.scratch / 'token'}",
            f"--feature-gates={','.join(f'{gate}=true' for gate in GATES.split(','))}",
            "--kubelet-sync-interval=1s", "--prediction-training-interval=5s", "--node-metric-min-report-interval=1s",
            f"--xpu-device-infos-dir={infos}",
            standalone=False,
        )  # fmt: skip
        koordlet.wait()
        servers.append(_scraping(koordlet.port, free_port(), directory))
        reported = 'koordlet_node_metric_reports_total{status="succeeded"} > 0'
        until(lambda: servers[0].ask(reported), f"a report (log: {koordlet.log_path})")
        yield servers[0]
    finally:
        for server in servers:
            server.process.terminate()
            server.process.wait(30)
        kubelet.close()
        api.kill()
        for container in tree.containers:
            container.end()


def _scraping(target: int, port: int, directory: Path) -> Prometheus:
    config = directory / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: 2s, evaluation_interval: 2s}}\nrule_files: ['{directory / 'rules.yaml'}']\n"
        f"scrape_configs:\n- job_name: koordlet\n  static_configs: [{{targets: ['127.0.0.1:{target}']}}]\n"
    )
    (directory / "rules.yaml").write_text(RULES.read_text().replace("interval: 30s", "interval: 2s"))
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (directory / "prometheus.log").open("wb") as log:
        return Prometheus(port, subprocess.Popen(command, stdout=log, stderr=log), directory / "prometheus.log")


def _reasons(expr: str) -> set[str]:
    names = set(re.findall(r"\b[a-z]+_[a-z0-9_]+\b", expr))
    return {MAY_BE_EMPTY[name] for name in names & MAY_BE_EMPTY.keys()}


@pytest.mark.parametrize("expr", queries())
def test_query(prometheus: Prometheus, expr: str) -> None:
    query = substituted(expr)
    if _reasons(expr):
        assert prometheus.ask(query) is not None, "is understood"
    else:
        until(lambda: prometheus.ask(query), f"data for {query}")


def test_every_exception_is_needed_by_a_query() -> None:
    expressions = " ".join([param.values[0] for param in queries()] + [rule["expr"] for rule in rules("alert")])
    assert {name for name in MAY_BE_EMPTY if not re.search(rf"\b{name}\b", expressions)} == set()


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule["record"]) for rule in rules("record")])
def test_recorded(prometheus: Prometheus, rule: dict[str, str]) -> None:
    until(lambda: prometheus.ask(rule["record"]), "a recorded sample")


def test_rules_are_evaluated_and_only_true_alerts_are_raised(prometheus: Prometheus) -> None:
    """A healthy koordlet on a machine that may lack features: nothing but that is complained of."""

    def evaluated() -> Callable[[], Any] | Any:
        loaded_rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        return loaded_rules if all(rule["health"] != "unknown" for rule in loaded_rules) else None

    loaded_rules = until(evaluated, "every rule evaluated")
    assert {rule["name"]: rule.get("lastError") for rule in loaded_rules if rule["health"] != "ok"} == {}
    assert {rule["name"] for rule in loaded_rules} == {
        rule.get("record") or rule["alert"] for kind in ("record", "alert") for rule in rules(kind)
    }
    excused = {"KoordletProbeDown", "KoordletExpensive", "KoordletInterferencePersistent", "KoordletObservationsLost"}
    raised = {alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"]}
    assert raised <= excused
