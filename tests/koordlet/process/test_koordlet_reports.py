"""NodeMetric as a koordlet process reports it: true numbers, and what an API server or kubelet in trouble costs.

One history for all tests, because its figures take seconds: an API server process and a kubelet (TLS in this process,
so that it can misbehave), a first report over FIRST_S; then koordlet sleeps through changes that the server no longer
remembers, the server is killed and started again on its port, the NodeMetric is recreated with another policy, the
kubelet stops answering; and a second report. At the end koordlet is stopped and started again.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from koordlet.api.cpus import parse_cpus
from koordlet.api.encoding import crdgen
from koordlet.api.encoding.quantity import Quantity
from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.cluster import METRIC, NODE, TOKEN, TOPOLOGY, Api, Kubelet
from tests.koordlet.process.kernelfigures import node_busy_seconds, node_memory_used, process_cpu_seconds
from tests.koordlet.process.patience import PATIENCE_S, until
from tests.koordlet.process.podtree import Container
from tests.koordlet.process.programs import BURN, duty, touch
from tests.koordlet.process.witness import Witness, boot_time
from tests.ports import free_port

pytestmark = [pytest.mark.kernel, pytest.mark.e2e, pytest.mark.timing]

TICKS_AWAY = 5
REPORT_S, FIRST_S = 2, 18
"""Between reports; of figures in the first one that is looked at, so that koordlet's start hardly counts."""
QUICK = (
    "--kubelet-sync-interval=1s", "--prediction-training-interval=3s", "--feature-gates=NodeMetricPromMetrics=true",
    f"--node-metric-min-report-interval={REPORT_S}s",
)  # fmt: skip


def _pod(container: Any, name: str, qos: str, kube_qos: KubeQOS, **labels: str) -> dict[str, Any]:
    status = {"name": "main", "containerID": f"containerd://{container.hash}", "state": {"running": {}}, "ready": True}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": container.pod_uid,
            "labels": {"koordinator.sh/qosClass": qos, **labels},
        },
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
        },
        "status": {"phase": "Running", "qosClass": kube_qos.value, "containerStatuses": [status]},
    }


def _malformed(good: dict[str, Any]) -> list[Any]:
    def bad(uid: str, **change: Any) -> dict[str, Any]:
        return {**good, "metadata": {**good["metadata"], "uid": uid, "name": f"bad-{uid}"}, **change}

    return [
        bad("uid-quantity", spec={"containers": [{"name": "x", "resources": {"requests": {"cpu": "lots"}}}]}),
        bad("uid-runtime", status={"containerStatuses": [{"name": "x", "containerID": "lxd://1"}]}),
        bad("", spec={}),
        {"metadata": 7},
    ]


def _node_metric(report: int, aggregate: int, durations: list[str]) -> dict[str, Any]:
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeMetric",
        "metadata": {"name": NODE, "labels": {"whose": "somebody-else"}},
        "spec": {
            "metricCollectPolicy": {
                "aggregateDurationSeconds": aggregate,
                "reportIntervalSeconds": report,
                "nodeAggregatePolicy": {"durations": durations},
            }
        },
    }


