"""GPUs from NVML to series, facts, metrics and NodeMetric; a call that hangs or fails is reported and costs no other
figure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC
from math import isnan
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from koordlet.api.encoding.wire import Time, to_builtins
from koordlet.devices.gpus import RETRY_SECONDS, GpuProcessUse, Gpus, GpuSnapshot, GpuUse
from koordlet.devices.health import GpuHealth
from koordlet.devices.model import DeviceFault, GpuInfo
from koordlet.devices.nvml import XID
from koordlet.metriccache import Batch, MetricCache
from koordlet.metriccache.facts import FACT_GPU, FACT_GPU_DRIVER, FACT_GPU_FAULTS
from koordlet.metricsadvisor.conditions import CollectorCondition, CollectorConditions
from koordlet.metricsadvisor.periodic.gpu import ContainerPaths, GpuCollector, by_container, by_pod
from koordlet.prometheus import Registries
from koordlet.statesinformer.nodemetric.status import ReportPolicy, build_status
from koordlet.statesinformer.pods.model import ContainerMeta, PodMeta, Subject, SubjectKind, Workloads, subjects_of
from tests.koordlet.roots import roots_under
from tests.nvidia import GIB, Gpu, Machine, build, load
from tests.present import present

FIRST, SECOND = "0000:1a:00.0", "0000:c1:00.0"
PATIENCE = 120.0


def pod(uid: str, *containers: str, ended: tuple[str, ...] = ()) -> PodMeta:
    where = f"kubepods/burstable/pod{uid}"
    metas = [ContainerMeta(f"containerd://{name}", name, f"{where}/{name}", name not in ended) for name in containers]
    return PodMeta(uid, f"{uid}-0", "ns", "LS", "koord-prod", "Burstable", where, tuple(metas))


TRAIN, SERVE = pod("train", "main", "side"), pod("serve", "old", "new", ended=("old",))
PODS = {key.uid: key for key in (TRAIN, SERVE)}
SUBJECTS = tuple(subject for pod in PODS.values() for subject in subjects_of(pod))
MAIN = "kubepods/burstable/podtrain/main"


# --- whose a process is

PATHS = {
    "itself": (MAIN, "main"),
    "a cgroup that it made": (f"{MAIN}/init.scope/worker", "main"),
    "a container in it": (f"{MAIN}/docker/abc", "main"),
    "below what koordlet sees": (f"machine.slice/node-1/{MAIN}", "main"),
    "another cgroup namespace": ("../main", "main"),
    "far off in another namespace": ("../../podtrain/side/x", "side"),
    "a name without dots before it is none": ("user.slice/main", None),
    "the pod": ("kubepods/burstable/podtrain", None),
    "one that ended": ("kubepods/burstable/podserve/old", None),
    "an unknown one": ("kubepods/burstable/podx/main", None),
    "a session": ("user.slice/user-0.slice", None),
    "the root": ("", None),
}


@pytest.mark.parametrize(("path", "expected"), PATHS.values(), ids=PATHS)
def test_the_container_of_a_process(path: str, expected: str | None) -> None:
    container = ContainerPaths(SUBJECTS).of(path)
    assert (None if container is None else container.name) == expected


def test_a_name_of_two_containers_identifies_neither() -> None:
    subjects = [*subjects_of(pod("a", "main")), *subjects_of(pod("b", "main"))]
    assert ContainerPaths(subjects).of("../podb/main") is None
    assert present(ContainerPaths(subjects).of("kubepods/burstable/podb/main")).pod_uid == "b"


# --- sums


def test_the_sums_of_the_specification() -> None:
    """pid 122 and 222 on two devices: 80 and 2500, 90 and 4000."""
    gpus = {FIRST: GpuInfo(0, "GPU-first", 1), SECOND: GpuInfo(1, "GPU-second", 1)}
    use = {
        "GPU-first": GpuUse(0, 0, {122: GpuProcessUse(1500, 70), 222: GpuProcessUse(1000, 10), 9: GpuProcessUse(1, 1)}),
        "GPU-second": GpuUse(0, 0, {122: GpuProcessUse(1000, 50), 222: GpuProcessUse(3000, 40)}),
    }
    subjects = {subject.name: subject for subject in SUBJECTS if subject.kind is SubjectKind.CONTAINER}
    owners = {122: subjects["main"], 222: subjects["side"]}
    containers = by_container(GpuSnapshot(1.0, gpus, use), owners.get)
    assert {(gpu.subject.name, gpu.gpu.minor, gpu.use.core, gpu.use.memory) for gpu in containers} == {
        ("main", 0, 70, 1500), ("main", 1, 50, 1000), ("side", 0, 10, 1000), ("side", 1, 40, 3000),
    }  # fmt: skip
    assert {key: (use.core, use.memory) for key, (_, use) in by_pod(containers).items()} == {
        ("train", "GPU-first"): (80, 2500),
        ("train", "GPU-second"): (90, 4000),
    }


def test_a_container_outside_kubernetes_is_no_pods() -> None:
    alone = Subject(SubjectKind.CONTAINER, "docker://x", "docker/x", "x")
    snapshot = GpuSnapshot(
        1.0, {FIRST: GpuInfo(0, "GPU-first", 1)}, {"GPU-first": GpuUse(0, None, {1: GpuProcessUse(5, None)})}
    )
    containers = by_container(snapshot, lambda _: alone)
    assert [(container.use.memory, container.use.core) for container in containers] == [(5, None)]
    assert by_pod(containers) == {}


# --- rounds


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = build(tmp_path_factory.mktemp("nvml"))
    load(built)
    return built


class Node:
    """A collector over the tests' library, with a clock that stands still."""

    def __init__(self, machine: Machine, *, patience: float = PATIENCE) -> None:
        self.machine, self.now, self.roots = machine, 1000.0, roots_under(machine.base)
        self.cache, self.registries = MetricCache(), Registries()
        self.registries.node = "own-node"
        self.conditions = CollectorConditions(self.registries)
        self.gpus = Gpus(self.roots, self.clock)
        self.health = GpuHealth(self.clock, seconds=0.01)
        self.workloads = Workloads(1, MappingProxyType(PODS), SUBJECTS)
        self.collector = GpuCollector(
            self.roots, lambda: self.workloads, self.cache, self.registries, self.conditions, clock=self.clock,
            gpus=self.gpus, health=self.health, patience=patience,
        )  # fmt: skip

    def clock(self) -> float:
        return self.now

    async def round(self, seconds: float = 1.0) -> None:
        self.now += seconds
        await self.collector.read()

    async def until(self, done: Any, what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, f"did not come: {what}"
            await asyncio.sleep(0.005)
            await self.round(0.001)  # however often: no call has been pending for long

    def process(self, pid: int, cgroup: str, *on: tuple[str, int], list_: str = "C") -> None:
        """A process and what it holds."""
        directory = self.roots.proc / str(pid)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup").write_text(f"0::/{cgroup}\n")
        self.machine.processes += [(address, list_, pid, amount, 0) for address, amount in on]

    def last(self, kind: str) -> dict[tuple[str, ...], float]:
        """The samples of the last round."""
        window = self.cache.window(kind, self.now, self.now)
        return {key: float(row[0]) for key, row in zip(window.keys, window.values, strict=True) if not isnan(row[0])}

    def metrics(self) -> dict[tuple[str, ...], float]:
        """(name, values of the labels that tell GPUs and containers) -> value, of GPU families."""
        samples = {}
        page = generate_latest(self.registries.external).decode()
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                labels = [sample.labels.get(name) for name in ("container_name", "gpu_minor", "reason", "xid")]
                samples[(sample.name, *(value for value in labels if value))] = sample.value
        return samples


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path, [Gpu(FIRST, "GPU-first", 0), Gpu(SECOND, "GPU-second", 1, numa_node=1)])
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    machine.tell()
    return machine


