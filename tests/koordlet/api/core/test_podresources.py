"""Requests, limits and QoS of pods as Kubernetes defines them."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.core import Pod, computed_qos_class, is_terminated, pod_limits, pod_qos_class, pod_requests
from koordlet.api.encoding import wire
from koordlet.api.encoding.quantity import Quantity


def container(
    requests: dict[str, str] | None = None, limits: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def pod(*containers: dict[str, Any], init: Sequence[dict[str, Any]] = (), **spec: Any) -> Pod:
    return wire.convert({"spec": {"containers": list(containers), "initContainers": list(init), **spec}}, Pod)


def sidecar(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None) -> dict[str, Any]:
    return container(requests, limits, restartPolicy="Always")


def text(amounts: dict[str, Quantity]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


REQUESTS = {
    "nothing": (pod(container()), {}),
    "sum of containers": (pod(container({"cpu": "1", "memory": "1Gi"}), container({"cpu": "500m"})),
                          {"cpu": "1500m", "memory": "1Gi"}),
    "init above the sum": (pod(container({"cpu": "1"}), init=[container({"cpu": "3"})]), {"cpu": "3"}),
    "init below the sum": (pod(container({"cpu": "2"}), init=[container({"cpu": "1"})]), {"cpu": "2"}),
    "inits are not added up": (pod(container({"cpu": "1"}), init=[container({"cpu": "2"}), container({"cpu": "2"})]),
                               {"cpu": "2"}),
    "init of another resource": (pod(container({"cpu": "1"}), init=[container({"memory": "1Gi"})]),
                                 {"cpu": "1", "memory": "1Gi"}),
    "sidecar runs beside": (pod(container({"cpu": "1"}), init=[sidecar({"cpu": "500m"})]), {"cpu": "1500m"}),
    "init after a sidecar": (pod(container({"cpu": "1"}), init=[sidecar({"cpu": "500m"}), container({"cpu": "2"})]),
                             {"cpu": "2500m"}),
    "init before a sidecar": (pod(container({"cpu": "1"}), init=[container({"cpu": "2"}), sidecar({"cpu": "500m"})]),
                              {"cpu": "2"}),
    "two sidecars": (pod(container({"cpu": "1"}), init=[sidecar({"cpu": "1"}), container({"cpu": "1"}),
                                                        sidecar({"cpu": "1"})]), {"cpu": "3"}),
    "overhead": (pod(container({"cpu": "1"}), overhead={"cpu": "250m", "memory": "64Mi"}),
                 {"cpu": "1250m", "memory": "64Mi"}),
    "pod level replaces what it names": (pod(container({"cpu": "1", "nvidia.com/gpu": "1"}),
                                             resources={"requests": {"cpu": "4"}}, overhead={"cpu": "1"}),
                                         {"cpu": "5", "nvidia.com/gpu": "1"}),
}  # fmt: skip


@pytest.mark.parametrize("case", REQUESTS)
def test_requests(case: str) -> None:
    subject, expected = REQUESTS[case]
    assert text(pod_requests(subject)) == expected


LIMITS = {
    "nothing": (pod(container({"cpu": "1"}), overhead={"cpu": "1"}), {}),
    "overhead on a limit": (pod(container(limits={"cpu": "1"}), overhead={"cpu": "250m", "memory": "1Mi"}),
                            {"cpu": "1250m"}),
    "sidecar and init": (pod(container(limits={"cpu": "1"}), init=[sidecar(limits={"cpu": "1"}),
                                                                   container(limits={"cpu": "4"})]), {"cpu": "5"}),
}  # fmt: skip


@pytest.mark.parametrize("case", LIMITS)
def test_limits(case: str) -> None:
    subject, expected = LIMITS[case]
    assert text(pod_limits(subject)) == expected


def test_the_pod_is_not_modified() -> None:
    subject = pod(container({"cpu": "1"}), init=[sidecar({"cpu": "1"})], overhead={"cpu": "1"})
    before = wire.encode(subject)
    pod_requests(subject)
    assert wire.encode(subject) == before


AMOUNT = st.integers(0, 64)
CONTAINER = st.builds(lambda cpu, sidecar: (cpu, sidecar), AMOUNT, st.booleans())


@given(st.lists(AMOUNT, min_size=1, max_size=4), st.lists(CONTAINER, max_size=5), AMOUNT)
def test_requests_cover_every_phase(main: list[int], inits: list[tuple[int, bool]], overhead: int) -> None:
    """The total is the highest of what runs at once in any phase, plus overhead."""
    subject = pod(
        *(container({"cpu": str(cpu)}) for cpu in main),
        init=[(sidecar if always else container)({"cpu": str(cpu)}) for cpu, always in inits],
        overhead={"cpu": str(overhead)},
    )
    beside, phases = 0, []
    for cpu, always in inits:
        phases.append(beside + cpu)
        beside += cpu if always else 0
    phases.append(beside + sum(main))
    assert pod_requests(subject)["cpu"] == Quantity.of(max(phases) + overhead)


FULL = {"cpu": "1", "memory": "1Gi"}
QOS = {
    "no resources": (pod(container()), "BestEffort"),
    "zero amounts": (pod(container({"cpu": "0"}, {"memory": "0"})), "BestEffort"),
    "other resources do not count": (pod(container({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "1"})), "BestEffort"),
    "batch resources do not count": (pod(container({"kubernetes.io/batch-cpu": "1k"})), "BestEffort"),
    "a request": (pod(container({"cpu": "1"})), "Burstable"),
    "a limit": (pod(container(limits={"cpu": "1"})), "Burstable"),
    "all equal": (pod(container(FULL, FULL)), "Guaranteed"),
    "equal in other words": (pod(container({"cpu": "1000m", "memory": "1024Mi"}, FULL)), "Guaranteed"),
    "request below limit": (pod(container({"cpu": "1", "memory": "512Mi"}, FULL)), "Burstable"),
    "memory missing": (pod(container({"cpu": "1"}, {"cpu": "1"})), "Burstable"),
    "one container without": (pod(container(FULL, FULL), container()), "Burstable"),
    "init container without": (pod(container(FULL, FULL), init=[container()]), "Burstable"),
    "init container alike": (pod(container(FULL, FULL), init=[container(FULL, FULL)]), "Guaranteed"),
    "request never defaulted": (pod(container(limits=FULL)), "Burstable"),
    "pod level alone": (pod(container(), resources={"requests": FULL, "limits": FULL}), "Guaranteed"),
}  # fmt: skip


@pytest.mark.parametrize("case", QOS)
def test_qos_class(case: str) -> None:
    subject, expected = QOS[case]
    assert computed_qos_class(subject) == expected
    assert pod_qos_class(subject) == expected


def test_status_decides_first() -> None:
    subject = pod(container())
    subject.status.qos_class = "Guaranteed"
    assert pod_qos_class(subject) == "Guaranteed"


@pytest.mark.parametrize(
    ("phase", "ended"),
    [("", False), ("Pending", False), ("Running", False), ("Unknown", False), ("Succeeded", True), ("Failed", True)],
)
def test_is_terminated(phase: str, ended: bool) -> None:
    subject = pod(container())
    subject.status.phase = phase
    assert is_terminated(subject) is ended
