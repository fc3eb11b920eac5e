"""Figures from two readings: the worked examples of spec 02 §5 and the rules of rates."""

import math
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.core import Container, Pod, ResourceRequirements
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.meta import ObjectMeta
from koordlet.api.names import LABEL_QOS_CLASS, RESOURCE_BATCH_CPU
from koordlet.metricsadvisor.usage.batches import pressure_batch, use_batch
from koordlet.metricsadvisor.usage.besteffort import batch_request, best_effort_use, real_limit
from koordlet.metricsadvisor.usage.node import NodeUse, ResourceUse, node_use, system_numa_use, system_use
from koordlet.metricsadvisor.usage.pressure import PressureReading, stall_shares
from koordlet.metricsadvisor.usage.readings import BestEffortLimits, Pairing, Readings
from koordlet.metricsadvisor.usage.snapshot import derive
from koordlet.metricsadvisor.usage.workloads import workload_use
from koordlet.statesinformer.pods.model import PodMeta, Subject, SubjectKind, Workloads
from koordlet.system.cgroup.batch import CgroupTable
from koordlet.system.proc.procfs import CpuTicks, MemInfo, NumaMemInfo

POD = Subject(SubjectKind.POD, "uid-1", "kubepods/pod1", "web", qos="LS", pod_uid="uid-1", pod_name="web")
MAIN = Subject(SubjectKind.CONTAINER, "containerd://1", "kubepods/pod1/1", "main", qos="LS", pod_uid="uid-1")
BATCH = Subject(SubjectKind.POD, "uid-2", "kubepods/besteffort/pod2", "job", qos="BE", pod_uid="uid-2")
BE_DIR = Subject(SubjectKind.QOS, "BestEffort", "kubepods/besteffort", "BestEffort")
APP = Subject(SubjectKind.HOST_APP, "nginx", "host-latency-sensitive/nginx", "nginx", qos="LS")


NODE = ("ticks", "memory", "numa", "pods_numa", "best_effort")
V1 = ("inactive_anon", "active_anon", "unevictable", "inactive_file", "active_file")


def table(subjects: tuple[Subject, ...], ids: list[int] | None = None, **columns: list[float]) -> CgroupTable:
    numbers = np.array(ids or range(1, len(subjects) + 1), dtype=np.uint64)
    return CgroupTable(
        dirs=tuple(s.cgroup_dir for s in subjects),
        cgroup_id=numbers,
        gone=numbers == 0,
        columns={name: np.array(values, dtype=float) for name, values in columns.items()},
    )


def readings(at: float, subjects: tuple[Subject, ...] = (), ids: list[int] | None = None, **columns: Any) -> Readings:
    node = {
        name: columns.pop(name) for name in ("ticks", "memory", "numa", "pods_numa", "best_effort") if name in columns
    }
    workloads = Workloads(1, MappingProxyType({}), subjects)
    return Readings(at=at, workloads=workloads, table=table(subjects, ids, **columns), **node)


def meminfo(total_kib: int, available_kib: int) -> MemInfo:
    return MemInfo(total_kib * 1024, 0, available_kib * 1024, {})


STAT = (
    "memory_inactive_anon",
    "memory_active_anon",
    "memory_unevictable",
    "memory_inactive_file",
    "memory_active_file",
)


def memory_columns(rows: int, used: float = 0.0) -> dict[str, list[float]]:
    columns = {name: [0.0] * rows for name in STAT}
    columns["memory_inactive_anon"] = [used] * rows
    return columns


def test_100_ticks_in_a_second_are_one_core() -> None:
    old = readings(10.0, ticks=CpuTicks(1000, {0: 1000}))
    new = readings(11.0, ticks=CpuTicks(1100, {0: 1100}), memory=meminfo(1048576, 524288))
    use = node_use(old, new, {0: 0})
    assert use is not None
    assert (use.cores, use.memory) == (1.0, 536870912)


@pytest.mark.parametrize(("before", "after", "cores"), [(7, 57, 0.5), (7, 7, 0.0), (7, 3, 0.0)])
def test_stolen_ticks_are_cores_that_others_had(before: int, after: int, cores: float) -> None:
    """The kernel's counter may go back by a little."""
    old = readings(10.0, ticks=CpuTicks(1000, {}, before))
    use = node_use(old, readings(11.0, ticks=CpuTicks(1100, {}, after), memory=meminfo(2, 1)), {})
    assert use is not None
    assert (use.cores, use.stolen) == (1.0, cores)
    assert (use.busy_seconds, use.stolen_seconds) == (11.0, after / 100)