@pytest.fixture
def node(machine: Machine) -> Iterator[Node]:
    node = Node(machine)
    yield node
    machine.errors.clear()
    machine.hangs.clear()
    machine.tell()
    watcher = node.health._watcher
    node.health.stop()
    if watcher is not None:
        watcher.join(PATIENCE)
    if node.gpus.nvml is not None:
        node.gpus.nvml.close()


async def busy(node: Node) -> None:
    """Two rounds; in the second the processes of the specification have run, and one outside of containers."""
    machine = node.machine
    node.process(122, f"{MAIN}/worker", (FIRST, 1500), (SECOND, 1000))
    node.process(222, "kubepods/burstable/podtrain/side", (FIRST, 1000), (SECOND, 3000))
    node.process(7, "user.slice/user-0.slice", (FIRST, 100), list_="G")
    machine.processes.append((FIRST, "C", 8, 50, 0))  # ended between NVML and /proc
    machine.gpus[0].used, machine.gpus[1].used = 3 * GIB, GIB
    machine.tell()
    await node.round()
    machine.samples = [(FIRST, 122, 5, 70), (FIRST, 222, 5, 10), (FIRST, 7, 5, 5), (SECOND, 122, 5, 50),
                       (SECOND, 222, 5, 40)]  # fmt: skip
    machine.tell()
    await node.round()


