"""A koordlet process and real neighbours: who is named, who is not, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from koordlet.api.encoding.wire import decode
from koordlet.api.pages.interference import NodeInterferenceReport, PodInterferenceReport
from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.patience import until
from tests.koordlet.process.programs import BURN, duty

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

SERVICE = (0.004, 0.008)
"""Seconds of work and of sleep: a service that wants a third of a CPU."""


@pytest.fixture(scope="module")
def stage(trees: Callable[..., Any], views: Any, koordlets: Any) -> Iterator[Any]:
    tree = trees(weight=100)  # strangers hardly count
    (victim,), (burner,) = tree.pod(KubeQOS.BURSTABLE), tree.pod(KubeQOS.BESTEFFORT)
    (meter,) = tree.pod(KubeQOS.GUARANTEED)
    yield koordlets(views(tree)).wait(), victim, burner, meter
    for container in tree.containers:
        container.end()


def explained(koordlet: Any, container: Any) -> PodInterferenceReport:
    return decode(koordlet.get(f"/interference?pod=/{container.pod_uid}"), PodInterferenceReport)


def alarms(koordlet: Any, container: Any) -> list[Any]:
    page = explained(koordlet, container)
    return [v for c in page.containers for v in c.verdicts if v.state in ("interfered", "recovering")]


def test_a_neighbour_is_named_and_an_end_comes(stage: Any, cpus: Any) -> None:
    koordlet, victim, burner, _ = stage
    victim.run(duty(*SERVICE), cpus[0])
    burner.run(BURN, cpus[0])
    until(lambda: [v for v in alarms(koordlet, victim) if v.cause == "neighbour"], "an alarm because of the burner")
    (verdict,) = [v for v in alarms(koordlet, victim) if v.cause == "neighbour"]
    assert verdict.resource == "cpu"
    assert verdict.culprits[0].pod == burner.pod_uid
    assert verdict.culprits[0].share > 0.5
    assert verdict.action == "suppress-best-effort"
    assert sum(culprit.share for culprit in verdict.culprits) <= 1.0 + 0.0001 * len(verdict.culprits)  # rounded
    assert 0.0 < verdict.confidence <= 1.0
    row = koordlet.row(victim)
    assert row["verdicts"][0]["culprit"].startswith(burner.pod_uid)
    labels = {"container_id": victim.key, "resource": "cpu"}
    assert koordlet.value("koordlet_interference_state", cause="neighbour", **labels) in (2.0, 3.0)
    shares = koordlet.values("koordlet_interference_culprit_share", culprit_pod=burner.pod_uid, **labels)
    assert shares
    assert shares[0] > 0.5
    node: NodeInterferenceReport = decode(koordlet.get("/interference"), NodeInterferenceReport)
    assert node.summary.interfered["cpu"] >= 1
    assert node.summary.worst_culprits[0].pod == burner.pod_uid
    burner.end()
    until(
        lambda: not [v for v in alarms(koordlet, victim) if burner.pod_uid in {c.pod for c in v.culprits}],
        "the end of the alarm",
    )
    changes = [(c.before, c.verdict.state) for c in explained(koordlet, victim).containers[0].changes]
    assert ("suspected", "interfered") in changes
    if not alarms(koordlet, victim):  # else strangers on a busy machine go on where the burner left off
        assert ("recovering", "quiet") in changes
    victim.end()


def test_processes_in_cgroups_below_a_container_belong_to_it(
    trees: Callable[..., Any], views: Any, koordlets: Any, cpus: Any
) -> None:
    """A service below systemd in its container, and a build that a container runtime runs inside of a container."""
    tree = trees(weight=100)
    (victim,), (builder,) = tree.pod(KubeQOS.BURSTABLE), tree.pod(KubeQOS.BESTEFFORT)
    service, build = victim.nested("system.slice/web.service"), builder.nested(f"docker/{'d' * 64}")
    koordlet = koordlets(views(tree)).wait()
    service.run(duty(*SERVICE), cpus[0])
    build.run(BURN, cpus[0])
    until(lambda: [v for v in alarms(koordlet, victim) if v.cause == "neighbour"], "an alarm because of the build")
    (verdict,) = [v for v in alarms(koordlet, victim) if v.cause == "neighbour"]
    assert (verdict.culprits[0].pod, verdict.culprits[0].name) == (builder.pod_uid, builder.name)
    containers = [row["id"] for row in koordlet.top()["rows"] if row["kind"] == "container"]
    assert sorted(containers) == sorted((victim.key, builder.key))


def test_own_quota_is_not_blamed_on_others(stage: Any, cpus: Any) -> None:
    koordlet, _, _, meter = stage
    meter.quota(0.2)
    meter.run(BURN, cpus[1])
    until(lambda: [v for v in alarms(koordlet, meter) if v.cause == "self"], "own trouble of the throttled")
    (verdict,) = [v for v in alarms(koordlet, meter) if v.cause == "self"]
    assert verdict.action == "raise-cpu-limit"
    assert verdict.parts["quota"] > 0.5
    assert not verdict.culprits
    detected = [line for line in koordlet.log.splitlines() if 'what="InterferenceDetected"' in line]
    assert not [line for line in detected if f'pod="/{meter.pod_uid}"' in line]
    meter.end()


def test_a_pod_that_is_not_here_is_an_error(stage: Any) -> None:
    assert stage[0].answer("/interference?pod=default/nobody") is None  # 404, and the process lives


def test_the_best_effort_burner_is_no_victim(stage: Any) -> None:
    koordlet, _, burner, _ = stage
    assert not explained(koordlet, burner).judged
    assert not alarms(koordlet, burner)
