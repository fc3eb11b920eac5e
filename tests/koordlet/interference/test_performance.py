"""Each container's performance, as it goes into NodeMetric: all waiting counts, whatever causes it."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from koordlet.api.crs.nodemetric import PodMetricInfo
from koordlet.api.crs.performance import MAX_FIGURES, figures_of
from koordlet.interference.model import Evidence, ResourceEvidence, WaitResource
from koordlet.interference.performance import SAMPLES, PerformanceFigures
from koordlet.statesinformer.pods.model import ContainerMeta, PodMeta, Workloads
from tests.koordlet.interference.conftest import container

WEB, JOB = container("web"), container("job", qos="BE")


def measured(others: list[float], own: list[float], hypervisor: list[float] | None = None) -> ResourceEvidence:
    stolen = None if hypervisor is None else np.array(hypervisor)
    return ResourceEvidence("bpf", np.array(others), np.array(own), hypervisor=stolen)


def pods() -> Workloads:
    containers = [ContainerMeta(WEB.key, "app", "", True), ContainerMeta("containerd://new", "side", "", True)]
    pod: Any = SimpleNamespace(uid="uid-web", containers=tuple(containers))
    typed: PodMeta = pod
    return Workloads(pods=MappingProxyType({"uid-web": typed}), subjects=(WEB, JOB))


@pytest.fixture
def evaluator() -> Any:
    resources = {
        WaitResource.CPU: measured([0.1, 0.5], [0.2, np.nan], [0.3, 0.0]),
        WaitResource.IO: measured([np.nan, 0.1], [0.0, 0.0]),
    }
    return SimpleNamespace(evidence=Evidence((WEB, JOB), 3.0, resources))


def test_neighbours_own_delay_and_stolen_cpus_add_up(evaluator: Any) -> None:
    performance = PerformanceFigures(evaluator, pods, lambda: {WEB.key: 1.23456})
    assert performance.of_container(JOB.key) == {}
    performance.sample()
    assert performance.of_container(WEB.key) == {"cpu": 0.6, "cpi": 1.2346}
    assert performance.of_container(JOB.key) == {"cpu": 0.5, "io": 0.1}
    assert performance.pod_extension("uid-web") == {"performance": {"app": {"cpu": 0.6, "cpi": 1.2346}}}
    assert performance.pod_extension("uid-none") is None


def test_figures_are_means_of_the_last_minute(evaluator: Any) -> None:
    performance = PerformanceFigures(evaluator, pods, dict)
    before = evaluator.evidence
    evaluator.evidence = None
    performance.sample()
    evaluator.evidence = before
    for _ in range(SAMPLES // 2):
        performance.sample()
    evaluator.evidence = Evidence((WEB,), 3.0, {WaitResource.CPU: measured([0.2], [0.0])})
    for _ in range(SAMPLES // 2):
        performance.sample()
    assert performance.of_container(WEB.key) == {"cpu": 0.4}
    for _ in range(SAMPLES):
        performance.sample()
    assert performance.of_container(WEB.key) == {"cpu": 0.2}
    assert performance.of_container(JOB.key) == {}, "it is not on the node any more"


def test_what_is_written_can_be_read_and_is_bounded(evaluator: Any) -> None:
    many = {f"f{at}": float(at) for at in range(100)}
    performance = PerformanceFigures(evaluator, pods, dict, lambda _: {"cpu": 9.0, **many})
    performance.sample()
    extension = performance.pod_extension("uid-web")
    figures = figures_of(PodMetricInfo(extensions=extension))
    assert figures["app"]["cpu"] == 0.6, "koordlet's own figure wins"
    assert len(figures["app"]) == MAX_FIGURES
    assert extension == {"performance": figures}