async def test_series(node: Node) -> None:
    await busy(node)
    first, second = ("0", "GPU-first"), ("1", "GPU-second")
    assert node.last("node_gpu_core_usage") == {first: 85, second: 90}
    assert node.last("node_gpu_memory_usage") == {first: 3 * GIB, second: GIB}
    assert node.last("pod_gpu_core_usage") == {("train", *first): 80, ("train", *second): 90}
    assert node.last("pod_gpu_memory_usage") == {("train", *first): 2500, ("train", *second): 4000}
    assert node.last("container_gpu_core_usage") == {
        ("containerd://main", *first): 70, ("containerd://main", *second): 50,
        ("containerd://side", *first): 10, ("containerd://side", *second): 40,
    }  # fmt: skip
    assert node.last("container_gpu_memory_usage")[("containerd://main", *first)] == 1500


async def test_facts_and_conditions(node: Node) -> None:
    await node.round()
    facts = node.cache.facts
    assert [(gpu.minor, gpu.uuid, gpu.place.node_id) for gpu in facts.get(FACT_GPU)] == [  # type: ignore[union-attr]
        (0, "GPU-first", 0),
        (1, "GPU-second", 1),
    ]
    assert facts.get(FACT_GPU_DRIVER) == "535.129.03"
    assert facts.get(FACT_GPU_FAULTS, newer_than=node.now) == {}
    assert node.conditions.states == {
        "gpu": CollectorCondition(True, "nvml"),
        "gpu_health": CollectorCondition(True, "nvml"),
    }


async def test_nodemetric_has_the_gpu_figures(node: Node) -> None:
    await busy(node)
    batch = Batch(node.now)
    for level, key in (("node", ()), ("pod", ("train",))):
        batch.add(f"{level}_cpu_usage", 1, *key)
        batch.add(f"{level}_memory_usage", GIB, *key)
    node.cache.commit(batch)
    at = Time(2026, 1, 1, tzinfo=UTC)
    status = to_builtins(build_status(node.cache, node.workloads, ReportPolicy(), now=node.now, update_time=at))

    def device(minor: int, uuid: str, core: str, memory: str, ratio: str) -> dict[str, Any]:
        names = ("gpu-core", "gpu-memory", "gpu-memory-ratio")
        resources = {
            f"koordinator.sh/{name}": figure for name, figure in zip(names, (core, memory, ratio), strict=True)
        }
        return {"type": "gpu", "id": uuid, "minor": minor, "health": False, "resources": resources}

    assert status["nodeMetric"]["nodeUsage"]["devices"] == [
        device(0, "GPU-first", "85", "3Gi", "3"),
        device(1, "GPU-second", "90", "1Gi", "1"),
    ]
    assert status["podsMetric"][0]["podUsage"]["devices"] == [
        device(0, "GPU-first", "80", "2500", "0"),
        device(1, "GPU-second", "90", "4000", "0"),
    ]


