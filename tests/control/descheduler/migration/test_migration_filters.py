"""The checks before a pod may move (spec 07 §11.4)."""

from __future__ import annotations

from typing import Any

import pytest

from control.descheduler.config.selection import NamespaceRule
from control.descheduler.migration.decide.args import MigrationControllerArgs
from control.descheduler.migration.decide.filters import MigrationFilter
from control.descheduler.migration.decide.moving import MovingPods
from koordlet.api.crs.migration import PodMigrationJob
from tests.control.descheduler.migration.build import ListedView, job, pod

FORCE = "descheduler.alpha.kubernetes.io/evict"
NEVER = {"scheduling.koordinator.sh/eviction-cost": "2147483647"}
RS = "uid-rs"


def rules(**settings: Any) -> MigrationFilter:
    return MigrationFilter.of(MigrationControllerArgs(**settings))


def moving_of(view: ListedView) -> MovingPods:
    return MovingPods(view, view.jobs())


def limited(view: ListedView, subject: str = "a", namespace: str = "default", **settings: Any) -> bool:
    """Whether a limit refuses the pod; limits that are not stated are off."""
    off: dict[str, Any] = {
        "max_migrating_per_node": None,
        "skip_eviction_gates": ["MaxMigratingPerWorkload", "MaxUnavailablePerWorkload"],
    }
    candidate = view.pod(namespace, subject)
    assert candidate is not None
    return bool(rules(**{**off, **settings}).over_limits(candidate, view, moving_of(view)))


def test_a_job_for_the_pod_or_its_name_refuses_another() -> None:
    candidate = pod("a")
    for existing, refused in (
        (job(candidate), True),
        (job(candidate, phase="Running"), True),
        (job(candidate, phase="Pending"), True),
        (job(candidate, uid=False), True),
        (job(pod("a", uid="an older pod")), True),
        (job(candidate, phase="Succeeded"), False),
        (job(candidate, phase="Failed"), False),
        (job(candidate, phase="Aborted"), False),
        (job(pod("b")), False),
    ):
        view = ListedView([candidate], [existing], {RS: 100})
        assert bool(rules().refused_for_plugin(candidate, view, moving_of(view))) is refused, existing


def test_reservations_need_a_scheduler_that_supports_them() -> None:
    candidate = pod("a", spec={"schedulerName": "default-scheduler"})
    view = ListedView([candidate], [], {RS: 100})
    assert "default-scheduler" in rules().refused_for_plugin(candidate, view, moving_of(view))
    assert rules(default_job_mode="EvictDirectly").refused_for_plugin(candidate, view, moving_of(view)) == ""
    assert rules(scheduler_names=["default-scheduler"]).refused_for_plugin(candidate, view, moving_of(view)) == ""


@pytest.mark.parametrize(
    ("facts", "settings", "refused"),
    [
        ({}, {}, False),
        ({"namespace": "kube-system"}, {"namespaces": NamespaceRule(exclude=["kube-system"])}, True),
        ({"namespace": "web"}, {"namespaces": NamespaceRule(include=["web"])}, False),
        ({"namespace": "api"}, {"namespaces": NamespaceRule(include=["web"])}, True),
        (
            {"namespace": "api"},
            {"namespaces": NamespaceRule(include=["web"]), "skip_eviction_gates": ["Namespaces"]},
            False,
        ),
        ({"annotations": NEVER}, {}, True),
        ({"annotations": {**NEVER, FORCE: ""}}, {}, False),
        ({"by": "", "annotations": {FORCE: ""}}, {}, False),
        ({"terminating": True}, {}, True),
    ],
)
def test_what_never_changes(facts: dict[str, Any], settings: dict[str, Any], refused: bool) -> None:
    candidate = pod("a", **facts)
    assert bool(rules(**settings).forbidden(candidate, ListedView([candidate], [], {RS: 100}))) is refused


@pytest.mark.parametrize(
    ("replicas", "settings", "refused"),
    [
        (1, {}, True),
        (100, {"max_migrating_per_workload": 100}, True),
        (100, {"max_migrating_per_workload": 10}, False),
        (100, {"max_unavailable_per_workload": "100%"}, True),
        (0, {}, True),
        (1, {"skip_check_expected_replicas": True}, False),
        (1, {"skip_eviction_gates": ["ExpectedReplicas"]}, False),
        (2, {}, False),
    ],
)
def test_expected_replicas(replicas: int, settings: dict[str, Any], refused: bool) -> None:
    candidate = pod("a")
    assert bool(rules(**settings).forbidden(candidate, ListedView([candidate], [], {RS: replicas}))) is refused


