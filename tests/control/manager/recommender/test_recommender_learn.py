"""Samples from reports and OOM kills, and status writes: tables for the pure parts of spec 04 §9.3."""

from __future__ import annotations

from typing import Any

import pytest

from control.manager.recommender.estimate import Bounds, Estimate
from control.manager.recommender.group import Group
from control.manager.recommender.settings import MIB, RecommenderSettings
from control.manager.recommender.status import Finding, compose, confident, due
from control.manager.recommender.usage import UsageReport, read_report
from koordlet.api.core import Pod
from koordlet.api.crs.analysis import RecommendationStatus
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Time, convert, encode

NOW = 1_782_864_000.0
HOUR = 3600.0
DEFAULTS = RecommenderSettings()
TWO = [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]


def stamp(at: float) -> str:
    return Time.from_unix(at).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(name: str = "p", **more: Any) -> Pod:
    """A pod of one container that runs on the node n and is a day old."""
    status = {"phase": "Running", "startTime": stamp(NOW - 24 * HOUR), **more.pop("status", {})}
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}], **more}
    return convert({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": spec, "status": status}, Pod)


def metric(at: float, **pods: tuple[str, str]) -> NodeMetric:
    used = [
        {"namespace": "ns", "name": name, "podUsage": {"resources": {"cpu": cpu, "memory": memory}}}
        for name, (cpu, memory) in pods.items()
    ]
    return convert({"status": {"updateTime": stamp(at), "podsMetric": used}}, NodeMetric)


REPORTS = {
    "fresh": (NOW, ""),
    "ten minutes old": (NOW - 600, ""),
    "stale": (NOW - 901, "stale"),
    "a clock that is ahead": (NOW + 59, ""),
    "future": (NOW + 61, "future"),
}


@pytest.mark.parametrize(("at", "refused"), REPORTS.values(), ids=REPORTS)
def test_plausible_reports(at: float, refused: str) -> None:
    report, why = read_report(metric(at, p=("500m", "1Gi"), q=("-1", "1Gi")), NOW)
    assert why == refused
    assert (report is None) == bool(refused)
    if report is not None:
        assert report == UsageReport(at, {"ns/p": (0.5, float(1 << 30))})


def test_a_missing_report_is_stale() -> None:
    assert read_report(NodeMetric(), NOW) == (None, "stale")


LEARNERS = {
    "runs": (pod(), 1),
    "on another node": (pod(nodeName="m"), 0),
    "not started": (pod(status={"phase": "Pending"}), 0),
    "started after the report": (pod(status={"startTime": stamp(NOW + 1)}), 0),
    "several containers": (pod(containers=TWO), 0),
    "not in the report": (pod("q"), 0),
}


@pytest.mark.parametrize(("candidate", "samples"), LEARNERS.values(), ids=LEARNERS)
def test_pods_that_contribute_samples(candidate: Pod, samples: int) -> None:
    group = Group(DEFAULTS)
    assert group.learn([candidate], {"n": UsageReport(NOW, {"ns/p": (1.0, 1e9)})}, NOW) == (samples, 0)
    assert {name: model.samples for name, model in group.models.items()} == ({"c": 1} if samples else {})


def test_containers_in_the_report_contribute_separate_samples() -> None:
    usage = {"a": {"cpu": "250m", "memory": "1Gi"}, "b": {"cpu": "3", "memory": "1Mi"}, "sidecar": {"cpu": "1"}}
    report = metric(NOW, p=("4", "2Gi"))
    report.status.pods_metric[0].extensions = {"containers": usage, "interference": {}}
    read, _ = read_report(report, NOW)
    assert read is not None
    assert read.containers == {"ns/p": {"a": (0.25, float(1 << 30)), "b": (3.0, float(1 << 20))}}
    group = Group(DEFAULTS)
    assert group.learn([pod(containers=TWO)], {"n": read}, NOW) == (2, 0)
    assert {name: model.samples for name, model in group.models.items()} == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    "usage", [None, [], "x", {"c": None}, {"c": {"cpu": 1, "memory": "1"}}, {"c": {"cpu": "-1", "memory": "1"}},
             {"c": {"cpu": "lots", "memory": "1"}}, {"c": {"cpu": "1"}}],
    ids=["null", "list", "text", "no amounts", "a number", "negative", "no quantity", "half"],
)  # fmt: skip
def test_malformed_extensions_contribute_no_samples(usage: Any) -> None:
    report = metric(NOW, p=("4", "2Gi"))
    report.status.pods_metric[0].extensions = {"containers": usage}
    read, _ = read_report(report, NOW)
    assert read is not None
    assert read.containers == {}
    assert Group(DEFAULTS).learn([pod(containers=TWO)], {"n": read}, NOW) == (0, 0)


def test_a_report_that_is_in_the_checkpoint_counts_once() -> None:
    group = Group(DEFAULTS)
    group.learn([pod()], {"n": UsageReport(NOW, {"ns/p": (1.0, 1e9)})}, NOW)
    again, problems = Group.restore([group.models["c"].checkpoint("c")], DEFAULTS)
    assert problems == []
    assert again.learn([pod()], {"n": UsageReport(NOW, {"ns/p": (1.0, 1e9)})}, NOW) == (0, 0)
    assert again.learn([pod()], {"n": UsageReport(NOW + 60, {"ns/p": (1.0, 1e9)})}, NOW + 60) == (1, 0)


def test_a_kill_counts_once_also_for_a_new_leader() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": stamp(NOW - 60)}}
    limits = [{"name": "c", "image": "i", "resources": {"limits": {"memory": "1Gi"}}}]
    killed = pod(containers=limits, status={"containerStatuses": [{"name": "c", "lastState": ended}]})
    group = Group(DEFAULTS)
    assert group.learn([killed], {}, NOW) == (0, 1)
    assert group.learn([killed], {}, NOW) == (0, 0)
    again, _ = Group.restore([group.models["c"].checkpoint("c")], DEFAULTS)
    assert again.learn([killed], {}, NOW) == (0, 0)
    assert again.models["c"].oom_floor(NOW) == pytest.approx(1.2 * (1 << 30), rel=1e-6)


def test_removed_containers_are_forgotten() -> None:
    group = Group(DEFAULTS)
    group.learn([pod()], {"n": UsageReport(NOW, {"ns/p": (1.0, 1e9)})}, NOW)
    other = pod("q", containers=[{"name": "d", "image": "i"}])
    group.learn([other], {}, NOW + 23 * HOUR)
    assert "c" in group.models
    group.learn([], {}, NOW + 25 * HOUR)
    assert "c" in group.models, "there are no pods to compare with"
    group.learn([other], {}, NOW + 25 * HOUR)
    assert "c" not in group.models


def recommendation(milli: int = 1000, confidence: float = 1.0, **more: Any) -> Finding:
    estimate = Estimate("c", Bounds(milli, milli, milli), Bounds(MIB, MIB, MIB), confidence, 1, "why")
    return Finding(**{"pods": 1, "estimates": [estimate], **more})


def conditions(status: RecommendationStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in status.conditions}


LOW, NONE, UNUSABLE = "LowConfidence", "NoObjectsMatched", "ConfigUnsupported"
FINDINGS = {
    "all is well": (recommendation(), {}),
    "short": (recommendation(confidence=0.5), {LOW: ("True", "ShortHistory")}),
    "no pods": (recommendation(pods=0), {NONE: ("True", "NoPods")}),
    "no samples": (recommendation(estimates=()), {LOW: ("True", "NoSamples")}),
    "containers": (recommendation(estimates=(), has_single_container=False), {LOW: ("True", "ContainersNotToldApart")}),
    "unsupported": (recommendation(unsupported="spec: x"), {UNUSABLE: ("True", "NotSupported")}),
}


@pytest.mark.parametrize(("finding", "differs"), FINDINGS.values(), ids=FINDINGS)
def test_conditions(finding: Finding, differs: dict[str, tuple[str, str]]) -> None:
    well = {LOW: ("False", "EnoughHistory"), NONE: ("False", "PodsFound"), UNUSABLE: ("False", "Supported")}
    status = compose(RecommendationStatus(), finding, DEFAULTS, NOW)
    assert conditions(status) == {**well, **differs}
    assert confident(status) == (finding.pods > 0 and LOW not in differs)


def test_the_last_recommendation_is_kept_without_pods() -> None:
    first = compose(RecommendationStatus(), recommendation(), DEFAULTS, NOW)
    second = compose(first, recommendation(milli=5000, pods=0), DEFAULTS, NOW + HOUR)
    assert (second.pod_status, second.explain) == (first.pod_status, first.explain)
    assert confident(second), "a workload that was scaled to zero comes back with it"
    usage = {each.type: each.last_transition_time.unix for each in second.conditions}
    assert usage == {LOW: NOW, NONE: NOW + HOUR, UNUSABLE: NOW}


DUE = {
    "nothing differs": (recommendation(), 60.0, False),
    "five per cent": (recommendation(milli=1050), 60.0, False),
    "more": (recommendation(milli=1051), 60.0, True),
    "less": (recommendation(milli=949), 60.0, True),
    "ten minutes": (recommendation(), 600.0, True),
    "a condition": (recommendation(confidence=0.9), 60.0, True),
    "another container": (
        recommendation(estimates=[Estimate("d", Bounds(1, 1, 1), Bounds(1, 1, 1), 1.0, 1, "")]),
        60.0,
        True,
    ),
}


@pytest.mark.parametrize(("finding", "later", "expected"), DUE.values(), ids=DUE)
def test_when_a_status_is_written(finding: Finding, later: float, expected: bool) -> None:
    first = compose(RecommendationStatus(), recommendation(), DEFAULTS, NOW)
    assert due(RecommendationStatus(), first, DEFAULTS, NOW)
    second = compose(first, finding, DEFAULTS, NOW + later)
    assert due(first, second, DEFAULTS, NOW + later) is expected
    assert encode(first) == encode(compose(RecommendationStatus(), recommendation(), DEFAULTS, NOW)), (
        "the old one is not changed"
    )


def test_amounts_on_the_wire() -> None:
    (usage,) = compose(RecommendationStatus(), recommendation(), DEFAULTS, NOW).pod_status.container_statuses  # type: ignore[union-attr]
    assert usage.resources == {"cpu": Quantity("1"), "memory": Quantity("1Mi")}
