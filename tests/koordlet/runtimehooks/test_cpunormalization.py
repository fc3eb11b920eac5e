"""CPU normalization: the worked example of spec 03 §4.8, which pods are normalized, and pod quotas."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.qosmanager.engine.view import PodView, normalized_quota, pod_quota
from koordlet.runtimehooks.hooks.cpunormalization import CPUNormalization
from koordlet.runtimehooks.stages import (
    NO_CHANGE,
    HookAnswer,
    HookContainer,
    HookContext,
    HookStage,
)
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.present import present


def with_limits(*limits: Any, qos: str = "LS", **fields: Any) -> PodView:
    containers = [
        {"name": f"c{n}", "resources": {"limits": {"cpu": limit} if limit else {}}} for n, limit in enumerate(limits)
    ]
    return make_pod(qos=qos, containers=len(limits), spec={"containers": containers}, **fields)


def decided(*pods: PodView, ratio: float = 1.2) -> dict[str, tuple[int, int]]:
    updates = present(CPUNormalization().decide(make_view(pods=pods, normalization=ratio))).updates
    return {update.setting.cgroup_dir: (update.value, update.neutral) for update in updates}  # type: ignore[misc]


def places(pod: PodView) -> list[str]:
    return [pod.meta.cgroup_dir, *(container.cgroup_dir for container in pod.meta.containers)]


@pytest.mark.parametrize(
    ("quota", "ratio", "expected"),
    [
        (200_000, 1.2, 166_667),
        (200_000, 1.0, 200_000),
        (200_000, 0.8, 200_000),
        (-1, 1.2, -1),
        (1_000, 1.25, 800),
    ],
)
def test_normalized_quotas(quota: int, ratio: float, expected: int) -> None:
    assert normalized_quota(quota, ratio) == expected


def test_pod_and_containers_are_normalized_and_have_neutral_values() -> None:
    pod = with_limits("2", "1")
    whole, first, second = places(pod)
    assert decided(pod) == {whole: (250_000, 300_000), first: (166_667, 200_000), second: (83_334, 100_000)}


def test_an_init_container_is_normalized_while_it_runs() -> None:
    limits = {"resources": {"limits": {"cpu": "1"}}}
    spec = {"containers": [{"name": "c0", **limits}], "initContainers": [{"name": "setup", **limits}]}
    pod = make_pod(qos="LS", spec=spec, init="setup")
    assert decided(pod)[f"{pod.meta.cgroup_dir}/pod-setup"] == (83_334, 100_000)


def test_a_container_without_a_limit_leaves_the_pod_unlimited() -> None:
    pod = with_limits("2", None)
    assert decided(pod) == {places(pod)[1]: (166_667, 200_000)}


@pytest.mark.parametrize(
    ("fields", "normalized"),
    [
        ({"qos": "LS"}, True),
        ({"qos": ""}, True),
        ({"qos": "LSR"}, False),
        ({"qos": "LSE"}, False),
        ({"qos": "BE"}, False),
        ({"qos": "SYSTEM"}, False),
        ({"qos": "LS", "cpuset": "0-1"}, True),
        ({"qos": "", "phase": "Failed"}, False),
    ],
    ids=lambda value: str(value),
)
def test_which_pods_are_normalized(fields: dict[str, Any], normalized: bool) -> None:
    assert bool(decided(with_limits("2", **fields))) is normalized


@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_without_normalization_there_are_no_settings(ratio: float) -> None:
    assert decided(with_limits("2"), ratio=ratio) == {}


def test_a_pod_with_a_short_init_container_is_bound_by_its_largest_phase() -> None:
    spec = {
        "initContainers": [{"name": "init", "resources": {"limits": {"cpu": "3"}}}],
        "containers": [{"name": "c0", "resources": {"limits": {"cpu": "1"}}}],
    }
    pod = make_pod(qos="LS", spec=spec)
    assert pod.meta.pod is not None
    assert pod_quota(pod.meta.pod) == 300_000
    assert decided(pod)[pod.meta.cgroup_dir] == (250_000, 300_000)


@pytest.mark.parametrize(
    ("quota", "answer"),
    [(200_000, HookAnswer(cfs_quota=166_667)), (-1, NO_CHANGE), (0, NO_CHANGE), (None, NO_CHANGE)],
)
def test_response_for_a_new_container(quota: int | None, answer: HookAnswer) -> None:
    context = HookContext(make_pod(qos="LS"), HookContainer("c0", cfs_quota=quota))
    view = make_view(normalization=1.2)
    assert CPUNormalization().answer(HookStage.PRE_CREATE_CONTAINER, context, view) == answer
    assert CPUNormalization().answer(HookStage.PRE_RUN_POD_SANDBOX, HookContext(context.pod), view) == NO_CHANGE


@given(st.lists(st.integers(10, 64_000), min_size=1, max_size=5), st.floats(0.1, 10))
def test_a_pods_quota_contains_its_containers_and_no_quota_grows(limits: list[int], ratio: float) -> None:
    pod = with_limits(*(f"{limit}m" for limit in limits))
    settings = decided(pod, ratio=ratio)
    if not settings:
        assert ratio <= 1
        return
    whole, *parts = (settings[place] for place in places(pod))
    assert all(0 < value <= whole[0] for value, _ in parts)
    assert all(value <= neutral for value, neutral in settings.values())