@dataclass
class History:
    """What was seen; see the module's text."""

    worker: Any
    batch: Any
    witness: Any
    koordlet: Any
    asleep: tuple[float, float] = (0.0, 0.0)
    """CLOCK_BOOTTIME between which koordlet was stopped."""
    away: tuple[float, float] = (0.0, 0.0)
    """CLOCK_BOOTTIME between which TICKS_AWAY ticks came to an end, server and kubelet being away."""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    """What predictions had learned at each of the two ends, by file."""
    series: list[Any] = field(default_factory=list)
    """Snapshots of the metric cache after each report."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    """NodeMetric objects."""
    moments: list[float] = field(default_factory=list)
    """CLOCK_BOOTTIME at which each report was seen."""
    ready_while_away: str = ""
    top_while_away: Any = None
    families: Any = None
    mirrored: dict[str, Any] = field(default_factory=dict)
    """The NodeMetric that was the last one when the families were read."""
    app_dir: str = ""
    topologies: list[dict[str, Any]] = field(default_factory=list)
    """NodeResourceTopology before the server went away, and after a user deleted it."""


def _settled(call: Callable[[], Any], what: str) -> Any:
    return until(call, what, PATIENCE_S)


@pytest.fixture(scope="module")
def history(
    trees: Any, views: Any, koordlets: Any, cpus: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[History]:
    tree = trees()
    (worker,), (batch,) = tree.pod(KubeQOS.BURSTABLE), tree.pod(KubeQOS.BESTEFFORT)
    tree.mkdir("host-latency-sensitive/agent")
    agent = Container(tree, "", "", "host-latency-sensitive/agent")
    tree.containers.append(agent)
    for container, code in ((worker, duty(0.02, 0.02)), (batch, BURN), (agent, touch(4))):
        container.run(code, cpus[0])
    directory = tmp_path_factory.mktemp("cluster")
    api, kubelet = Api(directory / "api", free_port()), Kubelet(directory)
    try:
        kubelet.pods = [
            _pod(worker, "web", "LS", KubeQOS.BURSTABLE),
            *_malformed(_pod(worker, "web", "LS", KubeQOS.BURSTABLE)),
            _pod(batch, "job", "BE", KubeQOS.BESTEFFORT),
        ]
        sources = {
            "node": node_busy_seconds,
            "node memory": node_memory_used,
            "worker": lambda: process_cpu_seconds(worker.processes[0].pid),
            "batch": lambda: process_cpu_seconds(batch.processes[0].pid),
        }
        with Witness(sources) as witness:
            yield _live(tree, views(tree), koordlets, api, kubelet, History(worker, batch, witness, None))
    finally:
        kubelet.close()
        if api.process is not None:
            api.kill()
        for container in tree.containers:
            container.end()


def _live(tree: Any, view: Any, koordlets: Any, api: Api, kubelet: Kubelet, history: History) -> History:
    api.start()
    _settled(api.ready, "the API server")
    _populate(api, kubelet)
    (view.scratch / "token").write_text(TOKEN)
    history.koordlet = koordlet = koordlets(
        view, f"--kubeconfig={api.kubeconfig}", f"--kubelet-token-file={view.scratch / 'token'}",
        *QUICK, standalone=False,
    )  # fmt: skip
    koordlet.wait()

    figures_since = boot_time()

    def reported(uid: str, windows: int) -> Callable[[], Any]:
        def page() -> Any:
            if boot_time() < figures_since + FIRST_S:
                return None
            metric = api.find(METRIC)
            fresh = metric is not None and metric["metadata"]["uid"] == uid
            status = metric.get("status", {}) if fresh else {}
            # A report may still go to the new object before its policy has been heard of, or before the first training.
            usages = status.get("nodeMetric", {}).get("aggregatedNodeUsages", [])
            complete = len(usages) == windows and (windows == 1 or usages[0]["usage"]["avg"])
            return complete and status.get("prodPeakMetric") and metric

        return page

    def note(uid: str, windows: int) -> None:
        history.reports.append(_settled(reported(uid, windows), "a report"))
        history.moments.append(boot_time())
        history.series.append(koordlet.series(after=history.moments[-1]))

    note(api.find(METRIC)["metadata"]["uid"], windows=1)
    history.topologies.append(_settled(lambda: api.find(TOPOLOGY), "the node's topology"))
    # koordlet sleeps while the server goes on and forgets
    os.kill(koordlet.process.pid, signal.SIGSTOP)
    _settled(lambda: _state(koordlet.process.pid) == "T", "koordlet asleep")
    fell_asleep = boot_time()
    slept_through = api.call("GET", f"/api/v1/nodes/{NODE}")["metadata"]["resourceVersion"]
    for number in range(150):
        api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": {"number": str(number)}}})
    _settled(lambda: _forgotten(api, slept_through), "the server to trim its history")
    api.kill()
    kubelet.silent = True
    history.asleep = (fell_asleep, boot_time())
    os.kill(koordlet.process.pid, signal.SIGCONT)
    _settled(lambda: b"informer" in _ready(koordlet) and b"pods" in _ready(koordlet), "conditions in /readyz")
    history.ready_while_away = _ready(koordlet).decode()
    history.top_while_away = koordlet.top()
    since, ticks = boot_time(), _ticks(koordlet)
    _settled(lambda: _ticks(koordlet) >= ticks + TICKS_AWAY, "ticks while everything is away")
    history.away = (since, boot_time())
    api.start()
    _settled(api.ready, "the API server again")
    api.call("DELETE", METRIC)
    api.call("DELETE", TOPOLOGY)
    api.call("POST", METRIC.rpartition("/")[0], _node_metric(REPORT_S, 60, ["20s", "2m"]))
    api.patch(f"{METRIC}/status", {"status": {"neighbour": {"says": "hello"}}})
    note(api.find(METRIC)["metadata"]["uid"], windows=2)
    assert api.find(TOPOLOGY) is None, "told without knowing the kubelet's policy"
    kubelet.silent = False
    history.topologies.append(_settled(lambda: api.find(TOPOLOGY), "the node's topology again"))
    history.mirrored, history.families = _settled(lambda: _mirrored(api, koordlet), "gauges of the last report")
    _learn_on(koordlets, view, api, kubelet, history)
    return history


def _learn_on(koordlets: Any, view: Any, api: Api, kubelet: Kubelet, history: History) -> None:
    """koordlet ends and a new one takes over what it had learned."""

    def learned() -> dict[str, Any]:
        return {path.name: json.loads(path.read_text()) for path in (view.state / "predictions").iterdir()}

    assert history.koordlet.terminate() == 0
    history.checkpoints.append(learned())
    kubelet.silent = False
    again = koordlets(
        view, f"--kubeconfig={api.kubeconfig}", f"--kubelet-token-file={view.scratch / 'token'}",
        *QUICK, standalone=False,
    ).wait()  # fmt: skip
    _settled(lambda: again.values("koordlet_prediction_training_steps_total"), "a training step")
    assert again.terminate() == 0
    history.checkpoints.append(learned())


def _forgotten(api: Api, version: str) -> bool:
    """Whether the server no longer knows what nodes were at that version."""
    try:
        api.call("GET", f"/api/v1/nodes?resourceVersion={version}&resourceVersionMatch=Exact")
    except urllib.error.HTTPError as error:
        assert error.code == 410, error
        return True
    return False


def _mirrored(api: Api, koordlet: Any) -> Any:
    """The NodeMetric and all families at a moment when the gauges show that report: reports go on meanwhile."""
    report, families = api.find(METRIC), koordlet.families()
    usage = report["status"]["nodeMetric"]["nodeUsage"]["resources"]
    values = [s.value for s in families["koordlet_node_metric_node_usage"].samples if s.labels["resource"] == "memory"]
    return (report, families) if values == [memory(usage)] else None


def _ticks(koordlet: Any) -> float:
    ticks: float = koordlet.value("koord_periodic_task_runs_total", task="collect-use")
    return ticks


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _ready(koordlet: Any) -> bytes:
    """Body of /readyz?verbose, whatever its status; empty while all is well."""
    try:
        koordlet.get("/readyz?verbose")
    except urllib.error.HTTPError as error:
        body: bytes = error.read()
        return body
    return b""


def _populate(api: Api, kubelet: Kubelet) -> None:
    for crd in crdgen.documents().values():
        if crd["metadata"]["name"] == "nodemetrics.slo.koordinator.sh":
            schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            schema["properties"]["status"]["x-kubernetes-preserve-unknown-fields"] = True  # another client writes too
        api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    end = time.monotonic() + PATIENCE_S
    while api.find("/apis/slo.koordinator.sh/v1alpha1/nodemetrics") is None:
        assert time.monotonic() < end
        time.sleep(0.1)
    api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
        "allocatable": {"cpu": "2", "memory": "4Gi", "kubernetes.io/batch-cpu": "1500"},
    }
    api.patch(f"/api/v1/nodes/{NODE}/status", {"status": status})
    api.call("POST", METRIC.rpartition("/")[0], _node_metric(REPORT_S, 60, ["5m"]))
    slo = {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": NODE},
        "spec": {"hostApplications": [{"name": "agent", "qos": "LS"}]},
    }
    api.call("POST", "/apis/slo.koordinator.sh/v1alpha1/nodeslos", slo)


def cores(resources: dict[str, str]) -> float:
    return Quantity(resources["cpu"]).milli_value() / 1000


def memory(resources: dict[str, str]) -> int:
    return Quantity(resources["memory"]).value()


def _span(history: History, kind: str, *labels: str) -> tuple[float, float]:
    """The time of the samples in the first report: each is the mean since the one before it."""
    times, _ = history.series[0].samples[(kind, *labels)]
    times = times[times <= history.moments[0]]
    return float(times[0] - (times[1] - times[0])), float(times[-1])


def pods_of(report: dict[str, Any]) -> dict[str, Any]:
    return {pod["name"]: pod for pod in report["status"]["podsMetric"]}


def test_node_usage_is_true(history: History) -> None:
    """Within 5 % (and 0.05 cores) of what /proc said over the samples' time."""
    usage = history.reports[0]["status"]["nodeMetric"]["nodeUsage"]["resources"]
    start, end = _span(history, "node_cpu_usage")
    assert end - start > FIRST_S / 2
    kernel = history.witness.delta("node", start, end) / (end - start)
    assert cores(usage) == pytest.approx(kernel, rel=0.05, abs=0.05)
    assert memory(usage) == pytest.approx(history.witness.average("node memory", start, end), rel=0.05)


