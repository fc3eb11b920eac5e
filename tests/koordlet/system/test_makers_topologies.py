"""Topologies of several makers: the readers of koordlet/system, and what is built on them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from koordlet.api.annotations import topology as wire
from koordlet.api.core import Node, NodeStatus
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.meta import ObjectMeta
from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.facts.node import FACT_BASIC, FACT_CPU, FACT_NUMA, NodeInfoCollector
from koordlet.prometheus import Registries
from koordlet.statesinformer.nrt.cpus import cpu_infos, take_by_topology
from koordlet.statesinformer.nrt.status import MachineInfo, TopologyStatus, compute
from koordlet.system import resctrl
from koordlet.system.cpu.cputopology import read_topology
from koordlet.system.cpu.possible import possible_cpus
from koordlet.system.resctrl import legal_mask, mba_value, read_facts
from koordlet.system.roots import Roots
from tests.koordlet.roots import roots_under
from tests.koordlet.topologies import MACHINES, Machine, build
from tests.present import present


@dataclass(frozen=True)
class Facts:
    """What must be read of a machine."""

    cpus: int
    cores: int
    sockets: int
    nodes: int
    """NUMA nodes with CPUs."""
    l3: int
    smt: bool
    turbo: bool
    zones: int = 1
    """Zones of NodeResourceTopology."""
    half: str = ""
    """The CPUs of the kubelet's packed allocation of half of them."""


EXPECTED = {
    "Intel Xeon": Facts(16, 8, 2, 2, 2, smt=True, turbo=True, zones=2, half="0-3,8-11"),
    "Intel Xeon, SMT off": Facts(8, 8, 2, 2, 2, smt=False, turbo=False, zones=2, half="0-3"),
    "Intel hybrid": Facts(8, 6, 1, 1, 1, smt=True, turbo=True, half="4-7"),
    "AMD EPYC NPS2": Facts(32, 16, 1, 2, 4, smt=True, turbo=False, zones=2, half="0-7,16-23"),
    "AMD EPYC, CPUs offline": Facts(29, 15, 1, 2, 4, smt=True, turbo=False, zones=2, half="0-4,6,8,16-22"),
    "Arm Neoverse": Facts(8, 8, 2, 2, 0, smt=False, turbo=False, zones=2, half="0-3"),
    "Arm device tree": Facts(4, 4, 1, 1, 0, smt=False, turbo=False, zones=0, half="0-1"),
    "Intel Xeon with CXL memory": Facts(16, 8, 2, 2, 2, smt=True, turbo=True, zones=2, half="0-3,8-11"),
    "small virtual machine": Facts(3, 3, 1, 1, 0, smt=False, turbo=False, zones=0, half="0"),
}


@pytest.fixture(params=MACHINES)
def named(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Machine, Roots]:
    machine = MACHINES[request.param]()
    roots = roots_under(tmp_path)
    build(machine, roots)
    return request.param, machine, roots


def test_every_machine_is_expected() -> None:
    assert EXPECTED.keys() == MACHINES.keys()


def test_the_layout_is_read(named: tuple[str, Machine, Roots]) -> None:
    name, machine, roots = named
    topology, facts = read_topology(roots), EXPECTED[name]
    assert set(topology.online) == machine.online
    cores = {(cpu.socket, cpu.core) for cpu in topology.cpus}
    sockets, nodes = {cpu.socket for cpu in topology.cpus}, {cpu.node for cpu in topology.cpus}
    caches = {cpu.l3 for cpu in topology.cpus} - {None}
    counts = (len(topology.cpus), len(cores), len(sockets), len(nodes), len(caches), topology.smt, topology.turbo)
    assert counts == (facts.cpus, facts.cores, facts.sockets, facts.nodes, facts.l3, facts.smt, facts.turbo)
    domains: dict[int, set[int]] = {}
    for cpu in topology.cpus:
        if cpu.l3 is not None:
            domains.setdefault(cpu.l3, set()).add(cpu.id)
    assert sorted(map(sorted, domains.values())) == sorted(map(sorted, machine.l3_domains().values()))
    assert possible_cpus(roots) == max(machine.cpus) + 1


