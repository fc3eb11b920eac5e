"""Phase and conditions from container states, as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from control.standalone.kubelet.pods.spec import parse_pod
from control.standalone.kubelet.pods.status import ContainerRecord, PhaseDecision, conditions, phase, pod_status
from control.standalone.kubelet.runtimes.runtime import RuntimeContainer

T0 = 1_700_000_000


def record(state: str) -> ContainerRecord:
    """`-`: never started, `r`: running, a number: exited with it, `w1`: exited with 1 and in back-off."""
    if state == "-":
        return ContainerRecord()
    waiting = ("CrashLoopBackOff", "back-off") if state.startswith("w") else None
    code = None if state == "r" else int(state.removeprefix("w"))
    info = RuntimeContainer(
        "f" * 64, "u", "c", 0, "cg", Path("log"), 1, T0 * 10**9,
        finished_at=None if code is None else (T0 + 5) * 10**9, exit_code=code, reason="Error" if code else "Completed",
    )  # fmt: skip
    up = state == "r"
    return ContainerRecord(current=info, waiting=waiting, ready=up, started=up)


def make(policy: str, mains: str, inits: str = "", sidecars: str = "") -> Any:
    def named(prefix: str, states: str, **more: Any) -> list[Any]:
        return [({"name": f"{prefix}{i}", **more}, record(s)) for i, s in enumerate(states.split())]

    side = named("s", sidecars, restartPolicy="Always")
    init, main = named("i", inits), named("m", mains)
    raw = {
        "metadata": {"name": "p", "uid": "u"},
        "spec": {
            "restartPolicy": policy,
            "containers": [c for c, _ in main],
            "initContainers": [c for c, _ in side + init],
        },
    }
    return parse_pod(raw), {c["name"]: r for c, r in main + side + init}


@pytest.mark.parametrize(
    ("policy", "mains", "inits", "sidecars", "expected"),
    [
        ("Always", "-", "", "", "Pending"),
        ("Always", "r", "", "", "Running"),
        ("Always", "r -", "", "", "Pending"),
        ("Always", "r 1", "", "", "Running"),
        ("Always", "0", "", "", "Running"),
        ("Always", "w1", "", "", "Running"),
        ("OnFailure", "0 0", "", "", "Succeeded"),
        ("OnFailure", "0 1", "", "", "Running"),
        ("Never", "0 r", "", "", "Running"),
        ("Never", "0 0", "", "", "Succeeded"),
        ("Never", "0 2", "", "", "Failed"),
        ("Always", "-", "r", "", "Pending"),
        ("Always", "-", "w1", "", "Pending"),
        ("Never", "-", "1", "", "Failed"),
        ("OnFailure", "-", "1", "", "Pending"),
        ("Never", "0", "0", "r", "Succeeded"),
        ("Never", "r", "0", "w1", "Running"),
        ("Never", "-", "0", "-", "Pending"),
    ],
)
def test_phase(policy: str, mains: str, inits: str, sidecars: str, expected: str) -> None:
    assert phase(*make(policy, mains, inits, sidecars)) == expected


@pytest.mark.parametrize(
    ("mains", "expected"), [("0", "Succeeded"), ("0 143", "Failed"), ("-", "Failed"), ("0 -", "Failed")]
)
def test_the_phase_of_a_terminated_pod(mains: str, expected: str) -> None:
    pod, records = make("Always", mains)
    assert phase(pod, records, final=True) == expected


def by_type(conditions: list[Any]) -> dict[str, Any]:
    return {c["type"]: c for c in conditions}


def test_unready_containers_are_named() -> None:
    pod, records = make("Always", "r w1 r")
    by_kind = by_type(conditions(pod, records, "Running", True, [], T0))
    for kind in ("Ready", "ContainersReady"):
        assert by_kind[kind]["status"] == "False"
        assert by_kind[kind]["reason"] == "ContainersNotReady"
        assert by_kind[kind]["message"] == "containers with unready status: [m1]"


def test_incomplete_init_containers_are_named() -> None:
    pod, records = make("Always", "-", "0 r")
    by_kind = by_type(conditions(pod, records, "Pending", True, [], T0))
    assert by_kind["Initialized"]["status"] == "False"
    assert by_kind["Initialized"]["message"] == "containers with incomplete status: [i1]"


def test_completed_pod() -> None:
    pod, records = make("Never", "0")
    by_kind = by_type(conditions(pod, records, "Succeeded", False, [], T0))
    assert {k: (c["status"], c.get("reason")) for k, c in by_kind.items()} == {
        "PodScheduled": ("True", None),
        "Initialized": ("True", "PodCompleted"),
        "Ready": ("False", "PodCompleted"),
        "ContainersReady": ("False", "PodCompleted"),
        "PodReadyToStartContainers": ("False", None),
    }


def test_transition_time_changes_only_with_the_status() -> None:
    pod, records = make("Always", "r")
    first = conditions(pod, records, "Running", True, [], T0)
    same = conditions(pod, records, "Running", True, first, T0 + 60)
    assert same == first
    records["m0"].ready = False
    after = by_type(conditions(pod, records, "Running", True, same, T0 + 90))
    assert after["Ready"]["lastTransitionTime"] != by_type(first)["Ready"]["lastTransitionTime"]
    assert after["Initialized"]["lastTransitionTime"] == by_type(first)["Initialized"]["lastTransitionTime"]


def test_a_container_in_back_off_shows_its_id_and_last_state() -> None:
    pod, records = make("Always", "w1")
    reported = pod_status(pod, records, host_ip="::1", start_time=T0, sandbox=True, now=T0, old=[])
    (status,) = reported["containerStatuses"]
    assert status["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    assert status["containerID"] == "containerd://" + "f" * 64
    assert status["lastState"]["terminated"]["exitCode"] == 1
    assert status["lastState"]["terminated"]["finishedAt"] == "2023-11-14T22:13:25Z"


def test_a_phase_decision_overrides_the_containers() -> None:
    pod, records = make("Always", "143")
    decision = PhaseDecision("DeadlineExceeded", "too long")
    status = pod_status(
        pod, records, host_ip="1.2.3.4", start_time=T0, sandbox=False, now=T0, old=[], decision=decision
    )
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "DeadlineExceeded", "too long")
    assert by_type(status["conditions"])["Ready"]["reason"] == "PodFailed"