async def test_metrics(node: Node) -> None:
    await busy(node)
    shown = node.metrics()
    assert shown == {
        ("koordlet_node_gpu_memory_bytes", "0"): 80 * GIB,
        ("koordlet_node_gpu_memory_bytes", "1"): 80 * GIB,
        ("koordlet_node_gpu_used_memory_bytes", "0"): 3 * GIB,
        ("koordlet_node_gpu_used_memory_bytes", "1"): GIB,
        ("koordlet_node_gpu_used_core_ratio", "0"): 0.85,
        ("koordlet_node_gpu_used_core_ratio", "1"): 0.9,
        ("koordlet_container_gpu_used_memory_bytes", "main", "0"): 1500,
        ("koordlet_container_gpu_used_memory_bytes", "main", "1"): 1000,
        ("koordlet_container_gpu_used_memory_bytes", "side", "0"): 1000,
        ("koordlet_container_gpu_used_memory_bytes", "side", "1"): 3000,
        ("koordlet_container_gpu_used_core_ratio", "main", "0"): 0.7,
        ("koordlet_container_gpu_used_core_ratio", "main", "1"): 0.5,
        ("koordlet_container_gpu_used_core_ratio", "side", "0"): 0.1,
        ("koordlet_container_gpu_used_core_ratio", "side", "1"): 0.4,
        ("koordlet_gpu_healthy", "0"): 1,
        ("koordlet_gpu_healthy", "1"): 1,
    }


async def test_without_utilisation_there_is_memory_alone(node: Node) -> None:
    node.machine.errors["nvmlDeviceGetProcessUtilization", "-"] = 3
    await busy(node)
    assert node.last("node_gpu_core_usage") == node.last("pod_gpu_core_usage") == {}
    assert node.last("pod_gpu_memory_usage")[("train", "0", "GPU-first")] == 2500
    assert not [name for name, *_ in node.metrics() if name.endswith("core_ratio")]


async def test_an_error_of_the_driver_makes_a_gpu_unhealthy(node: Node) -> None:
    await node.round()
    turns = node.machine.calls("nvmlEventSetWait_v2")
    await node.until(lambda: node.machine.calls("nvmlEventSetWait_v2") > turns, "a watcher")
    node.machine.events = [(FIRST, XID, 48), (SECOND, XID, 31)]
    node.machine.tell()
    fault = {"GPU-first": DeviceFault("Xid48", "Xid error detected on device, error code: 48")}
    await node.until(lambda: node.cache.facts.get(FACT_GPU_FAULTS) == fault, "the fault")
    await node.until(lambda: ("koordlet_gpu_xid_errors_total", "31") in node.metrics(), "the other one")
    shown = node.metrics()
    assert shown["koordlet_gpu_healthy", "0", "Xid48"] == 0
    assert shown["koordlet_gpu_healthy", "1"] == 1
    assert shown["koordlet_gpu_xid_errors_total", "48"] == 1


async def test_without_an_event_set_health_is_unknown(node: Node) -> None:
    node.machine.errors["nvmlEventSetCreate", "-"] = 999
    node.machine.tell()
    problem = CollectorCondition(False, "nvml", "nvmlEventSetCreate: Unknown Error")
    await node.until(lambda: node.conditions.states.get("gpu_health") == problem, "the condition")
    assert node.conditions.states["gpu"] == CollectorCondition(True, "nvml")
    at = node.now
    await node.round()
    assert node.cache.facts.get(FACT_GPU_FAULTS, newer_than=at) is None
    assert not [name for name, *_ in node.metrics() if name == "koordlet_gpu_healthy"]


