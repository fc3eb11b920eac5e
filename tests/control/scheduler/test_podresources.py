"""/metrics/resources has kube-scheduler's series, and /metrics/slis the results of health checks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from control.component.slis import HealthSlis
from control.scheduler.process.podresources import series, unit
from koordlet.api.core.podresources import pod_limits, pod_requests
from koordlet.app.health import CheckResult
from tests.control.scheduler.build import pod


def test_a_pods_series() -> None:
    candidate = pod("p", cpu="1500m", memory="1Gi", on="n1", priority=7, limits={"cpu": "2"}, nvidia__com="0")
    who = 'namespace="default",pod="p",node="n1",scheduler="koord-scheduler",priority="7"'
    assert list(series("r", candidate, pod_requests(candidate))) == [
        f'r{{{who},resource="cpu",unit="cores"}} 1.5\n',
        f'r{{{who},resource="memory",unit="bytes"}} 1073741824.0\n',
    ]
    assert list(series("l", candidate, pod_limits(candidate))) == [f'l{{{who},resource="cpu",unit="cores"}} 2.0\n']
    pending = pod("p", cpu=None, memory=None, example_com__gpu="2")
    (line,) = series("r", pending, pod_requests(pending))
    assert 'node="",' in line
    assert 'priority="",resource="example-com/gpu",unit="integer"} 2.0' in line


@pytest.mark.parametrize(
    ("resource", "expected"),
    [("cpu", "cores"), ("memory", "bytes"), ("ephemeral-storage", "bytes"), ("hugepages-2Mi", "bytes"),
     ("kubernetes.io/batch-cpu", "integer")],
)  # fmt: skip
def test_units(resource: str, expected: str) -> None:
    assert unit(resource) == expected


def test_checks_are_counted() -> None:
    slis = HealthSlis()

    def value(name: str, **labels: str) -> float | None:
        check_labels: Mapping[str, str] = {"name": "leaderElection", "type": "healthz", **labels}
        return slis.registry.get_sample_value(name, dict(check_labels))

    for reason in (None, None, "overdue"):
        slis.observe("healthz", CheckResult("leaderElection", reason))
    assert value("kubernetes_healthcheck") == 0
    assert value("kubernetes_healthchecks_total", status="success") == 2
    assert value("kubernetes_healthchecks_total", status="error") == 1
