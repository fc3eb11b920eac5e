"""Which collectors run is what gates and flags say; the smaller ones do what spec 02 §5 asks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from koordlet.api.gates import KOORDLET
from koordlet.app.flags import FlagError, read
from koordlet.app.gates import FeatureGates
from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.facts.node import (
    FACT_BASIC,
    FACT_NUMA,
    NodeInfoCollector,
    cpu_basic_info,
    with_huge_pages,
)
from koordlet.metricsadvisor.facts.storage import FACT_STORAGE, StorageInfoCollector
from koordlet.metricsadvisor.optional import OptionalCollectors, OptionalIntervals
from koordlet.metricsadvisor.usage.hostapps import SERIES, HostAppMemory
from koordlet.metricsadvisor.usage.pressure import PressureReading
from koordlet.metricsadvisor.usage.pressurecollector import PressureCollector
from koordlet.metricsadvisor.usage.reader import TickReader
from koordlet.options import KoordletOptions
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.cgroup.batch import CgroupTable
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cpu.cputopology import CpuInfo, CpuTopology
from koordlet.system.host import Host
from koordlet.system.proc.procfs import NumaMemInfo
from koordlet.system.roots import Roots
from tests.koordlet.metriccache.lastvalue import last
from tests.koordlet.roots import roots_under
from tests.present import present

POD = Subject(SubjectKind.POD, "uid-1", "kubepods/pod1", "web", pod_uid="uid-1")
MAIN = replace(POD, kind=SubjectKind.CONTAINER, key="containerd://1", cgroup_dir="kubepods/pod1/1")
QOS = Subject(SubjectKind.QOS, "Burstable", "kubepods/burstable", "Burstable")
APP = Subject(SubjectKind.HOST_APP, "nginx", "nginx", "nginx", qos="LS")
INTERVALS = OptionalIntervals(
    use=1, cpi=60, cpi_window=10, psi=10, cold_pages=5, cold_page_window=300, resctrl=10, storage=1
)


class Machine:
    """An empty host of one cgroup version."""

    def __init__(self, base: Path, version: int = 2) -> None:
        self.version, self.roots = version, roots_under(base)
        self.roots.cgroup.mkdir(parents=True)
        if version == 2:
            (self.roots.cgroup / "cgroup.controllers").write_text("cpu memory\n")
        for subsystem in ("cpu", "cpuacct", "memory") if version == 1 else ():
            (self.roots.cgroup / subsystem).mkdir()
        self.host = Host(self.roots)
        self.fs = CgroupFS(self.host)
        self.cache, self.registries, self.now = MetricCache(), Registries(), 100.0
        self.workloads = Workloads(1, MappingProxyType({}), (APP,))

    def usage(self, amount: int) -> None:
        for top in ("cpu", "memory") if self.version == 1 else ("",):
            directory = self.roots.cgroup / top / APP.cgroup_dir
            directory.mkdir(parents=True, exist_ok=True)
            name = "memory.usage_in_bytes" if self.version == 1 else "memory.current"
            (directory / name).write_text(f"{amount}\n")

    def collectors(self, gates: dict[str, bool], *, resctrl: bool = False) -> OptionalCollectors:
        switches = FeatureGates(KOORDLET)
        switches.set(gates)
        return OptionalCollectors(
            self.host,
            self.fs,
            TickReader(self.host, self.fs),
            lambda: self.workloads,
            NodeInfoCollector(self.roots, self.cache, self.registries),
            self.cache,
            self.registries,
            switches,
            INTERVALS,
            resctrl_wanted=resctrl,
            enable_kidled=lambda: None,
        )


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    return Machine(tmp_path, request.param)


ALWAYS = {"collect-host-apps": 1}
GATED = {
    "CPICollector": {"collect-cpi": 60},
    "Libpfm4": {},  # another way to the same numbers
    "PSICollector": {"collect-pressure": 10},
    "ColdPageCollector": {"collect-cold-pages": 5},
    "BlkIOReconcile": {"collect-storage": 1},
    "ResctrlCollector": {"collect-resctrl": 10},
    "AllAlpha": {
        "collect-cpi": 60, "collect-pressure": 10, "collect-cold-pages": 5, "collect-storage": 1, "collect-resctrl": 10,
    },
}  # fmt: skip


@pytest.mark.parametrize(("gate", "expected"), GATED.items(), ids=GATED)
def test_a_gate_switches_its_collector_on(tmp_path: Path, gate: str, expected: dict[str, int]) -> None:
    collectors = Machine(tmp_path).collectors({gate: True}, resctrl=True)
    assert {task.name: task.interval_s for task in collectors.tasks} == ALWAYS | expected


def test_they_are_off_by_default_with_a_condition(tmp_path: Path) -> None:
    collectors = Machine(tmp_path).collectors({})
    assert {task.name for task in collectors.tasks} == set(ALWAYS)
    assert {name: state.reason for name, state in collectors.conditions.states.items()} == {
        "psi": "feature gate PSICollector is off",
        "cpi": "feature gate CPICollector is off",
        "cold_memory": "feature gate ColdPageCollector is off",
        "resctrl": "--enable-resctrl-collector is not given",
        "node_storage_info": "feature gate BlkIOReconcile is off",
    }


def test_resctrl_takes_gate_and_flag(tmp_path: Path) -> None:
    assert Machine(tmp_path / "a").collectors({"ResctrlCollector": True}).resctrl is None
    assert Machine(tmp_path / "b").collectors({}, resctrl=True).resctrl is None


FLAGS = (
    "collect-node-storage-info-interval", "cpi-collector-interval", "collect-cpi-timewindow", "psi-collector-interval",
    "coldpage-collector-interval", "resctrl-collector-interval", "collect-res-used-interval",
    "collect-node-cpu-info-interval", "collect-sys-metric-outdated-interval",
)  # fmt: skip


@pytest.mark.parametrize("flag", FLAGS)
def test_intervals_below_a_second_are_refused(flag: str) -> None:
    with pytest.raises(FlagError, match=flag):
        read(KoordletOptions, [f"--{flag}=999ms"])


def test_a_cpi_window_must_fit_its_interval() -> None:
    options = read(KoordletOptions, ["--cpi-collector-interval=10s", "--collect-cpi-timewindow=10s", "--node-name=n"])
    with pytest.raises(FlagError, match="collect-cpi-timewindow"):
        options.check("")


def test_pressure_of_a_machine_without_it_is_a_condition(tmp_path: Path) -> None:
    collectors = Machine(tmp_path).collectors({"PSICollector": True})
    assert collectors.pressure is not None
    collectors.pressure.read()
    assert collectors.conditions.states["psi"].reason == "this kernel has no pressure stall information"


# --- host applications (§5.6)


def test_a_host_application_with_its_page_cache(machine: Machine) -> None:
    """First sight is a baseline; the worked example's 209715200 bytes after it."""
    collector = HostAppMemory(
        machine.fs, lambda: machine.workloads, machine.cache, machine.registries, clock=lambda: machine.now
    )
    machine.usage(209715200)
    collector.read()
    assert last(machine.cache, SERIES, 0, 1e9) is None
    machine.now += 1
    collector.read()
    assert last(machine.cache, SERIES, 0, 1e9, host_app_name="nginx") == 209715200