async def test_a_gpu_that_refuses_to_be_watched_is_of_unknown_health(node: Node) -> None:
    node.machine.errors["nvmlDeviceRegisterEvents", SECOND] = 4
    node.machine.tell()
    shown = {("koordlet_gpu_healthy", "0")}
    await node.until(lambda: {k for k in node.metrics() if k[0] == "koordlet_gpu_healthy"} == shown, "the first alone")


async def test_no_driver_is_a_condition_and_touches_nothing(node: Node) -> None:
    for gpu in node.machine.gpus:
        gpu.bound = False
    node.machine.tell()
    await node.round()
    assert node.conditions.states["gpu"] == CollectorCondition(
        False, "nvml", "no PCI function is bound to the driver nvidia"
    )
    assert node.machine.calls("nvmlInitWithFlags") == 0
    assert node.cache.facts.get(FACT_GPU) == ()
    assert node.metrics() == {}


async def test_no_library_leaves_open_whether_there_are_gpus(node: Node) -> None:
    node.machine.errors["nvmlInitWithFlags", "-"] = 9
    node.machine.tell()
    await node.round()
    assert node.conditions.states["gpu"] == CollectorCondition(False, "nvml", "nvmlInit: Driver Not Loaded")
    assert node.cache.facts.get(FACT_GPU) is None


async def test_gpus_that_cannot_be_described_leave_open_whether_there_are_any(node: Node) -> None:
    node.machine.errors["nvmlDeviceGetUUID", "-"] = 999
    node.machine.tell()
    await node.round()
    assert node.conditions.states["gpu"].reason.startswith("nvmlDeviceGetUUID: Unknown Error")
    assert node.cache.facts.get(FACT_GPU) is None


async def test_a_fault_is_kept_when_gpus_are_not_watched_any_more(node: Node) -> None:
    await node.round()
    turns = node.machine.calls("nvmlEventSetWait_v2")
    await node.until(lambda: node.machine.calls("nvmlEventSetWait_v2") > turns, "a watcher")
    node.machine.events = [(FIRST, XID, 48)]
    node.machine.tell()
    await node.until(lambda: ("koordlet_gpu_healthy", "0", "Xid48") in node.metrics(), "the fault")
    node.machine.errors["nvmlEventSetWait_v2", "-"] = 999
    node.machine.tell()
    await node.until(lambda: not node.conditions.states["gpu_health"].up, "the end of the watch")
    at = node.now
    await node.round()
    assert set(node.cache.facts.get(FACT_GPU_FAULTS, newer_than=at + 0.5)) == {"GPU-first"}  # type: ignore[arg-type]
    assert {key: value for key, value in node.metrics().items() if key[0] == "koordlet_gpu_healthy"} == {
        ("koordlet_gpu_healthy", "0", "Xid48"): 0
    }


async def test_a_lost_session_removes_its_figures(node: Node) -> None:
    await busy(node)
    at = node.now
    node.machine.errors["nvmlDeviceGetMemoryInfo_v2", "-"] = 9
    node.machine.tell()
    await node.round()
    assert node.conditions.states["gpu"].reason == "nvmlDeviceGetMemoryInfo: Driver Not Loaded"
    assert node.metrics() == {}
    assert node.cache.facts.get(FACT_GPU, newer_than=at + 0.5) is None
    node.machine.errors.clear()
    node.machine.tell()
    node.now += RETRY_SECONDS
    await node.round()
    assert node.conditions.states["gpu"] == CollectorCondition(True, "nvml")


async def test_the_last_gpu_is_removed(node: Node) -> None:
    await node.round()
    for gpu in node.machine.gpus:
        gpu.bound = False
    node.machine.tell()
    await node.round()
    assert node.cache.facts.get(FACT_GPU) == ()
    assert node.conditions.states["gpu"].reason == "no PCI function is bound to the driver nvidia"


