"""Batch resources: the worked example of spec 03 §4.7 and what must hold for any containers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.core import Container
from koordlet.api.encoding.wire import convert
from koordlet.runtimehooks.hooks.batchresource import MEMORY, QUOTA, SHARES, BatchResource, values
from tests.koordlet.qosmanager.conftest import make_pod, make_view

GIB = 1 << 30


def container(name="c0", request=None, limit=None, memory=None):
    def amounts(cpu):
        pairs = {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": memory}
        return {key: str(value) for key, value in pairs.items() if value is not None}

    return {"name": name, "resources": {"requests": amounts(request), "limits": amounts(limit)}}


def batch(*containers, qos="BE", **given):
    spec = {"containers": list(containers)}
    return make_pod("job", qos=qos, kube="BestEffort", containers=len(containers), spec=spec, **given)


EXAMPLE = (container("c0", 500, 1000, GIB), container("c1", 500, 500, GIB))


def decided(*pods, threshold=None, **given):
    slo = {"resourceUsedThresholdWithBE": threshold} if threshold else {}
    found = {}
    for update in BatchResource().decide(make_view(pods=pods, slo=slo, **given)).updates:
        found.setdefault(update.setting.cgroup_dir, {})[update.setting.resource] = update.value
    return found


def test_the_worked_example() -> None:
    pod = batch(*EXAMPLE)
    one, two = (meta.cgroup_dir for meta in pod.meta.containers)
    assert decided(pod) == {
        pod.meta.cgroup_dir: {SHARES: 1024, QUOTA: 150_000, MEMORY: 2 * GIB},
        one: {SHARES: 512, QUOTA: 100_000, MEMORY: GIB},
        two: {SHARES: 512, QUOTA: 50_000, MEMORY: GIB},
    }


def test_init_containers_have_their_own_and_none_of_the_pods_sums() -> None:
    """A sidecar, and a setup that asks for more CPU than the pod has as a whole."""
    init = [{**container("mesh", 100, 200, GIB), "restartPolicy": "Always"}, container("setup", 500, 4000, 4 * GIB)]
    for running, expected in (
        ("mesh", {SHARES: 102, QUOTA: 20_000, MEMORY: GIB}),
        ("setup", {SHARES: 512, QUOTA: 150_000, MEMORY: 4 * GIB}),
    ):
        spec = {"containers": list(EXAMPLE), "initContainers": init}
        pod = make_pod("job", qos="BE", kube="BestEffort", containers=2, spec=spec, init=running)
        found = decided(pod)
        assert found[f"{pod.meta.cgroup_dir}/job-{running}"] == expected
        assert found[pod.meta.cgroup_dir] == {SHARES: 1024, QUOTA: 150_000, MEMORY: 2 * GIB}
        assert len(found) == 4


def test_a_faster_cpu_needs_less_quota() -> None:
    pod = batch(*EXAMPLE)
    assert decided(pod, normalization=1.2)[pod.meta.cgroup_dir][QUOTA] == 125_000


def test_no_quota_of_its_own_while_the_directory_has_one() -> None:
    found = decided(batch(*EXAMPLE), threshold={"enable": True, "cpuSuppressPolicy": "cfsQuota"})
    assert {row[QUOTA] for row in found.values()} == {-1}


def test_one_without_a_limit_makes_the_pod_unlimited() -> None:
    pod = batch(container("c0", 500, 1000, GIB), container("c1", 500))
    assert decided(pod)[pod.meta.cgroup_dir] == {SHARES: 1024, QUOTA: -1, MEMORY: -1}


@pytest.mark.parametrize(
    "pod",
    [
        batch(container()),
        batch(*EXAMPLE, qos="LS"),
        batch(*EXAMPLE, qos=""),
        batch(*EXAMPLE, phase="Succeeded"),
    ],
    ids=["asks for nothing", "LS", "unlabelled", "finished"],
)
def test_who_is_left_alone(pod) -> None:
    assert decided(pod) == {}


def test_nothing_at_all_is_unlimited() -> None:
    assert values([]) == {SHARES: 2, QUOTA: -1, MEMORY: -1}


amounts = st.one_of(st.none(), st.integers(0, 100_000))


@given(st.lists(st.tuples(amounts, amounts, amounts), min_size=1, max_size=5))
def test_a_pod_is_never_bound_more_than_one_of_its_containers(rows) -> None:
    made = [convert(container(f"c{n}", *row), Container) for n, row in enumerate(rows)]
    whole, parts = values(made), [values([one]) for one in made]
    for file in (QUOTA, MEMORY):
        assert whole[file] == -1 or all(-1 < part[file] <= whole[file] for part in parts)
    assert whole[SHARES] >= max(part[SHARES] for part in parts)