def test_cores_sockets_and_nodes_are_those_of_lscpu(named: tuple[str, Machine, Roots], tmp_path: Path) -> None:
    """lscpu of util-linux reads the same tree; where the kernel gives no topology it leaves a column empty."""
    _, _, roots = named
    (tmp_path / "sys").mkdir(exist_ok=True)
    if roots.sys != tmp_path / "sys":
        (tmp_path / "sys").rmdir()
        (tmp_path / "sys").symlink_to(roots.sys)
    if roots.proc != tmp_path / "proc":
        (tmp_path / "proc").symlink_to(roots.proc)
    command = ["lscpu", "--sysroot", str(tmp_path), "--online", "--parse=CPU,CORE,SOCKET,NODE"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split(",") for line in done.stdout.splitlines() if not line.startswith("#")]
    infos = {cpu.id: cpu for cpu in cpu_infos(read_topology(roots))}
    sockets: dict[int, int] = {}
    assert {int(line[0]) for line in lines} == infos.keys()
    for number, core, socket, node in sorted(lines, key=lambda line: int(line[0])):
        cpu = infos[int(number)]
        logical = sockets.setdefault(cpu.socket, len(sockets))  # lscpu numbers sockets in the order of their CPUs
        assert (int(core or cpu.core), int(socket or 0), int(node or 0)) == (cpu.core, logical, cpu.node), number


def report(name: str, roots: Roots) -> TopologyStatus:
    """What NodeResourceTopology says about the machine."""
    cache = MetricCache()
    NodeInfoCollector(roots, cache, Registries(), clock=lambda: 1.0).read()
    cpus, basic, numa = (cache.facts.get(key, newer_than=0.0) for key in (FACT_CPU, FACT_BASIC, FACT_NUMA))
    amounts = {"cpu": Quantity(str(EXPECTED[name].cpus)), "memory": Quantity("256Gi")}
    node = Node(metadata=ObjectMeta(name="n", uid="u"), status=NodeStatus(capacity=amounts, allocatable=amounts))
    machine = MachineInfo(present(cpus), present(basic), present(numa))
    return compute(machine, node, (), kubelet=None, kubelet_state={})


def test_the_report_has_every_online_cpu_and_every_numa_node(named: tuple[str, Machine, Roots]) -> None:
    name, machine, roots = named
    status, facts = report(name, roots), EXPECTED[name]
    detail = json.loads(status.annotations[wire.CPU_TOPOLOGY.key])["detail"]
    assert {cpu["id"] for cpu in detail} == machine.online
    assert len({cpu["core"] for cpu in detail}) == facts.cores
    basic = json.loads(status.annotations[wire.CPU_BASIC_INFO.key])
    assert (basic.get("hyperThreadEnabled", False), basic.get("turboEnabled", False)) == (facts.smt, facts.turbo)
    assert basic.get("catL3CbmMask", "") == machine.cbm
    shared = json.loads(status.annotations[wire.CPU_SHARED_POOLS.key])
    assert len(shared) == facts.nodes, "one pool for each NUMA node with CPUs"
    assert len(status.zones) == facts.zones
    with_cpus = [zone for zone in status.zones for r in zone.resources if r.name == "cpu" and r.capacity.value() > 0]
    assert len(with_cpus) == (facts.nodes if facts.zones else 0)


def test_half_of_the_cpus_are_whole_sockets_nodes_and_cores(named: tuple[str, Machine, Roots]) -> None:
    name, machine, roots = named
    infos = cpu_infos(read_topology(roots))
    taken = take_by_topology(infos, frozenset(machine.online), len(machine.online) // 2)
    assert len(taken) == len(machine.online) // 2
    assert taken == _cpus(EXPECTED[name].half)


def _cpus(text: str) -> set[int]:
    spans = [part.partition("-") for part in text.split(",")]
    return {cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)}


def test_resctrl_has_a_domain_for_each_cache(named: tuple[str, Machine, Roots]) -> None:
    name, machine, roots = named
    cpu = read_topology(roots).info
    facts = read_facts(roots.resctrl, cpu.vendor)
    if not machine.cbm:
        assert facts is None
        assert not resctrl.probe(cpu)
        return
    assert resctrl.probe(cpu)
    assert resctrl.probe_monitoring(cpu)
    known = present(facts)
    assert len(known.caches) == len(known.bandwidths) == EXPECTED[name].l3
    assert legal_mask(known, 0, 50).bit_count() == -(-int(machine.cbm, 16).bit_length() // 2)
    assert mba_value(35, cpu.vendor) == (56 if cpu.vendor == resctrl.AMD else 40)
    assert mba_value(100, cpu.vendor) == (2048 if cpu.vendor == resctrl.AMD else 100)
