"""The same use of the same things, written as cgroup v1 and as v2, is the same NodeMetric (spec 02 §13, check 3)."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from koordlet.api.crs.nodemetric import USAGE_WITH_PAGE_CACHE, USAGE_WITHOUT_PAGE_CACHE
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Time, to_builtins
from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.facts.node import NodeInfoCollector
from koordlet.metricsadvisor.usage.hostapps import HostAppMemory
from koordlet.metricsadvisor.usage.reader import TickReader
from koordlet.metricsadvisor.usage.usecollector import UseCollector, UseOptions
from koordlet.prometheus import Registries
from koordlet.statesinformer.nodemetric.status import ReportPolicy, build_status
from koordlet.statesinformer.pods.model import ContainerMeta, PodMeta, Subject, SubjectKind, Workloads, subjects_of
from koordlet.system.host import Host
from tests.koordlet.system.conftest import Tree

TICKS, STEP = 21, 8.0
"""Seconds; over half of the shortest window, with no input too old for system use."""
PAGE = 4096
WEB, JOB = "kubepods/burstable/podweb", "kubepods/besteffort/podjob"
CORES = {
    WEB: 0.5,
    f"{WEB}/main": 0.3,
    f"{WEB}/mesh": 0.2,
    JOB: 0.25,
    f"{JOB}/burn": 0.25,
    "host-latency-sensitive/n": 0.1,
}
MEMORY = {"cache": 900, "rss": 80, "inactive_file": 100, "active_file": 60, "inactive_anon": 30, "active_anon": 40,
          "unevictable": 10}  # fmt: skip
"""Pages."""


def _pod(directory: str, qos: str, priority: str, *containers: str) -> PodMeta:
    name = directory.rpartition("/pod")[2]
    metas = tuple(
        ContainerMeta(f"containerd://{name}-{container}", container, f"{directory}/{container}", True)
        for container in containers
    )
    return PodMeta(f"uid-{name}", name, "default", qos, priority, "Burstable", directory, metas)


PODS = {pod.uid: pod for pod in (_pod(WEB, "LS", "koord-prod", "main", "mesh"), _pod(JOB, "BE", "koord-batch", "burn"))}
APP = Subject(SubjectKind.HOST_APP, "n", "host-latency-sensitive/n", "n", qos="LS", priority_class="koord-prod")
BEST_EFFORT = Subject(SubjectKind.QOS, "BestEffort", "kubepods/besteffort", "BestEffort")
SUBJECTS = (BEST_EFFORT, *(subject for pod in PODS.values() for subject in subjects_of(pod)), APP)
WORKLOADS = Workloads(1, MappingProxyType(PODS), SUBJECTS)


def _write(tree: Tree, at: float) -> None:
    """Everything as it is `at` seconds after the beginning."""
    for where, cores in {**CORES, "kubepods/besteffort": CORES[JOB]}.items():
        tree.fill(where, round(cores * at * 1e9))
        pages = {name: amount * PAGE for name, amount in MEMORY.items()}
        usage = 1000 * PAGE
        if tree.version == 1:
            stat = "".join(f"{name} 1\n" for name in pages) + "".join(f"total_{k} {v}\n" for k, v in pages.items())
            numa = "total=980 N0=700 N1=280\nfile=900 N0=650 N1=250\nanon=70 N0=50 N1=20\nunevictable=10 N0=8 N1=2\n"
            tree.put("memory", "memory.usage_in_bytes", f"{usage}\n", where)
        else:
            names = {"cache": "file", "rss": "anon"}
            stat = "".join(f"{names.get(name, name)} {amount}\n" for name, amount in pages.items())
            rows = {"anon": (58, 22), "file": (650, 250), "inactive_anon": (20, 10), "active_anon": (30, 10),
                    "unevictable": (8, 2)}  # fmt: skip
            numa = "".join(f"{name} N0={v1 * PAGE} N1={two * PAGE}\n" for name, (v1, two) in rows.items())
            tree.put("", "memory.current", f"{usage}\n", where)
        tree.put("memory", "memory.stat", stat, where)
        tree.put("memory", "memory.numa_stat", numa, where)
    ticks = [round(1.5 * at * 100), round(0.9 * at * 100), round(0.6 * at * 100)]
    lines = [f"cpu{name} {busy} 0 0 {10**6} 0 0 0 0 0 0" for name, busy in zip(("", 0, 1), ticks, strict=True)]
    tree.file("proc/stat", "\n".join(lines) + "\n")


def _machine(base: Path, version: int) -> Tree:
    base.mkdir()
    tree = Tree(base, version)
    tree.file("proc/meminfo", "MemTotal: 65536 kB\nMemFree: 16384 kB\nMemAvailable: 32768 kB\n")
    tree.file("sys/devices/system/cpu/online", "0-1\n")
    for node in (0, 1):
        lines = {"MemTotal": 32768, "MemFree": 8192, "Active(file)": 4096, "Inactive(file)": 2048, "SReclaimable": 1024}
        text = "".join(f"Node {node} {name}: {amount} kB\n" for name, amount in lines.items())
        tree.file(f"sys/devices/system/node/node{node}/meminfo", text)
        tree.file(f"sys/devices/system/node/node{node}/cpulist", f"{node}\n")
    return tree


def reported(base: Path, version: int, memory: str) -> Any:
    """NodeMetric's status after TICKS ticks, as JSON."""
    tree, now = _machine(base, version), 0.0
    fs, host, cache = tree.fs(), Host(tree.roots), MetricCache()
    node_info = NodeInfoCollector(tree.roots, cache, Registries(), clock=lambda: now)
    use = UseCollector(
        TickReader(host, fs),
        lambda: WORKLOADS,
        cache,
        Registries(),
        node_of_cpu=lambda: node_info.node_of_cpu,
        pods_known=lambda: True,
        options=UseOptions(page_cache=True),
        clock=lambda: now,
    )
    apps = HostAppMemory(fs, lambda: WORKLOADS, cache, Registries(), clock=lambda: now)
    for number in range(TICKS):
        now = 1000.0 + number * STEP
        _write(tree, now)
        if number == 0:
            node_info.read()
        use.tick()
        apps.read()
    policy = ReportPolicy(memory=memory)
    return to_builtins(build_status(cache, WORKLOADS, policy, now=now, update_time=Time.from_unix(0.0)))


@pytest.mark.parametrize("memory", [USAGE_WITHOUT_PAGE_CACHE, USAGE_WITH_PAGE_CACHE])
def test_v1_and_v2_are_the_same_node_metric(tmp_path: Path, memory: str) -> None:
    v1, two = reported(tmp_path / "v1", 1, memory), reported(tmp_path / "v2", 2, memory)
    assert v1 == two
    node = v1["nodeMetric"]
    assert node["nodeUsage"]["resources"]["cpu"] == "1500m"
    assert node["systemUsage"]["resources"]["cpu"] == "650m", "node less pods less host application"
    assert [zone["numaNodeID"] for zone in node["numaUsages"]] == [0, 1]
    assert node["aggregatedNodeUsages"][0]["usage"]["p99"]["resources"]["cpu"] == "1500m"
    used = {pod["name"]: pod["podUsage"]["resources"] for pod in v1["podsMetric"]}
    pages = 80 if memory == USAGE_WITHOUT_PAGE_CACHE else 240
    assert {name: values["cpu"] for name, values in used.items()} == {"web": "500m", "job": "250m"}
    assert {Quantity(values["memory"]).value() for values in used.values()} == {pages * PAGE}
    assert [app["usage"]["resources"]["cpu"] for app in v1["hostApplicationMetric"]] == ["100m"]