def test_a_host_application_that_is_not_there_costs_nothing(machine: Machine) -> None:
    collector = HostAppMemory(machine.fs, lambda: machine.workloads, machine.cache, machine.registries)
    collector.read()
    machine.usage(1)
    (machine.roots.cgroup / ("memory" if machine.version == 1 else "") / "nginx").rename(machine.roots.cgroup / "away")
    collector.read()
    assert last(machine.cache, SERIES, 0, 1e9) is None


# --- node facts (§5.8)

TOPOLOGY = CpuTopology((), smt=True, turbo=False, info=CpuInfo("Xeon", "GenuineIntel"))
MASKS = {"resctrl mounted": ("7ff\n", "7ff"), "not mounted": (None, ""), "damaged": ("odd\n", "")}


@pytest.mark.parametrize(("text", "expected"), MASKS.values(), ids=MASKS)
def test_basic_info(tmp_path: Path, text: str | None, expected: str) -> None:
    roots = roots_under(tmp_path)
    if text is not None:
        (roots.resctrl / "info/L3").mkdir(parents=True)
        (roots.resctrl / "info/L3/cbm_mask").write_text(text)
    info = cpu_basic_info(TOPOLOGY, roots)
    assert (info.cpu_model, info.hyper_thread_enabled, info.turbo_enabled) == ("Xeon", True, False)
    assert (info.vendor_id, info.cat_l3_cbm_mask) == ("GenuineIntel", expected)


