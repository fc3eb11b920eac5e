"""Batch resources: the worked example of spec 03 §4.7 and properties for any containers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.core import Container
from koordlet.api.encoding.wire import convert
from koordlet.api.hooks.api_pb2 import LinuxContainerResources
from koordlet.qosmanager.engine.view import PodView
from koordlet.runtimehooks.hooks.batchresource import MEMORY, QUOTA, SHARES, BatchResource, values
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.present import present

GIB = 1 << 30


def container(
    name: str = "c0", request: int | None = None, limit: int | None = None, memory: int | None = None
) -> dict[str, Any]:
    def amounts(cpu: int | None) -> dict[str, str]:
        pairs = {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": memory}
        return {key: str(value) for key, value in pairs.items() if value is not None}

    return {"name": name, "resources": {"requests": amounts(request), "limits": amounts(limit)}}


def batch(*containers: dict[str, Any], qos: str = "BE", **fields: Any) -> PodView:
    spec = {"containers": list(containers)}
    return make_pod("job", qos=qos, kube="BestEffort", containers=len(containers), spec=spec, **fields)


EXAMPLE = (container("c0", 500, 1000, GIB), container("c1", 500, 500, GIB))


def decided(*pods: PodView, threshold: dict[str, Any] | None = None, **fields: Any) -> dict[str, dict[str, int]]:
    slo = {"resourceUsedThresholdWithBE": threshold} if threshold else {}
    settings: dict[str, Any] = {}
    for update in present(BatchResource().decide(make_view(pods=pods, slo=slo, **fields))).updates:
        assert update.setting.cgroup_dir is not None
        settings.setdefault(update.setting.cgroup_dir, {})[update.setting.resource] = update.value
    return settings


def test_the_worked_example() -> None:
    pod = batch(*EXAMPLE)
    first, second = (meta.cgroup_dir for meta in pod.meta.containers)
    assert decided(pod) == {
        pod.meta.cgroup_dir: {SHARES: 1024, QUOTA: 150_000, MEMORY: 2 * GIB},
        first: {SHARES: 512, QUOTA: 100_000, MEMORY: GIB},
        second: {SHARES: 512, QUOTA: 50_000, MEMORY: GIB},
    }


def test_init_containers_have_their_own_values_and_do_not_count_in_the_pods_sums() -> None:
    """A sidecar, and a setup container that requests more CPU than the whole pod."""
    init = [{**container("mesh", 100, 200, GIB), "restartPolicy": "Always"}, container("setup", 500, 4000, 4 * GIB)]
    for running, expected in (
        ("mesh", {SHARES: 102, QUOTA: 20_000, MEMORY: GIB}),
        ("setup", {SHARES: 512, QUOTA: 150_000, MEMORY: 4 * GIB}),
    ):
        spec = {"containers": list(EXAMPLE), "initContainers": init}
        pod = make_pod("job", qos="BE", kube="BestEffort", containers=2, spec=spec, init=running)
        settings = decided(pod)
        assert settings[f"{pod.meta.cgroup_dir}/job-{running}"] == expected
        assert settings[pod.meta.cgroup_dir] == {SHARES: 1024, QUOTA: 150_000, MEMORY: 2 * GIB}
        assert len(settings) == 4


@pytest.mark.parametrize("amount", ["1e30", "9223372036854775807", "8Ei", "1e300"])
def test_no_amount_of_a_tenant_loses_the_answer(amount: str) -> None:
    """The protocol's fields have 64 bits; a message that cannot be built would lose the whole answer of the hook."""
    amounts = dict.fromkeys(("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"), amount)
    absurd: Container = convert({"name": "c", "resources": {"requests": amounts, "limits": amounts}}, Container)
    for containers in ([absurd], [absurd] * 100):
        files = values(containers)
        message = LinuxContainerResources(
            cpu_shares=files[SHARES], cpu_quota=files[QUOTA], memory_limit_in_bytes=files[MEMORY]
        )
        assert message.memory_limit_in_bytes > GIB and message.cpu_shares > 1024


def test_normalization_reduces_the_quota() -> None:
    pod = batch(*EXAMPLE)
    assert decided(pod, normalization=1.2)[pod.meta.cgroup_dir][QUOTA] == 125_000


def test_no_quota_while_the_best_effort_directory_has_one() -> None:
    settings = decided(batch(*EXAMPLE), threshold={"enable": True, "cpuSuppressPolicy": "cfsQuota"})
    assert {row[QUOTA] for row in settings.values()} == {-1}


def test_a_container_without_a_limit_makes_the_pod_unlimited() -> None:
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
def test_which_pods_are_not_changed(pod: PodView) -> None:
    assert decided(pod) == {}


def test_a_pod_without_containers_is_unlimited() -> None:
    assert values([]) == {SHARES: 2, QUOTA: -1, MEMORY: -1}


amounts = st.one_of(st.none(), st.integers(0, 100_000))


@given(st.lists(st.tuples(amounts, amounts, amounts), min_size=1, max_size=5))
def test_a_pods_limits_are_never_below_those_of_a_container(
    rows: list[tuple[int | None, int | None, int | None]],
) -> None:
    containers = [convert(container(f"c{n}", *row), Container) for n, row in enumerate(rows)]  # type: ignore[var-annotated]
    whole, parts = values(containers), [values([container]) for container in containers]
    for file in (QUOTA, MEMORY):
        assert whole[file] == -1 or all(-1 < part[file] <= whole[file] for part in parts)
    assert whole[SHARES] >= max(part[SHARES] for part in parts)
