"""What `kubectl get` prints of our kinds, with the stock kubectl and short names."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from control.standalone.apiserver import ApiServer
from koordlet.api.encoding import crdgen
from koordlet.api.registry import CUSTOM
from koordlet.kube import Client, ClientConfig, KubeError

KUBECTL = Path(sys.executable).with_name("kubectl")
LONG_AGO = "2026-01-01T00:00:00Z"

OBJECTS: dict[str, dict[str, Any]] = {
    "NodeMetric": {
        "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
        "status": {
            "updateTime": LONG_AGO,
            "nodeMetric": {
                "nodeUsage": {"resources": {"cpu": "2500m", "memory": "9Gi"}},
                "systemUsage": {"resources": {"cpu": "300m", "memory": "1Gi"}},
            },
            "prodReclaimableMetric": {"resource": {"resources": {"cpu": "4", "memory": "6Gi"}}},
            "extensions": {"interference": {"hurtPods": 2}},
        },
    },
    "NodeSLO": {
        "spec": {
            "resourceUsedThresholdWithBE": {
                "enable": True, "cpuSuppressThresholdPercent": 65, "memoryEvictThresholdPercent": 70,
            },
            "cpuBurstStrategy": {"policy": "auto"},
        }
    },
    "Device": {"spec": {"devices": [{"type": "gpu", "minor": 0, "health": True}, {"type": "rdma", "health": True}]}},
    "ElasticQuota": {
        "spec": {"min": {"cpu": "4", "memory": "8Gi"}, "max": {"cpu": "10", "memory": "20Gi"}},
        "status": {"used": {"cpu": "5", "memory": "7Gi"}},
    },
    "PodGroup": {"spec": {"minMember": 3}, "status": {"phase": "Running", "scheduled": 3, "running": 2, "failed": 1}},
    "ClusterColocationProfile": {
        "spec": {
            "qosClass": "BE", "priorityClassName": "koord-batch", "koordinatorPriority": 1000,
            "schedulerName": "koord-scheduler", "probability": "50%",
        }
    },
    "Reservation": {
        "spec": {"ttl": "1h", "template": {}, "owners": [{"object": {"name": "p"}}]},
        "status": {"phase": "Available", "nodeName": "n1"},
    },
    "PodMigrationJob": {
        "spec": {"podRef": {"namespace": "default", "name": "p"}, "ttl": "5m"},
        "status": {"phase": "Running", "status": "Evicting"},
    },
    "DrainNode": {
        "spec": {"nodeName": "n1", "confirmState": "Confirmed"},
        "status": {"phase": "Running", "podMigrationSummary": {"Succeed": 3, "Migrating": 2, "Unmigratable": 1}},
    },
    "Queue": {"spec": {"queuePolicy": "Priority", "priority": 5}},
    "QueueUnit": {"spec": {"queue": "batch"}, "status": {"phase": "Running", "quota": "team"}},
    "DrainNodeGroup": {"spec": {"nodeSelector": {}}, "status": {"phase": "Planning", "total": 2, "available": 1}},
}  # fmt: skip

LINES = {
    "nm": "NAME CPU MEMORY RECLAIMABLE-CPU RECLAIMABLE-MEM HURT-PODS REPORTED AGE | x 2500m 9Gi 4 6Gi 2 AGO AGO",
    "nslo": "NAME BE-THRESHOLDS SUPPRESS-CPU EVICT-MEM CPU-BURST AGE | x true 65 70 auto AGO",
    "devices": "NAME TYPE AGE | x gpu AGO",
    "eq": "NAME MIN-CPU MAX-CPU USED-CPU MAX-MEM USED-MEM AGE | x 4 10 5 20Gi 7Gi AGO",
    "pg": "NAME PHASE MINMEMBER SCHEDULED RUNNING SUCCEEDED FAILED AGE | x Running 3 3 2 1 AGO",
    "ccp": "NAME QOS PRIORITYCLASS SUBPRIORITY SCHEDULER PROBABILITY AGE"
    " | x BE koord-batch 1000 koord-scheduler 50% AGO",
    "rsv": "NAME PHASE AGE NODE TTL EXPIRES | x Available AGO n1 1h",
    "pmj": "NAME PHASE STATUS AGE NODE RESERVATION PODNAMESPACE POD NEWPOD TTL | x Running Evicting AGO default p 5m",
    "dn": "NAME NODE PHASE CONFIRM MOVED MOVING PLANNED UNMIGRATABLE AGE | x n1 Running Confirmed 3 2 1 AGO",
    "queues": "NAME POLICY PRIORITY AGE | x Priority 5 AGO",
    "queueunits": "NAME QUEUE PHASE QUOTA AGE | x batch Running team AGO",
    "dng": "NAME PHASE TOTAL AVAILABLE RUNNING SUCCEEDED FAILED AGE | x Planning 2 1 AGO",
}  # fmt: skip


@pytest.mark.kubectl
async def test_what_kubectl_prints(tmp_path: Path) -> None:
    async with (
        ApiServer(tmp_path / "api") as server,
        Client(ClientConfig.load(server.kubeconfig_path, qps=0)) as admin,
    ):
        for crd in crdgen.documents().values():
            await admin.raw("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=crd)
        resources = {resource.kind: resource for resource in CUSTOM}
        for kind, body in OBJECTS.items():
            resource = resources[kind]
            path = resource.path("default" if resource.namespaced else None)
            obj = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": "x"}, **body}
            await created(admin, path, obj)
            if resource.status_subresource and "status" in body:
                patch = {"status": body["status"]}
                await admin.raw("PATCH", f"{path}/x/status", body=patch, content_type="application/merge-patch+json")
        for name, expected in LINES.items():
            header, _, row = (part.split() for part in expected.partition(" | "))
            shown = [line.split() for line in (await kubectl(server, "get", name)).splitlines()]
            assert shown[0] == header
            assert shown[1][: len(row)] == [
                word if word != "AGO" else shown[1][index] for index, word in enumerate(row)
            ]
        wide = (await kubectl(server, "get", "nodemetric", "-o", "wide")).split("\n")[0].split()
        assert wide[-3:] == ["SYSTEM-CPU", "SYSTEM-MEM", "INTERVAL"]


async def created(admin: Client, path: str, obj: dict[str, Any]) -> None:
    """POST, again until the definition is served."""
    for attempt in range(200):
        try:
            json.loads(await admin.raw("POST", path, body=obj))
            return
        except KubeError:
            if attempt == 199:
                raise
            await asyncio.sleep(0.05)


async def kubectl(server: ApiServer, *arguments: str) -> str:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(server.kubeconfig_path.parent),
        "KUBECONFIG": str(server.kubeconfig_path),
    }
    process = await asyncio.create_subprocess_exec(
        str(KUBECTL), *arguments, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()
