"""A koordlet process throttles a best-effort burner that delays a service, and releases it when it has ended; and it
says on the Node what of a NodeSLO it does not take.

One history for all tests. Group identity is off and both pods weigh the same, so that the burner really delays the
service: it gets less and less CPU until the service is well, and all of it back afterwards. What the service waits is
the kernel's word (schedstat of its threads), not koordlet's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from koordlet.api.encoding import crdgen
from koordlet.system.cgroup.naming import KubeQOS, pod_dir
from tests.koordlet.process.cluster import NODE, TOKEN, Api, Kubelet
from tests.koordlet.process.kernelfigures import run_delay_seconds
from tests.koordlet.process.patience import until
from tests.koordlet.process.programs import BURN, duty, touch
from tests.koordlet.process.witness import Witness, boot_time
from tests.ports import free_port

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

SLO = f"/apis/slo.koordinator.sh/v1alpha1/nodeslos/{NODE}"
STEP, FLOOR, RELEASE = 50, 20, 4
ACTIONS = {"cpu": {"enable": True, "stepPercent": STEP, "floorPercent": FLOOR, "intervalSeconds": 2,
                   "releaseSeconds": RELEASE}}  # fmt: skip
KEEN = {"lostPercent": 4, "minLostPercent": 2}
"""The service still counts as delayed at the floor, so that the floor is reached whatever else the machine does."""
STRATEGY = {"interferenceStrategy": {"minDurationSeconds": 2, "windowSeconds": 2, "cpu": KEEN, "actions": ACTIONS}}
SERVICE = (0.004, 0.008)
"""Seconds of work and of sleep: a service that wants a third of a CPU."""


@dataclass
class History:
    """Quotas of the burner's pod by moment, what the service waited, and what was said."""

    before: int = 0
    floor: int = 0
    freed: int = 0
    hurt: float = 0.0
    """Seconds a second that the service waited while the burner had everything, and at the floor."""
    relieved: float = 0.0
    page: dict[str, Any] = field(default_factory=dict)
    culprit: dict[str, Any] = field(default_factory=dict)
    victim: dict[str, Any] = field(default_factory=dict)
    families: dict[str, Any] = field(default_factory=dict)
    events: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    bystander: int = 0
    """Quota of another best-effort pod, which does nothing."""
    log: str = ""
    invalid: dict[str, Any] = field(default_factory=dict)
    not_taken: dict[str, str] = field(default_factory=dict)
    problems: list[float] = field(default_factory=list)
    valid: dict[str, Any] = field(default_factory=dict)


def _pod(container: Any, name: str, qos: str, kube_qos: KubeQOS) -> dict[str, Any]:
    status = {"name": "main", "containerID": f"containerd://{container.hash}", "state": {"running": {}}}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": container.pod_uid,
                     "labels": {"koordinator.sh/qosClass": qos}},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "none"}]},
        "status": {"phase": "Running", "qosClass": kube_qos.value, "containerStatuses": [status]},
    }  # fmt: skip


def _cluster(api: Api, kubelet: Kubelet) -> None:
    api.start()
    until(api.ready, "the API server")
    for crd in crdgen.documents().values():
        if crd["metadata"]["name"] == "nodeslos.slo.koordinator.sh":
            api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    until(lambda: api.find(SLO.rpartition("/")[0]), "NodeSLO served")
    api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    amounts = {"cpu": "2", "memory": "4Gi"}
    status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
              "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
              "capacity": amounts, "allocatable": amounts}  # fmt: skip
    api.patch(f"/api/v1/nodes/{NODE}/status", {"status": status})
    spec = {"extensions": STRATEGY}
    slo = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeSLO", "metadata": {"name": NODE}, "spec": spec}
    api.call("POST", SLO.rpartition("/")[0], slo)


def _quota(tree: Any, container: Any) -> Callable[[], int]:
    directory = tree.path("cpu", pod_dir(tree.driver, KubeQOS.BESTEFFORT, container.pod_uid))
    path: Path = directory / ("cpu.max" if tree.v2 else "cpu.cfs_quota_us")

    def read() -> int:
        text = path.read_text().split()[0]
        return -1 if text == "max" else int(text)

    return read


