"""deploy/manager as a user installs it, with stock kubectl."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from control.manager import manifests
from control.manager.options import WebhookEnv
from control.manager.webhookserver.configurations import (
    MUTATING,
    VALIDATING,
    ConfigurationTarget,
    desired,
)
from control.standalone.apiserver import ApiServer
from koordlet.kube import Client, ClientConfig

DEPLOY = Path(__file__).parents[3] / "deploy/manager"
KUBECTL = Path(sys.executable).with_name("kubectl")

pytestmark = pytest.mark.kubectl


async def kubectl(server: ApiServer, home: Path, *args: str) -> str:
    """Standard output of a command that must succeed."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(server.kubeconfig_path)}
    process = await asyncio.create_subprocess_exec(
        str(KUBECTL), *args, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def install(server: ApiServer, home: Path) -> str:
    """The commands of docs/manager.md, except the one that creates the ConfigMap."""
    await kubectl(server, home, "apply", "--server-side", "-k", str(DEPLOY.with_name("crds")))
    return await kubectl(server, home, "apply", "-k", str(DEPLOY))


async def test_manifests_can_be_applied_repeatedly(tmp_path: Path) -> None:
    async with ApiServer(tmp_path / "api") as server:
        first = await install(server, tmp_path)
        for name in ("deployment.apps/koord-manager", "service/koordinator-webhook-service"):
            assert f"{name} created" in first
        async with Client(ClientConfig.load(server.kubeconfig_path)) as admin:
            path = "/apis/apps/v1/namespaces/koordinator-system/deployments/koord-manager"
            spec = json.loads(await admin.raw("GET", path))["spec"]
            assert (spec["replicas"], spec["strategy"]["rollingUpdate"]["maxUnavailable"]) == (2, 0)
        can = ["auth", "can-i", "--as=system:serviceaccount:koordinator-system:koord-manager"]
        assert await kubectl(server, tmp_path, *can, "patch", "nodes/status") == "yes\n"
        assert "created" not in await kubectl(server, tmp_path, "apply", "-k", str(DEPLOY))


async def test_the_configuration_is_created_once_and_not_overwritten(tmp_path: Path) -> None:
    async with ApiServer(tmp_path / "api") as server:
        await kubectl(server, tmp_path, "apply", "-f", str(DEPLOY / "namespace.yaml"))
        await kubectl(server, tmp_path, "create", "-f", str(DEPLOY / "config.yaml"))
        own = json.dumps({"data": {"colocation-config": '{"enable": false}'}})
        name = ("configmap", "slo-controller-config", "-n", "koordinator-system")
        await kubectl(server, tmp_path, "patch", *name, "--type=merge", "-p", own)
        await install(server, tmp_path)
        assert json.loads(
            await kubectl(server, tmp_path, "get", *name, "-o", "jsonpath={.data.colocation-config}")
        ) == {"enable": False}


async def test_registered_webhooks_stay_when_the_manifests_are_applied_again(tmp_path: Path) -> None:
    async with ApiServer(tmp_path / "api") as server, Client(ClientConfig.load(server.kubeconfig_path)) as admin:
        await install(server, tmp_path)
        target = ConfigurationTarget(
            WebhookEnv(), 9876, ("/mutate-pod", "/validate-pod"), server.pki.ca_file.read_bytes()
        )
        paths = [
            f"/apis/admissionregistration.k8s.io/v1/{resource.plural}/{document['metadata']['name']}"
            for document, resource in zip(manifests.webhooks(), (MUTATING, VALIDATING), strict=True)
        ]
        registered = []
        for path, resource in zip(paths, (MUTATING, VALIDATING), strict=True):
            body = {"webhooks": desired(resource.kind, target)}
            await admin.raw("PATCH", path, body=body, content_type="application/merge-patch+json")
            registered.append(json.loads(await admin.raw("GET", path))["webhooks"])
            assert registered[-1] == body["webhooks"], "the API server defaults nothing"
        await install(server, tmp_path)
        for path, webhooks in zip(paths, registered, strict=True):
            assert json.loads(await admin.raw("GET", path))["webhooks"] == webhooks