HUGE = {
    "gate off": ({2048: 7}, False, {}),
    "as the node shows": ({2048: 7, 1048576: 1}, True, {2048: 7, 1048576: 1}),
    "none shown": ({}, True, {2048: 0, 1048576: 0}),
}


@pytest.mark.parametrize(("shown", "enabled", "expected"), HUGE.values(), ids=HUGE)
def test_huge_pages_by_gate(shown: dict[int, int], enabled: bool, expected: dict[int, int]) -> None:
    numa = {0: NumaMemInfo(0, 10, 5, 5, shown)}
    assert with_huge_pages(numa, enabled=enabled)[0].huge_pages == expected


@pytest.mark.kernel
def test_the_facts_of_this_machine() -> None:
    cache = MetricCache()
    NodeInfoCollector(Roots.host(), cache, Registries(), huge_pages=True).read()
    info, cpuinfo = cache.facts.get(FACT_BASIC), Path("/proc/cpuinfo").read_text()
    assert info is not None
    assert info.cpu_model in cpuinfo
    assert info.vendor_id in cpuinfo
    pages = Path("/proc/sys/vm/nr_hugepages").read_text()
    default = int(next(x for x in Path("/proc/meminfo").read_text().splitlines() if "Hugepagesize" in x).split()[1])
    assert sum(node.huge_pages[default] for node in present(cache.facts.get(FACT_NUMA)).values()) == int(pages)


# --- disks and mounts (§5.9)


def test_storage_is_read_again_only_after_a_change(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    collectors = machine.collectors({})
    sysfs, init = machine.roots.sys / "class/block", machine.roots.proc / "1"
    init.mkdir(parents=True)
    collector = StorageInfoCollector(
        machine.roots, machine.cache, machine.registries, collectors.conditions, clock=lambda: machine.now
    )
    collector.read()
    assert "class/block" in collectors.conditions.states["node_storage_info"].reason
    assert machine.cache.facts.get(FACT_STORAGE) is None
    sysfs.mkdir(parents=True)
    collector.read()
    first = machine.cache.facts.get(FACT_STORAGE)
    machine.now += 1
    collector.read()
    assert machine.cache.facts.get(FACT_STORAGE, newer_than=machine.now) is first, "fresh, but not read again"
    (init / "mountinfo").write_text("20 1 254:0 / / rw - ext4 /dev/vda rw\n")
    (machine.roots.proc / "partitions").write_text("major minor  #blocks  name\n")
    collector.read()
    assert present(machine.cache.facts.get(FACT_STORAGE)).mount_source == {"/": "/dev/vda"}
    second = collector.latest
    machine.now += 60
    collector.read()
    assert collector.latest is not second, "once a minute anyway"
    rows = dict(machine.registries._counts["collect_node_local_storage_info_status"])
    assert rows == {("failed",): 1, ("succeeded",): 4}
    collector.close()


# --- stalled time (§5.13)


def test_stalled_time_is_the_kernels_own_counter() -> None:
    """Microseconds of `total` as seconds, by level; nothing where a file has no such line."""
    subjects = (POD, MAIN, QOS)
    off = np.zeros(3, dtype=bool)
    columns = {
        "memory_some_total": np.array([1_500_000.0, 250_000.0, 9e9]),
        "memory_full_total": np.array([500_000.0, np.nan, 9e9]),
    }
    table = CgroupTable(tuple(s.cgroup_dir for s in subjects), np.arange(1, 4, dtype=np.uint64), off, columns)
    reading = PressureReading(50.0, Workloads(1, MappingProxyType({}), subjects), table)
    registries = Registries()
    registries.node = "n"
    reader: Any = SimpleNamespace()
    collector = PressureCollector(
        reader, Workloads, MetricCache(), registries, CollectorConditions(registries), psi=True
    )
    collector.reading = reading
    samples = {
        (sample.name, sample.labels["psi_resource_type"], sample.labels["psi_degree"]): sample.value
        for family in registries.external.collect()
        for sample in family.samples
    }
    assert samples == {
        ("koordlet_container_psi_stall_seconds_total", "mem", "some"): 0.25,
        ("koordlet_pod_psi_stall_seconds_total", "mem", "some"): 1.5,
        ("koordlet_pod_psi_stall_seconds_total", "mem", "full"): 0.5,
    }
