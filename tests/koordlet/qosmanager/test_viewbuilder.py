"""The node view has the node's rules, the pods' figures, and only fresh values."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from koordlet.api.crs.slo import NodeSLOSpec
from koordlet.api.encoding.wire import convert
from koordlet.qosmanager.engine.viewbuilder import MEMORY_FILES, RoundInputs, ViewBuilder, ViewSources
from koordlet.qosmanager.rules.cpu import CPURules, NodeRules
from koordlet.resourceexecutor import Setting
from koordlet.statesinformer.nodeslo.effective import effective
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.cgroup.naming import CgroupDriver
from koordlet.system.cpu.cpuset import CPUSet
from tests.koordlet.qosmanager.conftest import make_node, make_pod

SOURCES = ViewSources(
    average=lambda kind, labels, seconds: None,
    memory_now=lambda directory: None,
    io_now=lambda container: None,
    supports=lambda file, directory: file != "memory.wmark_ratio",
    collect_interval=1.0,
)


def states_of(workloads: Workloads, slo: Any = None) -> Any:
    node = SimpleNamespace(object=make_node())
    spec = effective(None if slo is None else convert(slo, NodeSLOSpec))
    return SimpleNamespace(node=node, slo=spec, workloads=workloads, driver=CgroupDriver.CGROUPFS)


def builder_of(
    states: Any, rules: NodeRules | None = None, *, normalized: bool = False, held: Any = None
) -> ViewBuilder:
    return ViewBuilder(states, rules or NodeRules(), SOURCES, (held or {}).get, normalized=normalized)


@pytest.mark.parametrize("static", [True, False])
def test_the_view_has_the_nodes_rules(static: bool) -> None:
    rules = NodeRules()
    rules.cpu, rules.normalization = CPURules(kubelet_static=static), 1.5
    view = builder_of(states_of(Workloads()), rules, normalized=static).full(RoundInputs(0.0, None, None))
    assert view is not None
    assert (view.cpu_rules, view.kubelet_static, view.normalization) == (rules.cpu, static, 1.5)
    assert view.normalized is static
    assert view.memory_files == set(MEMORY_FILES[1:])


def test_the_view_has_the_figures_of_pods_and_containers() -> None:
    """Every figure reaches the strategies: memory throttling starts from the charged bytes."""
    meta = make_pod("web").meta
    subjects = (
        Subject(SubjectKind.POD, meta.uid, meta.cgroup_dir, "web"),
        Subject(SubjectKind.CONTAINER, meta.containers[0].id, meta.containers[0].cgroup_dir, "c0"),
    )
    workloads = Workloads(1, {meta.uid: meta}, subjects)  # type: ignore[arg-type]
    use = SimpleNamespace(
        cores=np.array([0.5, 0.4]),
        memory=np.array([100.0, 90.0]),
        throttled=np.array([np.nan, 0.25]),
        memory_with_page_cache=np.array([150.0, 140.0]),
    )
    picture: Any = SimpleNamespace(at=0.0, workloads=workloads, use=use, node=None)
    builder = builder_of(states_of(workloads))
    view = builder.full(RoundInputs(0.0, picture, None))
    assert view is not None
    (pod,) = view.pods
    assert (pod.cpu, pod.memory, pod.charged) == (500, 100, 150)
    (container,) = pod.containers
    assert (container.cpu, container.throttled, container.charged) == (400, 0.25, 140)
    stale = builder.full(RoundInputs(2.1, picture, None))
    assert stale is not None
    assert stale.pods[0].cpu is None


@pytest.mark.parametrize(
    ("enabled", "cpus", "expected"),
    [(True, "0-3", "0-3"), (True, "", "0-7"), (False, "0-3", None)],
    ids=["own", "effective", "suppress-off"],
)
def test_best_efforts_cpu_settings_are_read_while_cpu_suppress_is_enabled(
    enabled: bool, cpus: str, expected: str | None
) -> None:
    directory = "kubepods/besteffort"
    held = {
        Setting("cpuset.cpus", directory): cpus,
        Setting("cpuset.cpus.effective", directory): "0-7",
        Setting("cpu.cfs_quota_us", directory): 5000,
    }
    states = states_of(Workloads(), {"resourceUsedThresholdWithBE": {"enable": enabled}})
    view = builder_of(states, held=held).full(RoundInputs(0.0, None, None))
    assert view is not None
    if expected is None:
        assert view.best_effort_cgroup is None
    else:
        assert view.best_effort_cgroup is not None
        assert view.best_effort_cgroup.cpuset == CPUSet.parse(expected)
        assert view.best_effort_cgroup.quota_us == 5000


def test_the_outline_is_the_view_without_figures() -> None:
    """Settings of announced pods must not depend on which of the two was used."""
    rules = NodeRules()
    rules.cpu, rules.normalization = CPURules(kubelet_static=True), 1.5
    metas = {pod.meta.uid: pod.meta for pod in (make_pod("a", qos="LSE", cpuset="1-2"), make_pod("b", qos="BE"))}
    states = states_of(Workloads(1, metas, ()))  # type: ignore[arg-type]
    builder = builder_of(states, rules, normalized=True)
    view = builder.full(RoundInputs(3.0, None, None))
    outline = builder.outline(None, 3.0)
    assert view is not None
    assert outline is not None
    without: Any = {"average": None, "memory_now": None, "io_now": None, "memory_files": frozenset()}
    assert replace(outline, **without) == replace(view, **without)
    assert (again := builder.outline(None, 4.0)) is not None
    assert again.pods is outline.pods, "built once per list of the kubelet"
    states.workloads = Workloads(1, {}, ())  # type: ignore[arg-type]
    assert (later := builder.outline(None, 5.0)) is not None
    assert later.pods == ()
    states.node.object = None
    assert builder.outline(None, 6.0) is None
