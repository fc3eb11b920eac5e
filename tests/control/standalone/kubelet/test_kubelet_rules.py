"""Back-off and admission, as tables and properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from control.standalone.kubelet.pods.admission import admit
from control.standalone.kubelet.pods.backoff import CrashLoopBackoff
from control.standalone.kubelet.pods.spec import parse_pod
from koordlet.api.encoding.quantity import Quantity

ALLOCATABLE = {
    k: Quantity(v) for k, v in {"cpu": "2", "memory": "4Gi", "pods": "3", "kubernetes.io/batch-cpu": "1000"}.items()
}


def make(requests: Any = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": requests or {}}}
    return {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [container], **spec}}


def judge(raw: Any, admitted: Any = (), labels: Any = None) -> str | None:
    verdict = admit(raw, parse_pod(raw), [parse_pod(o) for o in admitted], ALLOCATABLE, labels or {})
    return None if verdict is None else verdict.reason


@pytest.mark.parametrize(
    ("requests", "admitted", "reason"),
    [
        ({}, [], None),
        ({"cpu": "2"}, [], None),
        ({"cpu": "2001m"}, [], "OutOfcpu"),
        ({"cpu": "1"}, [{"cpu": "1500m"}], "OutOfcpu"),
        ({"cpu": "500m"}, [{"cpu": "1500m"}], None),
        ({"memory": "5Gi"}, [], "OutOfmemory"),
        ({}, [{}, {}, {}], "OutOfpods"),
        ({"kubernetes.io/batch-cpu": "1000"}, [], None),
        ({"kubernetes.io/batch-cpu": "600"}, [{"kubernetes.io/batch-cpu": "600"}], "OutOfkubernetes.io/batch-cpu"),
        ({"kubernetes.io/mid-cpu": "1"}, [], "OutOfkubernetes.io/mid-cpu"),
        ({"nvidia.com/gpu": "1"}, [], None),
        ({"ephemeral-storage": "0"}, [], None),
    ],
)
def test_admission(requests: Any, admitted: Any, reason: str | None) -> None:
    assert judge(make(requests), [make(o) for o in admitted]) == reason


def test_node_selector() -> None:
    raw = make(nodeSelector={"disk": "ssd"})
    assert judge(raw) == "NodeAffinity"
    assert judge(raw, labels={"disk": "ssd", "more": "x"}) is None


@given(st.lists(st.integers(0, 900), max_size=10))
def test_admitted_pods_never_request_more_than_allocatable(requests: list[int]) -> None:
    taken: list[Any] = []
    for milli in requests:
        raw = make({"cpu": f"{milli}m"})
        if judge(raw, taken) is None:
            taken.append(raw)
    total = sum(int(r["spec"]["containers"][0]["resources"]["requests"]["cpu"][:-1]) for r in taken)
    assert total <= 2000
    assert len(taken) <= 3


def test_back_off_sequence_and_reset() -> None:
    backoff = CrashLoopBackoff()
    now = 0.0
    delays = []
    for _ in range(8):
        wait = backoff.remaining("k", now, now)
        delays.append(wait)
        now += wait
        backoff.restarted("k", now - wait, now)
        now += 1  # runs for a second, then exits
    assert delays == [0, 10, 20, 40, 80, 160, 300, 300]
    assert backoff.remaining("k", now + 601, now + 601) == 0
    assert backoff.remaining("other", now, now) == 0
    backoff.forget("k")
    assert backoff.remaining("k", now, now) == 0


@given(st.lists(st.floats(0, 2000), min_size=1, max_size=20))
@example([0.0, 1.7224821822185277, 75.42128877591858, 1997.8139908209864, 1067.0, *[600.0] * 3, 471.3419016198555,
          *[600.0] * 2, 599.1, 60.0])  # fmt: skip
def test_a_delay_never_exceeds_the_maximum(runs: list[float]) -> None:
    backoff, now = CrashLoopBackoff(), 0.0
    for run in runs:
        wait = backoff.remaining("k", now, now)
        assert 0 <= wait <= 300
        backoff.restarted("k", now, now + wait)
        now += wait + run
