"""The commands of docs/migrate.md on a cluster with the original's objects: there and back."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.standalone.apiserver import ApiServer

pytestmark = pytest.mark.kubectl
ROOT = Path(__file__).resolve().parents[4]
KUBECTL = Path(sys.executable).with_name("kubectl")
SPACE = "koordinator-system"
ORIGINAL = """
apiVersion: v1
kind: Namespace
metadata: {name: koordinator-system}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: koordlet, namespace: koordinator-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: koordlet-role}
rules: [{apiGroups: [""], resources: [nodes, pods], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: koordlet-rolebinding}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: koordlet-role}
subjects: [{kind: ServiceAccount, name: koordlet, namespace: koordinator-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: slo-controller-config, namespace: koordinator-system}
data: {colocation-config: '{"enable": true, "cpuReclaimThresholdPercent": 77}'}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: koordlet, namespace: koordinator-system}
spec:
  selector: {matchLabels: {koord-app: koordlet}}
  template:
    metadata: {labels: {koord-app: koordlet}}
    spec:
      serviceAccountName: koordlet
      containers:
      - name: koordlet
        image: original/koordlet:v1
        command: [/koordlet]
        args: [-addr=:9316, "--feature-gates=BECPUEvict=true,CgroupReconcile=true", --tsdb-path=/metric-data/]
        securityContext: {privileged: true, allowPrivilegeEscalation: true}
        volumeMounts: [{name: metric-db, mountPath: /metric-data}]
      volumes:
      - {name: metric-db, emptyDir: {}}
"""
USERS = """
apiVersion: config.koordinator.sh/v1alpha1
kind: ClusterColocationProfile
metadata: {name: mine}
spec: {qosClass: BE, namespaceSelector: {matchLabels: {team: a}}}
"""


class Migrated:
    """kubectl and koordctl against one API server, in one working folder."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self._folder = folder
        self._environ = {
            "KUBECONFIG": str(server.kubeconfig_path), "HOME": str(folder),
            "PATH": f"{KUBECTL.parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT),
        }  # fmt: skip

    async def shell(self, command: str) -> str:
        process = await asyncio.create_subprocess_shell(
            command, cwd=self._folder, env=self._environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await process.communicate()
        assert process.returncode == 0, f"{command}: {err.decode()}"
        return out.decode()

    async def get(self, what: str) -> Any:
        return json.loads(await self.shell(f"kubectl get {what} -n {SPACE} -o json"))

    async def container(self) -> dict[str, Any]:
        (only,) = (await self.get("daemonset koordlet"))["spec"]["template"]["spec"]["containers"]
        return dict(only)


def documented(section: str) -> list[str]:
    """The kubectl commands of a section of docs/migrate.md, in order."""
    text = (ROOT / "docs/migrate.md").read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"`(kubectl [^`]*)`", text)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Migrated]:
    async with ApiServer(tmp_path / "api") as server:
        (tmp_path / "deploy").symlink_to(ROOT / "deploy")
        migrated = Migrated(server, tmp_path)
        (tmp_path / "original.yaml").write_text(ORIGINAL)
        (tmp_path / "users.yaml").write_text(USERS)
        await migrated.shell("kubectl apply -k deploy/crds")
        await migrated.shell("kubectl create -f original.yaml -f users.yaml")
        yield migrated


async def test_the_documented_take_over_and_the_way_back(cluster: Migrated) -> None:
    items = json.loads(await cluster.shell("koordctl migrate check -o json"))["items"]
    todo = {(item["area"], item["subject"]) for item in items if item["outcome"] == "action"}
    assert {("gate", "koordlet"), ("right", "ClusterRoleBinding koordlet-rolebinding")} <= todo
    profile = (await cluster.get("clustercolocationprofile mine"))["spec"]

    keep, crds, orphan, take, *_ = documented("The take-over")
    for command in (keep, crds, orphan, take):
        await cluster.shell(command)
    shipped = next(yaml.safe_load_all((ROOT / "deploy/koordlet/daemonset.yaml").read_text()))
    container = await cluster.container()
    (expected,) = shipped["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"] == expected["securityContext"], "nothing of the original's is mixed in"
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        mount["name"] for mount in expected["volumeMounts"]
    }
    assert container["image"] == expected["image"]
    assert (await cluster.get("clustercolocationprofile mine"))["spec"] == profile

    await cluster.shell("kubectl delete clusterrolebinding koordlet-rolebinding")
    items = json.loads(await cluster.shell("koordctl migrate check -o json"))["items"]
    assert [item for item in items if item["outcome"] == "action"] == []

    for command in documented("The way back")[:2]:
        await cluster.shell(command)
    back = await cluster.container()
    assert (back["image"], back["securityContext"]["privileged"]) == ("original/koordlet:v1", True)
    assert [mount["name"] for mount in back["volumeMounts"]] == ["metric-db"]
    config = (await cluster.get("configmap slo-controller-config"))["data"]
    assert json.loads(config["colocation-config"])["cpuReclaimThresholdPercent"] == 77
