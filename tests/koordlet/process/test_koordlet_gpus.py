"""GPUs as a koordlet process sees them, from NVML to NodeMetric and Device, and an NVML that hangs.

One history for all tests, because its parts take seconds. The library that stands in for NVIDIA's has NVML's ABI
(tests/nvidia.c), and sysfs shows its devices; processes and cgroups are real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from koordlet.api.encoding import crdgen
from koordlet.system.cgroup.naming import KubeQOS
from tests import nvidia
from tests.koordlet.process.cluster import METRIC, NODE, TOKEN, Api, Kubelet
from tests.koordlet.process.fleet import Fleet, Need, PodSpec
from tests.koordlet.process.patience import until
from tests.ports import free_port

pytestmark = [pytest.mark.kernel, pytest.mark.e2e, pytest.mark.timing]

FIRST, SECOND = "0000:1a:00.0", "0000:c1:00.0"
DEVICE = f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{NODE}"
MIB = 1 << 20
TRAIN = PodSpec("train", KubeQOS.BURSTABLE, "LS", (Need(), Need()))
FLAGS = ("--feature-gates=Accelerators=true", "--kubelet-sync-interval=0.5s", "--probes=off",
         "--node-metric-min-report-interval=1s", "--node-topology-sync-interval=1s")  # fmt: skip


class Node:
    """An API server, a kubelet that shows one pod, and a machine with two GPUs."""

    def __init__(self, tree: Any, view: Any, directory: Path) -> None:
        self.view = view
        self.fleet, self.kubelet = Fleet(tree), Kubelet(directory)
        self.api = Api(directory / "api", free_port())
        self.machine = nvidia.Machine(
            directory,
            [
                nvidia.Gpu(FIRST, "GPU-first", 0, used=40 * nvidia.GIB),
                nvidia.Gpu(SECOND, "GPU-second", 1, numa_node=1),
            ],
        )
        [self.pod] = self.fleet.add(TRAIN)
        self.koordlet: Any = None

    def open(self) -> None:
        """All but koordlet: one container computes on both GPUs, the other on one; another process draws."""
        self.kubelet.pods = self.fleet.manifests(NODE)
        self._sysfs()
        first, second = map(self._process, self.pod.container_dirs)
        self.machine.processes = [
            (FIRST, "C", first, 300 * MIB, 0), (SECOND, "C", first, 100 * MIB, 0),
            (FIRST, "C", second, 200 * MIB, 0), (FIRST, "G", 1, MIB, 0),
        ]  # fmt: skip
        self.machine.tell()
        self.pids = (first, second)
        self.api.start()
        until(self.api.ready, "the API server")
        for crd in crdgen.documents().values():
            self.api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        until(lambda: all(self.api.find(path.rpartition("/")[0]) for path in (METRIC, DEVICE)), "the kinds served")
        self.api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.kubelet.port}},
        }
        self.api.patch(f"/api/v1/nodes/{NODE}/status", {"status": status})
        policy = {"aggregateDurationSeconds": 60, "reportIntervalSeconds": 1}
        metric = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": NODE}}
        self.api.call("POST", METRIC.rpartition("/")[0], {**metric, "spec": {"metricCollectPolicy": policy}})
        (self.view.scratch / "token").write_text(TOKEN)

    def start(self, library: Path, koordlets: Any) -> Any:
        """koordlet, which finds the library and is shown its machine."""
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("LD_LIBRARY_PATH", str(library.parent))
            for name, value in self.machine.environment.items():
                environment.setenv(name, value)
            self.koordlet = koordlets(
                self.view, f"--kubeconfig={self.api.kubeconfig}", f"--kubelet-token-file={self.view.scratch / 'token'}",
                f"--sys-root-dir={self.machine.base / 'sys'}", *FLAGS, standalone=False,
            )  # fmt: skip
        return self.koordlet

    def work(self, at: int, *percents: int) -> None:
        """What the containers' processes had of the first GPU; told once."""
        self.machine.samples = [(FIRST, pid, at, percent) for pid, percent in zip(self.pids, percents, strict=True)]
        self.machine.tell()

    def condition(self, collector: str) -> tuple[float, str]:
        """Whether a collector works, and why not."""
        samples = self.koordlet.families(start="koordlet_collector_up")["koordlet_collector_up"].samples
        [sample] = [candidate for candidate in samples if candidate.labels["collector"] == collector]
        return sample.value, sample.labels["reason"]

    def asked(self) -> int:
        """Times that a GPU was asked for its memory."""
        return self.machine.calls("nvmlDeviceGetMemoryInfo_v2")

    def close(self) -> None:
        self.machine.hangs.clear()
        self.machine.tell()
        self.kubelet.close()
        if self.api.process is not None:
            self.api.kill()
        self.fleet.close()

    def _sysfs(self) -> None:
        """The machine's own, but for its buses."""
        sys = self.machine.base / "sys"
        sys.mkdir()
        for entry in Path("/sys").iterdir():
            if entry.name != "bus":
                (sys / entry.name).symlink_to(entry)

    def _process(self, directory: str) -> int:
        return int((self.fleet.tree.path("cpu", directory) / "cgroup.procs").read_text().split()[0])


