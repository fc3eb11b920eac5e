"""This checkout on a real Kubernetes, from the shipped manifests: every component starts and reports."""

from __future__ import annotations

import pytest

from tests.kubernetes.components import NODE, Kubernetes, wait_for
from tests.kubernetes.installation import NAMESPACE, WORKLOADS, get

pytestmark = pytest.mark.kubernetes


def test_every_component_is_ready_and_was_not_restarted(installed: Kubernetes) -> None:
    pods = get(installed, "pods", "-n", NAMESPACE)["items"]
    assert len(pods) >= len(WORKLOADS)
    restarts = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}
    assert set(restarts.values()) == {0}, restarts


def test_koordlet_reports_the_node(installed: Kubernetes) -> None:
    def reported() -> bool:
        return "nodeMetric" in get(installed, "nodemetric", NODE).get("status", {})

    wait_for(reported, "NodeMetric has a status", 180.0)