async def test_a_device_that_fails_is_counted_and_the_other_goes_on(node: Node) -> None:
    await node.round()
    node.machine.errors["nvmlDeviceGetMemoryInfo_v2", FIRST] = 15
    node.machine.tell()
    await node.round()
    assert node.last("node_gpu_memory_usage") == {("1", "GPU-second"): 0}
    assert len(node.cache.facts.get(FACT_GPU)) == 2  # type: ignore[arg-type]
    page = generate_latest(node.registries.internal).decode()
    assert 'koordlet_collector_failures_total{cause="device",collector="gpu",node="own-node"} 1.0' in page


async def test_a_hanging_call_is_reported_made_once_and_its_result_used(machine: Machine, node: Node) -> None:
    await node.round()
    node.collector._patience = 0.05
    call = "nvmlDeviceGetComputeRunningProcesses_v3"
    machine.hangs.add(call)
    machine.tell()
    await node.until(lambda: machine.calls(call) == 3, "the one that hangs, after two in the first round")
    for _ in range(3):
        await node.round()
    assert node.conditions.states["gpu"] == CollectorCondition(False, "nvml", "NVML has not answered for 0.05 s")
    assert machine.calls(call) == 3
    assert node.metrics() == {}
    node.collector._patience = PATIENCE
    machine.hangs.clear()
    machine.tell()
    await node.round()
    assert node.conditions.states["gpu"] == CollectorCondition(True, "nvml")


@pytest.mark.parametrize("how", ["hangs", "is lost"])
async def test_a_fault_is_reported_although_nvml(machine: Machine, node: Node, how: str) -> None:
    """A GPU that breaks may take it along."""
    await node.round()
    turns = machine.calls("nvmlEventSetWait_v2")
    await node.until(lambda: machine.calls("nvmlEventSetWait_v2") > turns, "a watcher")
    call, at = "nvmlDeviceGetComputeRunningProcesses_v3", node.now
    if how == "hangs":
        node.collector._patience = 0.05
        machine.hangs.add(call)
        machine.tell()
        await node.until(lambda: not node.conditions.states["gpu"].up, "the call that hangs")
        at = node.now
    machine.events = [(FIRST, XID, 79)]
    machine.tell()
    if how == "is lost":
        turns, end = machine.calls("nvmlEventSetWait_v2"), time.monotonic() + PATIENCE
        while machine.calls("nvmlEventSetWait_v2") < turns + 2:  # the event was taken, and not queried
            assert time.monotonic() < end
            await asyncio.sleep(0.005)
        machine.errors["nvmlDeviceGetMemoryInfo_v2", "-"] = 9
        machine.tell()
    gpu, events = ("koordlet_gpu_healthy", "0", "Xid79"), ("koordlet_gpu_xid_errors_total", "79")
    await node.until(lambda: gpu in node.metrics(), "the fault")
    assert not node.conditions.states["gpu"].up
    assert node.metrics() == {gpu: 0, events: 1}
    facts = node.cache.facts
    assert [gpu_info.uuid for gpu_info in facts.get(FACT_GPU, newer_than=at)] == ["GPU-first", "GPU-second"]  # type: ignore[union-attr]
    assert facts.get(FACT_GPU_DRIVER, newer_than=at) == "535.129.03"
    assert set(facts.get(FACT_GPU_FAULTS, newer_than=at)) == {"GPU-first"}  # type: ignore[arg-type]
    at = node.now + 0.5
    await node.round()
    assert facts.get(FACT_GPU, newer_than=at) is None, "once"
    machine.hangs.clear()
    machine.tell()
    node.collector._patience = PATIENCE
    await node.round()


async def test_a_round_that_is_cancelled_leaves_nothing_behind(machine: Machine, node: Node) -> None:
    """As koordlet ends while NVML hangs; its thread is no reason to wait."""
    machine.hangs.add("nvmlDeviceGetUUID")
    machine.tell()
    task = asyncio.create_task(node.collector.read())
    end = time.monotonic() + PATIENCE
    while not machine.calls("nvmlDeviceGetUUID"):
        assert time.monotonic() < end
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
