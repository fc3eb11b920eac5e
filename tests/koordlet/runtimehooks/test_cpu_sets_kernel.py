"""CPU sets in real cgroups: the CPUs of processes are those of CPU suppress and the allocator together, step by step
and restored. With two CPUs best effort and a pinned pod get one each; more CPUs give more steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.view import PodView
from koordlet.qosmanager.rules.cpu import CPURules
from koordlet.qosmanager.strategies.cpusuppress import CPUSuppress
from koordlet.resourceexecutor.executor import Executor
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.ledger import Ledger
from koordlet.runtimehooks.hooks.cpuset import CPUSetAllocator
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cpu.cpuset import CPUSet
from koordlet.system.cpu.cputopology import read_topology
from koordlet.system.host import Host
from koordlet.wiring.ownerrules import RULES
from tests.koordlet.qosmanager.conftest import make_node, make_pod, make_view
from tests.koordlet.resourceexecutor.conftest import Recorder

pytestmark = pytest.mark.kernel


@dataclass
class Node:
    """A pinned pod, a service and a best-effort pod, each with one process."""

    pods: tuple[PodView, ...]
    pids: dict[str, int]
    best_effort: str
    executor: Executor
    host: Host
    suppress: CPUSuppress
    allocator: CPUSetAllocator

    @property
    def online(self) -> CPUSet:
        return self.host.facts.online_cpus

    def round(self, *, used: int, suppress: bool, pinned: bool = True) -> Any:
        """Result of a pass while services use `used` milli-cores."""
        pods = self.pods if pinned else tuple(replace(pod, cpuset=CPUSet()) for pod in self.pods)
        own = CPUSet().union(*(pod.cpuset for pod in pods))
        threshold = {"enable": suppress, "cpuSuppressThresholdPercent": 100}
        view = make_view(
            pods=tuple(replace(pod, cpu=used if pod.raw_qos == "LS" else 0) for pod in pods), cpu=used,
            node=make_node(str(len(self.online))), topology=read_topology(self.host.roots),
            qos_dirs={"BestEffort": self.best_effort}, cpu_rules=CPURules(shared={0: self.online - own}),
            slo={"resourceUsedThresholdWithBE": threshold}, current=self.executor.current,
        )  # fmt: skip
        for strategy in (self.suppress, self.allocator):
            decision = strategy.decide(view)
            if decision is not None:
                self.executor.declare(strategy.name, decision.updates)
        return self.executor.apply()

    def allowed(self) -> dict[str, CPUSet]:
        """CPUs on which the kernel lets the process of each pod run."""
        allowed = {}
        for name, pid in self.pids.items():
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            allowed[name] = CPUSet.parse(
                next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list"))
            )
        return allowed


@pytest.fixture
def node(kernel_fs: CgroupFS, kernel_host: Host, cgroup_child: Callable[..., Any], spawn: Callable[..., Any]) -> Node:
    root = cgroup_child()
    last = str(max(kernel_host.facts.online_cpus))
    parents = {"Guaranteed": root, "Burstable": root.child("burstable"), "BestEffort": root.child("besteffort")}
    pods, pids = [], {}
    for name, qos, kube, cpuset in (
        ("pinned", "LSE", "Guaranteed", last), ("web", "LS", "Burstable", ""), ("job", "BE", "BestEffort", ""),
    ):  # fmt: skip
        group = parents[kube].child(name)
        inside = group.child("container")
        pids[name] = spawn(["sleep", "600"], inside).pid
        pod = make_pod(name, qos=qos, kube=kube, cpuset=cpuset)
        container = replace(pod.meta.containers[0], cgroup_dir=inside.dir)
        meta = replace(pod.meta, cgroup_dir=group.dir, containers=(container,))
        pods.append(replace(pod, meta=meta, containers=(replace(pod.containers[0], meta=container),)))
    files = KernelFiles(kernel_fs, kernel_host.roots)
    executor = Executor(files, Ledger(None, "boot"), Recorder(), Registries(), rules=RULES)
    best_effort = parents["BestEffort"].dir
    return Node(tuple(pods), pids, best_effort, executor, kernel_host, CPUSuppress(), CPUSetAllocator())


def test_processes_run_on_their_cpus_and_on_the_original_ones_after_restoring(node: Node) -> None:
    before, last = node.allowed(), CPUSet({max(node.online)})
    assert node.round(used=0, suppress=False).problems == {}
    assert node.allowed() == {"pinned": last, "web": node.online - last, "job": node.online - last}
    assert node.round(used=0, suppress=False, pinned=False).problems == {}
    assert set(node.allowed().values()) == {node.online}
    node.round(used=0, suppress=False)
    assert node.executor.restore_everything().problems == {}
    assert node.allowed() == before


def test_suppression_shrinks_at_once_and_grows_by_steps(node: Node) -> None:
    """Services use the whole node, then nothing."""
    count, before = len(node.online), node.allowed()
    step = -(-count // 10)
    assert node.round(used=1000 * count, suppress=True, pinned=False).problems == {}
    sizes = [len(node.allowed()["job"])]
    assert sizes == [2]
    for _ in range(count):
        assert node.round(used=0, suppress=True, pinned=False).problems == {}
        sizes.append(len(node.allowed()["job"]))
    assert sizes == [min(2 + step * turn, count) for turn in range(count + 1)]
    assert node.allowed()["web"] == node.online
    assert node.executor.restore_everything().problems == {}
    assert node.allowed() == before
