"""koordlet as Koordinator's own DaemonSet starts it (every gate of both stages, flags of parts that ours does not have)
on a machine that lacks most of what the gates want and in a cluster without NodeSLO and NodeMetric (spec 02 §1.2, §13).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from koordlet.api.encoding import crdgen
from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.cluster import NODE, TOKEN, TOPOLOGY, Api, Kubelet
from tests.koordlet.process.documented import undocumented
from tests.koordlet.process.fleet import Fleet, PodSpec
from tests.koordlet.process.patience import until
from tests.ports import free_port

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]

SHIPPED = (
    "-feature-gates=AllAlpha=true,AllBeta=true", "-runtime-hooks-network=unix", "-logtostderr=true", "-v=4",
    "-kubelet-sync-interval=1s", "-node-topology-sync-interval=1s", "-cpi-collector-interval=3s",
    "-collect-cpi-timewindow=1s",
    "-coldpage-collector-interval=1s", "-cold-page-window=5s", "-resctrl-collector-interval=1s",
    "-enable-resctrl-collector", "-enable-pagecache-collector", "-tsdb-path=/metric-data/",
    "-metric-expire-seconds=1800", "-configmap-name=koordlet-config",
)  # fmt: skip
IN_VAIN = {"--tsdb-path", "--metric-expire-seconds", "--configmap-name"}
OPTIONAL = {"psi", "cpi", "cold_memory", "resctrl", "node_storage_info"}
ROUNDS = 5
ASKING = {"pods", "report-node-topology", "node-slo-condition"}
"""Tasks that ask a server: on a busy machine an answer may come too late, and they ask again."""
FAULTS = ("strategy failed", "State callback failed", "Handler failed", "Background task", "Cannot start")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Api, Kubelet]]:
    """A Node without NodeSLO and NodeMetric."""
    api, kubelet = Api(tmp_path / "api", free_port()), Kubelet(tmp_path)
    try:
        api.start()
        until(api.ready, "the API server")
        for crd in crdgen.documents().values():
            api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        for path in (TOPOLOGY, f"/apis/slo.koordinator.sh/v1alpha1/nodeslos/{NODE}"):
            until(partial(api.find, path.rpartition("/")[0]), path)
        api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
            "capacity": {"cpu": "2", "memory": "4Gi"},
            "allocatable": {"cpu": "2", "memory": "4Gi"},
        }
        api.patch(f"/api/v1/nodes/{NODE}/status", {"status": status})
        yield api, kubelet
    finally:
        kubelet.close()
        if api.process is not None:
            api.kill()


def test_it_starts_and_serves(cluster: tuple[Api, Kubelet], trees: Any, views: Any, koordlets: Any) -> None:
    api, kubelet = cluster
    fleet = Fleet(trees())
    try:
        fleet.add(PodSpec("web", KubeQOS.BURSTABLE, "LS"))
        fleet.add(PodSpec("job", KubeQOS.BESTEFFORT, "BE"))
        kubelet.pods = fleet.manifests(NODE)
        view = views(fleet.tree, also=("mount -t tmpfs tmpfs /run",))  # its sockets are its own
        (view.scratch / "token").write_text(TOKEN)
        koordlet = koordlets(
            view, f"--kubeconfig={api.kubeconfig}", f"--kubelet-token-file={view.scratch / 'token'}",
            f"--audit-log-dir={view.state / 'audit'}", *SHIPPED, standalone=False,
        ).wait()  # fmt: skip
        until(lambda: koordlet.answer("/readyz") is not None, "every condition to be good")
        until(lambda: api.find(TOPOLOGY), "the node's topology")

        def runs() -> dict[str, float]:
            name = "koord_periodic_task_runs"
            samples = koordlet.families("/internal-metrics", name)[name].samples
            return {sample.labels["task"]: sample.value for sample in samples if sample.name.endswith("_total")}

        quick = ("collect-use", "qos", "report-node-topology", "pods")
        before = runs()
        assert set(quick) <= before.keys()
        until(lambda: all(runs()[task] >= before[task] + ROUNDS for task in quick), "some rounds of everything")
        families = koordlet.families()
        assert undocumented(families) == []
        up = {s.labels["collector"]: (s.value, s.labels["reason"]) for s in families["koordlet_collector_up"].samples}
        assert up.keys() >= OPTIONAL
        assert {name for name, (value, reason) in up.items() if not value and not reason} == set(), up
        failures = families["koord_periodic_task_failures"].samples
        failed = {s.labels["task"] for s in failures if s.value and s.name.endswith("_total")}
        assert failed <= ASKING, koordlet.log
        assert {row["pod"] for row in koordlet.top()["rows"] if row.get("pod")} == {"web", "job"}
        lines = koordlet.log.splitlines()
        assert {name for name in IN_VAIN if any(f'flag="{name}"' in line for line in lines)} == IN_VAIN
        assert [line for line in lines if any(f'"{fault}' in line for fault in FAULTS)] == []
        events = [json.loads(line) for line in koordlet.get("/events").decode().splitlines()]
        assert {event["reason"] for event in events} >= {"KoordletStarted"}
        assert koordlet.terminate() == 0
    finally:
        fleet.close()