NO_NODE = {
    "no second stat": (CpuTicks(1, {}), None, meminfo(2, 1), 1.0),
    "no meminfo": (CpuTicks(1, {}), CpuTicks(2, {}), None, 1.0),
    "counter went back": (CpuTicks(2, {}), CpuTicks(1, {}), meminfo(2, 1), 1.0),
    "no time passed": (CpuTicks(1, {}), CpuTicks(2, {}), meminfo(2, 1), 0.0),
}


@pytest.mark.parametrize(("before", "after", "memory", "seconds"), NO_NODE.values(), ids=NO_NODE)
def test_no_node_figure_without_two_good_readings(
    before: CpuTicks, after: CpuTicks | None, memory: MemInfo | None, seconds: float
) -> None:
    old, new = readings(10.0, ticks=before), readings(10.0 + seconds, ticks=after, memory=memory)
    assert node_use(old, new, {}) is None


def test_numa_cpu_follows_the_cpus_and_leaves_out_new_ones() -> None:
    numa = {n: NumaMemInfo(n, 0, 0, used, {}) for n, used in ((0, 100), (1, 200))}
    old = readings(0.0, ticks=CpuTicks(0, {0: 0, 1: 0, 2: 500}), numa=numa)
    new = readings(1.0, ticks=CpuTicks(150, {0: 100, 1: 50, 2: 400, 3: 70}), memory=meminfo(2, 1), numa=numa)
    use = node_use(old, new, {0: 0, 1: 1, 2: 1, 3: 0})
    assert use is not None
    assert use.numa == {0: ResourceUse(1.0, 100), 1: ResourceUse(0.5, 200)}


SYSTEM = {
    "worked example": ((1.0, 1024), (0.5, 512), (0.1, 128), (0.4, 384)),
    "never negative": ((0.2, 100), (0.5, 512), (0.0, 0), (0.0, 0)),
}


@pytest.mark.parametrize(("node", "pods", "apps", "expected"), SYSTEM.values(), ids=SYSTEM)
def test_system_use_is_the_remainder(
    node: tuple[float, int], pods: tuple[float, int], apps: tuple[float, int], expected: tuple[float, int]
) -> None:
    use = system_use(NodeUse(*node, 0, 0), ResourceUse(*pods), ResourceUse(*apps))
    assert (use.cores, use.memory) == pytest.approx(expected)


def test_system_numa_worked_example() -> None:
    node = NodeUse(4.0, 3072, 0, 0, {0: ResourceUse(1.0, 1024), 1: ResourceUse(3.0, 2048)})
    use = system_numa_use(node, ResourceUse(0.8, 0), {0: 512, 1: 4096})
    assert {k: (round(u.cores, 9), u.memory) for k, u in use.items()} == {0: (0.2, 512), 1: (0.6, 0)}
    assert system_numa_use(node, ResourceUse(0.8, 0), {1: 0}).keys() == {1}


def test_a_second_of_cpu_a_second_is_one_core_and_memory_is_without_cache() -> None:
    old = readings(5.0, (MAIN,), cpu_usage_ns=[0.0])
    new = readings(6.0, (MAIN,), cpu_usage_ns=[1e9], **memory_columns(1, 104857600) | {"memory_inactive_file": [7.0]})  # type: ignore[arg-type]
    use = workload_use(new, Pairing(old, new))
    assert (use.cores[0], use.memory[0], use.memory_with_page_cache[0]) == (1.0, 104857600, 104857607)


THROTTLED = {
    "half of the periods": ((0, 0), (100, 50), 0.5),
    "no period ended": ((10, 5), (10, 5), 0.0),
    "counter went back": ((100, 50), (10, 5), math.nan),
    "no quota file": ((math.nan, math.nan), (math.nan, math.nan), math.nan),
}


@pytest.mark.parametrize(("before", "after", "expected"), THROTTLED.values(), ids=THROTTLED)
def test_throttled_ratio(before: tuple[float, float], after: tuple[float, float], expected: float) -> None:
    def at(second: float, pair: tuple[float, float]) -> Readings:
        columns = {"nr_periods": [pair[0]], "nr_throttled": [pair[1]], "cpu_usage_ns": [second]}
        return readings(second, (MAIN,), **columns, **memory_columns(1))  # type: ignore[arg-type]

    old, new = at(1.0, before), at(2.0, after)
    assert workload_use(new, Pairing(old, new)).throttled[0] == pytest.approx(expected, nan_ok=True)


