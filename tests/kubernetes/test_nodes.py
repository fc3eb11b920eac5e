"""Nodes that come and go: a second node without kubelet, its garbage, and this node deleted and registered again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kubernetes.components import NODE, Kubernetes
from tests.kubernetes.installation import get
from tests.kubernetes.processes import wait_for
from tests.kubernetes.test_faults import RECOVERY_S, create_and_place, pod, report_time
from tests.kubernetes.test_faults import no_pods_left as no_pods_left

pytestmark = pytest.mark.kubernetes
SECOND = "node-b"
PER_NODE = ("nodemetric", "nodeslo")
"""What the manager keeps for each node."""


@pytest.fixture
def second_node(installed: Kubernetes) -> str:
    """A Node that reports itself ready once, with room for pods."""
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "20", "ephemeral-storage": "20Gi"}
    node = {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": SECOND, "labels": {"kubernetes.io/hostname": SECOND, "example.com/fake": "true"}},
    }  # fmt: skip
    installed.kubectl("create", "-f", "-", text=json.dumps(node))
    status = {
        "capacity": amounts, "allocatable": amounts,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "ready"}],
    }  # fmt: skip
    installed.kubectl(
        "patch", "node", SECOND, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status})
    )
    return SECOND


def exists(cluster: Kubernetes, kind: str, name: str) -> bool:
    return cluster.kubectl("get", kind, name, check=False).returncode == 0


def for_second_node(name: str) -> dict[str, Any]:
    document = pod(name)
    document["spec"]["nodeSelector"] = {"kubernetes.io/hostname": SECOND}
    document["spec"]["tolerations"] = [{"operator": "Exists"}]
    return document


def test_a_second_node_gets_pods_and_leaves_nothing_behind(installed: Kubernetes, second_node: str) -> None:
    for kind in PER_NODE:
        wait_for(lambda: exists(installed, kind, second_node), f"{kind} of {second_node} exists", RECOVERY_S)  # noqa: B023
    installed.kubectl("create", "-f", "-", text=json.dumps(for_second_node("second")))
    query = ("get", "pod", "second", "-o", "jsonpath={.spec.nodeName}")
    wait_for(lambda: installed.kubectl(*query).stdout == second_node, "the pod is placed there", RECOVERY_S)
    installed.kubectl("delete", "node", second_node)
    for kind in PER_NODE:
        wait_for(lambda: not exists(installed, kind, second_node), f"{kind} of {second_node} is gone", RECOVERY_S)  # noqa: B023
    installed.kubectl("create", "-f", "-", text=json.dumps(for_second_node("too-late")))
    condition = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}"
    query = ("get", "pod", "too-late", "-o", condition)
    wait_for(lambda: installed.kubectl(*query).stdout == "Unschedulable", "no node is left for it", RECOVERY_S)
    create_and_place(installed, "after-second-node")


def test_this_node_is_deleted_and_registered_again(installed: Kubernetes) -> None:
    """Its objects go and come back; koordlet, which runs meanwhile, reports into the new NodeMetric."""
    uids = {kind: get(installed, kind, NODE)["metadata"]["uid"] for kind in PER_NODE}
    installed.kill("kubelet")
    installed.kubectl("delete", "node", NODE)
    for kind in PER_NODE:
        wait_for(lambda: not exists(installed, kind, NODE), f"{kind} of {NODE} is gone", RECOVERY_S)  # noqa: B023
    installed.start_component("kubelet")
    for kind, uid in uids.items():
        wait_for(lambda: exists(installed, kind, NODE), f"{kind} of {NODE} is there again", 240.0)  # noqa: B023
        assert get(installed, kind, NODE)["metadata"]["uid"] != uid
    wait_for(lambda: report_time(installed) != "", "koordlet reports into the new NodeMetric", 240.0)
    create_and_place(installed, "after-node", 240.0)
