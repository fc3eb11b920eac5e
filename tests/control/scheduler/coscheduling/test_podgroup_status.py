"""The status of a PodGroup follows from its members (spec 05 §9.9, verified)."""

from __future__ import annotations

from typing import Any

import pytest

from control.scheduler.plugins.coscheduling.memberconditions import message, needed, patch
from control.scheduler.plugins.coscheduling.podgroups import is_over, next_status
from koordlet.api.core import Pod
from koordlet.api.crs.podgroup import PodGroup
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Time
from tests.control.scheduler.build import pod

NOW = 1_700_000_000.0


def group(phase: str, minimum: int = 2, created: float = NOW, **status: Any) -> PodGroup:
    body = {
        "metadata": {"name": "g", "namespace": "ns", "creationTimestamp": str(Time.from_unix(created))},
        "spec": {"minMember": minimum},
        "status": {"phase": phase, **status},
    }
    return wire.convert(body, PodGroup)


def members(*phases: str) -> list[Pod]:
    owner = [{"apiVersion": "v1", "kind": "Job", "name": name, "uid": name} for name in ("job-b", "job-a")]
    return [
        pod(f"p{number}", namespace="ns", status={"phase": phase}, metadata={"ownerReferences": owner})
        for number, phase in enumerate(phases)
    ]


@pytest.mark.parametrize(
    ("before", "phases", "bound", "after"),
    [
        (group(""), (), 0, "Pending"),
        (group("Pending", 3), ("Pending", "Pending"), 2, "Pending"),
        (group("Pending", 2), ("Pending", "Pending"), 0, "PreScheduling"),
        (group("Pending", 0), ("Pending",), 0, "Pending"),
        (group("PreScheduling"), ("Pending", "Pending"), 1, "Scheduling"),
        (group("Scheduled"), ("Running", "Running"), 2, "Running"),
        (group("Scheduled"), ("Failed", "Failed"), 2, "Failed"),
        (group("Scheduled"), ("Succeeded", "Succeeded"), 2, "Finished"),
        (group("Scheduling"), ("Pending", "Pending"), 2, "Scheduled"),
        (group("Scheduling", 4), ("Running",) * 4, 4, "Running"),
        (group("Running"), (), 0, "Pending"),
        (group("Running", 2), ("Failed", "Running"), 2, "Failed"),
    ],
)
def test_phases(before: PodGroup, phases: tuple[str, ...], bound: int, after: str) -> None:
    assert next_status(before, members(*phases), bound, NOW).phase == after


def test_the_status_has_counts_owners_and_start_time() -> None:
    started = next_status(group("PreScheduling"), members("Pending", "Running"), 1, NOW)
    assert (started.scheduled, started.running, started.schedule_start_time) == (1, 1, Time.from_unix(NOW))
    later = next_status(
        group("Scheduling", scheduleStartTime=str(Time.from_unix(NOW))), members("Pending", "Running"), 1, NOW + 60
    )
    assert later.schedule_start_time == Time.from_unix(NOW)
    assert next_status(group("Pending"), members("Pending", "Pending"), 0, NOW).occupied_by == "ns/job-a,ns/job-b"


@pytest.mark.parametrize(
    ("pod_group", "over"),
    [
        (group("Finished"), True),
        (group("Failed"), True),
        (group("Running"), False),
        (group("Scheduled", created=NOW - 49 * 3600, scheduled=2, scheduleStartTime=str(Time.from_unix(NOW))), True),
        (group("Scheduled", created=NOW - 47 * 3600, scheduled=2, scheduleStartTime=str(Time.from_unix(NOW))), False),
        (
            group(
                "Scheduled", created=NOW - 49 * 3600, scheduled=2, running=1, scheduleStartTime=str(Time.from_unix(NOW))
            ),
            False,
        ),
    ],
    ids=["finished", "failed", "running", "never ran", "may still run", "runs"],
)
def test_a_final_status_is_not_changed(pod_group: PodGroup, over: bool) -> None:
    assert is_over(pod_group) is over


def test_the_condition_of_members_that_were_never_tried() -> None:
    text = message(3, "the gang failed", "preemption: not helpful")
    assert text == "0/3 nodes are available: the gang failed. preemption: not helpful"
    (condition,) = patch(text, NOW)["status"]["conditions"]
    assert needed(pod(), text)
    assert not needed(pod(status={"conditions": [condition]}), text)
    assert needed(pod(status={"conditions": [condition]}), "another")