GONE = {
    "first sight": ([], [], [MAIN], [1]),
    "made again under the same name": ([MAIN], [1], [MAIN], [2]),
    "gone during the pass": ([MAIN], [1], [MAIN], [0]),
}


@pytest.mark.parametrize(("before", "old_ids", "after", "new_ids"), GONE.values(), ids=GONE)
def test_no_rate_without_two_readings_of_the_same_cgroup(
    before: list[Subject], old_ids: list[int], after: list[Subject], new_ids: list[int]
) -> None:
    old = readings(1.0, tuple(before), old_ids, cpu_usage_ns=[1e9] * len(before), **memory_columns(len(before)))
    new = readings(2.0, tuple(after), new_ids, cpu_usage_ns=[3e9], **memory_columns(1))
    use = workload_use(new, Pairing(old, new))
    assert np.isnan([use.cores[0], use.memory[0]]).all()


COUNTERS = st.lists(st.floats(0, 1e15), min_size=1, max_size=6)


@given(COUNTERS, COUNTERS, st.permutations(range(6)), st.floats(0, 10))
def test_rates_are_never_negative_infinite_or_of_another_cgroup(
    before: list[float], after: list[float], order: list[int], seconds: float
) -> None:
    def subject(n: int) -> Subject:
        return Subject(SubjectKind.CONTAINER, f"c{n}", f"d{n}", f"c{n}")

    old_subjects = tuple(subject(n) for n in range(len(before)))
    picked = [n for n in order if n < len(after)]
    old = readings(1.0, old_subjects, cpu_usage_ns=before)
    new = readings(1.0 + seconds, tuple(subject(n) for n in picked), [n + 1 for n in picked], cpu_usage_ns=after)
    rates = Pairing(old, new).rate("cpu_usage_ns")
    for row, n in enumerate(picked):
        known = n < len(before) and new.at > old.at and after[row] >= before[n]
        expected = (after[row] - before[n]) / (new.at - old.at) if known else math.nan
        assert rates[row] == pytest.approx(expected, nan_ok=True)


LIMITS = {
    "quota": (BestEffortLimits(15, 800000, 100000), 8000),
    "cpuset": (BestEffortLimits(4, 800000, 100000), 4000),
    "no quota": (BestEffortLimits(3, -1, 100000), 3000),
    "no period": (BestEffortLimits(3, 1000, 0), 3000),
    "truncated": (BestEffortLimits(3, 33333, 100000), 333),
}


@pytest.mark.parametrize(("limits", "expected"), LIMITS.values(), ids=LIMITS)
def test_best_effort_real_limit(limits: BestEffortLimits, expected: int) -> None:
    assert real_limit(limits) == expected


def test_best_effort_emits_no_usage_at_first_sight() -> None:
    assert best_effort_use(None, 0, None).usage is None
    assert best_effort_use(4.0001, 0, None).usage == 4000


def be_pod(label: str, *amounts: str | None, sidecar: str = "", setup: str = "") -> PodMeta:
    """Containers with these batch-cpu requests (None: without any), beside a sidecar and an init container."""

    def container(amount: str | None, **fields: Any) -> Container:
        resources = {} if not amount else {RESOURCE_BATCH_CPU: Quantity(amount)}
        return Container(name="c", resources=ResourceRequirements(requests=resources), **fields)

    pod = Pod(metadata=ObjectMeta(name="job", uid="u", labels={LABEL_QOS_CLASS: label} if label else {}))
    pod.spec.containers = [container(amount) for amount in amounts]
    pod.spec.init_containers = [container(sidecar, restart_policy="Always"), container(setup)]
    return PodMeta("u", "job", "ns", "BE", "koord-batch", "BestEffort", "kubepods/besteffort/podu", (), pod)


REQUESTS = {
    "containers": ([be_pod("BE", "1000", "500")], 1500),
    "sidecars but no init containers": ([be_pod("BE", "1000", sidecar="200", setup="4000")], 1200),
    "absent and negative": ([be_pod("BE", None, "-500", "300")], 300),
    "by the label alone": ([be_pod("", "1000"), be_pod("LS", "1000"), be_pod("BE", "1000")], 1000),
    "no pods": ([], 0),
}


@pytest.mark.parametrize(("pods", "expected"), REQUESTS.values(), ids=REQUESTS)
def test_best_effort_request(pods: list[PodMeta], expected: int) -> None:
    assert batch_request(pods) == expected


