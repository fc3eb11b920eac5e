"""In-place resize: what counts for a container is the largest of spec, granted and applied requests."""

from __future__ import annotations

from typing import Any

import pytest

from control.scheduler.state.objects import trim_pod
from control.scheduler.state.pods import Shapes
from control.scheduler.state.resizing import ResizablePod, with_effective_requests
from koordlet.api.core import Pod
from koordlet.api.encoding import wire


def resized(status: dict[str, Any], conditions: list[dict[str, Any]] | None = None, **more: Any) -> Pod:
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "4"}}}
    body = {
        "metadata": {"name": "a", "namespace": "default", "uid": "u"},
        "spec": {"containers": [container], "nodeName": "n", **more},
        "status": {"containerStatuses": [{"name": "main", **status}], "conditions": conditions or []},
    }
    return trim_pod(with_effective_requests(wire.convert(body, ResizablePod)))


@pytest.mark.parametrize(
    ("status", "reason", "cpu"),
    [
        ({}, "", 1000),
        ({"allocatedResources": {"cpu": "3"}}, "", 1000),
        ({"resources": {"requests": {"cpu": "500m"}}}, "", 1000),
        ({"resources": {"requests": {"cpu": "2"}}}, "", 2000),
        ({"resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "3"}}, "", 3000),
        ({"resources": {"requests": {"cpu": "500m"}}}, "Deferred", 1000),
        ({"resources": {"requests": {"cpu": "500m"}}}, "Infeasible", 500),
        ({"resources": {"requests": {"cpu": "500m"}}, "allocatedResources": {"cpu": "700m"}}, "Infeasible", 700),
    ],
    ids=["no status", "not running", "grows", "shrinks", "granted", "deferred", "infeasible", "infeasible, granted"],
)
def test_requests_during_a_resize(status: dict[str, Any], reason: str, cpu: int) -> None:
    conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    pod = resized(status, conditions)
    assert type(pod) is Pod
    assert pod.status.container_statuses == []
    assert Shapes().info(pod).requests["cpu"] == cpu
    assert pod.spec.containers[0].resources.limits["cpu"].value() == 4


def test_init_containers_that_end_are_not_resized() -> None:
    init = {"name": "init", "resources": {"requests": {"cpu": "2"}}}
    status = {"initContainerStatuses": [{"name": "init", "resources": {"requests": {"cpu": "9"}}}]}
    body = {"metadata": {"name": "a"}, "spec": {"containers": [], "initContainers": [init]}, "status": status}
    pod = with_effective_requests(wire.convert(body, ResizablePod))
    assert pod.spec.init_containers[0].resources.requests["cpu"].value() == 2
    body["spec"] = {"containers": [], "initContainers": [{**init, "restartPolicy": "Always"}]}
    sidecar = with_effective_requests(wire.convert(body, ResizablePod))
    assert sidecar.spec.init_containers[0].resources.requests["cpu"].value() == 9