@pytest.mark.parametrize(("name", "source"), [("web", "worker"), ("job", "batch")])
def test_pod_usage_is_true(history: History, name: str, source: str) -> None:
    """Within 5 % (and 0.02 cores) of the processes' utime + stime."""
    uid = getattr(history, source).pod_uid
    start, end = _span(history, "pod_cpu_usage", uid)
    kernel = history.witness.delta(source, start, end) / (end - start)
    assert kernel > 0.01
    assert cores(pods_of(history.reports[0])[name]["podUsage"]["resources"]) == pytest.approx(
        kernel, rel=0.05, abs=0.02
    )


def test_pods_are_described_and_malformed_ones_cost_only_themselves(history: History) -> None:
    described = pods_of(history.reports[0])
    assert list(described) == ["job", "web"]
    classes = {name: (pod["namespace"], pod["qos"], pod["priority"]) for name, pod in described.items()}
    assert classes == {"web": ("default", "LS", "koord-prod"), "job": ("default", "BE", "koord-batch")}
    for problem in ("lots", "lxd", "uid is empty"):
        assert problem in history.koordlet.log


def test_a_host_application_of_the_node_slo_is_reported(history: History) -> None:
    (app,) = history.reports[0]["status"]["hostApplicationMetric"]
    assert (app["name"], app["qos"], app["priority"]) == ("agent", "LS", "koord-prod")
    assert memory(app["usage"]["resources"]) > 1 << 20