def test_best_effort_usage_of_the_worked_example() -> None:
    old = readings(1.0, (BE_DIR,), cpu_usage_ns=[12_000_000_000_000], **memory_columns(1, 0.0))  # type: ignore[arg-type]
    new = readings(2.0, (BE_DIR,), cpu_usage_ns=[12_004_000_000_000], **memory_columns(1, 0.0))  # type: ignore[arg-type]
    picture = derive(old, new, {})
    assert picture.best_effort is not None
    assert picture.best_effort.usage == 4000


def tick(at: float, seconds: float, **node: Any) -> Readings:
    subjects = (BE_DIR, POD, MAIN, BATCH, APP)
    usage = [seconds * rate * 1e9 for rate in (0.25, 0.5, 0.5, 0.25, 0.125)]
    return readings(at, subjects, cpu_usage_ns=usage, **memory_columns(5, 1024.0), **node)  # type: ignore[arg-type]


def test_the_figures_of_a_tick_add_up() -> None:
    limits = BestEffortLimits(2, -1, 0)
    old = tick(0.0, 0.0, ticks=CpuTicks(0, {0: 0}))
    new = tick(
        2.0, 2.0, ticks=CpuTicks(200, {0: 200}), memory=MemInfo(8192, 0, 1024, {}), best_effort=limits,
        numa={0: NumaMemInfo(0, 8192, 0, 7000, {})}, pods_numa={0: 2048.0},
    )  # fmt: skip
    picture = derive(old, new, {0: 0})
    assert picture.node is not None and picture.system is not None
    assert picture.node.cores == 1.0
    assert picture.system.cores == 0.125
    assert picture.system.memory == 7168 - 2 * 1024 - 1024
    assert picture.system_numa[0] == ResourceUse(0.125, 7000 - 2048)
    assert {qos: use.cores for qos, use in picture.qos.items()} == {"LS": 0.5, "BE": 0.25}
    assert picture.best_effort is not None
    assert (picture.best_effort.usage, picture.best_effort.real_limit) == (250, 2000)
    batch = use_batch(picture, page_cache=True)
    assert batch.samples["pod_cpu_usage"] == ([("uid-1",), ("uid-2",)], [0.5, 0.25])
    assert batch.samples["container_cpu_usage"] == ([("containerd://1",)], [0.5])
    assert batch.samples["host_application_memory_usage"] == ([("nginx",)], [1024.0])
    assert batch.samples["node_be"] == ([("cpu", a) for a in ("usage", "request", "real-limit")], [250, 0, 2000])
    assert "node_memory_usage_with_page_cache" in batch.samples


def pressure(at: float, total: float, ids: list[int] | None = None, full: float = math.nan) -> PressureReading:
    columns = {"cpu_some_total": [total], "cpu_some_avg10": [1.5], "cpu_full_total": [full], "cpu_full_avg10": [full]}
    return PressureReading(at, Workloads(1, MappingProxyType({}), (MAIN,)), table((MAIN,), ids, **columns))


def test_stall_share_comes_from_the_total() -> None:
    assert stall_shares(pressure(0.0, 0.0), pressure(10.0, 2.5e6)) == {("cpu", "some"): {MAIN.key: 0.25}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (None, pressure(1.0, 1.0)),
        (pressure(0.0, 5.0), pressure(1.0, 4.0)),
        (pressure(0.0, 5.0), pressure(1.0, 9.0, ids=[77])),
        (pressure(1.0, 5.0), pressure(1.0, 9.0)),
    ],
    ids=["first", "went back", "made again", "no time"],
)
def test_no_stall_share_without_two_readings(old: PressureReading | None, new: PressureReading) -> None:
    assert stall_shares(old, new) == {}


def test_pressure_series_carry_koordinators_labels() -> None:
    batch = pressure_batch(pressure(1.0, 9.0))
    key = (MAIN.pod_uid, MAIN.key)
    assert batch.samples == {
        "container_psi": ([(*key, "cpu", "10", "some")], [1.5]),
        "container_psi_cpu_full_supported": ([key], [0.0]),
    }
    full = pressure_batch(pressure(1.0, 9.0, full=3.0))
    assert full.samples["container_psi"][0] == [(*key, "cpu", "10", "some"), (*key, "cpu", "10", "full")]
    assert full.samples["container_psi_cpu_full_supported"][1] == [1.0]
