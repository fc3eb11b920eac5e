"""Suspicions: when a victim is suspected, for how long, and what the service gives to the throttling of culprits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.sloconfig.interference import EXTENSION_KEY, effective
from koordlet.audit import NullAuditor
from koordlet.interference.model import AlarmState, Cause, Culprit, Verdict, WaitResource
from koordlet.interference.service import SUSPECTED_SECONDS, SUSPICION_SECONDS, Interference, StallCollectors
from koordlet.interference.suspicions import LEAVE_SECONDS, Suspicions
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.cgroupindex import owner_of
from tests.koordlet.interference.conftest import Make

LEAVE = 0.6


def verdict(make: type[Make], score: float, culprit: str = "batch", at: float = 0.0, **changes: Any) -> Verdict:
    owner = owner_of(make.container(culprit, qos="BE"))
    verdict = Verdict(
        victim=make.container("web"), resource=WaitResource.CPU, cause=Cause.NEIGHBOUR, state=AlarmState.SUSPECTED,
        score=score, lost=score / 5, began=at, since=at, at=at, window=0.5, source="bpf", confidence=0.9,
        severity="medium", action="suppress-best-effort", culprits=(Culprit(owner, 0.9, 0.3),),
    )  # fmt: skip
    return msgspec.structs.replace(verdict, **changes)


def test_a_victim_is_suspected_until_its_score_was_low_for_a_second(make: type[Make]) -> None:
    suspicions = Suspicions()
    scores = [0.9, 1.0, 0.7, 0.5, 0.7, 0.5, 0.5, 0.5]
    suspected = []
    for look, score in enumerate(scores):
        suspicions.update({"web": verdict(make, score)}, LEAVE, look * LEAVE_SECONDS / 2)
        suspected.append(bool(suspicions.verdicts))
    assert suspected == [False, True, True, True, True, True, False, False]


def test_only_a_new_victim_or_culprit_is_news(make: type[Make]) -> None:
    suspicions = Suspicions()
    news = [
        suspicions.update({"web": verdict(make, 2.0, culprit)}, LEAVE, float(second))
        for second, culprit in enumerate(["a", "a", "b", "b"])
    ]
    assert news == [True, False, True, False]
    suspicions.clear()
    assert suspicions.verdicts == ()


@given(st.lists(st.floats(0.0, 0.99), max_size=30))
def test_scores_below_the_threshold_suspect_nobody(make: type[Make], scores: list[float]) -> None:
    suspicions = Suspicions()
    for second, score in enumerate(scores):
        assert not suspicions.update({"web": verdict(make, score)}, LEAVE, float(second))
        assert suspicions.verdicts == ()


class Advisor:
    """Counts readings of the waiting times; there is no probe."""

    def __init__(self) -> None:
        self.looks = 0
        self.sched_latency = self

    def waits(self) -> None:
        self.looks += 1


def service(advisor: Any, now: Any, actions: Any) -> Interference:
    collectors: Any = StallCollectors(*(SimpleNamespace() for _ in range(3)), cpi=None)  # type: ignore[arg-type, misc]
    extensions = {EXTENSION_KEY: {"actions": actions}}
    interference = Interference(
        advisor, Registries(), collectors, node_slo=lambda: None, auditor=NullAuditor(), recorder=None, clock=now,
        wall=now, cpu_usage=lambda directory: None,
    )  # fmt: skip
    interference.evaluator.strategies.current = lambda: effective(extensions)  # type: ignore[method-assign]
    return interference


@pytest.mark.parametrize(
    ("actions", "looks"),
    [({}, 0), ({"io": {"enable": True}}, 0), ({"cpu": {"enable": True, "policy": "report"}}, 0),
     ({"cpu": {"enable": True}}, 1)],
    ids=["none", "another-resource", "only-reported", "throttled"],
)  # fmt: skip
def test_short_evidence_is_read_only_where_culprits_are_throttled(actions: Any, looks: int) -> None:
    advisor: Any = Advisor()
    service(advisor, lambda: 0.0, actions).look()
    assert advisor.looks == looks


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({"resource": WaitResource.IO}, True),
        ({"resource": WaitResource.NETWORK}, True),
        ({"resource": WaitResource.MEMORY}, False),
        ({"resource": WaitResource.CPU}, False),
        ({"resource": WaitResource.IO, "at": 9.0 + SUSPECTED_SECONDS / 2}, False),
        ({"resource": WaitResource.IO, "score": 0.8}, False),
        ({"resource": WaitResource.IO, "state": AlarmState.INTERFERED}, False),
        ({"resource": WaitResource.IO, "began": 1.0, "at": 10.0 - SUSPICION_SECONDS - 1.0}, False),
    ],
    ids=["io", "network", "memory", "the-cpu-has-its-own", "too-short", "low", "an-alarm", "old"],
)
def test_which_of_the_detectors_suspicions_count(make: type[Make], changes: dict[str, Any], counts: bool) -> None:
    interference = service(Advisor(), lambda: 10.0, {})
    fields = {"score": 2.0, "began": 9.0, "at": 9.0 + SUSPECTED_SECONDS, **changes}
    interference.evaluator.verdicts = {"web": (msgspec.structs.replace(verdict(make, 2.0), **fields),)}
    assert bool(interference.suspicions) == counts
