"""Pods that need a plugin which this build lacks are not scheduled, and their condition names the reason."""

from __future__ import annotations

import pytest

from control.scheduler.cycle.failures import FitError
from control.scheduler.plugins.registry import PLUGINS
from koordlet.api.core import Pod
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import cycle_of

POINTS = {"preFilter": ("DynamicResources",), "filter": ("NodeResourcesFit",)}
CLAIMS = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (pod(spec=CLAIMS), "pod has resource claims, which this scheduler does not allocate"),
    ],
    ids=["resource claims"],
)
def test_a_pod_that_needs_a_missing_plugin_is_rejected(one: Pod, reason: str) -> None:
    cluster = Cluster(node("a"))
    cycle = cycle_of(cluster, POINTS, PLUGINS)
    with pytest.raises(FitError) as failure:
        cycle.place(cluster.info(one))
    assert failure.value.text() == f"0/1 nodes are available: {reason}."


def test_other_pods_are_scheduled() -> None:
    cluster = Cluster(node("a"))
    assert cycle_of(cluster, POINTS, PLUGINS).place(cluster.info(pod())).node == "a"
