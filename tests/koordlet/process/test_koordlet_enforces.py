"""A koordlet process changes what NodeSLO asks for on real cgroups, and leaves nothing behind: off, stopped, killed.

One history for all tests: koordlet decides over a best-effort pod and a service beside it; it is killed while its
settings are in place, NodeSLO switches the strategies off, a new one starts; at last they are on again and it stops.
In between the node is one that Koordinator's koordlet left: the same settings, but no ledger.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from koordlet.api.encoding import crdgen
from koordlet.resourceexecutor.takeover import MARK
from koordlet.system.cgroup.naming import KubeQOS, pod_dir
from tests.koordlet.process.cluster import NODE, TOKEN, Api, Kubelet
from tests.koordlet.process.patience import until
from tests.koordlet.process.programs import BURN, duty
from tests.ports import free_port

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

SLO = f"/apis/slo.koordinator.sh/v1alpha1/nodeslos/{NODE}"
ON = {
    "resourceUsedThresholdWithBE": {
        "enable": True,
        "cpuSuppressThresholdPercent": 65,
        "cpuSuppressPolicy": "cfsQuota",
    },
    "cpuBurstStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 100},
    "resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True}}},
}
OFF = {
    "resourceUsedThresholdWithBE": {"enable": False},
    "cpuBurstStrategy": {"policy": "none"},
    "resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": False}}},
}
LIMIT_US = 50_000


@dataclass
class History:
    """Settings by moment: (quota of BestEffort, whether it is idle, burst of the container, burst of its pod)."""

    before: tuple[int, int, int, int] = (0, 0, 0, 0)
    on: tuple[int, int, int, int] = (0, 0, 0, 0)
    page: dict[str, Any] = field(default_factory=dict)
    families: dict[str, Any] = field(default_factory=dict)
    ledger: str = ""
    killed: tuple[int, int, int, int] = (0, 0, 0, 0)
    off: tuple[int, int, int, int] = (0, 0, 0, 0)
    left: tuple[int, int, int, int] = (0, 0, 0, 0)
    taken_over: tuple[int, int, int, int] = (0, 0, 0, 0)
    again: tuple[int, int, int, int] = (0, 0, 0, 0)
    stopped: tuple[int, int, int, int] = (0, 0, 0, 0)
    status: int = -1


def _pod(container: Any, name: str, qos: str, kube_qos: KubeQOS, resources: dict[str, Any]) -> dict[str, Any]:
    status = {"name": "main", "containerID": f"containerd://{container.hash}", "state": {"running": {}}}
    labels = {"koordinator.sh/qosClass": qos}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": container.pod_uid, "labels": labels},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "none", "resources": resources}]},
        "status": {"phase": "Running", "qosClass": kube_qos.value, "containerStatuses": [status]},
    }


def _cluster(api: Api, kubelet: Kubelet) -> None:
    api.start()
    until(api.ready, "the API server")
    for crd in crdgen.documents().values():
        if crd["metadata"]["name"] == "nodeslos.slo.koordinator.sh":
            api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    until(lambda: api.find(SLO.rpartition("/")[0]), "NodeSLO served")
    api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    amounts = {"cpu": "2", "memory": "4Gi"}
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
        "capacity": amounts,
        "allocatable": amounts,
    }
    api.patch(f"/api/v1/nodes/{NODE}/status", {"status": status})
    slo = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeSLO", "metadata": {"name": NODE}, "spec": ON}
    api.call("POST", SLO.rpartition("/")[0], slo)


def _read(path: Path) -> int:
    text = path.read_text().split()[0]
    return -1 if text == "max" else int(text)


def _settings(tree: Any, service: Any) -> Callable[[], tuple[int, int, int, int]]:
    quota, burst = ("cpu.max", "cpu.max.burst") if tree.v2 else ("cpu.cfs_quota_us", "cpu.cfs_burst_us")
    best_effort = tree.path("cpu", "kubepods/besteffort")
    own = service.path("cpu") / burst
    pod = tree.path("cpu", pod_dir(tree.driver, KubeQOS.BURSTABLE, service.pod_uid)) / burst
    return lambda: (_read(best_effort / quota), _read(best_effort / "cpu.idle"), _read(own), _read(pod))


@pytest.fixture(scope="module")
def history(
    trees: Any, views: Any, koordlets: Any, cpus: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[History]:
    tree = trees()
    (service,), (batch,) = tree.pod(KubeQOS.BURSTABLE), tree.pod(KubeQOS.BESTEFFORT)
    pod = tree.path("cpu", pod_dir(tree.driver, KubeQOS.BURSTABLE, service.pod_uid))
    for group in (pod, service.path("cpu")):  # as the kubelet sets a limit of half a core: the pod's first
        if tree.v2:
            (group / "cpu.max").write_text(f"{LIMIT_US} 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text(str(LIMIT_US))
    service.run(duty(0.02, 0.04), cpus[0])
    batch.run(BURN, cpus[0])
    directory = tmp_path_factory.mktemp("cluster")
    api, kubelet = Api(directory / "api", free_port()), Kubelet(directory)
    limits = {"limits": {"cpu": "500m"}}
    kubelet.pods = [
        _pod(service, "web", "LS", KubeQOS.BURSTABLE, limits),
        _pod(batch, "job", "BE", KubeQOS.BESTEFFORT, {}),
    ]
    view = views(tree)
    (view.scratch / "token").write_text(TOKEN)

    def start() -> Any:
        return koordlets(
            view, f"--kubeconfig={api.kubeconfig}", f"--kubelet-token-file={view.scratch / 'token'}",
            "--kubelet-sync-interval=1s", "--probes=off", "--enable-node-metric-report=false",
            "--runtime-hooks-reconcile-interval=1s", f"--var-run-root-dir={view.scratch / 'run'}", standalone=False,
        )  # fmt: skip

    try:
        _cluster(api, kubelet)
        yield _live(api, start, view, _settings(tree, service))
    finally:
        kubelet.close()
        if api.process is not None:
            api.kill()
        for container in tree.containers:
            container.end()


def _live(api: Api, start: Callable[[], Any], view: Any, settings: Callable[[], Any]) -> History:
    history = History(before=settings())

    def suppressed() -> Any:
        quota, *rest = settings()
        return quota > 0 and all(rest) and settings()

    koordlet = start()
    history.on = until(suppressed, "settings of NodeSLO")
    history.page = json.loads(koordlet.get("/enforcement"))
    history.families = until(
        lambda: (families := koordlet.families()).get("koordlet_be_suppress_cpu_cores") and families, "figures"
    )
    history.ledger = (view.state / "settings.json").read_text()
    koordlet.kill()
    history.killed = settings()
    api.patch(SLO, {"spec": OFF})
    koordlet = start()
    until(lambda: settings() == history.before, "restoring of what the killed one left")
    history.off = settings()
    api.patch(SLO, {"spec": ON})
    until(suppressed, "settings before the predecessor ends")
    koordlet.kill()
    history.left = settings()
    (view.state / "settings.json").unlink()
    (view.scratch / "run" / MARK).mkdir(parents=True)
    api.patch(SLO, {"spec": OFF})
    koordlet = start()
    until(lambda: settings() == history.before, "resetting of what the predecessor left")
    history.taken_over = settings()
    api.patch(SLO, {"spec": ON})
    history.again = until(suppressed, "the settings again")
    history.status = koordlet.terminate()
    history.stopped = settings()
    return history


def test_best_effort_gets_what_the_threshold_leaves(history: History) -> None:
    """65 % of two cores less what the service uses, whatever else the machine does."""
    assert history.before == (-1, 0, 0, 0)
    quota, idle, _, _ = history.on
    assert idle == 1, "best effort runs when nothing else wants to"
    assert 2_000 <= quota <= 130_000
    assert history.families["koordlet_be_suppress_cpu_cores"].samples[0].labels["type"] == "cfsQuota"
    assert 0 <= history.families["koordlet_be_suppress_ls_used_cpu_cores"].samples[0].value <= os.cpu_count()


def test_the_service_may_save_unused_quota_up_to_its_limit(history: History) -> None:
    assert history.on[2:] == (LIMIT_US, LIMIT_US)


def test_the_page_names_owner_value_and_original_of_each_setting(history: History) -> None:
    rows = {row["setting"].rpartition("/")[2]: row for row in history.page["settings"]}
    assert (rows["cpu.cfs_quota_us"]["owner"], rows["cpu.cfs_quota_us"]["was"]) == ("cpusuppress", -1)
    assert (rows["cpu.cfs_burst_us"]["owner"], rows["cpu.cfs_burst_us"]["was"]) == ("cpuburst", 0)
    assert not any("problem" in row for row in rows.values())
    assert "best effort" in history.page["strategies"]["cpusuppress"]


def test_a_kill_leaves_settings_and_the_ledger_knows_what_was_there(history: History) -> None:
    assert history.killed[1:] == (1, LIMIT_US, LIMIT_US)
    assert history.killed[0] > 0
    assert "cfs_quota_us" in history.ledger


def test_switched_off_after_a_kill_everything_is_as_it_was(history: History) -> None:
    assert history.off == history.before


def test_switched_off_after_a_predecessor_everything_is_neutral(history: History) -> None:
    assert history.left[1:] == (1, LIMIT_US, LIMIT_US)
    assert history.taken_over == history.before


def test_a_stop_gives_everything_back(history: History) -> None:
    assert history.again[0] > 0
    assert history.status == 0
    assert history.stopped == history.before