def test_system_usage_is_what_pods_and_applications_leave(history: History) -> None:
    """Within 3 % + 0.03 cores: averages of the same samples."""
    status = history.reports[0]["status"]
    parts = [pod["podUsage"] for pod in status["podsMetric"]] + [
        app["usage"] for app in status["hostApplicationMetric"]
    ]
    left = cores(status["nodeMetric"]["nodeUsage"]["resources"]) - sum(cores(part["resources"]) for part in parts)
    assert cores(status["nodeMetric"]["systemUsage"]["resources"]) == pytest.approx(max(left, 0), rel=0.03, abs=0.05)


def test_a_young_window_is_empty(history: History) -> None:
    (window,) = history.reports[0]["status"]["nodeMetric"]["aggregatedNodeUsages"]
    assert window["duration"] == "5m0s"
    assert window["usage"]["avg"] == {}


def test_collecting_goes_on_while_server_and_kubelet_are_away(history: History) -> None:
    """Both are named in /readyz; pods and figures stay; every tick left its sample; no figure spans koordlet's sleep
    as if it had lasted a tick."""
    assert "informer" in history.ready_while_away
    assert "pods" in history.ready_while_away
    names = {row.get("pod") for row in history.top_while_away["rows"]}
    assert {"web", "job"} <= names
    times, values = history.series[1].samples["node_cpu_usage",]

    def samples(span: tuple[float, float]) -> int:
        return int(((times >= span[0]) & (times <= span[1])).sum())

    assert samples(history.away) >= TICKS_AWAY - 1, "samples are missing while the API server was away"
    assert samples(history.asleep) == 0, "koordlet did not sleep"
    after = int((times <= history.asleep[1]).sum())
    begun, ended = float(times[after - 1]), float(times[after])
    kernel = history.witness.delta("node", begun, ended) / (ended - begun)
    assert values[after] <= 1.5 * kernel + 0.5, "the sleep was taken for a tick"


def test_reports_go_on_after_the_server_came_back(history: History) -> None:
    first, second = history.reports
    assert second["metadata"]["uid"] != first["metadata"]["uid"], "the object was recreated"
    assert second["status"]["updateTime"] > first["status"]["updateTime"]
    assert list(pods_of(second)) == ["job", "web"], "pods stay while the kubelet is silent"


def test_a_changed_policy_is_honoured(history: History) -> None:
    windows = history.reports[1]["status"]["nodeMetric"]["aggregatedNodeUsages"]
    assert [window["duration"] for window in windows] == ["20s", "2m0s"]
    usage = windows[0]["usage"]
    assert set(usage) == {"avg", "p50", "p90", "p95", "p99"}
    assert cores(usage["p50"]["resources"]) <= cores(usage["p99"]["resources"])


