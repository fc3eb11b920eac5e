"""What a running koordlet serves, held to the catalogue, to Prometheus' own tools and to what counters are."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from koordlet.prometheus.catalogue import FAMILIES
from koordlet.prometheus.family import EXTERNAL, INTERNAL
from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.documented import undocumented
from tests.koordlet.process.patience import until
from tests.koordlet.process.programs import BURN, duty
from tests.ports import free_port

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

NEEDS_A_CLUSTER = {
    "koordlet_cpuset_share_pool_cpu_cores",
    "koordlet_cpuset_be_share_pool_cpu_cores",
    "koordlet_node_topology_reports_total",
    "koordlet_kubelet_request_duration_seconds",
    "koordlet_kubelet_own_delay_seconds_total",
    "koordlet_kubelet_decoded_bytes_total",
    "koordlet_kubelet_postponed_pods_total",
    "koordlet_node_resource_allocatable",
    "koordlet_container_resource_requests",
    "koordlet_container_resource_limits",
    "koordlet_node_metric_node_usage",
    "koordlet_node_metric_system_usage",
    "koordlet_node_metric_reports_total",
    "koordlet_node_metric_numa_node_usage",
    "koordlet_node_metric_numa_system_usage",
    "koordlet_node_metric_early_reports_total",
    "koordlet_node_predicted_resource_reclaimable",
    "koordlet_node_predicted_resource_peak",
    "koordlet_node_priority_resource_reclaimable",
    "koordlet_node_resource_priority_reclaimable_status",
    "koordlet_prediction_models",
    "koordlet_prediction_training_steps_total",
    "koordlet_prediction_peak_error_ratio",
    "koordlet_prediction_peak_exceeded_total",
}
NEEDS_MORE = {
    "koordlet_cpuset_share_pool_info",  # gate PerCPUMetric
    "koordlet_cpuset_be_share_pool_info",
    "koordlet_host_application_resource_usage",  # a NodeSLO
    "koordlet_be_suppress_be_used_cpu_cores",  # the QoS directories, which only a kubelet's node has for certain
    "koordlet_collector_failures_total",  # something that fails
    "koordlet_audit_events_total",  # gate AuditEvents
    "koordlet_audit_written_bytes_total",  # the same
    "koordlet_state_callback_failures_total",  # a callback that fails
    "koordlet_mem_stall_seconds",  # a container that is short of memory
    "koordlet_mem_stall_kind_seconds_total",
    "koordlet_mem_stall_culprit_share",
    "koordlet_oom_kills_total",
    "koordlet_block_io_throttled_seconds_total",  # a container with an I/O limit
    "koordlet_net_retransmits_total",  # a container with connections
    "koordlet_net_receive_queue_full_total",
    "koordlet_net_backlog_bytes",
    "koordlet_interference_action_level",  # a best-effort pod that is throttled
    "koordlet_interference_action_steps_total",
    "koordlet_resource_actions_total",  # reclaim on cgroup v2
    "koordlet_container_cpi",  # hardware counters
    "koordlet_node_gpu_memory_bytes",  # GPUs and gate Accelerators
    "koordlet_node_gpu_used_memory_bytes",
    "koordlet_node_gpu_used_core_ratio",
    "koordlet_container_gpu_used_memory_bytes",
    "koordlet_container_gpu_used_core_ratio",
    "koordlet_gpu_healthy",
    "koordlet_gpu_xid_errors_total",
    "koordlet_device_reports_total",  # an API server and gate Accelerators or RDMADevices
    "koordlet_resource_slice_reports_total",  # an API server and gate ResourceSlices
    "koordlet_resctrl_llc_occupancy",  # resctrl
    "koordlet_resctrl_memory_bandwidth",
    "koordlet_container_core_sched_cookie",  # a kernel with core scheduling
    "koordlet_core_sched_cookie_manage_status",
    "koordlet_pod_eviction",  # a node in need
    "koordlet_pod_eviction_detail",
    "koordlet_node_slo_problems",  # a NodeSLO with problems
    "koordlet_settings",  # an API server
    "koordlet_setting_problems",
    "koordlet_be_suppress_cpu_cores",  # a strategy that writes
    "koordlet_be_suppress_ls_used_cpu_cores",
    "koordlet_container_scaled_cfs_burst_us",
    "koordlet_container_scaled_cfs_quota_us",
    "koordlet_resource_update_duration_milliseconds",
    "koordlet_runtime_hook_reconciler_invoked_duration_milliseconds",
    "koordlet_runtime_hook_invoked_duration_milliseconds",  # a runtime that asks
    "koordlet_runtime_hook_calls_total",
    "koordlet_container_oom_score_adj",  # an annotation
    "koordlet_runtime_hook_newborn_pods",
    "koordlet_runtime_hook_protocol_up",
    "koordlet_pod_resources_calls_total",  # gate PodResourcesProxy
    "koordlet_pod_resources_proxy_up",
    "koordlet_resource_update_problems_total",
}
SOMETIMES = {
    "koordlet_block_io_bytes_total",  # the containers' programs may have to be read from the disk
    "koordlet_block_io_operations_total",
    "koordlet_block_io_seconds",
    "koordlet_block_io_wait_seconds_total",
    "koordlet_block_io_culprit_wait_seconds_total",
    # a packet of another container may interrupt the container and raise a suspicion
    "koordlet_net_softirq_seconds_total",
    "koordlet_net_softirq_caused_seconds_total",
    "koordlet_net_softirq_culprit_seconds_total",
    "koordlet_interference_state",
    "koordlet_interference_score",
    "koordlet_interference_lost_ratio",
}
PRESSURE = {f"koordlet_{level}_{name}" for level in ("container", "pod") for name in ("psi", "psi_stall_seconds_total")}
COLLECTORS = (
    "--feature-gates=ColdPageCollector=true,BlkIOReconcile=true",
    "--cold-page-window=1s",
    "--coldpage-collector-interval=1s",
)
KOORDINATORS_SPELLING = {
    "koordlet_collect_node_cpu_info_status",
    "koordlet_collect_node_numa_info_status",
    "koordlet_collect_node_local_storage_info_status",
    "koordlet_start_time",
    "koordlet_container_psi",
    "koordlet_pod_psi",
}


@pytest.fixture(scope="module")
def exporter() -> Iterator[tuple[str, list[str]]]:
    """URL of a third-party exporter, and the lines that it serves."""
    lines: list[str] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write("".join(lines).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Not to stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/metrics", lines
        server.shutdown()


@pytest.fixture(scope="module")
def served(
    trees: Callable[..., Any],
    views: Any,
    koordlets: Any,
    cpus: Any,
    exporter: tuple[str, list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    tree = trees()
    (worker, _), (batch,) = tree.pod(KubeQOS.BURSTABLE, 2), tree.pod(KubeQOS.BESTEFFORT)
    url, lines = exporter
    lines.append(f'container_cpi{{container_id="{worker.key}"}} 1.5\n')
    advisors = tmp_path_factory.mktemp("advisors") / "advisors.json"
    figures = [{"name": "cpi", "metric": "container_cpi"}]
    advisors.write_text(
        json.dumps({"advisors": [{"name": "pmu", "url": url, "intervalSeconds": 5, "figures": figures}]})
    )
    koordlet = koordlets(views(tree), *COLLECTORS, f"--external-advisors={advisors}").wait()
    worker.run(duty(0.02, 0.02), cpus[0])
    batch.run(BURN, cpus[0])
    for name in ("culprit_wait_seconds_total", "wait_seconds_total"):  # the first is read at each scrape, the other not
        until(
            partial(koordlet.values, f"koordlet_sched_latency_{name}", container_id=worker.key),
            f"{name} of the worker",
        )
    until(lambda: koordlet.values("koordlet_external_advisor_figure", container_id=worker.key), "external figures")
    until(lambda: koordlet.values("koordlet_container_memory_cold_bytes", container_id=worker.key), "cold bytes")
    until(
        lambda: koordlet.values("koordlet_interference_culprit_share", container_id=worker.key),
        "the culprits of the worker",
    )
    yield koordlet, worker, batch
    for container in tree.containers:
        container.end()


def _label_sets(family: Any) -> set[frozenset[str]]:
    return {frozenset(sample.labels) - {"le"} for sample in family.samples}


@pytest.fixture(scope="module")
def page(served: Any) -> dict[str, Any]:
    """One scrape for all families."""
    families: dict[str, Any] = served[0].families()
    return families


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_family_is_served_as_in_the_catalogue(served: Any, page: dict[str, Any], family: Any) -> None:
    _, worker, _ = served
    served_family = page.get(family.full_name.removesuffix("_total") if family.type == "counter" else family.full_name)
    needs = NEEDS_A_CLUSTER | NEEDS_MORE
    if not _has_pressure(worker):
        needs = needs | PRESSURE
    if family.full_name in needs:
        assert served_family is None or not served_family.samples
        return
    if family.full_name in SOMETIMES and (served_family is None or not served_family.samples):
        return
    assert served_family is not None, "not served"
    assert served_family.samples, "served empty"
    assert _label_sets(served_family) == {frozenset(family.all_labels)}
    assert served_family.documentation == family.help
    expected = "unknown" if family.type == "counter" and not family.name.endswith("_total") else family.type
    assert served_family.type == expected
    assert all(sample.labels.get("node", "own-node") == "own-node" for sample in served_family.samples)


def _has_pressure(container: Any) -> bool:
    tree = container.tree
    return ("" if tree.v2 else "unified") in tree.roots and Path("/proc/pressure").is_dir()


def test_external_advisors_are_read_under_the_syscall_filter(served: Any) -> None:
    """The whole process: its threads have the filter, and it resolves, connects and reads as it must."""
    koordlet, worker, _ = served
    threads = list(Path(f"/proc/{koordlet.process.pid}/task").glob("*/status"))
    assert threads and all("Seccomp:\t2\n" in status.read_text() for status in threads)
    assert koordlet.value("koordlet_external_advisor_figure", container_id=worker.key) == 1.5


def test_nothing_is_served_that_the_page_does_not_define(served: Any) -> None:
    for path in ("/metrics", "/internal-metrics", "/external-metrics"):
        assert not undocumented(served[0].families(path)), path


def test_metrics_is_both_sides(served: Any) -> None:
    koordlet = served[0]
    pages = {path: set(koordlet.families(path)) for path in ("/metrics", "/internal-metrics", "/external-metrics")}
    assert pages["/metrics"] == pages["/internal-metrics"] | pages["/external-metrics"]
    assert not pages["/internal-metrics"] & pages["/external-metrics"]
    for side, path in ((INTERNAL, "/internal-metrics"), (EXTERNAL, "/external-metrics")):
        names = {family.full_name.removesuffix("_total") for family in FAMILIES if family.side == side}
        assert {name for name in pages[path] if name.startswith("koordlet_") and "provider" not in name} <= names


def test_counters_never_run_back(served: Any) -> None:
    """Also not those of culprits, whose shares are estimated: Prometheus would take that for a restart."""
    last: dict[tuple[Any, ...], float] = {}
    for _ in range(8):
        for family in served[0].families().values():
            for sample in family.samples:
                if family.type == "counter" or sample.name.endswith(("_bucket", "_count", "_sum")):
                    key = (sample.name, *sorted(sample.labels.items()))
                    assert sample.value >= last.get(key, 0.0), key
                    last[key] = sample.value
        time.sleep(0.7)
    assert last


def test_a_page_is_well_formed_for_promtool(served: Any) -> None:
    """Parses; complaints of the linter are only about names that are Koordinator's."""
    done = subprocess.run(["promtool", "check", "metrics"], input=served[0].get("/metrics"), capture_output=True)
    complaints = done.stderr.decode().splitlines()
    assert done.returncode in (0, 3), complaints
    assert {line.split()[0] for line in complaints} <= KOORDINATORS_SPELLING


def test_prometheus_scrapes_and_answers(served: Any, tmp_path: Path) -> None:
    koordlet, worker, batch = served
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: koordlet\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{koordlet.port}']}}]\n"
    )
    port = free_port()
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        prometheus = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(query: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                result: list[dict[str, Any]] = json.load(response)["data"]["result"]
        except OSError:
            assert prometheus.poll() is None, (tmp_path / "log").read_text()
            return []
        return result

    try:
        selector = f'koordlet_container_cpu_usage_cores{{container_id="{batch.key}"}}'
        pair = f'{{container_id="{worker.key}",culprit_pod="{batch.pod_uid}"}}'
        rate = f"rate(koordlet_sched_latency_culprit_wait_seconds_total{pair}[10s])"
        result = until(lambda: ask(f"avg_over_time({selector}[5s]) > 0.05"), "an answer of Prometheus")
        blamed = until(lambda: ask(f"{rate} > 0.01"), "a rate of waiting")
    finally:
        prometheus.terminate()
        prometheus.wait(60)
    assert float(result[0]["value"][1]) <= 1.1, "a process on one CPU"
    assert blamed[0]["metric"]["node"] == "own-node"
    assert float(blamed[0]["value"][1]) <= 1.0