def test_an_unknown_workload_refuses_the_pod() -> None:
    candidate = pod("a")
    view = ListedView([candidate], [], {RS: None})
    assert "no answer" in rules().forbidden(candidate, view)
    assert "no answer" in rules().over_limits(candidate, view, moving_of(view))


@pytest.mark.parametrize("limit", [None, 0, 1, 2])
@pytest.mark.parametrize("setting", ["max_migrating_globally", "max_migrating_per_node", "max_migrating_per_namespace"])
def test_counting_limits(setting: str, limit: int | None) -> None:
    pods = [pod("a"), pod("b"), pod("c", on="n2"), pod("d", namespace="else", on="n3")]
    for number, counted in enumerate([[], [pods[1]], [pods[1], pods[2]], [pods[1], pods[3]]]):
        view = ListedView(pods, [job(each, phase="Running") for each in counted])
        same = {
            "max_migrating_globally": len(counted),
            "max_migrating_per_node": sum(each.spec.node_name == "n1" for each in counted),
            "max_migrating_per_namespace": sum(each.metadata.namespace == "default" for each in counted),
        }[setting]
        assert limited(view, **{setting: limit}) is bool(limit and same >= limit), number  # type: ignore[arg-type]


def test_skipped_gates_have_no_limit() -> None:
    pods = [pod("a"), pod("b")]
    view = ListedView(pods, [job(pods[1], phase="Running")])
    gates = {
        "max_migrating_globally": "MaxMigratingGlobally",
        "max_migrating_per_node": "MaxMigratingPerNode",
        "max_migrating_per_namespace": "MaxMigratingPerNamespace",
    }
    skip = ["MaxMigratingPerWorkload", "MaxUnavailablePerWorkload"]
    for setting, gate in gates.items():
        assert limited(view, **{setting: 1})  # type: ignore[arg-type]
        assert not limited(view, **{setting: 1, "skip_eviction_gates": [*skip, gate]})  # type: ignore[arg-type]


def test_a_job_without_uid_counts_as_the_own_one_of_its_pod() -> None:
    candidate = pod("a")
    view = ListedView([candidate], [job(candidate, uid=False, phase="Running")])
    assert not limited(view, max_migrating_globally=1)


def test_a_pod_without_node_has_no_node_limit() -> None:
    pods = [pod("a", on=""), pod("b", on="")]
    assert not limited(ListedView(pods, [job(pods[1])]), max_migrating_per_node=1)


def test_a_forced_pod_has_no_limit() -> None:
    pods = [pod("a", annotations={FORCE: ""}), pod("b")]
    assert not limited(ListedView(pods, [job(pods[1])]), max_migrating_globally=1)


def ten(*unready: int) -> list[Any]:
    return [pod(f"p{number}", ready=number not in unready) for number in range(10)]


@pytest.mark.parametrize(
    ("most", "unready", "moving", "refused"),
    [
        (1, (), (), False),
        (1, (5,), (), True),
        (2, (5,), (), False),
        (2, (), (6,), False),
        (2, (5,), (6,), True),
        (2, (6,), (6,), False),
    ],
)
def test_unavailable_pods_of_ten(most: int, unready: tuple[int, ...], moving: tuple[int, ...], refused: bool) -> None:
    pods = ten(*unready)
    stranger = pod("x", by="other")
    jobs: list[PodMigrationJob] = [job(pods[number], phase="Running") for number in moving]
    view = ListedView([*pods, stranger], [*jobs, job(stranger, phase="Running")], {RS: 10})
    settings = {"max_unavailable_per_workload": most, "max_migrating_per_workload": 5, "skip_eviction_gates": []}
    assert limited(view, "p0", **settings) is refused  # type: ignore[arg-type]


def test_migrating_pods_of_the_workload() -> None:
    pods = ten()
    gone = job("p99", phase="Running")
    settings = {"max_migrating_per_workload": 1, "max_unavailable_per_workload": 5, "skip_eviction_gates": []}
    assert not limited(ListedView(pods, [gone], {RS: 10}), "p0", **settings)  # type: ignore[arg-type]
    assert limited(ListedView(pods, [job(pods[1], phase="Running")], {RS: 10}), "p0", **settings)  # type: ignore[arg-type]
    settings["skip_eviction_gates"] = ["MaxMigratingPerWorkload"]
    assert not limited(ListedView(pods, [job(pods[1], phase="Running")], {RS: 10}), "p0", **settings)  # type: ignore[arg-type]
