"""Evictions of jobs: policy, reason, options, rate limit, texts of errors (spec 07 §11.8)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from control.descheduler.migration.evictors import EvictionFailed, Evictors, policy_of, reason_of
from koordlet.api.meta import DeleteOptions
from koordlet.kube import Conflict, KubeError, NotFound, TooManyRequests
from tests.control.descheduler.migration.build import job, pod
from tests.control.descheduler.world import RecordingEvents
from tests.fakeclock import FakeClock

POLICY = "koordinator.sh/evict-policy"
REASON, TRIGGER = "koordinator.sh/evict-reason", "koordinator.sh/evict-trigger"


class RecordingClient:
    """A client that records evictions, deletions and patches, and fails with the given errors first."""

    def __init__(self, *errors: Exception) -> None:
        self.clock = FakeClock()
        self.errors = list(errors)
        self.calls: list[tuple[str, Any]] = []

    def _call(self, name: str, detail: Any) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.calls.append((name, detail))

    async def evict(self, name: str, namespace: str, *, options: DeleteOptions) -> None:
        self._call("evict", options)

    async def delete(self, kind: type, name: str, namespace: str, *, options: DeleteOptions) -> None:
        self._call("delete", options)

    async def patch(self, kind: type, name: str, namespace: str, *, body: Any) -> None:
        self._call("patch", body)


def evictors(
    client: RecordingClient, *, default: str = "Eviction", burst: int = 10
) -> tuple[Evictors, RecordingEvents]:
    events: Any = RecordingEvents()
    recording: Any = client
    return Evictors(recording, events, default=default, qps=1, burst=burst), events


@pytest.mark.parametrize(
    ("of_pod", "of_job", "default", "policy"),
    [
        ("", "", "Eviction", "Eviction"),
        ("", "", "SoftEviction", "SoftEviction"),
        ("", "Delete", "Eviction", "Delete"),
        ("SoftEviction", "Delete", "Eviction", "SoftEviction"),
        ("Shoot", "Delete", "SoftEviction", "SoftEviction"),  # an unknown value is the default
        ("", "Shoot", "Delete", "Delete"),
    ],
)
def test_the_label_of_the_pod_precedes_that_of_the_job(of_pod: str, of_job: str, default: str, policy: str) -> None:
    labels = [{POLICY: value} if value else {} for value in (of_pod, of_job)]
    request = job("a")
    request.metadata.labels = labels[1]
    assert policy_of(pod("a", labels=labels[0]), request, default) == policy


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [({REASON: "hot", TRIGGER: "LowNodeLoad"}, "hot"), ({TRIGGER: "LowNodeLoad"}, "LowNodeLoad"), ({}, "NotSet")],
)
async def test_the_reason_of_the_event(annotations: dict[str, str], reason: str) -> None:
    request = job("a")
    request.metadata.annotations = annotations
    assert reason_of(request) == reason
    evictor, events = evictors(RecordingClient())
    await evictor.evict(request, pod("a", on="n7"))
    assert events.messages == [("Descheduled", f'Pod evicted from node "n7" by the reason "{reason}"')]


@pytest.mark.parametrize(("policy", "call"), [("Eviction", "evict"), ("Delete", "delete")])
async def test_the_options_of_the_job_are_restricted_to_its_pod(policy: str, call: str) -> None:
    client = RecordingClient()
    request = job("a")
    request.spec.delete_options = DeleteOptions(grace_period_seconds=7, propagation_policy="Background")
    evictor, _ = evictors(client, default=policy)
    await evictor.evict(request, pod("a", uid="u1"))
    ((name, options),) = client.calls
    assert (name, options.grace_period_seconds, options.propagation_policy) == (call, 7, "Background")
    assert options.preconditions.uid == "u1"


async def test_a_soft_eviction_is_an_annotation() -> None:
    client = RecordingClient(Conflict(409, "busy"), TooManyRequests(429, "slow"))
    request = job("a")
    request.metadata.annotations = {REASON: "hot", TRIGGER: "LowNodeLoad"}
    request.spec.delete_options = DeleteOptions(grace_period_seconds=7)
    evictor, events = evictors(client, default="SoftEviction")
    await evictor.evict(request, pod("a"))
    ((_, body),) = client.calls  # after a conflict and a full server
    value = msgspec.json.decode(body["metadata"]["annotations"]["scheduling.koordinator.sh/soft-eviction"])
    assert value.pop("timestamp") == "2023-11-14T22:13:20Z"
    assert value == {"deleteOptions": {"gracePeriodSeconds": 7}, "initiator": "LowNodeLoad", "reason": "hot"}
    assert len(events.messages) == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TooManyRequests(429, message="disruption budget"), "cannot evict pod default/a now: disruption budget"),
        (NotFound(404, "gone"), "pod default/a not found when evicting it"),
        (KubeError("broken"), "cannot evict pod default/a: broken"),
    ],
)
async def test_errors_say_what_happened(error: Exception, text: str) -> None:
    evictor, events = evictors(RecordingClient(error))
    with pytest.raises(EvictionFailed) as caught:
        await evictor.evict(job("a"), pod("a"))
    assert str(caught.value) == text
    assert events.messages == []


async def test_the_rate_limit_is_that_of_the_process_and_nobody_waits() -> None:
    client = RecordingClient()
    evictor, _ = evictors(client, burst=2)
    for _ in range(2):
        await evictor.evict(job("a"), pod("a"))
    with pytest.raises(EvictionFailed, match="TooManyEvictions"):
        await evictor.evict(job("b"), pod("b"))
    await client.clock.advance(1)
    await evictor.evict(job("b"), pod("b"))
    assert len(client.calls) == 3
