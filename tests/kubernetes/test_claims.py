"""Resource claims on a real Kubernetes: claims that its controller makes from a template, devices that are freed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.components import NODE, Kubernetes
from tests.kubernetes.installation import get
from tests.kubernetes.processes import wait_for

pytestmark = pytest.mark.kubernetes
DRIVER = "gpu.example.com"
V1 = "resource.k8s.io/v1"
LIMIT_S = 120.0
SELECTOR = (
    f'device.attributes["{DRIVER}"].model == "a" && device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("1Gi"))'
)
CLASS = {
    "apiVersion": V1,
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}
SLICE = {
    "apiVersion": V1,
    "kind": "ResourceSlice",
    "metadata": {"name": "gpus"},
    "spec": {
        "driver": DRIVER,
        "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": f"gpu-{number}",
                "attributes": {"model": {"string": model}},
                "capacity": {"memory": {"value": "8Gi"}},
            }
            for number, model in enumerate("ab")
        ],
    },
}
TEMPLATE = {
    "apiVersion": V1,
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpu", "namespace": "default"},
    "spec": {
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "r",
                        "exactly": {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": SELECTOR}}]},
                    }
                ]
            }
        }
    },
}


def pod(name: str) -> dict[str, Any]:
    """Its containers never start: no driver is registered at the kubelet."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "claims"}},
        "spec": {
            "schedulerName": "koord-scheduler",
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
            "containers": [
                {
                    "name": "main",
                    "image": "busybox",
                    "imagePullPolicy": "IfNotPresent",
                    "resources": {"claims": [{"name": "gpu"}]},
                }
            ],
        },
    }


@pytest.fixture
def devices(installed: Kubernetes) -> Iterator[Kubernetes]:
    for document in (CLASS, SLICE, TEMPLATE):
        installed.kubectl("apply", "-f", "-", text=json.dumps(document))
    yield installed
    installed.kubectl("delete", "pods", "-l", "app=claims", "--force", "--grace-period=0", "--ignore-not-found")
    installed.kubectl("delete", "resourceclaimtemplate/gpu", "resourceslice/gpus", "deviceclass/gpu")


def node_of(cluster: Kubernetes, name: str) -> str:
    return str(get(cluster, "pod", name)["spec"].get("nodeName", ""))


def claim_of(cluster: Kubernetes, name: str) -> dict[str, Any]:
    """The claim that was made for the pod; empty without one."""
    statuses = get(cluster, "pod", name)["status"].get("resourceClaimStatuses", [])
    document: dict[str, Any] = get(cluster, "resourceclaim", statuses[0]["resourceClaimName"]) if statuses else {}
    return document


def test_a_device_is_given_to_one_pod_at_a_time(devices: Kubernetes) -> None:
    devices.kubectl("apply", "-f", "-", text=json.dumps(pod("first")))
    wait_for(lambda: node_of(devices, "first") == NODE, "the first pod is bound", LIMIT_S)
    claim = claim_of(devices, "first")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"], result["device"]) == (DRIVER, NODE, "gpu-0"), "only this one matches"
    assert [each["name"] for each in claim["status"]["reservedFor"]] == ["first"]

    devices.kubectl("apply", "-f", "-", text=json.dumps(pod("second")))
    wait_for(lambda: "cannot allocate all claims" in condition(devices, "second"), "the second pod waits", LIMIT_S)
    devices.kubectl("delete", "pod", "first", "--force", "--grace-period=0")
    wait_for(lambda: node_of(devices, "second") == NODE, "the second pod is bound", LIMIT_S)
    (result,) = claim_of(devices, "second")["status"]["allocation"]["devices"]["results"]
    assert result["device"] == "gpu-0"


def condition(cluster: Kubernetes, name: str) -> str:
    conditions = get(cluster, "pod", name)["status"].get("conditions", [])
    return next((each.get("message", "") for each in conditions if each["type"] == "PodScheduled"), "")
