"""The demo's checks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.ctl.demo import judge
from control.ctl.demo.kernelfiles import AverageUsage
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.crs.nodemetric import ResourceMap
from koordlet.api.encoding.quantity import BINARY_SI, Quantity
from koordlet.api.encoding.wire import convert
from koordlet.api.pages.interference import (
    ContainerInterferenceReport,
    CulpritReport,
    PodInterferenceReport,
    VerdictReport,
)
from koordlet.api.pages.top import FeatureState, SchedLatency, Top, TopCulprit, TopRow


def resources(milli: int, memory: int) -> ResourceMap:
    return ResourceMap(resources={"cpu": Quantity.milli(milli), "memory": Quantity.of(memory, BINARY_SI)})


@pytest.mark.parametrize(
    ("milli", "memory", "use", "good"),
    [
        (1000, 100 << 20, AverageUsage(1.04, 104 << 20), [True, True]),
        (1000, 100 << 20, AverageUsage(1.06, 106 << 20), [False, False]),
        (4, 200 << 10, AverageUsage(0.001, 900 << 10), [True, True]),
        (0, 0, AverageUsage(0.0, 0.0), [True, True]),
        (7, 4 << 20, AverageUsage(0.001, 1 << 20), [False, False]),
    ],
    ids=["close", "apart", "below the floors", "idle", "above the floors"],
)
def test_compare(milli: int, memory: int, use: AverageUsage, good: list[bool]) -> None:
    assert [verdict.ok for verdict in judge.compare("x", resources(milli, memory), use)] == good


def test_compare_shows_both_figures() -> None:
    first, second = judge.compare("pod web", resources(1000, 64 << 20), AverageUsage(1.03, 64 << 20))
    assert first.text == "pod web cpu: NodeMetric 1000m, kernel 1030m (2.9 % apart)"
    assert second.text == "pod web memory: NodeMetric 64Mi, kernel 64Mi (0.0 % apart)"


def test_compare_without_either_side() -> None:
    assert [v.ok for v in judge.compare("x", ResourceMap(), AverageUsage(1.0, 1.0))] == [False, False]
    assert "not sampled" in judge.compare("x", resources(1, 1), None)[0].text


@given(st.floats(0, 1e3), st.floats(0, 1e3))
def test_what_agrees_is_never_further_apart_than_the_tolerance(a: float, b: float) -> None:
    assert judge.agrees(a, b, 0.005) == (abs(a - b) <= max(0.05 * b, 0.005))
    assert judge.agrees(a, a, 0.0)


def picture(*culprits: TopCulprit, throttled: float = 0.0, wait: float = 0.3, quota: float = 0.0) -> Top:
    row = TopRow(
        kind="container", namespace="demo", pod="web", name="serve", throttled=throttled,
        sched=SchedLatency(p99=0.004, wait=wait, throttled=quota, culprits=list(culprits)),
    )  # fmt: skip
    return Top(system_cpu=1.5, rows=[row])


BATCH = TopCulprit(kind="container", namespace="demo", pod="batch-0", name="burn", share=0.9)
OTHER = TopCulprit(kind="container", namespace="demo", pod="api", name="serve", share=0.9)
SELF = TopCulprit(kind="container", namespace="demo", pod="web", name="serve", share=0.9)
ROOT = TopCulprit(kind="root", name="/", share=0.9)


def test_the_batch_pod_must_be_the_first_culprit() -> None:
    good = judge.culprit_named(picture(BATCH, ROOT), "web", ["batch-0"])
    assert good == judge.DemoResult(
        True, "web waits 30 % of the time, p99 4.00ms; worst culprit batch-0/burn with 90 %"
    )
    bad = judge.culprit_named(picture(ROOT, BATCH), "web", ["batch-0"])
    assert not bad.ok
    assert bad.text.endswith("worst culprit (root tasks) with 90 % (other work on this machine uses 1500m)")


@pytest.mark.parametrize(
    ("culprits", "system_cpu", "reason"),
    [
        ((ROOT, OTHER, BATCH), 1.5, None),
        ((ROOT, BATCH, OTHER), 0.3, None),
        ((OTHER, BATCH), 1.5, None),
        ((ROOT,), 1.5, None),
        ((ROOT, SELF, BATCH), 1.5, "worst culprit (root tasks) with 90 %, of pods batch-0/burn with 90 % (other work"),
    ],
    ids=["another pod is worse", "no strangers", "a pod is worst", "strangers only", "the worst of all pods"],
)
def test_on_a_shared_machine_the_worst_of_all_pods_suffices(
    culprits: tuple[TopCulprit, ...], system_cpu: float, reason: str | None
) -> None:
    top = picture(*culprits)
    top.system_cpu = system_cpu
    verdict = judge.culprit_named(top, "web", ["batch-0"], shared=True)
    assert verdict.ok is (reason is not None)
    assert (reason or "") in verdict.text
    assert not judge.culprit_named(top, "web", ["batch-0"]).ok


def explained(*blamed: CulpritReport, cause: str = "neighbour") -> PodInterferenceReport:
    verdict = VerdictReport(state="interfered", cause=cause, resource="cpu", culprits=list(blamed))
    return PodInterferenceReport(
        enabled=True, judged=True, pod="web", containers=[ContainerInterferenceReport(verdicts=[verdict])]
    )


@pytest.mark.parametrize(
    ("report", "strict", "shared"),
    [
        (explained(CulpritReport(kind="container", pod="batch-0"), CulpritReport(kind="root")), True, True),
        (explained(CulpritReport(kind="root"), CulpritReport(kind="container", pod="batch-0")), False, True),
        (explained(CulpritReport(kind="root"), CulpritReport(kind="container", pod="api")), False, False),
        (explained(CulpritReport(kind="root")), False, False),
        (explained(CulpritReport(kind="container", pod="batch-0"), cause="self"), False, False),
    ],
    ids=["named first", "after strangers", "another pod", "strangers only", "its own doing"],
)
def test_interference_is_explained(report: PodInterferenceReport, strict: bool, shared: bool) -> None:
    verdicts = [judge.interference_explained(report, ["batch-0"], shared=interfered) for interfered in (False, True)]
    assert [verdict.ok for verdict in verdicts] == [strict, shared]


def test_no_culprit_names_the_probe_that_is_missing() -> None:
    top = picture()
    top.probes = [FeatureState(name="sched_latency", up=False, reason="no BTF")]
    assert judge.culprit_named(top, "web", ["batch-0"]) == judge.DemoResult(
        False, "no culprit of web's waiting (sched_latency: no BTF)"
    )
    assert "does not show pod api" in judge.culprit_named(top, "api", []).text


@pytest.mark.parametrize(
    ("throttled", "quota", "wait", "ok"),
    [(0.98, 0.8, 0.01, True), (0.98, 0.2, 0.5, False), (0.3, 0.8, 0.0, False), (0.0, 0.0, 0.5, False)],
    ids=["its own quota", "others", "hardly throttled", "not at all"],
)
def test_own_throttling_is_distinguished(throttled: float, quota: float, wait: float, ok: bool) -> None:
    top = picture(throttled=throttled, quota=quota, wait=wait)
    assert judge.own_throttling_shown(top, "web").ok is ok
    assert judge.own_throttling_shown(top, "web", shared=True).ok is (throttled > 0), "strangers are there"
    top.system_cpu = 0.1
    assert judge.own_throttling_shown(top, "web", shared=True).ok is ok


def test_throttling_of_an_absent_pod() -> None:
    assert not judge.own_throttling_shown(Top(), "web").ok


def migration(phase: str = "Succeeded", node: str = "n2", *, reserved: bool = True) -> PodMigrationJob:
    reference = {"reservationOptions": {"reservationRef": {"name": "r"}}} if reserved else {}
    status = {"phase": phase, "status": "Complete", "nodeName": node}
    return convert({"metadata": {"name": "m"}, "spec": {"podRef": {}, **reference}, "status": status}, PodMigrationJob)


def placed(node: str, phase: str = "Running") -> dict[str, object]:
    return {"metadata": {"name": "crunch-1"}, "spec": {"nodeName": node}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("jobs", "pods", "good"),
    [
        ([migration()], [placed("n2")], True),
        ([], [placed("n2")], False),
        ([migration("Running")], [placed("n2")], False),
        ([migration(reserved=False)], [placed("n2")], False),
        ([migration()], [placed("n1")], False),
        ([migration()], [placed("n2", "Pending")], False),
        ([migration(), migration()], [placed("n2")], False),
        ([migration()], [placed("n2"), placed("n1")], False),
    ],
    ids=["moved", "no job", "runs", "without a Reservation", "came back", "not started", "moved twice", "two pods"],
)
def test_the_neighbour_moves_once_to_a_reserved_place(
    jobs: list[PodMigrationJob], pods: list[dict[str, object]], good: bool
) -> None:
    assert judge.neighbour_moved(jobs, pods, "n2").ok == good


def test_the_service_recovers_when_it_waits_half_as_long_and_not_for_the_neighbour() -> None:
    crunch = TopCulprit(kind="container", namespace="demo", pod="crunch-1", name="burn", share=0.9)
    before = picture(crunch, wait=0.8)
    good = judge.recovered(before, picture(ROOT, wait=0.4), "web", "crunch")
    assert (good.ok, good.text) == (
        True,
        "web waits 40 % of the time, before the move 80 % (other work on this machine uses 1500m)",
    )
    assert not judge.recovered(before, picture(ROOT, wait=0.5), "web", "crunch").ok
    assert judge.recovered(before, picture(ROOT, wait=0.5), "web", "crunch", shared=True).ok
    assert not judge.recovered(before, picture(crunch, wait=0.1), "web", "crunch", shared=True).ok
    assert not judge.recovered(before, Top(), "web", "crunch", shared=True).ok