def test_the_topology_is_this_machines(history: History) -> None:
    first, second = history.topologies
    assert first["metadata"]["uid"] != second["metadata"]["uid"], "deleted by a user, it is recreated"
    (owner,) = second["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Node", NODE, True)
    annotations = {key.partition("/")[2]: json.loads(text) for key, text in second["metadata"]["annotations"].items()}
    online = parse_cpus(Path("/sys/devices/system/cpu/online").read_text().strip())
    assert [cpu["id"] for cpu in annotations["cpu-topology"]["detail"]] == sorted(online)
    assert frozenset().union(*(parse_cpus(pool["cpuset"]) for pool in annotations["cpu-shared-pools"])) == online
    assert second["topologyPolicies"] == ["None"]
    memory_kib = sum(
        int(path.read_text().split("MemTotal:")[1].split()[0])
        for path in Path("/sys/devices/system/node").glob("node*/meminfo")
    )
    totals = [
        Quantity(resource["capacity"]).value()
        for zone in second["zones"]
        for resource in zone["resources"]
        if resource["name"] == "memory"
    ]
    assert sum(totals) == memory_kib * 1024


def test_prod_is_predicted(history: History) -> None:
    """No more can be overcommitted than the one Prod pod requested; the peak covers what it and the system used."""
    for report in history.reports:
        status = report["status"]
        lent, peak = (status[f"prod{name}Metric"]["resource"]["resources"] for name in ("Reclaimable", "Peak"))
        system = status["nodeMetric"]["systemUsage"]["resources"]
        assert cores(lent) <= 1
        assert memory(lent) <= 1 << 30
        assert cores(peak) >= 0.9 * cores(pods_of(report)["web"]["podUsage"]["resources"])
        assert memory(peak) >= 0.9 * memory(system)


def test_predictions_survive_a_restart(history: History) -> None:
    """The second koordlet went on from the weights that the first one had left: every model weighs more than before."""
    first, second = history.checkpoints
    uids = {history.worker.pod_uid, history.batch.pod_uid}
    classes = {f"__node-{name}__" for name in ("koord-prod", "koord-mid", "koord-batch", "koord-free", "", "sys")}
    assert first.keys() == second.keys() == uids | classes | {"__node__"}
    for key, model in first.items():
        for kind in ("CPU", "Memory"):
            assert second[key][kind]["totalWeight"] > model[kind]["totalWeight"] > 0
            assert second[key][kind]["bucketWeights"].keys() >= {
                bucket for bucket, share in model[kind]["bucketWeights"].items() if share > 100
            }


def test_what_others_wrote_stays(history: History) -> None:
    assert history.reports[1]["status"]["neighbour"] == {"says": "hello"}
    assert history.reports[1]["metadata"]["labels"] == {"whose": "somebody-else"}


def test_a_forgotten_version_makes_informers_list_again(history: History) -> None:
    family = history.families["koord_informer_watch_errors"]
    assert sum(s.value for s in family.samples if s.labels["reason"] == "gone") >= 1


def test_families_that_need_a_cluster_are_served(history: History) -> None:
    def rows(name: str) -> dict[tuple[str, ...], float]:
        return {tuple(s.labels.values()): s.value for s in history.families[name].samples}

    assert rows("koordlet_node_resource_allocatable")[NODE, "kubernetes.io/batch-cpu", "integer"] == 1500
    usage = history.mirrored["status"]["nodeMetric"]["nodeUsage"]["resources"]
    assert rows("koordlet_node_metric_node_usage")[NODE, "cpu", "core"] == pytest.approx(cores(usage))
    predictors = {labels[1] for labels in rows("koordlet_node_predicted_resource_peak")}
    assert predictors == {"podReclaimablePredictor", "priorityReclaimablePredictor", "minPredictor"}
    assert rows("koordlet_node_resource_priority_reclaimable_status") == {(NODE, "koord-prod"): 0}
    assert rows("koordlet_prediction_models")[NODE,] == 9
    outcomes = rows("koordlet_node_metric_reports")
    assert outcomes[NODE, "succeeded"] >= 2
    assert rows("koordlet_be_suppress_be_used_cpu_cores")
    assert rows("koordlet_cpuset_share_pool_cpu_cores")[NODE,] == os.sysconf("SC_NPROCESSORS_ONLN")
    assert rows("koordlet_cpuset_be_share_pool_cpu_cores")[NODE,] == os.sysconf("SC_NPROCESSORS_ONLN")
    assert rows("koordlet_node_topology_reports")[NODE, "created"] == 2
    codes = {s.labels["code"] for s in history.families["koordlet_kubelet_request_duration_seconds"].samples}
    assert "200" in codes
    assert {"agent"} == {
        s.labels["host_application_name"] for s in history.families["koordlet_host_application_resource_usage"].samples
    }