@pytest.fixture(scope="module")
def history(
    trees: Any, views: Any, koordlets: Any, cpus: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[History]:
    tree = trees(weight=100)  # strangers hardly count
    (service,), (burner,) = tree.pod(KubeQOS.BURSTABLE), tree.pod(KubeQOS.BESTEFFORT)
    (idler,) = tree.pod(KubeQOS.BESTEFFORT)
    directory = tmp_path_factory.mktemp("cluster")
    api, kubelet = Api(directory / "api", free_port()), Kubelet(directory)
    kubelet.pods = [
        _pod(service, "web", "LS", KubeQOS.BURSTABLE),
        _pod(burner, "burn", "BE", KubeQOS.BESTEFFORT),
        _pod(idler, "idle", "BE", KubeQOS.BESTEFFORT),
    ]
    view = views(tree)
    (view.scratch / "token").write_text(TOKEN)
    try:
        _cluster(api, kubelet)
        koordlet = koordlets(
            view, f"--kubeconfig={api.kubeconfig}", f"--kubelet-token-file={view.scratch / 'token'}",
            "--kubelet-sync-interval=1s", "--enable-node-metric-report=false", standalone=False,
        ).wait()  # fmt: skip
        yield _live(api, koordlet, (service, burner, idler), _quota(tree, burner), _quota(tree, idler), cpus[0])
    finally:
        kubelet.close()
        if api.process is not None:
            api.kill()
        for container in tree.containers:
            container.end()


def _condition(api: Api, status: str) -> dict[str, Any] | None:
    conditions = api.call("GET", f"/api/v1/nodes/{NODE}")["status"].get("conditions", [])
    return next(
        (
            condition
            for condition in conditions
            if condition["type"] == "NodeSLOInvalid" and condition["status"] == status
        ),
        None,
    )


def _live(
    api: Api, koordlet: Any, pods: Any, quota: Callable[[], int], bystander: Callable[[], int], cpu: int
) -> History:
    service, burner, idler = pods
    history = History(before=quota())
    idler.run(touch(1), cpu)
    pid = service.run(duty(*SERVICE), cpu)
    burner.run(BURN, cpu)
    with Witness({"wait": lambda: run_delay_seconds(pid)}) as witness:
        started = boot_time()
        until(lambda: quota() > 0, "a first step")
        tightened = boot_time()
        history.page = until(
            lambda: (page := json.loads(koordlet.get("/enforcement"))).get("heldBack", [{}])[0].get("floor") and page,
            "the floor",
        )
        history.floor = until(quota, "the quota")
        reached = boot_time()
        history.culprit = json.loads(koordlet.get("/interference?pod=default/burn"))
        history.victim = json.loads(koordlet.get("/interference?pod=default/web"))
        history.families = koordlet.families()
        history.bystander = bystander()
        until(lambda: boot_time() > reached + 4.5, "seconds at the floor")
        history.hurt = witness.delta("wait", started + 0.3, tightened) / (tightened - started - 0.3)
        history.relieved = witness.delta("wait", reached + 0.3, reached + 4.3) / 4.0
    burner.end()
    until(lambda: quota() == history.before, "everything restored")
    history.freed = quota()

    def told() -> dict[tuple[str, str], dict[str, Any]]:
        items = api.call("GET", "/api/v1/namespaces/default/events")["items"]
        return {(item["involvedObject"]["name"], item["reason"]): item for item in items}

    until(lambda: ("burn", "InterferenceFreed") in told(), "the last Event")
    api.patch(SLO, {"spec": {"cpuBurstStrategy": {"policy": "always"}, "systemStrategy": {"watermarkScaleFactor": 20}}})
    history.invalid = until(lambda: _condition(api, "True"), "the condition on the Node")
    history.not_taken = json.loads(koordlet.get("/enforcement"))["nodeSLO"]
    history.problems = koordlet.values("koordlet_node_slo_problems", section="cpuBurstStrategy")
    until(lambda: (NODE, "NodeSLONotTaken") in told(), "the Event on the Node")
    api.patch(SLO, {"spec": {"cpuBurstStrategy": {"policy": "none"}}})
    history.valid = until(lambda: _condition(api, "False"), "the condition taken back")
    history.events = told()
    history.log = koordlet.log
    assert koordlet.terminate() == 0
    return history


def test_only_the_burner_is_throttled_to_its_floor(history: History) -> None:
    (held,) = history.page["heldBack"]
    assert (held["pod"], held["resource"], held["percent"]) == ("burn", "cpu", FLOOR)
    assert history.floor == max(held["had"] * FLOOR // 100 * 100, 2_000)
    assert history.before == history.bystander == -1


def test_the_service_waits_less(history: History) -> None:
    """It wants a third of a CPU and shares it with one that takes all; a fifth of that is left to the other."""
    assert history.hurt > 0.1
    assert history.relieved < 0.7 * history.hurt


def test_the_burner_gets_everything_back(history: History) -> None:
    assert history.freed == history.before == -1
    steps = [line for line in history.log.splitlines() if "InterferenceReleased" in line]
    assert len(steps) == 1, "from the floor over one step to all of it"


def test_culprit_and_victim_get_an_event(history: History) -> None:
    on_culprit, on_victim = (history.events[name, "InterferenceTightened"] for name in ("burn", "web"))
    assert on_culprit["type"] == "Warning"
    assert "cpu is throttled: container main of default/web waits for a CPU because of it" in on_culprit["message"]
    assert "default/burn, which delays it, gets less cpu" in on_victim["message"]
    assert {name for name, reason in history.events if reason == "InterferenceTightened"} == {"burn", "web"}


def test_pages_and_figures_show_the_throttling(history: History) -> None:
    owners = {row["setting"].rpartition("/")[2]: row["owner"] for row in history.page["settings"]}
    assert owners["cpu.cfs_quota_us"] == "interferenceactions"
    assert "default/burn cpu" in history.page["strategies"]["interferenceactions"]
    assert [entry["pod"] for entry in history.culprit["heldBack"]] == ["burn"]
    assert [entry["pod"] for entry in history.victim["heldBackFor"]] == ["burn"]
    (level,) = history.families["koordlet_interference_action_level"].samples
    assert level.labels["pod_name"] == "burn" and level.value == FLOOR / 100
    steps = {s.labels["step"]: s.value for s in history.families["koordlet_interference_action_steps"].samples
             if s.name.endswith("_total")}  # fmt: skip
    assert steps["tighten"] >= 2


def test_a_condition_names_the_part_of_the_policy_that_is_not_in_force(history: History) -> None:
    """An unknown word in one section; the other section is taken."""
    assert "cpuBurstStrategy.policy: 'always' is not one of none, cpuBurstOnly" in history.invalid["message"]
    assert list(history.not_taken) == ["cpuBurstStrategy.policy"]
    assert history.problems == [1.0]
    event = history.events[NODE, "NodeSLONotTaken"]
    assert event["type"] == "Warning" and "cpuBurstStrategy.policy" in event["message"]
    assert (history.valid["reason"], history.valid["message"]) == ("NodeSLOAccepted", "all of NodeSLO is in force")
