"""Cgroup values in tables that were computed by hand from kubelet's rules, not with the code under test."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.standalone.kubelet.cgroups.naming import QosClass
from control.standalone.kubelet.cgroups.values import (
    container_values,
    files_v1,
    files_v2,
    oom_score_adj,
    pod_values,
    qos_values,
    quota_of,
    root_values,
    shares_of,
    weight_of,
)
from control.standalone.kubelet.pods.spec import parse_pod, qos_class

MI, GI = 1 << 20, 1 << 30


def make(*resources: Any, **spec: Any) -> Any:
    containers = [{"name": f"c{i}", "resources": r} for i, r in enumerate(resources)]
    return parse_pod({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": containers, **spec}})


def res(requests: Any = None, limits: Any = None) -> dict[str, Any]:
    return {k: v for k, v in (("requests", requests), ("limits", limits)) if v}


@pytest.mark.parametrize(
    ("milli", "shares", "quota"),
    [
        (0, 2, None),
        (1, 2, 1000),
        (5, 5, 1000),
        (10, 10, 1000),
        (11, 11, 1100),
        (100, 102, 10_000),
        (500, 512, 50_000),
        (1000, 1024, 100_000),
        (2500, 2560, 250_000),
        (256_000, 262_144, 25_600_000),
        (300_000, 262_144, 30_000_000),
    ],
)
def test_shares_and_quota(milli: int, shares: int, quota: int | None) -> None:
    assert shares_of(milli) == shares
    assert quota_of(milli) == quota


@pytest.mark.parametrize(
    ("shares", "weight"),
    [(2, 1), (512, 20), (1000, 39), (1024, 39), (2000, 77), (2048, 79), (50_000, 1908), (262_144, 10_000)],
)
def test_weight(shares: int, weight: int) -> None:
    assert weight_of(shares) == weight


@given(st.integers(2, 262_144), st.integers(2, 262_144))
def test_weight_does_not_decrease_with_shares(a: int, b: int) -> None:
    assert (weight_of(a) <= weight_of(b)) or a > b
    assert 1 <= weight_of(a) <= 10_000


CASES = {
    "best effort": ([res()], QosClass.BESTEFFORT, (2, None, None), [(2, None, None)]),
    "requests only": (
        [res({"cpu": "250m", "memory": "64Mi"})],
        QosClass.BURSTABLE,
        (256, None, None),
        [(256, None, None)],
    ),
    "burstable with both limits": (
        [res({"cpu": "250m", "memory": "64Mi"}, {"cpu": "1", "memory": "128Mi"})],
        QosClass.BURSTABLE,
        (256, 100_000, 128 * MI),
        [(256, 100_000, 128 * MI)],
    ),
    "limits are requests too": (
        [res(None, {"cpu": "500m", "memory": "1Gi"})],
        QosClass.GUARANTEED,
        (512, 50_000, GI),
        [(512, 50_000, GI)],
    ),
    "one container of two without limits leaves the pod open": (
        [res(None, {"cpu": "500m", "memory": "1Gi"}), res({"cpu": "100m"})],
        QosClass.BURSTABLE,
        (614, None, None),
        [(512, 50_000, GI), (102, None, None)],
    ),
    "two guaranteed containers add up": (
        [res(None, {"cpu": "1", "memory": "1Gi"}), res(None, {"cpu": "2", "memory": "3Gi"})],
        QosClass.GUARANTEED,
        (3072, 300_000, 4 * GI),
        [(1024, 100_000, GI), (2048, 200_000, 3 * GI)],
    ),
    "memory only": ([res({"memory": "1Gi"})], QosClass.BURSTABLE, (2, None, None), [(2, None, None)]),
    "tiny limit is raised to what the kernel takes": (
        [res(None, {"cpu": "5m", "memory": "16Mi"})],
        QosClass.GUARANTEED,
        (5, 1000, 16 * MI),
        [(5, 1000, 16 * MI)],
    ),
    "batch resources are not kubelet's to enforce": (
        [res({"kubernetes.io/batch-cpu": "1500"}, {"kubernetes.io/batch-cpu": "1500"})],
        QosClass.BESTEFFORT,
        (2, None, None),
        [(2, None, None)],
    ),
}


@pytest.mark.parametrize(("resources", "qos", "pod", "containers"), CASES.values(), ids=CASES.keys())
def test_pod_and_container_level(resources: Any, qos: QosClass, pod: Any, containers: Any) -> None:
    spec = make(*resources)
    assert qos_class(spec) is qos
    values = pod_values(spec)
    assert (values.shares, values.quota, values.memory) == pod
    container_level = [container_values(c) for c in spec.containers]
    assert [(v.shares, v.quota, v.memory) for v in container_level] == containers


def test_overhead_and_init_containers_count_at_pod_level() -> None:
    spec = make(
        res({"cpu": "100m"}),
        initContainers=[{"name": "i", "resources": res({"cpu": "1"})}],
        overhead={"cpu": "250m"},
    )
    assert pod_values(spec).shares == 1280  # max(100m, 1000m) + 250m


def test_sidecars_add_to_the_containers_and_to_later_init_containers() -> None:
    spec = make(
        res({"cpu": "100m"}),
        initContainers=[
            {"name": "s", "restartPolicy": "Always", "resources": res({"cpu": "200m"})},
            {"name": "i", "resources": res({"cpu": "500m"})},
        ],
    )
    assert pod_values(spec).shares == 700 * 1024 // 1000


def test_qos_parents() -> None:
    pods = [
        make(res({"cpu": "250m"})),
        make(res({"cpu": "1500m"})),
        make(res(None, {"cpu": "4", "memory": "1Gi"})),
        make(res()),
    ]
    assert qos_values(QosClass.BURSTABLE, pods).shares == 1792
    assert qos_values(QosClass.BURSTABLE, []).shares == 2
    assert qos_values(QosClass.BESTEFFORT, pods).shares == 2


def test_files_of_both_versions() -> None:
    values = container_values(make(res({"cpu": "250m"}, {"cpu": "2", "memory": "1Gi"})).containers[0])
    assert files_v1(values) == {
        "cpu": {"cpu.shares": "256", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "200000"},
        "memory": {"memory.limit_in_bytes": "1073741824", "memory.memsw.limit_in_bytes": "1073741824"},
    }
    assert files_v2(values) == {
        "cpu.weight": "10",
        "cpu.max": "200000 100000",
        "memory.max": "1073741824",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
    }
    assert files_v1(root_values(3500, 15 * GI)) == {
        "cpu": {"cpu.shares": "3584"},
        "memory": {"memory.limit_in_bytes": str(15 * GI)},
    }


@pytest.mark.parametrize(
    ("resources", "spec", "adj"),
    [
        (res(), {}, 1000),
        (res(None, {"cpu": "1", "memory": "1Gi"}), {}, -997),
        (res({"cpu": "1"}), {}, 999),
        (res({"memory": "4Gi"}), {}, 750),
        (res({"memory": "15999Mi"}), {}, 24),
        (res({"memory": "16Gi"}), {}, 3),
        (res({"memory": "1Mi"}), {}, 999),
        (res(), {"priority": 2_000_001_000, "priorityClassName": "system-node-critical"}, -997),
        (res(), {"priority": 2_000_000_000, "priorityClassName": "system-cluster-critical"}, 1000),
    ],
)
def test_oom_score_adj(resources: Any, spec: Any, adj: int) -> None:
    pod = make(resources, **spec)
    assert oom_score_adj(pod, pod.containers[0], 16 * GI) == adj


def test_a_sidecar_is_not_killed_before_the_main_containers() -> None:
    pod = make(
        res({"memory": "4Gi"}),
        initContainers=[{"name": "s", "restartPolicy": "Always", "resources": res({"memory": "1Gi"})}],
    )
    assert oom_score_adj(pod, pod.init_containers[0], 16 * GI) == 750
