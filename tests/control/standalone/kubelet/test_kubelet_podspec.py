"""Parsing API JSON for the kubelet, and its agreement with koordlet's parser."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.standalone.kubelet.pods.spec import MalformedPod, parse_pod, pod_limits, pod_requests, qos_class
from koordlet.api import core
from koordlet.api.encoding import wire

META = {"name": "p", "uid": "u", "namespace": "default"}


def raw(container: Any = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": META, "spec": {"containers": [{"name": "c", **(container or {})}], **spec}}


def test_defaults() -> None:
    pod = parse_pod(raw())
    assert (pod.restart_policy, pod.grace_seconds, pod.service_account) == ("Always", 30, "default")
    probe = parse_pod(raw({"livenessProbe": {"tcpSocket": {"port": 80}}})).containers[0].liveness
    assert probe is not None
    assert (probe.initial_delay, probe.period, probe.timeout) == (0, 10, 1)
    assert (probe.success_threshold, probe.failure_threshold) == (1, 3)


@pytest.mark.parametrize(
    ("bad", "field", "text"),
    [
        ({"metadata": {"name": "p"}, "spec": {}}, "metadata.uid", "Required value"),
        (raw({"resources": {"limits": {"memory": "1Zi"}}}), "spec.containers[0].resources.limits[memory]", "1Zi"),
        (
            raw({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}),
            "spec.containers[0].resources.requests[cpu]",
            "less than or equal to the limit",
        ),
        (raw({"resources": {"requests": {"cpu": "-1"}}}), "spec.containers[0].resources.requests[cpu]", "negative"),
        (raw({"command": [1]}), "spec.containers[0].command[0]", "expected a string"),
        (raw({"env": [3]}), "spec.containers[0].env[0]", "expected an object"),
        (raw({"livenessProbe": {}}), "spec.containers[0].livenessProbe", "one of exec"),
        (
            raw({"livenessProbe": {"exec": {"command": []}}}),
            "spec.containers[0].livenessProbe.exec.command",
            "must not be empty",
        ),
        (
            raw({"readinessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 0}}),
            "spec.containers[0].readinessProbe.periodSeconds",
            "greater than or equal to 1",
        ),
        (raw(restartPolicy="Sometimes"), "spec.restartPolicy", "Unsupported value"),
        (raw(terminationGracePeriodSeconds=-1), "spec.terminationGracePeriodSeconds", "greater than"),
        (raw(initContainers=[{"name": "c"}]), "spec.containers", "Duplicate value"),
        (raw(activeDeadlineSeconds="x"), "spec.activeDeadlineSeconds", "expected an integer"),
    ],
)
def test_malformed(bad: Any, field: str, text: str) -> None:
    with pytest.raises(MalformedPod) as caught:
        parse_pod(bad)
    assert caught.value.field == field
    assert text in str(caught.value)


amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "kubernetes.io/batch-cpu"]), st.sampled_from(["0", "1", "250m", "2", "1Ki"])
)
resources = st.fixed_dictionaries({}, optional={"requests": amounts, "limits": amounts})


@st.composite
def pods(draw: Any) -> dict[str, Any]:
    def containers(prefix: str, low: int) -> list[dict[str, Any]]:
        drawn = draw(st.lists(resources, min_size=low, max_size=3))
        return [{"name": f"{prefix}{i}", "resources": r} for i, r in enumerate(drawn)]

    inits = containers("i", 0)
    for container in inits:
        if draw(st.booleans()):
            container["restartPolicy"] = "Always"
    spec = {"containers": containers("c", 1), "initContainers": inits, "overhead": draw(amounts)}
    for container in spec["containers"] + inits:  # with the API server's defaults, and no limit below a request
        given_requests = container["resources"].setdefault("requests", {})
        limits = container["resources"].get("limits", {})
        given_requests.update(limits)
    return {"metadata": META, "spec": spec}


@given(pods())
def test_qos_class_requests_and_limits_agree_with_koordlet_api(pod: dict[str, Any]) -> None:
    ours = parse_pod(pod)
    theirs: core.Pod = wire.convert(pod, core.Pod)
    assert qos_class(ours).value == core.pod_qos_class(theirs)

    def real(amounts: Any) -> dict[str, Any]:
        return {k: v for k, v in amounts.items() if v}

    assert real(pod_requests(ours)) == real(core.pod_requests(theirs))
    assert real(pod_limits(ours)) == real(core.pod_limits(theirs))
