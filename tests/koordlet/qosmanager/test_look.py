"""The picture has what the node's objects say about CPUs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from koordlet.qosmanager.engine.snapshot import Outline, look
from koordlet.qosmanager.rules.cpu import CPURules, NodeRules
from koordlet.statesinformer.nodeslo.effective import effective
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.cgroup.naming import CgroupDriver
from tests.koordlet.qosmanager.conftest import make_node, make_pod


@pytest.mark.parametrize("static", [True, False])
def test_rules_of_the_node(static) -> None:
    rules = NodeRules()
    rules.cpu, rules.normalization = CPURules(kubelet_static=static), 1.5
    node = SimpleNamespace(object=make_node())
    states = SimpleNamespace(node=node, slo=effective(None), workloads=Workloads(), driver=CgroupDriver.CGROUPFS)
    view = look(
        states, None, None, lambda setting: None,  # type: ignore[arg-type]
        average=lambda kind, labels, seconds: None, now=0.0, collect_interval=1.0, rules=rules, normalized=static,
    )  # fmt: skip
    assert view is not None
    assert (view.cpu_rules, view.kubelet_static, view.normalization) == (rules.cpu, static, 1.5)
    assert view.normalized is static


def test_use_of_pods_and_containers() -> None:
    """Every figure reaches the strategies: what a pod is charged for is where memory is held back from."""
    meta = make_pod("web").meta
    subjects = (
        Subject(SubjectKind.POD, meta.uid, meta.cgroup_dir, "web"),
        Subject(SubjectKind.CONTAINER, meta.containers[0].id, meta.containers[0].cgroup_dir, "c0"),
    )
    workloads = Workloads(1, {meta.uid: meta}, subjects)
    use = SimpleNamespace(
        cores=np.array([0.5, 0.4]), memory=np.array([100.0, 90.0]), throttled=np.array([np.nan, 0.25]),
        memory_with_page_cache=np.array([150.0, 140.0]),
    )  # fmt: skip
    picture = SimpleNamespace(at=0.0, workloads=workloads, use=use, node=None)
    node = SimpleNamespace(object=make_node())
    states = SimpleNamespace(node=node, slo=effective(None), workloads=workloads, driver=CgroupDriver.CGROUPFS)
    view = look(
        states, picture, None, lambda setting: None,  # type: ignore[arg-type]
        average=lambda kind, labels, seconds: None, now=0.0, collect_interval=1.0,
    )  # fmt: skip
    assert view is not None
    (pod,) = view.pods
    assert (pod.cpu, pod.memory, pod.charged) == (500, 100, 150)
    (container,) = pod.containers
    assert (container.cpu, container.throttled, container.charged) == (400, 0.25, 140)


def test_an_outline_is_the_picture_without_figures() -> None:
    """What newborns get must not depend on which of both was taken."""
    rules = NodeRules()
    rules.cpu, rules.normalization = CPURules(kubelet_static=True), 1.5
    metas = {pod.meta.uid: pod.meta for pod in (make_pod("a", qos="LSE", cpuset="1-2"), make_pod("b", qos="BE"))}
    node = SimpleNamespace(object=make_node())
    workloads = Workloads(1, metas, ())
    states = SimpleNamespace(node=node, slo=effective(None), workloads=workloads, driver=CgroupDriver.CGROUPFS)
    average, current = (lambda kind, labels, seconds: None), (lambda setting: None)
    view = look(
        states, None, None, current, average=average, now=3.0, collect_interval=1.0, rules=rules, normalized=True,
    )  # type: ignore[arg-type]  # fmt: skip
    sketch = Outline(states, rules, normalized=True)  # type: ignore[arg-type]
    found = sketch(None, current, 3.0)
    assert view is not None
    assert found is not None
    plain = {"average": average, "memory_now": None, "io_now": None}
    assert replace(found, **plain) == replace(view, **plain)  # type: ignore[arg-type]
    assert (again := sketch(None, current, 4.0)) is not None
    assert again.pods is found.pods, "made once for each answer of the kubelet's"
    states.workloads = Workloads(1, {}, ())
    assert (later := sketch(None, current, 5.0)) is not None
    assert later.pods == ()
    node.object = None
    assert sketch(None, current, 6.0) is None