@dataclass
class History:
    """What was seen; see the module's text."""

    metrics: dict[tuple[str, ...], float] = field(default_factory=dict)
    """(name, container, minor) -> value, while both containers compute."""
    conditions: dict[str, tuple[float, str]] = field(default_factory=dict)
    metric: dict[str, Any] = field(default_factory=dict)
    """NodeMetric"""
    device: dict[str, Any] = field(default_factory=dict)
    sick: dict[str, Any] = field(default_factory=dict)
    """Device after an Xid error."""
    hung: tuple[float, str] = (1, "")
    ticks_while_hung: int = 0
    calls_while_hung: int = 0
    status: int | None = None
    """koordlet's, ended while NVML hangs."""
    log: str = ""


@pytest.fixture(scope="module")
def history(trees: Any, views: Any, koordlets: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    tree = trees()
    directory = tmp_path_factory.mktemp("gpus")
    (directory / "lib").mkdir()
    library = nvidia.build(directory / "lib")
    node = Node(tree, views(tree, bpffs=False), directory)
    try:
        node.open()
        node.start(library, koordlets).wait_for_figures()
        yield _lived(node, until)
    finally:
        node.close()


def _lived(node: Node, until: Callable[..., Any]) -> History:
    history, koordlet = History(), node.koordlet
    until(lambda: len(_gpu_samples(koordlet, "koordlet_container_gpu_used_memory_bytes")) == 3, "who holds memory")
    at = 0

    def busy() -> bool:
        nonlocal at
        at += 1
        node.work(at, 70, 10)  # new to whatever round comes next
        return _gpu_samples(koordlet, "koordlet_node_gpu_used_core_ratio").get(("", "0")) == 0.8

    until(busy, "a GPU at work")
    for name in ("node_gpu_memory_bytes", "node_gpu_used_memory_bytes", "container_gpu_used_memory_bytes"):
        for labels, value in _gpu_samples(koordlet, f"koordlet_{name}").items():
            history.metrics[name, *labels] = value
    until(lambda: node.condition("gpu_health")[0] == 1, "health to be watched")
    history.conditions = {name: node.condition(name) for name in ("gpu", "gpu_health")}

    def reported() -> Any:
        metric = node.api.find(METRIC) or {}
        usage = metric.get("status", {}).get("nodeMetric", {}).get("nodeUsage", {})
        return metric if usage.get("devices") and metric["status"].get("podsMetric") else None

    history.metric = until(reported, "devices in NodeMetric")
    history.device = until(lambda: node.api.find(DEVICE), "the Device")
    node.machine.events = [(FIRST, nvidia.XID, 79)]
    node.machine.tell()

    def sick() -> Any:
        device = node.api.find(DEVICE)
        return device if any(not info.get("health") for info in device["spec"]["devices"]) else None

    history.sick = until(sick, "an unhealthy GPU in the Device")
    node.machine.hangs.add("nvmlDeviceGetMemoryInfo_v2")
    node.machine.tell()
    history.hung = until(
        lambda: (condition := node.condition("gpu"))[0] == 0 and condition, "the condition of a hung NVML"
    )
    calls, ticks = node.asked(), _runs(koordlet, "collect-use")
    until(lambda: _runs(koordlet, "collect-use") >= ticks + 3, "ticks while NVML hangs")
    history.ticks_while_hung = int(_runs(koordlet, "collect-use") - ticks)
    history.calls_while_hung = node.asked() - calls
    history.status = koordlet.terminate()
    history.log = koordlet.log
    return history


def _gpu_samples(koordlet: Any, name: str) -> dict[tuple[str, str], float]:
    """(container, minor) -> value"""
    family = koordlet.families(start=name).get(name)
    samples = [] if family is None else family.samples
    return {(sample.labels.get("container_name", ""), sample.labels["gpu_minor"]): sample.value for sample in samples}


def _runs(koordlet: Any, task: str) -> float:
    runs: float = koordlet.value("koord_periodic_task_runs_total", task=task)
    return runs


def test_memory_by_gpu_and_container(history: History) -> None:
    assert history.metrics == {
        ("node_gpu_memory_bytes", "", "0"): 80 * nvidia.GIB,
        ("node_gpu_memory_bytes", "", "1"): 80 * nvidia.GIB,
        ("node_gpu_used_memory_bytes", "", "0"): 40 * nvidia.GIB,
        ("node_gpu_used_memory_bytes", "", "1"): 0,
        ("container_gpu_used_memory_bytes", "c0", "0"): 300 * MIB,
        ("container_gpu_used_memory_bytes", "c0", "1"): 100 * MIB,
        ("container_gpu_used_memory_bytes", "c1", "0"): 200 * MIB,
    }


def test_both_collectors_work(history: History) -> None:
    assert history.conditions == {"gpu": (1, ""), "gpu_health": (1, "")}


def test_nodemetric_shows_the_devices_of_node_and_pod(history: History) -> None:
    def memory(usage: dict[str, Any]) -> dict[str, tuple[str, str]]:
        names = ("koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio")
        return {device["id"]: tuple(device["resources"][name] for name in names) for device in usage["devices"]}

    status = history.metric["status"]
    assert memory(status["nodeMetric"]["nodeUsage"]) == {"GPU-first": ("40Gi", "50"), "GPU-second": ("0", "0")}
    [pod] = status["podsMetric"]
    assert memory(pod["podUsage"]) == {"GPU-first": ("500Mi", "0"), "GPU-second": ("100Mi", "0")}


def test_device_shows_what_there_is(history: History) -> None:
    assert history.device["metadata"]["labels"] == {
        "node.koordinator.sh/gpu-vendor": "nvidia",
        "node.koordinator.sh/gpu-model": "H100-80GB-HBM3",
        "node.koordinator.sh/gpu-driver-version": "535.129.03",
    }
    assert [(device["id"], device["minor"], device["health"]) for device in history.device["spec"]["devices"]] == [
        ("GPU-first", 0, True),
        ("GPU-second", 1, True),
    ]
    assert history.device["spec"]["devices"][1]["topology"] == {
        "socketID": -1, "nodeID": 1, "pcieID": "pci0000:c1", "busID": SECOND,
    }  # fmt: skip


def test_an_error_of_the_driver_reaches_the_device(history: History) -> None:
    first, second = history.sick["spec"]["devices"]
    assert (first["health"], second["health"]) == (False, True)
    [condition] = first["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Healthy", "False", "Xid79")
    assert condition["message"] == "Xid error detected on device, error code: 79"
    assert "A GPU is unhealthy" in history.log


def test_a_hanging_nvml_is_reported_and_delays_no_other_figure(history: History) -> None:
    assert history.hung == (0, "NVML has not answered for 10 s")
    assert history.ticks_while_hung >= 3
    assert history.calls_while_hung == 0
    assert history.log.count("NVML has not answered") == 1
    assert history.status == 0
